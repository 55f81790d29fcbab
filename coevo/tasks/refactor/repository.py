"""The files of an instance as tools see them: lists, pages, search, and changes over what was there at the start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from coevo.errors import ToolError
from coevo.tasks.paging import page_of

__all__ = ["HITS", "PAGE_LINES", "Repository", "matches", "replaced", "total_pages"]

PAGE_LINES = 60
"""Lines of a file per page."""

HITS = 12
"""Search hits per page."""

_ENTRIES = 40
_MAX_CHARS = 20_000
_MAX_CHANGED = 60
_PATH = re.compile(r"[A-Za-z0-9_\-]+(/[A-Za-z0-9_\-]+)*\.(py|md)")


@lru_cache(maxsize=4096)
def total_pages(text: str) -> int:
    """Pages of a file's text; an empty file has one."""
    return max(1, -(-len(text.splitlines()) // PAGE_LINES))


@lru_cache(maxsize=4096)
def matches(text: str, query: str) -> tuple[int, ...]:
    """Line numbers, from 1, of the lines that contain the query."""
    return tuple(number for number, line in enumerate(text.splitlines(), start=1) if query in line)


def replaced(text: str, old: str, new: str) -> tuple[str, int]:
    """The text with the whole word `old` replaced, and how often."""
    return re.subn(rf"(?<![A-Za-z0-9_]){re.escape(old)}(?![A-Za-z0-9_])", lambda _: new, text)


class Repository:
    """A view of `before` under `changed` (path -> text, or None for a deleted file); changes go into `changed`.

    Every method that refuses raises `ToolError` and changes nothing.
    """

    def __init__(self, before: Mapping[str, str], changed: dict[str, str | None]) -> None:
        self._before, self._changed = before, changed

    @property
    def files(self) -> Mapping[str, str]:
        """All files as they are now."""
        if not self._changed:
            return self._before
        merged = {**self._before, **self._changed}
        return MappingProxyType({path: text for path, text in merged.items() if text is not None})

    def text(self, path: str) -> str:
        """The text of a file."""
        text = self._changed[path] if path in self._changed else self._before.get(path)
        if text is None:
            raise ToolError("unknown file; list_files and search give paths")
        return text

    def listing(self, folder: str, page: int) -> dict[str, Any]:
        """Folders and files right below a folder, in alphabetical order."""
        prefix = folder.strip("/") + "/" if folder.strip("/.") else ""
        below = {path[len(prefix) :].partition("/") for path in self.files if path.startswith(prefix)}
        if not below:
            raise ToolError("unknown folder")
        entries = sorted({f"{prefix}{head}{slash}" for head, slash, _ in below})
        shown = page_of(entries, page, size=_ENTRIES)
        return {"entries": list(shown.items), "page": shown.number, "pages": shown.count}

    def page(self, path: str, page: int) -> dict[str, Any]:
        """Lines of one page of a file."""
        shown = page_of(self.text(path).splitlines(), page, size=PAGE_LINES)
        return {"path": path, "lines": list(shown.items), "page": shown.number, "pages": shown.count}

    def hits(self, query: str) -> list[tuple[str, int]]:
        """(path, line number) of every line that contains the query, files in alphabetical order."""
        return [(path, number) for path, text in sorted(self.files.items()) for number in matches(text, query)]

    def search(self, query: str, page: int) -> dict[str, Any]:
        """One page of hits with their lines."""
        if not query.strip():
            raise ToolError("bad arguments: query must not be empty")
        shown = page_of(self.hits(query), page, size=HITS)
        hits = [{"path": path, "line": line, "text": self.text(path).splitlines()[line - 1].strip()[:160]} for path, line in shown.items]
        return {"hits": hits, "page": shown.number, "pages": shown.count}

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace the one occurrence of `old`."""
        text = self.text(path)
        if not old:
            raise ToolError("bad arguments: old must not be empty")
        count = text.count(old)
        if count != 1:
            raise ToolError(
                f"the text to replace occurs {count} times in this file, it must occur once"
                if count
                else "the file does not contain the text to replace"
            )
        self._put(path, text.replace(old, new))

    def replace_word(self, path: str, old: str, new: str) -> int:
        """Replace a whole word everywhere in a file; how often."""
        if not re.fullmatch(r"\w+", old):
            raise ToolError("bad arguments: old must be one word")
        text, count = replaced(self.text(path), old, new)
        if not count:
            raise ToolError("the file does not contain this word")
        self._put(path, text)
        return count

    def create(self, path: str, text: str) -> None:
        """A new file."""
        if path in self.files:
            raise ToolError("there is such a file already; use edit_file")
        self._put(path, text)

    def move(self, path: str, to: str) -> None:
        """Another path for a file."""
        text = self.text(path)
        if to in self.files:
            raise ToolError("there is a file at the new path already")
        self._put(to, text)
        self.delete(path)

    def delete(self, path: str) -> None:
        """Without a file."""
        self.text(path)
        self._put(path, None)

    def restore(self, path: str) -> None:
        """As at the start, also when it was deleted; a file that was not there goes."""
        if path not in self._changed:
            raise ToolError("this file is as it was at the start")
        del self._changed[path]

    def _put(self, path: str, text: str | None) -> None:
        if not _PATH.fullmatch(path) or len(path) > 100:
            raise ToolError("bad arguments: a path has letters, digits, _ and -, folders with /, and ends with .py or .md")
        if text is not None and len(text) > max(_MAX_CHARS, 2 * len(self._before.get(path, ""))):
            raise ToolError(f"bad arguments: a file may have {_MAX_CHARS} characters")
        if path not in self._changed and len(self._changed) >= _MAX_CHANGED:
            raise ToolError(f"more than {_MAX_CHANGED} files are changed; restore some")
        if text == self._before.get(path):
            self._changed.pop(path, None)
        else:
            self._changed[path] = text
