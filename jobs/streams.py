"""Which instances of the sealed streams a run measures on: drawn here and nowhere else, so that no other stage can take them."""

from __future__ import annotations

from coevo.evolve.gate import SelectionStream
from coevo.evolve.tiers import SealedTier
from coevo.rollout import draw_items, parse_item
from coevo.tasks.family import Stream
from jobs.context import RunContext

__all__ = ["evaluation_tasks", "final_items", "transfer_items", "tuning_items"]


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


def final_items(context: RunContext) -> tuple[str, ...]:
    """The test stream's instances: naming them opens none."""
    config = context.config
    tier = SealedTier.of(context.family, context.size, config.diversity, seed=config.seed)
    return tier.items(config.evaluate.instances, repeats=config.evaluate.repeats)


def evaluation_tasks(context: RunContext) -> frozenset[str]:
    """Task keys of all of them."""
    items = (*transfer_items(context), *tuning_items(context), *final_items(context))
    return frozenset(parse_item(item)[0].key for item in items)
