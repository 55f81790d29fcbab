"""SIGKILL at random points of a harness search, and the same command again: it decides what an undisturbed one decides, and pays once.

    python tests/bench/bench_search_kills.py FOLDER --seed 5 --kills 10 [--ray]

A managed search with ablation and a baseline. Its weak model is recorded once by a real engine (`coevo evolve` on a local cluster); after
that the search is played from the recording without a disturbance, and again with its driver killed at points drawn among its episodes.
What both left must be equal, and no episode may have a second attempt that ended in an outcome. The driver of a replay is `jobs.evolve` on
the in-process executor, so that a restart costs an import and not a cluster; with `--ray` it is `coevo evolve` as users run it.
`bench_kills.py` kills the other stages, their workers and their nodes.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from coevo.config import load_config  # noqa: E402
from coevo.display.plain import PlainDisplay  # noqa: E402
from coevo.fanout import FanoutPolicy, LocalExecutor  # noqa: E402
from coevo.models.recorded import RecordedSource  # noqa: E402
from coevo.ports import Progress  # noqa: E402
from coevo.store.ledger import Budget, Ledger, Spend  # noqa: E402
from coevo.store.local import LocalSource  # noqa: E402
from coevo.store.verify import verify_run  # noqa: E402
from jobs import evolve  # noqa: E402
from jobs.context import RunContext  # noqa: E402
from tests.e2e.artifacts import differing  # noqa: E402
from tests.e2e.loop import CONFIG, Loop  # noqa: E402

RUN = "search"
LIMIT_S = 1800.0

SEARCHED = (
    "evolve.restarts=2",
    "evolve.generations=2",
    "evolve.proposals=3",
    "evolve.search_instances=20",
    "evolve.gate_instances=40",
    "evolve.parents=pareto",
    "evolve.futility_share=0.5",
    "evolve.max_lost_share=1.0",
    "evolve.alpha=0.5",
    "evolve.ablate_instances=8",
    "evolve.baselines=[prompt_only]",
    "evolve.baseline_instances=8",
    "evolve.budget.episodes=5000",
    "weak.replicas=1",
    "rollout.concurrency=1",
)
"""Beside `tiny.yaml`: a search that does everything, in some hundred episodes; alpha so large that small gates accept something. One
episode at a time: a recording answers at once, and a kill is to meet the count that was drawn for it."""


class InProcess:
    """What `jobs.serving.Serving` offers to a search, without a cluster: the recording as the weak model, and one executor."""

    def __init__(self, context: RunContext) -> None:
        self.weak = RecordedSource(LocalSource(str(context.config.weak.recording)), context.weak_model_id)
        self.small = self.bulk = LocalExecutor(FanoutPolicy(concurrency=context.config.rollout.concurrency))
        self.driver, self.metrics = self, self

    def progress(self, done: int, total: int) -> None:
        """Nobody sizes a pool by it."""

    def stage(self, seen: Progress) -> None:
        """Nobody measures it."""


class LocalRun(RunContext):
    """A run whose stages execute in this process."""

    @cached_property
    def serving(self) -> Any:
        return InProcess(self)


def search_locally(config: Path, overrides: list[str]) -> None:
    """The driver of a replay."""
    display = PlainDisplay()
    with LocalRun.open(load_config(config, overrides), display=display) as context:
        display.result("evolve", evolve.main(context).lines)


class LocalLoop(Loop):
    """The same commands, with that driver."""

    def command(self, verb: str, *overrides: str) -> list[str]:
        settings = (f"store={self.store}", f"name={self.name}", *overrides)
        flags = [part for setting in settings for part in ("--set", setting)]
        return [sys.executable, __file__, str(CONFIG), "--drive", *flags]


@dataclass
class Search:
    """One search in a folder of its own, its weak model recorded or played from the recording."""

    loop: Loop
    model: tuple[str, ...]

    @classmethod
    def of(cls, folder: Path, *model: str, ray: bool = False) -> Search:
        folder.mkdir(parents=True, exist_ok=True)
        kind = Loop if ray else LocalLoop
        return cls(kind(folder / "store", RUN), model)

    def committed(self) -> frozenset[str]:
        """Ids of the episodes that are durable."""
        return frozenset(key.rpartition("/")[2] for key in self.loop.keys("episodes/"))

    def count(self) -> int:
        """How many; a look at the folder, which is cheap enough to be taken twenty times a second."""
        folder = self.loop.store / self.loop.name / "episodes"
        return sum(name.endswith(".json.zst") for name in os.listdir(folder)) if folder.is_dir() else 0

    def until(self, episodes: int | None) -> tuple[float | None, int]:
        """Start the command and SIGKILL it at so many episodes (None: never); seconds to its first commit, and its exit code."""
        before, began = self.count(), time.monotonic()
        first: float | None = None

        def ready() -> bool:
            nonlocal first
            there = self.count()
            if first is None and there > before:
                first = time.monotonic() - began
            return episodes is not None and there >= max(episodes, before + 1)

        code = self.loop.kill_when(ready, verb="evolve", overrides=(*SEARCHED, *self.model), timeout_s=LIMIT_S)
        return first, code

    def finished(self) -> bool:
        return "evolve" in self.loop.manifests()

    def paid(self) -> list[tuple[str, int, int]]:
        """Every ledger of the run: its place, episodes and tokens settled; nothing may be held any more."""
        store = LocalSource(str(self.loop.store)).open()
        places = sorted({info.key.rpartition("/ledger/")[0] for info in store.list(f"{self.loop.name}/") if "/ledger/" in info.key})
        ledgers = [(place, Ledger(store, budget=Budget(), prefix=place)) for place in places]
        assert all(ledger.held == Spend() for _, ledger in ledgers), "a reservation is open"
        return [(place, ledger.spent.episodes, ledger.spent.tokens) for place, ledger in ledgers]

    def artifacts(self) -> dict[str, object]:
        """All that is stored, the search's record included, but for clocks; ledgers, which hold seconds, are compared by `paid`."""
        return {key: data for key, data in self.loop.artifacts().items() if "/ledger/" not in key}


def kill_search(folder: Path, *, seed: int, kills: int, ray: bool) -> int:
    """Record, replay whole, replay cut; the table and the verdict. 0 when both replays left the same and nothing was paid twice."""
    recorded = Search.of(folder / "recorded", f"weak.recording={folder / 'recorded' / 'recording'}", "weak.engine=transformers", ray=True)
    replay, kind = (recorded.model[0], "weak.engine=recorded"), "ray" if ray else "local"
    whole = Search.of(folder / f"whole-{kind}", *replay, ray=ray)
    cut = Search.of(folder / f"cut-{kind}-{seed}", *replay, ray=ray)
    for one in (recorded, whole):
        if not one.finished() and one.until(None)[1] != 0:
            raise SystemExit(f"the undisturbed search failed; see {one.loop.store.parent}/{one.loop.name}.log")
    total = whole.count()
    points = sorted(random.Random(seed).sample(range(1, total - 2), kills))
    print(f"seed {seed}: {total} episodes undisturbed; SIGKILL of the driver at {points}")
    print("kill  episodes committed  next commit after the restart, s")
    safe, recovered = list[frozenset[str]](), list[float]()
    for number, point in enumerate([*points, None]):
        first, code = cut.until(point)
        if number and first is not None:
            recovered.append(first)
        if number:
            print(f"{number:4d}  {len(safe[-1]):18d}  {'none was due' if first is None else f'{first:.1f}'}")
        if point is not None:
            assert code == -signal.SIGKILL, f"the driver ended with {code} before kill {number + 1}"
            safe.append(cut.committed())
    assert code == 0, f"the resumed search ended with {code}"
    return judge(whole, cut, safe, recovered)


def judge(whole: Search, cut: Search, safe: list[frozenset[str]], recovered: list[float]) -> int:
    left, right = whole.artifacts(), cut.artifacts()
    unequal, outcomes = differing(left, right), cut.loop.outcomes()
    lost = frozenset().union(*safe) - cut.committed()
    twice = {id: count for id, count in outcomes.items() if count > 1}
    print(f"{len(safe)} kills; seconds to the next commit, median {statistics.median(recovered):.1f}, largest {max(recovered):.1f}")
    counts = dict(sorted(Counter(outcomes.values()).items()))
    print(f"attempts with an outcome -> episodes: {counts}; committed before a kill and gone: {len(lost)}")
    print(f"artifacts compared: {len(left)}, the search's record among them; differing: {unequal or 0}")
    same = whole.paid() == cut.paid()
    print(f"ledgers (place, episodes, tokens), {'equal' if same else 'NOT EQUAL'}: {cut.paid()}")
    sound = verify_run(LocalSource(str(cut.loop.store)).open(), cut.loop.name).sound
    return 0 if same and sound and not (lost or twice or unequal) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--ray", action="store_true", help="`coevo evolve` on a local cluster, not in process")
    parser.add_argument("--drive", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--set", action="append", default=[], help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    os.environ["RAY_AUTH_MODE"] = "disabled"
    if chosen.drive:
        search_locally(chosen.folder, chosen.set)
        return 0
    return kill_search(chosen.folder.resolve(), seed=chosen.seed, kills=chosen.kills, ray=chosen.ray)


if __name__ == "__main__":
    sys.exit(main())
