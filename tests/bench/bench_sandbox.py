"""What evolved code costs per turn, and how many candidates a minute a proposer gives, alone and four at once.

Run: python tests/bench/bench_sandbox.py [--parts overhead candidates] [--turns 400] [--seconds 20] [--answer-s 0.2] [--rollout-s 2.0]
     [--results FILE]

`overhead` executes calls on a world in memory under harnesses that differ in their components only, so the difference to `bare` is the
harness's. Wall time of one call, warm: hooks and composites run in a worker process, whose time the caller's CPU clock does not see.
`candidates` lets the LLM proposer work at the shelf family's failures with a scripted model whose every answer takes `--answer-s`, by one
agent and by four at once; the rollouts of all candidates of a call are played side by side and take `--rollout-s`. Both are sleeps: the
figures show what waits for what, and that the workshop, its lint and its screen keep up; they say nothing of any model or engine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from coevo.chat import Completion, ModelRequest, ToolCall
from coevo.evolve import components
from coevo.evolve.llm import LLMProposer, ProposerModel
from coevo.evolve.propose import Evidence
from coevo.formats import chat_format
from coevo.harness.bundle import HarnessBundle
from coevo.harness.sandbox import SandboxPool, shared_pool
from coevo.harness.session import HarnessSession
from coevo.harness.tools import ToolEntry
from coevo.models.scripted import turn_number
from tests.unit.shelf import FAMILY, Shelf, base, mixed_episodes
from tests.unit.workbench import TURNS

FORMAT = chat_format("hermes")
TODO = components.todo_note("survey", ("shelve", "discard"))
RECIPE = components.recipe_tool("weigh", "book", "open_book", "multiply", ("pages", "rate"))
WITH_RECIPE = (ToolEntry("weigh", composite=True), *base().tools)

HARNESSES: Mapping[str, tuple[HarnessBundle, str]] = {
    "bare": (base(), "open_book"),
    "one hook": (base().replace(hooks={"todo": TODO}), "open_book"),
    "four hooks": (base().replace(hooks={f"todo{number}": TODO for number in range(4)}), "open_book"),
    "composite of two calls": (base().replace(tools=WITH_RECIPE, composites={"weigh": RECIPE}), "weigh"),
}


def overhead(turns: int) -> dict[str, dict[str, float]]:
    """Milliseconds per executed call by harness; `first_ms` is a pool's first, with the start of its worker where one is needed."""
    found = {}
    for name, (bundle, tool) in HARNESSES.items():
        pool = SandboxPool(max_workers=1)
        world = Shelf(1)
        session = HarnessSession(bundle, FAMILY, world.call, sandboxes=pool)
        call = ToolCall(tool, {"book": next(iter(world.books))})
        taken: list[float] = []
        for turn in range(turns):
            started = time.perf_counter()
            session.execute(call, turn)
            taken.append(1000 * (time.perf_counter() - started))
        pool.close()
        steady = sorted(taken[1:])
        found[name] = {"first_ms": taken[0], "median_ms": statistics.median(steady), "p95_ms": steady[int(0.95 * len(steady))]}
    return found


class SlowWriter:
    """The scripted proposer of the tests, with a latency, and with edits that differ from agent to agent."""

    model_id = "scripted:slow"

    def __init__(self, answer_s: float) -> None:
        self._answer_s = answer_s

    async def complete(self, request: ModelRequest) -> Completion:
        """The turn, after the latency."""
        await asyncio.sleep(self._answer_s)
        said, call = TURNS[min(turn_number(request), len(TURNS) - 1)]
        if call.name == "write_component":
            own = f"# {request.session[:12]}" if call.arguments["component"] == "hook:guard" else request.session[:3]
            call = ToolCall(call.name, {**call.arguments, "text": f"{str(call.arguments['text']).rstrip()}\n{own}\n"})
        return Completion(FORMAT.render_turn(said, call, request.tools))

    async def aclose(self) -> None:
        """Nothing to close."""


@dataclass(frozen=True)
class SlowSource:
    """Recipe of a `SlowWriter`."""

    answer_s: float
    model_id: str = SlowWriter.model_id

    def open(self) -> SlowWriter:
        """A fresh model."""
        return SlowWriter(self.answer_s)


def candidates(agents: int, *, seconds: float, answer_s: float, rollout_s: float) -> dict[str, float]:
    """Candidates a minute with so many agents at once, for about `seconds`."""
    proposer = LLMProposer(ProposerModel(SlowSource(answer_s)), agents=agents, edits=2)
    evidence, found, calls, proposing_s = Evidence(mixed_episodes(), FAMILY), 0, 0, 0.0
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        asked = time.perf_counter()
        edits = proposer.propose(base(), evidence, Random(calls))
        proposing_s += time.perf_counter() - asked
        time.sleep(rollout_s)
        found, calls = found + len(edits), calls + 1
    wall_s = time.perf_counter() - started
    return {"per_minute": 60 * found / wall_s, "candidates": found, "calls": calls, "proposing_s": proposing_s / calls, "wall_s": wall_s}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=("overhead", "candidates"), default=("overhead", "candidates"))
    parser.add_argument("--turns", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--answer-s", type=float, default=0.2)
    parser.add_argument("--rollout-s", type=float, default=2.0)
    parser.add_argument("--results", type=Path)
    chosen = parser.parse_args()
    settings = {"seconds": chosen.seconds, "answer_s": chosen.answer_s, "rollout_s": chosen.rollout_s}
    facts: dict[str, Any] = {"settings": {**settings, "turns": chosen.turns}, "cpus": os.cpu_count(), "load": os.getloadavg()[0]}
    if "overhead" in chosen.parts:
        facts["overhead"] = costs = overhead(chosen.turns)
        for name, row in costs.items():
            extra = row["median_ms"] - costs["bare"]["median_ms"]
            shown = f"median {row['median_ms']:.3f} ms, p95 {row['p95_ms']:.3f} ms, first {row['first_ms']:.1f} ms"
            print(f"{name:24} {shown}, over bare {extra:.3f} ms", flush=True)
    for agents in (1, 4) if "candidates" in chosen.parts else ():
        facts.setdefault("candidates", {})[str(agents)] = row = candidates(agents, **settings)
        calls = f"{row['candidates']} in {row['calls']} calls of {row['proposing_s']:.1f} s"
        print(f"{agents} at once: {row['per_minute']:.1f} candidates a minute ({calls})", flush=True)
    if chosen.results is not None:
        chosen.results.write_text(json.dumps(facts, indent=1) + "\n")
    shared_pool().close()


if __name__ == "__main__":
    main()
