"""The miniature of anomaly detection: sensors of a site with two probes each, their mean, and door sensors, which are silenced."""

from __future__ import annotations

from types import MappingProxyType

from coevo.tasks.family import TaskInstance
from coevo.tasks.miniature import Miniature, MiniTemplate, MiniWorld, Number, Tool, open_miniature

__all__ = ["CODES", "SPEC", "TEMPLATES", "WORDS", "AnomalyMini", "open_mini"]

CODES = MappingProxyType({"heat": "HVA", "pump": "MEC"})
"""Team code per kind of sensor; a door sensor has none, because nobody is sent for it here."""

TEMPLATES = MappingProxyType(
    {
        "routine": MiniTemplate("check every sensor of site {queue} .", (0.70, 0.14, 0.16)),
        "pumps": MiniTemplate("open a ticket for each sensor of site {queue} .", (0.38, 0.14, 0.48)),
        "doors": MiniTemplate("review the sensors of site {queue} .", (0.48, 0.38, 0.14)),
        "probes": MiniTemplate("check both probes in site {queue} .", (0.62, 0.18, 0.20)),
        "week": MiniTemplate("run the sensor check this week for site {queue} .", (0.66, 0.12, 0.22), (3, 4)),
        "team": MiniTemplate("please handle sensors for the team in site {queue} .", (0.34, 0.33, 0.33), (3, 4)),
        "small": MiniTemplate("settle site {queue} .", (0.55, 0.20, 0.25), (2, 2)),
        "open": MiniTemplate("process open items of site {queue} .", (0.50, 0.25, 0.25)),
        "alarm": MiniTemplate("handle every alarm in site {queue} .", (0.58, 0.22, 0.20)),
        "mean": MiniTemplate("review the mean of all sensors in site {queue} .", (0.60, 0.16, 0.24)),
        "heat": MiniTemplate("check heat in site {queue} .", (0.80, 0.10, 0.10)),
        "pending": MiniTemplate("handle pending tickets for site {queue} .", (0.52, 0.28, 0.20)),
        "left": MiniTemplate("settle what is left in site {queue} .", (0.45, 0.30, 0.25), (2, 3)),
        "month": MiniTemplate("close the month for site {queue} .", (0.60, 0.15, 0.25)),
        "records": MiniTemplate("check each record of site {queue} and settle it .", (0.56, 0.24, 0.20), (3, 4)),
        "last": MiniTemplate("run the last check of the month for site {queue} .", (0.64, 0.14, 0.22)),
        "night": MiniTemplate("please run the night check for site {queue} .", (0.44, 0.22, 0.34)),
        "again": MiniTemplate("review the alarm list of site {queue} again .", (0.42, 0.38, 0.20)),
        "pair": MiniTemplate("open tickets on new items in site {queue} .", (0.36, 0.20, 0.44), (2, 2)),
        "full": MiniTemplate("check and settle every sensor of site {queue} .", (0.36, 0.31, 0.33), (4, 4)),
    }
)
"""Seeded templates; a run of diversity d draws from the first d."""


def _mean(high: int, low: int) -> int:
    return (high + low) // 2


SPEC = Miniature(
    family="anomaly",
    queue="site",
    items="sensors",
    item="sensor",
    letters=("Z", "T"),
    kinds=("heat", "door", "pump"),
    codes=CODES,
    decoys=("ELE",),
    numbers=(Number("high", 500, 899), Number("low", 100, 399)),
    formula=_mean,
    listing=Tool("list_sensors", "sensors of a site"),
    record=Tool("get_probes", "probes of a sensor"),
    compute=Tool("get_mean", "high and low to mean"),
    settle=Tool("open_ticket", "ticket for a sensor"),
    decline=Tool("silence", "silence a sensor"),
    declined="note door must be silenced .",
    templates=TEMPLATES,
    past="ticketed",
    amount="mean",
    steps=("probes", "mean", "ticket"),
)
"""A mean has three digits, 300 to 649, and equals neither probe."""

WORDS = tuple(
    (
        "sensor sensors site ticket tickets probe probes both alarm mean heat door pump high low silence silenced night what "
        "get_probes get_mean list_sensors open_ticket HVA MEC ELE Z T"
    ).split()
)
"""Words beyond those of the embedded tokenizer."""


class AnomalyMini(MiniWorld):
    """The world of `SPEC`."""

    spec = SPEC
    toolbox = SPEC.toolbox()


def open_mini(instance: TaskInstance) -> MiniWorld:
    """Generate and open one instance. Raises `ConfigError` for an unknown template."""
    return open_miniature(AnomalyMini, instance)
