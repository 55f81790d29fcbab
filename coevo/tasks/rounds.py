"""Worlds whose work is a list of cases: each is settled once by rules that documents state, a report closes the round.

A family gives the items, what is expected of each, and its own reading and settling tools; documents, people, arithmetic, the state and the
grader are here. Acting on an item that is not part of the round is possible, as on a real console, and counts as a mistake.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from coevo.chat import ToolCall, ToolSpec
from coevo.errors import ConfigError, ToolError
from coevo.records import Grade
from coevo.tasks.calculator import value_of
from coevo.tasks.contacts import Contact, Contacts
from coevo.tasks.family import TaskInstance, World
from coevo.tasks.grading import NOT_SETTLED, Judgement, weigh
from coevo.tasks.inquiry import BATCH, Progress
from coevo.tasks.library import Document, Library
from coevo.tasks.payroll.arithmetic import Rounding
from coevo.tasks.world import PlainWorld

__all__ = [
    "MAX_NOTE_CHARS",
    "SHELF_TOOLS",
    "RoundWorld",
    "Scale",
    "Shelf",
    "batch_of",
    "plain",
    "progress_of",
    "string",
    "strings",
    "tool_spec",
]

MAX_NOTE_CHARS = 300
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Scale:
    """How large a world of this kind is.

    Attributes:
        cases: Smallest and largest number of items in the round.
        groups: Other groups of items beside it (desks, areas).
        distractors: Documents that rule nothing here.
        paragraphs: Paragraphs of boilerplate per document, smallest and largest.
        part_chars: Length at which texts are cut; None: never.
        history: Days of history behind the tools.
        people: Contacts beside those who are needed.
    """

    cases: tuple[int, int]
    groups: int
    distractors: int
    paragraphs: tuple[int, int]
    part_chars: int | None
    history: int
    people: int


@dataclass(frozen=True, slots=True)
class Shelf:
    """Documents and people of one instance."""

    documents: tuple[Document, ...]
    people: tuple[Contact, ...]


def tool_spec(name: str, description: str, *, optional: tuple[str, ...] = (), **properties: dict[str, Any]) -> ToolSpec:
    """A tool whose parameters are the keyword arguments, in this order."""
    required = [one for one in properties if one not in optional]
    return ToolSpec(name, description, {"type": "object", "properties": properties, "required": required, "additionalProperties": False})


def string(description: str) -> dict[str, Any]:
    """Schema of a string."""
    return {"type": "string", "description": description}


def strings(description: str) -> dict[str, Any]:
    """Schema of a list of strings."""
    return {"type": "array", "items": {"type": "string"}, "description": description}


_PAGE = {"type": "integer", "minimum": 1, "description": "page number, from 1"}
SHELF_TOOLS: Mapping[str, ToolSpec] = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            tool_spec(
                "search_documents",
                "Find documents of the company by words.",
                optional=("page",),
                query=string("words to look for"),
                page=_PAGE,
            ),
            tool_spec(
                "read_document",
                "Text of one document; long ones come in parts.",
                optional=("part",),
                document=string("document id"),
                part={"type": "integer", "minimum": 1, "description": "part number, from 1"},
            ),
            tool_spec(
                "find_contacts",
                "People by words of their name or role; no words: everybody.",
                optional=("page",),
                query=string("words to look for"),
                page=_PAGE,
            ),
            tool_spec(
                "write_message",
                "Write to a person and get the reply. Name the id that it is about.",
                contact=string("contact id"),
                message=string("what to ask"),
            ),
            tool_spec(
                "calculate",
                "Exact arithmetic with + - * / and parentheses; the results can be rounded to a multiple.",
                optional=("round_to", "mode"),
                expressions=strings(f"up to {BATCH} expressions"),
                round_to={"type": "number", "description": "round to a multiple of this"},
                mode={"type": "string", "enum": [str(mode) for mode in Rounding], "description": "how to round; half_up if not given"},
            ),
        )
    }
)
"""Tools that every such world has, by name."""


class RoundWorld(PlainWorld):
    """See the module docstring.

    `state["settled"]` maps item id -> the call that settled it, `[name, arguments]`; `state["report"]` holds the arguments of the report.
    A subclass gives `expected`, `closing`, `items` and its own tools.
    """

    def __init__(self, instance: TaskInstance, *, instruction: str, data: Any, shelf: Shelf, part_chars: int | None) -> None:
        super().__init__(instance, instruction=instruction, data=data, state={"settled": {}, "report": None})
        self._library = Library(shelf.documents, part_chars=part_chars)
        self._contacts = Contacts(shelf.people)

    @abstractmethod
    def expected(self) -> Mapping[str, ToolCall]:
        """The one right way to settle each case of the round, in list order: for grader, policies and demonstrations; no tool calls it."""

    @abstractmethod
    def closing(self) -> ToolCall:
        """The report that is due; its first argument names the group."""

    @abstractmethod
    def items(self) -> Iterable[str]:
        """Ids of everything that can be acted on, other groups included."""

    def tool_search_documents(self, query: str, page: int = 1) -> dict[str, Any]:
        """A page of hits, those with most of the words first."""
        return self._library.search(query, page=page)

    def tool_read_document(self, document: str, part: int = 1) -> dict[str, Any]:
        """Title and text."""
        return self._library.read(document, part=part)

    def tool_find_contacts(self, query: str, page: int = 1) -> dict[str, Any]:
        """A page of the directory."""
        return self._contacts.find(query, page=page)

    def tool_write_message(self, contact: str, message: str) -> dict[str, Any]:
        """The reply."""
        return self._contacts.write(contact, message)

    def tool_calculate(self, expressions: list[str], round_to: float | None = None, mode: str = "half_up") -> dict[str, Any]:
        """Values in the order of the expressions."""
        batch_of(expressions, "expressions")
        if round_to is not None and not 0.001 <= round_to <= 1_000_000:
            raise ToolError("bad arguments: round_to must lie between 0.001 and 1000000")
        return {"values": [value_of(one, round_to, Rounding(mode)) for one in expressions]}

    def settle(self, item: str, name: str, **arguments: Any) -> dict[str, Any]:
        """Record how an item is settled; can't be taken back. Raises `ToolError` for an unknown item and for a second time."""
        settled = self._state["settled"]
        if item not in self.items():
            raise ToolError(f"unknown id {item[:40]}")
        if item in settled:
            raise ToolError(f"{item} is already settled")
        if len(str(arguments.get("note", ""))) > MAX_NOTE_CHARS:
            raise ToolError(f"bad arguments: note must have at most {MAX_NOTE_CHARS} characters")
        settled[item] = [name, arguments]
        return {"ok": True}

    def report(self, **arguments: Any) -> dict[str, Any]:
        """Record the report; once."""
        if self._state["report"] is not None:
            raise ToolError("the report is already filed")
        self._state["report"] = arguments
        return {"ok": True}

    def grade(self) -> Grade:
        """One checkpoint per case, one for the report, one per item touched beyond the round, and `finished`."""
        expected, closing = self.expected(), self.closing()
        settled = self._state["settled"]
        judgements = [Judgement(f"settled:{one}", _problem(call, settled.get(one))) for one, call in expected.items()]
        judgements.append(Judgement(f"report:{next(iter(closing.arguments.values()))}", self._report_problem(closing)))
        strays = [one for one in settled if one not in expected]
        judgements += [Judgement(f"stray:{one}", "is not part of this round and should not have been touched") for one in strays]
        return weigh(judgements, finished=self.finished)

    def progress(self) -> Progress:
        """What is settled rightly, and the first thing that is beyond repair; for policies."""
        expected, closing, settled = self.expected(), self.closing(), self._state["settled"]
        right = {one for one, got in settled.items() if one in expected and _problem(expected[one], got) is None}
        wrong = next((one for one in settled if one not in right), None)
        if self._state["report"] is not None:
            if self._report_problem(closing) is None:
                right.add(closing.name)
            else:
                wrong = wrong or closing.name
        return Progress(frozenset(right), None if wrong is None else f"{wrong} is settled wrongly")

    def _report_problem(self, closing: ToolCall) -> str | None:
        report = self._state["report"]
        return NOT_SETTLED if report is None else _difference(closing.arguments, report)


def progress_of(world: World) -> Progress:
    """See `RoundWorld.progress`. Raises `ConfigError` for a world of another kind."""
    if not isinstance(world, RoundWorld):
        raise ConfigError("only rounds have this progress", seen=type(world).__name__, fix="open an instance of this family")
    return world.progress()


def batch_of(items: Sequence[_Item], name: str) -> Sequence[_Item]:
    """The items without repetitions. Raises `ToolError` when there are none or more than a batch."""
    if not 1 <= len(items) <= BATCH:
        raise ToolError(f"bad arguments: {name} takes 1 to {BATCH} entries")
    return list(dict.fromkeys(items))


def plain(number: float) -> int | float:
    """An int where exact."""
    return int(number) if number == int(number) else number


def _problem(expected: ToolCall, settled: Sequence[Any] | None) -> str | None:
    """What is wrong, without the answer; None when nothing is."""
    if settled is None:
        return NOT_SETTLED
    name, arguments = settled
    if name != expected.name:
        return f"settled in a wrong way ({name})"
    return _difference(expected.arguments, arguments)


def _difference(expected: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    return next((f"wrong {name}" for name, value in expected.items() if name in given and given[name] != value), None)
