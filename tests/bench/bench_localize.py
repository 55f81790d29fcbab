"""Injected faults over the seven families: how exactly localizers find the one wrong turn, beside trivial guesses, at what cost.

Run: python tests/bench/bench_localize.py [--cases 700] [--results bench_localize.jsonl] [--first-seed 0] [--seconds 3000] [--summary]

Cases, their weak agent and their labels: `coevo.localize.drill` (the agent repeats its mistake with probability 0.9 at the place, believes
that it did right, and finishes early with probability 0.01 a turn). Instances come from the search stream; detectors were written while
looking at seeds 1000 and 1001 only, which the bench leaves out. The rewriting expert is the family's reference policy, so figures with
replay are those of an expert that is right whenever the case can be saved. No model server is needed. Judges are not measured here: a
script that judges would be the detectors under another name, and a served model is another bench.

One line per case goes to the results file as soon as it is there, so a broken run goes on where it stopped, and `--cases` or `--seconds`
bound a run. Draws go round robin over seeds, kinds, families and sizes: any beginning of the file is a balanced sample. `--summary` prints
the tables of what is there. Times are CPU seconds of one core, which other load hardly moves.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from coevo.evaluate.stats import wilson
from coevo.localize.drill import Case, cases
from coevo.localize.evidence import Depth, scene_of, strongest
from coevo.localize.faults import DELAY, DELAYED, FaultKind
from coevo.localize.stage import LocalizeStage
from coevo.store import LocalSource
from coevo.tasks import load_family
from coevo.tasks.family import Size, Stream

FAMILIES = ("payroll", "budget", "stock", "anomaly", "browser", "website", "refactor")
SIZES = (Size.MINI, Size.STANDARD)
LOOKED_AT = (1000, 1001)
STRENGTH, SLIP = 0.9, 0.01
CANDIDATES, CONTINUATIONS, FIRST_LOOK, ALPHA = 10, 12, 4, 0.1

Row = dict[str, Any]
Guess = Callable[[Row], float | None]


def draws(first_seed: int) -> Iterator[tuple[int, str, Size, FaultKind, bool]]:
    """Seed by seed, every family, size and kind once, and once more with delayed harm where the kind has that form; a standard episode
    costs ten miniature ones, so it comes every third seed.
    """
    forms = [(kind, delayed) for kind in FaultKind for delayed in (False, True) if not delayed or kind in DELAYED]
    for seed in count(first_seed):
        for kind, delayed in forms:
            for family in FAMILIES:
                for size in SIZES:
                    if seed not in LOOKED_AT and (size is Size.MINI or seed % 3 == 0):
                        yield seed, family, size, kind, delayed


def measure(case: Case, family: str, store: LocalSource) -> Row:
    """One case under every localizer."""
    scene = scene_of(case.episode, load_family(family))
    basic, full = (strongest(scene, limit=CANDIDATES, depth=depth) for depth in (Depth.BASIC, Depth.FULL))
    stage = LocalizeStage(
        case.agent,
        store,
        "found",
        "run",
        candidates=CANDIDATES,
        continuations=CONTINUATIONS,
        alpha=ALPHA,
        depth=Depth.FULL,
        first_look=FIRST_LOOK,
        skip_same_call=True,
    )
    worker = stage.open()
    started = time.process_time()
    record, tokens = asyncio.run(worker.localize(case.episode))
    asyncio.run(worker.aclose())
    writes = [index for index in range(len(case.episode.turns)) if scene.writes_at(index)]
    return {
        "task": case.episode.spec.task_key,
        "kind": str(case.fault.kind),
        "delayed": case.delay >= DELAY,
        "delay": case.delay,
        "label": case.fault.turn,
        "turns": len(case.episode.turns),
        "last_write": writes[-1] if writes else len(case.episode.turns) - 1,
        "basic": basic[0].turn if basic else None,
        "full": full[0].turn if full else None,
        "recalled": case.fault.turn in {suspect.turn for suspect in full},
        "replay": record.turn,
        "continuations": record.continuations,
        "expert_turns": len(record.candidates),
        "tokens": tokens,
        "cpu_s": round(time.process_time() - started, 3),
    }


def collect(results: Path, *, wanted: int, first_seed: int, seconds: float) -> None:
    """Add cases until there are `wanted`, or the time is over."""
    lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()] if results.is_file() else []
    done = {tuple(line["draw"]) for line in lines}
    there = sum("label" in line for line in lines)
    deadline = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder, results.open("a", encoding="utf-8") as out:
        store = LocalSource(folder)
        for seed, family, size, kind, delayed in draws(first_seed):
            if there >= wanted or time.monotonic() > deadline:
                return
            draw = (seed, family, str(size), str(kind), delayed)
            if draw in done:
                continue
            instance = load_family(family).instance(Stream.SEARCH, seed, size, diversity=3)
            found = asyncio.run(cases(instance, kind, strength=STRENGTH, slip=SLIP, delayed=delayed))
            row = {"draw": draw, "family": family, "size": str(size)} | (measure(found[0], family, store) if found else {})
            print(json.dumps(row), file=out, flush=True)
            there += bool(found)


def summarize(rows: Sequence[Row]) -> None:
    """Accuracy and cost of each localizer, then evidence and replay by kind and by family."""
    constant = Counter(row["label"] for row in rows).most_common(1)[0][0]
    guesses: dict[str, Guess] = {
        f"constant turn {constant}, fitted here": lambda row: constant,
        "last turn": lambda row: row["turns"] - 1,
        "last write": lambda row: row["last_write"],
        "evidence, basic": lambda row: row["basic"],
        "evidence, full": lambda row: row["full"],
        "evidence, full + replay": lambda row: row["replay"],
    }
    late = sum(row["delay"] >= DELAY for row in rows)
    print(f"{len(rows)} cases, {statistics.mean(row['turns'] for row in rows):.1f} turns on average")
    print(f"harm {DELAY} turns or more after the fault: {late} ({100 * late / len(rows):.1f} %)")
    chance = statistics.mean(1 / row["turns"] for row in rows)
    away = statistics.mean(statistics.mean(abs(turn - row["label"]) for turn in range(row["turns"])) for row in rows)
    print(f"{'random turn':32} exact {100 * chance:5.1f} %  distance {away:.2f}")
    for name, guess in guesses.items():
        answered = [(row, turn) for row in rows if (turn := guess(row)) is not None]
        exact = sum(turn == row["label"] for row, turn in answered)
        low, high = wilson(exact, len(rows))
        distance = statistics.mean(abs(turn - row["label"]) for row, turn in answered)
        silent = f", {len(rows) - len(answered)} unlocalizable" if len(answered) < len(rows) else ""
        print(f"{name:32} exact {100 * exact / len(rows):5.1f} % [{100 * low:.1f}, {100 * high:.1f}]  distance {distance:.2f}{silent}")
    print(f"label among the {CANDIDATES} suspects: {100 * statistics.mean(row['recalled'] for row in rows):.1f} %")
    for name in ("continuations", "expert_turns", "tokens", "cpu_s"):
        print(f"{name} per case with replay: {statistics.mean(row[name] for row in rows):.2f}")
    for keys in (("kind",), ("family",), ("size",), ("delayed",), ("kind", "delayed"), ("family", "size")):
        print()
        for group in sorted({tuple(str(row[key]) for key in keys) for row in rows}):
            members = [row for row in rows if tuple(str(row[key]) for key in keys) == group]
            exact = sum(row["replay"] == row["label"] for row in members)
            print(f"{' '.join(group):32} {exact:4} of {len(members):4}  {100 * exact / len(members):5.1f} %")


def main() -> int:
    """Collect, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=700, help="cases in the results file")
    parser.add_argument("--results", type=Path, default=Path("bench_localize.jsonl"))
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--summary", action="store_true", help="only print what is there")
    options = parser.parse_args()
    if not options.summary:
        collect(options.results, wanted=options.cases, first_seed=options.first_seed, seconds=options.seconds)
    rows = [row for line in options.results.read_text(encoding="utf-8").splitlines() if "label" in (row := json.loads(line))]
    if rows:
        summarize(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
