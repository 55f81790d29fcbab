"""People whom an agent can write to: scripted, deterministic, without memory.

A reply is a function of the person and the message: each answer that fits is given, otherwise a sentence that says whom to ask. An answer
fits when the message names its subject (an id, where it has one) and one of its words. What a message says beyond that has no effect, so
prompts in it are read by nobody.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coevo.errors import ToolError
from coevo.tasks.paging import page_of

__all__ = ["MAX_MESSAGE_CHARS", "Answer", "Contact", "Contacts"]

MAX_MESSAGE_CHARS = 1000
_MAX_ANSWERS = 3
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class Answer:
    """One thing that a person knows.

    Attributes:
        words: One of these (lower case, whole words) must stand in the message; empty: the subject is enough.
        text: The reply. It names the subject, so that it can be understood by itself.
        subject: Id that the message must name; None for answers about no single item.
    """

    words: tuple[str, ...]
    text: str
    subject: str | None = None

    def fits(self, words: frozenset[str]) -> bool:
        """Whether a message of these case-folded words asks for it."""
        named = self.subject is None or self.subject.casefold() in words
        return named and (not self.words or not words.isdisjoint(self.words))


@dataclass(frozen=True, slots=True)
class Contact:
    """A person. `otherwise` is the reply to anything that no answer fits, for example who stands in during a leave."""

    id: str
    name: str
    role: str
    answers: tuple[Answer, ...]
    otherwise: str


class Contacts:
    """The directory and message tools over people; `size` people a page."""

    def __init__(self, people: Sequence[Contact], *, size: int = 10) -> None:
        self._people, self._size = tuple(people), size
        self._by_id = {one.id: one for one in self._people}

    def find(self, query: str, *, page: int = 1) -> dict[str, Any]:
        """People whose name or role has one of the words, all for no words, in directory order. Raises `ToolError` past the last page."""
        shown = page_of(self._found(query), page, size=self._size)
        people = [{"contact": one.id, "name": one.name, "role": one.role} for one in shown.items]
        return {"contacts": people, "page": shown.number, "pages": shown.count}

    def page_with(self, query: str, contact: str) -> int | None:
        """The page of a search that shows a person, for policies; None where the search does not find them."""
        found = [one.id for one in self._found(query)]
        return found.index(contact) // self._size + 1 if contact in found else None

    def write(self, contact: str, message: str) -> dict[str, Any]:
        """The reply. Raises `ToolError` for an unknown person and for messages that are empty or too long."""
        one = self._by_id.get(contact)
        if one is None:
            raise ToolError("unknown contact; find_contacts gives ids")
        if not 1 <= len(message.strip()) <= MAX_MESSAGE_CHARS:
            raise ToolError(f"bad arguments: message must have 1 to {MAX_MESSAGE_CHARS} characters")
        return {"contact": one.id, "name": one.name, "reply": reply(one, message)}

    def _found(self, query: str) -> list[Contact]:
        words = _words(query)
        return [one for one in self._people if not words or words & _words(f"{one.name} {one.role}")]


def reply(person: Contact, message: str) -> str:
    """What a person answers: the first three answers that fit, in their order."""
    words = _words(message)
    fitting = [answer.text for answer in person.answers if answer.fits(words)]
    return " ".join(fitting[:_MAX_ANSWERS]) or person.otherwise


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold()))
