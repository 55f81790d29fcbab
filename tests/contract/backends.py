"""Two backends of one family, compared call by call: what each answers, what each refuses and how, and where both end."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

from coevo.chat import ToolCall
from coevo.errors import ToolError
from coevo.tasks.family import Style, TaskFamily, TaskInstance, World
from tests.contract.hygiene import wander
from tests.contract.walks import Walk

__all__ = ["answer", "compare_calls", "compare_reference", "stray_calls"]


def answer(world: World, call: ToolCall) -> Any:
    """What an agent reads."""
    try:
        return world.call(call.name, call.arguments)
    except ToolError as error:
        return f"error {error.what}"


def compare_reference(fast: TaskFamily, real: TaskFamily, instance: TaskInstance, style: Style) -> int:
    """Play the reference on the fast backend, its calls on the real one; returns how many calls agreed."""
    walk = Walk(fast.open(instance))
    assert walk.follow(fast.policy(style)) is None, instance.key
    count = compare_calls(fast, real, instance, walk.world.log)
    assert walk.world.grade().success, instance.key
    return count


def stray_calls(fast: TaskFamily, instance: TaskInstance, *, steps: int) -> tuple[ToolCall, ...]:
    """Calls of somebody who knows half of it: reference moves, random reads, random writes."""
    walk, random = Walk(fast.open(instance)), Random(instance.seed)
    for _ in range(steps):
        wander(walk, random, fast)
    return tuple(walk.world.log)


def compare_calls(fast: TaskFamily, real: TaskFamily, instance: TaskInstance, calls: Iterable[ToolCall]) -> int:
    """The same calls on both: same answers, same refusals, same hash of the log, same changes, same grade."""
    one, two, count = fast.open(instance), real.open(instance), 0
    for call in calls:
        first, second = answer(one, call), answer(two, call)
        assert first == second, f"{instance.key} {call}\nfast: {first}\nreal: {second}"
        count += 1
    assert one.log_hash == two.log_hash, instance.key
    assert one.changes() == two.changes(), instance.key
    assert one.grade() == two.grade(), instance.key
    return count
