"""Chat formats: one module per syntax, looked up by name."""

from coevo.errors import ConfigError, nearest
from coevo.formats.family import ChatFormat
from coevo.formats.gemma import GemmaFormat
from coevo.formats.hermes import HermesFormat
from coevo.formats.mini import MiniFormat
from coevo.formats.qwen3_coder import Qwen3CoderFormat

__all__ = ["FORMATS", "chat_format"]

FORMATS: dict[str, ChatFormat] = {one.name: one for one in (MiniFormat(), HermesFormat(), Qwen3CoderFormat(), GemmaFormat())}
"""The formats shipped, by name."""


def chat_format(name: str) -> ChatFormat:
    """The format called `name`. Raises `ConfigError` naming the nearest known one."""
    if name not in FORMATS:
        raise ConfigError("unknown chat format", seen=name, fix=nearest(name, FORMATS))
    return FORMATS[name]
