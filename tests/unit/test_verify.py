"""A run read back. Promises:

1. A sound run is called sound, with its counts.
2. A missing and a changed output, counts that do not add up, an episode under a foreign id, and an outcome played twice are each named.
3. Tries that ended in infrastructure trouble do not count as played.
"""

from __future__ import annotations

from pathlib import Path

from coevo.chat import Sampling
from coevo.records import Attempt, Episode, EpisodeSpec, Grade, Status
from coevo.store.artifacts import RowCounts, StageManifest, StageWriter
from coevo.store.episodes import EpisodeStore
from coevo.store.local import LocalStore
from coevo.store.verify import verify_run


def episode(seed: int) -> Episode:
    spec = EpisodeSpec(task_key=f"payroll/mini/t/search/{seed}", world_version="1", harness_hash="h", model_id="m", sampling=Sampling())
    return Episode(id=spec.id, spec=spec, status=Status.MAX_TURNS, grade=Grade(success=False, score=0.0), messages=(), turns=())


def sound_run(folder: Path) -> LocalStore:
    store = LocalStore(str(folder))
    writer = StageWriter.begin(store, run="r", stage="rollout", inputs={"a": "b"}, expected=2, code_version="0")
    episodes = EpisodeStore(store, "r")
    for seed in range(2):
        episodes.commit(episode(seed))
        episodes.record_attempt(Attempt(id=episode(seed).id, number=1, outcome=Status.INFRA_ERROR))
        episodes.record_attempt(Attempt(id=episode(seed).id, number=2, outcome=Status.MAX_TURNS))
    writer.wrote(2)
    writer.write_bytes("index.json", b"[]")
    writer.commit()
    return store


def test_a_sound_run(tmp_path: Path) -> None:
    """Promises 1 and 3."""
    found = verify_run(sound_run(tmp_path), "r")
    assert found.sound
    assert (found.manifests, found.outputs, found.episodes) == (1, 1, 2)


def test_outputs_are_missed_and_compared(tmp_path: Path) -> None:
    """Promise 2, I5."""
    store = sound_run(tmp_path)
    (output,) = (info.key for info in store.list("r/rollout/") if "index" in info.key)
    store.put_if_match(output, b"[1]", etag=store.head(output).etag)  # type: ignore[union-attr]
    assert len(verify_run(store, "r").orphans) == 1
    assert verify_run(store, "r", deep=False).sound
    store.delete(output)
    shallow = verify_run(store, "r", deep=False)
    assert not shallow.sound
    assert shallow.orphans[0].endswith(output)


def test_rows_and_outcomes_are_counted(tmp_path: Path) -> None:
    """Promise 2, R2, I4."""
    store = sound_run(tmp_path)
    episodes, twice = EpisodeStore(store, "r"), episode(0).id
    episodes.record_attempt(Attempt(id=twice, number=3, outcome=Status.COMPLETED))
    lost = StageManifest(
        stage="x",
        input_hash="i",
        inputs={},
        code_version="0",
        config_hash="c",
        expected=3,
        rows=RowCounts(written=2, dropped={}, failed={}),
    )
    store.put_if_absent("r/x/i/manifest.json", lost.to_bytes())
    store.put_if_absent(episodes.key("0" * 64), store.get(episodes.key(twice)))
    found = verify_run(store, "r")
    assert found.twice == ((twice, 2),)
    assert found.uncounted == ("r/x/i/manifest.json",)
    assert found.unreadable == ("0" * 64,)
