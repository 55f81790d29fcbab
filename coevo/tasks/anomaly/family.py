"""The anomaly family: check an area's sensors, tell faults of the plant from faults of sensors, ticket, silence or accept, and log."""

from __future__ import annotations

from coevo.tasks.anomaly import generator, mini, standard
from coevo.tasks.anomaly.agenda import anomaly_policy
from coevo.tasks.family import Size
from coevo.tasks.miniature_policy import mini_policy
from coevo.tasks.variants import Variant, VariantFamily

__all__ = ["AnomalyFamily", "family"]

_CHECK = Variant(tuple(generator.TEMPLATES), standard.TOOLS, standard.CONDUCT, generator.open_anomaly, anomaly_policy)
_VARIANTS = {
    Size.MINI: Variant(tuple(mini.TEMPLATES), mini.SPEC.tools, mini.SPEC.conduct, mini.open_mini, mini_policy),
    Size.STANDARD: _CHECK,
    Size.LONG: _CHECK,
}


class AnomalyFamily(VariantFamily):
    """See the module docstring."""

    def __init__(self) -> None:
        super().__init__("anomaly", "1", _VARIANTS)


family = AnomalyFamily()
"""The one instance; stateless."""
