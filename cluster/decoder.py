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
import torch.nn.functional as F
from torch import Tensor

__all__ = ["DecoderShape", "Layer", "Weights", "forward", "initial", "named", "packed", "unpack"]

_softmax_backward: Any = getattr(torch, "_softmax_backward_data")  # noqa: B009 - the fused kernel has no public name

_QUERY_BLOCK = 128
_HEAD_BLOCK = 16
"""Queries and heads of one attention step: its scores, 16 x 128 x 512 bf16, fit a 2 MiB L2 cache."""


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
    parts = torch.split(flat, [int(torch.Size(size).numel()) for size in sizes])
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
    table = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.norm}
    for index, layer in enumerate(weights.layers):
        prefix = f"model.layers.{index}"
        table[f"{prefix}.input_layernorm.weight"] = layer.input_norm
        table[f"{prefix}.post_attention_layernorm.weight"] = layer.post_norm
        for name, part in zip("qkv", layer.qkv.chunk(3), strict=True):
            table[f"{prefix}.self_attn.{name}_proj.weight"] = part
        table[f"{prefix}.self_attn.o_proj.weight"] = layer.output
        for name, part in zip(("gate", "up"), layer.gate_up.chunk(2), strict=True):
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


class _Norm(torch.autograd.Function):
    """RMSNorm in few passes over the activations: 4 times the composite's speed in bf16 (5 against 21 ms for 8,192 x 128)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Normalise x [..., hidden] by weight [hidden]; the scale is computed in fp32."""
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32).square_()
        scale = torch.rsqrt(square.div_(x.shape[-1]).add_(eps)).to(x.dtype)
        unit = x * scale
        ctx.save_for_backward(unit, scale, weight)
        return unit * weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        """Gradients of x and weight."""
        unit, scale, weight = ctx.saved_tensors
        hidden = unit.shape[-1]
        product = grads[0] * unit
        along = torch.matmul(product, weight).div_(hidden).unsqueeze_(-1)
        of_weight = product.view(-1, hidden).sum(0, dtype=torch.float32).to(weight.dtype)
        return (grads[0] * weight).addcmul_(unit, along, value=-1).mul_(scale), of_weight, None


class _Gated(torch.autograd.Function):
    """silu(gate) * up with both gradients written into one tensor, where chunk's own backward would copy them together."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        """gate_up [..., 2 * intermediate] -> [..., intermediate]."""
        gate, up = gate_up.chunk(2, -1)
        activated = F.silu(gate)
        ctx.save_for_backward(gate_up, activated)
        return activated * up

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """Gradient of gate_up."""
        gate_up, activated = ctx.saved_tensors
        gate, up = gate_up.chunk(2, -1)
        out = torch.empty_like(gate_up)
        of_gate, of_up = out.chunk(2, -1)
        torch.mul(grads[0], activated, out=of_up)
        torch.ops.aten.silu_backward.grad_input(grads[0] * up, gate, grad_input=of_gate)
        return out


class _CausalAttention(torch.autograd.Function):
    """Causal attention in blocks of queries and heads, probabilities kept for the backward pass.

    PyTorch's CPU flash kernel spends 45 % of a step of this width in its backward pass. Plain matrix products use AMX: 24, 37, 51 and
    91 ms for 8,192 tokens at widths 128, 256, 512 and 1,024, where the kernel takes 112, 78, 106 and 111.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k, v [heads, width, head_dim] -> the same shape; `q` comes scaled."""
        out = torch.empty_like(q)
        turned = k.transpose(1, 2).contiguous()
        kept = []
        for heads, start, end in _blocks(q):
            scores = torch.bmm(q[heads, start:end], turned[heads, :, :end])
            scores[:, :, start:] += torch.full((end - start, end - start), float("-inf"), dtype=q.dtype).triu_(1)
            probability = torch.softmax(scores, -1)
            torch.bmm(probability, v[heads, :end], out=out[heads, start:end])
            kept.append(probability)
        ctx.save_for_backward(q, k, v, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k, v."""
        q, k, v, *kept = ctx.saved_tensors
        grad, turned = grads[0], v.transpose(1, 2).contiguous()
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for (heads, start, end), probability in zip(_blocks(q), kept, strict=True):
            outer = grad[heads, start:end]
            inner = _softmax_backward(torch.bmm(outer, turned[heads, :, :end]), probability, -1, q.dtype)
            torch.bmm(inner, k[heads, :end], out=dq[heads, start:end])
            dk[heads, :end].baddbmm_(inner.transpose(1, 2), q[heads, start:end])
            dv[heads, :end].baddbmm_(probability.transpose(1, 2), outer)
        return dq, dk, dv


def _blocks(q: Tensor) -> list[tuple[slice, int, int]]:
    """(heads, first query, end) of each block."""
    count, width = q.shape[:2]
    groups = [slice(first, first + _HEAD_BLOCK) for first in range(0, count, _HEAD_BLOCK)]
    return [(group, start, min(width, start + _QUERY_BLOCK)) for group in groups for start in range(0, width, _QUERY_BLOCK)]


_norm: Any = _Norm.apply
_gated: Any = _Gated.apply
_causal_attention: Any = _CausalAttention.apply


def _attend(x: Tensor, layer: Layer, shape: DecoderShape, cos: Tensor, sin: Tensor) -> Tensor:
    rows, width, hidden = x.shape
    qkv = F.linear(x, layer.qkv).view(rows, width, 3, shape.heads, shape.head_dim).permute(2, 0, 3, 1, 4)
    q, k, v = (part.reshape(rows * shape.heads, width, shape.head_dim) for part in qkv)
    scale = shape.head_dim**-0.5
    out = _causal_attention(_rotate(q, cos * scale, sin * scale), _rotate(k, cos, sin), v)
    return F.linear(out.view(rows, shape.heads, width, -1).transpose(1, 2).reshape(rows, width, hidden), layer.output)


def forward(flat: Tensor, shape: DecoderShape, tokens: Tensor, position: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Logits [places, vocab] at the flat places `position` of right-padded `tokens` [rows, width], computed in `dtype`."""
    weights = unpack(flat.to(dtype), shape)
    embedding = unpack(flat, shape).embedding
    x = F.embedding(tokens, embedding).to(dtype)
    cos, sin = _rotary(tokens.shape[1], shape, dtype)
    for layer in weights.layers:
        x = x + _attend(_norm(x, layer.input_norm, shape.norm_eps), layer, shape, cos, sin)
        gate_up = F.linear(_norm(x, layer.post_norm, shape.norm_eps), layer.gate_up)
        x = x + F.linear(_gated(gate_up), layer.down)
    picked = x.reshape(-1, shape.hidden)[position]
    return F.linear(_norm(picked, weights.norm, shape.norm_eps), weights.embedding)
