"""Plain PyTorch behind the engine protocol: portable (macOS, machines without a vLLM wheel), and the reference for the vLLM engine.

Continuous batching: rows join after a prefill of their own and leave when they end; the KV cache is left-padded, so all rows share their
last column. Each row samples with its own generator, so its tokens do not depend on who shares the batch (up to floating-point noise).
Limits: full attention only (sliding-window and recurrent caches are refused), no prefix cache, merged weights only.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cluster.engines.family import EngineConfig, RawCompletion, stop_token_ids_of
from cluster.engines.precision import compute_dtype
from cluster.engines.threaded import GenerateWork, Result, ScoreWork, ThreadedEngine
from cluster.engines.weights import KnownWeights
from coevo.chat import FinishReason, Sampling
from coevo.errors import ConfigError, ModelError, PrerequisiteError

if TYPE_CHECKING:
    import torch

__all__ = ["TransformersCore", "open_transformers"]

_PREFILL_ROWS = 8


def open_transformers(config: EngineConfig) -> ThreadedEngine:
    """Build the engine in its own thread; see `cluster.engines.family.open_engine`."""
    return ThreadedEngine(lambda: TransformersCore(config), name=f"transformers:{config.model_id}")


@dataclass(slots=True)
class _Row:
    """One request in the batch. `limit` = tokens it may still sample in all."""

    ticket: int
    prompt: tuple[int, ...]
    sampling: Sampling
    generator: torch.Generator
    limit: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens whose keys and values are cached or being computed."""
        return len(self.prompt) + len(self.token_ids)


class TransformersCore:
    """`EngineCore` over a causal language model. Built and used in one thread.

    Raises:
        PrerequisiteError: transformers or torch is not installed here.
        ConfigError: The model's cache is not plain full attention.
    """

    exclusive_scoring = False

    def __init__(self, config: EngineConfig) -> None:
        try:
            import torch
            import transformers
        except ImportError as error:
            raise PrerequisiteError("transformers can't be imported", seen=str(error), fix="install the training extra") from error
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        torch.set_num_threads(config.threads)
        self._config = config
        self._device = torch.device(_device(config.device))
        self.dtype = compute_dtype(config.dtype, device=self._device.type)
        self._stop = frozenset(config.stop_token_ids or stop_token_ids_of(config.model_path))
        self._known = KnownWeights()
        self._waiting: deque[_Row] = deque()
        self._scoring: deque[tuple[int, ScoreWork]] = deque()
        self._rows: list[_Row] = []
        self._cache: Any = None
        self._mask: torch.Tensor | None = None
        self.load_weights(config.model_path, config.model_id)

    @property
    def busy(self) -> bool:
        """Whether a step would do something."""
        return bool(self._rows or self._waiting or self._scoring)

    def submit(self, ticket: int, work: GenerateWork | ScoreWork) -> None:
        """Queue a request after checking that it fits."""
        if work.model_id not in ("", self._model_id):
            raise self._known.refuse(work.model_id, self.model_ids())
        room = self._config.max_model_len - len(work.prompt)
        if isinstance(work, ScoreWork):
            if len(work.completion) >= room:
                raise ModelError("the scored text does not fit the model", seen=f"room for {room - 1} of {len(work.completion)} tokens")
            self._scoring.append((ticket, work))
            return
        if room < 1 or not work.prompt:
            raise ModelError("the prompt does not fit the model", seen=f"{len(work.prompt)} of {self._config.max_model_len} tokens")
        self._waiting.append(_Row(ticket, work.prompt, work.sampling, _generator(work.seed), min(work.sampling.max_tokens, room)))

    def abort(self, ticket: int) -> None:
        """Drop a request whose caller is gone."""
        self._waiting = deque(row for row in self._waiting if row.ticket != ticket)
        self._scoring = deque(item for item in self._scoring if item[0] != ticket)
        self._keep([index for index, row in enumerate(self._rows) if row.ticket != ticket])

    def step(self) -> list[Result]:
        """Score one request if one waits, let waiting rows in, else decode one token for every row."""
        import torch

        with torch.inference_mode():
            results = []
            if self._scoring:
                ticket, work = self._scoring.popleft()
                results.append(Result(ticket, self._score(work)))
            if self._waiting and len(self._rows) < self._config.max_num_seqs:
                self._admit()
            elif self._rows:
                self._decode()
            return results + self._finish()

    def load_weights(self, folder: str, model_id: str) -> None:
        """Replace the model by the one in `folder`."""
        import torch
        from transformers import AutoModelForCausalLM

        self._known.claim(model_id, folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, self.dtype), local_files_only=True)
        self._model = model.to(self._device).eval()
        self._model_id = model_id

    def load_adapter(self, folder: str, model_id: str) -> None:
        """Refused: this engine serves merged weights."""
        raise ModelError(
            "the transformers engine serves merged weights only", seen=f"{model_id} in {folder}", fix="load_weights of the merged model"
        )

    def model_ids(self) -> tuple[str, ...]:
        """The one id that may be asked for."""
        return (self._model_id,)

    def running(self) -> int:
        """Rows being decoded."""
        return len(self._rows)

    def kv_use(self) -> float | None:
        """Filled share of the batch's rows: the cache grows with them."""
        return len(self._rows) / self._config.max_num_seqs

    def close(self) -> None:
        """Free model and cache."""
        self._rows, self._cache, self._model = [], None, None

    def _score(self, work: ScoreWork) -> tuple[float, ...]:
        import torch

        tokens = torch.tensor([[*work.prompt, *work.completion]], device=self._device)
        keep = len(work.completion) + 1
        logits = self._model(input_ids=tokens, use_cache=False, logits_to_keep=keep).logits[0, :-1].float()
        chosen = torch.log_softmax(logits, dim=-1).gather(1, tokens[0, 1 - keep :, None])
        return tuple(chosen[:, 0].tolist())

    def _admit(self) -> None:
        """Prefill some waiting rows left-padded, sample their first token, and join them to the batch."""
        import torch

        free = min(self._config.max_num_seqs - len(self._rows), _PREFILL_ROWS, len(self._waiting))
        rows = [self._waiting.popleft() for _ in range(free)]
        width = max(len(row.prompt) for row in rows)
        tokens = torch.zeros((free, width), dtype=torch.long)
        mask = torch.zeros((free, width), dtype=torch.long)
        for index, row in enumerate(rows):
            tokens[index, width - len(row.prompt) :] = torch.tensor(row.prompt)
            mask[index, width - len(row.prompt) :] = 1
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        output = self._model(
            input_ids=tokens.to(self._device),
            attention_mask=mask.to(self._device),
            position_ids=positions.to(self._device),
            use_cache=True,
            logits_to_keep=1,
        )
        _sample(rows, output.logits[:, -1])
        self._join(rows, output.past_key_values, mask.to(self._device))

    def _join(self, rows: list[_Row], cache: Any, mask: torch.Tensor) -> None:
        import torch

        _require_plain(cache)
        if self._cache is None or self._mask is None:
            self._rows, self._cache, self._mask = rows, cache, mask
            return
        width = max(self._mask.shape[1], mask.shape[1])
        for old, new in zip(self._cache.layers, cache.layers, strict=True):
            old.keys = torch.cat([_widen(old.keys, width), _widen(new.keys, width)])
            old.values = torch.cat([_widen(old.values, width), _widen(new.values, width)])
        self._mask = torch.cat([_widen_mask(self._mask, width), _widen_mask(mask, width)])
        self._rows = self._rows + rows

    def _decode(self) -> None:
        import torch

        last = torch.tensor([[row.token_ids[-1]] for row in self._rows], device=self._device)
        positions = torch.tensor([[row.length - 1] for row in self._rows], device=self._device)
        assert self._mask is not None
        self._mask = torch.cat([self._mask, torch.ones_like(last)], dim=1)
        output = self._model(input_ids=last, attention_mask=self._mask, position_ids=positions, past_key_values=self._cache, use_cache=True)
        _sample(self._rows, output.logits[:, -1])

    def _finish(self) -> list[Result]:
        """Take ended rows out of the batch."""
        results, kept = [], []
        for index, row in enumerate(self._rows):
            stopped = row.token_ids[-1] in self._stop
            if not stopped and len(row.token_ids) < row.limit:
                kept.append(index)
                continue
            reason = FinishReason.STOP if stopped else FinishReason.LENGTH
            results.append(Result(row.ticket, RawCompletion(tuple(row.token_ids), tuple(row.logprobs), 0, reason)))
        self._keep(kept)
        return results

    def _keep(self, kept: list[int]) -> None:
        """Keep these rows of the batch, and drop columns that pad all of them."""
        import torch

        if len(kept) == len(self._rows):
            return
        self._rows = [self._rows[index] for index in kept]
        if not kept or self._mask is None:
            self._cache, self._mask = None, None
            return
        rows = torch.tensor(kept, device=self._device)
        mask = self._mask[rows]
        first = int(mask.any(dim=0).long().argmax())
        self._mask = mask[:, first:]
        for layer in self._cache.layers:
            layer.keys = layer.keys[rows][:, :, first:].contiguous()
            layer.values = layer.values[rows][:, :, first:].contiguous()


def _device(name: str) -> str:
    import torch

    if name != "auto":
        return name
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _generator(seed: int) -> torch.Generator:
    import torch

    return torch.Generator(device="cpu").manual_seed(seed)


def _require_plain(cache: Any) -> None:
    from transformers.cache_utils import DynamicLayer

    odd = sorted({type(layer).__name__ for layer in cache.layers if type(layer) is not DynamicLayer})
    if odd:
        raise ConfigError("the transformers engine needs a model with full attention only", seen=", ".join(odd), fix="use the vllm engine")


def _widen(values: torch.Tensor, width: int) -> torch.Tensor:
    """Pad [rows, heads, tokens, dim] on the left to `width` tokens."""
    import torch

    return torch.nn.functional.pad(values, (0, 0, width - values.shape[2], 0))


def _widen_mask(mask: torch.Tensor, width: int) -> torch.Tensor:
    import torch

    return torch.nn.functional.pad(mask, (width - mask.shape[1], 0))


def _sample(rows: list[_Row], logits: torch.Tensor) -> None:
    """Draw one token per row from [rows, vocabulary] logits; the stored log-probability is that of the untempered distribution."""
    import torch

    logprobs = torch.log_softmax(logits.float(), dim=-1).cpu()
    best = logprobs.argmax(dim=-1).tolist()
    for index, row in enumerate(rows):
        token = best[index] if row.sampling.temperature <= 0.0 else _draw(logprobs[index], row)
        row.token_ids.append(token)
        row.logprobs.append(float(logprobs[index, token]))


def _draw(logprobs: torch.Tensor, row: _Row) -> int:
    """Exponential race: argmax of p / e with e ~ Exp(1) is a draw from p; exact, one pass, reproducible per generator."""
    import torch

    probabilities = torch.softmax(logprobs / row.sampling.temperature, dim=-1)
    if row.sampling.top_p < 1.0:
        ranked, order = probabilities.sort(descending=True)
        outside = ranked.cumsum(dim=-1) - ranked >= row.sampling.top_p
        probabilities[order[outside]] = 0.0
    noise = torch.empty_like(probabilities).exponential_(generator=row.generator)
    return int((probabilities / noise).argmax())
