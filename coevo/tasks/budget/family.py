"""The budget family: decide a unit's spending requests under policies that stand in documents, and close the round."""

from __future__ import annotations

from coevo.tasks.budget import generator, mini, standard
from coevo.tasks.budget.agenda import budget_policy
from coevo.tasks.family import Size
from coevo.tasks.miniature_policy import mini_policy
from coevo.tasks.variants import Variant, VariantFamily

__all__ = ["BudgetFamily", "family"]

_ROUND = Variant(tuple(generator.TEMPLATES), standard.TOOLS, standard.CONDUCT, generator.open_budget, budget_policy)
_VARIANTS = {
    Size.MINI: Variant(tuple(mini.TEMPLATES), mini.SPEC.tools, mini.SPEC.conduct, mini.open_mini, mini_policy),
    Size.STANDARD: _ROUND,
    Size.LONG: _ROUND,
}


class BudgetFamily(VariantFamily):
    """See the module docstring."""

    def __init__(self) -> None:
        super().__init__("budget", "1", _VARIANTS)


family = BudgetFamily()
"""The one instance; stateless."""
