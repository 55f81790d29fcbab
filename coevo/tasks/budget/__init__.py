"""Budget approval."""

from coevo.tasks.budget.family import BudgetFamily, family

__all__ = ["BudgetFamily", "family"]
