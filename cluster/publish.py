"""The Publisher port: an adapter becomes servable under its immutable id, and the served weights are proven to be the trained ones.

Three ways in which publishing goes wrong without an error: the engine serves the base under the new name, it serves an older adapter, or
one replica of several does. So after loading, the canary scores training rows on *every* replica and compares with two references computed
from the files: the base, and base + adapter as the trainer had it. The served log-probabilities must be clearly nearer to the
second (R7, I6).
An adapter too weak to tell from its base by this is refused as well: nothing measured on it could mean anything.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from cluster.adapters import check_adapter, fetch_folder, merge_adapter, read_adapter, tensors_hash
from cluster.engines.family import ServingForm
from cluster.engines.weights import weights_fingerprint
from cluster.pool_model import PoolSource, actor_name
from cluster.scoring import reference_logprobs
from coevo.errors import InfraError, ModelError, StoreError, boundary
from coevo.identity import content_hash
from coevo.ports import BlobStore, ModelSource, PutResult, Scorer, StoreSource
from coevo.records import Adapter

__all__ = ["CANARY_ROWS", "CanaryReading", "PoolPublisher", "ServedPool", "judge_canary", "replica_scorers"]

CANARY_ROWS = 32
"""Fewest rows that the canary takes: below it a sign test can't tell."""

_SIGN_LEVEL = 0.01
_NEARNESS = 0.5
_IN_FLIGHT = 8


class ServedPool(Protocol):
    """What the factory gives back (`cluster.servers.ModelPool`)."""

    def source(self, model_id: str = "") -> ModelSource:
        """A picklable way in."""
        ...


class CanaryReading(NamedTuple):
    """What one replica served, in nats per token.

    Attributes:
        to_new, to_base: Mean absolute difference of the served log-probabilities to the trained model's and to the base's.
        nearer_rows, rows: Rows on which the served ones are nearer to the trained model.
        p_value: One-sided sign test of that count against a coin.
    """

    to_new: float
    to_base: float
    nearer_rows: int
    rows: int
    p_value: float

    @property
    def passed(self) -> bool:
        """At most half as far from the trained model as from the base, and nearer on more rows than chance gives."""
        return self.to_new <= _NEARNESS * self.to_base and self.p_value < _SIGN_LEVEL


def judge_canary(served: Sequence[Sequence[float]], new: Sequence[Sequence[float]], base: Sequence[Sequence[float]]) -> CanaryReading:
    """Compare log-probabilities of the same completions, row by row."""
    to_new = [_distance(a, b) for a, b in zip(served, new, strict=True)]
    to_base = [_distance(a, b) for a, b in zip(served, base, strict=True)]
    weights = [len(row) for row in served]
    nearer = sum(a < b for a, b in zip(to_new, to_base, strict=True))
    rows = len(served)
    tail = sum(math.comb(rows, count) for count in range(nearer, rows + 1)) / 2**rows
    return CanaryReading(_weighted(to_new, weights), _weighted(to_base, weights), nearer, rows, tail)


def _distance(a: Sequence[float], b: Sequence[float]) -> float:
    """Mean absolute difference; infinite when anything is not a number, so a broken engine never looks near."""
    value = sum(abs(x - y) for x, y in zip(a, b, strict=True)) / len(a)
    return value if math.isfinite(value) else math.inf


def _weighted(values: Sequence[float], weights: Sequence[int]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


@dataclass(frozen=True, slots=True)
class _ReplicaScorer:
    """Asks one named replica and no other."""

    handle: Any
    name: str
    served_id: str
    timeout_s: float

    async def logprobs(self, prompt: Sequence[int], completion: Sequence[int], *, model_id: str = "") -> tuple[float, ...]:
        with boundary(InfraError, f"the canary can't reach {self.name}", fix="see the pool's failures; publish again"):
            async with asyncio.timeout(self.timeout_s):
                reply = await self.handle.score.remote(tuple(prompt), tuple(completion), model_id or self.served_id)
        if reply.error is not None:
            raise reply.error
        scores: tuple[float, ...] = reply.value
        return scores


def replica_scorers(source: ModelSource) -> Mapping[str, Scorer]:
    """Replica name -> scorer, for each replica of a pool.

    Raises:
        InfraError: A replica is not there.
    """
    import ray

    if not isinstance(source, PoolSource):
        raise ModelError(
            "the canary can't see the replicas of this source", seen=type(source).__name__, fix="pass scorers= to PoolPublisher"
        )
    names = [actor_name(source.pool, index) for index in range(source.replicas)]
    with boundary(InfraError, "a replica is missing", fix="wait until the pool is ready and publish again"):
        handles = {name: ray.get_actor(name, namespace=source.namespace) for name in names}
    return {name: _ReplicaScorer(handle, name, source.served_id, source.request_timeout_s) for name, handle in handles.items()}


@dataclass(frozen=True, slots=True)
class PoolPublisher:
    """`coevo.ports.Publisher` over pools.

    Attributes:
        store: Holds the adapters; takes the claims and the publish manifests.
        base_path: Hugging Face folder of the base.
        scratch: Local folder for downloaded adapters and merged models; must be readable by the servers.
        serve: (model folder, or adapter folder where `form` is LORA; model id) -> a pool that serves it on all replicas.
        form: MERGED writes a dense model first (CPU engines mix up adapters in a batch); LORA loads the adapter itself.
        dtype: Of merged weights: bfloat16 or float32.
        min_rows: Fewest canary rows.
        scorers: How the replicas of a source are reached one by one.
    """

    store: StoreSource
    base_path: str
    scratch: str
    serve: Callable[[str, str], ServedPool]
    form: ServingForm = ServingForm.MERGED
    dtype: str = "bfloat16"
    min_rows: int = CANARY_ROWS
    scorers: Callable[[ModelSource], Mapping[str, Scorer]] = field(default=replica_scorers)

    def publish(self, adapter: Adapter, *, canary_rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> ModelSource:
        """Serve and prove; may be called again, for example after a restart, and then proves again.

        Raises:
            StoreError: The id stands for other weights, or the stored files are not the adapter's.
            ModelError: The adapter is unusable, the canary has too few rows, or the served weights are not the trained ones.
        """
        if len(canary_rows) < self.min_rows:
            raise ModelError("too few rows for the canary", seen=len(canary_rows), fix=f"give {self.min_rows} training rows or more")
        store = self.store.open()
        _claim(store, adapter)
        folder = self._fetch(store, adapter)
        model = folder if self.form is ServingForm.LORA else self._merged(adapter, folder)
        source = self.serve(str(model), adapter.model_id).source(adapter.model_id)
        new = reference_logprobs(self.base_path, canary_rows, adapter_path=str(folder))
        base = reference_logprobs(self.base_path, canary_rows)
        readings = asyncio.run(self._read(source, canary_rows, new, base))
        for name, reading in readings.items():
            _require(name, reading, adapter.model_id)
        self._record(store, adapter, model, readings, separation=judge_canary(new, new, base).to_base)
        return source

    def _fetch(self, store: BlobStore, adapter: Adapter) -> Path:
        folder = Path(self.scratch) / "adapters" / adapter.weights_hash[:16]
        folder.parent.mkdir(parents=True, exist_ok=True)
        tensors, _ = read_adapter(fetch_folder(store, adapter.key, folder))
        found = tensors_hash(tensors)
        if found != adapter.weights_hash:
            seen = f"{adapter.key} holds {found[:16]}, the manifest says {adapter.weights_hash[:16]}"
            raise StoreError("the stored adapter is not the one its manifest names", seen=seen, fix="remove it and train again")
        check_adapter(tensors).require(adapter.key)
        return folder

    def _merged(self, adapter: Adapter, folder: Path) -> Path:
        out = Path(self.scratch) / "merged" / f"{adapter.weights_hash[:16]}-{self.dtype}"
        out.parent.mkdir(parents=True, exist_ok=True)
        return merge_adapter(self.base_path, str(folder), out, dtype=self.dtype)

    async def _read(
        self,
        source: ModelSource,
        rows: Sequence[tuple[Sequence[int], Sequence[int]]],
        new: Sequence[Sequence[float]],
        base: Sequence[Sequence[float]],
    ) -> dict[str, CanaryReading]:
        gate = asyncio.Semaphore(_IN_FLIGHT)

        async def ask(scorer: Scorer, row: tuple[Sequence[int], Sequence[int]]) -> tuple[float, ...]:
            async with gate:
                return await scorer.logprobs(row[0], row[1])

        out = {}
        for name, scorer in self.scorers(source).items():
            served = await asyncio.gather(*(ask(scorer, row) for row in rows))
            out[name] = judge_canary(served, new, base)
        return out

    def _record(self, store: BlobStore, adapter: Adapter, model: Path, readings: Mapping[str, CanaryReading], *, separation: float) -> None:
        """The publish manifest; a later proof of the same weights leaves the first one in place."""
        facts = {
            "schema_version": 1,
            "model_id": adapter.model_id,
            "weights_hash": adapter.weights_hash,
            "served_hash": weights_fingerprint(str(model)),
            "serving_form": str(self.form),
            "dtype": self.dtype,
            "separation": separation,
            "replicas": {name: reading._asdict() for name, reading in readings.items()},
        }
        key = f"{adapter.key}/publish.json"
        data = json.dumps(facts, sort_keys=True).encode()
        if store.put_if_absent(key, data) is PutResult.CONFLICT:
            held = json.loads(store.get(key))
            same = ("weights_hash", "serving_form", "dtype")
            differ = [name for name in same if held[name] != facts[name]]
            if differ:
                raise StoreError(
                    "this adapter was published in another form", seen=f"{key}: {', '.join(differ)}", fix="publish it as before"
                )


def _claim(store: BlobStore, adapter: Adapter) -> None:
    """Bind the id to the weights, once for all processes and runs that share the store."""
    key = f"model-ids/{content_hash(adapter.model_id.encode())}.json"
    claim = json.dumps({"model_id": adapter.model_id, "weights_hash": adapter.weights_hash}, sort_keys=True).encode()
    if store.put_if_absent(key, claim) is PutResult.CONFLICT:
        held = json.loads(store.get(key))["weights_hash"]
        seen = f"{adapter.model_id} is {held[:16]}, asked for {adapter.weights_hash[:16]}"
        raise StoreError("a model id never changes its weights", seen=seen, fix="publish under the id that the trainer gave")


def _require(name: str, reading: CanaryReading, model_id: str) -> None:
    if reading.passed:
        return
    seen = (
        f"{name}: {reading.to_new:.4f} nats/token from the trained model, {reading.to_base:.4f} from the base; "
        f"nearer to the trained one on {reading.nearer_rows} of {reading.rows} rows (p = {reading.p_value:.2g})"
    )
    what = f"the served weights are not proven to be {model_id}"
    raise ModelError(
        what, seen=seen, fix="served base or a stale adapter: restart the pool; far from both: wrong folder; near both: train longer"
    )
