"""Right solutions of worlds, for tests that bend them: the reference's writing calls, replayed with changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from coevo.chat import ToolCall
from coevo.errors import ToolError
from coevo.tasks.family import Size, Stream, Style, TaskFamily, TaskInstance, World
from tests.contract.walks import Walk

__all__ = ["instance_of", "mutations", "played", "solution"]


def instance_of(family: TaskFamily, size: Size, template: str, seed: int = 0) -> TaskInstance:
    return TaskInstance(family.name, template, Stream.SEARCH, seed, size)


def solution(family: TaskFamily, instance: TaskInstance) -> list[ToolCall]:
    """The reference's calls that write, in order."""
    walk = Walk(family.open(instance))
    assert walk.follow(family.policy(Style.REACTIVE)) is None
    writes = family.conduct(instance.size).writes
    return [call for call in walk.world.log if call.name in writes]


def played(family: TaskFamily, instance: TaskInstance, calls: Iterable[ToolCall]) -> World:
    """A fresh world after these calls, refused ones skipped."""
    world = _opened(family, instance).fork()
    for call in calls:
        try:
            world.call(call.name, call.arguments)
        except ToolError:
            continue
    return world


@lru_cache(maxsize=8)
def _opened(family: TaskFamily, instance: TaskInstance) -> World:
    return family.open(instance)


def mutations(calls: list[ToolCall]) -> Iterator[tuple[str, list[ToolCall]]]:
    """Every single argument of every call made a little wrong, every call left out, every call but the last two in another's place."""
    for place, call in enumerate(calls[:-1]):
        yield f"without {call.name}", [*calls[:place], *calls[place + 1 :]]
        for name, value in call.arguments.items():
            for wrong in _wrong(value):
                bent = ToolCall(call.name, {**call.arguments, name: wrong})
                yield f"{call.name} {name}={wrong!r}", [*calls[:place], bent, *calls[place + 1 :]]


def _wrong(value: object) -> Iterator[object]:
    if isinstance(value, str):
        yield from (f"{value} ", value.translate(_LOOK_ALIKE), f"{value}\u200b", "")
    elif isinstance(value, (int, float)):
        yield from (value + 1, value - 0.01, -value if value else 7, -(2**53), 1e300, float("nan"), str(value))


_LOOK_ALIKE = str.maketrans("ABCEHKMOPSTUXZaceopx0123456789", "АВСЕНКМОРЅТՍХΖасеорх０１２３４５６７８９")
