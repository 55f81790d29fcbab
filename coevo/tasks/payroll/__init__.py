"""Payroll auditing."""

from coevo.tasks.payroll.family import PayrollFamily, family

__all__ = ["PayrollFamily", "family"]
