"""Reference policies of the standard world; like `coevo.tasks.miniature_policy` they act only on what is in view.

Reactive works page by page: look at five employees, read a rule when it is needed, settle them, turn the page. Plan-first lists everyone,
reads all rules and all records, decides, then settles. When the context is limited both carry notes, in which rules, decisions and sums
survive; cases are then decided page by page, and a window of three turns is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from coevo.chat import Message, ToolCall
from coevo.tasks.family import Move, Style, Unrecoverable, World
from coevo.tasks.library import Document
from coevo.tasks.payroll.rulebook import Person, Rules, Topic, needs_approval, pay_expression, settling_call
from coevo.tasks.payroll.standard import BATCH, StandardFacts, facts
from coevo.tasks.sight import Sight

__all__ = ["StandardPolicy"]


_settling = lru_cache(maxsize=1024)(settling_call)
"""The oracle asks for the same cases every turn."""


class _Step(NamedTuple):
    """A sentence and the calls it announces."""

    sentence: str
    plan: tuple[ToolCall, ...]


class _View:
    """What is known about one instance from what is in view."""

    def __init__(self, known: StandardFacts, visible: Sequence[Message]) -> None:
        self.rules: Rules = known.data.rules
        self.documents = {one.topic: one for one in known.data.library if one.topic is not None}
        self.sight = Sight(visible, [*(one.id for one in known.data.people), *(one.id for one in known.data.library)])

        self._all_rules = all(self.knows_rule(topic) for topic in Topic)

    def settling(self, one: Person) -> ToolCall:
        """How a case must be settled."""
        call = _settling(self.rules, one)
        return ToolCall(call.name, dict(call.arguments))

    def document(self, topic: Topic) -> Document:
        """The version in force."""
        return self.documents[topic]

    def knows_rule(self, topic: Topic) -> bool:
        one = self.document(topic)
        return self.sight.carries(one.id, *one.facts)

    def has_record(self, one: Person) -> bool:
        return self.sight.carries(one.id, one.kind, _text(one.rate))

    def has_timesheet(self, one: Person) -> bool:
        return self.sight.carries(one.id, "week", *("missing" if hours is None else _text(hours) for hours in one.weeks))

    def lacks_approval(self, one: Person) -> bool:
        return needs_approval(self.rules, one) and not self.sight.carries(one.id, "overtime", one.approval)

    def knows_outcome(self, one: Person) -> bool:
        """How to settle the case, apart from the sum: from notes, or from all facts and rules."""
        call = self.settling(one)
        if self.sight.carries(one.id, call.name, call.arguments.get("code", call.arguments.get("reason"))):
            return True
        return self._all_rules and self.has_record(one) and self.has_timesheet(one) and not self.lacks_approval(one)

    def knows_sum(self, one: Person) -> bool:
        """The sum is not needed, noted, or calculated in view."""
        call = self.settling(one)
        if call.name != "submit_pay":
            return True
        amount = _text(call.arguments["amount"])
        return self.sight.carries(one.id, call.name, amount) or self.sight.calculated(pay_expression(self.rules, one), amount)

    def decided(self, one: Person) -> bool:
        return self.knows_outcome(one) and self.knows_sum(one)


class StandardPolicy:
    """The oracle in one style; see the module docstring."""

    def __init__(self, style: Style) -> None:
        self._style = style

    def move(self, world: World, visible: Sequence[Message], *, limited: bool = False) -> Move | Unrecoverable:
        """See `coevo.tasks.family.Policy`."""
        known = facts(world)
        if known.wrong:
            return Unrecoverable(f"{known.wrong[0].id} is settled wrongly")
        if world.finished:
            return Unrecoverable("the world is finished")
        view = _View(known, visible)
        step = self._step(known, view, limited=limited)
        return Move(f"{step.sentence} {_notes(known, view)}" if limited else step.sentence, step.plan)

    def _step(self, known: StandardFacts, view: _View, *, limited: bool) -> _Step:
        if not known.unsettled:
            return _Step("Everyone is settled, so I finish.", (ToolCall("finish", {}),))
        scope = self._scope(known)
        unseen = next((one for one in scope if not view.sight.mentions(one.id)), None)
        if unseen is not None:
            return self._list(known, unseen)
        undecided = [one for one in scope if not view.decided(one)]
        if undecided:
            return self._investigate(known, view, undecided, limited=limited)
        calls = tuple(view.settling(one) for one in scope)
        return _Step(_SETTLING[calls[0].name], calls)

    def _scope(self, known: StandardFacts) -> tuple[Person, ...]:
        """Whom to work on now: everyone unsettled, or those on the first page that has any."""
        if self._style is Style.PLAN_FIRST:
            return known.unsettled
        return tuple(self._one_page(known, known.unsettled))

    def _one_page(self, known: StandardFacts, people: Sequence[Person]) -> list[Person]:
        """Those who stand on the page of the first."""
        place = {one.id: index // BATCH for index, one in enumerate(known.data.people)}
        return [one for one in people if place[one.id] == place[people[0].id]]

    def _list(self, known: StandardFacts, unseen: Person) -> _Step:
        page = known.data.people.index(unseen) // BATCH + 1
        call = ToolCall("list_employees", {"department": known.data.department, "page": page})
        if self._style is Style.PLAN_FIRST and page == 1:
            return _Step("Plan: list everyone, read the rules, read records and time sheets, decide all cases, then settle them.", (call,))
        return _Step("I look at the next page of employees.", (call,))

    def _investigate(self, known: StandardFacts, view: _View, undecided: list[Person], *, limited: bool) -> _Step:
        rules = self._rules(view)
        if rules is not None and (limited or self._style is Style.PLAN_FIRST):
            return rules
        if not limited:
            return self._read(view, undecided) or rules or self._approve(view, undecided) or self._calculate(view, undecided)
        cases = self._one_page(known, undecided)
        # Read for the whole page at once, so that three turns hold all of it, whatever had scrolled away before.
        return self._read(view, cases, whole=True) or self._approve(view, cases, whole=True) or self._calculate(view, cases)

    def _rules(self, view: _View) -> _Step | None:
        topic = next((topic for topic in Topic if not view.knows_rule(topic)), None)
        if topic is None:
            return None
        document = view.document(topic)
        if view.sight.mentions(document.id):
            return _Step(f"I read the rule on {topic}.", (ToolCall("read_document", {"document": document.id}),))
        return _Step(f"I look for the rule on {topic}.", (ToolCall("search_documents", {"query": str(topic)}),))

    def _read(self, view: _View, cases: list[Person], *, whole: bool = False) -> _Step | None:
        unread = [one for one in cases if not view.has_record(one)]
        if unread:
            return _Step("I read the records.", _batches("get_records", cases if whole else unread))
        unread = [one for one in cases if not view.has_timesheet(one)]
        return _Step("I read the time sheets.", _batches("get_timesheets", cases if whole else unread)) if unread else None

    def _approve(self, view: _View, cases: list[Person], *, whole: bool = False) -> _Step | None:
        open_cases = [one for one in cases if not view.knows_outcome(one) and needs_approval(view.rules, one)]
        unread = [one for one in open_cases if view.lacks_approval(one)]
        return (
            _Step("There is overtime, so I check its approval.", _batches("get_approvals", open_cases if whole else unread))
            if unread
            else None
        )

    def _calculate(self, view: _View, cases: list[Person]) -> _Step:
        expressions = [pay_expression(view.rules, one) for one in cases if not view.knows_sum(one)][:BATCH]
        arguments = {"expressions": expressions, "round_to": view.rules.step, "mode": str(view.rules.mode)}
        return _Step("I calculate the sums and round them by the rule.", (ToolCall("calculate", arguments),))


_SETTLING = {
    "submit_pay": "This case is clean, so I pay it.",
    "hold": "A rule says that this pay is held.",
    "escalate": "A rule says that this case is escalated.",
}


def _batches(tool: str, people: list[Person]) -> tuple[ToolCall, ...]:
    ids = [one.id for one in people]
    return tuple(ToolCall(tool, {"employees": ids[start : start + BATCH]}) for start in range(0, len(ids), BATCH))


def _notes(known: StandardFacts, view: _View) -> str:
    """What is in view and still needed: rules as `P31 38 1.5 staff 0.05 down`, cases as `E1043 submit_pay H20 812.35` or `E1043 open`."""
    entries = [" ".join((view.document(topic).id, *view.document(topic).facts)) for topic in Topic if view.knows_rule(topic)]
    entries += [_case(view, one) for one in known.unsettled if view.sight.mentions(one.id)]
    return f"Notes: {'; '.join(entries) or 'none'}."


def _case(view: _View, one: Person) -> str:
    if not view.knows_outcome(one):
        return f"{one.id} open"
    call = view.settling(one)
    if call.name != "submit_pay":
        return f"{one.id} {call.name} {call.arguments['reason']}"
    return f"{one.id} {call.name} {call.arguments['code']}" + (f" {_text(call.arguments['amount'])}" if view.knows_sum(one) else "")


def _text(number: float) -> str:
    return str(int(number) if number == int(number) else number)
