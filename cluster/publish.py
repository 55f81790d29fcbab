"""The Publisher port: an adapter becomes servable under its immutable id, and the served weights are proven to be the trained ones.

The heavy half (download, merge, both references of the canary) runs as one Ray task, so the control process needs no torch (R15); its
results are kept beside the adapter and in the scratch folder, so publishing again, for example after a restart, costs only the canary's
scores.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cluster.adapters import check_adapter, fetch_folder, merge_adapter, read_adapter, store_folder, tensors_hash
from cluster.canary import CANARY_ROWS, CanaryReading, judge_canary, read_canary, replica_scorers
from cluster.dense import check_dense, dense_hash, recast
from cluster.engines.family import ServingForm
from cluster.engines.weights import weights_fingerprint
from cluster.model_folders import in_store, local_model
from cluster.scoring import reference_logprobs
from coevo.errors import CoevoError, InfraError, ModelError, StoreError, boundary
from coevo.identity import content_hash
from coevo.ports import BlobStore, ModelSource, PutResult, Scorer, StoreSource
from coevo.records import Adapter
from coevo.store.patient import PatientStore

__all__ = ["PoolPublisher", "Preparation", "ServedPool"]


class ServedPool(Protocol):
    """What the factory gives back (`cluster.servers.ModelPool`)."""

    def source(self, model_id: str = "") -> ModelSource:
        """A picklable way in."""
        ...


@dataclass(frozen=True, slots=True)
class Preparation:
    """The heavy half of publishing; crosses Ray.

    Attributes:
        store, base_path, scratch, form, dtype: As in `PoolPublisher`.
        adapter: What to publish.
        rows: The canary's rows.
    """

    store: StoreSource
    base_path: str
    scratch: str
    form: ServingForm
    dtype: str
    adapter: Adapter
    rows: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]

    @property
    def model_folder(self) -> Path:
        """What the engines load: the merged model, or the adapter."""
        name = self.adapter.weights_hash[:16]
        root = Path(self.scratch)
        return root / "adapters" / name if self.form is ServingForm.LORA else root / "merged" / f"{name}-{self.dtype}"

    @property
    def place(self) -> str:
        """What the engines are told: the folder where all nodes share the store's file system, else its copy in the store."""
        if self.store.uri.startswith("file://"):
            return str(self.model_folder)
        return in_store(self.store, self.adapter.key if self.form is ServingForm.LORA else f"{self.adapter.key}/merged-{self.dtype}")

    @property
    def references_key(self) -> str:
        """Where the references of these rows lie."""
        return f"{self.adapter.key}/references-{content_hash(list(self.rows))[:16]}.json"

    @property
    def done(self) -> bool:
        """Whether an earlier call left everything in place."""
        there = self.model_folder.exists() or self.place != str(self.model_folder)
        return there and PatientStore(self.store.open()).head(self.references_key) is not None

    def references(self) -> tuple[list[list[float]], list[list[float]]]:
        """Log-probabilities of the rows under base + adapter and under the base."""
        held = json.loads(PatientStore(self.store.open()).get(self.references_key))
        return held["new"], held["base"]

    def run(self) -> None:
        """Download and verify, merge, compute and store the references.

        Raises:
            StoreError: The stored files are not the adapter's.
            ModelError: The adapter is unusable.
        """
        store = PatientStore(self.store.open())
        folder = self._fetch(store)
        dense = self.adapter.dense
        if self.form is ServingForm.MERGED:
            self.model_folder.parent.mkdir(parents=True, exist_ok=True)
            if dense:
                recast(folder, self.model_folder, dtype=self.dtype)
            else:
                merge_adapter(self.base_path, str(folder), self.model_folder, dtype=self.dtype)
            if self.place != str(self.model_folder):
                store_folder(store, self.model_folder, f"{self.adapter.key}/merged-{self.dtype}")
        new = (
            reference_logprobs(str(folder), self.rows) if dense else reference_logprobs(self.base_path, self.rows, adapter_path=str(folder))
        )
        base = reference_logprobs(self.base_path, self.rows)
        store.put_if_absent(self.references_key, json.dumps({"new": new, "base": base}).encode())

    def _fetch(self, store: BlobStore) -> Path:
        folder = Path(self.scratch) / "adapters" / self.adapter.weights_hash[:16]
        folder.parent.mkdir(parents=True, exist_ok=True)
        whole = self.adapter.dense
        if whole and self.form is ServingForm.LORA:
            raise ModelError("fully tuned weights are no adapter", seen=self.adapter.model_id, fix="publish them merged")
        fetch_folder(store, self.adapter.key, folder, only=() if whole else ("adapter_config.json", "adapter_model.safetensors"))
        tensors = {} if whole else read_adapter(folder)[0]
        found = dense_hash(folder) if whole else tensors_hash(tensors)
        if found != self.adapter.weights_hash:
            shutil.rmtree(folder, ignore_errors=True)
            seen = f"{self.adapter.key} holds {found[:16]}, the manifest says {self.adapter.weights_hash[:16]}"
            raise StoreError("the stored adapter is not the one its manifest names", seen=seen, fix="remove it and train again")
        checks = check_dense(folder, self.base_path) if whole else check_adapter(tensors)
        checks.require(self.adapter.key)
        return folder


@dataclass(frozen=True, slots=True)
class PoolPublisher:
    """`coevo.ports.Publisher` over pools.

    Attributes:
        store: Holds the adapters; takes the claims and the publish manifests.
        base_path: Hugging Face folder of the base.
        scratch: Local folder for downloaded adapters and merged models. With a store that is a folder the servers read it there; with
            a bucket they download what it holds.
        serve: (model folder, or adapter folder where `form` is LORA; model id) -> a pool that serves it on all replicas.
        form: MERGED writes a dense model first (CPU engines mix up adapters in a batch); LORA loads the adapter itself.
        dtype: Of merged weights: bfloat16 or float32.
        min_rows: Fewest canary rows.
        scorers: How the replicas of a source are reached one by one.
        needs: Custom resources of the node that merges and scores: it needs torch, which driver and rollout images lack (R15).
    """

    store: StoreSource
    base_path: str
    scratch: str
    serve: Callable[[str, str], ServedPool]
    form: ServingForm = ServingForm.MERGED
    dtype: str = "bfloat16"
    min_rows: int = CANARY_ROWS
    scorers: Callable[[ModelSource], Mapping[str, Scorer]] = field(default=replica_scorers)
    needs: Mapping[str, float] = field(default_factory=dict)

    def publish(self, adapter: Adapter, *, canary_rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> ModelSource:
        """Serve and prove; may be called again, for example after a restart, and then proves again.

        Raises:
            StoreError: The id stands for other weights, or the stored files are not the adapter's.
            ModelError: The adapter is unusable, the canary has too few rows, or the served weights are not the trained ones.
        """
        if len(canary_rows) < self.min_rows:
            raise ModelError("too few rows for the canary", seen=len(canary_rows), fix=f"give {self.min_rows} training rows or more")
        store = PatientStore(self.store.open())
        _claim(store, adapter)
        rows = tuple((tuple(prompt), tuple(completion)) for prompt, completion in canary_rows)
        base, scratch = os.path.abspath(self.base_path), os.path.abspath(self.scratch)  # workers have another current folder
        prepared = Preparation(self.store, base, scratch, self.form, self.dtype, adapter, rows)
        if not prepared.done:
            _run_apart(prepared, self.needs)
        of_new, of_base = prepared.references()
        source = self.serve(prepared.place, adapter.model_id).source(adapter.model_id)
        readings = asyncio.run(read_canary(self.scorers(source), rows, new=of_new, base=of_base))
        for name, reading in readings.items():
            reading.require(name, adapter.model_id)
        self._record(store, adapter, local_model(prepared.place), readings, separation=judge_canary(of_new, of_new, of_base).to_base)
        return source

    def _record(self, store: BlobStore, adapter: Adapter, model: str, readings: Mapping[str, CanaryReading], *, separation: float) -> None:
        """The publish manifest; a later proof of the same weights leaves the first one in place."""
        facts = {
            "schema_version": 1,
            "model_id": adapter.model_id,
            "weights_hash": adapter.weights_hash,
            "served_hash": weights_fingerprint(model),
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


def _run_apart(prepared: Preparation, needs: Mapping[str, float]) -> None:
    """In a Ray task where a session is open, else here."""
    import ray

    if not ray.is_initialized():
        prepared.run()
        return
    remote: Any = ray.remote(num_cpus=1, max_retries=2, resources=dict(needs))(_outcome)
    with boundary(InfraError, "preparing a publication failed", fix="see the worker's log; publish again"):
        error = ray.get(remote.remote(prepared))
    if error is not None:
        raise error


def _outcome(prepared: Preparation) -> CoevoError | None:
    """Errors of ours travel as values: Ray would wrap them."""
    try:
        prepared.run()
    except CoevoError as error:
        return error
    return None


def _claim(store: BlobStore, adapter: Adapter) -> None:
    """Bind the id to the weights, once for all processes and runs that share the store."""
    key = f"model-ids/{content_hash(adapter.model_id.encode())}.json"
    claim = json.dumps({"model_id": adapter.model_id, "weights_hash": adapter.weights_hash}, sort_keys=True).encode()
    if store.put_if_absent(key, claim) is PutResult.CONFLICT:
        held = json.loads(store.get(key))["weights_hash"]
        seen = f"{adapter.model_id} is {held[:16]}, asked for {adapter.weights_hash[:16]}"
        raise StoreError("a model id never changes its weights", seen=seen, fix="publish under the id that the trainer gave")
