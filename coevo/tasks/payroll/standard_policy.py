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
from coevo.tasks.payroll.arithmetic import plain_number
from coevo.tasks.payroll.rulebook import (
    Atom,
    Person,
    Rules,
    Topic,
    WidePerson,
    amount_due,
    approval,
    needs_approval,
    needs_sum,
    pay_expression,
    settling_call,
    topics_of,
)
from coevo.tasks.payroll.standard import BATCH, StandardFacts, facts, record_fields
from coevo.tasks.sight import Sight

__all__ = ["StandardPolicy"]


_settling = lru_cache(maxsize=1024)(settling_call)
_due = lru_cache(maxsize=4096)(amount_due)
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

        self.topics = topics_of(self.rules)
        self._all_rules = all(self.knows_rule(topic) for topic in self.topics)
        self._sum_decides = Atom.LARGE_SUM in dict(self.rules.atoms)

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
        return self.sight.carries(one.id, one.kind, _text(one.rate), *record_fields(self.rules, one).values())

    def has_timesheet(self, one: Person) -> bool:
        return self.sight.carries(one.id, "week", *("missing" if hours is None else _text(hours) for hours in one.weeks))

    def lacks_approval(self, one: Person) -> bool:
        return needs_approval(self.rules, one) and not self.sight.carries(one.id, "overtime", approval(one))

    def must_ask(self, one: Person) -> bool:
        """The system says that the approval is pending, and the lead's answer is not in view."""
        pending = isinstance(one, WidePerson) and bool(one.reply)
        return pending and self.lacks_approval(one) and self.sight.carries(one.id, "overtime", one.approval)

    def knows_outcome(self, one: Person) -> bool:
        """How to settle the case, apart from the sum where it is only paid: from notes, or from all facts and rules."""
        call = self.settling(one)
        if self.sight.carries(one.id, call.name, call.arguments.get("code", call.arguments.get("reason"))):
            return True
        if self._sum_decides and needs_sum(self.rules, one):
            return self.is_clear(one) and self.has_sum(one)
        return self._has_facts(one)

    def is_clear(self, one: Person) -> bool:
        """No rule but the limit of sums can stop the payment."""
        return needs_sum(self.rules, one) and (self.sight.carries(one.id, "clear", self.rules.code(one.kind)) or self._has_facts(one))

    def _has_facts(self, one: Person) -> bool:
        return self._all_rules and self.has_record(one) and self.has_timesheet(one) and not self.lacks_approval(one)

    def knows_sum(self, one: Person) -> bool:
        """The sum is not needed, noted, or calculated in view."""
        if self.settling(one).name != "submit_pay":
            return not (self._sum_decides and needs_sum(self.rules, one)) or self.knows_outcome(one)
        return self.has_sum(one)

    def has_sum(self, one: Person) -> bool:
        """Noted, or calculated in view."""
        call, amount = self.settling(one), _text(plain_number(_due(self.rules, one)))
        noted = call.name == "submit_pay" and self.sight.carries(one.id, call.name, amount)
        return noted or self.sight.calculated(pay_expression(self.rules, one), amount)

    def decided(self, one: Person) -> bool:
        return self.knows_outcome(one) and self.knows_sum(one)


class StandardPolicy:
    """The oracle in one style; see the module docstring."""

    def __init__(self, style: Style) -> None:
        self._style = style

    def move(self, world: World, visible: Sequence[Message], *, limited: bool = False) -> Move | Unrecoverable:
        """See `coevo.tasks.family.Policy`."""
        known = facts(world)
        lost = (*(one.id for one in known.wrong), *known.strays)
        if lost:
            return Unrecoverable(f"{lost[0]} is settled wrongly")
        if world.finished:
            return Unrecoverable("the world is finished")
        view = _View(known, visible)
        step = self._step(known, view, world.log, limited=limited)
        return Move(f"{step.sentence} {_notes(known, view)}" if limited else step.sentence, step.plan)

    def _step(self, known: StandardFacts, view: _View, log: Sequence[ToolCall], *, limited: bool) -> _Step:
        if not known.unsettled:
            return _Step("Everyone is settled, so I finish.", (ToolCall("finish", {}),))
        scope = self._scope(known)
        unseen = next((one for one in scope if not view.sight.mentions(one.id)), None)
        if unseen is not None:
            return self._list(known, unseen)
        undecided = [one for one in scope if not view.decided(one)]
        if undecided:
            return self._investigate(known, view, undecided, self._rules(known, view, log), limited=limited)
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

    def _investigate(self, known: StandardFacts, view: _View, undecided: list[Person], rules: _Step | None, *, limited: bool) -> _Step:
        if rules is not None and (limited or self._style is Style.PLAN_FIRST):
            return rules
        if not limited:
            return self._read(view, undecided) or rules or self._approve(view, undecided) or self._calculate(view, undecided)
        cases = self._one_page(known, undecided)
        # Read for the whole page at once, so that three turns hold all of it, whatever had scrolled away before.
        return self._read(view, cases, whole=True) or self._approve(view, cases, whole=True) or self._calculate(view, cases)

    def _rules(self, known: StandardFacts, view: _View, log: Sequence[ToolCall]) -> _Step | None:
        topic = next((topic for topic in view.topics if not view.knows_rule(topic)), None)
        if topic is None:
            return None
        document = view.document(topic)
        if view.sight.mentions(document.id):
            last = known.library.part_with(document.id, *document.facts) or 1
            read = _turn_page(log, ToolCall("read_document", {"document": document.id}), "part", last)
            return _Step(f"I read the rule on {topic}.", (read,))
        last = known.library.page_with(str(topic), document.id) or 1
        search = _turn_page(log, ToolCall("search_documents", {"query": str(topic)}), "page", last)
        return _Step(f"I look for the rule on {topic}.", (search,))

    def _read(self, view: _View, cases: list[Person], *, whole: bool = False) -> _Step | None:
        unread = [one for one in cases if not view.has_record(one)]
        if unread:
            return _Step("I read the records.", _batches("get_records", cases if whole else unread))
        unread = [one for one in cases if not view.has_timesheet(one)]
        return _Step("I read the time sheets.", _batches("get_timesheets", cases if whole else unread)) if unread else None

    def _approve(self, view: _View, cases: list[Person], *, whole: bool = False) -> _Step | None:
        open_cases = [one for one in cases if not view.knows_outcome(one) and needs_approval(view.rules, one)]
        unread = [one for one in open_cases if view.lacks_approval(one)]
        asked = [one for one in unread if view.must_ask(one)]
        if asked and len(asked) == len(unread):
            return _Step("The system says pending, so I ask the lead.", _questions(asked))
        return (
            _Step("There is overtime, so I check its approval.", _batches("get_approvals", open_cases if whole else unread))
            if unread
            else None
        )

    def _calculate(self, view: _View, cases: list[Person]) -> _Step:
        expressions = [pay_expression(view.rules, one) for one in cases if not view.knows_sum(one)][:BATCH]
        arguments = {"expressions": expressions, "round_to": view.rules.step, "mode": str(view.rules.mode)}
        return _Step("I calculate the sums and round them by the rule.", (ToolCall("calculate", arguments),))


def _turn_page(log: Sequence[ToolCall], call: ToolCall, argument: str, last: int) -> ToolCall:
    """The same call for the page behind the one that was looked at last, from the first again when the last one was."""
    before = (one for one in reversed(log) if one.name == call.name and call.arguments.items() <= one.arguments.items())
    latest = next((one.arguments.get(argument, 1) for one in before), last)
    page = latest + 1 if isinstance(latest, int) and 0 < latest < last else 1
    return ToolCall(call.name, dict(call.arguments) if page == 1 else {**call.arguments, argument: page})


_SETTLING = {
    "submit_pay": "This case is clean, so I pay it.",
    "hold": "A rule says that this pay is held.",
    "escalate": "A rule says that this case is escalated.",
}


def _batches(tool: str, people: list[Person]) -> tuple[ToolCall, ...]:
    ids = [one.id for one in people]
    return tuple(ToolCall(tool, {"employees": ids[start : start + BATCH]}) for start in range(0, len(ids), BATCH))


def _questions(people: list[Person]) -> tuple[ToolCall, ...]:
    """One message per lead and three employees: nobody answers more at once."""
    leads: dict[str, list[str]] = {}
    for one in people:
        if isinstance(one, WidePerson):
            leads.setdefault(one.lead, []).append(one.id)
    return tuple(
        ToolCall("write_message", {"contact": lead, "message": f"Is the overtime of {' and '.join(ids[start : start + 3])} approved?"})
        for lead, ids in leads.items()
        for start in range(0, len(ids), 3)
    )


def _notes(known: StandardFacts, view: _View) -> str:
    """What is in view and still needed: rules as `P31 38 1.5 staff 0.05 down`, cases as `E1043 submit_pay H20 812.35` or `E1043 open`."""
    entries = [" ".join((view.document(topic).id, *view.document(topic).facts)) for topic in view.topics if view.knows_rule(topic)]
    entries += [_case(view, one) for one in known.unsettled if view.sight.mentions(one.id)]
    return f"Notes: {'; '.join(entries) or 'none'}."


def _case(view: _View, one: Person) -> str:
    if not view.knows_outcome(one):
        if view.is_clear(one):
            return f"{one.id} clear {view.rules.code(one.kind)}"
        known = isinstance(one, WidePerson) and one.reply and needs_approval(view.rules, one) and not view.lacks_approval(one)
        return f"{one.id} open overtime {approval(one)}" if known else f"{one.id} open"
    call = view.settling(one)
    if call.name != "submit_pay":
        return f"{one.id} {call.name} {call.arguments['reason']}"
    return f"{one.id} {call.name} {call.arguments['code']}" + (f" {_text(call.arguments['amount'])}" if view.knows_sum(one) else "")


def _text(number: float) -> str:
    return str(int(number) if number == int(number) else number)
