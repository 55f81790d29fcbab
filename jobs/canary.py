"""An adapter served: merged into its base in a pool of its own, after the canary has proven the served weights."""

from __future__ import annotations

from itertools import islice
from typing import Any

import orjson

from coevo.ports import ModelSource
from coevo.records import Adapter, TrainingRow
from coevo.store.artifacts import read_records
from jobs.context import RunContext
from jobs.dataset import dataset_manifest
from jobs.estimates import CANARY_ROWS

__all__ = ["canary_facts", "published"]


def canary_rows(context: RunContext, adapter: Adapter) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(prompt, completion) ids of the first rows the adapter was trained on, filled up from the other arms when its own are few."""
    manifest = dataset_manifest(context)
    arms = sorted(context.config.dataset.arms, key=lambda arm: arm != adapter.arm)
    rows = read_records(context.store, [manifest.output(arm) for arm in arms], TrainingRow)
    return [(row.prompt_token_ids, row.completion_token_ids) for row in islice(rows, CANARY_ROWS)]


def published(context: RunContext, adapter: Adapter) -> ModelSource:
    """Serve an adapter: merged into the base, in a pool of its own, through the canary."""
    return context.serving.publisher.publish(adapter, canary_rows=canary_rows(context, adapter))


def canary_facts(context: RunContext, adapter: Adapter) -> dict[str, Any] | None:
    """What the canary measured, from the store; None before it ran."""
    key = f"{adapter.key}/publish.json"
    return orjson.loads(context.store.get(key)) if context.store.head(key) is not None else None
