"""An expert on engines of the run's own: who it is, known before any engine runs, and how its pool is started.

The pool's name follows from the run's, so the way in (`PoolSource`) can be built and identified without a pool behind it: a finished
run is resumed without starting one. Its tokens are bought from nobody; what it costs are node hours, on the bill like the weak model's.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from coevo.config import RunConfig
from coevo.errors import ConfigError
from coevo.formats import chat_format
from coevo.mini.model import folder_model_id
from coevo.models.rendered import RenderedSource
from coevo.prices import TokenPrice

if TYPE_CHECKING:
    from cluster.servers import PoolConfig

__all__ = ["NODE_HOURS", "expert_pool_config", "expert_pool_source"]

NODE_HOURS = TokenPrice(prompt=0.0, completion=0.0, as_of=date(2026, 11, 30), note="paid as node hours")
"""Price of a pool's tokens."""


def expert_pool_source(config: RunConfig) -> RenderedSource:
    """The way into the expert's pool, rendering messages in its own chat format.

    Raises:
        ConfigError: Unknown chat format, or a folder that names no end of turn.
        PrerequisiteError: A folder without weights.
    """
    from cluster.engines.family import stop_token_ids_of
    from cluster.pool_model import PoolSource
    from cluster.session import NAMESPACE

    folder, served = _folder(config), config.expert.pool
    chat_format(served.chat_format)
    source = PoolSource(
        pool=_name(config),
        namespace=NAMESPACE,
        replicas=served.replicas,
        served_id=folder_model_id(folder),
        tokenizer_path=folder,
        stop_token_ids=stop_token_ids_of(folder),
        request_timeout_s=config.expert.timeout_s,
    )
    return RenderedSource(source, folder, served.chat_format, served.max_model_len)


def expert_pool_config(config: RunConfig) -> PoolConfig:
    """The pool behind `expert_pool_source`, placed as `cluster.pools.expert` says."""
    from cluster.engines.configured import engine_config
    from cluster.placement import process_needs
    from cluster.servers import PoolConfig

    folder, served = _folder(config), config.expert.pool
    engine = engine_config(served, path=folder, model_id=folder_model_id(folder), seed=config.seed)
    needs = process_needs(config.cluster.pools.expert, 1.0)
    return PoolConfig(engine=engine, replicas=served.replicas, name=_name(config), request_timeout_s=config.expert.timeout_s, **needs)


def _name(config: RunConfig) -> str:
    return f"expert-{config.name}"


def _folder(config: RunConfig) -> str:
    folder = Path(config.expert.model or "").resolve()
    if not folder.is_dir():
        raise ConfigError("the expert's model folder is missing", seen=str(folder), fix="set expert.model to a Hugging Face folder")
    return str(folder)
