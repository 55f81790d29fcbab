"""The calculator as a tool: up to five expressions, exact, with optional rounding."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from coevo.chat import ToolSpec
from coevo.errors import ToolError
from coevo.tasks.payroll.arithmetic import Rounding, evaluate, plain_number, round_to
from coevo.tasks.world import MAX_INTEGER

__all__ = ["CALCULATE", "MAX_EXPRESSIONS", "calculate", "value_of"]

MAX_EXPRESSIONS = 5

CALCULATE = ToolSpec(
    "calculate",
    "Exact arithmetic with + - * / and parentheses; the results can be rounded to a multiple.",
    {
        "type": "object",
        "properties": {
            "expressions": {"type": "array", "items": {"type": "string"}, "description": f"up to {MAX_EXPRESSIONS} expressions"},
            "round_to": {"type": "number", "description": "round to a multiple of this"},
            "mode": {"type": "string", "enum": [str(mode) for mode in Rounding], "description": "how to round; half_up if not given"},
        },
        "required": ["expressions"],
        "additionalProperties": False,
    },
)
"""The tool's schema."""


def calculate(expressions: list[str], round_to: float | None = None, mode: str = "half_up") -> dict[str, Any]:
    """Values in the order of the expressions. Raises `ToolError` for anything that is no arithmetic."""
    if not 1 <= len(expressions) <= MAX_EXPRESSIONS:
        raise ToolError(f"bad arguments: expressions takes 1 to {MAX_EXPRESSIONS} entries")
    if round_to is not None and not 0.001 <= round_to <= 1000:
        raise ToolError("bad arguments: round_to must lie between 0.001 and 1000")
    return {"values": [value_of(one, round_to, Rounding(mode)) for one in expressions]}


def value_of(expression: str, step: float | None, mode: Rounding) -> int | float:
    """The value of one expression, rounded to a multiple of `step` if given. Raises `ToolError`, as `calculate`."""
    try:
        value = evaluate(expression)
    except ValueError as error:
        raise ToolError(f"bad arguments: {error}") from None
    value = value if step is None else round_to(value, Fraction(str(step)), mode)
    if abs(value) > MAX_INTEGER:
        raise ToolError("bad arguments: a value is too large")
    return plain_number(value)
