"""A store that fails on schedule, and what it costs a fan-out: SeaweedFS behind the fault proxy, echo items through an executor.

    .venv/bin/python tests/bench/bench_faults.py [--seconds 60] [--rate 0.2] [--actors]

Three measurements. `independent`: every request fails with the given chance, each kind of fault alike. `bursts`: the same share of the time
the store is out altogether, in two bursts; the circuit breaker opens and closes. `permanent`: the store goes away for good; the rest is
owed. With `--actors` the items run in two Ray worker processes, whose breakers are their own and are not counted.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cluster.fault_proxy import FaultPhase, FaultProxy, NetworkFault
from coevo.fanout import FanoutPolicy, LocalExecutor
from coevo.ports import Executor, MapReport
from coevo.stages import EchoStage
from tests.seaweed import SeaweedServer, serve_seaweed

OUT = (NetworkFault.ERROR, NetworkFault.SLOW_DOWN, NetworkFault.RESET)
CONCURRENCY = 16
SLEEP_S = 1.0
POLICY = FanoutPolicy(concurrency=CONCURRENCY, tries=5, breaker_pause_s=1.0, breaker_patience_s=300.0)


class BreakerLog(logging.Handler):
    """Counts the breaker's words."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        """Count one."""
        for word in ("open", "closed"):
            self.said[word] += f"breaker {word}" in record.getMessage()


def executor(actors: bool, policy: FanoutPolicy, stack: ExitStack) -> Executor:
    """Local, or two worker processes of a private Ray session."""
    if not actors:
        made: Executor = LocalExecutor(policy)
    else:
        from cluster.executor import ActorExecutor, ActorOptions

        made = ActorExecutor(policy, ActorOptions(actors=2))
    stack.callback(made.close)
    return made


def measure(server: SeaweedServer, name: str, phases: Sequence[FaultPhase], items: int, *, actors: bool, policy: FanoutPolicy) -> None:
    """Run one job under a schedule and print its line."""
    words = BreakerLog()
    logging.getLogger("coevo.limits").addHandler(words)
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy("127.0.0.1", server.port, seed=1))
        source = server.source(endpoint=proxy.endpoint)
        stage = EchoStage(store=source, sleep_s=SLEEP_S, record_attempts=True)
        runner = executor(actors, policy, stack)
        runner.map(stage, ["warm"])
        proxy.counts.clear()
        proxy.schedule(phases)
        started = time.monotonic()
        report = runner.map(stage, [f"i{number:05d}" for number in range(items)])
        wall_s = time.monotonic() - started
        direct = replace(source, endpoint=server.endpoint).open()
        stored = sum(not info.key.endswith("/warm.json") for info in direct.list("echo/episodes/"))
        tell(name, report, proxy, words, wall_s=wall_s, stored=stored)
    logging.getLogger("coevo.limits").removeHandler(words)


def tell(name: str, report: MapReport, proxy: FaultProxy, words: BreakerLog, *, wall_s: float, stored: int) -> None:
    """One line of figures."""
    faults = sum(proxy.counts[kind] for kind in NetworkFault)
    share = faults / max(1, proxy.counts["requests"])
    tries = sum(outcome.attempts for outcome in report.outcomes)
    figures: dict[str, Any] = {
        "items": len(report.outcomes),
        "stored": stored,
        "owed": len(report.owed),
        "wall_s": round(wall_s, 1),
        "requests": proxy.counts["requests"],
        "failed": f"{share:.1%}",
        "attempts": tries,
        "most": max(outcome.attempts for outcome in report.outcomes),
        "opened": words.said["open"],
        "closed": words.said["closed"],
    }
    print(f"{name:<12}" + "  ".join(f"{key} {value}" for key, value in figures.items()), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Faults of the store against a fan-out.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=0.2)
    parser.add_argument("--actors", action="store_true")
    flags = parser.parse_args()
    lanes = CONCURRENCY * (2 if flags.actors else 1)
    items = int(flags.seconds / SLEEP_S * lanes)
    burst_s = flags.seconds * flags.rate / 2
    bursts = [FaultPhase(kinds=OUT, start_s=start, stop_s=start + burst_s) for start in (0.15 * flags.seconds, 0.55 * flags.seconds)]
    away = FaultPhase(kinds=OUT, start_s=3.0)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        server = stack.enter_context(serve_seaweed(Path(folder)))
        if flags.actors:
            from cluster.session import AuthMode, SessionConfig, open_session

            stack.enter_context(open_session(SessionConfig(num_cpus=4, auth=AuthMode.DISABLED)))
        print(f"{threading.active_count()} threads; {lanes} lanes, items of {SLEEP_S} s and two puts; faults for {flags.seconds:g} s")
        independent = FaultPhase(kinds=tuple(NetworkFault), rate=flags.rate, stop_s=flags.seconds)
        measure(server, "independent", [independent], items, actors=flags.actors, policy=POLICY)
        measure(server, "bursts", bursts, items, actors=flags.actors, policy=POLICY)
        measure(server, "permanent", [away], 10 * lanes, actors=flags.actors, policy=replace(POLICY, breaker_patience_s=5.0))


if __name__ == "__main__":
    main()
