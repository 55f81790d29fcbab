"""Proposers and their look-up: an explicit table, entry points of the group `coevo.proposers`, dotted paths `module:attr`.

What is found is a factory: it takes a `ProposerSetup` and gives a proposer. A user's own is such a function in a package of theirs, named
by an entry point or in `evolve.proposer.kind`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import MappingProxyType

from coevo.config import ProposerConfig
from coevo.errors import ConfigError, PrerequisiteError, boundary, nearest
from coevo.evolve.catalogue import OPERATORS, CatalogueProposer
from coevo.evolve.llm import LLMProposer, ProposerModel
from coevo.evolve.operators import CATALOGUE
from coevo.evolve.proposals import ProposalRecord
from coevo.evolve.propose import Proposer
from coevo.evolve.recorded import RecordedProposer
from coevo.plugins import import_path, plugin_path

__all__ = ["ENTRY_POINT_GROUP", "PROPOSERS", "ProposerFactory", "ProposerSetup", "catalogue", "llm", "load_proposer", "recorded"]

ENTRY_POINT_GROUP = "coevo.proposers"
"""Entry-point group in which users' packages name their proposers."""

PROPOSERS = MappingProxyType(
    {
        "catalogue": "coevo.evolve.proposers:catalogue",
        "llm": "coevo.evolve.proposers:llm",
        "recorded": "coevo.evolve.proposers:recorded",
    }
)
"""Proposers of this package: name -> dotted path of the factory."""


def _no_model() -> ProposerModel:
    raise PrerequisiteError("this proposer needs a model", seen="none was set up", fix="set evolve.proposer.model and the model it names")


def _no_records() -> Iterable[ProposalRecord]:
    return ()


@dataclass(frozen=True, slots=True)
class ProposerSetup:
    """What a factory may use.

    Attributes:
        config: The run's settings.
        names: Names that new tools may get, in order of preference: a model with a closed vocabulary must know them.
        model: Gives the model that thinks; called only by proposers that need one, since it may start engines.
        records: Gives the proposals of `config.log`.
    """

    config: ProposerConfig
    names: tuple[str, ...]
    model: Callable[[], ProposerModel] = _no_model
    records: Callable[[], Iterable[ProposalRecord]] = _no_records


ProposerFactory = Callable[[ProposerSetup], Proposer]


def catalogue(setup: ProposerSetup) -> Proposer:
    """The catalogue, with the operators that the configuration names. Raises `ConfigError` for an unknown operator."""
    names = setup.config.operators
    if names is None:
        return CatalogueProposer(setup.names, operators=OPERATORS)
    for name in names:
        if name not in CATALOGUE:
            raise ConfigError("unknown operator in evolve.proposer.operators", seen=name, fix=nearest(name, CATALOGUE))
    return CatalogueProposer(setup.names, operators=[CATALOGUE[name] for name in names])


def llm(setup: ProposerSetup) -> Proposer:
    """The LLM proposer."""
    config = setup.config
    return LLMProposer(setup.model(), agents=config.agents, edits=config.edits, max_turns=config.max_turns)


def recorded(setup: ProposerSetup) -> Proposer:
    """The recorded proposer. Raises `ConfigError` for an empty log."""
    return RecordedProposer(setup.records())


def load_proposer(setup: ProposerSetup) -> Proposer:
    """The proposer that `setup.config.kind` names.

    Raises:
        ConfigError: Unknown name (with the nearest known one), a path that can't be imported, or what it gives is no proposer.
    """
    kind = setup.config.kind
    path = plugin_path(kind, PROPOSERS, group=ENTRY_POINT_GROUP, kind="proposer")
    with boundary(ConfigError, f"the proposer {kind!r} could not be made", fix="use a known name or an importable module:attr"):
        made = import_path(path)(setup)
    if not callable(getattr(made, "propose", None)) or not isinstance(getattr(made, "name", None), str):
        raise ConfigError(f"{path} gives no proposer", seen=type(made).__name__, fix="implement coevo.evolve.propose.Proposer")
    found: Proposer = made
    return found
