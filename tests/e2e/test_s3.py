"""A run whose store is a bucket (SeaweedFS): the artifacts of a local folder, nothing durable elsewhere, and an outage costs nothing.

The recording is the one of `recorded` (conftest), so no engine starts; training is real and keeps its checkpoints in the bucket.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cluster.fault_proxy import FaultPhase, FaultProxy, NetworkFault
from cluster.s3 import S3Source
from coevo.ports import BlobStore
from coevo.records import Attempt, Status
from coevo.store.verify import verify_run
from tests.e2e.artifacts import artifacts, differing, made_without_engines
from tests.e2e.loop import CONFIG, Loop
from tests.seaweed import SeaweedServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

RUN = "tiny"
OUTAGE = (NetworkFault.RESET, NetworkFault.ERROR, NetworkFault.SLOW_DOWN)


@dataclass(frozen=True)
class BucketRun:
    """The tiny config in a bucket, answered from a recording; `folder` is where the commands run."""

    source: S3Source
    folder: Path
    recording: str

    def command(self, verb: str, *overrides: str) -> list[str]:
        settings = [f"store={self.source.uri}", f"name={RUN}", "weak.engine=recorded", self.recording, *overrides]
        flags = [part for setting in settings for part in ("--set", setting)]
        return [sys.executable, "-m", "jobs.cli", verb, str(CONFIG), *flags, "--display", "plain"]

    def run(self, verb: str, *overrides: str, flags: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        command = [*self.command(verb, *overrides), *flags]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=900, check=False)


def outcomes(store: BlobStore) -> Counter[str]:
    """Episode id -> attempts that ended in an outcome."""
    attempts = (Attempt.from_bytes(store.get(info.key)) for info in store.list(f"{RUN}/attempts/"))
    return Counter(one.id for one in attempts if one.outcome != Status.INFRA_ERROR)


def test_a_run_in_a_bucket_equals_one_in_a_folder(recorded: Loop, seaweed: SeaweedServer, tmp_path: Path) -> None:
    """I4: byte-identical artifacts; after `gc` the report is the same and a second run finds everything done."""
    bucket = BucketRun(seaweed.source(), tmp_path, recorded.recording)
    store = bucket.source.open()
    done = bucket.run("run")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "training correction" in done.stderr
    assert f"report: s3://{bucket.source.bucket}/{bucket.source.prefix}/{RUN}/report/" in done.stdout
    there = artifacts(store, RUN)
    print(f"{len(there)} artifacts compared")
    assert len(there) > 100
    assert differing(made_without_engines(recorded.artifacts()), made_without_engines(there)) == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [], "everything durable is in the bucket"
    collected = bucket.run("gc", "retention.grace_hours=0", "retention.attempts_days=0", flags=("--yes",))
    assert collected.returncode == 0, collected.stderr[-3000:]
    assert differing(artifacts(store, RUN), there) == []
    assert verify_run(store, RUN).sound
    again = bucket.run("run")
    assert again.returncode == 0, again.stderr[-3000:]
    assert "training correction" not in again.stderr
    assert differing(artifacts(store, RUN), there) == []
    status = bucket.run("status")
    assert "evaluate" in status.stdout + status.stderr


def test_a_whole_run_through_a_store_that_fails(recorded: Loop, seaweed: SeaweedServer, tmp_path: Path) -> None:
    """R4, R9: every fifth request fails for 60 s, and twice the store is away for 6 s; the run ends complete, with the same artifacts."""
    with FaultProxy("127.0.0.1", seaweed.port) as proxy:
        source = seaweed.source(endpoint=proxy.endpoint)
        bucket = BucketRun(source, tmp_path, recorded.recording)
        store = replace(source, endpoint=seaweed.endpoint).open()
        failing = FaultPhase(kinds=tuple(NetworkFault), rate=0.2, stop_s=60.0)
        away = [FaultPhase(kinds=OUTAGE, start_s=start_s, stop_s=start_s + 6.0) for start_s in (25.0, 45.0)]
        proxy.schedule([*away, failing])
        done = bucket.run("run", "rollout.outage_patience_s=120")
        assert done.returncode == 0, done.stderr[-3000:]
        counts = dict(proxy.counts)
    failed = sum(counts.values()) - counts["requests"]
    print(f"{failed} faults: {counts}")
    assert failed > 50
    assert " owed: " not in done.stdout + done.stderr
    assert differing(made_without_engines(recorded.artifacts()), made_without_engines(artifacts(store, RUN))) == []
    assert set(outcomes(store).values()) == {1}
    assert verify_run(store, RUN).sound


def test_a_permanent_outage_lists_what_is_owed_and_exits_with_3(recorded: Loop, seaweed: SeaweedServer, tmp_path: Path) -> None:
    """I1, R4, R9: the store goes away in mid-stage; when it is back the same command finishes, and nothing was played twice."""
    with FaultProxy("127.0.0.1", seaweed.port) as proxy:
        source = seaweed.source(endpoint=proxy.endpoint, attempts=2)
        bucket = BucketRun(source, tmp_path, recorded.recording)
        store = replace(source, endpoint=seaweed.endpoint).open()
        quick = ("rollout.outage_patience_s=3", "rollout.tries=2", "rollout.concurrency=4")
        with (tmp_path / "log").open("w+") as log:
            driver = subprocess.Popen(bucket.command("rollout", *quick), cwd=tmp_path, stdout=log, stderr=log)
            try:
                deadline = time.monotonic() + 300
                while len(list(store.list(f"{RUN}/episodes/"))) < 20:
                    assert driver.poll() is None, (tmp_path / "log").read_text()[-3000:]
                    assert time.monotonic() < deadline, "no episode was ever committed"
                    time.sleep(0.05)
                proxy.schedule([FaultPhase(kinds=OUTAGE)])
                code = driver.wait(timeout=300)
            finally:
                driver.kill()
                driver.wait()
        told = (tmp_path / "log").read_text()
        assert code == 3, told[-3000:]
        assert "the store is out" in told
        assert " owed: " in told
        assert "Traceback" not in told.rpartition("error: ")[2]
        proxy.schedule([])
        again = bucket.run("rollout")
        assert again.returncode == 0, again.stderr[-3000:]
    played = outcomes(store)
    assert set(played.values()) == {1}
    assert len(played) == len(list(store.list(f"{RUN}/episodes/")))
    assert verify_run(store, RUN).sound
