"""The stock family: run a desk's alert round, alert the right person at the right severity, mute what must not be alerted, report."""

from __future__ import annotations

from coevo.tasks.family import Size
from coevo.tasks.miniature_policy import mini_policy
from coevo.tasks.stock import generator, mini, standard
from coevo.tasks.stock.agenda import stock_policy
from coevo.tasks.variants import Variant, VariantFamily

__all__ = ["StockFamily", "family"]

_ROUND = Variant(tuple(generator.TEMPLATES), standard.TOOLS, standard.CONDUCT, generator.open_stock, stock_policy)
_VARIANTS = {
    Size.MINI: Variant(tuple(mini.TEMPLATES), mini.SPEC.tools, mini.SPEC.conduct, mini.open_mini, mini_policy),
    Size.STANDARD: _ROUND,
    Size.LONG: _ROUND,
}


class StockFamily(VariantFamily):
    """See the module docstring."""

    def __init__(self) -> None:
        super().__init__("stock", "1", _VARIANTS)


family = StockFamily()
"""The one instance; stateless."""
