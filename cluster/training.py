"""The Trainer port on Ray Train: rows in the store -> LoRA adapter, or fully tuned weights, in the store.

A job's identity is the hash of the job; its manifest is committed last, so training it again returns the stored adapter without work.
Workers report world-size-independent checkpoints to the run's scratch folder: a killed worker is replaced and training goes on from the
last one, and the same call after a killed driver finds the scratch folder again. Needs an open Ray session (`cluster.session`).
Checkpoints lie in the store's own storage (`scratch_of`), so every node reaches them. A loss that the cloud announces costs the step under
way and none of `train.max_failures`: the workers write a checkpoint on the notice, and Ray Train starts again on what is left.
Limits: data parallel only; the base model's folder must exist on every node.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from urllib.parse import unquote

from cluster.lora_worker import LoraPlan, train_loop
from cluster.train_rows import load_rows
from coevo.config import TrainConfig
from coevo.errors import CoevoError, ConfigError, InfraError, PrerequisiteError, boundary
from coevo.identity import content_hash
from coevo.ports import StoreSource, TrainingJob
from coevo.records import Adapter

__all__ = ["WORKER_ENVIRONMENT", "RayLoraTrainer", "job_id", "scratch_of"]

log = logging.getLogger(__name__)

WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}
"""One thread per worker: two on busy cores spin. Nothing is fetched from a hub."""


@runtime_checkable
class BucketSource(Protocol):
    """A store source whose objects Ray Train can write as files (`cluster.s3`)."""

    def filesystem(self) -> Any: ...

    def path(self, key: str) -> str: ...


def scratch_of(store: StoreSource, key: str) -> tuple[str, Any]:
    """Where checkpoints below `key` of a store lie: path and pyarrow filesystem, the latter None for a folder.

    Raises:
        ConfigError: The store is neither a bucket nor a folder.
    """
    if isinstance(store, BucketSource):
        return store.path(key), store.filesystem()
    if store.uri.startswith("file://"):
        return str(Path(unquote(store.uri.removeprefix("file://"))) / key), None
    raise ConfigError("this store can't hold checkpoints", seen=store.uri, fix="use a folder that all nodes share, or s3://")


_HOW = {"workers", "zero_stage", "save_steps", "max_failures", "seeds", "micro_batch", "packing", "attention", "report_to"}
"""Settings that decide how a job runs and not what comes out (but for the order of floating-point sums)."""


def job_id(job: TrainingJob) -> str:
    """64 hex digits: equal jobs are one job, so a killed one can go on with other workers.

    The base's folder is not part of it (its id names the weights).
    """
    facts = asdict(job) | {"settings": _what(job.settings)}
    facts.pop("base_path")
    return content_hash(facts)


def _what(settings: Mapping[str, Any]) -> dict[str, Any]:
    return TrainConfig.model_validate(settings).model_dump(mode="json", exclude=_HOW)


@dataclass(frozen=True, slots=True)
class RayLoraTrainer:
    """`coevo.ports.Trainer` over Ray Train, DeepSpeed, TRL and PEFT.

    Attributes:
        store: Source of the store that holds rows and takes adapters; opened in every worker.
        scratch: Folder (or prefix of `filesystem`) of checkpoints while a job runs; removed when its adapter is committed.
        use_gpu: One GPU per worker, bf16, NCCL; else fp32 and gloo.
        resources_per_worker: Ray resources of one worker; None = one CPU, and one GPU where `use_gpu`.
        spread: One worker per node as far as there are nodes; else Ray packs them, for the fastest interconnect.
        min_workers: Smallest number of workers to go on with when the cluster shrinks; None = exactly `train.workers`.
        in_process: Run the only worker inside this process, without Ray: the same code, seconds cheaper on a small machine, and a
            crash takes the caller along. Without DeepSpeed: one process has nothing to shard.
        filesystem: A pyarrow filesystem for `scratch`; None = local or shared folder.
        step_delay_s: Sleep after each step, for tests that kill.
    """

    store: StoreSource
    scratch: str
    use_gpu: bool = False
    resources_per_worker: dict[str, float] | None = None
    spread: bool = False
    min_workers: int | None = None
    in_process: bool = False
    filesystem: Any = None
    step_delay_s: float = 0.0

    def train(self, job: TrainingJob) -> Adapter:
        """Train, or return what an equal job trained.

        Raises:
            ConfigError: Impossible settings, rows that would be cut, or an output prefix that belongs to another job.
            StoreError: Rows missing or malformed.
            PrerequisiteError: No open Ray session.
            InfraError: Workers were lost more often than `train.max_failures`.
        """
        stored = self._stored(job)
        if stored is not None:
            return stored
        self._check(job)
        self._fit(job)
        stored = self._stored(job)
        if stored is None:
            raise InfraError("training ended without an adapter", seen=job.output_prefix, fix="read the training worker's log")
        self._sweep(_run_name(job))
        return stored

    def _sweep(self, name: str) -> None:
        """Remove the checkpoints of a finished job; what a store out of reach keeps is garbage that `gc` finds."""
        if self.filesystem is None:
            shutil.rmtree(Path(self.scratch) / name, ignore_errors=True)
            return
        try:
            self.filesystem.delete_dir(f"{self.scratch}/{name}")
        except OSError as error:
            log.warning("the checkpoints of %s stay for gc: %s", name, error)

    def _stored(self, job: TrainingJob) -> Adapter | None:
        store, key = self.store.open(), f"{job.output_prefix}/manifest.json"
        if store.head(key) is None:
            return None
        adapter = Adapter.from_bytes(store.get(key))
        wanted = {
            "base_model_id": job.base_model_id,
            "arm": job.arm,
            "seed": job.seed,
            "data_hash": job.data_hash,
            "config": _what(job.settings),
        }
        held = adapter.model_copy(update={"config": _what(adapter.config)})
        differ = [name for name, value in wanted.items() if getattr(held, name) != value]
        if differ:
            raise ConfigError(
                "the output prefix holds another job's adapter", seen=f"{key} differs in {', '.join(differ)}", fix="use a new prefix"
            )
        return adapter

    def _check(self, job: TrainingJob) -> None:
        """What can be known before workers start."""
        import ray

        config = TrainConfig.model_validate(job.settings)
        if not self.in_process and not ray.is_initialized():
            raise PrerequisiteError("training needs Ray", fix="call inside cluster.session.open_session()")
        if not (Path(job.base_path) / "config.json").is_file():
            raise ConfigError("no base model here", seen=job.base_path, fix="a Hugging Face folder with config.json and safetensors")
        for workers in {config.workers, self.min_workers or config.workers}:
            if config.global_batch % workers:
                seen = f"global_batch {config.global_batch}, workers {workers}"
                raise ConfigError(
                    "the global batch does not divide among the workers", seen=seen, fix="set train.global_batch to a multiple"
                )
        rows = load_rows(self.store.open().get(job.rows_key), max_length=config.max_length, where=job.rows_key)
        _check_positions(job.base_path, max(map(len, rows)))

    def _fit(self, job: TrainingJob) -> None:
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        config = TrainConfig.model_validate(job.settings)
        absolute = replace(job, base_path=os.path.abspath(job.base_path))  # workers have another current folder
        plan = LoraPlan(absolute, self.store, use_gpu=self.use_gpu, step_delay_s=self.step_delay_s, alone=self.in_process)
        workers: Any = 0 if self.in_process else config.workers if self.min_workers is None else (self.min_workers, config.workers)
        with boundary(
            InfraError, "training failed", fix="read the worker's log; run the same command again to go on from the last checkpoint"
        ):
            trainer = TorchTrainer(
                _run_plan,
                train_loop_config={"plan": plan},
                torch_config=TorchConfig(backend="nccl" if self.use_gpu else "gloo"),
                scaling_config=ScalingConfig(
                    num_workers=workers,
                    use_gpu=self.use_gpu,
                    resources_per_worker=self.resources_per_worker or _resources(self.use_gpu),
                    placement_strategy="SPREAD" if self.spread else "PACK",
                ),
                run_config=RunConfig(**self._run_settings(job, config)),
            )
            try:
                trainer.fit()
            except Exception as error:
                raise _own_error(error) from error

    def _run_settings(self, job: TrainingJob, config: TrainConfig) -> dict[str, Any]:
        """Arguments of Ray Train's RunConfig: the same name again goes on from the last checkpoint."""
        from ray.train import CheckpointConfig, FailureConfig

        environment = WORKER_ENVIRONMENT | ({} if self.use_gpu else {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""})
        return {
            "name": _run_name(job),
            "storage_path": self.scratch if self.filesystem is not None else os.path.abspath(self.scratch),
            "storage_filesystem": self.filesystem,
            "failure_config": FailureConfig(max_failures=config.max_failures),
            "checkpoint_config": CheckpointConfig(num_to_keep=2),
            "worker_runtime_env": {"env_vars": environment},
        }


def _check_positions(base_path: str, longest: int) -> None:
    """Refuse rows longer than the base has positions for: it would train on them without a word, and learn noise there."""
    positions = json.loads((Path(base_path) / "config.json").read_text()).get("max_position_embeddings")
    if isinstance(positions, int) and longest > positions:
        fix = "take a base with a longer context, or set train.max_length to its positions and build the dataset again"
        raise ConfigError("rows are longer than the base model's context", seen=f"{longest} tokens, {positions} positions", fix=fix)


def _run_plan(config: dict[str, Any]) -> None:
    train_loop(config["plan"])


def _run_name(job: TrainingJob) -> str:
    return f"train-{job_id(job)[:16]}"


def _resources(use_gpu: bool) -> dict[str, float]:
    return {"CPU": 1.0, "GPU": 1.0} if use_gpu else {"CPU": 1.0}


def _own_error(error: BaseException) -> BaseException:
    """The error of ours that a worker raised, when that is what ended the run; else the given one."""
    failures = getattr(error, "worker_failures", None) or {}
    for failure in [*failures.values(), error]:
        current: BaseException | None = failure
        while current is not None:
            found = current if isinstance(current, CoevoError) else getattr(current, "cause", None)
            if isinstance(found, CoevoError):
                return found
            current = current.__cause__
    return error
