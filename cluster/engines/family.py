"""What an inference engine is, and how one is opened.

An engine serves token ids, not text: prompts come rendered, completions go back as ids with log-probabilities. Contract for every kind
(`tests/contract/test_engines.py`):

- Log-probabilities are natural logs of the model's own distribution: temperature 1, before nucleus truncation, whatever the sampling
  settings were. `generate` and `score` therefore agree on the same tokens up to numerical noise.
- A completion ends with the end-of-turn token when the model sampled it (`finish_reason` stop), else at `max_tokens` or the model length.
- The same (prompt, sampling, seed) gives the same completion as far as floating-point noise between batch shapes allows.
- `model_id` names the weights that must answer. Another id than a served one is refused with `ModelError`; an id never changes its weights.
- After a failure of the engine itself every waiting and every later caller gets `InfraError`; nobody is left waiting.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from cluster.engines.precision import AUTO, check_dtype
from coevo.chat import FinishReason, Sampling
from coevo.errors import ConfigError

__all__ = [
    "ENGINE_OPENERS",
    "Engine",
    "EngineConfig",
    "EngineKind",
    "EngineStats",
    "RawCompletion",
    "ServingForm",
    "check_engine_config",
    "open_engine",
    "stop_token_ids_of",
]


class EngineKind(StrEnum):
    """Which inference library runs the model."""

    VLLM = "vllm"
    """vLLM in process: GPUs, or CPUs with the CPU wheel."""
    TRANSFORMERS = "transformers"
    """Plain PyTorch with continuous batching: portable and slower."""


class ServingForm(StrEnum):
    """How trained weights are served; stored with every measurement."""

    MERGED = "merged"
    """One set of full weights per engine; another model is swapped in whole."""
    LORA = "lora"
    """A base with adapters beside it; base requests pass through an all-zero adapter."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything an engine is built from. Frozen and picklable; built into an engine inside the serving process.

    Attributes:
        model_path: Hugging Face folder with config.json, safetensors and tokenizer.json.
        model_id: Immutable id of these weights.
        kind: Inference library.
        dtype: Of the arithmetic: bfloat16 | float16 | float32 | auto (`cluster.engines.precision`), resolved where the engine runs.
        max_model_len: Prompt plus completion, in tokens.
        max_num_seqs: Requests decoded together.
        kv_cache_bytes: KV cache. None leaves it to the engine's share of the device memory: GPUs only.
        block_size: KV-cache block, in tokens; 32 caches finely on CPU, where 16 is refused.
        serving_form: See `ServingForm`.
        max_adapters: Adapters resident at once (LoRA form).
        max_lora_rank: Largest rank an adapter may have (LoRA form).
        stop_token_ids: End-of-turn ids; empty reads them from the model folder.
        seed: Seed of the engine itself; each request brings its own.
        tensor_parallel: GPUs that share each layer.
        pipeline_parallel: Groups of GPUs that hold consecutive layers.
        gpu_memory_utilization: Share of a GPU's memory the engine may take; ignored when `kv_cache_bytes` is set.
        quantization: Weight format of the engine, for example "fp8"; empty for none.
        enforce_eager: No compilation and no graph capture: quick to start. Turn it off for long phases on GPUs.
        device: cpu | cuda | mps | auto (transformers engine only; vLLM picks its platform).
        threads: CPU threads of one engine. Two on a busy machine are slower than one.
    """

    model_path: str
    model_id: str
    kind: EngineKind = EngineKind.VLLM
    dtype: str = AUTO
    max_model_len: int = 2048
    max_num_seqs: int = 32
    kv_cache_bytes: int | None = 128 << 20
    block_size: int = 32
    serving_form: ServingForm = ServingForm.MERGED
    max_adapters: int = 2
    max_lora_rank: int = 16
    stop_token_ids: tuple[int, ...] = ()
    seed: int = 0
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    gpu_memory_utilization: float = 0.9
    quantization: str = ""
    enforce_eager: bool = True
    device: str = "cpu"
    threads: int = 1


@dataclass(frozen=True, slots=True)
class RawCompletion:
    """What an engine returns: ids and natural-log probabilities of the same length, before any decoding to text."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    cached_tokens: int
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Load and progress of one engine. `kv_use` in [0, 1]; None = the engine does not tell."""

    running: int = 0
    waiting: int = 0
    kv_use: float | None = None
    finished: int = 0
    completion_tokens: int = 0
    steps: int = 0
    idle_s: float = 0.0
    """Seconds since the engine last made progress (0 while it has nothing to do)."""
    model_ids: tuple[str, ...] = ()
    dtype: str = ""
    """What it computes in."""
    extra: Mapping[str, float] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        """Requests held: running and waiting."""
        return self.running + self.waiting


class Engine(Protocol):
    """One running model. Methods may be called concurrently from one or several event loops.

    Raises (all methods but `stats` and `close`): `ModelError` for a request that can't be served as asked, `InfraError` when the engine
    has died.
    """

    @property
    def error(self) -> str:
        """Why the engine died; empty while it lives."""

    async def generate(self, prompt_token_ids: Sequence[int], sampling: Sampling, *, seed: int, model_id: str = "") -> RawCompletion: ...

    async def score(self, prompt: Sequence[int], completion: Sequence[int], *, model_id: str = "") -> tuple[float, ...]: ...

    async def load_weights(self, folder: str, *, model_id: str) -> None:
        """Swap the served model for the full weights of `folder` (merged form). Requests under way end on the old weights."""

    async def load_adapter(self, folder: str, *, model_id: str) -> None:
        """Serve a PEFT folder under `model_id` beside the base (LoRA form)."""

    def stats(self) -> EngineStats: ...

    def close(self) -> None:
        """Stop the engine; waiting callers get `InfraError`. May be called twice."""


def stop_token_ids_of(model_path: str) -> tuple[int, ...]:
    """End-of-sequence ids that a model folder declares (generation_config.json, then config.json).

    Raises:
        ConfigError: The folder declares none.
    """
    for name in ("generation_config.json", "config.json"):
        path = Path(model_path, name)
        found = json.loads(path.read_text()).get("eos_token_id") if path.is_file() else None
        if found is not None:
            return tuple(found) if isinstance(found, list) else (int(found),)
    raise ConfigError(
        "the model folder declares no end-of-turn token", seen=model_path, fix="set stop_token_ids or eos_token_id in config.json"
    )


def check_engine_config(config: EngineConfig) -> None:
    """Refuse what can't work before a process is started for it.

    Raises:
        ConfigError: The folder is no model folder, an id is missing, or a number is out of range.
    """
    folder = Path(config.model_path)
    if not (folder / "config.json").is_file():
        raise ConfigError(
            "no model here: config.json is missing", seen=config.model_path, fix="give the path of a Hugging Face model folder"
        )
    if not any(folder.glob("*.safetensors")):
        raise ConfigError("the model folder has no safetensors weights", seen=config.model_path, fix="save it with safe serialization")
    check_dtype(config.dtype)
    if not config.model_id:
        raise ConfigError("the engine has no model id", seen=config.model_path, fix="set model_id")
    if min(config.max_model_len, config.max_num_seqs, config.threads, config.tensor_parallel, config.pipeline_parallel) < 1:
        raise ConfigError("an engine size is below 1", seen=config, fix="use positive lengths, batch sizes, threads and parallel degrees")
    if config.kind is EngineKind.TRANSFORMERS and config.serving_form is ServingForm.LORA:
        raise ConfigError(
            "the transformers engine serves merged weights only", seen=config.serving_form.value, fix="serving_form: merged, or kind: vllm"
        )


def _open_vllm(config: EngineConfig) -> Engine:
    from cluster.engines.vllm import open_vllm

    return open_vllm(config)


def _open_transformers(config: EngineConfig) -> Engine:
    from cluster.engines.transformers import open_transformers

    return open_transformers(config)


ENGINE_OPENERS: dict[EngineKind, Callable[[EngineConfig], Engine]] = {
    EngineKind.VLLM: _open_vllm,
    EngineKind.TRANSFORMERS: _open_transformers,
}


def open_engine(config: EngineConfig) -> Engine:
    """Check the configuration, then build the engine in this process; returns when it can serve.

    Raises:
        ConfigError: See `check_engine_config`.
        PrerequisiteError: The library is not installed.
        InfraError: The engine failed to start; `seen` holds the root error.
    """
    check_engine_config(config)
    return ENGINE_OPENERS[config.kind](config)
