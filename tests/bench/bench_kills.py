"""SIGKILL at random points of a job on two nodes, with automatic resubmission; nothing may be lost, nothing done twice.

    python tests/bench/bench_kills.py FOLDER --phase play --seed 1 --kills 12     # a slice: kills for some minutes, then pauses the job
    python tests/bench/bench_kills.py FOLDER --phase serve --seed 2 --kills 8
    python tests/bench/bench_kills.py FOLDER --phase train --seed 3 --kills 8
    python tests/bench/bench_kills.py FOLDER --finish                             # every job to its end, without kills; then the verdict

Slices share FOLDER and may be repeated with other seeds: jobs go on where the last slice left them. `play` is the rollout stage with the
reference policy as its model, slowed down to 0.15 s a turn (whole episodes without the cost of an engine's start); `serve` is
`coevo rollout` with real engines (the embedded model in the transformers engine, two replicas); `train` is the LoRA trainer on two workers.
The nodes are real (`cluster.local_nodes`), a killed one is replaced at once by a new one, as an autoscaler would, and a driver that ends
before its work is done is started again. Targets and moments are drawn from the seed.

A row of FOLDER/kills.jsonl: what was killed, and the seconds until the next commit (`commit_s`) and until all is as before (`whole_s`):
every process of each kind back, engines listening, and a commit after that. `bench_search_kills.py` kills a harness search.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402

from cluster.executor import ActorExecutor, ActorOptions  # noqa: E402
from cluster.local_nodes import LocalNodes, NodeSpec  # noqa: E402
from cluster.session import AuthMode, SessionConfig, open_session  # noqa: E402
from cluster.training import RayLoraTrainer  # noqa: E402
from coevo.chat import Completion, ModelRequest, Sampling  # noqa: E402
from coevo.config import TrainConfig  # noqa: E402
from coevo.fanout import FanoutPolicy  # noqa: E402
from coevo.harness.bundle import HarnessBundle  # noqa: E402
from coevo.mini.model import mini_path  # noqa: E402
from coevo.models.reference import ReferenceSource  # noqa: E402
from coevo.ports import ChatModel, TrainingJob  # noqa: E402
from coevo.records import LossSpan, PromptOrigin, TrainingRow  # noqa: E402
from coevo.rollout import AgentSource, RolloutStage, draw_items  # noqa: E402
from coevo.store.artifacts import StageManifest, StageWriter  # noqa: E402
from coevo.store.local import LocalSource  # noqa: E402
from coevo.store.tables import encode_records, table_of  # noqa: E402
from coevo.store.verify import verify_run  # noqa: E402
from coevo.tasks import load_family  # noqa: E402
from coevo.tasks.family import Size, Stream, Style  # noqa: E402

SPEC = NodeSpec(num_cpus=4)
LIMIT_S = 200.0
RUN = "kills"
KINDS = {"play": {"StageActor": 2}, "serve": {"StageActor": 2, "ModelServer": 2}, "train": {"RayTrainWorker": 2}}
TARGETS = {"play": ("driver", "StageActor", "raylet"), "serve": ("ModelServer",), "train": ("RayTrainWorker", "driver", "raylet")}
TITLES = {"StageActor": "executor actor", "ModelServer": "engine process", "RayTrainWorker": "train worker"}


@dataclass(frozen=True)
class Kill:
    """One row."""

    phase: str
    seed: int
    number: int
    target: str
    commits_before: int
    commit_s: float
    whole_s: float


class Job:
    """The driver of a phase, started again whenever it ends before its work is done."""

    def __init__(self, folder: Path, phase: str, nodes: LocalNodes) -> None:
        self.folder, self.phase, self.nodes = folder, phase, nodes
        self.starts = 0
        self.process: subprocess.Popen[bytes] | None = None
        folder.joinpath(f"{phase}.log").touch()
        self.seen: dict[str, float] = {}
        self.gone: set[int] = set()

    def command(self) -> list[str]:
        if self.phase != "serve":
            return [sys.executable, __file__, str(self.folder), "--phase", self.phase, "--drive", self.nodes.address]
        settings = {
            "name": f"{RUN}-serve",
            "store": self.folder / "store",
            "cluster.address": self.nodes.address,
            "evolve.enabled": "false",
            "localize.rollouts": SERVED,
            "weak.engine": "transformers",
            "rollout.workers": 2,
            "rollout.concurrency": 4,
        }
        flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        return [sys.executable, "-m", "jobs.cli", "rollout", str(ROOT / "jobs/configs/tiny.yaml"), *flags, "--display", "plain"]

    def keep_up(self) -> None:
        """Start the driver if it does not run and its work is not done."""
        if (self.process is None or self.process.poll() is not None) and not self.done():
            self.starts += 1
            environment = {**os.environ, **self.nodes.environment, "PYTHONPATH": str(ROOT)}
            with (self.folder / f"{self.phase}.log").open("ab") as log:
                self.process = subprocess.Popen(self.command(), cwd=self.folder, env=environment, stdout=log, stderr=log)

    def done(self) -> bool:
        if self.phase == "train":
            return all((self.folder / f"store/{RUN}/train/job{number}/manifest.json").exists() for number in range(TRAININGS))
        return bool(list((self.folder / "store").glob(f"{self.run}/{self.stage}/*/manifest.json")))

    @property
    def run(self) -> str:
        """Run that the phase commits to."""
        return f"{RUN}-serve" if self.phase == "serve" else RUN

    @property
    def stage(self) -> str:
        """Its stage."""
        return {"play": "play", "serve": "rollout", "train": "train"}[self.phase]

    def commits(self) -> int:
        """What is durable so far; also checks that nothing durable went away."""
        root = self.folder / "store" / self.run
        if self.phase == "train":  # checkpoints are scratch, removed in their order
            found = [*root.glob("train/*/manifest.json"), *(self.folder / "scratch").glob("train-*/step_*/progress.json")]
        else:
            found = list(root.glob("episodes/*.json.zst"))
            lost = self.seen.keys() - {str(path) for path in found}
            assert not lost, f"{len(lost)} committed episodes are gone"
        for path in found:
            if str(path) not in self.seen and path.exists():
                self.seen[str(path)] = path.stat().st_mtime
        return len(self.seen)

    def first_commit_after(self, moment: float) -> float | None:
        """Seconds from a Unix time to the first commit after it."""
        return min((at - moment for at in self.seen.values() if at > moment), default=None)

    def workers(self, title: str) -> list[psutil.Process]:
        """Living processes of a kind, those left out that were struck or lost their driver."""
        return [one for node in self.nodes.nodes for one in node.workers(title) if one.pid not in self.gone]

    def whole(self) -> bool:
        """Every process of the phase is there, and the engines listen."""
        if self.process is None or self.process.poll() is not None:
            return False
        for title, wanted in KINDS[self.phase].items():
            workers = self.workers(title)
            if len(workers) < wanted or (title == "ModelServer" and not all(listens(one) for one in workers)):
                return False
        return True

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def listens(process: psutil.Process) -> bool:
    """An engine's own door beside the ports of every Ray worker (one)."""
    try:
        return sum(one.status == psutil.CONN_LISTEN for one in process.net_connections("tcp")) >= 2
    except psutil.Error:
        return False


def wait(condition: Callable[[], bool], job: Job, what: str) -> float:
    """Seconds until `condition`, with the driver kept up meanwhile."""
    began = time.monotonic()
    while not condition():
        job.keep_up()
        if time.monotonic() - began > LIMIT_S:
            raise SystemExit(f"{what} did not come in {LIMIT_S:.0f} s; see {job.folder}/{job.phase}.log")
        time.sleep(0.05)
    return time.monotonic() - began


def strike(job: Job, target: str, rng: random.Random) -> None:
    """SIGKILL one process, or a node with all its processes."""
    if target == "driver":
        assert job.process is not None
        job.gone |= {one.pid for title in KINDS[job.phase] for one in job.workers(title)}
        job.process.send_signal(signal.SIGKILL)
        job.process.wait()
    elif target == "raylet":
        job.nodes.kill(rng.choice(job.nodes.nodes[1:]))
        job.nodes.add(SPEC)
    else:
        pid = rng.choice(sorted(one.pid for one in job.workers(target)))
        job.gone.add(pid)
        os.kill(pid, signal.SIGKILL)


def one_kill(job: Job, rng: random.Random, number: int, seed: int) -> Kill | None:
    """Wait until all is well, kill, wait until all is well again; None when the work ended meanwhile."""
    wait(lambda: job.done() or job.whole(), job, "a whole cluster")
    before = job.commits()
    wait(lambda: job.done() or job.commits() > before, job, "a commit")
    time.sleep(rng.uniform(0.0, 2.0))
    target = rng.choice(TARGETS[job.phase])
    if job.done() or not job.whole():
        return None
    before, moment = job.commits(), time.time()
    strike(job, target, rng)
    wait(lambda: job.done() or job.whole(), job, f"recovery of {target}")
    at = job.commits()
    wait(lambda: job.done() or job.commits() > at, job, f"a commit after the recovery of {target}")
    whole_s = time.time() - moment
    commit_s = job.first_commit_after(moment)
    return Kill(job.phase, seed, number, TITLES.get(target, target), before, round(commit_s or whole_s, 2), round(whole_s, 2))


def training_rows(count: int = 40) -> list[TrainingRow]:
    draw = random.Random(0)
    rows = []
    for number in range(count):
        prompt = tuple(draw.randrange(5, 260) for _ in range(draw.randrange(10, 60)))
        completion = (*prompt[:6], 2)
        rows.append(
            TrainingRow(
                arm="correction",
                prompt_token_ids=prompt,
                prompt_origin=PromptOrigin.SAMPLED,
                completion_token_ids=completion,
                loss_span=LossSpan(start=len(prompt), stop=len(prompt) + len(completion)),
                episode_id=f"{number:064x}",
                turn=0,
                task_key="k",
                source="rewritten_turn",
            )
        )
    return rows


def train_all(folder: Path, address: str) -> None:
    """The driver of the training phase: so many small jobs, one after the other; those that are stored are not trained again."""
    from cluster.tiny import make_tiny_model

    base = folder / "base"
    if not (base / "config.json").is_file():
        make_tiny_model(base, max_len=256)
    source = LocalSource(str(folder / "store"))
    source.open().put_if_absent("rows.parquet", encode_records(training_rows(), table_of(TrainingRow)))
    config = TrainConfig(global_batch=4, epochs=STEPS // 10, save_steps=2, learning_rate=1e-3, max_length=128, workers=2, max_failures=1000)
    with open_session(SessionConfig(address=address)):
        for number in range(TRAININGS):
            job = TrainingJob(
                "base", str(base), "correction", "rows.parquet", "d", number, f"{RUN}/train/job{number}", config.model_dump(mode="json")
            )
            RayLoraTrainer(source, str(folder / "scratch"), spread=True, step_delay_s=0.2).train(job)


@dataclass(frozen=True)
class SlowSource:
    """The reference policy, as slow as a model."""

    inner: ReferenceSource
    pause_s: float

    @property
    def model_id(self) -> str:
        return self.inner.model_id

    def open(self) -> SlowModel:
        return SlowModel(self.inner.open(), self.pause_s)


class SlowModel:
    def __init__(self, inner: ChatModel, pause_s: float) -> None:
        self.inner, self.pause_s = inner, pause_s

    @property
    def model_id(self) -> str:
        return self.inner.model_id

    async def complete(self, request: ModelRequest) -> Completion:
        await asyncio.sleep(self.pause_s)
        return await self.inner.complete(request)

    async def aclose(self) -> None:
        await self.inner.aclose()


def play_all(folder: Path, address: str) -> None:
    """The driver of the playing phase: one rollout stage, closed by its manifest."""
    family, source = load_family("payroll"), LocalSource(str(folder / "store"))
    bundle = HarnessBundle.load(family.base_harness(Size.MINI))
    model = SlowSource(ReferenceSource("payroll", Style.REACTIVE, bundle, "mini"), float(os.environ.get("PAUSE_S", "0.15")))
    agent = AgentSource("payroll", model, bundle, "mini", str(mini_path()), 4096, Sampling())
    items = draw_items(family, Stream.SEARCH, Size.MINI, range(PLAYED), diversity=3)
    writer = StageWriter.begin(source.open(), run=RUN, stage="play", inputs={"harness": bundle.hash}, expected=len(items), code_version="0")
    with open_session(SessionConfig(address=address)):
        policy = FanoutPolicy(concurrency=4, tries=100)
        executor = ActorExecutor(policy, ActorOptions(actors=2, num_cpus=1))
        report = executor.map(RolloutStage(agent, source, RUN, "play"), items)
        executor.close()
    for outcome in report.owed:
        writer.owe(agent.spec(outcome.item).id, attempts=outcome.attempts)
    writer.wrote(len(items) - len(report.owed))
    writer.commit()


@contextmanager
def cluster() -> Iterator[LocalNodes]:
    with LocalNodes(NodeSpec(num_cpus=0), [SPEC, SPEC], jobs=False, auth=AuthMode.DISABLED) as nodes:
        yield nodes


def campaign(folder: Path, phase: str, *, seed: int, kills: int, budget_s: float) -> None:
    """One slice."""
    rng, ends = random.Random(seed), time.monotonic() + budget_s
    print(f"phase {phase}, seed {seed}, at most {kills} kills in {budget_s:.0f} s")
    with cluster() as nodes, (folder / "kills.jsonl").open("a") as rows:
        job = Job(folder, phase, nodes)
        try:
            number = 0
            while number < kills and time.monotonic() < ends and not job.done():
                kill = one_kill(job, rng, number, seed)
                if kill is not None:
                    number += 1
                    rows.write(json.dumps(asdict(kill)) + "\n")
                    rows.flush()
                    print(f"{number:3d} {kill.target:15s} next commit {kill.commit_s:6.1f} s, whole {kill.whole_s:6.1f} s")
        finally:
            job.stop()
    print(f"{job.commits()} commits; drivers started: {job.starts}")


def finish(folder: Path) -> int:
    """Bring both phases to their end and judge."""
    os.environ["PAUSE_S"] = "0.01"
    for phase in KINDS:
        if not (folder / f"{phase}.log").exists():
            continue
        with cluster() as nodes:
            job = Job(folder, phase, nodes)
            ends = time.monotonic() + 3600
            while not job.done() and time.monotonic() < ends:
                job.keep_up()
                time.sleep(0.5)
            job.stop()
    return verdict(folder)


def verdict(folder: Path) -> int:
    """Table of recoveries and what the store says; 0 when all promises hold."""
    rows = [Kill(**json.loads(line)) for line in (folder / "kills.jsonl").read_text().splitlines()]
    print(f"\n{'killed':17s} {'phase':9s} kills   next commit, s: median, max   all as before, s: median, max")
    for phase in KINDS:
        for target in TARGETS[phase]:
            name = TITLES.get(target, target)
            found = [one for one in rows if (one.phase, one.target) == (phase, name)]
            if found:
                first, whole = sorted(one.commit_s for one in found), sorted(one.whole_s for one in found)
                print(
                    f"{name:17s} {phase:9s} {len(found):5d} {statistics.median(first):22.1f} {first[-1]:6.1f} "
                    f"{statistics.median(whole):24.1f} {whole[-1]:6.1f}"
                )
    store = LocalSource(str(folder / "store")).open()
    checks = [verify_run(store, run) for run in (RUN, f"{RUN}-serve")]
    keys = [info.key for info in store.list(RUN) if info.key.endswith("/manifest.json")]
    manifests = [StageManifest.from_bytes(store.get(key)) for key in keys if "/train/" not in key]
    lost = sum(one.expected - one.rows.written - len(one.owed) for one in manifests)
    owed = sum(len(one.owed) for one in manifests)
    twice = sum(len(one.twice) for one in checks)
    print(f"\n{len(rows)} kills (seeds {sorted({one.seed for one in rows})})")
    print(f"episodes: {sum(one.episodes for one in checks)} committed, {lost} lost, {owed} owed, {twice} played to an outcome twice")
    named, orphans = sum(one.outputs for one in checks), sum(len(one.orphans) + len(one.uncounted) for one in checks)
    print(f"manifests: {sum(one.manifests for one in checks)}, naming {named} objects; orphans {orphans}")
    print(f"adapters: {sum('/train/' in key for key in keys)}; episodes unreadable: {sum(len(one.unreadable) for one in checks)}")
    return 0 if manifests and not lost and all(one.sound for one in checks) else 1


PLAYED = 4000
SERVED = 400
STEPS = 60
TRAININGS = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--phase", choices=KINDS, default="play")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--budget-s", type=float, default=240.0)
    parser.add_argument("--finish", action="store_true")
    parser.add_argument("--verdict", action="store_true")
    parser.add_argument("--drive", metavar="ADDRESS", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    chosen.folder = chosen.folder.resolve()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    os.environ["RAY_AUTH_MODE"] = "disabled"
    if chosen.drive:
        (train_all if chosen.phase == "train" else play_all)(chosen.folder, chosen.drive)
    elif chosen.verdict:
        return verdict(chosen.folder)
    elif chosen.finish:
        return finish(chosen.folder)
    else:
        campaign(chosen.folder, chosen.phase, seed=chosen.seed, kills=chosen.kills, budget_s=chosen.budget_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())
