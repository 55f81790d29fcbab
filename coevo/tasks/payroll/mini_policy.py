"""Reference policies of the miniature world: they know what to do, but act only on what they can see.

The world's truth decides *which* call is next; a value enters the next call only when a visible message carries it (`Sight`), else the
policy reads it (again). So a demonstration never contains knowledge that the context lacks, whoever brought the world to its state. Limits:
the reactive style needs the last two turns in view, or it reads for ever; the plan-first style carries notes and needs one.
"""

from __future__ import annotations

from collections.abc import Sequence

from coevo.chat import Message, ToolCall
from coevo.tasks.family import Move, Unrecoverable, World
from coevo.tasks.payroll.mini import CODES, Employee, MiniFacts, facts, settling_call
from coevo.tasks.payroll.sight import Sight

__all__ = ["MiniPlanFirst", "MiniReactive"]

_FINISH = ToolCall("finish", {})


def _knows_kind(sight: Sight, one: Employee) -> bool:
    """The kind, or what notes keep of it: the pay code, `out` for a contractor."""
    return sight.carries(one.id, one.kind) or sight.carries(one.id, CODES.get(one.kind, "out"))


def _knows_amount(sight: Sight, one: Employee) -> bool:
    return sight.carries(one.id, one.amount) or sight.answered((one.hours, one.rate), one.amount)


def _read(one: Employee) -> ToolCall:
    return ToolCall("get_record", {"employee": one.id})


def _steps(sight: Sight, one: Employee) -> tuple[ToolCall, ...]:
    """What is left to do for one employee whose id is in view, first call first."""
    settle = settling_call(one)
    if one.kind == "contractor":
        return (settle,) if _knows_kind(sight, one) else (_read(one), settle)
    calc = ToolCall("calc", {"hours": one.hours, "rate": one.rate})
    knows_amount = _knows_amount(sight, one)
    if _knows_kind(sight, one):
        if knows_amount:
            return (settle,)
        if sight.carries(one.id, one.hours, one.rate):
            return (calc, settle)
    return (_read(one), settle) if knows_amount else (_read(one), calc, settle)


def _dead_end(world: World, known: MiniFacts) -> Unrecoverable | None:
    if known.wrong:
        return Unrecoverable(f"{known.wrong[0].id} is settled wrongly")
    return Unrecoverable("the world is finished") if world.finished else None


def _list(known: MiniFacts) -> ToolCall:
    return ToolCall("list_employees", {"department": known.department})


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
        sight = Sight(visible, [one.id for one in known.employees])
        read = [str(call.arguments.get("employee")) for call in world.log if call.name == "get_record"]
        current = self._current(known, read)
        if not sight.mentions(current.id):
            return Move("note follow the rules .", (_list(known),))
        plan = _steps(sight, current)
        return Move(self._strategy(plan[0], current, first=current.id not in read), plan)

    def _current(self, known: MiniFacts, read: list[str]) -> Employee:
        last = next((one for one in known.unsettled if read and one.id == read[-1]), None)
        return last if last is not None else known.unsettled[0]

    def _strategy(self, call: ToolCall, one: Employee, *, first: bool) -> str:
        if call.name == "escalate":
            return "note contractor must be escalated ."
        if call.name == "submit_pay":
            return f"note {one.kind} uses code {CODES[one.kind]} ."
        return "note todo not empty ." if call.name == "get_record" and first else "note follow the rules ."


class MiniPlanFirst:
    """Breadth first: list, read every record, then pay and settle one after the other."""

    def move(self, world: World, visible: Sequence[Message], *, limited: bool = False) -> Move | Unrecoverable:
        """See `Policy`. With `limited`, every turn behind the list carries notes, which later turns read as facts."""
        known = facts(world)
        dead = _dead_end(world, known)
        if dead is not None:
            return dead
        sight = Sight(visible, [one.id for one in known.employees])
        if any(not sight.mentions(one.id) for one in known.unsettled):
            listed = any(call.name == "list_employees" for call in world.log)
            return Move("step records ." if listed else "plan records then pay then submit .", (_list(known),))
        step, plan = self._next(sight, known)
        return Move(f"step {step} . {self._notes(sight, known)}" if limited else f"step {step} .", plan)

    def _next(self, sight: Sight, known: MiniFacts) -> tuple[str, tuple[ToolCall, ...]]:
        if not known.unsettled:
            return "done", (_FINISH,)
        unread = [one for one in known.unsettled if not _knows_kind(sight, one)]
        if unread:
            return "records", tuple(_read(one) for one in unread)
        plan = _steps(sight, known.unsettled[0])
        return ("submit" if len(plan) == 1 else "pay"), plan

    def _notes(self, sight: Sight, known: MiniFacts) -> str:
        """`notes E204 new , E310 INT 217 , E555 out , .`: only what is in view."""
        entries = [self._entry(sight, one) for one in known.unsettled] or ["none"]
        return f"notes {' , '.join(entries)} , ."

    def _entry(self, sight: Sight, one: Employee) -> str:
        if not _knows_kind(sight, one):
            return f"{one.id} new"
        if one.kind == "contractor":
            return f"{one.id} out"
        amount = f" {one.amount}" if _knows_amount(sight, one) else ""
        return f"{one.id} {CODES[one.kind]}{amount}"
