"""The leakage screen: an edit that carries identifiers or passages of instances is refused, with the reason.

A harness must help on instances that nobody has seen. What an instance alone holds (its ids, its names, its sentences) can only help on
that instance, and a proposer reads full traces, so it can copy by mistake or by design. What many instances share (tool names, codes,
refusals, policy text) is the family's and may be written down. Limits: with one or two instances everything that looks like an identifier
counts as theirs; a paraphrase passes, an id put together at run time too, and so do numbers of fewer than four digits, which sources are
full of.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coevo.chat import ToolSpec
from coevo.evolve.propose import Evidence
from coevo.harness.bundle import HarnessBundle
from coevo.harness.edits import changes_between, component_texts
from coevo.records import Episode

__all__ = ["Leak", "LeakageScreen", "instance_texts"]

NGRAM = 8
"""Words in a row that two texts don't share by chance."""

_MIN_SHARED = 3
_SHARED_PART = 0.25
"""What stands in this part of the instances, and in at least three, is the family's."""

_TOKEN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.@:/-]*[A-Za-z0-9])?")
_PIECE = re.compile(r"[A-Za-z0-9_]+")
_WORD = re.compile(r"\w+")
_NAME = re.compile(r"[A-Z][a-z]\w+(?: [A-Z]\w+){0,2}")
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Leak:
    """Something of an instance in an edit.

    Attributes:
        component: Address of the changed component.
        kind: `identifier`, `name` or `passage`.
        text: What was copied.
        instances: How many of the instances hold it.
    """

    component: str
    kind: str
    text: str
    instances: int

    def __str__(self) -> str:
        held = "an instance" if self.instances == 1 else f"{self.instances} instances"
        return f"{self.component}: the {self.kind} {self.text!r} is of {held}"


def instance_texts(episodes: Iterable[Episode]) -> dict[str, list[str]]:
    """Task key -> what its episodes show of the instance: instruction, results, and the text arguments of calls."""
    texts: dict[str, list[str]] = defaultdict(list)
    for episode in episodes:
        held = texts[episode.spec.task_key]
        held += [message.content for message in episode.messages[1:2]]
        for turn in episode.turns:
            held.append(turn.result)
            held += [text for call in (turn.call, *turn.executed) if call is not None for text in _strings(call.arguments)]
    return dict(texts)


class LeakageScreen:
    """Screens edits of one parent.

    Args:
        instances: Task key -> texts of the instance.
        public: Texts that may be repeated whatever instances hold: the parent's own, and the tools' descriptions.
    """

    def __init__(self, instances: Mapping[str, Sequence[str]], public: Iterable[str]) -> None:
        open_texts = list(public)
        self._public_tokens = {token.casefold() for text in open_texts for token in _tokens(text)}
        self._public_grams = {gram for text in open_texts for gram in _grams(_words(text))}
        self._words = {key: [_words(text) for text in dict.fromkeys(texts)] for key, texts in instances.items()}
        self._shared = max(_MIN_SHARED, _SHARED_PART * len(instances))
        counts: defaultdict[str, int] = defaultdict(int)
        for texts in instances.values():
            for token in {token.casefold() for text in dict.fromkeys(texts) for token in _tokens(text) if _identifies(token)}:
                counts[token] += 1
        names: defaultdict[str, int] = defaultdict(int)
        for texts in instances.values():
            for name in {text for text in texts if _NAME.fullmatch(text) and not any(text in known for known in open_texts)}:
                names[name] += 1
        self._identifiers = {token: count for token, count in counts.items() if count < self._shared and token not in self._public_tokens}
        self._names = {name: count for name, count in names.items() if count < self._shared}

    @classmethod
    def of(cls, evidence: Evidence, parent: HarnessBundle) -> LeakageScreen:
        """The screen for edits of `parent` that were made from this evidence."""
        return cls(instance_texts(evidence.episodes), [*component_texts(parent).values(), *map(_spec_text, evidence.family_tools)])

    def leaks(self, parent: HarnessBundle, child: HarnessBundle) -> tuple[Leak, ...]:
        """Everything of an instance that `child` holds and `parent` does not; identifiers first."""
        found: list[Leak] = []
        for change in changes_between(parent, child):
            old = set((change.old or "").splitlines())
            added = [line for line in (change.new or "").splitlines() if line not in old]
            text = "\n".join([change.name, *added])
            found += [Leak(change.component, "identifier", token, count) for token, count in self._identifiers_in(text)]
            found += [Leak(change.component, "name", name, count) for name, count in self._names_in(text)]
            found += [Leak(change.component, "passage", gram, count) for gram, count in self._passages_in(text)]
        return tuple(sorted(found, key=lambda leak: leak.kind))

    def refusal(self, parent: HarnessBundle, child: HarnessBundle) -> str:
        """Why the edit from `parent` to `child` is refused, in one sentence; empty when it is not."""
        leaks = self.leaks(parent, child)
        more = f" and {len(leaks) - _SHOWN} more" if len(leaks) > _SHOWN else ""
        return f"{'; '.join(map(str, leaks[:_SHOWN]))}{more}: say what holds for any instance" if leaks else ""

    def _identifiers_in(self, text: str) -> Iterator[tuple[str, int]]:
        for token in dict.fromkeys(_tokens(text)):
            if token.casefold() in self._identifiers:
                yield token, self._identifiers[token.casefold()]

    def _names_in(self, text: str) -> Iterator[tuple[str, int]]:
        for name, count in self._names.items():
            if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text):
                yield name, count

    def _passages_in(self, text: str) -> Iterator[tuple[str, int]]:
        """The first copied n-gram of each run of them."""
        grams = [gram for gram in _grams(_words(text)) if gram not in self._public_grams]
        wanted, starts = set(grams), {gram[0] for gram in grams}
        counts: defaultdict[tuple[str, ...], int] = defaultdict(int)
        for texts in self._words.values():
            for gram in {gram for one in texts for gram in _grams(one, starts) if gram in wanted} if wanted else ():
                counts[gram] += 1
        previous = False
        for gram in grams:
            copied = 0 < counts.get(gram, 0) < self._shared
            if copied and not previous:
                yield " ".join(gram), counts[gram]
            previous = copied


def _identifies(token: str) -> bool:
    """Whether a token looks like the name of one thing: letters with digits, four digits and more, an address, a path."""
    digits = sum(char.isdigit() for char in token)
    return "@" in token or digits >= 4 or (digits > 0 and any(char.isalpha() for char in token))


def _tokens(text: str) -> Iterator[str]:
    for token in _TOKEN.findall(text):
        yield token
        if not token.isalnum():
            yield from (piece for piece in _PIECE.findall(token) if piece != token)


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _grams(words: Sequence[str], starts: set[str] | None = None) -> Iterator[tuple[str, ...]]:
    for index in range(len(words) - NGRAM + 1):
        if starts is None or words[index] in starts:
            yield tuple(words[index : index + NGRAM])


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [text for item in items for text in _strings(item)]


def _spec_text(tool: ToolSpec) -> str:
    return f"{tool.name} {tool.description} {json.dumps(dict(tool.parameters), ensure_ascii=False)}"
