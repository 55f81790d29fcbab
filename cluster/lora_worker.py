"""What one Ray Train worker does: TRL's SFTTrainer on rows that are tokens already, LoRA by PEFT or all weights, sharding by DeepSpeed.

The order of rows is ours and not the trainer's (`cluster.train_rows`): one stream of all epochs, cut into global batches, its tail filled
with rows that carry no loss. So every row trains exactly `epochs` times whatever the number of workers, a resumed run starts in the middle
of the stream, and the trained tokens can be counted and compared with what was asked for (I7).
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from cluster.adapters import AdapterChecks, check_adapter, store_folder, tensors_hash, write_adapter
from cluster.dense import check_dense, dense_hash, write_dense
from cluster.lora_targets import targets_for
from cluster.model_card import model_card
from cluster.train_rows import NO_ROW, Collator, TokenRow, load_rows, training_order
from coevo.config import TrainConfig
from coevo.errors import ConfigError, InfraError, PrerequisiteError, StoreError
from coevo.ports import PutResult, StoreSource, TrainingJob
from coevo.records import Adapter
from coevo.store.patient import PatientStore

__all__ = ["TRACKERS", "LoraPlan", "require_trackers", "train_loop"]

TRACKERS = {
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "tensorboard": ("tensorboard", "tensorboardX"),
    "trackio": ("trackio",),
}
"""Packages of each tracker, any of which will do."""

WARMUP_STEPS = 5
FINAL_SHARE = 0.05
"""The learning rate falls linearly to this share of its peak."""


@dataclass(frozen=True, slots=True)
class LoraPlan:
    """Everything a worker needs; crosses Ray.

    Attributes:
        job: The job.
        store: Where rows come from and the adapter goes.
        use_gpu: bf16 and NCCL instead of fp32 and gloo.
        alone: This process is the only worker, and no process group exists.
        step_delay_s: Sleep after each step: lets a test hit the middle of a run that would otherwise last a second.
    """

    job: TrainingJob
    store: StoreSource
    use_gpu: bool = False
    step_delay_s: float = 0.0
    alone: bool = False

    @property
    def config(self) -> TrainConfig:
        """Typed settings of the job."""
        return TrainConfig.model_validate(self.job.settings)

    @property
    def zero_stage(self) -> int:
        """A process alone has nothing to shard."""
        return 0 if self.alone else self.config.zero_stage


@dataclass(slots=True)
class _Progress:
    """What this worker has done, also before a resume."""

    step: int = 0
    total: int = 0
    rows: int = 0
    tokens: int = 0
    seconds: float = 0.0
    resumed_at_step: int = 0
    losses: list[float] = field(default_factory=list)

    def dump(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"step": self.step, "rows": self.rows, "tokens": self.tokens, "seconds": self.seconds, "losses": self.losses}


def train_loop(plan: LoraPlan) -> None:
    """Train, check, upload, commit the manifest. Runs in every worker; rank 0 writes."""
    import ray.train
    import torch

    torch.set_num_threads(1)
    context = ray.train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    store, config = PatientStore(plan.store.open()), plan.config
    require_trackers(config.report_to)
    rows = load_rows(store.get(plan.job.rows_key), max_length=config.max_length, where=plan.job.rows_key)
    order = training_order([len(row) for row in rows], epochs=config.epochs, global_batch=config.global_batch, seed=plan.job.seed)
    progress = _Progress(total=len(order) // config.global_batch)
    saved = _load_checkpoint(ray.train.get_checkpoint(), progress)
    stream = order[progress.step * config.global_batch :]
    trainer = _build(plan, rows, stream, progress, workers=workers, saved=saved)
    if stream:
        trainer.train()
    state = trainer.gathered() if stream else saved
    counts = trainer.counts()
    wanted = (config.epochs * len(rows), config.epochs * sum(row.trained_tokens for row in rows))
    if counts != wanted:
        seen = f"rows {counts[0]} of {wanted[0]}, tokens {counts[1]} of {wanted[1]}"
        raise InfraError("the trainer did not train what it was given", seen=seen, fix="report this: rows were dropped or repeated")
    metrics = {"steps": progress.step, "loss_first": progress.losses[0], "loss_last": progress.losses[-1], "seconds": progress.seconds}
    if rank == 0:
        _commit(plan, state, trainer, progress, rows=len(rows), trained_tokens=wanted[1])
    ray.train.report(metrics)


def _load_checkpoint(checkpoint: Any, progress: _Progress) -> dict[str, Any]:
    """Tensors of the last reported checkpoint, its counters into `progress`; empty at a first start."""
    if checkpoint is None:
        return {}
    from safetensors.torch import load_file

    with checkpoint.as_directory() as folder:
        facts = json.loads((Path(folder) / "progress.json").read_text())
        tensors: dict[str, Any] = load_file(Path(folder) / "state.safetensors")
    for name, value in facts.items():
        setattr(progress, name, value)
    progress.resumed_at_step = progress.step
    return tensors


class _Trained(NamedTuple):
    """Trained weights in a folder of this machine: their hash and what was found when they were looked at."""

    digest: str
    checks: AdapterChecks


def _written(plan: LoraPlan, state: Mapping[str, Any], trainer: Any, folder: str) -> _Trained:
    """Write the adapter, or all weights, and check them."""
    tensors = {name.removeprefix("weight/"): tensor for name, tensor in state.items() if name.startswith("weight/")}
    if plan.config.method == "full":
        write_dense(folder, trainer.plain_model(), tensors, base_path=plan.job.base_path)
        return _Trained(dense_hash(folder), check_dense(folder, plan.job.base_path))
    write_adapter(folder, tensors, trainer.peft_settings())
    return _Trained(tensors_hash(tensors), check_adapter(tensors))


def _commit(plan: LoraPlan, state: Mapping[str, Any], trainer: Any, progress: _Progress, *, rows: int, trained_tokens: int) -> None:
    """Files first, the manifest last (I5)."""
    job = plan.job
    store = PatientStore(plan.store.open())  # hours of training are not lost to a minute of outage
    with tempfile.TemporaryDirectory() as folder:
        digest, checks = _written(plan, state, trainer, folder)
        checks.require(job.output_prefix)
        adapter = _manifest(plan, progress, digest, checks, rows=rows, trained_tokens=trained_tokens)
        (Path(folder) / "README.md").write_text(model_card(adapter), encoding="utf-8")
        store_folder(store, folder, adapter.key)
    _keep_events(store, Path(trainer.args.output_dir), f"{job.output_prefix}/tensorboard", first=progress.resumed_at_step)
    store.put_if_absent(f"{job.output_prefix}/curve.json", json.dumps([round(loss, 6) for loss in progress.losses]).encode())
    if store.put_if_absent(f"{job.output_prefix}/manifest.json", adapter.to_bytes()) is PutResult.CONFLICT:
        raise StoreError("this job has another adapter already", seen=job.output_prefix, fix="use the stored one, or a new output prefix")


def _keep_events(store: PatientStore, folder: Path, prefix: str, *, first: int) -> None:
    """TensorBoard's files of this process, under names without a host; those of a process that was lost are lost."""
    for number, path in enumerate(sorted(folder.rglob("events.out.tfevents.*"))):
        store.put_if_absent(f"{prefix}/events.out.tfevents.{first:06d}.{number}", path.read_bytes())


def _manifest(plan: LoraPlan, progress: _Progress, digest: str, checks: AdapterChecks, *, rows: int, trained_tokens: int) -> Adapter:
    job = plan.job
    tail = progress.losses[-min(5, len(progress.losses)) :]
    return Adapter(
        model_id=f"{job.base_model_id}@{digest[:16]}",
        base_model_id=job.base_model_id,
        arm=job.arm,
        seed=job.seed,
        weights_hash=digest,
        data_hash=job.data_hash,
        rows=rows,
        trained_tokens=trained_tokens,
        steps=progress.step,
        config=plan.config.model_dump(mode="json"),
        metrics={
            "loss_first": progress.losses[0],
            "loss_last": progress.losses[-1],
            "loss_last_mean": sum(tail) / len(tail),
            "seconds": round(progress.seconds, 3),
            "resumed_at_step": float(progress.resumed_at_step),
            "update_norm" if plan.config.method == "full" else "lora_b_norm": checks.b_norm,
        },
        checks=checks.values,
        key=f"{job.output_prefix}/{digest[:16]}",
    )


def deepspeed_config(stage: int, *, use_gpu: bool) -> dict[str, Any]:
    """ZeRO settings. No optimizer section: DeepSpeed would build a C++ Adam; torch's AdamW is sharded instead."""
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": use_gpu, "contiguous_gradients": True, "reduce_bucket_size": 500_000}
    if stage == 3:
        zero |= {"stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 0}
    return {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "train_batch_size": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": "auto"},
        "steps_per_print": 1_000_000,
    }


def _rate(step: int, total: int) -> float:
    """Share of the peak learning rate at 0-based `step`."""
    return min(1.0, (step + 1) / WARMUP_STEPS) * max(FINAL_SHARE, 1.0 - step / total)


def _start_deepspeed(use_gpu: bool) -> None:
    """Join the process group before the model exists (ZeRO-3 shards it while loading)."""
    import deepspeed

    if not use_gpu:
        # Otherwise the first init compiles a shared-memory op with g++ for a minute.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="nccl" if use_gpu else "gloo", auto_mpi_discovery=False)


def _sft_config(plan: LoraPlan, *, steps: int, workers: int) -> Any:
    from trl import SFTConfig

    config = plan.config
    share, rest = divmod(config.global_batch, workers)
    if rest:
        raise ConfigError(
            "the global batch does not divide among the workers",
            seen=f"{config.global_batch} rows, {workers} workers",
            fix="train.global_batch",
        )
    micro = min(config.micro_batch or share, share)
    if share % micro:
        raise ConfigError(
            "the micro batch does not divide a worker's share", seen=f"{micro} of {share} rows", fix="a divisor of global_batch / workers"
        )
    folder = tempfile.mkdtemp(prefix="sft_")
    os.environ["TENSORBOARD_LOGGING_DIR"] = f"{folder}/events"  # the default names the host
    return SFTConfig(
        output_dir=folder,
        run_name=f"{plan.job.arm}-{plan.job.seed}",
        project="coevo",
        max_steps=max(1, steps),
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=share // micro,
        learning_rate=config.learning_rate,
        weight_decay=0.0,
        max_grad_norm=1.0,
        logging_steps=1,
        save_strategy="no",
        report_to=list(config.report_to) or "none",
        use_cpu=not plan.use_gpu,
        bf16=plan.use_gpu,
        fp16=False,
        gradient_checkpointing=plan.use_gpu,
        max_length=None,
        packing=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
        train_sampling_strategy="sequential",
        deepspeed=deepspeed_config(plan.zero_stage, use_gpu=plan.use_gpu) if plan.zero_stage else None,
        ddp_find_unused_parameters=False,
        ddp_backend=None if plan.alone else "nccl" if plan.use_gpu else "gloo",
        disable_tqdm=True,
        dataloader_num_workers=0,
        dataloader_pin_memory=plan.use_gpu,
        seed=plan.job.seed % 2**31,
    )


def require_trackers(names: Sequence[str]) -> None:
    """Refuse trackers whose package is not installed here, before hours of training that nobody would see.

    Raises:
        PrerequisiteError: One is missing.
    """
    for name in names:
        if not any(find_spec(package) for package in TRACKERS[name]):
            fix = f"pip install {TRACKERS[name][0]} where training runs, or take it out of train.report_to"
            raise PrerequisiteError("a tracker of train.report_to is not installed on a training worker", seen=name, fix=fix)


def _model(plan: LoraPlan) -> Any:
    """The base, in bf16 on GPUs; all weights of a process alone are trained in fp32, which nothing else would keep a copy of."""
    import torch
    from transformers import AutoModelForCausalLM

    alone = plan.config.method == "full" and not plan.zero_stage
    attention = {} if plan.config.attention == "auto" else {"attn_implementation": plan.config.attention}
    dtype = torch.bfloat16 if plan.use_gpu and not alone else torch.float32
    return AutoModelForCausalLM.from_pretrained(plan.job.base_path, dtype=dtype, **attention)


def _peft_config(plan: LoraPlan) -> Any:
    """LoRA on the architecture's targets; None where all weights are trained."""
    from peft import LoraConfig
    from transformers import AutoConfig

    if plan.config.method == "full":
        return None
    targets = targets_for(AutoConfig.from_pretrained(plan.job.base_path).model_type)
    return LoraConfig(
        r=plan.config.rank,
        lora_alpha=plan.config.lora_alpha,
        lora_dropout=0.0,
        target_modules=list(targets.modules),
        target_parameters=list(targets.parameters) or None,
        task_type="CAUSAL_LM",
    )


def _build(
    plan: LoraPlan, rows: Sequence[TokenRow], stream: Sequence[int], progress: _Progress, *, workers: int, saved: Mapping[str, Any]
) -> Any:
    """The trainer with its model, dataset and callbacks."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, PrinterCallback
    from transformers.utils.logging import disable_progress_bar

    from cluster.lora_trainer import CountingTrainer, ReportCallback

    disable_progress_bar()
    if plan.zero_stage:
        _start_deepspeed(plan.use_gpu)
    settings = _sft_config(plan, steps=len(stream) // plan.config.global_batch, workers=workers)
    adapted = _peft_config(plan)
    model = _model(plan)
    tokenizer = AutoTokenizer.from_pretrained(plan.job.base_path)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    torch.manual_seed(plan.job.seed)
    trainer = CountingTrainer(
        model=model,
        args=settings,
        train_dataset=Dataset.from_dict({"row": list(stream) or [NO_ROW]}),
        processing_class=tokenizer,
        data_collator=Collator(rows, pad, plan.config.packing),
        peft_config=adapted,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.attach(progress, saved, rate=lambda step: _rate(step, progress.total))
    trainer.add_callback(ReportCallback(trainer, save_steps=plan.config.save_steps, delay_s=plan.step_delay_s))
    return trainer
