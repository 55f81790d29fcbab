"""TRL's SFTTrainer with our accounting and our checkpoints. Imported inside training workers only: it pulls in torch and trl."""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray.train
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback
from trl import SFTTrainer

from cluster.gathered_state import gather_state, restore_state
from coevo.dataset.export import IGNORED

__all__ = ["CountingTrainer", "ReportCallback"]

log = logging.getLogger(__name__)


class CountingTrainer(SFTTrainer):  # type: ignore[misc]
    """Counts what goes through the loss, schedules by the whole run's step, and gathers its state without sharding."""

    def attach(self, progress: Any, saved: Mapping[str, Tensor], *, rate: Callable[[int], float]) -> None:
        """Bind the run: its counters, the state to go on from, and the share of the learning rate at each step of the whole run."""
        self.run_progress = progress
        self.run_saved = saved
        self.run_rate = rate
        self.own_rows = 0
        self.own_tokens = 0

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """A schedule over the whole run, also when this process starts in its middle."""
        del num_training_steps
        if getattr(self, "lr_scheduler", None) is None:
            first = self.run_progress.step
            inner = optimizer if optimizer is not None else self.optimizer
            self.lr_scheduler = LambdaLR(inner, lambda step: self.run_rate(first + step))
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def get_decay_parameter_names(self, model: Any) -> list[str]:
        """Every parameter, so that all lie in one group: the decay is 0, and DeepSpeed 0.19 links the moments of all groups after the first
        one's step, when the others have none yet; gathering them for a checkpoint then fails.
        """
        return [name for name, _ in model.named_parameters()]

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        """TRL's loss; rows and labels are counted where they enter it."""
        trained = inputs["labels"].ne(IGNORED)
        self.own_rows += int((trained[:, 1:] & ~trained[:, :-1]).sum())  # a row's prompt stands before its turn, packed or not
        self.own_tokens += int(trained[:, 1:].sum())
        return super().compute_loss(model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch)

    def restore(self) -> None:
        """Put the saved state into the prepared model and optimizer."""
        if self.run_saved:
            restore_state(self.model, self._engine_optimizer(), self.run_saved, step=self.run_progress.step)

    def gathered(self) -> dict[str, Tensor]:
        """Weights and moments, whole, on rank 0; collective."""
        return gather_state(self.model, self._engine_optimizer(), keep=self.is_world_process_zero())

    def plain_model(self) -> Any:
        """The Hugging Face model inside whatever wraps it."""
        return self.accelerator.unwrap_model(self.model)

    def counts(self) -> tuple[int, int]:
        """Rows and tokens trained so far in the whole run, over all workers; collective."""
        total = torch.tensor([self.own_rows, self.own_tokens], device=self.args.device)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(total)
        return self.run_progress.rows + int(total[0]), self.run_progress.tokens + int(total[1])

    def peft_settings(self) -> dict[str, Any]:
        """adapter_config.json without paths of this machine."""
        found = json.loads(json.dumps(self.plain_model().peft_config["default"].to_dict(), default=_jsonable))
        return {**found, "base_model_name_or_path": "", "inference_mode": True}

    def _engine_optimizer(self) -> Any:
        engine = self.model_wrapped
        return engine.optimizer if hasattr(engine, "zero_optimization_stage") else self.optimizer


def _jsonable(value: Any) -> Any:
    return sorted(value) if isinstance(value, set | frozenset) else str(value)


class ReportCallback(TrainerCallback):  # type: ignore[misc]
    """Restores before the first step; reports a checkpoint to Ray Train every `save_steps` steps of the whole run.

    All ranks gather and report equally often; rank 0 alone has the checkpoint, which holds everything. When a node of the job is about to
    be taken away, a checkpoint is written at the next step, once per notice: Ray Train tells all ranks at the same step.
    """

    def __init__(self, trainer: CountingTrainer, *, save_steps: int, delay_s: float) -> None:
        self.trainer = trainer
        self.save_steps = save_steps
        self.delay_s = delay_s
        self.first = trainer.run_progress.step
        self.before_s = trainer.run_progress.seconds
        self.began = time.monotonic()
        self.noticed: frozenset[str] = frozenset()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The model is sharded and the optimizer exists."""
        self.trainer.restore()
        self.began = time.monotonic()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Called once a step with its loss averaged over the workers; here a step is over, so here it is reported."""
        progress = self.trainer.run_progress
        if not logs or "loss" not in logs:
            return
        progress.step = self.first + state.global_step
        progress.losses.append(float(logs["loss"]))
        progress.seconds = self.before_s + time.monotonic() - self.began
        if self.delay_s:
            time.sleep(self.delay_s)
        due = progress.step % self.save_steps == 0
        if (self._warned() or due) and progress.step < progress.total:
            self._report()

    def _warned(self) -> bool:
        """Whether a node of this job is newly known to go; collective."""
        info = ray.train.get_preemption_info()
        nodes = frozenset(info.preempted_node_ids) if info is not None else frozenset()
        fresh = not nodes <= self.noticed
        if fresh:
            log.warning("nodes %s will be taken away: checkpoint at step %d", sorted(nodes), self.trainer.run_progress.step)
        self.noticed |= nodes
        return fresh

    def _report(self) -> None:
        progress = self.trainer.run_progress
        tensors = self.trainer.gathered()
        rows, tokens = self.trainer.counts()
        metrics = {"step": progress.step, "loss": progress.losses[-1]}
        if ray.train.get_context().get_world_rank() != 0:
            ray.train.report(metrics)
            return
        with tempfile.TemporaryDirectory() as folder:
            save_file(tensors, Path(folder) / "state.safetensors")
            (Path(folder) / "progress.json").write_text(json.dumps({**progress.dump(), "rows": rows, "tokens": tokens}))
            checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report(metrics, checkpoint=checkpoint, checkpoint_dir_name=f"step_{progress.step:06d}")
