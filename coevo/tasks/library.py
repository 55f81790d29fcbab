"""The documents of a world: found by words, read by id, long ones in parts.

Search counts the query's words among a document's keywords, or among the words of its title and text where it has none. Ranking is by that
count, then by id: the version in force has no advantage over a superseded one, so an agent must read what it found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from coevo.errors import ToolError
from coevo.tasks.paging import page_of, part_of, parts

__all__ = ["Document", "Library"]

_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class Document:
    """A text behind a tool.

    Attributes:
        id: Letters and digits, one token.
        title, text: What the tools show.
        keywords: Case-folded words that find it; empty: all words of title and text do.
        facts: Literals of the rules that the text carries, for policies and tests; empty for all versions not in force.
        topic: What it rules; None for all versions not in force and for distractors.
    """

    id: str
    title: str
    text: str
    keywords: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    topic: str | None = None


@lru_cache(maxsize=8192)
def _index(document: Document) -> frozenset[str]:
    if document.keywords:
        return frozenset(document.keywords)
    return frozenset(_WORD.findall(f"{document.title} {document.text}".casefold()))


class Library:
    """The search and read tools over documents.

    Args:
        documents: In shelf order.
        hits: Documents a search shows, or per page.
        part_chars: Length at which texts are cut into parts, in characters; None: never, and neither pages nor parts are shown.
    """

    def __init__(self, documents: Sequence[Document], *, hits: int = 5, part_chars: int | None = None) -> None:
        self._documents = tuple(documents)
        self._by_id = {one.id: one for one in self._documents}
        self._hits, self._part_chars = hits, part_chars

    def search(self, query: str, *, page: int = 1) -> dict[str, Any]:
        """Ids and titles, those with most of the words first; a page of them where texts are cut. Raises `ToolError` past the last page."""
        found = self._ranked(query)
        if self._part_chars is None:
            return {"documents": _titles(found[: self._hits])}
        shown = page_of(found, page, size=self._hits)
        return {"documents": _titles(shown.items), "page": shown.number, "pages": shown.count}

    def read(self, document: str, *, part: int = 1) -> dict[str, Any]:
        """Text and title. Raises `ToolError` for an unknown document or part."""
        one = self._by_id.get(document)
        if one is None:
            raise ToolError("unknown document; search_documents gives ids")
        if self._part_chars is None:
            return {"document": one.id, "text": one.text, "title": one.title}
        text, count = part_of(one.text, part, chars=self._part_chars)
        return {"document": one.id, "text": text, "title": one.title, "part": part, "parts": count}

    def page_with(self, query: str, document: str) -> int | None:
        """The page of a search that shows a document, for policies; None where the search does not find it."""
        found = [one.id for one in self._ranked(query)]
        return found.index(document) // self._hits + 1 if document in found else None

    def part_with(self, document: str, *values: str) -> int | None:
        """The first part of a document whose words carry all values, for policies; None where no single part does."""
        text = self._by_id[document].text
        cut = (text,) if self._part_chars is None else parts(text, chars=self._part_chars)
        return next((number for number, part in enumerate(cut, start=1) if all(value in part for value in values)), None)

    def _ranked(self, query: str) -> list[Document]:
        folded = query.casefold()
        exact, loose = set(folded.split()), set(_WORD.findall(folded))
        scored = [(len((exact if one.keywords else loose) & _index(one)), one) for one in self._documents]
        return [one for score, one in sorted(scored, key=lambda pair: (-pair[0], pair[1].id)) if score]


def _titles(documents: Iterable[Document]) -> list[dict[str, str]]:
    return [{"document": one.id, "title": one.title} for one in documents]
