"""Record what a model says, and play it back: runs without a model whose results are byte for byte those of the recorded one.

The key of a completion is the hash of what decides it: messages, tools, sampling, seed and model id. Sessions, replay positions and
token ids (a function of the rest) stay out, so a recording serves any run that asks the same questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from coevo.chat import AnswerForm, Completion, FinishReason, ModelRequest, Usage
from coevo.errors import InfraError, ModelError, StoreError
from coevo.identity import canonical_json, content_hash
from coevo.ports import BlobStore, ChatModel, ModelSource, Publisher, PutResult, Scorer, StoreSource
from coevo.records import Adapter
from coevo.store.threads import beside, fetch_all

__all__ = [
    "RecordedModel",
    "RecordedPublisher",
    "RecordedSource",
    "RecordingModel",
    "RecordingPublisher",
    "RecordingSource",
    "recorded_usage",
    "request_key",
]


def request_key(request: ModelRequest, *, model_id: str) -> str:
    """64 hex digits; `model_id` is the answering model's, whether or not the request names it."""
    facts = {
        "messages": request.messages,
        "tools": [(tool.name, tool.description, dict(tool.parameters)) for tool in request.tools],
        "sampling": request.sampling,
        "seed": request.seed,
        "model_id": model_id,
    }
    if request.answer_schema is not None:
        facts["answer_schema"] = dict(request.answer_schema)
    return content_hash(facts)


class RecordingModel:
    """Passes requests on and stores every completion once; a request asked before is answered from the recording.

    Args:
        inner: The model that answers.
        store: Where completions go.
        prefix: Key prefix of the recording.
    """

    def __init__(self, inner: ChatModel, store: BlobStore, *, prefix: str = "recording") -> None:
        self._inner = inner
        self._store = store
        self._prefix = prefix

    @property
    def model_id(self) -> str:
        """The inner model's id."""
        return self._inner.model_id

    async def complete(self, request: ModelRequest) -> Completion:
        """The recorded completion, or the inner model's, now recorded. Raises what the inner model raises; errors are not recorded."""
        key = _key(self._prefix, request, self.model_id)
        found = await beside(self._store, _load, self._store, key)
        if found is not None:
            return found
        completion = await self._inner.complete(request)
        if await beside(self._store, self._store.put_if_absent, key, _dump(completion)) is PutResult.CONFLICT:
            # Two callers asked at once and the model answered twice: the stored answer is the one that counts.
            return await beside(self._store, _load, self._store, key) or completion
        return completion

    async def logprobs(self, prompt: Sequence[int], completion: Sequence[int], *, model_id: str = "") -> tuple[float, ...]:
        """The recorded scores, or the inner model's, now recorded. Raises `ModelError` when the inner model can't score."""
        key = _score_key(self._prefix, prompt, completion, model_id or self.model_id)
        found = await beside(self._store, _load_scores, self._store, key)
        if found is not None:
            return found
        if not isinstance(self._inner, Scorer):
            raise ModelError("the recorded model can't score given turns", seen=self.model_id, fix="record a model of our own pools")
        scores = await self._inner.logprobs(prompt, completion, model_id=model_id)
        if await beside(self._store, self._store.put_if_absent, key, canonical_json(scores)) is PutResult.CONFLICT:
            return await beside(self._store, _load_scores, self._store, key) or scores
        return scores

    async def aclose(self) -> None:
        """Close the inner model."""
        await self._inner.aclose()


class RecordedModel:
    """Plays a recording.

    Args:
        store: Where the recording lies.
        model_id: Id of the recorded model.
        prefix: Key prefix of the recording.
    """

    def __init__(self, store: BlobStore, *, model_id: str, prefix: str = "recording") -> None:
        self._store = store
        self._model_id = model_id
        self._prefix = prefix

    @property
    def model_id(self) -> str:
        """Id of the recorded model."""
        return self._model_id

    async def complete(self, request: ModelRequest) -> Completion:
        """The recorded completion.

        Raises:
            InfraError: The request was never recorded. Not a task failure: nothing was asked of any model.
        """
        key = _key(self._prefix, request, self._model_id)
        found = await beside(self._store, _load, self._store, key)
        if found is None:
            last = request.messages[-1].content[:120] if request.messages else ""
            seen = f"{key}, seed {request.seed}, last message {last!r}"
            raise InfraError("the recording has no answer to this request", seen=seen, fix="record again with the same configuration")
        return found

    async def logprobs(self, prompt: Sequence[int], completion: Sequence[int], *, model_id: str = "") -> tuple[float, ...]:
        """The recorded scores. Raises `InfraError` when these tokens were never scored."""
        key = _score_key(self._prefix, prompt, completion, model_id or self._model_id)
        found = await beside(self._store, _load_scores, self._store, key)
        if found is None:
            raise InfraError("the recording has no scores of these tokens", seen=key, fix="record again with the same configuration")
        return found

    async def aclose(self) -> None:
        """Nothing to close."""


@dataclass(frozen=True, slots=True)
class RecordingSource:
    """Recipe of a `RecordingModel`; crosses Ray."""

    inner: ModelSource
    store: StoreSource
    prefix: str = "recording"

    @property
    def model_id(self) -> str:
        """The inner model's id."""
        return self.inner.model_id

    def open(self) -> RecordingModel:
        """Connect model and store."""
        return RecordingModel(self.inner.open(), self.store.open(), prefix=self.prefix)


@dataclass(frozen=True, slots=True)
class RecordedSource:
    """Recipe of a `RecordedModel`; crosses Ray."""

    store: StoreSource
    model_id: str
    prefix: str = "recording"

    def open(self) -> RecordedModel:
        """Connect the store."""
        return RecordedModel(self.store.open(), model_id=self.model_id, prefix=self.prefix)


@dataclass(frozen=True, slots=True)
class RecordingPublisher:
    """`coevo.ports.Publisher` that publishes through `inner`, canary included, and records what the published models say."""

    inner: Publisher
    store: StoreSource

    def publish(self, adapter: Adapter, *, canary_rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> RecordingSource:
        """As the inner publisher."""
        return RecordingSource(self.inner.publish(adapter, canary_rows=canary_rows), self.store)


@dataclass(frozen=True, slots=True)
class RecordedPublisher:
    """`coevo.ports.Publisher` without engines: the adapter's answers come from the recording.

    Nothing is served, so there is no canary. An adapter other than the recorded one has another id, and the recording no answer to it.
    """

    store: StoreSource

    def publish(self, adapter: Adapter, *, canary_rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> RecordedSource:
        """The recording under the adapter's id."""
        del canary_rows
        return RecordedSource(self.store, adapter.model_id)


def recorded_usage(store: BlobStore, prefix: str) -> Usage:
    """Tokens of every completion of a recording: what its model was paid for."""
    keys = [info.key for info in store.list(f"{prefix}/") if not info.key.startswith(f"{prefix}/scores/")]
    return sum((Usage(**orjson.loads(data)["usage"]) for data in fetch_all(store, keys)), Usage())


def _key(prefix: str, request: ModelRequest, model_id: str) -> str:
    digest = request_key(request, model_id=request.model_id or model_id)
    return f"{prefix}/{digest[:2]}/{digest}.json"


def _score_key(prefix: str, prompt: Sequence[int], completion: Sequence[int], model_id: str) -> str:
    digest = content_hash({"prompt": list(prompt), "completion": list(completion), "model_id": model_id})
    return f"{prefix}/scores/{digest[:2]}/{digest}.json"


def _load_scores(store: BlobStore, key: str) -> tuple[float, ...] | None:
    return tuple(orjson.loads(store.get(key))) if store.head(key) is not None else None


def _load(store: BlobStore, key: str) -> Completion | None:
    try:
        data = store.get(key)
    except StoreError:
        if store.head(key) is not None:
            raise
        return None
    fields: dict[str, Any] = orjson.loads(data)
    return Completion(
        text=fields["text"],
        finish_reason=FinishReason(fields["finish_reason"]),
        token_ids=tuple(fields["token_ids"]),
        logprobs=tuple(fields["logprobs"]),
        usage=Usage(**fields["usage"]),
        form=AnswerForm(fields["form"]) if fields.get("form") else None,
    )


def _dump(completion: Completion) -> bytes:
    return canonical_json(completion)
