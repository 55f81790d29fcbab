"""Pretraining of a small decoder from scratch on one CPU core: token rows in, a Hugging Face folder out.

The recipe that learns multi-turn tool use at this size: weights drawn with std hidden**-0.5, AdamW 2e-3, 50 steps of warm-up, a linear
decay over the last half, clipping at 1, bf16 arithmetic over fp32 weights. The budget is counted in steps and every random choice is a
function of the seed, so a run can be repeated and a killed run goes on from its last checkpoint to the same weights.
Limits: one process, one thread, one model shape (dense Llama with tied embeddings).
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from cluster.decoder import DecoderShape, forward, initial, named, packed
from cluster.tokenrows import Batch, RowSource, TokenRows, batches
from coevo.errors import ConfigError
from coevo.identity import content_hash

__all__ = ["PretrainConfig", "PretrainLine", "export", "pretrain", "shape_for"]

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")
_PROBE_STEPS = 20


@dataclass(frozen=True, slots=True)
class PretrainConfig:
    """How one model is pretrained. The same configuration and rows give the same weights on the same machine type."""

    steps: int
    """Optimizer steps: the budget."""
    seed: int = 0
    """Seed of the initial weights and of the batch order."""
    tokens_per_batch: int = 8192
    """Padded tokens of one step."""
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    """hidden / heads must be 32, 64 or 128 for vLLM on CPU."""
    intermediate: int = 384
    positions: int = 2048
    """Longest row and `max_position_embeddings`."""
    rope_theta: float = 10000.0
    learning_rate: float = 2e-3
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.01
    warmup_steps: int = 50
    decay_share: float = 0.5
    """Share of the steps, at the end, over which the learning rate falls linearly."""
    final_share: float = 0.02
    """Learning rate of the last step as a share of the peak."""
    clip_norm: float = 1.0
    dtype: str = "bfloat16"
    """Arithmetic of the forward and backward pass: bfloat16 or float32; weights and optimizer are fp32 always."""
    export_dtype: str = "bfloat16"
    """Weights of the saved folder: bfloat16 or float32."""
    checkpoint_every: int = 500
    log_every: int = 100
    export_every: int = 0
    """Also write `step-N` folders every N steps, to evaluate on the way; 0 for none."""
    init_path: str = ""
    """Start from the weights of this folder (an earlier result of the same shape) instead of random ones."""

    def __post_init__(self) -> None:
        head_dim, rest = divmod(self.hidden, self.heads)
        if rest or head_dim not in (32, 64, 128):
            raise ConfigError(
                "head width that CPU serving refuses",
                seen=f"hidden {self.hidden} / heads {self.heads}",
                fix="make hidden / heads 32, 64 or 128",
            )
        for name in (self.dtype, self.export_dtype):
            if name not in ("bfloat16", "float32"):
                raise ConfigError("unknown dtype", seen=name, fix="bfloat16 or float32")
        if self.steps < 1:
            raise ConfigError("no steps to train", seen=self.steps, fix="--steps 1 or more")


@dataclass(frozen=True, slots=True)
class PretrainLine:
    """One line of the log: means since the line before."""

    step: int
    loss: float
    learning_rate: float
    tokens: int
    tokens_per_cpu_s: float
    cpu_s: float
    left_cpu_s: float


@dataclass(slots=True)
class _State:
    """Everything a checkpoint holds."""

    flat: Tensor
    optimizer: torch.optim.AdamW
    step: int = 0
    tokens: int = 0
    cpu_s: float = 0.0
    window: list[float] = field(default_factory=list)


def shape_for(config: PretrainConfig, tokenizer: Path | str) -> DecoderShape:
    """The decoder's sizes; the vocabulary is the tokenizer's, rounded up to a multiple of 64."""
    from tokenizers import Tokenizer

    path = Path(tokenizer) / "tokenizer.json"
    if not path.is_file():
        raise ConfigError("no tokenizer here", seen=str(tokenizer), fix="--tokenizer FOLDER with tokenizer.json and tokenizer_config.json")
    size = Tokenizer.from_file(str(path)).get_vocab_size(with_added_tokens=True)
    return DecoderShape(
        vocab=-(-size // 64) * 64,
        hidden=config.hidden,
        layers=config.layers,
        heads=config.heads,
        intermediate=config.intermediate,
        positions=config.positions,
        rope_theta=config.rope_theta,
    )


def pretrain(
    config: PretrainConfig,
    rows: RowSource,
    *,
    tokenizer: Path | str,
    out: Path | str,
    on_line: Callable[[PretrainLine], None] | None = None,
) -> Path:
    """Train and save `out` (config, safetensors, tokenizer files, `pretrain.json`, `pretrain.jsonl`); returns it.

    Runs on the calling thread with one torch thread. Called again after a kill it goes on from the last checkpoint; called again after
    the end it returns the folder without work.

    Args:
        config: The recipe.
        rows: Rows per epoch; `TokenRows`, or a `RowFunction` for generated or mixed rows.
        tokenizer: Folder whose tokenizer files are copied into `out`.
        out: Folder to write; `out/checkpoint` is scratch and removed at the end.
        on_line: Called with each log line.

    Raises:
        ConfigError: When rows do not fit the shape, or `out` holds a run with another configuration.
    """
    out = Path(out)
    shape = shape_for(config, tokenizer)
    _claim(out, config, shape)
    if (out / "pretrain.json").exists():
        return out
    torch.set_num_threads(1)
    state = _restore(config, shape, out)
    source = _Checked(rows, shape)
    stream = batches(source, tokens_per_batch=config.tokens_per_batch, seed=config.seed, skip=state.step)
    mark = (state.tokens, state.cpu_s)
    while state.step < config.steps:
        began = time.process_time()
        batch = next(stream)
        state.window.append(_step(state, batch, config, shape))
        state.step += 1
        state.tokens += batch.real_tokens
        state.cpu_s += time.process_time() - began
        if state.step % config.log_every == 0 or state.step in (_PROBE_STEPS, config.steps):
            _log(out, _line(state, config, mark), on_line)
            mark = (state.tokens, state.cpu_s)
        if state.step % config.checkpoint_every == 0 and state.step < config.steps:
            _checkpoint(state, out)
        if config.export_every and state.step % config.export_every == 0 and state.step < config.steps:
            export(state.flat, shape, tokenizer=tokenizer, out=out / f"step-{state.step}", dtype=config.export_dtype)
    export(state.flat, shape, tokenizer=tokenizer, out=out, dtype=config.export_dtype)
    _finish(state, config, shape, out)
    return out


@dataclass(frozen=True, slots=True)
class _Checked:
    """Rows that fit the shape, or an error naming the first that does not."""

    rows: RowSource
    shape: DecoderShape

    def epoch(self, number: int) -> TokenRows:
        """The rows of epoch `number`."""
        rows = self.rows.epoch(number)
        if len(rows) and int(rows.lengths.max()) > self.shape.positions:
            raise ConfigError(
                "row longer than the model's positions", seen=int(rows.lengths.max()), fix=f"rows of at most {self.shape.positions} tokens"
            )
        if len(rows.ids) and int(rows.ids.max()) >= self.shape.vocab:
            raise ConfigError(
                "token id outside the vocabulary",
                seen=int(rows.ids.max()),
                fix=f"ids below {self.shape.vocab}: rows and tokenizer must belong together",
            )
        return rows


def _rate(step: int, config: PretrainConfig) -> float:
    """Learning rate of 0-based `step`."""
    warm = min(1.0, (step + 1) / max(1, config.warmup_steps))
    left = (config.steps - step) / max(1.0, config.steps * config.decay_share)
    return config.learning_rate * warm * max(config.final_share, min(1.0, left))


def _step(state: _State, batch: Batch, config: PretrainConfig, shape: DecoderShape) -> float:
    state.optimizer.param_groups[0]["lr"] = _rate(state.step, config)
    tokens, position, target = (torch.from_numpy(array) for array in (batch.tokens, batch.position, batch.target))
    logits = forward(state.flat, shape, tokens, position, dtype=getattr(torch, config.dtype))
    loss = F.cross_entropy(logits.float(), target)
    torch.autograd.backward([loss])
    torch.nn.utils.clip_grad_norm_([state.flat], config.clip_norm)
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    return loss.item()


def _line(state: _State, config: PretrainConfig, mark: tuple[int, float]) -> PretrainLine:
    loss = sum(state.window) / len(state.window)
    state.window.clear()
    per_step = (state.cpu_s / state.step) if state.step else 0.0
    rate = (state.tokens - mark[0]) / max(1e-9, state.cpu_s - mark[1])
    left = per_step * (config.steps - state.step)
    return PretrainLine(
        state.step, loss, _rate(state.step - 1, config), state.tokens, round(rate, 1), round(state.cpu_s, 1), round(left, 1)
    )


def _log(out: Path, line: PretrainLine, on_line: Callable[[PretrainLine], None] | None) -> None:
    if not math.isfinite(line.loss):
        raise ConfigError("pretraining diverged", seen=f"loss {line.loss} at step {line.step}", fix="lower learning_rate")
    with (out / "pretrain.jsonl").open("a") as file:
        file.write(json.dumps(asdict(line)) + "\n")
    if on_line:
        on_line(line)


def _fingerprint(config: PretrainConfig, shape: DecoderShape) -> dict[str, Any]:
    free = {"checkpoint_every", "log_every", "export_every"}
    return {"config": {k: v for k, v in asdict(config).items() if k not in free}, "shape": asdict(shape)}


def _claim(out: Path, config: PretrainConfig, shape: DecoderShape) -> None:
    """Bind `out` to this configuration."""
    wanted = json.loads(json.dumps(_fingerprint(config, shape)))
    path = out / "pretrain.config.json"
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(wanted, indent=1))
        return
    held = json.loads(path.read_text())
    differ = sorted(key for part in wanted for key in wanted[part] if held[part].get(key) != wanted[part][key])
    if differ:
        raise ConfigError(
            "folder holds a run with another configuration", seen=f"{out}: {', '.join(differ)}", fix="another --out, or remove the folder"
        )


def _restore(config: PretrainConfig, shape: DecoderShape, out: Path) -> _State:
    flat = (initial(shape, seed=config.seed) if not config.init_path else _load_flat(config.init_path, shape)).requires_grad_()
    optimizer = torch.optim.AdamW([flat], lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay, fused=True)
    state = _State(flat, optimizer)
    folder = out / "checkpoint"
    if not (folder / "state.json").exists():
        return state
    tensors = load_file(folder / "state.safetensors")
    facts = json.loads((folder / "state.json").read_text())
    with torch.no_grad():
        flat.copy_(tensors["flat"])
    moments = {"step": torch.tensor(float(facts["step"])), "exp_avg": tensors["exp_avg"], "exp_avg_sq": tensors["exp_avg_sq"]}
    optimizer.state[flat] = moments
    state.step, state.tokens, state.cpu_s = facts["step"], facts["tokens"], facts["cpu_s"]
    return state


def _load_flat(path: str, shape: DecoderShape) -> Tensor:
    tensors = load_file(Path(path) / "model.safetensors")
    return packed(tensors, shape)


def _checkpoint(state: _State, out: Path) -> None:
    """Write beside, then swap: a kill at any moment leaves the old or the new checkpoint whole."""
    fresh, folder = out / "checkpoint.new", out / "checkpoint"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    moments = state.optimizer.state[state.flat]
    save_file(
        {"flat": state.flat.detach(), "exp_avg": moments["exp_avg"], "exp_avg_sq": moments["exp_avg_sq"]}, fresh / "state.safetensors"
    )
    (fresh / "state.json").write_text(json.dumps({"step": state.step, "tokens": state.tokens, "cpu_s": state.cpu_s}))
    if folder.exists():
        shutil.rmtree(out / "checkpoint.old", ignore_errors=True)
        folder.rename(out / "checkpoint.old")
    fresh.rename(folder)
    shutil.rmtree(out / "checkpoint.old", ignore_errors=True)


def export(flat: Tensor, shape: DecoderShape, *, tokenizer: Path | str, out: Path | str, dtype: str = "bfloat16") -> Path:
    """Write `flat` as a Hugging Face `LlamaForCausalLM` folder with the tokenizer's files."""
    from transformers import AutoTokenizer, GenerationConfig, LlamaConfig

    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    for name in _TOKENIZER_FILES:
        if (Path(tokenizer) / name).is_file():
            shutil.copyfile(Path(tokenizer) / name, out / name)
    loaded = AutoTokenizer.from_pretrained(str(tokenizer))
    special = {"bos_token_id": loaded.bos_token_id, "eos_token_id": loaded.eos_token_id, "pad_token_id": loaded.pad_token_id}
    config = LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate,
        max_position_embeddings=shape.positions,
        rms_norm_eps=shape.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=True,
        dtype=dtype,
        architectures=["LlamaForCausalLM"],
        **special,
    )
    config.save_pretrained(out)
    GenerationConfig(**special).save_pretrained(out)
    weights = {name: tensor.detach().to(getattr(torch, dtype)).contiguous().clone() for name, tensor in named(flat, shape).items()}
    fresh = out / ".model.safetensors.new"
    save_file(weights, fresh, metadata={"format": "pt"})
    fresh.rename(out / "model.safetensors")
    return out


def _finish(state: _State, config: PretrainConfig, shape: DecoderShape, out: Path) -> None:
    weights = (out / "model.safetensors").read_bytes()
    facts = {
        **_fingerprint(config, shape),
        "parameters": shape.parameters,
        "steps": state.step,
        "tokens": state.tokens,
        "cpu_s": round(state.cpu_s, 1),
    }
    facts["weights_sha256"] = content_hash(weights)
    fresh = out / ".pretrain.json.new"
    fresh.write_text(json.dumps(facts, indent=1))
    os.replace(fresh, out / "pretrain.json")
    shutil.rmtree(out / "checkpoint", ignore_errors=True)


def main() -> None:
    """Command line: `python -m cluster.pretrain --rows X.npz --tokenizer DIR --out DIR --seed 0 --steps N`."""
    import argparse

    parser = argparse.ArgumentParser(description="Pretrain a small Llama on token rows.")
    parser.add_argument("--rows", nargs="+", required=True, help="token-row files (.npz), concatenated")
    parser.add_argument("--tokenizer", required=True, help="folder with tokenizer.json")
    parser.add_argument("--out", required=True, help="folder to write")
    parser.add_argument("--steps", type=int, required=True, help="optimizer steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=JSON", help="any other field of PretrainConfig")
    arguments = parser.parse_args()
    extra = {name: json.loads(value) for name, value in (item.split("=", 1) for item in arguments.set)}
    config = PretrainConfig(steps=arguments.steps, seed=arguments.seed, **extra)
    rows = TokenRows.concatenate([TokenRows.load(path) for path in arguments.rows])
    shape = shape_for(config, arguments.tokenizer)
    size = f"{shape.parameters / 1e6:.2f} M parameters"
    print(f"{len(rows)} rows, {len(rows.ids)} tokens, {rows.target_tokens} targets; {size}; {config.steps} steps", flush=True)
    pretrain(
        config, rows, tokenizer=arguments.tokenizer, out=arguments.out, on_line=lambda line: print(json.dumps(asdict(line)), flush=True)
    )


if __name__ == "__main__":
    main()
