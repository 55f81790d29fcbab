"""`coevo rollout`: the weak model under the evolved harness on the search stream: failures to correct, successes to keep."""

from __future__ import annotations

import orjson

from coevo.errors import StoreError
from coevo.harness.bundle import HarnessBundle
from coevo.identity import content_hash, derive_seed
from coevo.localize.waves import wave_ranges
from coevo.rollout import RolloutStage, draw_items
from coevo.store.artifacts import StageManifest
from coevo.tasks.family import Stream
from jobs.context import RunContext, StageResult
from jobs.evolve import evolved_harness
from jobs.fanout import check_owed, fan_out

__all__ = ["main", "mined", "rollout_items", "rollout_manifest"]

STAGE = "rollout"


def rollout_manifest(context: RunContext, bundle: HarnessBundle, wave: int = 0) -> StageManifest:
    """Play what is owed of a wave and close its stage; the manifest when it is closed."""
    items = rollout_items(context, wave)
    inputs = {"harness": bundle.hash, "model": context.weak_model_id, "items": content_hash(list(items))}
    done = context.finished(STAGE, inputs, context.sampling)
    if done is not None:
        return done
    if wave:
        context.display.note(f"wave {wave + 1} of at most {len(wave_ranges(context.config.localize))}: {len(items)} more rollouts")
    writer = context.writer(STAGE, inputs, context.sampling, expected=len(items))
    agent = context.agent(context.weak_source, bundle)
    report = fan_out(context, RolloutStage(agent, context.store_source, context.run, STAGE), items, bulk=True)
    check_owed(context, STAGE, report)
    owed = {outcome.item: outcome.attempts for outcome in report.owed}
    ids = {item: agent.spec(item).id for item in items}
    for item, attempts in owed.items():
        writer.owe(ids[item], attempts=attempts)
    played = [ids[item] for item in items if item not in owed]
    writer.wrote(len(played))
    episodes = context.episodes.get_all(played)
    index = [{"id": one.id, "success": one.success, "status": str(one.status)} for one in episodes]
    writer.write_bytes("index.json", orjson.dumps(index))
    writer.spend(usage=(one.usage for one in episodes))
    return writer.commit()


def mined(context: RunContext, manifest: StageManifest) -> tuple[list[str], list[str]]:
    """Ids of (failed, successful) episodes, in item order."""
    index = orjson.loads(context.store.get(manifest.output("index").key))
    if not isinstance(index, list):
        raise StoreError("the rollout index is damaged", seen=manifest.output("index").key, fix="delete the stage and run again")
    return [one["id"] for one in index if not one["success"]], [one["id"] for one in index if one["success"]]


def rollout_items(context: RunContext, wave: int = 0) -> tuple[str, ...]:
    """Search-stream instances of a wave, apart from those that the harness search used: a slice of one order, whatever its length."""
    first = derive_seed("rollout", context.config.seed) % 2**40 + 2**41
    places = wave_ranges(context.config.localize)[wave]
    seeds = range(first + places.start, first + places.stop)
    return draw_items(context.family, Stream.SEARCH, context.size, seeds, diversity=context.config.diversity)


def main(context: RunContext) -> StageResult:
    """Roll out and count."""
    failed, succeeded = mined(context, rollout_manifest(context, evolved_harness(context)))
    total = len(failed) + len(succeeded)
    more = len(wave_ranges(context.config.localize)) - 1
    waves = f"; up to {more} more waves, as far as rows are lacking" if more else ""
    return StageResult(STAGE, (f"{total} episodes under h*: {len(succeeded)} succeeded, {len(failed)} failed{waves}",))
