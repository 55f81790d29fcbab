"""The payroll family: audit a department's payroll, pay what is due under the right code, hold or escalate what must not be paid."""

from __future__ import annotations

from coevo.tasks.family import Size
from coevo.tasks.miniature_policy import mini_policy
from coevo.tasks.payroll import long, mini, standard
from coevo.tasks.payroll.standard_policy import StandardPolicy
from coevo.tasks.variants import Variant, VariantFamily

__all__ = ["PayrollFamily", "family"]

_VARIANTS = {
    Size.MINI: Variant(tuple(mini.TEMPLATES), mini.SPEC.tools, mini.SPEC.conduct, mini.open_mini, mini_policy),
    Size.STANDARD: Variant(tuple(standard.TEMPLATES), standard.TOOLS, standard.CONDUCT, standard.open_standard, StandardPolicy),
    Size.LONG: Variant(tuple(standard.TEMPLATES), long.LONG_TOOLS, long.LONG_CONDUCT, long.open_long, StandardPolicy),
}


class PayrollFamily(VariantFamily):
    """See the module docstring."""

    def __init__(self) -> None:
        super().__init__("payroll", "1", _VARIANTS)


family = PayrollFamily()
"""The one instance; stateless."""
