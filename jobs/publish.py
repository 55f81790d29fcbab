"""`coevo publish`: adapters become servable under their immutable ids, after the canary has proven the served weights."""

from __future__ import annotations

from jobs.canary import canary_facts, published
from jobs.context import RunContext, StageResult
from jobs.dataset import require_arms
from jobs.train import adapters

__all__ = ["main"]

STAGE = "publish"


def main(context: RunContext) -> StageResult:
    """Publish what is not published, and tell the canary's figures."""
    require_arms(context.config)
    lines = []
    for adapter in adapters(context):
        if canary_facts(context, adapter) is None:
            published(context, adapter)
        facts = canary_facts(context, adapter)
        lines.append(f"{adapter.model_id}: " + (f"canary {facts}" if facts else "answered by a recording, nothing served"))
    return StageResult(STAGE, tuple(lines))
