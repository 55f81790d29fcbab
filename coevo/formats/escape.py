r"""Text that would read as syntax, made harmless and read back as it was.

Formats whose values stand as raw text have no escape of their own, so a value that holds one of their tokens would end early or forge a
turn. The first character of such a token becomes `\uXXXX`, and so does the backslash of text that looks like such an escape; nothing else
changes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["broken", "escaped", "unescaped"]

_ESCAPE = re.compile(r"\\u(00[0-7][0-9a-f])")


def broken(text: str, tokens: Sequence[str]) -> str:
    """`text` with every token of the syntax broken: JSON, whose strings know such escapes already, reads back as it was."""
    for token in tokens:
        text = text.replace(token, f"\\u{ord(token[0]):04x}{token[1:]}")
    return text


def escaped(text: str, tokens: Sequence[str]) -> str:
    """`broken` for text without escapes of its own; `unescaped` gives it back."""
    return broken(_ESCAPE.sub(r"\\u005cu\1", text), tokens)


def unescaped(text: str) -> str:
    """Inverse of `escaped`."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
