"""A Llama decoder over one flat parameter vector: the mathematics of Hugging Face's `LlamaForCausalLM` without its overhead.

All weights live in one fp32 vector, so optimizer, gradient clipping and checkpoint are single operations. The forward pass casts the vector
to bf16 once per step and skips what pretraining does not need: no attention mask (rows are right-padded and attention is causal, so no
real token ever sees padding), no cache, logits only where a target is.
`tests/integration/test_pretrain.py` proves equal logits with Hugging Face.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["DecoderShape", "Layer", "Weights", "forward", "initial", "named", "packed", "unpack"]

_QUERY_BLOCK = 64
"""Query rows per attention step; 32 and 128 were slower at widths 256 to 1,024."""


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Sizes of a dense decoder with tied embeddings and full multi-head attention."""

    vocab: int
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    intermediate: int = 384
    positions: int = 2048
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6

    @property
    def head_dim(self) -> int:
        """Width of one attention head; vLLM on CPU takes 32, 64, 128 and refuses 16."""
        return self.hidden // self.heads

    @property
    def parameters(self) -> int:
        """Number of weights."""
        per_layer = 4 * self.hidden**2 + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.vocab * self.hidden + self.layers * per_layer + self.hidden


class Layer(NamedTuple):
    """One block's weights, in the order they lie in the flat vector; `qkv` and `gate_up` are stacked by rows."""

    input_norm: Tensor
    qkv: Tensor
    output: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Weights(NamedTuple):
    """Views into the flat vector."""

    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor


def _sizes(shape: DecoderShape) -> list[tuple[int, ...]]:
    h, f = shape.hidden, shape.intermediate
    layer: list[tuple[int, ...]] = [(h,), (3 * h, h), (h, h), (h,), (2 * f, h), (h, f)]
    return [(shape.vocab, h), *(layer * shape.layers), (h,)]


def unpack(flat: Tensor, shape: DecoderShape) -> Weights:
    """Weights as views of `flat` (any dtype, length `shape.parameters`)."""
    sizes = _sizes(shape)
    parts = flat.split([int(torch.Size(size).numel()) for size in sizes])
    tensors = [part.view(size) for part, size in zip(parts, sizes, strict=True)]
    layers = tuple(Layer(*tensors[1 + 6 * index : 7 + 6 * index]) for index in range(shape.layers))
    return Weights(tensors[0], layers, tensors[-1])


def initial(shape: DecoderShape, *, seed: int) -> Tensor:
    """A flat fp32 start: every matrix normal with std hidden**-0.5, norms 1.

    Hugging Face's 0.02 leaves models of this width stuck on a plateau; about 0.08-0.09 does not.
    """
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.ones(size) if len(size) == 1 else torch.randn(size, generator=generator) * shape.hidden**-0.5 for size in _sizes(shape)]
    return torch.cat([part.reshape(-1) for part in parts])


def named(flat: Tensor, shape: DecoderShape) -> dict[str, Tensor]:
    """The weights under Hugging Face's names."""
    weights = unpack(flat, shape)
    h, f = shape.hidden, shape.intermediate
    table = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.norm}
    for index, layer in enumerate(weights.layers):
        prefix = f"model.layers.{index}"
        table[f"{prefix}.input_layernorm.weight"] = layer.input_norm
        table[f"{prefix}.post_attention_layernorm.weight"] = layer.post_norm
        for name, part in zip("qkv", layer.qkv.split(h), strict=True):
            table[f"{prefix}.self_attn.{name}_proj.weight"] = part
        table[f"{prefix}.self_attn.o_proj.weight"] = layer.output
        for name, part in zip(("gate", "up"), layer.gate_up.split(f), strict=True):
            table[f"{prefix}.mlp.{name}_proj.weight"] = part
        table[f"{prefix}.mlp.down_proj.weight"] = layer.down
    return table


def packed(tensors: dict[str, Tensor], shape: DecoderShape) -> Tensor:
    """The flat fp32 vector of tensors under Hugging Face's names; the inverse of `named`."""
    flat = torch.zeros(shape.parameters)
    for name, view in named(flat, shape).items():
        view.copy_(tensors[name])
    return flat


def _rotary(width: int, shape: DecoderShape, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    inverse = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
    angle = torch.outer(torch.arange(width).float(), inverse)
    angle = torch.cat((angle, angle), -1)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight


class _CausalAttention(torch.autograd.Function):
    """Causal attention over [heads, width, head_dim] in query blocks, probabilities kept for the backward pass.

    PyTorch's CPU flash kernel spends 45 % of a step of this width in its backward pass; plain matrix products use AMX and take 2 (width 512)
    to 4 times (width 128) less. Past 1,024 tokens the two are even.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k, v [heads, width, head_dim] -> the same shape; `q` comes scaled."""
        width = q.shape[1]
        out = torch.empty_like(q)
        kept = []
        for start in range(0, width, _QUERY_BLOCK):
            end = min(width, start + _QUERY_BLOCK)
            scores = torch.bmm(q[:, start:end], k[:, :end].transpose(1, 2))
            scores[:, :, start:] += torch.full((end - start, end - start), float("-inf"), dtype=q.dtype).triu_(1)
            probability = torch.softmax(scores, -1)
            torch.bmm(probability, v[:, :end], out=out[:, start:end])
            kept.append(probability)
        ctx.save_for_backward(q, k, v, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k, v."""
        grad = grads[0]
        q, k, v, *kept = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        start = 0
        for probability in kept:
            end = start + probability.shape[1]
            upper = torch.bmm(grad[:, start:end], v[:, :end].transpose(1, 2))
            inner = torch._softmax_backward_data(upper, probability, -1, probability.dtype)
            torch.bmm(inner, k[:, :end], out=dq[:, start:end])
            dk[:, :end] += torch.bmm(inner.transpose(1, 2), q[:, start:end])
            dv[:, :end] += torch.bmm(probability.transpose(1, 2), grad[:, start:end])
            start = end
        return dq, dk, dv


def _attend(x: Tensor, layer: Layer, shape: DecoderShape, cos: Tensor, sin: Tensor) -> Tensor:
    rows, width, hidden = x.shape
    qkv = F.linear(x, layer.qkv).view(rows, width, 3, shape.heads, shape.head_dim).permute(2, 0, 3, 1, 4)
    q, k, v = (part.reshape(rows * shape.heads, width, shape.head_dim) for part in qkv)
    out = _CausalAttention.apply(_rotate(q, cos, sin) * shape.head_dim**-0.5, _rotate(k, cos, sin), v)
    return F.linear(out.view(rows, shape.heads, width, -1).transpose(1, 2).reshape(rows, width, hidden), layer.output)


def forward(flat: Tensor, shape: DecoderShape, tokens: Tensor, position: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Logits [places, vocab] at the flat places `position` of right-padded `tokens` [rows, width], computed in `dtype`."""
    weights = unpack(flat.to(dtype), shape)
    embedding = unpack(flat, shape).embedding
    x = F.embedding(tokens, embedding).to(dtype)
    cos, sin = _rotary(tokens.shape[1], shape, dtype)
    for layer in weights.layers:
        x = x + _attend(_norm(x, layer.input_norm, shape.norm_eps), layer, shape, cos, sin)
        gate, up = F.linear(_norm(x, layer.post_norm, shape.norm_eps), layer.gate_up).chunk(2, -1)
        x = x + F.linear(F.silu(gate) * up, layer.down)
    picked = x.reshape(-1, shape.hidden)[position]
    return F.linear(_norm(picked, weights.norm, shape.norm_eps), weights.embedding)
