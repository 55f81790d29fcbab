"""Stored records load for ever.

`tests/data/records/*.json` holds one stored example of every record of schema_version 1. These files are never edited: a change of a
record must still load them, and an addition needs a default.
"""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from pydantic import ValidationError

import coevo.records
from coevo.evolve.ablate import AblationRecord
from coevo.evolve.archive import Archive, ArchiveRecord, Candidate
from coevo.evolve.baselines import BaselineRecord
from coevo.evolve.gate import GateDecision
from coevo.evolve.proposals import ProposalRecord
from coevo.evolve.rounds import SearchRecord
from coevo.evolve.tiers import Opening
from coevo.harness.bundle import HarnessBundle
from coevo.identity import canonical_json, content_hash, derive_seed, short
from coevo.localize.waves import MiningRecord
from coevo.records import Episode, EpisodeSpec, Localization, Measurement, Record, Verdict
from coevo.rewrite.recheck import Recheck
from coevo.store.artifacts import StageManifest
from coevo.store.harnesses import HarnessRecord
from coevo.store.ledger import LedgerEntry

FOLDER = Path(__file__).parents[1] / "data" / "records"
_NAMED = [getattr(coevo.records, name) for name in coevo.records.__all__]
CORE = [kind for kind in _NAMED if isinstance(kind, type) and issubclass(kind, Record) and kind is not Record]
_SEARCHED: list[type[Record]] = [SearchRecord, AblationRecord, BaselineRecord, Opening]
_FURTHER: list[type[Record]] = [
    *(StageManifest, LedgerEntry, GateDecision, Candidate, ArchiveRecord, ProposalRecord, HarnessRecord, MiningRecord, Recheck),
    *_SEARCHED,
]
KINDS = {kind.__name__: kind for kind in [*CORE, *_FURTHER]}


def stored(name: str) -> bytes:
    return (FOLDER / f"{name}.v1.json").read_bytes()


def test_every_record_has_a_stored_example() -> None:
    assert {path.name for path in FOLDER.glob("*.json")} == {f"{name}.v1.json" for name in KINDS}


@pytest.mark.parametrize("name", sorted(KINDS))
def test_old_records_load_without_loss(name: str) -> None:
    """Every stored field keeps its value; fields that came later have defaults."""
    old = orjson.loads(stored(name))
    record = KINDS[name].from_bytes(stored(name))
    assert record.schema_version == 1
    assert covers(orjson.loads(record.to_bytes()), old)
    assert KINDS[name].from_bytes(record.to_bytes()) == record


def covers(new: object, old: object) -> bool:
    """True when `new` holds everything that `old` holds."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(key in new and covers(new[key], value) for key, value in old.items())
    if isinstance(old, list):
        return isinstance(new, list) and len(new) == len(old) and all(covers(n, o) for n, o in zip(new, old, strict=True))
    return new == old


def test_covers_can_fail() -> None:
    assert covers({"a": [1, {"b": 2, "c": 3}]}, {"a": [1, {"b": 2}]})
    assert not covers({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]})
    assert not covers({"a": [1]}, {"a": [1, 2]})
    assert not covers({}, {"a": None})


@pytest.mark.parametrize("name", sorted(KINDS))
def test_records_are_frozen_and_refuse_unknown_fields(name: str) -> None:
    record = KINDS[name].from_bytes(stored(name))
    with pytest.raises(ValidationError, match="frozen"):
        record.schema_version = 2
    with pytest.raises(ValidationError, match="surprise"):
        KINDS[name].model_validate({**orjson.loads(stored(name)), "surprise": 1})


@pytest.mark.parametrize("name", sorted(KINDS))
def test_equal_records_give_equal_bytes(name: str) -> None:
    data = orjson.loads(stored(name))
    shuffled = dict(reversed(data.items()))
    assert KINDS[name].model_validate(shuffled).to_bytes() == KINDS[name].model_validate(data).to_bytes()


def test_ids_are_the_same_on_every_machine() -> None:
    """I4: ids of stored runs must never move."""
    spec = EpisodeSpec.from_bytes(stored("EpisodeSpec"))
    assert spec.id == "2cdf8f9284821662bea62d57fd2ad4339abe1ae9285d6f08274bdf5b60643db9"
    assert Episode.from_bytes(stored("Episode")).id == Episode.from_bytes(stored("Episode")).spec.id
    assert derive_seed("selection", 0, "r0/g0") == 7333087007625271963
    assert content_hash(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert canonical_json({"b": 1, "a": [1.0, None, "é"]}) == '{"a":[1.0,null,"é"],"b":1}'.encode()
    assert short(content_hash(b"")) == "e3b0c44298fc"


def test_every_field_of_the_spec_decides_the_id() -> None:
    """H1: the score key names harness, model, stream, task, seed, environment version and repeat."""
    spec = EpisodeSpec.from_bytes(stored("EpisodeSpec"))
    changes: list[dict[str, object]] = [
        {"task_key": spec.task_key.replace("search", "test")},
        {"world_version": "other"},
        {"harness_hash": "other"},
        {"model_id": "other"},
        {"sampling": {"temperature": 0.1, "top_p": 1.0, "max_tokens": 96}},
        {"repeat": 1},
        {"branch": "turn-2"},
    ]
    ids = {EpisodeSpec.model_validate({**spec.model_dump(), **change}).id for change in changes}
    assert len(ids | {spec.id}) == len(changes) + 1


def test_prompts_are_rebuilt_from_shared_prefixes() -> None:
    """R13: an append-only turn extends the sampled ids; an edited context starts again from what it shares."""
    episode = Episode.from_bytes(stored("Episode"))
    first, second, third = (episode.prompt_token_ids(turn) for turn in range(3))
    assert first == episode.turns[0].prompt_suffix
    assert second == first + episode.turns[0].completion_token_ids + episode.turns[1].prompt_suffix
    assert third == second[: episode.turns[2].prompt_shared] + episode.turns[2].prompt_suffix
    assert episode.turns[2].context_edited


def test_none_is_not_measured_and_zero_is() -> None:
    record = Localization.from_bytes(stored("Localization"))
    assert [candidate.p_resampled for candidate in record.candidates] == [0.0, None]
    assert Measurement.from_bytes(stored("Measurement")).training_seed == 0
    assert Verdict("inconclusive") is Verdict.INCONCLUSIVE


def test_the_stored_archive_still_chooses() -> None:
    archive = Archive.from_bytes(stored("ArchiveRecord"))
    first, last = archive.candidates[0], archive.candidates[-1]
    assert archive.lineage(last.harness_hash)[0] == first
    assert sum(archive.weights().values()) > 0


def test_a_stored_search_still_gives_its_harness() -> None:
    """What later stages read of it: the winner's files under their own hash, and the harness that pruning left."""
    found, ablation = SearchRecord.from_bytes(stored("SearchRecord")), AblationRecord.from_bytes(stored("AblationRecord"))
    assert HarnessBundle.from_files(found.best).hash == found.best_hash
    assert found.accepted == 2
    assert {one.harness_hash for one in found.finalists} == {one.best_hash for one in found.restarts}
    assert (ablation.base_hash, ablation.full_hash) == (found.base_hash, found.best_hash)
    assert all(part.off is None for part in ablation.components), "written before it was counted"
    rows = {row.name: row for row in BaselineRecord.from_bytes(stored("BaselineRecord")).rows}
    assert rows["h0"].measurement.harness_hash == found.base_hash
    assert set(Opening.from_bytes(stored("Opening")).harnesses) == {found.base_hash, found.best_hash}
