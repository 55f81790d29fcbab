"""The correction rows of a finished run held against the world again: do stored calls give stored grades, are gains still there?

Run: python tests/bench/bench_correction_rows.py STORE RUN [--rows 100] [--repeats 12] [--seed 0] [--replay-only] [--set a.b=c ...]

STORE and RUN name a run whose rows are built (`coevo dataset` or further); its configuration is read from there. Two parts:

1. Every row of the arm `correction`: the logged tool calls of its episode, applied to a fresh world, must end in the stored grade and in
   the stored hash over all results; a rewritten row must train exactly the text that its correction chose. Any difference: exit code 1.
2. Up to --rows of the rewritten turns, drawn at random: the run's weak model continues the rewritten turn and the kept turn, --repeats
   times each, with seeds that neither localization nor verification used. Told: the share of rows whose gain is still above 0, with its
   95 % Wilson interval, and the mean success rates of both turns: few repeats miss small gains.

`--replay-only` needs no engine. Records of part 2 are committed one by one below `RUN/recheck/`: the same command again resumes. `--set` is
for where the weak model is served (`weak.engine=transformers`, `weak.replicas=1`, `cluster.cpus=4`); what decides results can't be changed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

import orjson

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cluster.stores import open_source
from coevo.config import Arm, RunConfig, override, parse_config
from coevo.dataset.arms import chosen_rewrite
from coevo.display import DisplayKind, open_display
from coevo.errors import PrerequisiteError
from coevo.identity import content_hash, derive_seed
from coevo.records import Correction, Episode, TrainingRow
from coevo.rewrite.recheck import RecheckStage, RecheckSummary, read_recheck, regraded, summarize
from coevo.store.artifacts import read_records
from jobs.context import RunContext
from jobs.dataset import dataset_manifest
from jobs.evolve import evolved_harness
from jobs.fanout import check_owed, fan_out
from jobs.rewrite import waves


class Rows(NamedTuple):
    """The arm's rows, their episodes by id, the corrections of the rewritten ones by episode id, and the identity of it all."""

    rows: Sequence[TrainingRow]
    episodes: dict[str, Episode]
    corrections: dict[str, Correction]
    input_hash: str


def stored_config(store: str, run: str, overrides: Sequence[str]) -> RunConfig:
    """The configuration that the run was started with, at this place."""
    data = orjson.loads(open_source(store).open().get(f"{run}/config.json"))
    for text in overrides:
        override(data, text)
    return parse_config(data | {"store": store})


@contextmanager
def nothing(context: RunContext) -> Iterator[None]:
    """Serves nothing: a run that would have to play something first is not finished."""
    raise PrerequisiteError("the run's rows are not built", seen=context.run, fix="run `coevo dataset CONFIG` first")
    yield


def read_rows(context: RunContext) -> Rows:
    """From the store; raises where the run would have to play something."""
    manifest = dataset_manifest(context)
    rows = list(read_records(context.store, [manifest.output(Arm.CORRECTION)], TrainingRow))
    ids = list(dict.fromkeys(row.episode_id for row in rows))
    rewritten = {row.episode_id for row in rows if row.source == "rewritten_turn"}
    corrections = [one for wave in waves(context) for one in wave.corrections if one.episode_id in rewritten]
    episodes = dict(zip(ids, context.episodes.get_all(ids), strict=True))
    return Rows(rows, episodes, {one.episode_id: one for one in corrections}, manifest.input_hash)


def trained_text(context: RunContext, correction: Correction) -> str:
    """The rewrite that the run trains on."""
    return chosen_rewrite(correction, context.config.dataset.selection).text


def differences(context: RunContext, read: Rows) -> list[str]:
    """What is not as stored, row by row."""
    told = {id: regraded(episode, context.family) for id, episode in read.episodes.items()}
    tokenizer, end = context.tokenizer, context.syntax.end_of_turn
    found = [f"{row.episode_id[:16]}@{row.turn}: {told[row.episode_id]}" for row in read.rows if told[row.episode_id]]
    for row in (row for row in read.rows if row.source == "rewritten_turn"):
        correction = read.corrections[row.episode_id]
        whole = tokenizer.decode(row.completion_token_ids)
        if row.turn != correction.turn or whole != trained_text(context, correction) + end:
            found.append(f"{row.episode_id[:16]}@{row.turn}: trains {whole!r}, the correction of turn {correction.turn} says otherwise")
    return found


def recheck(context: RunContext, read: Rows, *, rows: int, repeats: int, seed: int) -> RecheckSummary:
    """Continue both turns of a random sample with the run's weak model."""
    ids = sorted(read.corrections)
    chosen = Random(derive_seed("recheck", seed)).sample(ids, min(rows, len(ids)))
    rewrites = {id: (read.corrections[id].turn, trained_text(context, read.corrections[id])) for id in chosen}
    stage = RecheckStage(
        agent=context.agent(context.weak_source, evolved_harness(context)),
        store=context.store_source,
        prefix=f"{context.run}/recheck/{content_hash([read.input_hash, repeats])}",
        episodes_prefix=context.run,
        rewrites=rewrites,
        repeats=repeats,
    )
    report = fan_out(context, stage, chosen, bulk=False, episodes_per_item=2 * repeats)
    check_owed(context, "recheck", report)
    owed = {outcome.item for outcome in report.owed}
    return summarize([read_recheck(stage, id) for id in chosen if id not in owed])


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay, then continue."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", help="folder or URI")
    parser.add_argument("run", help="name of a run whose rows are built")
    parser.add_argument("--rows", type=int, default=100, help="rewritten rows to continue, at most")
    parser.add_argument("--repeats", type=int, default=12, help="continuations of each of the two turns")
    parser.add_argument("--seed", type=int, default=0, help="of the draw of rows")
    parser.add_argument("--replay-only", action="store_true", help="do not continue anything")
    parser.add_argument("--set", action="append", default=[], metavar="a.b=c", dest="overrides")
    options = parser.parse_args(arguments)
    if options.rows < 1 or options.repeats < 1:
        parser.error("--rows and --repeats are 1 or more")
    config, display = stored_config(options.store, options.run, options.overrides), open_display(DisplayKind.PLAIN)
    with RunContext.open(config, display=display, serve=nothing) as context:  # type: ignore[arg-type]
        read = read_rows(context)
        found = differences(context, read)
    sources = ", ".join(f"{count} {name}" for name, count in sorted(Counter(row.source for row in read.rows).items()))
    print(f"{len(read.rows)} correction rows ({sources}) of {len(read.episodes)} episodes; replayed: {len(found)} differ")
    print("\n".join(found), end="\n" if found else "")
    if not options.replay_only:
        with RunContext.open(config, display=display) as context:
            told = recheck(context, read, rows=options.rows, repeats=options.repeats, seed=options.seed)
        print(
            f"{told.rows} rewritten rows, {options.repeats} fresh continuations of each turn: gain above 0 in {told.positive}, 0 in "
            f"{told.level}, below in {told.negative}; still positive {told.share:.3f} [{told.low:.3f}, {told.high:.3f}]; success "
            f"{told.rewritten:.3f} rewritten, {told.kept:.3f} kept"
        )
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
