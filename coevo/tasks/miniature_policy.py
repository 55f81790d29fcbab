"""Reference policies of miniature worlds: they know what to do, but act only on what they can see.

The world's truth decides *which* call is next; a value enters the next call only when a visible message carries it (`Sight`), else the
policy reads it (again). So a demonstration never contains knowledge that the context lacks, whoever brought the world to its state. Limits:
the reactive style needs the last two turns in view, or it reads for ever; the plan-first style carries notes and needs one.
"""

from __future__ import annotations

from collections.abc import Sequence

from coevo.chat import Message, ToolCall
from coevo.tasks.family import Move, Policy, Style, Unrecoverable, World
from coevo.tasks.miniature import Item, Miniature, MiniFacts, facts
from coevo.tasks.sight import Sight
from coevo.tasks.world import TERMINAL_TOOL

__all__ = ["MiniPlanFirst", "MiniReactive", "mini_policy"]

_FINISH = ToolCall(TERMINAL_TOOL, {})
_OUT = "out"


def mini_policy(style: Style) -> Policy:
    """The policy of a style, for the miniature of any family."""
    return MiniReactive() if style is Style.REACTIVE else MiniPlanFirst()


def _knows_kind(spec: Miniature, sight: Sight, one: Item) -> bool:
    """The kind, or what notes keep of it: its code, `out` for one without."""
    return sight.carries(one.id, one.kind) or sight.carries(one.id, spec.codes.get(one.kind, _OUT))


def _knows_value(spec: Miniature, sight: Sight, one: Item) -> bool:
    value = spec.value(one)
    return sight.carries(one.id, value) or sight.answered(one.numbers, value)


def _decided(spec: Miniature, sight: Sight, one: Item) -> bool:
    """Notes say that the item is declined."""
    return spec.is_declined(one) and sight.carries(one.id, _OUT)


def _read(spec: Miniature, one: Item) -> ToolCall:
    return ToolCall(spec.record.name, {spec.item: one.id})


def _steps(spec: Miniature, sight: Sight, one: Item) -> tuple[ToolCall, ...]:
    """What is left to do for one item whose id is in view, first call first."""
    settle = spec.settling_call(one)
    if _decided(spec, sight, one):
        return (settle,)
    if one.kind not in spec.codes:
        return (settle,) if _knows_kind(spec, sight, one) else (_read(spec, one), settle)
    compute = ToolCall(spec.compute.name, {number.name: value for number, value in zip(spec.numbers, one.numbers, strict=True)})
    knows_value = _knows_value(spec, sight, one)
    if _knows_kind(spec, sight, one):
        if knows_value:
            return (settle,)
        if sight.carries(one.id, *one.numbers):
            return (compute, settle)
    return (_read(spec, one), settle) if knows_value else (_read(spec, one), compute, settle)


def _dead_end(world: World, known: MiniFacts) -> Unrecoverable | None:
    if known.wrong:
        return Unrecoverable(f"{known.wrong[0].id} is settled wrongly")
    return Unrecoverable("the world is finished") if world.finished else None


def _list(known: MiniFacts) -> ToolCall:
    return ToolCall(known.spec.listing.name, {known.spec.queue: known.queue})


class MiniReactive:
    """Depth first: open one record, settle it, open the next."""

    def move(self, world: World, visible: Sequence[Message], *, limited: bool = False) -> Move | Unrecoverable:
        """See `Policy`. The style carries no notes, so `limited` changes nothing."""
        known = facts(world)
        dead = _dead_end(world, known)
        if dead is not None:
            return dead
        if not known.unsettled:
            return Move("note todo empty .", (_FINISH,))
        spec, sight = known.spec, Sight(visible, [one.id for one in known.items])
        read = [str(call.arguments.get(spec.item)) for call in world.log if call.name == spec.record.name]
        current = self._current(known, read)
        if not sight.mentions(current.id):
            return Move("note follow the rules .", (_list(known),))
        plan = _steps(spec, sight, current)
        return Move(self._strategy(spec, plan[0], current, first=current.id not in read), plan)

    def _current(self, known: MiniFacts, read: list[str]) -> Item:
        last = next((one for one in known.unsettled if read and one.id == read[-1]), None)
        return last if last is not None else known.unsettled[0]

    def _strategy(self, spec: Miniature, call: ToolCall, one: Item, *, first: bool) -> str:
        if call.name == spec.decline.name:
            return spec.stopped if one.kind in spec.codes else spec.declined
        if call.name == spec.settle.name:
            return f"note {one.kind} uses {spec.code} {spec.codes[one.kind]} ."
        return "note todo not empty ." if call.name == spec.record.name and first else "note follow the rules ."


class MiniPlanFirst:
    """Breadth first: list, read every record, then compute and settle one after the other."""

    def move(self, world: World, visible: Sequence[Message], *, limited: bool = False) -> Move | Unrecoverable:
        """See `Policy`. With `limited`, every turn behind the list carries notes, which later turns read as facts."""
        known = facts(world)
        dead = _dead_end(world, known)
        if dead is not None:
            return dead
        sight, (records, compute, settle) = Sight(visible, [one.id for one in known.items]), known.spec.steps
        if any(not sight.mentions(one.id) for one in known.unsettled):
            listed = any(call.name == known.spec.listing.name for call in world.log)
            return Move(f"step {records} ." if listed else f"plan {records} then {compute} then {settle} .", (_list(known),))
        step, plan = self._next(sight, known)
        return Move(f"step {step} . {self._notes(sight, known)}" if limited else f"step {step} .", plan)

    def _next(self, sight: Sight, known: MiniFacts) -> tuple[str, tuple[ToolCall, ...]]:
        spec, (records, compute, settle) = known.spec, known.spec.steps
        if not known.unsettled:
            return "done", (_FINISH,)
        unread = [one for one in known.unsettled if not _knows_kind(spec, sight, one) and not _decided(spec, sight, one)]
        if unread:
            return records, tuple(_read(spec, one) for one in unread)
        plan = _steps(spec, sight, known.unsettled[0])
        return (settle if len(plan) == 1 else compute), plan

    def _notes(self, sight: Sight, known: MiniFacts) -> str:
        """`notes E204 new , E310 INT 217 , E555 out , .`: only what is in view."""
        entries = [self._entry(known.spec, sight, one) for one in known.unsettled] or ["none"]
        return f"notes {' , '.join(entries)} , ."

    def _entry(self, spec: Miniature, sight: Sight, one: Item) -> str:
        if _decided(spec, sight, one):
            return f"{one.id} {_OUT}"
        if not _knows_kind(spec, sight, one):
            return f"{one.id} new"
        knows_value = one.kind in spec.codes and _knows_value(spec, sight, one)
        if one.kind not in spec.codes or (knows_value and spec.is_declined(one)):
            return f"{one.id} {_OUT}"
        return f"{one.id} {spec.codes[one.kind]}" + (f" {spec.value(one)}" if knows_value else "")
