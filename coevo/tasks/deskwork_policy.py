"""Reference policies of deskwork: they know what to do, and act only on what is in view.

The truth of the world decides which step is next; a value enters a call only when a visible message carries it, otherwise the policy reads
it (again). A record is known when the message that answers a call about it, or an own note about it, carries all fields that matter. With a
limited view every turn carries notes: rules, open records and decisions survive in them, so one turn in view is enough.
Reactive settles one case after the other; plan-first lists all queues, reads all rules and records, decides, then acts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

from coevo.chat import Message, Role, ToolCall
from coevo.tasks.deskwork import (
    Act,
    Action,
    Ask,
    Brief,
    Case,
    Changes,
    Desk,
    Record,
    active_rules,
    asks_of,
    expected_changes,
    literals,
    right_act,
)
from coevo.tasks.deskwork_papers import CODES, RULES
from coevo.tasks.family import Move, Style, Unrecoverable, World
from coevo.tasks.library import Document

__all__ = ["DeskworkPolicy", "DeskworkWorld", "Hands", "Sight", "Truth", "Work"]

_TOKEN = re.compile(r"[0-9]+(?:\.[0-9]+)?|[A-Za-z_]+[0-9]*")
_BATCH = 5
_KEEP = "keep_as_is"
_PLAN = "Plan: list the queues, read the rules, read all cases, decide, then act."
_FINISH = ToolCall("finish", {})


@dataclass(frozen=True, slots=True)
class Work:
    """One case with everything that decides it."""

    desk: Desk
    brief: Brief
    case: Case
    act: Act | None
    call: ToolCall | None
    asks: tuple[Ask, ...]
    expected: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Truth:
    """The whole truth about a deskwork world, for policies and demonstrations only: no tool, harness or proposer gets one.

    Attributes:
        work: All cases, in queue order.
        documents: Topic -> version in force.
        contacts: Role -> id of the person who knows.
        actions: Tool name -> what it changes.
    """

    work: tuple[Work, ...]
    documents: Mapping[str, Document]
    contacts: Mapping[str, str]
    actions: Mapping[str, Action]

    @classmethod
    def of(
        cls,
        desks: Iterable[tuple[Desk, Brief]],
        documents: Iterable[Document],
        contacts: Mapping[str, str],
        actions: Mapping[str, Action],
    ) -> Truth:
        """Decide all cases."""
        work = tuple(_work(desk, brief, case, actions) for desk, brief in desks for case in brief.cases)
        return cls(work, {one.topic: one for one in documents if one.topic is not None}, dict(contacts), actions)


def _work(desk: Desk, brief: Brief, case: Case, actions: Mapping[str, Action]) -> Work:
    act = right_act(desk, brief, case)
    call = None if act is None else act.call
    return Work(desk, brief, case, act, call, asks_of(desk, brief, case), expected_changes(call, actions, case))


class Hands(Protocol):
    """How a goal is reached in one application, from where the world stands: the next calls, at least one."""

    def list_queue(self, desk: Desk, case: str) -> tuple[ToolCall, ...]:
        """Show the part of a queue where a case stands."""
        ...

    def open_record(self, record: Record) -> tuple[ToolCall, ...]: ...

    def find_document(self, query: str, document: str) -> tuple[ToolCall, ...]: ...

    def read_document(self, document: Document) -> tuple[ToolCall, ...]: ...

    def find_contact(self, role: str, contact: str) -> tuple[ToolCall, ...]: ...

    def ask(self, contact: str, case: str, role: str) -> tuple[ToolCall, ...]: ...

    def settle(self, call: ToolCall) -> tuple[ToolCall, ...]: ...


class DeskworkWorld(World, Protocol):
    """A world whose truth and hands the policy may use."""

    def truth(self) -> Truth: ...

    def changes(self) -> Changes: ...

    def hands(self) -> Hands: ...


@lru_cache(maxsize=16384)
def _split(text: str) -> tuple[str, ...]:
    return tuple(_TOKEN.findall(text))


class Sight:
    """The facts in `visible` about the ids of an instance.

    A tool result belongs to the one id in the arguments of the call that it answers, else to the first id that it names, and from where it
    names another id also to that one. An assistant's text counts up to its first `<`; its notes are entries between semicolons, each about
    the id that it starts with.
    """

    def __init__(self, visible: Sequence[Message], ids: frozenset[str]) -> None:
        self._ids = ids
        self._about: dict[str, list[frozenset[str]]] = {}
        self._answers: list[tuple[tuple[ToolCall, ...], frozenset[str]]] = []
        self._words: set[str] = set()
        calls: tuple[ToolCall, ...] = ()
        for message in visible:
            if message.role is Role.ASSISTANT:
                calls = message.calls
                for entry in message.content.partition("<")[0].split(";"):
                    self._add(_split(entry), None)
            else:
                tokens = _split(message.content)
                if message.role is Role.TOOL:
                    self._answers.append((calls, frozenset(tokens)))
                self._add(tokens, self._asked(calls) if message.role is Role.TOOL else None)

    def _asked(self, calls: tuple[ToolCall, ...]) -> str | None:
        asked = {str(value) for call in calls for value in call.arguments.values()} & self._ids
        return asked.pop() if len(asked) == 1 else None

    def _add(self, tokens: tuple[str, ...], subject: str | None) -> None:
        self._words.update(tokens)
        places = {token: place for place, token in reversed(list(enumerate(tokens))) if token in self._ids}
        subject = subject or min(places, key=lambda token: places[token], default=None)
        for other, place in places.items():
            self._about.setdefault(other, []).append(frozenset(tokens[place:]))
        if subject is not None:
            self._about.setdefault(subject, []).append(frozenset(tokens))

    def mentions(self, token: str) -> bool:
        """The token stands somewhere in view."""
        return token in self._words

    def carries(self, one: str, values: Iterable[str]) -> bool:
        """One message, or one note, carries all values for this id."""
        wanted = frozenset(values)
        return any(wanted <= tokens for tokens in self._about.get(one, ()))

    def calculated(self, expression: str, value: str) -> bool:
        """A visible result carries the value in answer to a visible call with this expression."""
        return any(value in tokens and any(expression in _expressions(call) for call in calls) for calls, tokens in self._answers)


def _expressions(call: ToolCall) -> tuple[object, ...]:
    listed = call.arguments.get("expressions", ())
    return tuple(listed) if isinstance(listed, (list, tuple)) else ()


class _Step(NamedTuple):
    sentence: str
    plan: tuple[ToolCall, ...]


class _View:
    """What is known from what is in view."""

    def __init__(self, truth: Truth, visible: Sequence[Message]) -> None:
        self.truth = truth
        ids = {record.id for work in truth.work for record in work.case.records}
        self.sight = Sight(visible, frozenset(ids | {one.id for one in truth.documents.values()}))

    def topics(self, work: Work) -> list[str]:
        """The documents that a case needs."""
        coded = any(rule.label for rule in active_rules(work.desk, work.brief.atoms))
        return [f"{work.desk.name} {RULES}", *([f"{work.desk.name} {CODES}"] if coded else [])]

    def knows_document(self, topic: str) -> bool:
        one = self.truth.documents[topic]
        return self.sight.carries(one.id, one.facts)

    def unknown_topic(self, cases: Iterable[Work]) -> str | None:
        topics = dict.fromkeys(topic for work in cases for topic in self.topics(work))
        return next((topic for topic in topics if not self.knows_document(topic)), None)

    def unknown_records(self, work: Work) -> list[Record]:
        return [one for one in work.case.records if not self.sight.carries(one.id, one.literals)]

    def unknown_ask(self, work: Work) -> Ask | None:
        return next((one for one in work.asks if not self.sight.carries(work.case.id, literals(work.case.facts[one.fact]))), None)

    def outcome(self, work: Work) -> tuple[str, ...]:
        """What a note keeps of a decision, without the computed value."""
        if work.act is None:
            return (_KEEP,)
        return (work.act.tool, *literals(*(value for name, value in work.act.arguments.items() if value != work.case.id)))

    def noted(self, work: Work) -> bool:
        """The decision stands in a note."""
        return self.sight.carries(work.case.id, self.outcome(work))

    def decided(self, work: Work) -> bool:
        """What to do is known, apart from a computed value."""
        if self.noted(work):
            return True
        return self.unknown_topic([work]) is None and not self.unknown_records(work) and self.unknown_ask(work) is None

    def knows_value(self, work: Work) -> bool:
        if work.act is None or work.act.value is None:
            return True
        value = str(work.act.value)
        return self.sight.carries(work.case.id, (work.act.tool, value)) or self.sight.calculated(work.act.expression, value)


class DeskworkPolicy:
    """The oracle in one style; see the module docstring."""

    def __init__(self, style: Style) -> None:
        self._style = style

    def move(self, world: DeskworkWorld, visible: Sequence[Message], *, limited: bool = False) -> Move | Unrecoverable:
        """See `coevo.tasks.family.Policy`."""
        if world.finished:
            return Unrecoverable("the world is finished")
        truth, changes = world.truth(), world.changes()
        lost = _lost(truth, changes)
        if lost is not None:
            return Unrecoverable(lost)
        view = _View(truth, visible)
        open_work = [work for work in truth.work if changes.get(work.case.id, {}) != work.expected or work.call is None]
        step = self._step(view, world.hands(), open_work)
        return Move(f"{step.sentence} {_notes(view, open_work)}" if limited else step.sentence, step.plan)

    def _step(self, view: _View, hands: Hands, open_work: list[Work]) -> _Step:
        todo = [work for work in open_work if work.call is not None or not view.decided(work)]
        if not todo:
            return _Step("Everything is settled, so I finish.", (_FINISH,))
        scope = todo if self._style is Style.PLAN_FIRST else todo[:1]
        unseen = next((work for work in scope if not view.sight.mentions(work.case.id)), None)
        if unseen is not None:
            plan = hands.list_queue(unseen.desk, unseen.case.id)
            first = (
                self._style is Style.PLAN_FIRST
                and len(open_work) == len(view.truth.work)
                and not any(view.sight.mentions(work.case.id) for work in todo)
            )
            return _Step(
                "Plan: list the queues, read the rules, read all cases, decide, then act." if first else "I look at the queue.", plan
            )
        undecided = [work for work in scope if not view.decided(work)]
        if self._style is Style.PLAN_FIRST:
            step = self._rules(view, hands, undecided) or self._read(view, hands, undecided)
        else:
            step = self._read(view, hands, undecided) or self._rules(view, hands, undecided)
        return step or self._ask(view, hands, undecided) or self._calculate(view, scope) or self._settle(hands, scope)

    def _begun(self, view: _View, open_work: list[Work]) -> bool:
        """The plan was announced: something is in view or done."""
        untouched = len(open_work) == len(view.truth.work) and not any(view.sight.mentions(work.case.id) for work in open_work)
        return self._style is Style.REACTIVE or not untouched

    def _rules(self, view: _View, hands: Hands, cases: list[Work]) -> _Step | None:
        topic = view.unknown_topic(cases)
        if topic is None:
            return None
        document = view.truth.documents[topic]
        if view.sight.mentions(document.id):
            return _Step(f"I read the document on {topic} that is in force.", hands.read_document(document))
        return _Step(f"I look for the {topic}.", hands.find_document(topic, document.id))

    def _read(self, view: _View, hands: Hands, cases: list[Work]) -> _Step | None:
        work = next((work for work in cases if view.unknown_records(work)), None)
        if work is None:
            return None
        for record in view.unknown_records(work):
            if view.sight.mentions(record.id):
                return _Step("I open what belongs to the case.", hands.open_record(record))
        return _Step("I open the case again.", hands.open_record(work.case.records[0]))

    def _ask(self, view: _View, hands: Hands, cases: list[Work]) -> _Step | None:
        for work in cases:
            ask = view.unknown_ask(work)
            if ask is None:
                continue
            contact = view.truth.contacts[ask.role]
            if not view.sight.mentions(contact):
                return _Step(f"I look for the colleague: {ask.role}.", hands.find_contact(ask.role, contact))
            return _Step("Only a colleague knows this, so I ask.", hands.ask(contact, work.case.id, ask.role))
        return None

    def _calculate(self, view: _View, cases: list[Work]) -> _Step | None:
        open_acts = [work.act for work in cases if work.act is not None and not view.knows_value(work)]
        if not open_acts:
            return None
        first = open_acts[0]
        batch = [act.expression for act in open_acts if (act.step, act.mode) == (first.step, first.mode)][:_BATCH]
        arguments = {"expressions": list(dict.fromkeys(batch)), "round_to": first.step, "mode": str(first.mode)}
        return _Step("I calculate what the rules give.", (ToolCall("calculate", arguments),))

    def _settle(self, hands: Hands, cases: list[Work]) -> _Step:
        calls = [work.call for work in cases if work.call is not None]
        return _Step(f"By the rules this case needs {calls[0].name}.", hands.settle(calls[0]))


def _lost(truth: Truth, changes: Changes) -> str | None:
    """Why success is out of reach; None while it is not."""
    own = {work.case.id for work in truth.work}
    foreign = sorted(set(changes) - own)
    if foreign:
        return f"{foreign[0]} was changed and is no part of the task"
    for work in truth.work:
        actual = changes.get(work.case.id, {})
        if actual and actual != work.expected and not _mendable(truth, work, actual):
            return f"{work.case.id} is settled wrongly"
    return None


def _mendable(truth: Truth, work: Work, actual: Mapping[str, object]) -> bool:
    """The right call, made now, still gives the right result, and what decides the case can still be read."""
    if work.call is None:
        return False
    action = truth.actions[work.call.name]
    free = action.status is None and action.edit is None and "status" not in actual
    return free and set(actual) <= set(work.expected) - set(work.case.records[0].vital)


def _notes(view: _View, open_work: list[Work]) -> str:
    """`; D31 30 0.85 K12; R1043 open; O2210 12.5 2; R1044 refund_return K12 45.5;`: what is in view and still needed."""
    topics = dict.fromkeys(topic for work in open_work for topic in view.topics(work))
    entries = [" ".join((view.truth.documents[one].id, *view.truth.documents[one].facts)) for one in topics if view.knows_document(one)]
    entries += [one for one in view.truth.contacts.values() if view.sight.mentions(one)]
    for work in open_work:
        entries += _case_notes(view, work)
    return f"Notes: ; {' ; '.join(entries)} ;" if entries else "Notes: none ;"


def _case_notes(view: _View, work: Work) -> list[str]:
    if not view.sight.mentions(work.case.id):
        return []
    if view.decided(work):
        return [" ".join((work.case.id, *view.outcome(work), *_value_notes(view, work)))]
    known = [record for record in work.case.records if record not in view.unknown_records(work)]
    entries = [" ".join((record.id, *record.literals)) for record in known]
    return [f"{work.case.id} open", *entries, *_answers(view, work)]


def _value_notes(view: _View, work: Work) -> tuple[str, ...]:
    """A computed value, or what it will be computed from."""
    if work.act is None or work.act.value is None:
        return ()
    return (str(work.act.value),) if view.knows_value(work) else literals(work.act.expression)


def _answers(view: _View, work: Work) -> list[str]:
    told = [one for one in work.asks if view.sight.carries(work.case.id, literals(work.case.facts[one.fact]))]
    return [" ".join((work.case.id, *literals(work.case.facts[one.fact]))) for one in told]
