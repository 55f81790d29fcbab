"""The contract of `coevo.evolve.propose.Proposer`: sound, citing, reproducible, and blind to everything but the search stream (I8).

The recorded proposer answers from `tests/data/proposals/shelf.jsonl`, which `test_llm_proposer.py` makes over HTTP.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from coevo.config import ProposerConfig
from coevo.errors import ConfigError, StoreError
from coevo.evolve.catalogue import CatalogueProposer
from coevo.evolve.llm import LLMProposer, ProposerModel
from coevo.evolve.operators import CATALOGUE
from coevo.evolve.proposals import EditRecord, ProposalLog, ProposalRecord, lineage_of
from coevo.evolve.propose import Edit, Evidence, PastEdit, PredictionScore, Proposer, score_predictions
from coevo.evolve.proposers import PROPOSERS as KNOWN
from coevo.evolve.proposers import ProposerSetup, load_proposer
from coevo.evolve.recorded import KeptProposer, RecordedProposer
from coevo.harness.bundle import HarnessBundle
from coevo.harness.lint import lint
from coevo.models.scripted import ScriptedSource
from coevo.store import LocalSource
from coevo.store.harnesses import HarnessStore
from tests.unit.shelf import FAMILY, base, mixed_episodes, play_script, solution
from tests.unit.workbench import thoughtful

LOG = Path(__file__).parents[1] / "data" / "proposals" / "shelf.jsonl"
NAMES = ("weigh", "price", "rank")


def writer(*, agents: int = 1) -> LLMProposer:
    return LLMProposer(ProposerModel(ScriptedSource(thoughtful, "remote:writer")), agents=agents)


PROPOSERS: dict[str, Callable[[Path], Proposer]] = {
    "catalogue": lambda _: CatalogueProposer(NAMES),
    "catalogue, all operators": lambda _: CatalogueProposer(NAMES, operators=list(CATALOGUE.values())),
    "llm": lambda _: writer(),
    "llm, three agents": lambda _: writer(agents=3),
    "recorded": lambda _: RecordedProposer(ProposalLog.read_lines(LOG)),
    "kept catalogue": lambda path: KeptProposer(CatalogueProposer(NAMES), ProposalLog(LocalSource(str(path)).open(), "run/proposals")),
    "kept llm": lambda path: KeptProposer(writer(), ProposalLog(LocalSource(str(path)).open(), "run/proposals")),
}


@pytest.fixture(params=PROPOSERS.values(), ids=PROPOSERS.keys())
def proposer(request: pytest.FixtureRequest, tmp_path: Path) -> Proposer:
    made: Proposer = request.param(tmp_path)
    return made


@pytest.mark.parametrize("syntax", ["mini", "json"])
def test_edits_are_sound(proposer: Proposer, syntax: str) -> None:
    episodes = mixed_episodes(syntax=syntax)
    known = {episode.id: episode for episode in episodes}
    edits = proposer.propose(base(), Evidence(episodes, FAMILY), Random(1))
    assert edits
    assert len({edit.bundle.hash for edit in edits} | {base().hash}) == len(edits) + 1
    for edit in edits:
        assert edit.bundle.parent == base().hash
        assert lint(edit.bundle, FAMILY) == []
        assert edit.hypothesis
        assert edit.predicted_risks
        assert EditRecord.of(edit, base()).edit(base()) == edit, "an edit is its typed changes"
        assert not any(known[name].success for name in edit.predicted_fixes)
        assert all(known[name].success for name in edit.predicted_regressions)
        for episode_id, turn in edit.evidence:
            assert not known[episode_id].success
            assert 0 <= turn < len(known[episode_id].turns)
    assert proposer.propose(base(), Evidence(episodes, FAMILY), Random(1)) == edits


def test_no_evidence_no_edits(proposer: Proposer) -> None:
    assert proposer.propose(base(), Evidence((), FAMILY), Random(1)) == []


@pytest.mark.parametrize("stream", ["selection", "test", "pretrain"])
def test_other_streams_can_not_be_given(stream: str) -> None:
    """I8."""
    with pytest.raises(ConfigError, match="may not see"):
        Evidence((play_script(0, [], stream=stream),), FAMILY)


class Counted:
    """A proposer that counts its calls, and proposes one edit that copies an id."""

    name = "counted"

    def __init__(self) -> None:
        self.calls = 0

    def propose(self, parent: HarnessBundle, evidence: Evidence, rng: Random) -> list[Edit]:
        self.calls += 1
        failed = next(episode for episode in evidence.episodes if not episode.success)
        book = failed.turns[0].result.split()[1]
        bundles = [parent.replace(system_prompt=f"you keep books . {text} ." + "\n") for text in (f"start with {book}", "look twice")]
        return [Edit("prompt", "copy", "it helps here", ((failed.id, 0),), (failed.id,), ("none",), bundle) for bundle in bundles]


def test_a_kept_call_is_made_once_and_screened(tmp_path: Path) -> None:
    """I4, I8: a resumed search asks nobody again; what copies from an instance is kept with its reason and goes no further."""
    inner, evidence, paid = Counted(), Evidence(mixed_episodes(), FAMILY), list[ProposalRecord]()
    log = ProposalLog(LocalSource(str(tmp_path)).open(), "run/proposals")
    (edit,) = KeptProposer(inner, log, on_paid=paid.append).propose(base(), evidence, Random(4))
    assert "look twice" in edit.bundle.system_prompt
    assert KeptProposer(inner, log, on_paid=paid.append).propose(base(), evidence, Random(4)) == [edit]
    assert (inner.calls, len(paid)) == (1, 1)
    (record,) = log
    assert [bool(one.refused) for one in record.edits] == [True, False]
    assert "identifier 'bk-" in record.edits[0].refused
    assert ProposalRecord.from_bytes(record.to_bytes()) == record
    KeptProposer(inner, log).propose(base(), evidence, Random(5))
    KeptProposer(inner, log).propose(base(), Evidence(evidence.episodes[1:], FAMILY), Random(4))
    KeptProposer(inner, log).propose(base(), Evidence(evidence.episodes, FAMILY, (PastEdit("prompt", "x", "y", "refused"),)), Random(4))
    assert inner.calls == 4, "another seed, other evidence and another past are other questions"


def test_lineage_rebuilds_every_candidate(tmp_path: Path) -> None:
    log = ProposalLog(LocalSource(str(tmp_path)).open(), "run/proposals")
    kept = KeptProposer(CatalogueProposer(NAMES), log)
    first = kept.propose(base(), Evidence(mixed_episodes(), FAMILY), Random(0))[0].bundle
    episodes = [play_script(seed, solution(seed), bundle=first) for seed in range(8)]
    episodes += [play_script(seed, [("survey", {"shelf": "S7"})] * 6, bundle=first) for seed in range(20, 23)]
    second = kept.propose(first, Evidence(tuple(episodes), FAMILY), Random(0))[0].bundle
    line = lineage_of(second.hash[:16], base(), log)
    assert [bundle.hash for _, bundle in line] == [base().hash, first.hash, second.hash]
    assert [edit.harness_hash if edit else None for edit, _ in line] == [None, first.hash, second.hash]
    crossed = first.replace(hooks={"h": "def after_tool(event, state):\n    return None\n"})
    shelf = HarnessStore(LocalSource(str(tmp_path)).open(), "run")
    for bundle in (base(), first, crossed, crossed):
        shelf.put(bundle)
    line = lineage_of(crossed.hash[:16], base(), log, shelf)
    assert [(edit is None, bundle) for edit, bundle in line] == [(True, base()), (False, first), (True, crossed)]
    with pytest.raises(ConfigError, match="no candidate has this hash"):
        lineage_of("0" * 64, base(), log)
    records = list(log)
    twin = records[0].edits[0].model_copy(update={"harness_hash": second.hash[:20] + "0" * 44})
    with pytest.raises(ConfigError, match="several candidates"):
        lineage_of(second.hash[:16], base(), [*records, records[0].model_copy(update={"edits": (twin,)})])


def test_a_record_changed_by_hand_is_noticed() -> None:
    edit = CatalogueProposer(NAMES).propose(base(), Evidence(mixed_episodes(), FAMILY), Random(0))[0]
    record = EditRecord.of(edit, base())
    with pytest.raises(StoreError, match="another harness"):
        record.model_copy(update={"harness_hash": "0" * 64}).edit(base())
    with pytest.raises(ConfigError, match="does not fit"):
        record.edit(base().replace(system_prompt="something else ."))


def test_a_recorded_log_answers_only_its_questions() -> None:
    proposer = RecordedProposer(ProposalLog.read_lines(LOG))
    with pytest.raises(ConfigError, match="no proposal for this question") as caught:
        proposer.propose(base(), Evidence(mixed_episodes(), FAMILY), Random(2))
    assert base().hash[:12] in str(caught.value)
    with pytest.raises(ConfigError, match="is empty"):
        RecordedProposer([])


def test_predictions_are_scored() -> None:
    """Only instances that both played count, by task and repeat."""
    parent = [play_script(seed, solution(seed)[: None if seed < 2 else -1]) for seed in range(6)]
    child = base().replace(system_prompt="other .")
    after = [play_script(seed, solution(seed)[: None if seed in (1, 2, 3) else -1], bundle=child) for seed in range(5)]
    names = [episode.id for episode in parent]
    edit = Edit("prompt", "m", "h", (), (names[2], names[4], names[5]), ("r",), child, (names[0], names[1]))
    assert score_predictions(edit, parent, after) == PredictionScore(2, 1, 2, 2, 1, 1)


def setup(kind: str, **settings: object) -> ProposerSetup:
    config = ProposerConfig.model_validate({"kind": kind, **settings})
    model = ProposerModel(ScriptedSource(thoughtful, "remote:writer"))
    return ProposerSetup(config, NAMES, lambda: model, lambda: ProposalLog.read_lines(LOG))


def plugged(setup: ProposerSetup) -> Counted:
    """A user's factory."""
    assert setup.names == NAMES
    return Counted()


def broken(setup: ProposerSetup) -> object:
    """A factory of something else."""
    return setup


def test_look_up() -> None:
    """Table, dotted path, and three-part errors for the rest."""
    assert {name: load_proposer(setup(name, log="x")).name for name in KNOWN} == {name: name for name in KNOWN}
    assert load_proposer(setup("tests.contract.test_proposers:plugged")).name == "counted"
    edits = load_proposer(setup("catalogue", operators=["few_shot"])).propose(base(), Evidence(mixed_episodes(), FAMILY), Random(1))
    assert {edit.mechanism for edit in edits} == {"few-shot"}
    for kind, said in {
        "catalog": "did you mean 'catalogue'",
        "nowhere:x": "could not be made",
        "tests.contract.test_proposers:nothing": "could not be made",
        "tests.contract.test_proposers:broken": "gives no proposer",
    }.items():
        with pytest.raises(ConfigError, match=said) as caught:
            load_proposer(setup(kind))
        assert caught.value.fix
    with pytest.raises(ConfigError, match="did you mean 'few_shot'"):
        load_proposer(setup("catalogue", operators=["fewshot"]))
