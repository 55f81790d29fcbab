"""What a report is made of: stored records and nothing else, so the same store gives the same report (I12)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from coevo.errors import StoreError
from coevo.evolve.ablate import AblationRecord
from coevo.evolve.baselines import BaselineRecord
from coevo.evolve.rounds import SearchRecord
from coevo.evolve.tiers import Opening
from coevo.identity import content_hash
from coevo.localize.waves import MiningRecord
from coevo.records import Adapter, Comparison, Correction, Localization, Measurement, Record
from coevo.store.artifacts import StageManifest

__all__ = ["AttemptFacts", "DatasetFigures", "ReportFacts", "TunedRate", "sources"]


class AttemptFacts(BaseModel):
    """Tries at episodes: ids tried, all tries, most at one id, ids tried again, ids played to an outcome more than once."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ids: int
    tries: int
    most: int
    retried: int
    replayed: int


class DatasetFigures(BaseModel):
    """Counts of one arm's checked rows (`coevo.dataset.guard.DatasetFacts`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int
    trained_tokens: int
    longest: int
    sources: dict[str, int]
    cut: int = 0
    token_ratio: float | None = None


class TunedRate(BaseModel):
    """One learning rate of one arm, its measurement on selection instances under h*, and whether the arm got it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    arm: str
    learning_rate: float
    chosen: bool
    measurement: Measurement


class ReportFacts(Record):
    """Everything a report may use. What a run has not reached yet stays empty, and the report says so.

    Attributes:
        run, family, size: Which run on which tasks.
        config: The resolved configuration.
        code_version: Version that writes the report.
        level: Coverage of the intervals.
        base_files: Files of h0, for the diff.
        search: The search, with the files of its winner.
        ablation: What each evolved component earns; with the files of h*.
        baselines: What the search's episodes would have bought otherwise.
        transfer: Weak model and expert under h0 and h* on selection instances.
        transfer_comparisons: Pairs of `transfer`.
        grid: All cells on the test stream, one per training seed.
        comparisons: Pairs of `grid`.
        openings: Every opening of the test stream; empty in facts of runs that did not record them.
        localizations, corrections: One per failed and per localized episode.
        mining: The waves that gave them, where a number of rows was wanted.
        datasets: Arm -> counts.
        tuning: Every arm at every learning rate of the grid.
        adapters: One per arm and seed.
        curves: Model id -> training loss per optimizer step, where it was kept.
        publishes: What each canary measured, as stored; a `model_id` names the adapter.
        manifests: Of every closed stage that the report rests on.
        attempts: Tries at episodes.
    """

    run: str
    family: str
    size: str
    config: dict[str, Any] = Field(default_factory=dict)
    code_version: str = ""
    level: float = 0.95
    base_files: dict[str, str] = Field(default_factory=dict)
    search: SearchRecord | None = None
    ablation: AblationRecord | None = None
    baselines: BaselineRecord | None = None
    transfer: tuple[Measurement, ...] = ()
    transfer_comparisons: tuple[Comparison, ...] = ()
    grid: tuple[Measurement, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    openings: tuple[Opening, ...] = ()
    localizations: tuple[Localization, ...] = ()
    corrections: tuple[Correction, ...] = ()
    mining: MiningRecord | None = None
    datasets: dict[str, DatasetFigures] = Field(default_factory=dict)
    tuning: tuple[TunedRate, ...] = ()
    adapters: tuple[Adapter, ...] = ()
    curves: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    publishes: tuple[dict[str, Any], ...] = ()
    manifests: tuple[StageManifest, ...] = ()
    attempts: AttemptFacts | None = None


def sources(facts: ReportFacts, stages: Iterable[str], *, own: Mapping[str, str] | None = None) -> dict[str, str]:
    """Artifacts behind a section: key -> SHA-256 of its bytes, for the outputs and the manifests of these stages.

    Args:
        facts: The report's facts.
        stages: Stage names.
        own: Keys that records of the section name themselves.

    Raises:
        StoreError: There is none: numbers without an artifact may not be reported.
    """
    found = dict(own or {})
    wanted = set(stages)
    for manifest in facts.manifests:
        if manifest.stage in wanted:
            found |= {output.key: output.hash for output in manifest.outputs}
            found[f"{facts.run}/{manifest.stage}/{manifest.input_hash}/manifest.json"] = content_hash(manifest.to_bytes())
    if not found:
        fix = "pass the manifests of these stages with the facts"
        raise StoreError("numbers without an artifact may not be reported", seen=", ".join(sorted(wanted)), fix=fix)
    return dict(sorted(found.items()))
