"""Reference policies of the repository: they know one way to do the work, but write only what they have read.

The difference between the files as they are and as they could be says what is left to do; a change is made when the rules behind it, the
lines that it replaces and the words that it brings are in view, otherwise they are looked up first. Reactive changes one file after the
other and reads rules when it needs them; plan-first reads all rules and all files, then changes them. When the context is limited, notes
carry what was learned and which files are open. Lines that nobody but a stranger wrote are taken back first, unless the grade accepts them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from coevo.chat import Message, Role, ToolCall
from coevo.tasks.family import Move, Style, Unrecoverable, World
from coevo.tasks.refactor.case import Case
from coevo.tasks.refactor.draft import CHANGELOG
from coevo.tasks.refactor.house import GUIDES
from coevo.tasks.refactor.jobs import Fact
from coevo.tasks.refactor.repository import HITS, PAGE_LINES, replaced
from coevo.tasks.refactor.standard import CONDUCT, RefactorFacts, facts
from coevo.tasks.world import TERMINAL_TOOL

__all__ = ["RefactorPolicy", "subwords"]

_PART = re.compile(r"[A-Za-z]+|[0-9]+")
_ENTRIES = 40
_CONTEXT = 8


@lru_cache(maxsize=8192)
def subwords(text: str) -> frozenset[str]:
    """The parts of which words and names are made: `compute_total2` has three."""
    return frozenset(_PART.findall(text))


@lru_cache(maxsize=8192)
def _squeezed(text: str) -> str:
    """Words and numbers only, one blank between them, so that the form of an observation does not matter."""
    parts = _PART.findall(text)
    return f" {' '.join(parts)} " if parts else ""


class _Step(NamedTuple):
    """A sentence and the call it announces."""

    sentence: str
    call: ToolCall


class _View:
    """What messages show: mentioned paths, known facts, read lines, parts of words."""

    def __init__(self, visible: Sequence[Message]) -> None:
        self._texts = [one.content.partition("<")[0] if one.role is Role.ASSISTANT else one.content for one in visible]
        self.words: set[str] = set().union(*(subwords(text) for text in self._texts))

    def mentions(self, text: str) -> bool:
        """Some message has this text."""
        return any(text in one for one in self._texts)

    def knows(self, fact: Fact) -> bool:
        """Some message carries the source and all tokens, and what a question was about."""
        wanted = frozenset(part for token in fact.tokens for part in subwords(token))
        return any(fact.source in text and fact.about in text and wanted <= subwords(text) for text in self._texts)

    def has_read(self, path: str, *texts: str) -> bool:
        """Every line of the first text stands in a message that names the file, there or in one of the other forms of the text."""
        seen = [_squeezed(one) for one in self._texts if path in one]
        forms = [text.splitlines() for text in texts]
        return all(any(_squeezed(line) in one for line in lines for one in seen) for lines in zip(*forms, strict=True))


class RefactorPolicy:
    """The oracle in one style; see the module docstring."""

    def __init__(self, style: Style) -> None:
        self._style = style

    def move(self, world: World, visible: Sequence[Message], *, limited: bool = False) -> Move | Unrecoverable:
        """See `coevo.tasks.family.Policy`."""
        if world.finished:
            return Unrecoverable("the world is finished")
        known, view = facts(world), _View(visible)
        step = self._step(world, known, view, limited=limited)
        return Move(f"{step.sentence} {_notes(known, view)}" if limited else step.sentence, (step.call,))

    def _step(self, world: World, known: RefactorFacts, view: _View, *, limited: bool) -> _Step:
        stray = _stray(known)
        if stray is not None:
            return _take_back(view, stray)
        pending = _pending(known)
        if not pending:
            return _close(world)
        plan_first = self._style is Style.PLAN_FIRST
        if plan_first and not view.mentions(GUIDES["contributing"]):
            return _Step("Plan: read the rules, find all places, read them, change them, run the tests.", _list(""))
        wanted = [fact for fact in _facts(known) if plan_first or (fact.source == GUIDES["contributing"]) == (pending[0] == CHANGELOG)]
        unknown = next((fact for fact in wanted if not view.knows(fact)), None)
        if unknown is not None:
            return _learn(known, view, unknown)
        if plan_first and not limited:
            unread = next((step for path in pending if (step := _look(known, view, path)) is not None), None)
            if unread is not None:
                return unread
        return _look(known, view, pending[0]) or _change(known, view, pending[0])


def _facts(known: RefactorFacts) -> list[Fact]:
    """All facts of all jobs, the changelog's rules first, owners before their answers."""
    found = dict.fromkeys(fact for job in known.case.jobs for fact in job.facts)
    return sorted(found, key=lambda fact: (fact.source != GUIDES["contributing"], bool(fact.about)))


def _pending(known: RefactorFacts) -> list[str]:
    """Paths to change, in working order: moved files, files that gain lines, those that lose them, documents, the changelog."""
    now, target = known.repository.files, known.case.target
    differing = [path for path in dict.fromkeys([*now, *target]) if now.get(path) != target.get(path)]
    if differing and _accepted(known):
        return []
    return sorted(differing, key=lambda path: (path == CHANGELOG, path.endswith(".md"), path in now, _growth(known, path)))


def _growth(known: RefactorFacts, path: str) -> int:
    return known.repository.files.get(path, "").count("\n") - known.case.target.get(path, "").count("\n")


def _accepted(known: RefactorFacts) -> bool:
    """Somebody did the work in another way, and the grader has nothing against it."""
    return _foreign(known) is not None and all(one.problem is None for one in known.judgements())


def _foreign(known: RefactorFacts) -> str | None:
    """A changed file that the way of this policy can't have: lines of a stranger, a path of a stranger, a file deleted for nothing."""
    for path, text in known.changed.items():
        wanted = path in known.case.target
        if wanted == (text is None) or (text is not None and not _own_lines(known.case, path).issuperset(text.splitlines())):
            return path
    return None


@lru_cache(maxsize=1024)
def _own_lines(case: Case, path: str) -> frozenset[str]:
    """Lines that a file has before the work, after it, and between the calls of `replace_word`; a moved file has those of its source."""
    sources = [text for one, text in case.before.items() if one == path or one not in case.target]
    lines = {line for text in (*sources, case.target[path]) for line in text.splitlines()}
    for old, new in _word_pairs(case):
        lines |= {replaced(line, old, new)[0] for line in lines if old in line}
    return frozenset(lines)


def _taken_back(known: RefactorFacts, text: str) -> str:
    """A text before the policy's own `replace_word`."""
    for old, new in _word_pairs(known.case):
        text = replaced(text, new, old)[0]
    return text


def _word_pairs(case: Case) -> list[tuple[str, str]]:
    return [(job.names[0], job.names[1]) for job in case.jobs if job.kind == "rename"]


def _stray(known: RefactorFacts) -> str | None:
    """A file to take back."""
    path = _foreign(known)
    return None if path is None or _accepted(known) else path


def _take_back(view: _View, path: str) -> _Step:
    if not view.mentions(path):
        return _Step("Something was changed that I did not want, so I look at all changes.", ToolCall("list_changes", {}))
    return _Step("This change is not what is wanted, so I take it back.", ToolCall("restore_file", {"path": path}))


def _close(world: World) -> _Step:
    """Run the tests behind the last change, then finish."""
    names = [call.name for call in world.log]
    last_write = max((index for index, name in enumerate(names) if name in CONDUCT.writes), default=-1)
    last_run = max((index for index, name in enumerate(names) if name == "run_tests"), default=-1)
    if last_run < last_write:
        return _Step("All places are changed, so I run the tests.", ToolCall("run_tests", {}))
    return _Step("The work is complete, so I finish.", ToolCall(TERMINAL_TOOL, {}))


def _list(folder: str, page: int = 1) -> ToolCall:
    return ToolCall("list_files", {"folder": folder, "page": page} if page > 1 else {"folder": folder})


def _learn(known: RefactorFacts, view: _View, fact: Fact) -> _Step:
    """Read the document or ask the person."""
    if fact.about:
        call = ToolCall("ask", {"person": fact.source, "about": fact.about})
        return _spot(known, view, fact.about) or _Step("I ask the owner about this function.", call)
    missing = _find(known, view, fact.source)
    if missing is not None:
        return missing
    text = known.repository.text(fact.source)
    wanted = frozenset(part for token in fact.tokens for part in subwords(token))
    return _Step("I read what the rules say.", _read(fact.source, _page_with(text, wanted)))


def _page_with(text: str, wanted: frozenset[str]) -> int:
    lines = text.splitlines()
    starts = range(0, max(len(lines), 1), PAGE_LINES)
    return max(starts, key=lambda start: (len(wanted & subwords("\n".join(lines[start : start + PAGE_LINES]))), -start)) // PAGE_LINES + 1


def _read(path: str, page: int) -> ToolCall:
    return ToolCall("read_file", {"path": path, "page": page} if page > 1 else {"path": path})


def _spot(known: RefactorFacts, view: _View, name: str) -> _Step | None:
    """A search that brings a name into view; None when it is there."""
    if view.mentions(name):
        return None
    for query in (query for job in known.case.jobs for query in job.queries):
        hits = known.repository.hits(query)
        lines = {path: known.repository.text(path).splitlines() for path, _ in hits}
        place = next((index for index, (path, line) in enumerate(hits) if name in lines[path][line - 1]), None)
        if place is not None:
            return _Step("I search for the places.", _search(query, place // HITS + 1))
    return _Step("I look for what calls this.", _search(name))


def _search(query: str, page: int = 1) -> ToolCall:
    return ToolCall("search", {"query": query, "page": page} if page > 1 else {"query": query})


def _find(known: RefactorFacts, view: _View, path: str) -> _Step | None:
    """A look that brings the path into view; None when it is there."""
    if view.mentions(path):
        return None
    for query in (query for job in known.case.jobs for query in job.queries):
        hits = known.repository.hits(query)
        place = next((index for index, (found, _) in enumerate(hits) if found == path), None)
        if place is not None and place < 10 * HITS:
            return _Step("I search for the places.", _search(query, place // HITS + 1))
    folder, wanted = path.rpartition("/")[0], path
    while folder and not view.mentions(f"{folder}/"):
        folder, wanted = folder.rpartition("/")[0], f"{folder}/"
    prefix = f"{folder}/" if folder else ""
    below = {one[len(prefix) :].partition("/")[:2] for one in known.repository.files if one.startswith(prefix)}
    entries = sorted({f"{prefix}{head}{slash}" for head, slash in below})
    place = entries.index(wanted) if wanted in entries else 0
    return _Step("I look at what there is.", _list(folder, place // _ENTRIES + 1))


def _look(known: RefactorFacts, view: _View, path: str) -> _Step | None:
    """What must be seen before a file is changed; None when all of it is in view."""
    now = known.repository.files
    if path not in now:
        return _find(known, view, _origin(known, path) or path)
    missing = _find(known, view, path)
    if missing is not None:
        return missing
    if path not in known.case.target:
        return None
    call = _next_call(known, path)
    shown = str(call.arguments.get("old", ""))
    if call.name == "edit_file" and not view.has_read(path, shown, _taken_back(known, shown)):
        return _Step("I read the file before I change it.", _read(path, _page_of(now[path], shown)))
    if call.name == "replace_word" and not view.has_read(path, shown):
        return _Step("I read the file before I change it.", _read(path, _page_of(now[path], shown)))
    lacking = subwords(str(call.arguments.get("new", ""))) - view.words
    return _source_of(known, view, lacking) if lacking else None


def _page_of(text: str, shown: str) -> int:
    """The page on which a text begins; the next one where its first lines stand at the very end."""
    return text[: text.index(shown)].count("\n") // PAGE_LINES + 1


def _source_of(known: RefactorFacts, view: _View, lacking: frozenset[str]) -> _Step | None:
    """A file that brings the words that a change needs, as it is, or taken back to what it was."""
    near = f"{known.case.package}/"
    best = max(
        known.repository.files.items(),
        key=lambda item: (len(lacking & subwords(item[1])), item[0].startswith(near), view.mentions(item[0])),
    )
    if lacking & subwords(best[1]):
        return _find(known, view, best[0]) or _Step("I read the code that belongs here.", _read(best[0], _page_with(best[1], lacking)))
    for path in known.changed:
        if lacking & subwords(known.case.before.get(path, "")):
            return _take_back(view, path)
    return None


def _origin(known: RefactorFacts, path: str) -> str | None:
    """The file that becomes `path` by moving."""
    if path in known.case.before:
        return None
    return next((one for one in known.case.before if one not in known.case.target), None)


def _change(known: RefactorFacts, view: _View, path: str) -> _Step:
    call = _next_call(known, path)
    return _Step(_SENTENCES[call.name], call)


_SENTENCES = {
    "edit_file": "I change these lines.",
    "replace_word": "I change the name in this file.",
    "move_file": "I move the file.",
    "delete_file": "This file has to go.",
    "restore_file": "I take this file back to what it was.",
}


def _next_call(known: RefactorFacts, path: str) -> ToolCall:
    """The next step of one file towards its target."""
    now, target = known.repository.files, known.case.target
    if path not in now:
        origin = _origin(known, path)
        if origin is None:
            return ToolCall("restore_file", {"path": path})
        return ToolCall("move_file", {"path": origin, "to": path}) if origin in now else ToolCall("restore_file", {"path": origin})
    if path not in target:
        moved = next((one for one in target if one not in known.case.before and one not in now), None)
        return ToolCall("delete_file", {"path": path}) if moved is None else ToolCall("move_file", {"path": path, "to": moved})
    text, wanted = now[path], target[path]
    for old, new in _word_pairs(known.case):
        done, count = replaced(text, old, new)
        if count and _distance(done, wanted) < _distance(text, wanted):
            return ToolCall("replace_word", {"path": path, "old": old, "new": new})
    old, new = _hunk(text, wanted)
    return ToolCall("edit_file", {"path": path, "old": old, "new": new})


@lru_cache(maxsize=2048)
def _distance(text: str, wanted: str) -> int:
    """Lines that differ."""
    return sum(line[0] in "+-" for line in difflib.ndiff(text.splitlines(), wanted.splitlines())) if text != wanted else 0


@lru_cache(maxsize=2048)
def _hunk(text: str, wanted: str) -> tuple[str, str]:
    """The first change towards `wanted`: a text that occurs once, and what takes its place."""
    old, new = text.splitlines(keepends=True), wanted.splitlines(keepends=True)
    codes = [code for code in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if code[0] != "equal"]
    _, start, stop, first, last = codes[0]
    for before in range(_CONTEXT):
        for after in (before, before + 1):
            head, tail = max(0, start - before), min(len(old), stop + after)
            shown = "".join(old[head:tail])
            if shown.strip() and text.count(shown) == 1:
                return shown, "".join([*old[head:start], *new[first:last], *old[stop:tail]])
    return text, wanted


def _notes(known: RefactorFacts, view: _View) -> str:
    """What is in view and still needed: facts as `docs/naming.md compute`, open files as `todo shop/report.py`."""
    entries = [" ".join(_once((fact.source, fact.about, *fact.tokens))) for fact in _facts(known) if view.knows(fact)]
    entries += [f"todo {path}" for path in _pending(known) if view.mentions(path)]
    return f"Notes: {'; '.join(entries) or 'none'}."


def _once(words: Iterable[str]) -> list[str]:
    return [word for word in dict.fromkeys(words) if word]
