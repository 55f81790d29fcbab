"""Every family, size, diversity and split: hygiene of all instances, speed, cost of forks and replays, and the table of sizes.

Run: python tests/bench/bench_families.py [--families payroll budget] [--sizes mini standard long] [--diversities 1 3 8 20]
     [--parts sweep speed table] [--long-sample 10] [--results docs/families.json] [--page docs/families.md] [--again]

`sweep` plays every instance of the fixed splits (of `long` the first `--long-sample` per diversity) through every check of
`tests/contract/hygiene.py`; what fails is listed and makes the exit status 1. `speed` times open + reference episode + grade, and forks and
replays at half an episode. `table` counts tools, reference lengths and observation tokens. Results are merged into one JSON file, one entry
per family and size with its commit; the page is drawn from all entries, so families can be run one by one and a broken run goes on where it
stopped (`--again` repeats what is there). Times are CPU milliseconds of one core (`time.process_time`), which other load hardly moves.
Tokens are characters / 4.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from coevo.chat import ToolCall
from coevo.tasks import FAMILIES, load_family
from coevo.tasks.family import Size, Style, TaskFamily, TaskInstance
from coevo.tasks.world import replay
from tests.contract import hygiene
from tests.contract.walks import Walk

ROOT = Path(__file__).resolve().parents[2]
DIALS = (1, 3, 8, 20)
STATES = 5
COMMAND = "python tests/bench/bench_families.py"


@dataclass
class Counts:
    """What a sweep did.

    Attributes:
        instances: Distinct instances examined.
        plays: Reference episodes from the start, all scored 1.0.
        states: Random states of mixed origin from which the reference was asked to go on.
        unrecoverable: Of these, called unrecoverable; the others ended at 1.0.
        cheap: Episodes of agents that do nothing, finish, only read, replay another solution or call at random; none succeeded.
        accepted: Random calls that the worlds accepted.
        checks: Reopened, forked and replayed worlds, interleaved reads, leak searches.
        cpu_s: CPU seconds.
        failures: What broke.
    """

    instances: int = 0
    plays: int = 0
    states: int = 0
    unrecoverable: int = 0
    cheap: int = 0
    accepted: int = 0
    checks: int = 0
    cpu_s: float = 0.0
    failures: list[str] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        """Sum field by field."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def examine(family: TaskFamily, instance: TaskInstance, canned: Sequence[ToolCall], number: int) -> tuple[Counts, Sequence[ToolCall]]:
    """All checks on one instance; its solution comes back for the next one."""
    counts, log = Counts(instances=1), canned
    checks: list[Callable[[], None]] = []
    try:
        hygiene.check_reopened(family, instance)
        walks = [hygiene.check_reference(family, instance, style, None) for style in Style]
        walks.append(hygiene.check_reference(family, instance, list(Style)[number % 2], hygiene.WINDOW))
        counts.plays, log = len(walks), walks[0].world.log
        for walk in walks:
            hygiene.check_in_view(family, walk)
        counts.unrecoverable = hygiene.check_recovery(family, instance, states=STATES)
        counts.states = STATES
        hygiene.check_idle(family, instance)
        if canned:
            hygiene.check_canned(family, instance, canned)
        counts.accepted = hygiene.check_random(family, instance)
        counts.cheap = 4 + bool(canned)
        checks = [
            lambda: hygiene.check_forks(family, instance, steps=9, every=4),
            lambda: hygiene.check_reads(family, instance),
            lambda: hygiene.check_leaks(family, instance, walks[0]),
        ]
        for check in checks:
            check()
        counts.checks = 1 + len(checks)
    except AssertionError as error:
        counts.failures.append(str(error)[:400])
    return counts, log


def sweep(family: TaskFamily, size: Size, diversity: int, long_sample: int) -> Counts:
    """Every instance of one fixed split."""
    instances = hygiene.split_instances(family, size, diversity)
    if size is Size.LONG:
        instances = instances[:: max(1, len(instances) // long_sample)][:long_sample]
    total, canned, start = Counts(), (), time.process_time()
    for number, instance in enumerate(instances):
        counts, canned = examine(family, instance, canned, number)  # type: ignore[assignment]
        total.add(counts)
    total.cpu_s = round(time.process_time() - start, 1)
    return total


def milliseconds(work: Callable[[], object]) -> float:
    """CPU milliseconds of one call."""
    start = time.process_time()
    work()
    return (time.process_time() - start) * 1000


def speed(family: TaskFamily, size: Size, count: int) -> dict[str, float]:
    """Medians over instances of all templates."""
    opened, episodes, forks, replays, states = [], [], [], [], []
    for instance in hygiene.sample(family, size, count):
        opened.append(milliseconds(lambda instance=instance: family.open(instance)))  # type: ignore[misc]
        episodes.append(milliseconds(lambda instance=instance: play(family, instance)))  # type: ignore[misc]
        log = play(family, instance).world.log
        half = replay(family, instance, log[: len(log) // 2])
        states.append(len(half.snapshot()))
        forks.append(milliseconds(lambda half=half: [half.fork() for _ in range(100)]) / 100)  # type: ignore[misc]
        replays.append(milliseconds(lambda half=half, instance=instance: replay(family, instance, half.log)))  # type: ignore[misc]
    median = statistics.median(episodes)
    return {
        "instances": count,
        "open_ms": statistics.median(opened),
        "episode_ms": median,
        "episodes_per_s": 1000 / median if median else float("inf"),
        "state_bytes": statistics.median(states),
        "fork_ms": statistics.median(forks),
        "replay_ms": statistics.median(replays),
    }


def play(family: TaskFamily, instance: TaskInstance) -> Walk:
    """Open, reference episode in the reactive style, grade."""
    walk = Walk(family.open(instance))
    walk.follow(family.policy(Style.REACTIVE))
    assert walk.world.grade().success, instance.key
    return walk


def table(family: TaskFamily, size: Size, count: int) -> dict[str, float]:
    """Tool count, calls of the reference, tokens of its observations, tokens of the world behind the tools."""
    walks = [play(family, instance) for instance in hygiene.sample(family, size, count)]
    calls = sorted(len(walk.turns) for walk in walks)
    return {
        "tools": len(family.tools(size)),
        "templates": len(family.templates(size)),
        "calls": statistics.median(calls),
        "calls_low": calls[0],
        "calls_high": calls[-1],
        "observation_tokens": statistics.median(sum(len(text) for text in walk.observations) / 4 for walk in walks),
        "state_tokens": statistics.median(len(walk.world.snapshot()) / 4 for walk in walks),
    }


def commit() -> str:
    """The short commit, with a plus where the tree differs."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no", "coevo/tasks") else "")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is asked and not there yet, store after each step, draw the page."""
    options = _options(argv)
    path = ROOT / options.results
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    broken = 0
    for name, size in _wanted(options):
        family = load_family(name)
        entry = results.setdefault(f"{name}/{size}", {})
        for key, work in _work(family, size, options):
            if key in entry and not options.again:
                continue
            found = work()
            entry[key] = {**found, "commit": commit()}
            broken += len(found.get("failures", ()))
            print(f"{name} {size} {key}: {_short(found)}", flush=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    if options.page:
        (ROOT / options.page).write_text(page(results))
    return 1 if broken else 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--sizes", nargs="+", default=[str(size) for size in Size], choices=[str(size) for size in Size])
    parser.add_argument("--diversities", nargs="+", type=int, default=list(DIALS), choices=DIALS)
    parser.add_argument("--parts", nargs="+", default=["sweep", "speed", "table"], choices=["sweep", "speed", "table"])
    parser.add_argument("--long-sample", type=int, default=10)
    parser.add_argument("--results", default="docs/families.json")
    parser.add_argument("--page", default="docs/families.md")
    parser.add_argument("--again", action="store_true")
    return parser.parse_args(argv)


def _wanted(options: argparse.Namespace) -> Iterator[tuple[str, Size]]:
    for name in options.families:
        for size in Size:
            if str(size) in options.sizes and load_family(name).templates(size):
                yield name, size


def _work(family: TaskFamily, size: Size, options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    count = 6 if size is Size.LONG else 20
    if "table" in options.parts:
        yield "table", lambda: table(family, size, count)
    if "speed" in options.parts:
        yield "speed", lambda: speed(family, size, count)
    if "sweep" in options.parts:
        for diversity in options.diversities:
            yield f"sweep {diversity}", lambda diversity=diversity: asdict(sweep(family, size, diversity, options.long_sample))  # type: ignore[misc]


def _short(found: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in found.items())


PROLOGUE = """# Task families

Families of business tasks, each in three sizes: `mini` fits the embedded model, `standard` asks about 10 to 40 tool calls of a real LLM
with the policy in documents, `long` hides the same rules behind pages, cut texts, distractors and other units' records. Each has twenty
templates per size; `coevo.tasks.splits` fixes 100 instances (website 50) per family, size and diversity, 20 / 20 / 60 over search,
selection and test.

This page is written by `{command}` from `families.json`, which keeps the commit of
every measurement; a plus behind a commit says that some family had changes that were not committed. Times are CPU milliseconds of one core
of a machine with other work on it, tokens are characters / 4.

## Sizes

Calls: of the reactive reference policy, median and range over instances of all templates. State: everything behind the tools.

"""


HYGIENE = """
## Hygiene

Every instance of the splits below (of `long` a sample), every check of `tests/contract/hygiene.py`; an instance that breaks any of them
counts as a failure. Plays: reference from the start, which must score 1.0. States: random ones, from which the reference must go on to 1.0
or say that success is out of reach (lost). Cheap: episodes of agents that do nothing, finish, only read, replay another instance's solution
or call at random, none of which may succeed. Splits without a row have not been swept yet.

"""


def page(results: dict[str, Any]) -> str:
    """The document."""
    names = [key for name in FAMILIES for size in Size if (key := f"{name}/{size}") in results]
    tables = [(key, results[key]["table"]) for key in names if "table" in results[key]]
    sizes = (
        (*key.split("/"), one["tools"], f"{one['calls']:g} ({one['calls_low']}-{one['calls_high']})", _tokens(one, "observation_tokens"),
         _tokens(one, "state_tokens"), one["commit"])
        for key, one in tables
    )  # fmt: skip
    speeds = (_speed_row(key, results[key]["speed"]) for key in names if "speed" in results[key])
    parts = [
        PROLOGUE.format(command=COMMAND),
        _grid(("family", "size", "tools", "calls", "observation tokens", "state tokens", "commit"), sizes),
        "\n## Speed\n\nEpisode: open, reference, grade. Fork and replay at half an episode.\n\n",
        _grid(("family", "size", "open ms", "episode ms", "episodes/s", "state KiB", "fork ms", "replay ms", "commit"), speeds),
        HYGIENE,
        _total(names, results),
        _grid(
            ("family", "size", "diversity", "instances", "plays", "states", "lost", "cheap", "random calls accepted", "failures", "commit"),
            _sweeps(names, results),
        ),
    ]
    return "".join(parts)


def _sweeps(names: Iterable[str], results: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    for key in names:
        for diversity in DIALS:
            one = results[key].get(f"sweep {diversity}")
            if one:
                lost = f"{one['unrecoverable']} ({one['unrecoverable'] / max(1, one['states']):.0%})"
                numbers = (one["instances"], one["plays"], one["states"], lost, one["cheap"], one["accepted"], len(one["failures"]))
                yield (*key.split("/"), diversity, *numbers, one["commit"])


def _total(names: Iterable[str], results: dict[str, Any]) -> str:
    """All sweeps in one sentence."""
    done = [one for key in names for diversity in DIALS if (one := results[key].get(f"sweep {diversity}"))]
    count = {
        name: sum(one[name] for one in done) for name in ("instances", "plays", "states", "unrecoverable", "cheap", "accepted", "checks")
    }
    return (
        f"In all: {count['instances']:,} instances, {count['plays']:,} reference plays, {count['states']:,} random states of which "
        f"{count['unrecoverable']:,} ({count['unrecoverable'] / max(1, count['states']):.1%})\nlost, {count['cheap']:,} cheap episodes, "
        f"{count['accepted']:,} random calls accepted, {count['checks']:,} reopened, forked, replayed or searched worlds; "
        f"{sum(len(one['failures']) for one in done)} failures.\n\n"
    )


def _speed_row(key: str, one: dict[str, Any]) -> tuple[str, ...]:
    before, after = ("open_ms", "episode_ms", "episodes_per_s"), ("fork_ms", "replay_ms")
    state = f"{one['state_bytes'] / 1024:.1f}"
    return (*key.split("/"), *(_rounded(one[name]) for name in before), state, *(_rounded(one[name]) for name in after), one["commit"])


def _rounded(value: float) -> str:
    """Three digits, and no exponent."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _tokens(one: dict[str, float], name: str) -> str:
    return f"{round(one[name], -2 if one[name] > 1000 else -1):,.0f}"


def _grid(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [" | ".join(map(str, row)) for row in (head, ["---"] * len(head), *rows)]
    return "".join(f"| {line} |\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
