"""Which instances of the sealed streams a run measures on: drawn here and nowhere else, so that no other stage can take them."""

from __future__ import annotations

from collections.abc import Iterable

from coevo.evolve.gate import SelectionStream
from coevo.evolve.tiers import SealedTier, TaskMarks, task_key
from coevo.rollout import draw_items
from coevo.tasks.family import Stream
from jobs.context import RunContext

__all__ = ["evaluation_tasks", "open_test", "sealed_digest", "transfer_items", "tuning_items"]


def transfer_items(context: RunContext) -> tuple[str, ...]:
    """Fresh selection instances on which weak model and expert are compared."""
    return _selection_items(context, "transfer", context.config.evaluate.transfer_instances)


def tuning_items(context: RunContext) -> tuple[str, ...]:
    """Fresh selection instances on which learning rates are chosen; none without a grid."""
    config = context.config
    return _selection_items(context, "tune", config.evaluate.tuning_instances) if config.train.learning_rates else ()


def _selection_items(context: RunContext, draw: str, count: int) -> tuple[str, ...]:
    seeds = SelectionStream(context.config.seed).draw(draw, count=count)
    return draw_items(context.family, Stream.SELECTION, context.size, seeds, diversity=context.config.diversity)


def sealed_digest(context: RunContext) -> str:
    """What the final measurement is made on, without opening it."""
    return _sealed(context).digest(context.config.evaluate.instances, repeats=context.config.evaluate.repeats)


def open_test(context: RunContext, *, stage: str, harnesses: Iterable[str], models: Iterable[str]) -> tuple[str, ...]:
    """The test stream's items, once their opening for these harnesses and models is in the store.

    Raises:
        StoreError: The stage opened them before, for something else.
    """
    chosen = context.config.evaluate
    return _sealed(context).open(
        context.store, context.run, stage=stage, harnesses=harnesses, models=models, instances=chosen.instances, repeats=chosen.repeats
    )


def evaluation_tasks(context: RunContext) -> TaskMarks:
    """What is kept for measurements, the test stream's instances among it: nothing else may be played on or trained on."""
    selected = TaskMarks.of(map(task_key, (*transfer_items(context), *tuning_items(context))))
    return selected | _sealed(context).marks(context.config.evaluate.instances)


def _sealed(context: RunContext) -> SealedTier:
    return SealedTier.of(context.family, context.size, context.config.diversity, seed=context.config.seed)
