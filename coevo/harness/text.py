"""Which characters a harness may hold: none that hides, reorders or can't be stored, so that what a person reads is what a model gets."""

from __future__ import annotations

import re
import unicodedata

from coevo.errors import ConfigError

__all__ = ["check_text"]

_CONTROL = "\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f"
_DIRECTION = "\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069"
_INVISIBLE = "\\u00ad\\u180e\\u200b\\u2060\\ufeff\\U000e0000-\\U000e007f"
_UNSTORABLE = "\\ud800-\\udfff\\ue000-\\uf8ff\\U000f0000-\\U0010ffff"
_REFUSED = re.compile(f"[{_CONTROL}{_DIRECTION}{_INVISIBLE}{_UNSTORABLE}]")


def check_text(file: str, text: str) -> None:
    """Raise `ConfigError` naming file, line and code point of the first character that is not allowed.

    Refused: control characters other than line feed and tab; direction marks, overrides and isolates (Unicode TR 36, CVE-2021-42574);
    zero-width spaces, soft hyphens and tag characters; lone surrogates and private use. Joiners (U+200C, U+200D) stay: scripts and emoji
    need them.
    """
    found = _REFUSED.search(text)
    if found is not None:
        line = text.count("\n", 0, found.start()) + 1
        seen = f"U+{ord(found[0]):04X} {unicodedata.name(found[0], 'without a name')}"
        raise ConfigError(f"{file}:{line}: a character that hides or can't be stored", seen=seen, fix="remove it or write it in words")
