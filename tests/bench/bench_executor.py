"""Throughput of the executors on echo episodes: one small commit each into a local folder, no model.

    python tests/bench/bench_executor.py --episodes 10000

Prints a table and, as the last line, the same numbers as JSON. `rate` is counted from the first outcome on, `start_s` is what came before
it; CPU is of the driver and of all processes that it started, Ray's own included. `LocalExecutor` is the yardstick: what the items
themselves cost in one process.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from cluster.executor import ActorExecutor, ActorOptions, BulkOptions, RayDataExecutor
from cluster.session import AuthMode, SessionConfig, open_session
from coevo.fanout import FanoutPolicy, LocalExecutor
from coevo.ports import Executor, ItemState
from coevo.stages import EchoStage
from coevo.store.local import LocalSource


class Row(NamedTuple):
    """One executor's figures."""

    executor: str
    episodes: int
    committed: int
    wall_s: float
    start_s: float
    rate: float
    cpu_ms: float


def cpu_seconds() -> float:
    """CPU of this process and its descendants, the reaped ones included."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def measure(name: str, executor: Executor, items: list[str], folder: Path) -> Row:
    """Map the echo stage over the items into a fresh folder."""
    source = LocalSource(str(folder / name.replace(" ", "-")))
    first: list[float] = []
    cpu, started = cpu_seconds(), time.monotonic()
    report = executor.map(EchoStage(source), items, on_progress=lambda _: first or first.append(time.monotonic() - started))
    wall_s = time.monotonic() - started
    executor.close()
    spent_s = cpu_seconds() - cpu
    committed = sum(outcome.state is ItemState.COMMITTED for outcome in report.outcomes)
    start_s = first[0] if first else wall_s
    shutil.rmtree(source.path, ignore_errors=True)
    return Row(name, len(items), committed, wall_s, start_s, len(items) / max(wall_s - start_s, 1e-9), 1000 * spent_s / len(items))


def plans(policy: FanoutPolicy, actors: int, block_sizes: list[int]) -> dict[str, Callable[[], Executor]]:
    """Name -> executor, in the order of the table."""
    made: dict[str, Callable[[], Executor]] = {
        "local": lambda: LocalExecutor(policy),
        "actors": lambda: ActorExecutor(policy, ActorOptions(actors=actors)),
    }
    for rows in block_sizes:
        made[f"ray data, {rows} rows"] = lambda rows=rows: RayDataExecutor(policy, BulkOptions(actors=actors, block_rows=rows))  # type: ignore[misc]
    return made


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=64, help="items in flight per process")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--blocks", type=int, nargs="*", default=[1, 8, 64], help="block sizes of Ray Data")
    parser.add_argument("--only", default="", help="run the executors whose name starts so")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    policy = FanoutPolicy(concurrency=arguments.concurrency)
    items = [f"e{index:06d}" for index in range(arguments.episodes)]
    rows: list[Row] = []
    folder = Path(tempfile.mkdtemp(prefix="bench-executor-"))
    try:
        with open_session(SessionConfig(auth=AuthMode.DISABLED, environment={"RAY_worker_niceness": "0"})):
            for name, make in plans(policy, arguments.actors, arguments.blocks).items():
                if name.startswith(arguments.only):
                    rows.append(measure(name, make(), items, folder))
                    show(rows[-1])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps([rounded(row) for row in rows]))


def show(row: Row) -> None:
    """One line of the table."""
    print(
        f"{row.executor:<20} {row.committed}/{row.episodes} committed  {row.rate:8.0f} episodes/s  {row.cpu_ms:7.2f} CPU ms/episode"
        f"  start {row.start_s:5.1f} s  wall {row.wall_s:6.1f} s",
        flush=True,
    )


def rounded(row: Row) -> dict[str, Any]:
    """JSON form."""
    return {key: round(value, 3) if isinstance(value, float) else value for key, value in row._asdict().items()}


if __name__ == "__main__":
    main()
