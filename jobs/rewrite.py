"""`coevo rewrite`: the expert rewrites the localized turn; a rewrite counts when replay verifies its gain.

With `localize.rows` this is where waves end: as long as verified rewrites are lacking, another wave is rolled out, localized and rewritten.
Every wave is three closed stages of its own; the stage `mining` closes them all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from coevo.localize.waves import MiningRecord, WaveFigures, wave_ranges
from coevo.records import Correction, Localization
from coevo.rewrite.stage import RewriteStage, read_correction
from coevo.store.artifacts import StageManifest, read_records
from jobs.context import RunContext, StageResult
from jobs.evolve import evolved_harness
from jobs.fanout import close_records, fan_out
from jobs.localize import localizations, localize_manifest, singles_prefix
from jobs.rollout import mined, rollout_items, rollout_manifest

__all__ = ["Wave", "main", "mining", "mining_manifest", "rewrite_manifest", "waves"]

STAGE = "rewrite"
MINING = "mining"


@dataclass(frozen=True)
class Wave:
    """One wave, closed. What it holds is read when it is asked for: a dataset that is finished needs the manifests alone.

    Attributes:
        context: The run.
        number: From 0.
        manifests: Of its rollout, its localization and its rewrites.
    """

    context: RunContext = field(repr=False, compare=False)
    number: int
    manifests: tuple[StageManifest, StageManifest, StageManifest]

    @cached_property
    def items(self) -> tuple[str, ...]:
        """Items wanted."""
        return rollout_items(self.context, self.number)

    @cached_property
    def _ids(self) -> tuple[list[str], list[str]]:
        return mined(self.context, self.manifests[0])

    @property
    def failed(self) -> list[str]:
        """Ids of failed episodes, in item order."""
        return self._ids[0]

    @property
    def succeeded(self) -> list[str]:
        """Ids of successful episodes, in item order."""
        return self._ids[1]

    @cached_property
    def localizations(self) -> tuple[Localization, ...]:
        """One per examined failure."""
        return tuple(localizations(self.context, self.number))

    @cached_property
    def corrections(self) -> tuple[Correction, ...]:
        """One per localized failure."""
        return tuple(read_records(self.context.store, self.manifests[2].outputs, Correction))

    @property
    def figures(self) -> WaveFigures:
        """Counts."""
        return WaveFigures(
            rollouts=len(self.failed) + len(self.succeeded),
            owed=sum(len(one.owed) for one in self.manifests),
            failures=len(self.failed),
            examined=len(self.localizations),
            localized=sum(one.turn is not None for one in self.localizations),
            verified=sum(one.verified for one in self.corrections),
        )


def rewrite_manifest(context: RunContext, wave: int = 0) -> StageManifest:
    """Rewrite what is owed of a wave and close its stage."""
    config, localized = context.config, localize_manifest(context, wave)
    inputs = {"localize": localized.input_hash}
    settings = {"rewrite": config.rewrite.settings(), "localize": config.localize.wave_settings()}
    done = context.finished(STAGE, inputs, settings)
    if done is not None:
        return done
    ids = [one.episode_id for one in localizations(context, wave) if one.turn is not None]
    writer = context.writer(STAGE, inputs, settings, expected=len(ids))
    stage = RewriteStage(
        agent=context.agent(context.weak_source, evolved_harness(context)),
        store=context.store_source,
        prefix=context.key(STAGE, inputs, settings).prefix,
        localize_prefix=singles_prefix(context, wave),
        episodes_prefix=context.run,
        candidates=config.rewrite.candidates,
        continuations=config.localize.continuations,
        alpha=config.localize.alpha,
        expert=context.rewriter,
    )
    each = config.rewrite.candidates * config.localize.continuations
    report = fan_out(context, stage, ids, bulk=True, episodes_per_item=each, expert_calls_per_item=config.rewrite.candidates)
    return close_records(context, writer, report, lambda id: read_correction(context.store, stage.prefix, id), name="corrections")


def waves(context: RunContext) -> tuple[Wave, ...]:
    """All waves of the run, played as far as rows are wanted: one where `localize.rows` wants none."""
    wanted, done = context.config.localize.rows, list[Wave]()
    for number in range(len(wave_ranges(context.config.localize))):
        done.append(_wave(context, number))
        if not wanted or sum(one.figures.verified for one in done) >= wanted:
            break
    return tuple(done)


def _wave(context: RunContext, number: int) -> Wave:
    rollout = rollout_manifest(context, evolved_harness(context), number)
    return Wave(context, number, (rollout, localize_manifest(context, number), rewrite_manifest(context, number)))


def mining_manifest(context: RunContext, done: tuple[Wave, ...]) -> StageManifest:
    """Close the waves of a run that wants rows: of all failures, which gave a verified rewrite, and why the others did not."""
    config = context.config.localize
    inputs = {f"rewrite-{number:03d}": one.manifests[-1].input_hash for number, one in enumerate(done)}
    settings = {"rows": config.rows, "max_rollouts": config.max_rollouts}
    closed = context.finished(MINING, inputs, settings)
    if closed is not None:
        return closed
    record = MiningRecord.of(config, (one.figures for one in done))
    sums, rewritten = record.total, sum(len(one.corrections) for one in done)
    writer = context.writer(MINING, inputs, settings, expected=sums.failures)
    writer.wrote(sums.verified)
    lost = {
        "not examined": sums.failures - sums.examined,
        "not localized": sums.examined - sums.localized,
        "not rewritten": sums.localized - rewritten,
        "not verified": rewritten - sums.verified,
    }
    for reason, rows in lost.items():
        if rows:
            writer.drop(reason, rows)
    writer.write_bytes("waves.json", record.to_bytes())
    return writer.commit()


def mining(context: RunContext, done: tuple[Wave, ...]) -> MiningRecord | None:
    """What the waves came to; None for a run that wants no number of rows."""
    if not context.config.localize.rows:
        return None
    return MiningRecord.from_bytes(context.store.get(mining_manifest(context, done).output("waves").key))


def main(context: RunContext) -> StageResult:
    """Rewrite, in as many waves as it takes, and count."""
    done = waves(context)
    records = [one for wave in done for one in wave.corrections]
    verified = sum(one.verified for one in records)
    offered = sum(len(one.candidates) for one in records)
    lines = (f"{verified} of {len(records)} localized turns have a verified rewrite, {offered} rewrites tried",)
    record = mining(context, done)
    return StageResult(STAGE, lines if record is None else (*lines, record.words))
