"""The price sheet: dollars per instance hour and per million tokens, as data with its date.

The shipped sheet holds public list prices as known on the date of each entry, rounded; they are estimates to be replaced by a file of
one's own (`prices: FILE`), which is read instead of the shipped one or, with `extends: shipped`, on top of it. Pure Python: nothing here
asks a cloud for today's price.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coevo.chat import Usage
from coevo.errors import ConfigError, nearest
from coevo.yamltext import read_yaml

__all__ = ["SHIPPED", "InstancePrice", "Market", "PriceSheet", "TokenPrice", "load_prices"]

SHIPPED = Path(__file__).with_name("prices.yaml")
"""The sheet inside the package."""

_MILLION = 1_000_000
_HOUR_S = 3600.0


class Market(StrEnum):
    """How an instance is bought."""

    ON_DEMAND = "on_demand"
    """Kept until given back."""
    SPOT = "spot"
    """Cheaper; the cloud may take it back after a short notice."""


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TokenPrice(_Entry):
    """What a model endpoint asks per million tokens.

    Attributes:
        prompt, cached, completion: Dollars per million tokens; `cached` is the part of the prompt read from the endpoint's cache, None
            where it costs as much as the rest.
        as_of: Day on which these prices were known.
        note: Source, and what was assumed.
    """

    prompt: float = Field(ge=0)
    cached: float | None = Field(None, ge=0)
    completion: float = Field(ge=0)
    as_of: date
    note: str = ""

    def cost_usd(self, usage: Usage) -> float:
        """Dollars for these tokens."""
        cached = self.prompt if self.cached is None else self.cached
        fresh = usage.prompt_tokens - usage.cached_tokens
        return (fresh * self.prompt + usage.cached_tokens * cached + usage.completion_tokens * self.completion) / _MILLION


class InstancePrice(_Entry):
    """What one node costs.

    Attributes:
        gpu: GPU type as Ray labels it (`H100`, `L4`, ...); empty for a node without.
        gpus: GPUs of the node.
        cpus: Virtual CPUs of the node.
        on_demand, spot: Dollars per hour; `spot` None where no such market is known.
        region: Where the price holds.
        as_of: Day on which these prices were known.
        note: Source, and what was assumed.
    """

    gpu: str = ""
    gpus: int = Field(0, ge=0)
    cpus: int = Field(ge=1)
    on_demand: float = Field(ge=0)
    spot: float | None = Field(None, ge=0)
    region: str
    as_of: date
    note: str = ""

    def usd_per_hour(self, market: Market = Market.ON_DEMAND) -> float:
        """Dollars per hour of one node.

        Raises:
            ConfigError: The sheet knows no spot price.
        """
        if market is Market.ON_DEMAND:
            return self.on_demand
        if self.spot is None:
            raise ConfigError(
                "the price sheet has no spot price", seen=f"{self.gpu or 'CPU'} node in {self.region}", fix="add `spot:` to it"
            )
        return self.spot

    def cost_usd(self, seconds: float, *, share: float = 1.0, market: Market = Market.ON_DEMAND) -> float:
        """Dollars for `share` of the node over `seconds`."""
        return self.usd_per_hour(market) * share * seconds / _HOUR_S

    def share(self, *, gpus: float = 0.0, cpus: float = 0.0) -> float:
        """Part of the node that a worker with these reservations takes: of its GPUs when it has any, else of its CPUs."""
        if self.gpus:
            return gpus / self.gpus
        return cpus / self.cpus


class PriceSheet(_Entry):
    """All prices of a run.

    Attributes:
        as_of: Day of the newest entry.
        note: What these prices are.
        instances: Instance type -> price.
        tokens: Model name as its endpoint knows it -> price.
    """

    as_of: date
    note: str = ""
    instances: dict[str, InstancePrice] = Field(default_factory=dict)
    tokens: dict[str, TokenPrice] = Field(default_factory=dict)

    def instance(self, name: str) -> InstancePrice:
        """The price of an instance type. Raises `ConfigError` naming the nearest known one."""
        if name not in self.instances:
            raise ConfigError("the price sheet does not know this instance type", seen=name, fix=_add("instances", name, self.instances))
        return self.instances[name]

    def token_price(self, model: str) -> TokenPrice:
        """The price of a model's tokens. Raises `ConfigError` naming the nearest known one."""
        if model not in self.tokens:
            raise ConfigError("the price sheet does not know this model", seen=model, fix=_add("tokens", model, self.tokens))
        return self.tokens[model]


def load_prices(path: str | Path | None = None) -> PriceSheet:
    """Read a price sheet; None reads the shipped one.

    Args:
        path: YAML with `as_of`, `note`, `instances`, `tokens`. `extends: shipped` starts from the shipped sheet, entry by entry.

    Raises:
        ConfigError: Unreadable file, unknown key, a price below 0, a missing date.
    """
    file = SHIPPED if path is None else Path(path)
    data = _read(file)
    base = data.pop("extends", "")
    if base not in ("", "shipped"):
        raise ConfigError("a price sheet can extend the shipped one only", seen=base, fix="write `extends: shipped` or leave it out")
    if base:
        shipped = _read(SHIPPED)
        data = {**shipped, **data, **{part: {**shipped[part], **(data.get(part) or {})} for part in ("instances", "tokens")}}
    try:
        return PriceSheet.model_validate(data)
    except ValidationError as error:
        lines = [f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}, got {one.get('input')!r}"[:300] for one in error.errors()]
        raise ConfigError("the price sheet is not valid", seen=f"{file}: " + "\n    ".join(lines), fix=f"compare with {SHIPPED}") from error


def _read(file: Path) -> dict[str, Any]:
    try:
        data = read_yaml(file.read_text(encoding="utf-8"))
    except OSError as error:
        fix = "give the path of a YAML file in `prices:`"
        raise ConfigError("the price sheet can't be read", seen=f"{file}: {error.strerror}", fix=fix) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError("the price sheet is not YAML", seen=f"{file}: {error}", fix="mend the line named above") from error
    if not isinstance(data, dict):
        raise ConfigError("the price sheet holds no mapping", seen=str(file), fix=f"start from a copy of {SHIPPED}")
    return data


def _add(part: str, name: str, known: Mapping[str, object]) -> str:
    return f"{nearest(name, known)}; or add `{part}: {{{name}: ...}}` to the file of `prices:`"
