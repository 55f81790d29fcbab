"""The standard payroll world, for a real LLM: 6 to 14 employees in pages of five, time sheets and approvals apart, the rules in documents.

The instruction says only what to audit. The agent finds the rules in force among superseded ones and drafts, reads records in batches,
calculates, and settles each employee once: pay, hold or escalate. A careful run takes 20 to 40 calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from coevo.tasks.payroll.people import draw_people
from coevo.tasks.payroll.rulebook import (
    FIRST_ATOMS,
    Addition,
    Atom,
    Person,
    Rules,
    WidePerson,
    WideRules,
    documents,
    draw_rules,
    draw_wide_rules,
    settling_call,
)
from coevo.tasks.world import MAX_INTEGER, TERMINAL_TOOL, PlainWorld, Toolbox

__all__ = [
    "BATCH",
    "CONDUCT",
    "TEMPLATES",
    "TOOLS",
    "StandardData",
    "StandardFacts",
    "StandardWorld",
    "Template",
    "facts",
    "find_template",
    "open_standard",
    "record_fields",
]

BATCH = 5
"""Employees per page and per batched read."""

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Template:
    """One wording with the rules that apply.

    Attributes:
        wording: Instruction with the slots `{month}` and `{department}`.
        atoms: Rules that stop a payment.
        draft: A future version of the time rule lies on the shelf.
        additions: What changes a sum beside hours and overtime.
    """

    wording: str
    atoms: tuple[Atom, ...]
    draft: bool = False
    additions: tuple[Addition, ...] = ()

    @property
    def wide(self) -> bool:
        """It needs more than the first rules."""
        return bool(self.additions) or not set(self.atoms) <= set(FIRST_ATOMS)


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
        "full": Template("Do the complete {month} payroll audit for {department}.", FIRST_ATOMS, draft=True),
        "leavers": Template("{department} had some departures. Please run its {month} payroll.", (*_BASE, Atom.LEFT)),
        "bank": Template("Audit {department}'s payroll for {month} and release what can be paid.", (*_BASE, Atom.BANK)),
        "advances": Template(
            "Settle the {month} payroll of {department}; a few people got money early.", _BASE, additions=(Addition.ADVANCE,)
        ),
        "nights": Template("Please pay {department} for {month}, both shifts.", (*_BASE, Atom.APPROVAL), additions=(Addition.NIGHT,)),
        "limits": Template("Check and settle every {month} payment of {department}.", (*_BASE, Atom.LARGE_SUM)),
        "short_months": Template("Do the {month} payroll for {department}. Not everybody was here all month.", (*_BASE, Atom.FEW_HOURS)),
        "time_sheets": Template(
            "{department} handed in its {month} time sheets. Settle them.", (Atom.GAP, Atom.FEW_HOURS, Atom.INTERN_CAP), draft=True
        ),
        "master_data": Template(
            "Somebody changed master data in {department}. Audit the {month} payroll.", (Atom.BANK, Atom.RATE_CEILING, Atom.LEFT)
        ),
        "shift_plan": Template(
            "Close {month} for {department}: shifts, advances, everything.", (*_BASE, Atom.GAP), additions=tuple(Addition)
        ),
        "quarter": Template(
            "We need {department}'s {month} payroll before the quarter closes.",
            (*_BASE, Atom.APPROVAL, Atom.LARGE_SUM),
            draft=True,
            additions=(Addition.ADVANCE,),
        ),
        "juniors": Template("Audit {month} for {department}, a team with many juniors.", (Atom.INTERN_CAP, Atom.FEW_HOURS, Atom.LEFT)),
        "specialists": Template(
            "Please go over the {month} pay of {department}'s specialists and settle it.",
            (Atom.RATE_CEILING, Atom.LARGE_SUM, Atom.APPROVAL),
            additions=(Addition.NIGHT,),
        ),
        "takeover": Template("I took over {department}. Can you do its {month} payroll?", (*FIRST_ATOMS, Atom.LEFT, Atom.BANK), draft=True),
        "everything": Template(
            "Full audit of {department} for {month}, please; nothing may be paid wrongly.",
            tuple(Atom),
            draft=True,
            additions=tuple(Addition),
        ),
    }
)
"""Seeded templates; a run of diversity d draws from the first d."""

_DEPARTMENTS = ("Finance", "Operations", "Support", "Logistics", "Sales", "Engineering", "Legal", "Marketing", "Research", "Facilities")
_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December")


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

    @property
    def everybody(self) -> tuple[Person, ...]:
        """Everyone whose record can be read."""
        return self.people


class StandardWorld(PlainWorld):
    """See the module docstring. `state["settled"]` maps employee id -> the call that settled it, `[name, arguments]`."""

    toolbox: ClassVar[Toolbox] = Toolbox(TOOLS)
    _data: StandardData

    def __init__(self, instance: TaskInstance, *, instruction: str, data: StandardData, part_chars: int | None = None) -> None:
        super().__init__(instance, instruction=instruction, data=data, state={"settled": {}})
        self._library = Library(data.library, part_chars=part_chars)
        self._by_id = {one.id: one for one in data.everybody}

    def tool_list_employees(self, department: str, page: int = 1) -> dict[str, Any]:
        """One page of ids and names."""
        if department.casefold() != self._data.department.casefold():
            raise ToolError("unknown department; use the name as in the task")
        shown = page_of(self._data.people, page, size=BATCH)
        people = [{"employee": one.id, "name": one.name} for one in shown.items]
        return {"employees": people, "page": shown.number, "pages": shown.count}

    def tool_get_records(self, employees: list[str]) -> dict[str, Any]:
        """Kind and rate."""
        return {"records": [self._record_of(one) for one in self._batch(employees)]}

    def tool_get_timesheets(self, employees: list[str]) -> dict[str, Any]:
        """Entries per week; a missing one says so."""
        return {"timesheets": [{"employee": one.id, "weeks": _weeks(one)} for one in self._batch(employees)]}

    def tool_get_approvals(self, employees: list[str]) -> dict[str, Any]:
        """Approval of overtime: approved, pending or none."""
        return {"approvals": [{"employee": one.id, "overtime": one.approval} for one in self._batch(employees)]}

    def tool_search_documents(self, query: str) -> dict[str, Any]:
        """Up to five hits, those with most of the words first."""
        return self._library.search(query)

    def tool_read_document(self, document: str) -> dict[str, Any]:
        """Title and text."""
        return self._library.read(document)

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
        strays = dict.fromkeys(self.reveal().strays, "is not part of this audit and should not have been touched")
        return grade_settlements({**problems, **strays}, finished=self.finished)

    def reveal(self) -> StandardFacts:
        """See `facts`."""
        settled = {employee: ToolCall(name, arguments) for employee, (name, arguments) in self._state["settled"].items()}
        return StandardFacts(self._data, MappingProxyType(settled), self._library)

    def _record_of(self, one: Person) -> dict[str, Any]:
        more = record_fields(self._data.rules, one)
        return {"employee": one.id, "kind": one.kind, **more, "name": one.name, "rate": _plain(one.rate)}

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
        one = self._by_id.get(employee)
        if one is None:
            raise ToolError("unknown employee; list_employees gives ids")
        return one


def record_fields(rules: Rules, person: Person) -> dict[str, Any]:
    """Fields that a record has beside kind, name and rate, as far as a rule or addition reads them."""
    if not isinstance(rules, WideRules) or not isinstance(person, WidePerson):
        return {}
    active = {*dict(rules.atoms), *rules.additions}
    shown = {Addition.ADVANCE: "advance", Atom.BANK: "bank", Addition.NIGHT: "shift", Atom.LEFT: "status"}
    return {name: getattr(person, name) for one, name in shown.items() if one in active} | ({"lead": person.lead} if person.lead else {})


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
    library: Library

    @property
    def strays(self) -> tuple[str, ...]:
        """Settled employees who are not part of the audit."""
        own = {one.id for one in self.data.people}
        return tuple(employee for employee in self.settled if employee not in own)

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


def find_template(instance: TaskInstance) -> Template:
    """The template of an instance. Raises `ConfigError` with the nearest known name."""
    template = TEMPLATES.get(instance.template)
    if template is None:
        raise ConfigError("unknown payroll template", seen=instance.template, fix=nearest(instance.template, TEMPLATES))
    return template


def open_standard(instance: TaskInstance) -> StandardWorld:
    """Generate and open one instance. Raises `ConfigError` for an unknown template."""
    template = find_template(instance)
    random = Random(derive_seed(instance.family, instance.size, instance.template, instance.stream, instance.seed))
    department, month = random.choice(_DEPARTMENTS), random.choice(_MONTHS)
    rules = draw_wide_rules(random, template.atoms, template.additions) if template.wide else draw_rules(random, template.atoms)
    people = draw_people(random, rules)
    data = StandardData(department, month, people, rules, documents(random, rules, f"{month} 2026", draft=template.draft))
    wording = template.wording.format(month=month, department=department)
    return StandardWorld(instance, instruction=wording, data=data)
