"""Promises of `coevo gc`.

1. Whatever killed and live writers did, what a manifest, a pointer or a committed record needs is never found (I5), and a stage that was
   interrupted can be written again afterwards.
2. What no manifest names is found: parts, torn adapters, scratch, probes.
3. Leftovers stay while the run is written to; attempts go by age, and only those at committed episodes.
4. Whole runs go manifests first, the name's claim last; the ones to keep stay.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coevo.config import RetentionConfig, RunConfig
from coevo.display import DisplayKind, open_display
from coevo.identity import content_hash
from coevo.records import Attempt
from coevo.store.artifacts import StageWriter, is_done, read_manifest
from coevo.store.garbage import Garbage, Retention, find_garbage, find_old_runs, remove_garbage
from coevo.store.local import LocalStore
from jobs.gc import collect

RUN = "r"
DAY = 86_400.0
NOW = 1_700_000_000.0 + 10 * DAY
IDLE = Retention(grace_s=0.0)


def aged(root: Path, key: str, age_s: float) -> None:
    os.utime(root / key, (NOW - age_s, NOW - age_s))


def put(root: Path, key: str, *, age_s: float = 2 * DAY, data: bytes = b"x") -> str:
    LocalStore(root).put_if_absent(key, data)
    aged(root, key, age_s)
    return key


def writer(store: LocalStore, stage: str, inputs: int) -> StageWriter:
    return StageWriter.begin(store, run=RUN, stage=stage, inputs={"in": str(inputs)}, expected=0, code_version="1")


def keys(garbage: Garbage) -> dict[str, list[str]]:
    return {str(kind): [info.key for info in infos] for kind, infos in garbage.found.items()}


def find(root: Path, retention: Retention = IDLE, now_s: float = NOW) -> Garbage:
    return find_garbage(LocalStore(root), RUN, retention, now_s=now_s)


STAGES = st.tuples(st.sampled_from(["evolve", "rollout", "dataset"]), st.integers(0, 1), st.integers(0, 3), st.booleans())


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(written=st.lists(STAGES, max_size=6), records=st.lists(st.integers(0, 5), max_size=4))
def test_what_is_needed_is_never_found(written: list[tuple[str, int, int, bool]], records: list[int]) -> None:
    """I5, R9: random stages, some committed and some killed, with the same and with other parts."""
    with TemporaryDirectory() as folder:
        store = LocalStore(folder)
        store.put_if_absent(f"{RUN}/config.json", b"{}")
        kept = {f"{RUN}/config.json"}
        for number, (stage, inputs, parts, committed) in enumerate(written):
            one = writer(store, stage, inputs)
            for part in range(parts):
                one.write_bytes("part.bin", f"{number}-{part}".encode())
            if committed:
                one.commit()
        for record in records:
            for key in (
                f"{RUN}/episodes/{record}.json.zst",
                f"{RUN}/ledger/{record}.settled.json",
                f"{RUN}/localize/{'0' * 64}/one/{record}.json",
            ):
                store.put_if_absent(key, b"{}")
                kept.add(key)
        garbage = find(Path(folder), now_s=NOW * 2)
        doomed = {info.key for info in garbage.objects}
        remove_garbage(store, garbage, still=garbage)
        left = {info.key for info in store.list("")}
        assert kept <= left
        for stage, inputs, parts, _ in written:
            key = writer(store, stage, inputs).key
            manifest = read_manifest(store, key)
            if manifest is not None:
                assert all(store.head(output.key) is not None for output in manifest.outputs)
            else:
                assert not any(name.startswith(key.prefix) for name in left)
                again = writer(store, stage, inputs)
                for part in range(parts):
                    again.write_bytes("part.bin", f"again {part}".encode())
                again.commit()
                assert is_done(store, key)
        assert not doomed & left


def test_what_nobody_names_is_found(tmp_path: Path) -> None:
    """A lost race's part, an adapter whose trainer was killed, one that lost to another, scratch, a probe; not its neighbours."""
    hashed, other = "a" * 64, "b" * 64
    store = LocalStore(tmp_path)
    one = writer(store, "rollout", 0)
    named = one.write_bytes("index.json", b"[]").key
    one.commit()
    lost = put(tmp_path, f"{one.key.prefix}/index-00000-{'0' * 16}.json")
    good = put(tmp_path, f"{RUN}/train/{hashed}/{'1' * 16}/adapter_model.safetensors")
    beside = put(tmp_path, f"{RUN}/train/{hashed}/{'1' * 16}/publish.json")
    loser = put(tmp_path, f"{RUN}/train/{hashed}/{'2' * 16}/adapter_model.safetensors")
    curve = put(tmp_path, f"{RUN}/train/{hashed}/curve.json")
    manifest = f'{{"weights_hash": "1", "key": "{RUN}/train/{hashed}/{"1" * 16}"}}'.encode()
    closed = put(tmp_path, f"{RUN}/train/{hashed}/manifest.json", data=manifest)
    torn = [put(tmp_path, f"{RUN}/train/{other}/{name}") for name in (f"{'3' * 16}/adapter_config.json", "curve.json")]
    scratch = put(tmp_path, f"{RUN}/scratch/train/x/manifest.json")
    report = put(tmp_path, f"{RUN}/report/{'4' * 16}/report.html")
    claim = put(tmp_path, f"model-ids/{content_hash(b'm')}.json")
    probe = put(tmp_path, "doctor/xyz/once")
    garbage = find(tmp_path, now_s=NOW * 2)
    assert keys(garbage) == {
        "orphan": sorted([lost, loser, *torn]),
        "scratch": [scratch],
        "probe": [probe],
    }
    assert remove_garbage(store, garbage, still=find(tmp_path, now_s=0.0)) == 0, "what is not garbage any more stays"
    remove_garbage(store, garbage, still=garbage)
    left = {info.key for info in store.list("")}
    assert left == {named, one.key.manifest, good, beside, curve, closed, report, claim}


def test_a_busy_run_keeps_its_leftovers(tmp_path: Path) -> None:
    """A live writer's parts are old only for an instant: any write to the run within the grace keeps them."""
    part = put(tmp_path, f"{RUN}/evolve/{'a' * 64}/search-00000-{'0' * 16}.json", age_s=3 * DAY)
    recent = put(tmp_path, f"{RUN}/episodes/e.json.zst", age_s=0.5 * DAY)
    busy = find(tmp_path, Retention(grace_s=DAY))
    assert (list(busy.objects), busy.busy) == ([], (RUN,))
    aged(tmp_path, recent, 1.5 * DAY)
    assert keys(find(tmp_path, Retention(grace_s=DAY))) == {"orphan": [part]}


def test_attempts_go_by_age_and_only_where_the_episode_is_committed(tmp_path: Path) -> None:
    record = Attempt(id="done", number=1, outcome="completed").to_bytes()
    put(tmp_path, f"{RUN}/episodes/done.json.zst")
    old = put(tmp_path, f"{RUN}/attempts/done/1.json", age_s=8 * DAY, data=record)
    put(tmp_path, f"{RUN}/attempts/done/2.json", age_s=6 * DAY, data=record)
    put(tmp_path, f"{RUN}/attempts/owed/1.json", age_s=9 * DAY, data=record)
    assert keys(find(tmp_path, Retention(grace_s=0.0))) == {}
    assert keys(find(tmp_path, Retention(grace_s=DAY, attempts_s=7 * DAY))) == {"attempt": [old]}


def test_old_runs_go_manifests_first(tmp_path: Path) -> None:
    """I5: at no moment does a manifest name what is gone."""
    for age, name in enumerate(("new", "mid", "old", "mine")):
        for key in ("config.json", "episodes/e.json.zst", f"evolve/{'a' * 64}/manifest.json", f"evolve/{'a' * 64}/x-00000-{'0' * 16}.json"):
            put(tmp_path, f"{name}/{key}", age_s=(age + 1) * DAY)
    put(tmp_path, "model-ids/x.json", age_s=9 * DAY)
    store = LocalStore(tmp_path)
    garbage = find_old_runs(store, Retention(grace_s=DAY, keep_runs=1), keep=("mine",), now_s=NOW)
    assert {key.partition("/")[0] for key in keys(garbage)["old run"]} == {"mid", "old"}
    of_old = [key for key in keys(garbage)["old run"] if key.startswith("old/")]
    assert of_old[0].endswith("/manifest.json")
    assert of_old[-1] == "old/config.json"
    assert list(find_old_runs(store, Retention(grace_s=DAY), keep=(), now_s=NOW).objects) == []
    chosen = find_old_runs(store, Retention(grace_s=DAY), keep=(), now_s=NOW, only=("mine",))
    assert {info.key.partition("/")[0] for info in chosen.objects} == {"mine"}
    young = find_old_runs(store, Retention(grace_s=2 * DAY), keep=(), now_s=NOW, only=("new",))
    assert (list(young.objects), young.busy) == ([], ("new",))


def test_the_door_asks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lists counts and bytes; removes only when told to; a missing store is not made."""
    root = tmp_path / "store"
    config = RunConfig(name=RUN, store=str(root), retention=RetentionConfig(grace_hours=0))
    display = open_display(DisplayKind.PLAIN)
    assert collect(config, display, yes=True) == 0
    assert not root.exists()
    part = put(root, f"{RUN}/evolve/{'a' * 64}/search-00000-{'0' * 16}.json", data=b"12345")
    (root / ".coevo-store" / "tmp" / "half").write_bytes(b"half")
    assert collect(config, display) == 0
    assert collect(config, display, yes=True, dry_run=True) == 0
    listed = capsys.readouterr()
    assert "orphan" in listed.out + listed.err
    assert "nothing was removed" in listed.out
    assert LocalStore(root).head(part) is not None
    assert collect(config, display, yes=True) == 0
    assert "removed 1 objects and 1 unfinished uploads" in capsys.readouterr().out
    assert LocalStore(root).head(part) is None
