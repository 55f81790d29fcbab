"""The standard payroll world, for a real LLM: 6 to 14 employees in pages of five, time sheets and approvals apart, the rules in documents.

The instruction says only what to audit. The agent finds the rules in force among superseded ones and drafts, reads records in batches,
calculates, and settles each employee once: pay, hold or escalate. A careful run takes 20 to 40 calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from coevo.chat import ToolCall, ToolSpec
from coevo.errors import ConfigError, ToolError, nearest
from coevo.identity import derive_seed
from coevo.records import Grade
from coevo.tasks.family import Conduct, TaskInstance, World
from coevo.tasks.grading import NOT_SETTLED, grade_settlements
from coevo.tasks.library import Document, Library
from coevo.tasks.paging import page_of
from coevo.tasks.payroll.arithmetic import Rounding, evaluate, plain_number, round_to
from coevo.tasks.payroll.rulebook import KINDS, Atom, Person, Rules, documents, draw_rules, settling_call
from coevo.tasks.world import MAX_INTEGER, TERMINAL_TOOL, PlainWorld, Toolbox

__all__ = ["BATCH", "CONDUCT", "TEMPLATES", "TOOLS", "StandardData", "StandardFacts", "StandardWorld", "facts", "open_standard"]

BATCH = 5
"""Employees per page and per batched read."""

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Template:
    """One wording with the rules that apply. `draft` puts a future version of the time rule on the shelf."""

    wording: str
    atoms: tuple[Atom, ...]
    draft: bool = False


_BASE = (Atom.CONTRACTOR_CAP,)
TEMPLATES = MappingProxyType(
    {
        "overtime": Template("Run the {month} payroll audit for {department}.", _BASE),
        "approvals": Template("Please close the {month} payroll of {department}.", (*_BASE, Atom.APPROVAL)),
        "interns": Template(
            "{department} is waiting for its {month} pay run. Audit it and settle everybody.", (*_BASE, Atom.INTERN_CAP), draft=True
        ),
        "gaps": Template("Go through {department}'s {month} time sheets and settle the payroll.", (*_BASE, Atom.GAP)),
        "ceilings": Template("Audit the {month} payroll for {department}; some entries look odd.", (*_BASE, Atom.RATE_CEILING, Atom.GAP)),
        "full": Template("Do the complete {month} payroll audit for {department}.", tuple(Atom), draft=True),
    }
)
"""Seeded templates; a run of diversity d draws from the first d."""

_DEPARTMENTS = ("Finance", "Operations", "Support", "Logistics", "Sales", "Engineering", "Legal", "Marketing", "Research", "Facilities")
_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December")
_FIRST = ("Ana", "Bo", "Chidi", "Dana", "Emre", "Farah", "Goran", "Hana", "Ivo", "Jun", "Kira", "Lars", "Mina", "Noor", "Olga", "Piotr")
_LAST = ("Adler", "Brandt", "Costa", "Diaz", "Evans", "Fischer", "Grant", "Horvat", "Ito", "Jensen", "Kaya", "Lopez", "Moreau", "Novak")
_RATES = MappingProxyType({"staff": (18, 45), "temp": (14, 28), "contractor": (30, 80), "intern": (10, 16)})


def _tool(name: str, description: str, *, optional: tuple[str, ...] = (), **properties: dict[str, Any]) -> ToolSpec:
    required = [one for one in properties if one not in optional]
    return ToolSpec(name, description, {"type": "object", "properties": properties, "required": required, "additionalProperties": False})


def _string(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


_EMPLOYEE = _string("employee id")
_EMPLOYEES = {"type": "array", "items": {"type": "string"}, "description": f"up to {BATCH} employee ids"}
TOOLS = (
    _tool(
        "list_employees",
        "Employees of a department, one page at a time.",
        optional=("page",),
        department=_string("name of the department"),
        page={"type": "integer", "minimum": 1, "description": "page number, from 1"},
    ),
    _tool("get_records", "Employment kind and hourly rate of employees.", employees=_EMPLOYEES),
    _tool("get_timesheets", "Hours per week of the month under audit.", employees=_EMPLOYEES),
    _tool("get_approvals", "Whether overtime was approved.", employees=_EMPLOYEES),
    _tool("search_documents", "Find documents of the company by words.", query=_string("words to look for")),
    _tool("read_document", "Text of one document.", document=_string("document id")),
    _tool(
        "calculate",
        "Exact arithmetic with + - * / and parentheses; the results can be rounded to a multiple.",
        optional=("round_to", "mode"),
        expressions={"type": "array", "items": {"type": "string"}, "description": f"up to {BATCH} expressions"},
        round_to={"type": "number", "description": "round to a multiple of this"},
        mode={"type": "string", "enum": [str(mode) for mode in Rounding], "description": "how to round; half_up if not given"},
    ),
    _tool(
        "submit_pay",
        "Pay an employee for the month. Can't be undone.",
        employee=_EMPLOYEE,
        amount={"type": "number", "description": "sum due"},
        code=_string("pay code"),
    ),
    _tool("hold", "Hold an employee's pay. Can't be undone.", employee=_EMPLOYEE, reason=_string("reason code")),
    _tool("escalate", "Escalate an employee's case. Can't be undone.", employee=_EMPLOYEE, reason=_string("reason code")),
    _tool("finish", "End the audit when every employee is settled."),
)
"""The family tools of this size, in the order in which harnesses show them."""

CONDUCT = Conduct(
    writes=frozenset({"submit_pay", "hold", "escalate", TERMINAL_TOOL}), free=frozenset({"page", "query", "round_to", "mode"})
)
"""Rounding is a choice of the calculator's user; the rule that asks for it must be read all the same, because the sum depends on it."""


@dataclass(frozen=True, slots=True)
class StandardData:
    """What never changes in one instance; `people` in list order."""

    department: str
    month: str
    people: tuple[Person, ...]
    rules: Rules
    library: tuple[Document, ...]


class StandardWorld(PlainWorld):
    """See the module docstring. `state["settled"]` maps employee id -> the call that settled it, `[name, arguments]`."""

    toolbox: ClassVar[Toolbox] = Toolbox(TOOLS)
    _data: StandardData

    def tool_list_employees(self, department: str, page: int = 1) -> dict[str, Any]:
        """One page of ids and names."""
        if department.casefold() != self._data.department.casefold():
            raise ToolError("unknown department; use the name as in the task")
        shown = page_of(self._data.people, page, size=BATCH)
        people = [{"employee": one.id, "name": one.name} for one in shown.items]
        return {"employees": people, "page": shown.number, "pages": shown.count}

    def tool_get_records(self, employees: list[str]) -> dict[str, Any]:
        """Kind and rate."""
        people = self._batch(employees)
        return {"records": [{"employee": one.id, "kind": one.kind, "name": one.name, "rate": _plain(one.rate)} for one in people]}

    def tool_get_timesheets(self, employees: list[str]) -> dict[str, Any]:
        """Entries per week; a missing one says so."""
        return {"timesheets": [{"employee": one.id, "weeks": _weeks(one)} for one in self._batch(employees)]}

    def tool_get_approvals(self, employees: list[str]) -> dict[str, Any]:
        """Approval of overtime: approved, pending or none."""
        return {"approvals": [{"employee": one.id, "overtime": one.approval} for one in self._batch(employees)]}

    def tool_search_documents(self, query: str) -> dict[str, Any]:
        """Up to five hits, those with most of the words first."""
        return Library(self._data.library).search(query)

    def tool_read_document(self, document: str) -> dict[str, Any]:
        """Title and text."""
        return Library(self._data.library).read(document)

    def tool_calculate(self, expressions: list[str], round_to: float | None = None, mode: str = "half_up") -> dict[str, Any]:
        """Values in the order of the expressions."""
        self._check_batch(expressions, "expressions")
        if round_to is not None and not 0.001 <= round_to <= 1000:
            raise ToolError("bad arguments: round_to must lie between 0.001 and 1000")
        return {"values": [_calculate(one, round_to, Rounding(mode)) for one in expressions]}

    def tool_submit_pay(self, employee: str, amount: float, code: str) -> dict[str, Any]:
        """Pay; can't be taken back."""
        return self._settle(employee, "submit_pay", {"employee": employee, "amount": amount, "code": code})

    def tool_hold(self, employee: str, reason: str) -> dict[str, Any]:
        """Hold; can't be taken back."""
        return self._settle(employee, "hold", {"employee": employee, "reason": reason})

    def tool_escalate(self, employee: str, reason: str) -> dict[str, Any]:
        """Escalate; can't be taken back."""
        return self._settle(employee, "escalate", {"employee": employee, "reason": reason})

    def grade(self) -> Grade:
        """One checkpoint per employee and `finished`; see `grade_settlements`."""
        settled = self._state["settled"]
        problems = {one.id: _problem(settling_call(self._data.rules, one), settled.get(one.id)) for one in self._data.people}
        return grade_settlements(problems, finished=self.finished)

    def reveal(self) -> StandardFacts:
        """See `facts`."""
        settled = {employee: ToolCall(name, arguments) for employee, (name, arguments) in self._state["settled"].items()}
        return StandardFacts(self._data, MappingProxyType(settled))

    def _settle(self, employee: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        settled = self._state["settled"]
        if self._person(employee).id in settled:
            raise ToolError(f"{employee} is already settled")
        settled[employee] = [name, arguments]
        return {"ok": True}

    def _batch(self, employees: list[str]) -> list[Person]:
        self._check_batch(employees, "employees")
        return [self._person(employee) for employee in dict.fromkeys(employees)]

    def _check_batch(self, items: Sequence[_Item], name: str) -> None:
        if not 1 <= len(items) <= BATCH:
            raise ToolError(f"bad arguments: {name} takes 1 to {BATCH} entries")

    def _person(self, employee: str) -> Person:
        for one in self._data.people:
            if one.id == employee:
                return one
        raise ToolError("unknown employee; list_employees gives ids")


def _weeks(person: Person) -> list[dict[str, Any]]:
    entries = enumerate(person.weeks, start=1)
    return [{"week": week, "hours": "missing" if hours is None else _plain(hours)} for week, hours in entries]


def _plain(number: float) -> int | float:
    return int(number) if number == int(number) else number


def _calculate(expression: str, step: float | None, mode: Rounding) -> int | float:
    try:
        value = evaluate(expression)
    except ValueError as error:
        raise ToolError(f"bad arguments: {error}") from None
    value = value if step is None else round_to(value, Fraction(str(step)), mode)
    if abs(value) > MAX_INTEGER:
        raise ToolError("bad arguments: a value is too large")
    return plain_number(value)


def _problem(expected: ToolCall, settled: list[Any] | None) -> str | None:
    """What is wrong, without the answer; None when nothing is."""
    if settled is None:
        return NOT_SETTLED
    name, arguments = settled
    if name != expected.name:
        if name == "submit_pay":
            return "should not have been paid"
        return "should have been paid" if expected.name == "submit_pay" else "settled in a wrong way"
    if name != "submit_pay":
        return None if arguments == expected.arguments else "settled for a wrong reason"
    if arguments["amount"] != expected.arguments["amount"]:
        return "wrong amount"
    return None if arguments == expected.arguments else "paid with a wrong code"


@dataclass(frozen=True, slots=True)
class StandardFacts:
    """The whole truth about a standard world, for policies and demonstrations only: no tool, harness or proposer gets one."""

    data: StandardData
    settled: MappingProxyType[str, ToolCall]

    @property
    def unsettled(self) -> tuple[Person, ...]:
        """Employees still to be handled, in list order."""
        return tuple(one for one in self.data.people if one.id not in self.settled)

    @property
    def wrong(self) -> tuple[Person, ...]:
        """Employees settled wrongly: with one of them, success is out of reach."""
        done = (one for one in self.data.people if one.id in self.settled)
        return tuple(one for one in done if self.settled[one.id] != settling_call(self.data.rules, one))


def facts(world: World) -> StandardFacts:
    """Look behind the tools of a standard world. Raises `ConfigError` for a world of another kind."""
    if not isinstance(world, StandardWorld):
        raise ConfigError(
            "only a payroll standard world has standard facts", seen=type(world).__name__, fix="open it with the payroll family"
        )
    return world.reveal()


def open_standard(instance: TaskInstance) -> StandardWorld:
    """Generate and open one instance. Raises `ConfigError` for an unknown template."""
    template = TEMPLATES.get(instance.template)
    if template is None:
        raise ConfigError("unknown payroll template", seen=instance.template, fix=nearest(instance.template, TEMPLATES))
    random = Random(derive_seed(instance.family, instance.size, instance.template, instance.stream, instance.seed))
    department, month = random.choice(_DEPARTMENTS), random.choice(_MONTHS)
    rules = draw_rules(random, template.atoms)
    data = StandardData(department, month, _people(random, rules), rules, documents(random, rules, f"{month} 2026", draft=template.draft))
    wording = template.wording.format(month=month, department=department)
    return StandardWorld(instance, instruction=wording, data=data, state={"settled": {}})


def _people(random: Random, rules: Rules) -> tuple[Person, ...]:
    """A department in which each active rule decides at least one case, and overtime is paid at least once."""
    count = random.randint(max(6, len(rules.atoms) + 2), 14)
    makers: list[Callable[[Random, Rules, Person], Person]] = [_overtime, *(_CASES[atom] for atom, _ in rules.atoms)]
    makers += [random.choice((_ordinary, _ordinary, _overtime, *makers)) for _ in range(count - len(makers))]
    random.shuffle(makers)
    ids = random.sample(range(1000, 10000), count)
    names = random.sample([f"{first} {last}" for first in _FIRST for last in _LAST], count)
    return tuple(
        make(random, rules, _blank(random, rules, f"E{number}", name)) for make, number, name in zip(makers, ids, names, strict=True)
    )


def _blank(random: Random, rules: Rules, employee: str, name: str) -> Person:
    """An employee whom no rule stops: of any kind, within all limits."""
    kind = random.choices(KINDS, (5, 2, 2, 2))[0]
    return _of_kind(random, rules, kind, Person(employee, name, kind, 0.0, (), random.choice(("approved", "pending", "none"))))


def _of_kind(random: Random, rules: Rules, kind: str, person: Person) -> Person:
    low, high = _RATES[kind]
    weekly = {"intern": rules.intern_cap, "contractor": rules.contractor_cap / 4}.get(kind, min(rules.threshold, 40))
    weeks = tuple(weekly - random.randint(0, 24) / 4 for _ in range(4))
    return Person(person.id, person.name, kind, random.randint(low * 20, high * 20) / 20, weeks, person.approval)


def _ordinary(random: Random, rules: Rules, person: Person) -> Person:
    return person


def _overtime(random: Random, rules: Rules, person: Person) -> Person:
    base = _of_kind(random, rules, random.choice(rules.overtime_kinds), person)
    return replace(base, weeks=_longer(random, base.weeks, rules.threshold), approval="approved")


def _gap(random: Random, rules: Rules, person: Person) -> Person:
    place = random.randrange(4)
    return replace(person, weeks=tuple(None if index == place else hours for index, hours in enumerate(person.weeks)))


def _ceiling(random: Random, rules: Rules, person: Person) -> Person:
    return replace(person, rate=rules.rate_ceiling + random.randint(1, 800) / 4)


def _contractor(random: Random, rules: Rules, person: Person) -> Person:
    base = _of_kind(random, rules, "contractor", person)
    extra = random.randint(1, 12) / 4
    return replace(base, weeks=tuple(rules.contractor_cap / 4 + extra * sign for sign in (1, -1, 1, 0)))


def _intern(random: Random, rules: Rules, person: Person) -> Person:
    base = _of_kind(random, rules, "intern", person)
    return replace(base, weeks=_longer(random, base.weeks, rules.intern_cap))


def _unapproved(random: Random, rules: Rules, person: Person) -> Person:
    return replace(_overtime(random, rules, person), approval=random.choice(("pending", "none")))


_CASES: dict[Atom, Callable[[Random, Rules, Person], Person]] = {
    Atom.GAP: _gap,
    Atom.RATE_CEILING: _ceiling,
    Atom.CONTRACTOR_CAP: _contractor,
    Atom.INTERN_CAP: _intern,
    Atom.APPROVAL: _unapproved,
}


def _longer(random: Random, weeks: tuple[float | None, ...], limit: float) -> tuple[float | None, ...]:
    """One or two weeks beyond the limit by 0.25 to 8 hours."""
    places = random.sample(range(4), random.randint(1, 2))
    return tuple(limit + random.randint(1, 32) / 4 if index in places else hours for index, hours in enumerate(weeks))
