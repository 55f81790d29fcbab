"""vLLM in process: one `LLMEngine`, stepped by one thread; the same code on GPUs and on CPUs.

No server, no child process for the engine core: on two CPU cores that is half the memory and start time of the asynchronous engine. Two
faults of LoRA on CPU (vLLM 0.32) shape the adapter form: base rows in a batch with adapter rows get the weights of the last adapter slot,
so base requests go through an all-zero adapter as soon as any adapter is resident; and prompt log-probabilities fail with two adapter
rows in a step, so there scoring runs alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.engines.family import EngineConfig, RawCompletion, ServingForm, stop_token_ids_of
from cluster.engines.precision import compute_dtype
from cluster.engines.threaded import GenerateWork, Result, ScoreWork, ThreadedEngine
from cluster.engines.weights import KnownWeights
from coevo.chat import FinishReason
from coevo.errors import InfraError, ModelError, PrerequisiteError

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

__all__ = ["VLLM_ENVIRONMENT", "VllmCore", "open_vllm"]

VLLM_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}
"""Set before vLLM is imported: engine core in this process, no thread pinning (cores are shared), no network."""


def open_vllm(config: EngineConfig) -> ThreadedEngine:
    """Build the engine in its own thread; see `cluster.engines.family.open_engine`."""
    os.environ.update(VLLM_ENVIRONMENT)
    return ThreadedEngine(lambda: VllmCore(config), name=f"vllm:{config.model_id}")


def engine_arguments(config: EngineConfig, *, on_cpu: bool, dtype: str) -> dict[str, Any]:
    """`EngineConfig` in vLLM's words, its dtype resolved; on a CPU with what keeps its engine alive there."""
    arguments: dict[str, Any] = {
        "model": config.model_path,
        "dtype": dtype,
        "skip_tokenizer_init": True,
        "enforce_eager": config.enforce_eager,
        "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_num_seqs,
        "block_size": config.block_size,
        "enable_prefix_caching": True,
        "logprobs_mode": "raw_logprobs",
        "seed": config.seed,
        "tensor_parallel_size": config.tensor_parallel,
        "pipeline_parallel_size": config.pipeline_parallel,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "disable_log_stats": True,
    }
    if config.kv_cache_bytes is not None:
        arguments["kv_cache_memory_bytes"] = config.kv_cache_bytes
    if config.quantization:
        arguments["quantization"] = config.quantization
    if config.serving_form is ServingForm.LORA:
        slots = config.max_adapters + 1
        arguments |= {"enable_lora": True, "max_loras": slots, "max_cpu_loras": slots, "max_lora_rank": config.max_lora_rank}
    if on_cpu:
        # A prompt that is cut over two steps kills a CPU engine of vLLM 0.32 whose requests bring their own seeds: the CPU generator has no
        # offset to set back ("CPU Generator does not use offset").
        arguments |= {"enable_chunked_prefill": False, "max_num_batched_tokens": max(2048, config.max_model_len)}
    return arguments


def _ask_for_amx() -> None:
    """Ask Linux for the AMX tile registers before vLLM's bf16 attention uses them.

    On processors that have them the kernel grants them per process on request only, and the attention kernel of vLLM 0.32 does not ask: a
    short prompt in bf16 then ends the process with SIGILL. oneDNN asks at its first large multiplication, which may come too late.
    """
    import torch

    ask = getattr(torch.cpu, "_init_amx", None)
    if ask is not None:
        ask()


class VllmCore:
    """`EngineCore` over vLLM. Built and used in one thread.

    Raises:
        PrerequisiteError: vLLM is not installed here.
    """

    def __init__(self, config: EngineConfig) -> None:
        try:
            import torch
            from vllm import EngineArgs, LLMEngine
            from vllm.platforms import current_platform
        except ImportError as error:
            fix = "install the serving extra (serve-cpu or serve-gpu), or set the engine to transformers"
            raise PrerequisiteError("vLLM can't be imported", seen=str(error), fix=fix) from error
        torch.set_num_threads(config.threads)
        self._on_cpu = bool(current_platform.is_cpu())
        self._config = config
        self.dtype = compute_dtype(config.dtype, device="cpu" if self._on_cpu else "cuda")
        self._stop = list(config.stop_token_ids or stop_token_ids_of(config.model_path))
        self._known = KnownWeights()
        self._known.claim(config.model_id, config.model_path)
        self._base_id = config.model_id
        self._adapters: dict[str, LoRARequest] = {}
        self._zero: LoRARequest | None = None
        self._scratch = tempfile.TemporaryDirectory(prefix="coevo-lora-")
        self._internal: dict[int, str] = {}
        self._tickets: dict[str, tuple[int, ScoreWork | None]] = {}
        self.exclusive_scoring = config.serving_form is ServingForm.LORA
        if self._on_cpu:
            _ask_for_amx()
        self._engine = LLMEngine.from_engine_args(EngineArgs(**engine_arguments(config, on_cpu=self._on_cpu, dtype=self.dtype)))

    @property
    def busy(self) -> bool:
        """Whether a step would do something."""
        return bool(self._tickets) and self._engine.has_unfinished_requests()

    def submit(self, ticket: int, work: GenerateWork | ScoreWork) -> None:
        """Hand a request to vLLM's scheduler."""
        adapter = self._adapter_for(work.model_id)
        tokens, params = self._score_params(work) if isinstance(work, ScoreWork) else self._sampling_params(work)
        try:
            name = self._engine.add_request(str(ticket), {"prompt_token_ids": tokens}, params, lora_request=adapter)
        except ValueError as error:
            raise ModelError("the engine refused the request", seen=str(error), fix="check prompt length and sampling") from error
        self._internal[ticket] = name
        self._tickets[str(ticket)] = (ticket, work if isinstance(work, ScoreWork) else None)

    def abort(self, ticket: int) -> None:
        """Drop a request whose caller is gone."""
        name = self._internal.pop(ticket, None)
        self._tickets.pop(str(ticket), None)
        if name is not None:
            self._engine.abort_request([name], internal=True)

    def step(self) -> list[Result]:
        """One scheduler step; the results that ended in it."""
        results = []
        for output in self._engine.step():
            if not output.finished or output.request_id not in self._tickets:
                continue
            ticket, score = self._tickets.pop(output.request_id)
            self._internal.pop(ticket, None)
            results.append(Result(ticket, _completion_of(output) if score is None else _scores_of(output, score)))
        return results

    def load_weights(self, folder: str, model_id: str) -> None:
        """Replace all weights in place and forget every cached prefix."""
        if self._config.serving_form is not ServingForm.MERGED:
            raise ModelError("this engine serves adapters: its base stays", seen=model_id, fix="load_adapter, or serving_form: merged")
        self._known.claim(model_id, folder)
        self._engine.collective_rpc("reload_weights", kwargs={"weights_path": folder})
        if self._on_cpu:
            self._engine.apply_model(_repack_tied_heads)
        self._engine.reset_prefix_cache()
        self._base_id = model_id

    def load_adapter(self, folder: str, model_id: str) -> None:
        """Register an adapter under its id; the first one brings the all-zero adapter for base requests with it."""
        if self._config.serving_form is not ServingForm.LORA:
            raise ModelError("this engine serves merged weights", seen=model_id, fix="load_weights, or serving_form: lora")
        self._known.claim(model_id, folder)
        if model_id in self._adapters:
            return
        if len(self._adapters) >= self._config.max_adapters:
            raise ModelError("all adapter slots are taken", seen=tuple(self._adapters), fix="raise max_adapters or open another pool")
        if self._zero is None:
            self._zero = self._register("all-zero", 1, _zero_adapter(folder, Path(self._scratch.name, "zero")))
        self._adapters[model_id] = self._register(model_id, len(self._adapters) + 2, folder)

    def model_ids(self) -> tuple[str, ...]:
        """Ids that may be asked for."""
        return (self._base_id, *self._adapters)

    def running(self) -> int:
        """Requests handed to the scheduler."""
        return len(self._tickets)

    def kv_use(self) -> float | None:
        """Used share of the KV cache, read from the in-process scheduler; None where vLLM hides it."""
        core = getattr(self._engine.engine_core, "engine_core", None)
        scheduler: Any = getattr(core, "scheduler", None)
        return float(scheduler.get_kv_cache_usage()) if hasattr(scheduler, "get_kv_cache_usage") else None

    def close(self) -> None:
        """Free the engine and the scratch folder."""
        with contextlib.suppress(Exception):
            self._engine.engine_core.shutdown()
        self._scratch.cleanup()

    def _adapter_for(self, model_id: str) -> LoRARequest | None:
        if model_id in ("", self._base_id):
            return self._zero
        if model_id not in self._adapters:
            raise self._known.refuse(model_id, self.model_ids())
        return self._adapters[model_id]

    def _register(self, name: str, number: int, folder: str) -> LoRARequest:
        from vllm.lora.request import LoRARequest

        request = LoRARequest(name, number, folder)
        if not self._engine.add_lora(request):
            raise InfraError("the engine did not take the adapter", seen=folder, fix="check its rank and target modules")
        return request

    def _sampling_params(self, work: GenerateWork) -> tuple[list[int], SamplingParams]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        room = self._config.max_model_len - len(work.prompt)
        if room < 1 or not work.prompt:
            raise ModelError("the prompt does not fit the model", seen=f"{len(work.prompt)} of {self._config.max_model_len} tokens")
        return list(work.prompt), SamplingParams(
            temperature=work.sampling.temperature,
            top_p=work.sampling.top_p,
            max_tokens=min(work.sampling.max_tokens, room),
            seed=work.seed,
            stop_token_ids=self._stop,
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _score_params(self, work: ScoreWork) -> tuple[list[int], SamplingParams]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        tokens = [*work.prompt, *work.completion]
        if len(tokens) >= self._config.max_model_len:
            raise ModelError("the scored text does not fit the model", seen=f"{len(tokens)} of {self._config.max_model_len} tokens")
        # vLLM skips reading (not writing) the prefix cache for requests with prompt log-probabilities, so all positions come back.
        return tokens, SamplingParams(
            temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
        )


def _completion_of(output: Any) -> RawCompletion | InfraError:
    best = output.outputs[0]
    if best.finish_reason not in ("stop", "length"):
        return InfraError("the engine gave the request up", seen=str(best.finish_reason), fix="retry")
    ids = tuple(best.token_ids)
    logprobs = tuple(float(step[token].logprob) for token, step in zip(ids, best.logprobs, strict=True))
    return RawCompletion(ids, logprobs, int(output.num_cached_tokens or 0), FinishReason(best.finish_reason))


def _scores_of(output: Any, work: ScoreWork) -> tuple[float, ...] | InfraError:
    steps = (output.prompt_logprobs or [])[len(work.prompt) :]
    if len(steps) != len(work.completion):
        return InfraError("the engine scored other positions than asked", seen=f"{len(steps)} of {len(work.completion)}", fix="retry")
    return tuple(float(step[token].logprob) for token, step in zip(work.completion, steps, strict=True))


def _repack_tied_heads(model: Any) -> int:
    """Rebuild the packed matrices that CPU layers keep beside their weight; returns how many.

    A tied output head is loaded through the embedding, so vLLM 0.32's reload updates its weight but leaves its packed copy as it was:
    without this the swapped model answers with the old head, silently.
    """
    stale = [layer for layer in model.modules() if hasattr(layer, "cpu_linear") and layer.weight.ndim == 2]
    for layer in stale:
        layer.quant_method.process_weights_after_loading(layer)
    return len(stale)


def _zero_adapter(folder: str, target: Path) -> str:
    """A copy of an adapter whose `lora_B` is zero: it changes nothing, but keeps base rows out of the empty slot."""
    import torch
    from safetensors.torch import load_file, save_file

    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(folder, "adapter_config.json"), target / "adapter_config.json")
    tensors = load_file(Path(folder, "adapter_model.safetensors"))
    zeroed = {name: torch.zeros_like(value) if "lora_B" in name else value for name, value in tensors.items()}
    save_file(zeroed, target / "adapter_model.safetensors", metadata={"format": "pt"})
    return str(target)
