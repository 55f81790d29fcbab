"""The contract of `coevo.evolve.propose.Proposer`: sound, citing, reproducible, and blind to everything but the search stream (I8)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from coevo.errors import ConfigError
from coevo.evolve.catalogue import CatalogueProposer
from coevo.evolve.propose import Evidence, Proposer
from coevo.harness.lint import lint
from tests.unit.shelf import FAMILY, base, mixed_episodes, play_script

PROPOSERS: dict[str, Callable[[], Proposer]] = {"catalogue": lambda: CatalogueProposer(("weigh", "price", "rank"))}


@pytest.fixture(params=PROPOSERS.values(), ids=PROPOSERS.keys())
def proposer(request: pytest.FixtureRequest) -> Proposer:
    made: Proposer = request.param()
    return made


@pytest.mark.parametrize("syntax", ["mini", "json"])
def test_edits_are_sound(proposer: Proposer, syntax: str) -> None:
    episodes = mixed_episodes(syntax=syntax)
    turns = {episode.id: len(episode.turns) for episode in episodes}
    edits = proposer.propose(base(), Evidence(episodes, FAMILY), Random(1))
    assert edits
    assert len({edit.bundle.hash for edit in edits} | {base().hash}) == len(edits) + 1
    for edit in edits:
        assert edit.bundle.parent == base().hash
        assert lint(edit.bundle, FAMILY) == []
        assert edit.hypothesis
        assert edit.predicted_risks
        assert {episode_id for episode_id, _ in edit.evidence} == set(edit.predicted_fixes)
        for episode_id, turn in edit.evidence:
            assert 0 <= turn < turns[episode_id]
    assert proposer.propose(base(), Evidence(episodes, FAMILY), Random(1)) == edits


def test_no_evidence_no_edits(proposer: Proposer) -> None:
    assert proposer.propose(base(), Evidence((), FAMILY), Random(1)) == []


@pytest.mark.parametrize("stream", ["selection", "test", "pretrain"])
def test_other_streams_can_not_be_given(stream: str) -> None:
    """I8."""
    with pytest.raises(ConfigError, match="may not see"):
        Evidence((play_script(0, [], stream=stream),), FAMILY)
