"""Deskwork: queues of cases that a company's written rules settle, the shape shared by families that work in business applications.

A *desk* is one queue with its rules. Each rule says when it applies, in words (for the policy document) and as a predicate (for the truth);
the first active rule that applies decides a case, and names the one right action or none. Rules, documents, grader and reference
policies come from this one source. An application keeps its records in `Record`s and what happened to them as changes, id -> changed
fields; a case is right when its changes equal those that the right action makes, by value, and everything else is as it was.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random
from typing import Any

from coevo.chat import ToolCall
from coevo.errors import ConfigError, ToolError
from coevo.records import Grade
from coevo.tasks.contacts import Answer
from coevo.tasks.grading import NOT_SETTLED, Judgement, weigh
from coevo.tasks.payroll.arithmetic import Rounding, evaluate, plain_number, round_to

__all__ = [
    "Act",
    "Action",
    "Ask",
    "Brief",
    "Case",
    "Changes",
    "Desk",
    "Facts",
    "Ids",
    "Record",
    "Rule",
    "Terms",
    "active_rules",
    "answers_for",
    "asks_of",
    "check_field",
    "deciding_rule",
    "draw_brief",
    "expected_changes",
    "grade_cases",
    "literals",
    "plain",
    "right_act",
    "slots",
]

Facts = Mapping[str, Any]
"""What decides one case; `id` is the case's id."""
Terms = Mapping[str, Any]
"""The parameters of a desk's rules in one instance; `codes` maps a rule's label to its reason code."""
Changes = Mapping[str, Mapping[str, Any]]
"""Record id -> the fields that were changed, with their present values."""

MAX_TEXT_CHARS = 400
"""Longest free text that an action takes."""

_TOKEN = re.compile(r"[0-9]+(?:\.[0-9]+)?|[A-Za-z_]+[0-9]*")
_CODE = re.compile(r"[A-Z][0-9]{2}")
_MAX_DRAWS = 2000


def plain(value: Any) -> Any:
    """A float without fraction as an int, everything else as it is."""
    return int(value) if isinstance(value, float) and value == int(value) else value


def literals(*values: Any) -> tuple[str, ...]:
    """The tokens of values as an observation shows them."""
    return tuple(token for value in values for token in _TOKEN.findall(str(plain(value))))


class Ids:
    """Record ids of one instance: a prefix and four digits, never the same twice."""

    def __init__(self, random: Random) -> None:
        self._random, self._taken = random, set[str]()

    def take(self, prefix: str) -> str:
        """A fresh id."""
        while True:
            one = f"{prefix}{self._random.randrange(1000, 10000)}"
            if one not in self._taken:
                self._taken.add(one)
                return one


@dataclass(frozen=True, slots=True)
class Record:
    """One record of an application.

    Attributes:
        kind: Collection.
        id: One token.
        body: Fields in display order; JSON values.
        vital: Names of the fields that a case turns on.
    """

    kind: str
    id: str
    body: dict[str, Any]
    vital: tuple[str, ...] = ()

    @property
    def literals(self) -> tuple[str, ...]:
        """Tokens of the vital fields."""
        return literals(*(self.body[name] for name in self.vital))


@dataclass(frozen=True, slots=True)
class Act:
    """One right way to settle a case.

    Attributes:
        tool, arguments: The call; without the computed argument where there is one.
        computed: Name of an argument that is the rounded value of `expression`.
        expression: Written with literals of records and rules only.
        step, mode: How the value is rounded.
    """

    tool: str
    arguments: dict[str, Any]
    computed: str = ""
    expression: str = ""
    step: float = 0.01
    mode: Rounding = Rounding.HALF_UP

    @property
    def value(self) -> int | float | None:
        """The computed argument; None where nothing is computed."""
        if not self.computed:
            return None
        return plain_number(round_to(evaluate(self.expression), Fraction(str(self.step)), self.mode))

    @property
    def call(self) -> ToolCall:
        """The whole call."""
        return ToolCall(self.tool, self.arguments if not self.computed else {**self.arguments, self.computed: self.value})


@dataclass(frozen=True, slots=True)
class Ask:
    """A fact that only a colleague knows.

    Attributes:
        role: Words that find the colleague.
        fact: Name of the fact; its value is one token.
        text: The reply, with slots `{id}` and `{value}`.
    """

    role: str
    fact: str
    text: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a desk.

    Attributes:
        name: Atom; unique within the desk.
        text: The clause of the policy document, with slots named as terms.
        applies: Whether it takes a case.
        act: The right action; None: the case stays as it is.
        label: Reason that stands in the list of codes; empty where the action carries no code.
        ask: Who must be asked before one can tell whether it applies.
        arises: Whether the question arises at all, from what the records show.
        core: Active in every instance.
    """

    name: str
    text: str
    applies: Callable[[Facts, Terms], bool]
    act: Callable[[Facts, Terms], Act] | None
    label: str = ""
    ask: Ask | None = None
    arises: Callable[[Facts, Terms], bool] = lambda _facts, _terms: True
    core: bool = False


@dataclass(frozen=True, slots=True)
class Desk:
    """One queue and its rules; code, not data: an instance names its desks.

    Attributes:
        name: One word, also the query that finds its documents.
        prefix: Of the ids of its cases.
        title: Of the policy document.
        intro: First sentences of the policy document, with slots named as terms.
        rules: In checking order; the last one applies to everything.
        terms: Draws the parameters, without codes.
        facts: Draws a case such that every rule has a fair chance; without ids.
        records: The records of a case, its own first; draws linked ids from `Ids`.
        words: More words that find the documents.
    """

    name: str
    prefix: str
    title: str
    intro: str
    rules: tuple[Rule, ...]
    terms: Callable[[Random], dict[str, Any]]
    facts: Callable[[Random, Terms], dict[str, Any]]
    records: Callable[[Random, Facts, Ids], tuple[Record, ...]]
    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [rule.name for rule in self.rules]
        if len(set(names)) != len(names) or not self.rules[-1].core:
            raise ConfigError("a desk's rules need distinct names and a core rule at the end", seen=names, fix=f"mend desk {self.name!r}")


@dataclass(frozen=True, slots=True)
class Case:
    """One item of a queue. `records` holds its own record first, then those that it links to."""

    id: str
    facts: dict[str, Any]
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Brief:
    """One desk in one instance: plain data. `atoms` names the active rules that are not core."""

    desk: str
    atoms: tuple[str, ...]
    terms: dict[str, Any]
    cases: tuple[Case, ...]


@dataclass(frozen=True, slots=True)
class Action:
    """A way to change a record, as an application offers it.

    Attributes:
        tool: Name of the tool, or of the form.
        kind: Collection of the records that it changes.
        key: Argument that carries the record's id.
        verb: Last part of its address.
        status: The status that it sets; None leaves it.
        needs: Status that the record must have; empty: any.
        fields: Other arguments; each sets the field of its name.
        edit: Own way to compute the changes from the present body and the arguments, instead of `fields`.
    """

    tool: str
    kind: str
    key: str
    verb: str
    status: str | None = None
    needs: str = ""
    fields: tuple[str, ...] = ()
    edit: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]] | None = field(default=None, compare=False)

    def changes(self, body: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that it sets. Raises `ToolError` where the record's status or a value forbids it."""
        if self.needs and body.get("status") != self.needs:
            raise ToolError(f"{arguments[self.key]} is {body.get('status')}, not {self.needs}")
        given = {name: value for name, value in arguments.items() if name != self.key and value is not None}
        for name, value in given.items():
            check_field(name, value)
        changed = dict(given) if self.edit is None else self.edit(body, given)
        if not changed and self.status is None:
            raise ToolError("bad arguments: nothing to change")
        return changed if self.status is None else {"status": self.status, **changed}


def check_field(name: str, value: Any) -> None:
    """Raises `ToolError` for what no field of that name can hold; the message says what it can."""
    if name == "code" and not _CODE.fullmatch(value):
        raise ToolError("bad arguments: code is a capital letter and two digits, for example X00")
    if isinstance(value, str) and not (1 <= len(value) <= MAX_TEXT_CHARS and value.isprintable()):
        raise ToolError(f"bad arguments: {name} must have 1 to {MAX_TEXT_CHARS} printable characters")
    if isinstance(value, (int, float)) and (not 0 <= value <= 1_000_000 or Fraction(str(value)) * 100 % 1 != 0):
        raise ToolError(f"bad arguments: {name} must lie between 0 and 1000000, with at most two decimals")


def active_rules(desk: Desk, atoms: Sequence[str]) -> tuple[Rule, ...]:
    """The rules in force, in checking order."""
    return tuple(rule for rule in desk.rules if rule.core or rule.name in atoms)


def deciding_rule(desk: Desk, atoms: Sequence[str], facts: Facts, terms: Terms) -> Rule:
    """The first active rule that applies."""
    return next(rule for rule in active_rules(desk, atoms) if rule.applies(facts, terms))


def asks_of(desk: Desk, brief: Brief, case: Case) -> tuple[Ask, ...]:
    """What must be asked to decide a case: the questions of all rules up to the one that decides."""
    asks: list[Ask] = []
    for rule in active_rules(desk, brief.atoms):
        if rule.ask is not None and rule.ask not in asks and rule.arises(case.facts, brief.terms):
            asks.append(rule.ask)
        if rule.applies(case.facts, brief.terms):
            break
    return tuple(asks)


def right_act(desk: Desk, brief: Brief, case: Case) -> Act | None:
    """The one right way to settle a case, None to leave it: for graders, policies and demonstrations; no tool calls it."""
    act = deciding_rule(desk, brief.atoms, case.facts, brief.terms).act
    return None if act is None else act(case.facts, brief.terms)


def expected_changes(call: ToolCall | None, actions: Mapping[str, Action], case: Case) -> dict[str, Any]:
    """What the right call makes of the case's own record."""
    return {} if call is None else actions[call.name].changes(case.records[0].body, call.arguments)


def grade_cases(briefs: Iterable[tuple[Desk, Brief]], changes: Changes, *, actions: Mapping[str, Action], finished: bool) -> Grade:
    """Grade a final state.

    One checkpoint per case that needs an action (weight 1), one guard per case that must stay as it is (weight 0.5), one guard for
    everything that is no case of the queues, and `finished`.
    """
    judgements: list[Judgement] = []
    own: set[str] = set()
    for desk, brief in briefs:
        for case in brief.cases:
            act = right_act(desk, brief, case)
            own.add(case.id)
            expected = expected_changes(None if act is None else act.call, actions, case)
            problem = _problem(expected, changes.get(case.id, {}))
            judgements.append(Judgement(f"settled:{case.id}", problem, weight=0.5 if act is None else 1.0, guard=act is None))
    foreign = sorted(set(changes) - own)
    name, problem = (f"bystander:{foreign[0]}", "was changed and is no part of the task") if foreign else ("bystanders", None)
    judgements.append(Judgement(name, problem, guard=True))
    return weigh(judgements, finished=finished)


def _problem(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> str | None:
    """What is wrong with one case, without the answer."""
    if actual == expected:
        return None
    if not expected:
        return "should have stayed as it is"
    if not actual:
        return NOT_SETTLED
    if actual.get("status") != expected.get("status") or set(actual) != set(expected):
        return "settled in a wrong way"
    wrong = sorted(name for name in expected if actual[name] != expected[name])
    return f"wrong {', '.join(wrong)}"


def draw_brief(random: Random, desk: Desk, atoms: Sequence[str], *, count: int, ids: Ids, codes: Sequence[str]) -> Brief:
    """Terms and cases such that each active rule decides at least one case.

    Args:
        random: Of the instance.
        desk: The queue.
        atoms: Active rules besides the core ones; each must be one of the desk's.
        count: Cases; raised to the number of active rules where it is smaller.
        ids: Of the instance.
        codes: Reason codes to use, one per label of the desk at least.
    """
    known = {rule.name for rule in desk.rules}
    if not set(atoms) <= known:
        raise ConfigError("a template names an unknown rule", seen=sorted(set(atoms) - known), fix=f"known: {sorted(known)}")
    labels = list(dict.fromkeys(rule.label for rule in desk.rules if rule.label))
    terms = {**desk.terms(random), "codes": dict(zip(labels, codes, strict=False))}
    rules = active_rules(desk, atoms)
    wanted = [*rules, *(random.choice(rules) for _ in range(count - len(rules)))]
    random.shuffle(wanted)
    return Brief(desk.name, tuple(atoms), terms, tuple(_draw_case(random, desk, atoms, terms, rule, ids) for rule in wanted))


def _draw_case(random: Random, desk: Desk, atoms: Sequence[str], terms: Terms, rule: Rule, ids: Ids) -> Case:
    for _ in range(_MAX_DRAWS):
        facts = desk.facts(random, terms)
        if deciding_rule(desk, atoms, facts, terms) is rule:
            facts["id"] = ids.take(desk.prefix)
            return Case(facts["id"], facts, desk.records(random, facts, ids))
    raise ConfigError("a rule decides no case that its desk draws", seen=f"{desk.name} {rule.name}", fix="widen the desk's facts")


def slots(text: str) -> tuple[str, ...]:
    """The names of the terms that a clause shows."""
    return tuple(name for _, name, _, _ in string.Formatter().parse(text) if name)


def answers_for(desk: Desk, brief: Brief, role: str) -> tuple[Answer, ...]:
    """What the colleague of a role knows about the cases of a queue."""
    asks = {rule.ask for rule in active_rules(desk, brief.atoms) if rule.ask is not None and rule.ask.role == role}
    known = [(case, one) for case in brief.cases for one in sorted(asks, key=str)]
    return tuple(Answer((), one.text.format(id=case.id, value=case.facts[one.fact]), case.id) for case, one in known)
