"""The expert of a run: who it is, what a call of it should cost, and whether it answers at all."""

from __future__ import annotations

import asyncio
from typing import Any

from cluster.stores import open_source
from coevo.chat import Usage
from coevo.config import RunConfig
from coevo.errors import ConfigError
from coevo.models.openai_api import OpenAISource
from coevo.models.recorded import RecordedSource, RecordingSource
from coevo.ports import BlobStore, StoreSource
from coevo.prices import TokenPrice, load_prices
from coevo.rewrite.account import ExpertAccount
from coevo.rewrite.llm import LLMRecipe
from coevo.rewrite.spend import use_of
from coevo.store.ledger import Ledger, Spend
from coevo.tasks.family import Size
from jobs.estimates import EPISODES
from jobs.expert_pool import NODE_HOURS, expert_pool_source

__all__ = [
    "call_estimate",
    "check_prices",
    "expert_account",
    "expert_identity",
    "expert_price",
    "expert_recipe",
    "probe_endpoint",
]

RECORDED = "expert"
"""Below the run: every answer that was paid for."""

_HEAD_TOKENS = 1_000
"""Instructions and tool schemas of an expert's prompt."""
_TELLING = 2
"""An expert's prompt in tokens, per token of the weak model's: JSON turns, and the failed turn with its checks."""


def _endpoint(config: RunConfig) -> OpenAISource | None:
    """The endpoint that is asked; None when the run asks none. Each rollout worker keeps its share of the rate limits."""
    expert, workers = config.expert, config.rollout.workers
    if expert.kind != "openai":
        return None

    def share(limit: float | None) -> float | None:
        return None if limit is None else limit / workers

    return OpenAISource(
        base_url=expert.base_url or "",
        model=expert.model or "",
        api_key_env=expert.api_key_env or "",
        api_key_file=expert.api_key_file or "",
        key_required=expert.api_key_env is not None or expert.api_key_file is not None,
        format_name=config.weak.chat_format,
        timeout_s=expert.timeout_s,
        max_retries=expert.retries,
        requests_per_minute=share(expert.requests_per_minute),
        tokens_per_minute=share(expert.tokens_per_minute),
    )


def expert_price(config: RunConfig) -> TokenPrice | None:
    """Dollars per token of the expert; None when the sheet does not know it, 0 for a pool that is paid by the hour.

    Raises:
        ConfigError: `expert.price` names an entry that is not there.
    """
    expert, sheet = config.expert, load_prices(config.prices)
    if expert.kind == "pool" and expert.price is None:
        return NODE_HOURS
    return sheet.token_price(expert.price) if expert.price is not None else sheet.tokens.get(expert.model or "")


def check_prices(config: RunConfig) -> None:
    """Refuse a budget in dollars for an expert of unknown price, before anything is asked.

    Raises:
        ConfigError: As said.
    """
    if config.expert.kind != "reference" and expert_price(config) is None and config.budget.usd is not None:
        raise ConfigError(
            "a budget in dollars needs the expert's price",
            seen=f"budget.usd={config.budget.usd:g}, no price of {config.expert.model}",
            fix="name an entry of the price sheet in expert.price, or bound budget.tokens instead",
        )


def expert_recipe(config: RunConfig, store: StoreSource) -> LLMRecipe | None:
    """The LLM and how it is asked, recorded on the way or from a recording; None for the reference policy."""
    expert, source = config.expert, _endpoint(config)
    folder = None if expert.recording is None else open_source(expert.recording)
    if source is not None:
        model: Any = RecordingSource(source, folder) if folder else RecordingSource(source, store, f"{config.name}/{RECORDED}")
    elif expert.kind == "pool":
        pool = expert_pool_source(config)
        model = RecordingSource(pool, folder) if folder else RecordingSource(pool, store, f"{config.name}/{RECORDED}")
    elif expert.kind == "recorded" and folder is not None:
        model = RecordedSource(folder, f"remote:{expert.model}")
    else:
        return None
    return LLMRecipe(model, expert.temperature, expert.max_tokens, expert_price(config))


def expert_identity(config: RunConfig, recipe: LLMRecipe | None) -> dict[str, str]:
    """What of the expert decides results: not where it is asked, how fast, or from which recording it answers."""
    if recipe is None:
        return {"kind": config.expert.kind, "style": config.expert.style}
    pool = {"chat_format": config.expert.pool.chat_format} if config.expert.kind == "pool" else {}
    return {"model_id": recipe.model_id, **pool}


def probe_endpoint(config: RunConfig) -> Spend | None:
    """Ask the endpoint one short question; what it cost, None when the run has no endpoint.

    Raises:
        PrerequisiteError: The key is missing, or the endpoint can't be reached, refuses the key or does not know the model.
    """
    source = _endpoint(config)
    if source is None:
        return None

    async def ask() -> Usage:
        model = source.open()
        try:
            return await model.probe()
        finally:
            await model.aclose()

    use = use_of(asyncio.run(ask()), calls=1, price=expert_price(config))
    return Spend(usd=use.usd, tokens=use.usage.prompt_tokens + use.usage.completion_tokens)


def call_estimate(config: RunConfig) -> Spend:
    """What one call of an LLM expert takes, for plans and reservations: rather too much than too little, and no bound.

    Raises:
        ConfigError: As `expert_price` does.
    """
    episode, answer = EPISODES[Size(config.size)], config.expert.max_tokens
    prompt = _HEAD_TOKENS + round(_TELLING * episode.prompt_tokens / episode.turns)
    use = use_of(Usage(prompt, 0, answer), calls=1, price=expert_price(config))
    return Spend(usd=use.usd, tokens=prompt + answer)


def expert_account(config: RunConfig, store: BlobStore, ledger: Ledger, recipe: LLMRecipe | None) -> ExpertAccount:
    """Pays the run's expert; the reference policy costs nothing."""
    if recipe is None:
        return ExpertAccount(store, ledger)
    own = f"{config.name}/{RECORDED}" if config.expert.recording is None else None
    return ExpertAccount(store, ledger, price=recipe.price, per_call=call_estimate(config), recording=own)
