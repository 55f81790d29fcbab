"""What one Ray Train worker does: TRL's SFTTrainer on rows that are tokens already, LoRA by PEFT, sharding by DeepSpeed.

The order of rows is drawn here and not by the trainer: one stream of all epochs, cut into global batches, its tail filled with rows that
carry no loss. So every row trains exactly `epochs` times whatever the number of workers, a resumed run starts in the middle of the stream,
and the trained tokens can be counted and compared with what was asked for (I7).
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.adapters import check_adapter, store_folder, tensors_hash, write_adapter
from cluster.lora_targets import targets_for
from coevo.config import TrainConfig
from coevo.errors import ConfigError, InfraError, StoreError
from coevo.identity import derive_seed
from coevo.ports import PutResult, StoreSource, TrainingJob
from coevo.records import Adapter, TrainingRow
from coevo.store.patient import PatientStore
from coevo.store.tables import decode_records

__all__ = ["LoraPlan", "TokenRow", "load_rows", "train_loop", "training_order"]

IGNORED = -100
"""Label that carries no loss (PyTorch's cross-entropy)."""

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
        micro_batch: Rows of one forward pass of one worker; None = as many as the global batch gives it.
        alone: This process is the only worker, and no process group exists.
        step_delay_s: Sleep after each step: lets a test hit the middle of a run that would otherwise last a second.
    """

    job: TrainingJob
    store: StoreSource
    use_gpu: bool = False
    micro_batch: int | None = None
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


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A row as the model sees it: `labels` equals `input_ids` inside the loss span and -100 outside."""

    input_ids: tuple[int, ...]
    labels: tuple[int, ...]

    @property
    def trained_tokens(self) -> int:
        """Tokens that carry loss."""
        return sum(label != IGNORED for label in self.labels)


def load_rows(data: bytes, *, max_length: int, where: str) -> list[TokenRow]:
    """Rows of a Parquet file of `TrainingRow`s, every one whole.

    Raises:
        ConfigError: Rows longer than `max_length` (they would be cut).
        StoreError: No rows, or a loss span that leaves the row or starts at a token that nothing predicts.
    """
    rows = [_token_row(number, row, where) for number, row in enumerate(decode_records(data, TrainingRow))]
    if not rows:
        raise StoreError("no rows to train on", seen=where, fix="build the dataset first")
    long = [len(row.input_ids) for row in rows if len(row.input_ids) > max_length]
    if long:
        seen = f"{len(long)} of {len(rows)} rows in {where}, the longest {max(long)} tokens"
        raise ConfigError("training rows would be cut", seen=seen, fix=f"set train.max_length to {max(long)} or more")
    return rows


def _token_row(number: int, row: TrainingRow, where: str) -> TokenRow:
    ids = (*row.prompt_token_ids, *row.completion_token_ids)
    start, stop = row.loss_span.start, row.loss_span.stop
    if not 1 <= start < stop <= len(ids):
        raise StoreError(
            "loss span outside the row", seen=f"row {number} of {where}: [{start}, {stop}) of {len(ids)}", fix="rebuild the dataset"
        )
    labels = tuple(token if start <= place < stop else IGNORED for place, token in enumerate(ids))
    return TokenRow(ids, labels)


def training_order(rows: int, *, epochs: int, global_batch: int, seed: int) -> list[int | None]:
    """Row numbers of all epochs in training order, filled with None to a whole number of global batches."""
    order: list[int | None] = []
    for epoch in range(epochs):
        numbers = list(range(rows))
        random.Random(derive_seed("training order", seed, epoch)).shuffle(numbers)
        order.extend(numbers)
    order.extend([None] * (-len(order) % global_batch))
    return order


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
    rows = load_rows(store.get(plan.job.rows_key), max_length=config.max_length, where=plan.job.rows_key)
    order = training_order(len(rows), epochs=config.epochs, global_batch=config.global_batch, seed=plan.job.seed)
    progress = _Progress(total=len(order) // config.global_batch)
    saved = _load_checkpoint(ray.train.get_checkpoint(), progress)
    stream = [_EMPTY if number is None else rows[number] for number in order[progress.step * config.global_batch :]]
    trainer = _build(plan, stream, progress, workers=workers, saved=saved)
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
        _commit(plan, state, trainer.peft_settings(), progress, rows=len(rows), trained_tokens=wanted[1])
    ray.train.report(metrics)


_EMPTY = TokenRow((0, 0), (IGNORED, IGNORED))
"""Fills the last global batch: no label, no loss, not counted."""


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


def _commit(
    plan: LoraPlan, state: Mapping[str, Any], peft: Mapping[str, Any], progress: _Progress, *, rows: int, trained_tokens: int
) -> None:
    """Files first, the manifest last (I5)."""
    job = plan.job
    tensors = {name.removeprefix("weight/"): tensor for name, tensor in state.items() if name.startswith("weight/")}
    checks = check_adapter(tensors)
    checks.require(job.output_prefix)
    digest = tensors_hash(tensors)
    key = f"{job.output_prefix}/{digest[:16]}"
    store = PatientStore(plan.store.open())  # hours of training are not lost to a minute of outage
    with tempfile.TemporaryDirectory() as folder:
        store_folder(store, write_adapter(folder, tensors, peft), key)
    tail = progress.losses[-min(5, len(progress.losses)) :]
    adapter = Adapter(
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
            "lora_b_norm": checks.b_norm,
        },
        checks=checks.values,
        key=key,
    )
    store.put_if_absent(f"{job.output_prefix}/curve.json", json.dumps([round(loss, 6) for loss in progress.losses]).encode())
    if store.put_if_absent(f"{job.output_prefix}/manifest.json", adapter.to_bytes()) is PutResult.CONFLICT:
        raise StoreError("this job has another adapter already", seen=job.output_prefix, fix="use the stored one, or a new output prefix")


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
    micro = min(plan.micro_batch or share, share)
    if share % micro:
        raise ConfigError(
            "the micro batch does not divide a worker's share", seen=f"{micro} of {share} rows", fix="a divisor of global_batch / workers"
        )
    return SFTConfig(
        output_dir=tempfile.mkdtemp(prefix="sft_"),
        max_steps=max(1, steps),
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=share // micro,
        learning_rate=config.learning_rate,
        weight_decay=0.0,
        max_grad_norm=1.0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
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


def _collate(pad: int) -> Callable[[Sequence[Mapping[str, list[int]]]], dict[str, Any]]:
    """Right-padded batches; padding carries no label and no attention."""
    import torch

    def collate(rows: Sequence[Mapping[str, list[int]]]) -> dict[str, Any]:
        width = max(len(row["input_ids"]) for row in rows)
        ids = torch.full((len(rows), width), pad)
        labels = torch.full((len(rows), width), IGNORED)
        mask = torch.zeros((len(rows), width), dtype=torch.int64)
        for place, row in enumerate(rows):
            length = len(row["input_ids"])
            ids[place, :length] = torch.tensor(row["input_ids"])
            labels[place, :length] = torch.tensor(row["labels"])
            mask[place, :length] = 1
        return {"input_ids": ids, "labels": labels, "attention_mask": mask}

    return collate


def _build(plan: LoraPlan, stream: Sequence[TokenRow], progress: _Progress, *, workers: int, saved: Mapping[str, Any]) -> Any:
    """The trainer with its model, dataset and callbacks."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PrinterCallback
    from transformers.utils.logging import disable_progress_bar

    from cluster.lora_trainer import CountingTrainer, ReportCallback

    disable_progress_bar()
    if plan.zero_stage:
        _start_deepspeed(plan.use_gpu)
    settings = _sft_config(plan, steps=len(stream) // plan.config.global_batch, workers=workers)
    targets = targets_for(AutoConfig.from_pretrained(plan.job.base_path).model_type)
    model = AutoModelForCausalLM.from_pretrained(plan.job.base_path, dtype=torch.bfloat16 if plan.use_gpu else torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(plan.job.base_path)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    torch.manual_seed(plan.job.seed)
    rows = stream or [_EMPTY]
    trainer = CountingTrainer(
        model=model,
        args=settings,
        train_dataset=Dataset.from_dict({"input_ids": [list(row.input_ids) for row in rows], "labels": [list(row.labels) for row in rows]}),
        processing_class=tokenizer,
        data_collator=_collate(pad),
        peft_config=LoraConfig(
            r=plan.config.rank,
            lora_alpha=plan.config.lora_alpha,
            lora_dropout=0.0,
            target_modules=list(targets.modules),
            target_parameters=list(targets.parameters) or None,
            task_type="CAUSAL_LM",
        ),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.attach(progress, saved, rate=lambda step: _rate(step, progress.total))
    trainer.add_callback(ReportCallback(trainer, save_steps=plan.config.save_steps, delay_s=plan.step_delay_s))
    return trainer
