"""The LLM proposer on a real OpenAI-compatible server: vLLM's own, with a random tiny model, started and ended here.

1. The agent plays in the workshop through schema-constrained decoding, as in `coevo run`; it ends graded and its tokens are counted.
2. Whatever it submitted holds the proposer's contract; a random model submits nothing, and that is no error.
3. The call is kept: asked again, the server is not.

The model is random bytes: only the wire is proven, no quality.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from coevo.evolve.llm import LLMProposer, ProposerModel
from coevo.evolve.proposals import ProposalLog, ProposalRecord
from coevo.evolve.propose import Evidence
from coevo.evolve.recorded import KeptProposer
from coevo.harness.lint import lint
from coevo.records import Status
from coevo.rewrite.llm import ExpertPlayerSource, LLMRecipe
from coevo.store import LocalSource
from tests.integration.llm_server import Server, serve
from tests.unit.shelf import FAMILY, base, mixed_episodes

pytest.importorskip("vllm")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A byte is a token of this model, and the workshop's prompt, schemas and four results take about 30,000."""
    with serve(tmp_path_factory.mktemp("server"), context=65_536, kv_cache="256M") as started:
        yield started


def test_a_proposal_over_a_real_server(server: Server, tmp_path: Path) -> None:
    """Promises 1 to 3."""
    recipe = LLMRecipe(server.source(), temperature=1.0, max_tokens=700)
    model = ProposerModel(ExpertPlayerSource(recipe, "hermes"), sampling=recipe.sampling)
    paid: list[ProposalRecord] = []
    log = ProposalLog(LocalSource(str(tmp_path)).open(), "run/proposals")
    kept = KeptProposer(LLMProposer(model, agents=2, max_turns=4), log, on_paid=paid.append)
    evidence = Evidence(mixed_episodes()[6:12], FAMILY)
    edits = kept.propose(base(), evidence, Random(3))
    (record,) = paid
    print("proposed:", len(edits), "by", [(one.status, len(one.turns), one.usage) for one in record.episodes])
    assert len(record.episodes) == 2
    for episode in record.episodes:
        assert episode.status is not Status.INFRA_ERROR, episode.error
        assert episode.grade is not None
        assert 1 <= len(episode.turns) <= 4
    assert record.usage.prompt_tokens > 2 * 4000
    assert record.usage.completion_tokens > 0
    assert any(turn.call is not None for episode in record.episodes for turn in episode.turns), "constrained decoding gave no call"
    assert all(edit.bundle.parent == base().hash and lint(edit.bundle, FAMILY) == [] for edit in edits)
    assert kept.propose(base(), evidence, Random(3)) == edits
    assert len(paid) == 1
