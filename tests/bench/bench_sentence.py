"""What an adapter's sentence does at the moment of the decision: the same weights, free to speak and made to call at once.

Run: python tests/bench/bench_sentence.py STORE RUN [--arms correction imitation] [--instances 300] [--set a.b=c ...]

STORE and RUN name a run whose adapters are trained; its configuration is read from there. The base model and every adapter of the arms play
fresh instances of the selection stream under the evolved harness twice: as they like, and with the mark of a call put before each of their
turns (`coevo.models.opening`), so that they can't say anything first. Told: success with its 95 % interval over instances and training
seeds, the share of turns with a sentence, and the paired difference. Where a model does better when it is kept from speaking, its weights
know the decision that its sentence loses; where it does not, training on sentences has cost it more than the sentence.

Episodes are committed to the run: the same command again plays nothing. `--set` is for where the weak model is served (`weak.replicas=1`,
`cluster.cpus=4`); what decides results can't be changed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from coevo.chat import ToolCall
from coevo.config import Arm
from coevo.display import DisplayKind, open_display
from coevo.evaluate.grid import Cell
from coevo.evaluate.stats import compare
from coevo.evolve.gate import SelectionStream
from coevo.formats.render import shared_prefix
from coevo.models.opening import OpeningSource
from coevo.ports import ModelSource
from coevo.records import Measurement
from coevo.rollout import draw_items
from coevo.tasks.family import Stream
from jobs.canary import published
from jobs.context import RunContext
from jobs.evolve import evolved_harness
from jobs.measuring import measure_cells
from jobs.train import adapters
from tests.bench.bench_correction_rows import stored_config


def calling(context: RunContext, source: ModelSource) -> OpeningSource:
    """The model made to call: its turns begin with what all calls of its format begin with."""
    tools = context.family.tools(context.size)
    first, *others = [context.tokenizer.encode(context.syntax.render_turn("", ToolCall(tool.name, {}), tools)) for tool in tools]
    opening = tuple(first[: min(shared_prefix(first, other) for other in others)])
    return OpeningSource(source, context.tokenizer.decode(opening), opening)


def models(context: RunContext, arms: Sequence[Arm]) -> Iterator[tuple[str, int | None, ModelSource]]:
    """Name, training seed and source of what is measured; an adapter is published when its turn comes."""
    yield "base", None, context.weak_source
    for adapter in (one for one in adapters(context) if one.arm in arms):
        yield adapter.arm, adapter.seed, published(context, adapter)


def told(name: str, free: Sequence[Measurement], muted: Sequence[Measurement]) -> str:
    """One line."""
    difference = compare(free, muted)

    def rate(measured: Sequence[Measurement]) -> str:
        by_seed = [100 * fmean(value for row in one.success.values() for value in row) for one in measured]
        return " ".join(f"{value:.1f}" for value in by_seed)

    spoken = fmean(one.conduct.spoken for one in free if one.conduct is not None)
    silent = fmean(one.conduct.spoken for one in muted if one.conduct is not None)
    return (
        f"{name}: free {rate(free)} %, made to call {rate(muted)} %: {100 * difference.delta:+.1f} [{100 * difference.low:+.1f}, "
        f"{100 * difference.high:+.1f}] points, {difference.verdict}; turns with a sentence {spoken:.3f} and {silent:.3f}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Play and print a line per arm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", help="folder or URI")
    parser.add_argument("run", help="name of a run whose adapters are trained")
    parser.add_argument("--arms", nargs="+", type=Arm, default=[Arm.CORRECTION], choices=list(Arm), metavar="ARM")
    parser.add_argument("--instances", type=int, default=300, help="of the selection stream, fresh")
    parser.add_argument("--set", action="append", default=[], metavar="a.b=c", dest="overrides")
    options = parser.parse_args(arguments)
    config = stored_config(options.store, options.run, options.overrides)
    measured: dict[str, tuple[list[Measurement], list[Measurement]]] = {}
    with RunContext.open(config, display=open_display(DisplayKind.PLAIN)) as context:
        seeds = SelectionStream(config.seed).draw("sentence", count=options.instances)
        items = draw_items(context.family, Stream.SELECTION, context.size, seeds, diversity=config.diversity)
        best = evolved_harness(context)
        for name, seed, source in models(context, options.arms):
            forms = {"free": source, "made to call": calling(context, source)}
            cells = [Cell(f"{name}, {form}", context.agent(one, best), "merged", seed) for form, one in forms.items()]
            free, muted = measure_cells(context, cells, items, "sentence")
            both = measured.setdefault(name, ([], []))
            both[0].append(free)
            both[1].append(muted)
    for name, (free_ones, muted_ones) in measured.items():
        print(f"{options.run} {told(name, free_ones, muted_ones)}", flush=True)


if __name__ == "__main__":
    main()
