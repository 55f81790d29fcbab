"""The engine that a run's configuration means on this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cluster.engines.family import EngineConfig, EngineKind
from coevo.config import ExpertPoolConfig, WeakConfig

__all__ = ["engine_config", "engine_kind"]

INSTALL_RECORD = "coevo-install.json"
"""What the installation found to work, beside the interpreter."""


def engine_kind(choice: str) -> tuple[EngineKind, str]:
    """The engine and why: the configured one, or what the installation found to work on this machine."""
    if choice != "auto":
        return EngineKind(choice), "configured"
    record = Path(sys.prefix) / INSTALL_RECORD
    if not record.is_file():
        return EngineKind.VLLM, "no installation record"
    facts = json.loads(record.read_text(encoding="utf-8"))
    return EngineKind(facts["engine"]), str(facts.get("reason", "installation record"))


def engine_config(served: WeakConfig | ExpertPoolConfig, *, path: str, model_id: str, seed: int) -> EngineConfig:
    """The engine of one model in a run, as its section says."""
    return EngineConfig(
        model_path=path,
        model_id=model_id,
        kind=engine_kind(served.engine)[0],
        dtype=served.dtype,
        max_model_len=served.max_model_len,
        max_num_seqs=served.max_num_seqs,
        kv_cache_bytes=served.kv_cache_mib << 20,
        seed=seed,
    )
