"""The miniature payroll world: two to four employees, one sum each, one house rule that no message states (contractors are escalated).

Texts use the closed vocabulary of `coevo.mini.tokenizer`; everything fits about 1,000 of its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn

from coevo.chat import ToolCall, ToolSpec
from coevo.errors import ConfigError, ToolError, nearest
from coevo.identity import derive_seed
from coevo.records import Grade
from coevo.tasks.family import TaskInstance, World
from coevo.tasks.payroll.grading import grade_settlements
from coevo.tasks.world import MAX_INTEGER, PlainWorld, Toolbox

__all__ = ["CODES", "TEMPLATES", "TOOLS", "Employee", "MiniData", "MiniFacts", "MiniWorld", "facts", "open_mini", "settling_call"]

CODES = MappingProxyType({"staff": "REG", "intern": "INT"})
"""Pay code per employment kind; a contractor has none, because a contractor is never paid here."""

_KINDS = ("staff", "contractor", "intern")


@dataclass(frozen=True, slots=True)
class Template:
    """One wording with its mix of employment kinds.

    Attributes:
        wording: Instruction with the slot `{department}`.
        mix: Weights of staff, contractor, intern.
        count: Smallest and largest number of employees.
    """

    wording: str
    mix: tuple[float, float, float]
    count: tuple[int, int] = (2, 4)


TEMPLATES = MappingProxyType(
    {
        "routine": Template("audit payroll of department {department} .", (0.72, 0.12, 0.16)),
        "interns": Template("pay every employee of department {department} .", (0.40, 0.12, 0.48)),
        "vendors": Template("review the payroll of department {department} .", (0.50, 0.36, 0.14)),
        "timesheets": Template("check time sheets of department {department} .", (0.64, 0.18, 0.18)),
        "month": Template("close the month for department {department} .", (0.60, 0.15, 0.25)),
        "team": Template("please handle pay for the team in department {department} .", (0.34, 0.33, 0.33), (3, 4)),
        "small": Template("settle department {department} .", (0.55, 0.20, 0.25), (2, 2)),
        "week": Template("run payroll this week for all people in department {department} .", (0.70, 0.10, 0.20), (3, 4)),
        "open": Template("process open items of department {department} .", (0.50, 0.25, 0.25)),
        "sheets": Template("audit all timesheets in department {department} .", (0.60, 0.25, 0.15)),
    }
)
"""Seeded templates; a run of diversity d draws from the first d."""


def _tool(name: str, description: str, **properties: dict[str, Any]) -> ToolSpec:
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return ToolSpec(name, description, schema)


TOOLS = (
    _tool("list_employees", "employees of a department", department={"type": "string"}),
    _tool("get_record", "record of an employee", employee={"type": "string"}),
    _tool("calc", "hours and rate to amount", hours={"type": "integer"}, rate={"type": "integer"}),
    _tool(
        "submit_pay",
        "pay an employee",
        employee={"type": "string"},
        amount={"type": "integer"},
        code={"type": "string", "enum": ["REG", "INT", "CON"]},
    ),
    _tool("escalate", "escalate an employee", employee={"type": "string"}),
    _tool("finish", "all done"),
)
"""The family tools of this size, in the order in which harnesses show them."""


@dataclass(frozen=True, slots=True)
class Employee:
    """One record. `hours` 20 to 59, `rate` 5 to 9, so the amount has three digits and equals neither."""

    id: str
    kind: str
    hours: int
    rate: int

    @property
    def amount(self) -> int:
        """The sum due: 100 to 531."""
        return self.hours * self.rate


@dataclass(frozen=True, slots=True)
class MiniData:
    """What never changes in one instance."""

    department: str
    employees: tuple[Employee, ...]


def settling_call(employee: Employee) -> ToolCall:
    """The one right way to settle an employee: for the grader, for policies and for demonstrations; no tool calls it."""
    if employee.kind == "contractor":
        return ToolCall("escalate", {"employee": employee.id})
    return ToolCall("submit_pay", {"employee": employee.id, "amount": employee.amount, "code": CODES[employee.kind]})


class MiniWorld(PlainWorld):
    """See the module docstring. `state["settled"]` maps employee id -> the call that settled it, `[name, arguments]`."""

    toolbox: ClassVar[Toolbox] = Toolbox(TOOLS, terse=True)
    _data: MiniData

    def tool_list_employees(self, department: str) -> dict[str, Any]:
        """Ids in list order."""
        if department != self._data.department:
            raise ToolError("unknown department")
        return {"employees": [one.id for one in self._data.employees]}

    def tool_get_record(self, employee: str) -> dict[str, Any]:
        """One record."""
        one = self._employee(employee)
        return {"employee": one.id, "kind": one.kind, "hours": one.hours, "rate": one.rate}

    def tool_calc(self, hours: int, rate: int) -> dict[str, Any]:
        """The product."""
        value = hours * rate
        if abs(value) > MAX_INTEGER:
            raise ToolError("bad arguments")
        return {"value": value}

    def tool_submit_pay(self, employee: str, amount: int, code: str) -> dict[str, Any]:
        """Pay; can't be taken back."""
        return self._settle(employee, "submit_pay", {"employee": employee, "amount": amount, "code": code})

    def tool_escalate(self, employee: str) -> dict[str, Any]:
        """Escalate; can't be taken back."""
        return self._settle(employee, "escalate", {"employee": employee})

    def grade(self) -> Grade:
        """One checkpoint per employee and `finished`; see `grade_settlements`."""
        settled = self._state["settled"]
        problems = {one.id: _problem(settling_call(one), settled.get(one.id)) for one in self._data.employees}
        return grade_settlements(problems, finished=self.finished)

    def reveal(self) -> MiniFacts:
        """See `facts`."""
        settled = {employee: ToolCall(name, arguments) for employee, (name, arguments) in self._state["settled"].items()}
        return MiniFacts(self._data.department, self._data.employees, MappingProxyType(settled))

    def _settle(self, employee: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        settled = self._state["settled"]
        if self._employee(employee).id in settled:
            raise ToolError("already settled")
        settled[employee] = [name, arguments]
        return {"ok": True}

    def _employee(self, employee: str) -> Employee:
        for one in self._data.employees:
            if one.id == employee:
                return one
        raise ToolError("unknown employee")


def _problem(expected: ToolCall, settled: list[Any] | None) -> str | None:
    """What is wrong, without the answer; None when nothing is."""
    if settled is None:
        return "not settled"
    name, arguments = settled
    if name != expected.name:
        return "should not have been paid" if name == "submit_pay" else "should have been paid"
    if name == "submit_pay" and arguments["amount"] != expected.arguments["amount"]:
        return "wrong amount"
    return None if arguments == expected.arguments else "paid with a wrong code"


@dataclass(frozen=True, slots=True)
class MiniFacts:
    """The whole truth about a mini world, for policies and demonstrations only: no tool, harness or proposer gets one.

    Attributes:
        department: 'D' and two digits.
        employees: In list order.
        settled: Employee id -> the call that settled it, right or wrong.
    """

    department: str
    employees: tuple[Employee, ...]
    settled: MappingProxyType[str, ToolCall]

    @property
    def unsettled(self) -> tuple[Employee, ...]:
        """Employees still to be handled, in list order."""
        return tuple(one for one in self.employees if one.id not in self.settled)

    @property
    def wrong(self) -> tuple[Employee, ...]:
        """Employees settled wrongly: with one of them, success is out of reach."""
        return tuple(one for one in self.employees if one.id in self.settled and self.settled[one.id] != settling_call(one))

    def employee(self, employee: str) -> Employee:
        """One employee by id. Raises `KeyError`."""
        return {one.id: one for one in self.employees}[employee]


def facts(world: World) -> MiniFacts:
    """Look behind the tools of a mini world. Raises `ConfigError` for a world of another kind."""
    if not isinstance(world, MiniWorld):
        raise ConfigError("only a payroll mini world has mini facts", seen=type(world).__name__, fix="open it with the payroll family")
    return world.reveal()


def open_mini(instance: TaskInstance) -> MiniWorld:
    """Generate and open one instance. Raises `ConfigError` for an unknown template."""
    template = TEMPLATES.get(instance.template)
    if template is None:
        _unknown(instance.template)
    random = Random(derive_seed(instance.family, instance.size, instance.template, instance.stream, instance.seed))
    department = f"D{random.randint(10, 99)}"
    ids = random.sample(range(100, 1000), random.randint(*template.count))
    kinds = random.choices(_KINDS, template.mix, k=len(ids))
    if set(kinds) == {"contractor"}:
        # Somebody must be paid, or an agent that escalates everyone unread would succeed.
        kinds[-1] = "staff"
    employees = tuple(
        Employee(f"E{number}", kind, random.randint(20, 59), random.randint(5, 9)) for number, kind in zip(ids, kinds, strict=True)
    )
    return MiniWorld(
        instance,
        instruction=template.wording.format(department=department),
        data=MiniData(department, employees),
        state={"settled": {}},
    )


def _unknown(template: str) -> NoReturn:
    raise ConfigError("unknown payroll template", seen=template, fix=nearest(template, TEMPLATES))
