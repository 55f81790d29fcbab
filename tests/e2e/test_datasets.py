"""`coevo dataset` with every arm, on a recorded run: the control arms ask the expert more, and nothing is played twice.

1. Every arm has the same number of rows, and the files that TRL reads hold the same rows as the records.
2. The preference pairs are the verified corrections.
3. The same command again asks nobody.
"""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from coevo.config import Arm
from coevo.records import Correction, TrainingRow
from coevo.store import LocalSource
from coevo.store.artifacts import read_records, read_rows
from tests.e2e.loop import Loop

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]


def test_every_arm_is_built_from_one_run(recorded: Loop, tmp_path: Path) -> None:
    """Promises 1 to 3."""
    loop = Loop(tmp_path / "store")
    arms = ",".join(Arm)
    overrides = ("weak.engine=recorded", recorded.recording, f"dataset.arms=[{arms}]", "dataset.preference_pairs=true")
    done = loop.run("dataset", *overrides)
    assert done.returncode == 0, done.stderr[-3000:]
    store = LocalSource(str(loop.store)).open()
    manifests = loop.manifests()
    manifest = manifests["dataset"]
    facts = orjson.loads(store.get(manifest.output("facts").key))
    assert set(facts) == set(Arm)
    size = {fact["rows"] for fact in facts.values()}
    assert len(size) == 1
    for arm in Arm:
        assert f"{arm}: {facts[arm]['rows']} rows" in done.stdout
        rows = list(read_records(store, [manifest.output(arm)], TrainingRow))
        flat = list(read_rows(store, [manifest.output(f"{arm}-sft")]))
        assert [row["input_ids"] for row in flat] == [[*row.prompt_token_ids, *row.completion_token_ids] for row in rows]
        assert {row["arm"] for row in flat} == {arm}
    verified = [one for one in read_records(store, manifests["rewrite"].outputs, Correction) if one.verified]
    pairs = list(read_rows(store, [manifest.output("preferences")]))
    assert {pair["episode_id"] for pair in pairs} <= {one.episode_id for one in verified}
    attempts = loop.keys("attempts/")
    again = loop.run("dataset", *overrides)
    assert again.returncode == 0, again.stderr[-3000:]
    assert loop.keys("attempts/") == attempts
    assert again.stdout.splitlines()[-len(Arm) :] == done.stdout.splitlines()[-len(Arm) :]
