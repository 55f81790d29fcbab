"""Stock alerting."""

from coevo.tasks.stock.family import StockFamily, family

__all__ = ["StockFamily", "family"]
