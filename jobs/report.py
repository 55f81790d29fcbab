"""`coevo report`: one HTML file and its JSON twin, from stored records alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import orjson

from coevo import __version__
from coevo.evaluate.grid import compare_cells
from coevo.evolve.tiers import read_openings
from coevo.identity import content_hash
from coevo.ports import PutResult
from coevo.records import Attempt, Status
from coevo.report.facts import AttemptFacts, DatasetFigures, ReportFacts
from coevo.report.page import render
from coevo.store.artifacts import StageManifest
from coevo.store.threads import fetch_all
from coevo.store.uri import object_uri
from jobs.canary import canary_facts
from jobs.context import RunContext, StageResult
from jobs.dataset import dataset_facts
from jobs.evaluate import comparisons, grid
from jobs.evolve import evolution
from jobs.rewrite import mining, waves
from jobs.train import adapters
from jobs.transfer import transfer
from jobs.tune import tuning

__all__ = ["facts_of", "main"]

STAGE = "report"


def facts_of(context: RunContext) -> ReportFacts:
    """Everything the finished stages stored. Stages that are not done are run: a report has no holes."""
    config, measured, trained = context.config, transfer(context), adapters(context)
    evolved, arms = evolution(context), bool(config.dataset.arms)
    mined = waves(context) if arms else ()
    by_name = {one.name: [one] for one in measured}
    publishes = [fact for one in trained if (fact := canary_facts(context, one)) is not None]
    return ReportFacts(
        run=context.run,
        family=config.family,
        size=config.size,
        config=config.model_dump(mode="json"),
        code_version=__version__,
        level=config.evaluate.level,
        base_files=context.base_harness.files(),
        search=None if evolved is None else evolved.search,
        ablation=None if evolved is None else evolved.ablation,
        baselines=None if evolved is None else evolved.baselines,
        transfer=tuple(measured),
        transfer_comparisons=tuple(compare_cells(by_name, level=config.evaluate.level, seed=config.seed)),
        grid=tuple(grid(context)),
        comparisons=tuple(comparisons(context)),
        openings=read_openings(context.store, context.run),
        localizations=tuple(one for wave in mined for one in wave.localizations),
        corrections=tuple(one for wave in mined for one in wave.corrections),
        mining=mining(context, mined) if arms else None,
        datasets={arm: DatasetFigures.model_validate(fact) for arm, fact in (dataset_facts(context) if arms else {}).items()},
        tuning=tuple(tuning(context)),
        adapters=tuple(trained),
        curves={one.model_id: curve for one in trained if (curve := _curve(context, one.key))},
        publishes=tuple(publishes),
        manifests=tuple(_manifests(context)),
        attempts=_attempts(context),
    )


def _curve(context: RunContext, adapter_key: str) -> tuple[float, ...]:
    """Training loss per step; it lies beside the adapter's manifest."""
    key = f"{adapter_key.rpartition('/')[0]}/curve.json"
    return tuple(orjson.loads(context.store.get(key))) if context.store.head(key) is not None else ()


def _manifests(context: RunContext) -> Iterator[StageManifest]:
    for info in context.store.list(f"{context.run}/"):
        if info.key.endswith("/manifest.json") and f"/{STAGE}/" not in info.key:
            data: dict[str, Any] = orjson.loads(context.store.get(info.key))
            if "stage" in data and "input_hash" in data:
                yield StageManifest.model_validate(data)


def _attempts(context: RunContext) -> AttemptFacts:
    """Tries per episode over all runs of the command."""
    tries: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    keys = [info.key for info in context.store.list(f"{context.run}/attempts/")]
    for attempt in map(Attempt.from_bytes, fetch_all(context.store, keys)):
        tries[attempt.id] += 1
        outcomes[attempt.id] += attempt.outcome != Status.INFRA_ERROR
    return AttemptFacts(
        ids=len(tries),
        tries=tries.total(),
        most=max(tries.values(), default=0),
        retried=sum(count > 1 for count in tries.values()),
        replayed=sum(count > 1 for count in outcomes.values()),
    )


def main(context: RunContext) -> StageResult:
    """Render, store, and tell the path."""
    html, twin = render(facts_of(context))
    twin_bytes = orjson.dumps(twin, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
    prefix = f"{context.run}/{STAGE}/{content_hash(twin_bytes)[:16]}"
    lines = []
    for name, data in (("report.html", html.encode()), ("report.json", twin_bytes)):
        if context.store.put_if_absent(f"{prefix}/{name}", data) is PutResult.CONFLICT:
            context.display.note(f"{prefix}/{name} exists with other bytes; kept")
        lines.append(object_uri(context.store_source.uri, f"{prefix}/{name}"))
    return StageResult(STAGE, (f"report: {lines[0]}", f"numbers: {lines[1]}"))
