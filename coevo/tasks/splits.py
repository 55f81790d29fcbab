"""The fixed split that is compared with the paper: 100 instances per family and diversity, 20 / 20 / 60 over search, selection and test.

A split is a function of family, size and diversity. Within it templates take turns, so that 20 templates stand once in the search and the
selection part and three times in the test part. Its seeds lie above all others that runs draw (below 2**42), so no gate or rollout meets
an instance of it by chance. Limit: more instances than these come from the streams, by seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from types import MappingProxyType

from coevo.tasks.family import Size, Stream, TaskFamily, TaskInstance

__all__ = ["FIRST_SEED", "SHARES", "TOTALS", "fixed_split", "total"]

FIRST_SEED = 2**50
"""First instance seed of every split; instance keys carry it, and JSON readers agree on integers up to 2**53."""

SHARES = MappingProxyType({Stream.SEARCH: 0.2, Stream.SELECTION: 0.2, Stream.TEST: 0.6})
"""Share of each stream (METHOD: 20 % train, 20 % validation, 60 % test)."""

TOTALS = MappingProxyType({"website": 50})
"""Instances of the families that do not have 100."""


def total(family: TaskFamily) -> int:
    """Instances in a family's split."""
    return TOTALS.get(family.name, 100)


def fixed_split(family: TaskFamily, size: Size, *, diversity: int = 1) -> Mapping[Stream, tuple[TaskInstance, ...]]:
    """The split of a family, size and diversity: disjoint instances per stream. Raises `ConfigError` for a diversity out of range."""
    amount = total(family)
    return MappingProxyType({stream: _part(family, size, diversity, stream, round(share * amount)) for stream, share in SHARES.items()})


def _part(family: TaskFamily, size: Size, diversity: int, stream: Stream, amount: int) -> tuple[TaskInstance, ...]:
    """Seeds in ascending order per template, templates in turn."""
    family.instance(stream, FIRST_SEED, size, diversity=diversity)  # refuses a diversity out of range
    names = family.templates(size)[:diversity]
    queues = [_of_template(family, size, diversity, stream, name) for name in names]
    return tuple(next(queues[place % len(queues)]) for place in range(amount))


def _of_template(family: TaskFamily, size: Size, diversity: int, stream: Stream, name: str) -> Iterator[TaskInstance]:
    for seed in count(FIRST_SEED):
        instance = family.instance(stream, seed, size, diversity=diversity)
        if instance.template == name:
            yield instance
