"""The miniature of payroll: employees of a department, hours times rate, and contractors, who are escalated and never paid."""

from __future__ import annotations

import operator
from types import MappingProxyType

from coevo.tasks.family import TaskInstance
from coevo.tasks.miniature import Miniature, MiniTemplate, MiniWorld, Number, Tool, open_miniature

__all__ = ["CODES", "SPEC", "TEMPLATES", "WORDS", "PayrollMini", "open_mini"]

CODES = MappingProxyType({"staff": "REG", "intern": "INT"})
"""Pay code per employment kind; a contractor has none, because a contractor is never paid here."""

TEMPLATES = MappingProxyType(
    {
        "routine": MiniTemplate("audit payroll of department {queue} .", (0.72, 0.12, 0.16)),
        "interns": MiniTemplate("pay every employee of department {queue} .", (0.40, 0.12, 0.48)),
        "vendors": MiniTemplate("review the payroll of department {queue} .", (0.50, 0.36, 0.14)),
        "timesheets": MiniTemplate("check time sheets of department {queue} .", (0.64, 0.18, 0.18)),
        "month": MiniTemplate("close the month for department {queue} .", (0.60, 0.15, 0.25)),
        "team": MiniTemplate("please handle pay for the team in department {queue} .", (0.34, 0.33, 0.33), (3, 4)),
        "small": MiniTemplate("settle department {queue} .", (0.55, 0.20, 0.25), (2, 2)),
        "week": MiniTemplate("run payroll this week for all people in department {queue} .", (0.70, 0.10, 0.20), (3, 4)),
        "open": MiniTemplate("process open items of department {queue} .", (0.50, 0.25, 0.25)),
        "sheets": MiniTemplate("audit all timesheets in department {queue} .", (0.60, 0.25, 0.15)),
        "staff": MiniTemplate("pay the staff of department {queue} .", (0.80, 0.10, 0.10)),
        "hours": MiniTemplate("check hours and rate of every employee in department {queue} .", (0.66, 0.12, 0.22)),
        "left": MiniTemplate("settle items left in department {queue} .", (0.45, 0.30, 0.25), (2, 3)),
        "pending": MiniTemplate("handle pending pay for department {queue} .", (0.52, 0.28, 0.20)),
        "records": MiniTemplate("check each record of department {queue} and settle it .", (0.58, 0.22, 0.20), (3, 4)),
        "last": MiniTemplate("run the last payroll of the month for department {queue} .", (0.62, 0.16, 0.22)),
        "people": MiniTemplate("please pay all people of department {queue} .", (0.46, 0.20, 0.34)),
        "again": MiniTemplate("review pay in department {queue} again .", (0.42, 0.38, 0.20)),
        "pair": MiniTemplate("settle pay for new people in department {queue} .", (0.35, 0.20, 0.45), (2, 2)),
        "full": MiniTemplate("audit and settle every item of payroll for department {queue} .", (0.36, 0.31, 0.33), (4, 4)),
    }
)
"""Seeded templates; a run of diversity d draws from the first d."""

SPEC = Miniature(
    family="payroll",
    queue="department",
    items="employees",
    item="employee",
    letters=("D", "E"),
    kinds=("staff", "contractor", "intern"),
    codes=CODES,
    decoys=("CON",),
    numbers=(Number("hours", 20, 59), Number("rate", 5, 9)),
    formula=operator.mul,
    listing=Tool("list_employees", "employees of a department"),
    record=Tool("get_record", "record of an employee"),
    compute=Tool("calc", "hours and rate to amount"),
    settle=Tool("submit_pay", "pay an employee"),
    decline=Tool("escalate", "escalate an employee"),
    declined="note contractor must be escalated .",
    templates=TEMPLATES,
    past="paid",
    steps=("records", "pay", "submit"),
)
"""Sums have three digits, 100 to 531, and equal neither hours nor rate."""

WORDS: tuple[str, ...] = ()
"""Words beyond those of the embedded tokenizer: none."""


class PayrollMini(MiniWorld):
    """The world of `SPEC`."""

    spec = SPEC
    toolbox = SPEC.toolbox()


def open_mini(instance: TaskInstance) -> MiniWorld:
    """Generate and open one instance. Raises `ConfigError` for an unknown template."""
    return open_miniature(PayrollMini, instance)
