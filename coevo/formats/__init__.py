"""Chat formats: one module per syntax, looked up by name."""

from coevo.errors import ConfigError, nearest
from coevo.formats.family import ChatFormat
from coevo.formats.hermes import HermesFormat
from coevo.formats.mini import MiniFormat

__all__ = ["FORMATS", "chat_format"]

FORMATS: dict[str, ChatFormat] = {"mini": MiniFormat(), "hermes": HermesFormat()}
"""The formats shipped, by name."""


def chat_format(name: str) -> ChatFormat:
    """The format called `name`. Raises `ConfigError` naming the nearest known one."""
    if name not in FORMATS:
        raise ConfigError("unknown chat format", seen=name, fix=nearest(name, FORMATS))
    return FORMATS[name]
