"""The archive keeps specialists and never takes anything but search outcomes."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from coevo.errors import ConfigError, StoreError
from coevo.evolve.archive import Archive, Candidate


def key(seed: int, stream: str = "search") -> str:
    return f"payroll/mini/audit/{stream}/{seed}"


def outcomes(*rates: int) -> dict[str, tuple[int, ...]]:
    return {key(n): (rate,) for n, rate in enumerate(rates)}


@pytest.fixture
def archive() -> Archive:
    seed = Candidate(harness_hash="seed", outcomes=outcomes(1, 0, 0, 0, 0), accepted=True)
    general = Candidate(harness_hash="general", parent="seed", summary="notes", generation=1, outcomes=outcomes(1, 1, 1, 0, 0))
    special = Candidate(harness_hash="special", parent="general", summary="checks", generation=2, outcomes=outcomes(0, 0, 0, 1, 0))
    useless = Candidate(harness_hash="useless", parent="seed", generation=2, outcomes=outcomes(0, 0, 0, 0, 0))
    return Archive([seed, general, special, useless])


def test_front_and_weights(archive: Archive) -> None:
    """H8: a specialist with a low mean stays; what nobody solves gives weight to nobody."""
    assert archive.front() == {key(0): ("seed", "general"), key(1): ("general",), key(2): ("general",), key(3): ("special",)}
    assert archive.weights() == {"seed": 1, "general": 3, "special": 1, "useless": 0}


def test_parents_are_drawn_by_weight(archive: Archive) -> None:
    counts = Counter(archive.choose_parent(Random(n)).harness_hash for n in range(2000))
    assert counts["useless"] == 0
    assert counts["general"] == pytest.approx(1200, abs=100)
    assert counts["special"] == pytest.approx(400, abs=80)
    assert [archive.choose_parent(Random(5)).harness_hash for _ in range(3)] == [archive.choose_parent(Random(5)).harness_hash] * 3


def test_without_evidence_every_candidate_may_be_a_parent() -> None:
    archive = Archive([Candidate(harness_hash="a", outcomes={key(1): (1,)}), Candidate(harness_hash="b", outcomes={key(2): (1,)})])
    assert archive.front() == {}
    assert {archive.choose_parent(Random(n)).harness_hash for n in range(50)} == {"a", "b"}
    with pytest.raises(ConfigError, match="empty archive"):
        Archive().choose_parent(Random(0))


def test_lineage(archive: Archive) -> None:
    assert [candidate.harness_hash for candidate in archive.lineage("special")] == ["seed", "general", "special"]
    with pytest.raises(ConfigError, match="not in the archive"):
        archive.lineage("nobody")


def test_round_trip(archive: Archive) -> None:
    again = Archive.from_bytes(archive.to_bytes())
    assert again.candidates == archive.candidates
    assert again.to_bytes() == archive.to_bytes()
    assert again.weights() == archive.weights()


def test_observe_adds_and_never_changes(archive: Archive) -> None:
    archive.observe("special", {key(9): [1, 0]})
    archive.observe("special", {key(9): [1, 0, 1]})
    archive.observe("special", {key(9): [1]})
    assert archive.get("special").outcomes[key(9)] == (1, 0, 1)
    assert archive.get("special").mean == pytest.approx((0 + 0 + 0 + 1 + 0 + 2 / 3) / 6)
    with pytest.raises(StoreError, match="outcome changed"):
        archive.observe("special", {key(9): [0, 0, 1]})
    assert archive.get("special").outcomes[key(9)] == (1, 0, 1)


def test_accept(archive: Archive) -> None:
    archive.accept("general")
    assert [candidate.accepted for candidate in archive.candidates] == [True, True, False, False]


@pytest.mark.parametrize("stream", ["selection", "test", "pretrain"])
def test_only_search_outcomes_enter(archive: Archive, stream: str) -> None:
    """I8."""
    with pytest.raises(ConfigError, match="search stream only"):
        archive.observe("general", {key(1, stream): [1]})
    with pytest.raises(ConfigError, match="search stream only"):
        archive.add(Candidate(harness_hash="x", outcomes={key(1, stream): (1,)}))
    assert len(archive.candidates) == 4


def test_bad_candidates_are_refused(archive: Archive) -> None:
    with pytest.raises(ConfigError, match="is in the archive"):
        archive.add(Candidate(harness_hash="seed"))
    with pytest.raises(ConfigError, match="parent"):
        archive.add(Candidate(harness_hash="x", parent="nobody"))
    with pytest.raises(ConfigError, match="without repeats"):
        archive.observe("seed", {key(1): []})
    assert Candidate(harness_hash="x").mean is None
