"""Outside suites behind the family protocol: optional packages, whose data stay in them."""

from __future__ import annotations
