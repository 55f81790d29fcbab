"""Reading episodes without knowing the family: which calls ran, what they brought into view, and what recurs in successes.

Observations are stored as the text the model read, so values are found by name and by text: `hours=31`, `hours= 31` and `"hours": 31`
all say that `hours` is 31. Items are recognised by use (a word that an observation brought and a later call took) and then by
shape (`E204` and `E310` look alike).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from coevo.harness.tools import FINISH
from coevo.records import CallRecord, Episode, Status

__all__ = [
    "Carried",
    "Recipe",
    "Step",
    "Trace",
    "Worklist",
    "carried_values",
    "find_recipes",
    "find_worklist",
    "number_fields",
    "read_trace",
    "transitions",
    "words",
]

_WORD = re.compile(r"[A-Za-z0-9_\-]+")
_NUMBER_FIELD = re.compile(r"([A-Za-z_]\w*)\"?\s*[=:]\s*\"?(-?\d+(?:\.\d+)?)")
_SHARE = 0.9
_MIN_SUPPORT = 2


@dataclass(frozen=True, slots=True)
class Step:
    """A turn with a call. `calls` are the family calls that ran; `refused` that the model read a refusal."""

    turn: int
    shown: CallRecord
    calls: tuple[CallRecord, ...]
    refused: bool
    text: str


@dataclass(frozen=True, slots=True)
class Trace:
    """An episode as the operators read it; `steps` leaves out unparseable turns."""

    episode_id: str
    success: bool
    status: Status
    instruction: str
    steps: tuple[Step, ...]

    @property
    def last_turn(self) -> int:
        """Turn number of the last step; 0 without any."""
        return self.steps[-1].turn if self.steps else 0

    def accepted(self) -> Iterator[tuple[Step, CallRecord]]:
        """Family calls of steps that were not refused, in order."""
        for step in self.steps:
            if not step.refused:
                for call in step.calls:
                    yield step, call


def read_trace(episode: Episode) -> Trace:
    """The steps of an episode."""
    steps = tuple(
        Step(number, turn.call, turn.executed, turn.result_error, turn.result)
        for number, turn in enumerate(episode.turns)
        if turn.call is not None
    )
    instruction = episode.messages[1].content if len(episode.messages) > 1 else ""
    return Trace(episode.id, episode.success, episode.status, instruction, steps)


def words(value: Any) -> list[str]:
    """Every word in a text, or in the strings of a JSON value."""
    if isinstance(value, str):
        return _WORD.findall(value)
    if isinstance(value, dict):
        return [word for item in value.values() for word in words(item)]
    if isinstance(value, (list, tuple)):
        return [word for item in value for word in words(item)]
    return []


def number_fields(text: str) -> dict[str, float]:
    """Numbers by field name; the last mention counts."""
    return {name: float(number) for name, number in _NUMBER_FIELD.findall(text)}


def says(text: str, name: str, value: Any) -> bool:
    """Whether a text says that field `name` is `value`."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return False
    shown = re.escape(value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value))
    return re.search(rf"(?<!\w){re.escape(name)}\"?\s*[=:]\s*\"?{shown}(?![\w.]*\w)", text) is not None


def shape(word: str) -> str:
    """`E204` -> `A999`: words of one kind share it."""
    return re.sub(r"[a-z]", "a", re.sub(r"[A-Z]", "A", re.sub(r"\d", "9", word)))


@dataclass(frozen=True, slots=True)
class Worklist:
    """Work that arrives as a list of items.

    Attributes:
        listing: Family tool that names the items.
        settling: Family tools that deal with an item for good.
        item: Argument of the settling tools that names the item.
        shapes: Shapes of item words.
    """

    listing: str
    settling: tuple[str, ...]
    item: str
    shapes: frozenset[str]

    def listed(self, trace: Trace) -> tuple[str, ...]:
        """Items named in a trace, in order; empty when nothing was listed."""
        found: dict[str, None] = {}
        given = set(words(trace.instruction))
        for step, call in trace.accepted():
            if call.name == self.listing:
                found |= dict.fromkeys(word for word in words(step.text) if shape(word) in self.shapes and word not in given)
        return tuple(found)

    def open_items(self, trace: Trace) -> tuple[str, ...]:
        """Listed items that no accepted settling call took."""
        settled = {word for _, call in trace.accepted() if call.name in self.settling for word in words(call.arguments)}
        return tuple(item for item in self.listed(trace) if item not in settled)


def find_worklist(traces: Sequence[Trace]) -> Worklist | None:
    """The worklist that successful traces share; None without at least two successes that show one.

    The listing tool is the one that brings most of the words that later calls take. A settling tool takes each of its items exactly once,
    as the last call on that item, in nearly all cases; tools that only failed traces show count too, when they keep that rule and never
    meet an item that another settling tool took.
    """
    successes = [trace for trace in traces if trace.success]
    brought: dict[str, Counter[str]] = defaultdict(Counter)
    for trace in successes:
        for listing, word in _brought(trace):
            brought[listing][shape(word)] += 1
    candidates = sorted(brought, key=lambda name: (-sum(brought[name].values()), name))
    for listing in candidates:
        most = max(brought[listing].values())
        shapes = frozenset(kind for kind, count in brought[listing].items() if count >= max(_MIN_SUPPORT, most / 4) and "9" in kind)
        draft = Worklist(listing, (), "", shapes)
        several = sum(len(draft.listed(trace)) > 1 for trace in successes)
        if several < max(_MIN_SUPPORT, len(successes) / 2):
            continue
        settling = _settling(draft, successes, [trace for trace in traces if not trace.success])
        if settling:
            return Worklist(listing, settling, _item_argument(draft, settling, successes), shapes)
    return None


def _brought(trace: Trace) -> Iterator[tuple[str, str]]:
    """(tool, word) for every word that a tool's observation brought first and a later call took."""
    origin: dict[str, str] = dict.fromkeys(words(trace.instruction), "")
    used: set[str] = set()
    for step in trace.steps:
        for call in step.calls:
            for word in dict.fromkeys(words(call.arguments)):
                if origin.get(word) and word not in used:
                    used.add(word)
                    yield origin[word], word
        if len(step.calls) == 1 and not step.refused:
            for word in words(step.text):
                origin.setdefault(word, step.calls[0].name)


def _settling(draft: Worklist, successes: Sequence[Trace], failures: Sequence[Trace]) -> tuple[str, ...]:
    good = {tool for tool, (pairs, kept) in _pair_counts(draft, successes).items() if kept >= _SHARE * pairs}
    if not good:
        return ()
    for tool, (pairs, kept) in _pair_counts(draft, failures).items():
        if tool not in good and pairs > _MIN_SUPPORT and kept >= _SHARE * pairs and not _overlap(draft, failures, tool, good):
            good.add(tool)
    return tuple(sorted(good))


def _calls_by_item(draft: Worklist, trace: Trace) -> dict[str, list[str]]:
    items = set(draft.listed(trace))
    by_item: dict[str, list[str]] = defaultdict(list)
    for _, call in trace.accepted():
        if call.name not in (FINISH, draft.listing):
            for word in dict.fromkeys(words(call.arguments)):
                if word in items:
                    by_item[word].append(call.name)
    return by_item


def _pair_counts(draft: Worklist, traces: Sequence[Trace]) -> dict[str, tuple[int, int]]:
    """Tool -> (items it took, of which exactly once and as the last call)."""
    pairs: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    for trace in traces:
        for names in _calls_by_item(draft, trace).values():
            for tool in set(names):
                pairs[tool] += 1
                kept[tool] += names[-1] == tool and names.count(tool) == 1
    return {tool: (count, kept[tool]) for tool, count in pairs.items()}


def _overlap(draft: Worklist, traces: Sequence[Trace], tool: str, others: Iterable[str]) -> bool:
    known = set(others)
    return any(tool in names and known & set(names) for trace in traces for names in _calls_by_item(draft, trace).values())


def _item_argument(draft: Worklist, settling: Sequence[str], traces: Sequence[Trace]) -> str:
    names: Counter[str] = Counter()
    for trace in traces:
        items = set(draft.listed(trace))
        for _, call in trace.accepted():
            if call.name in settling:
                names.update(name for name, value in call.arguments.items() if isinstance(value, str) and value in items)
    return max(sorted(names), key=names.__getitem__) if names else ""


@dataclass(frozen=True, slots=True)
class Recipe:
    """`then` called with `fields` of what `read(parameter)` brought. `count` of `reads` reads in successes were followed like that."""

    read: str
    parameter: str
    then: str
    fields: tuple[str, ...]
    count: int
    reads: int

    def broken_at(self, trace: Trace) -> int | None:
        """Turn of the first read in a trace that `then` did not follow with exactly the fields that were read; None when all were."""
        for index, step in enumerate(trace.steps):
            if [call.name for call in step.calls] != [self.read] or step.refused:
                continue
            after = trace.steps[index + 1].calls if index + 1 < len(trace.steps) else ()
            if not after or after[0].name != self.then or not _flows(step.text, after[0]):
                return step.turn
        return None


def _flows(text: str, call: CallRecord) -> bool:
    return all(says(text, name, value) for name, value in call.arguments.items())


def find_recipes(traces: Sequence[Trace], *, exclude: Iterable[str]) -> list[Recipe]:
    """Two-step recipes that recur in successful traces, most frequent first.

    Args:
        traces: All traces; only successes are mined.
        exclude: Tools that a recipe may not contain: those that settle, list or finish, since a recipe must not do the task by itself.
    """
    barred = {*exclude, FINISH}
    reads: Counter[str] = Counter()
    flows: Counter[tuple[str, str, str, tuple[str, ...]]] = Counter()
    for trace in traces:
        if not trace.success:
            continue
        steps = [step for step in trace.steps if not step.refused]
        for step, after in zip(steps, [*steps[1:], None], strict=True):
            if len(step.calls) != 1 or (parameter := _only_text(step.calls[0])) is None:
                continue
            reads[step.calls[0].name] += 1
            if after is not None and len(after.calls) == 1 and after.calls[0].arguments and _flows(step.text, after.calls[0]):
                flows[(step.calls[0].name, parameter, after.calls[0].name, tuple(after.calls[0].arguments))] += 1
    found = [Recipe(*key, count=count, reads=reads[key[0]]) for key, count in flows.items()]
    kept = [one for one in found if not {one.read, one.then} & barred and one.read != one.then and one.count >= _MIN_SUPPORT]
    return sorted((one for one in kept if one.count >= 0.3 * one.reads), key=lambda one: (-one.count, one.read, one.then, one.fields))


def _only_text(call: CallRecord) -> str | None:
    """The name of a call's one argument when that is a string."""
    if len(call.arguments) != 1:
        return None
    name, value = next(iter(call.arguments.items()))
    return name if isinstance(value, str) else None


def transitions(sequences: Iterable[Sequence[str]]) -> list[tuple[str, str]]:
    """For each name its most frequent successor, where that one follows at least half the time and twice; finish is never a successor.

    Order: as the names first appear.
    """
    follows: dict[str, Counter[str]] = {}
    for sequence in sequences:
        for name, after in pairwise(sequence):
            if after != FINISH:
                follows.setdefault(name, Counter())[after] += 1
    steps = []
    for name, counts in follows.items():
        after, count = min(counts.items(), key=lambda item: (-item[1], item[0]))
        if count >= _MIN_SUPPORT and 2 * count >= counts.total():
            steps.append((name, after))
    return steps


@dataclass(frozen=True, slots=True)
class Carried:
    """A number that results carry under `field` and settling calls must take as `argument`."""

    field: str
    argument: str
    tools: tuple[str, ...]
    count: int

    def broken_at(self, trace: Trace) -> int | None:
        """Turn of the first settling call that took another number than the last one computed before it; None when none did."""
        known: float | None = None
        for step in trace.steps:
            for call in step.calls:
                if call.name in self.tools and known is not None and call.arguments.get(self.argument) != known:
                    return step.turn
            known = None if any(call.name in self.tools for call in step.calls) else number_fields(step.text).get(self.field, known)
        return None


def carried_values(traces: Sequence[Trace], worklist: Worklist) -> list[Carried]:
    """Which computed field ends as which argument of the settling tools, most frequent first."""
    found: Counter[tuple[str, str]] = Counter()
    taken: Counter[str] = Counter()
    tools: dict[str, set[str]] = defaultdict(set)
    for trace in traces:
        recent: dict[str, float] = {}
        for step in trace.steps if trace.success else ():
            for call in step.calls:
                if call.name in worklist.settling and not step.refused:
                    for argument, value in call.arguments.items():
                        if isinstance(value, (int, float)) and not isinstance(value, bool):
                            taken[argument] += 1
                            tools[argument].add(call.name)
                            found.update((field, argument) for field, number in recent.items() if number == value)
                    recent = {}
            recent |= number_fields(step.text)
    return [
        Carried(field, argument, tuple(sorted(tools[argument])), count)
        for (field, argument), count in sorted(found.items(), key=lambda item: (-item[1], item[0]))
        if count > _MIN_SUPPORT and count >= 0.6 * taken[argument]
    ]
