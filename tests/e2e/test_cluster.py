"""A run handed to a cluster: a head that runs no work, two nodes, its store on S3. Promises:

1. `coevo submit` ends with the run's own exit code and output; the artifacts are byte for byte those of the same run on one machine and
   in a folder, although one node was SIGKILLed among the episodes and one in training (I4, R9).
2. The same submission again attaches to the job and starts nothing; `coevo status` tells of the running job by name and store alone (R17).
3. SIGINT detaches from the job and leaves it running.
4. A wrong config ends the submission with 2 before anything is sent; a variable that the nodes lack ends the job with 2 and its name.
5. A stopped job is followed by the next attempt; a job whose head was lost is submitted again to another cluster and resumes from its
   store: nothing is played twice (R17).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from cluster.local_nodes import LocalNodes, NodeSpec
from tests.e2e.artifacts import artifacts, differing, made_without_engines
from tests.e2e.loop import CONFIG, Loop
from tests.seaweed import SeaweedServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SPEC = NodeSpec(num_cpus=4, resources={"coevo-pool-weak": 1, "spot": 1})
WHERE = (
    "rollout.workers=2",
    "cluster.pools.rollout.resources={coevo-pool-weak: 0.01}",
    "cluster.pools.train.spread=true",
)


@pytest.fixture(scope="module")
def nodes(seaweed: SeaweedServer) -> Iterator[LocalNodes]:
    """The nodes inherit the store's keys from this process's environment, as pods do from a secret."""
    del seaweed
    with LocalNodes(NodeSpec(num_cpus=0), [SPEC, SPEC]) as started:
        yield started


def coevo(nodes: LocalNodes, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command line, in a working folder of its own, with the signals of a terminal: a shell's background jobs ignore SIGINT."""
    environment = {**os.environ, **nodes.environment, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = ["env", "--default-signal=INT", sys.executable, "-m", "jobs.cli", *arguments]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def submission(nodes: LocalNodes, settings: Sequence[str], *flags: str) -> list[str]:
    sets = [part for setting in settings for part in ("--set", setting)]
    return ["submit", str(CONFIG), "--address", nodes.jobs_address, *sets, *flags]


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str], *, limit_s: float = 600.0) -> None:
    ends = time.monotonic() + limit_s
    while not condition():
        assert process.poll() is None, "\n".join(part[-3000:] for part in process.communicate())
        assert time.monotonic() < ends, "the awaited moment never came"
        time.sleep(0.1)


def test_a_submitted_run_on_s3_survives_its_nodes(recorded: Loop, nodes: LocalNodes, seaweed: SeaweedServer, tmp_path: Path) -> None:
    """Promises 1 and 2."""
    source = seaweed.source()
    store = source.open()
    settings = [f"store={source.uri}", "name=tiny", "weak.engine=recorded", recorded.recording, *WHERE]
    job = coevo(nodes, tmp_path, *submission(nodes, settings))
    wait_until(lambda: any(True for _ in store.list("tiny/episodes/")), job)
    nodes.kill(nodes.nodes[-1])
    nodes.add(SPEC)
    again = coevo(nodes, tmp_path, *submission(nodes, settings, "--no-follow"))
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0
    assert "attached, nothing submitted" in err
    wait_until(lambda: any("progress.json" in info.key for info in store.list("tiny/scratch/progress")), job)
    status = coevo(nodes, tmp_path, "status", "tiny", "--store", source.uri).communicate(timeout=120)
    assert out.split()[-1] in status[0] + status[1]
    wait_until(lambda: any("checkpoint" in info.key or "step_" in info.key for info in store.list("tiny/scratch/train/")), job)
    nodes.kill(nodes.nodes[1])
    nodes.add(SPEC)
    printed, told = job.communicate(timeout=900)
    assert job.returncode == 0, told[-3000:] + printed[-3000:]
    assert "correction/h*" in printed
    there = artifacts(store, "tiny")
    print(f"{len(there)} artifacts compared")
    assert len(there) > 100
    assert differing(made_without_engines(recorded.artifacts()), made_without_engines(there)) == []
    assert not list(store.list("tiny/scratch/train/")), "checkpoints go when the adapter is committed"


def test_bad_submissions(nodes: LocalNodes, tmp_path: Path) -> None:
    """Promise 4."""
    relative = coevo(nodes, tmp_path, *submission(nodes, ["name=bad"]))
    _, err = relative.communicate(timeout=120)
    assert relative.returncode == 2
    assert "Traceback" not in err
    needy = coevo(nodes, tmp_path, *submission(nodes, [f"store={tmp_path}", "name=needy"], "--needs", "NO_SUCH_KEY"))
    out, err = needy.communicate(timeout=240)
    assert needy.returncode == 2, err
    assert "NO_SUCH_KEY" in out
    assert not (tmp_path / "needy").exists()


def test_detached_stopped_and_without_its_head(nodes: LocalNodes, tmp_path: Path) -> None:
    """Promises 3 and 5. Last in the file: it takes the cluster away."""
    loop = Loop(tmp_path / "store", name="detached")
    settings = [f"store={loop.store}", "name=detached", "weak.engine=transformers", "evolve.enabled=false", "localize.rollouts=60"]

    def submit(where: LocalNodes, *flags: str) -> subprocess.Popen[str]:
        return coevo(where, tmp_path, *submission(where, settings, "--verb", "rollout", *flags))

    first = submit(nodes)
    wait_until((loop.store / "detached" / "config.json").exists, first)
    first.send_signal(signal.SIGINT)
    _, err = first.communicate(timeout=60)
    assert first.returncode == 130
    assert "--stop" in err
    out, err = submit(nodes, "--no-follow").communicate(timeout=120)
    assert "attached" in err
    assert out.split()[-1].endswith("-1")
    assert "asked job" in submit(nodes, "--stop").communicate(timeout=120)[1]
    ends = time.monotonic() + 120
    while "no job of this run" not in submit(nodes, "--stop").communicate(timeout=120)[1]:
        assert time.monotonic() < ends, "the job does not stop"
    second = submit(nodes)
    wait_until(lambda: len(loop.keys("episodes/")) >= 5, second)
    nodes.close()
    second.send_signal(signal.SIGINT)
    _, err = second.communicate(timeout=60)
    assert "(attempt 2)" in err
    committed = set(loop.keys("episodes/"))
    with LocalNodes(NodeSpec(num_cpus=4), start_timeout_s=240) as fresh:
        third = submit(fresh)
        printed, err = third.communicate(timeout=600)
    assert third.returncode == 0, err[-3000:] + printed[-3000:]
    assert "(attempt 1)" in err, "a new head knows no jobs"
    manifest = loop.manifests()["rollout"]
    assert (manifest.rows.written, len(manifest.owed), manifest.expected) == (60, 0, 60)
    assert committed <= set(loop.keys("episodes/"))
    assert set(loop.outcomes().values()) == {1}
