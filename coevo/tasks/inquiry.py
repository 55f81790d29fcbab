"""Reference policies for families whose work is a list of cases: what is still unknown, where to learn it, when to act.

A family describes a world as an `Agenda`: rules that documents state, cases with the facts that decide them, one closing case. The policy
takes the next unknown fact whose basis is known and learns it in batches; a value enters a call only when a visible message carries it
(`Sight`). Reactive works through one listed page after the other, plan-first through everything at once. When the context is limited both
go page by page and carry notes, which later turns read as facts; a window of three turns is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from coevo.chat import Message, ToolCall
from coevo.errors import ConfigError
from coevo.tasks.family import Move, Style, Unrecoverable, World
from coevo.tasks.library import Document, Library
from coevo.tasks.sight import Sight

__all__ = ["BATCH", "Agenda", "Case", "Fact", "Inquiry", "Lookup", "Progress", "Rule", "Single", "Sum", "rule_of", "token"]

BATCH = 5
"""Cases per page, per batched read and per calculation."""

_NO_SUBJECT = ""


@dataclass(frozen=True, slots=True)
class Lookup:
    """A read of several subjects at once: `tool(argument=[ids], **extra)`."""

    tool: str
    argument: str
    extra: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class Sum:
    """A calculation: `expression` gives `value` when rounded to `step`, or exactly."""

    expression: str
    value: int | float
    step: float | None = None
    mode: str = "half_up"


@dataclass(frozen=True, slots=True)
class Single:
    """A read that is one call."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that a visible message must carry.

    Attributes:
        subject: Id beside which the tokens stand; empty for a sum that belongs to nobody.
        tokens: Words and unsigned numbers that carry it, as notes write them.
        source: How to learn it.
        order: Stage of work; lower stages come first over all cases in hand.
        basis: Facts that must be known before.
    """

    subject: str
    tokens: tuple[str, ...]
    source: Lookup | Sum | Single
    order: int
    basis: tuple[Fact, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """A document in force: how to find it, and what must be read in it (the parts before the rule are the basis of that fact)."""

    document: str
    topic: str
    search: ToolCall
    fact: Fact


@dataclass(frozen=True, slots=True)
class Case:
    """One piece of work: the facts that decide it and the one call that settles it."""

    id: str
    page: int
    goals: tuple[Fact, ...]
    settle: ToolCall

    @property
    def outcome(self) -> tuple[str, ...]:
        """What notes keep of a decided case."""
        values = (value for name, value in self.settle.arguments.items() if value != self.id and name != "note")
        return (self.settle.name, *(token(value) for value in values))


@dataclass(frozen=True, slots=True)
class Agenda:
    """A world as its reference sees it.

    Attributes:
        cases: In list order.
        closing: The report that ends the work; its `page` is 0.
        rules: In reading order.
        listings: The call that shows page n + 1.
        announcement: Opening sentence of a plan.
        sentences: Tool name -> why it is called.
    """

    cases: tuple[Case, ...]
    closing: Case
    rules: tuple[Rule, ...]
    listings: tuple[ToolCall, ...]
    announcement: str
    sentences: Mapping[str, str]


def rule_of(library: Library, document: Document, *, topic: str, query: str) -> Rule:
    """The rule of a document in force, with the parts that are read before the one that states it.

    Raises:
        ConfigError: The search does not find the document, or no part carries all its facts.
    """
    page, last = library.page_with(query, document.id), library.part_with(document.id, *document.facts)
    if page is None or last is None:
        raise ConfigError(
            "a rule can't be found", seen=f"{document.id} {document.title}", fix="give it keywords of the query and one paragraph"
        )
    before: tuple[Fact, ...] = ()
    for part in range(1, last):
        before = (Fact(document.id, ("part", str(part)), Single(_part(document, part)), 0, before),)
    search = ToolCall("search_documents", {"query": query} if page == 1 else {"query": query, "page": page})
    return Rule(document.id, topic, search, Fact(document.id, document.facts, Single(_part(document, last)), 0, before))


def _part(document: Document, part: int) -> ToolCall:
    return ToolCall("read_document", {"document": document.id} if part == 1 else {"document": document.id, "part": part})


class Progress(NamedTuple):
    """Where a world stands: ids settled rightly (the closing case's included), and what is beyond repair."""

    settled: frozenset[str]
    lost: str | None


class _Step(NamedTuple):
    sentence: str
    plan: tuple[ToolCall, ...]


def token(value: object) -> str:
    """A literal as notes and observations show it, without its sign."""
    if isinstance(value, float) and value == int(value):
        value = int(value)
    return str(value).lstrip("-")


class _View:
    """What is known of an agenda from what is in view."""

    def __init__(self, agenda: Agenda, visible: Sequence[Message]) -> None:
        subjects = {fact.subject for case in (*agenda.cases, agenda.closing) for fact in _all_facts(case.goals)} - {_NO_SUBJECT}
        ids = {*subjects, *(case.id for case in agenda.cases), *(rule.document for rule in agenda.rules)}
        self.agenda = agenda
        self.sight = Sight(visible, ids)
        self.rules_known = all(self.knows(rule.fact) for rule in agenda.rules)

    def knows(self, fact: Fact) -> bool:
        if isinstance(fact.source, Sum) and self.sight.calculated(fact.source.expression, token(fact.source.value)):
            return True
        return fact.subject != _NO_SUBJECT and self.sight.carries(fact.subject, *fact.tokens)

    def decided(self, case: Case) -> bool:
        """From notes, or because all rules and facts are in view."""
        if self.sight.carries(case.id, *case.outcome):
            return True
        return self.rules_known and all(self.knows(fact) for fact in case.goals)

    def missing(self, facts: Iterable[Fact]) -> Iterator[Fact]:
        """Unknown facts whose basis is known."""
        for fact in facts:
            if not self.knows(fact):
                deeper = list(self.missing(fact.basis))
                yield from deeper or [fact]

    def shown(self, facts: Iterable[Fact]) -> Iterator[Fact]:
        """Known facts, each in place of its basis."""
        for fact in facts:
            if self.knows(fact):
                yield fact
            else:
                yield from self.shown(fact.basis)

    def reported(self) -> list[Case]:
        """Cases about which the closing case still lacks something."""
        lacking = {fact.subject for fact in _all_facts(fact for fact in self.agenda.closing.goals if not self.knows(fact))}
        return [case for case in self.agenda.cases if case.id in lacking]


def _all_facts(facts: Iterable[Fact]) -> Iterator[Fact]:
    for fact in facts:
        yield fact
        yield from _all_facts(fact.basis)


def _distinct(facts: Iterable[Fact]) -> list[Fact]:
    found: list[Fact] = []
    for fact in facts:
        if fact not in found:
            found.append(fact)
    return found


class Inquiry:
    """The policy in one style.

    Args:
        style: Order of the work.
        agenda: The agenda of a world.
        progress: What has been settled in it so far.
    """

    def __init__(self, style: Style, *, agenda: Callable[[World], Agenda], progress: Callable[[World], Progress]) -> None:
        self._style = style
        self._agenda = agenda
        self._progress = progress

    def move(self, world: World, visible: Sequence[Message], *, limited: bool = False) -> Move | Unrecoverable:
        """See `coevo.tasks.family.Policy`."""
        progress = self._progress(world)
        if progress.lost is not None:
            return Unrecoverable(progress.lost)
        if world.finished:
            return Unrecoverable("the world is finished")
        agenda = self._agenda(world)
        if agenda.closing.id in progress.settled and all(case.id in progress.settled for case in agenda.cases):
            return Move(agenda.sentences["finish"], (ToolCall("finish", {}),))
        view = _View(agenda, visible)
        step = self._step(view, progress.settled, limited=limited)
        return Move(f"{step.sentence} {_notes(view, progress.settled)}" if limited else step.sentence, step.plan)

    def _step(self, view: _View, settled: frozenset[str], *, limited: bool) -> _Step:
        agenda = view.agenda
        unsettled = [case for case in agenda.cases if case.id not in settled]
        if not unsettled:
            return self._close(view)
        paged = limited or self._style is Style.REACTIVE
        scope = [case for case in unsettled if case.page == unsettled[0].page] if self._style is Style.REACTIVE else unsettled
        unseen = next((case for case in scope if not view.sight.mentions(case.id)), None)
        if unseen is not None:
            return self._list(view, unseen.page)
        undecided = [case for case in scope if not view.decided(case)]
        if not undecided:
            calls = tuple(case.settle for case in scope)
            return _Step(agenda.sentences[calls[0].name], calls)
        cases = [case for case in undecided if case.page == undecided[0].page] if paged else undecided
        return self._investigate(
            view, [fact for case in cases for fact in case.goals], rules_first=limited or not self._reads_first(view, cases)
        )

    def _reads_first(self, view: _View, cases: Sequence[Case]) -> bool:
        """A reactive agent looks at its first page before it asks for rules."""
        lowest = min(fact.order for case in cases for fact in _all_facts(case.goals))
        unread = any(fact.order == lowest for case in cases for fact in view.missing(case.goals))
        return self._style is Style.REACTIVE and unread

    def _close(self, view: _View) -> _Step:
        closing = view.agenda.closing
        if view.rules_known and all(view.knows(fact) for fact in closing.goals):
            return _Step(view.agenda.sentences[closing.settle.name], (closing.settle,))
        unseen = next((case for case in view.reported() if not view.sight.mentions(case.id)), None)
        if unseen is not None:
            return self._list(view, unseen.page)
        return self._investigate(view, closing.goals, rules_first=True)

    def _list(self, view: _View, page: int) -> _Step:
        agenda = view.agenda
        opening = self._style is Style.PLAN_FIRST and page == 1
        call = agenda.listings[page - 1]
        return _Step(agenda.announcement if opening else agenda.sentences[call.name], (call,))

    def _investigate(self, view: _View, facts: Iterable[Fact], *, rules_first: bool) -> _Step:
        rule = self._rule(view)
        if rule is not None and rules_first:
            return rule
        missing = _distinct(view.missing(facts))
        if not missing and rule is not None:
            return rule
        stage = min(fact.order for fact in missing)
        calls = tuple(_calls([fact for fact in missing if fact.order == stage]))
        return _Step(view.agenda.sentences[calls[0].name], calls)

    def _rule(self, view: _View) -> _Step | None:
        rule = next((rule for rule in view.agenda.rules if not view.knows(rule.fact)), None)
        if rule is None:
            return None
        if not view.sight.mentions(rule.document):
            return _Step(f"I look for the rules on {rule.topic}.", (rule.search,))
        return _Step(f"I read the rules on {rule.topic}.", tuple(_calls(list(view.missing([rule.fact])))))


def _calls(facts: Sequence[Fact]) -> Iterator[ToolCall]:
    """The reads and calculations that show these facts of one stage, batched."""
    lookups: dict[Lookup, list[str]] = {}
    sums: dict[tuple[float | None, str], list[str]] = {}
    for fact in facts:
        match fact.source:
            case Lookup() as lookup:
                lookups.setdefault(lookup, []).append(fact.subject)
            case Sum(expression, _, step, mode):
                sums.setdefault((step, mode), []).append(expression)
            case Single(call):
                yield call
    for lookup, subjects in lookups.items():
        for batch in _batches(subjects):
            yield ToolCall(lookup.tool, {lookup.argument: batch, **dict(lookup.extra)})
    for (step, mode), expressions in sums.items():
        rounding = {} if step is None else {"round_to": step, "mode": mode}
        for batch in _batches(expressions):
            yield ToolCall("calculate", {"expressions": batch, **rounding})


def _batches(items: Sequence[str]) -> Iterator[list[str]]:
    unique = list(dict.fromkeys(items))
    return (unique[start : start + BATCH] for start in range(0, len(unique), BATCH))


def _notes(view: _View, settled: frozenset[str]) -> str:
    """What is in view and still needed: rules, decided cases, and the known facts of the others."""
    agenda = view.agenda
    entries = list(_fact_notes(view, (rule.fact for rule in agenda.rules)))
    unsettled = [case for case in agenda.cases if case.id not in settled]
    for case in unsettled:
        if view.decided(case):
            entries.append(" ".join((case.id, *case.outcome)))
        elif view.sight.mentions(case.id):
            entries.append(f"{case.id} open")
            entries += _fact_notes(view, case.goals)
    if not unsettled:
        entries += [f"{case.id} reported" for case in view.reported() if view.sight.mentions(case.id)]
    last = agenda.closing.goals
    entries += _fact_notes(view, [fact for fact in last if view.knows(fact)] if unsettled else last)
    return f"Notes: {'; '.join(dict.fromkeys(entries)) or 'none'}."


def _fact_notes(view: _View, goals: Iterable[Fact]) -> Iterator[str]:
    return (" ".join((fact.subject, *fact.tokens)) for fact in view.shown(goals) if fact.subject != _NO_SUBJECT)
