"""The refactoring family: its sizes behind one protocol.

The agent changes a small Python package as its rules want it. Behaviour tests run in the sandbox, structure is checked on syntax trees,
and a change that breaks behaviour, weakens tests or touches what it should not fails.
"""

from __future__ import annotations

from coevo.tasks.family import Size
from coevo.tasks.miniature_policy import mini_policy
from coevo.tasks.refactor import mini, standard
from coevo.tasks.refactor.policy import RefactorPolicy
from coevo.tasks.variants import Variant, VariantFamily

__all__ = ["family"]

_MINI = Variant(tuple(mini.TEMPLATES), mini.SPEC.tools, mini.SPEC.conduct, mini.open_mini, mini_policy)
_REPOSITORY = Variant(tuple(standard.TEMPLATES), standard.TOOLS, standard.CONDUCT, standard.open_repository, RefactorPolicy)

family = VariantFamily("refactor", "1", {Size.MINI: _MINI, Size.STANDARD: _REPOSITORY, Size.LONG: _REPOSITORY})
"""The one instance; stateless."""
