"""IoT anomaly detection."""

from coevo.tasks.anomaly.family import AnomalyFamily, family

__all__ = ["AnomalyFamily", "family"]
