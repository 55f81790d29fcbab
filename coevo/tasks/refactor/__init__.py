"""Code refactoring on small Python packages that live in memory."""

from __future__ import annotations

from coevo.tasks.refactor.family import family

__all__ = ["family"]
