"""Pages of lists and parts of long texts: what a tool shows of something too long for one answer, and how it says that there is more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

from coevo.errors import ToolError

__all__ = ["Page", "page_of", "part_of", "parts"]

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """Page `number` of `count`, both from 1; an empty list has one empty page."""

    items: tuple[Item, ...]
    number: int
    count: int


def page_of(items: Sequence[Item], number: int, *, size: int) -> Page[Item]:
    """One page of at most `size` items. Raises `ToolError` that names the last page."""
    count = max(1, -(-len(items) // size))
    if not 1 <= number <= count:
        raise ToolError(f"there is no page {number}, the last is {count}")
    return Page(tuple(items[(number - 1) * size : number * size]), number, count)


@lru_cache(maxsize=8192)
def parts(text: str, *, chars: int) -> tuple[str, ...]:
    """`text` in parts of at most `chars` characters, cut between paragraphs; a longer paragraph is cut between words."""
    if len(text) <= chars:
        return (text,)
    pieces = [piece for paragraph in text.split("\n\n") for piece in _pieces(paragraph, chars)]
    done, open_part = [], pieces[0]
    for piece in pieces[1:]:
        if len(open_part) + 2 + len(piece) > chars:
            done.append(open_part)
            open_part = piece
        else:
            open_part = f"{open_part}\n\n{piece}"
    return (*done, open_part)


def part_of(text: str, number: int, *, chars: int) -> tuple[str, int]:
    """Part `number` of a text with a mark where it goes on, and the number of parts. Raises `ToolError` that names the last part."""
    cut = parts(text, chars=chars)
    if not 1 <= number <= len(cut):
        raise ToolError(f"there is no part {number}, the last is {len(cut)}")
    more = "" if number == len(cut) else f" [cut here; part={number + 1} goes on]"
    return cut[number - 1] + more, len(cut)


def _pieces(paragraph: str, chars: int) -> list[str]:
    pieces, rest = [], paragraph
    while len(rest) > chars:
        place = rest.rfind(" ", 1, chars + 1)
        place = chars if place < 0 else place
        pieces.append(rest[:place])
        rest = rest[place:].lstrip(" ")
    return [*pieces, rest]
