"""A toy family for tests of proposers, unlike payroll in every name: books of a shelf are priced and shelved, or discarded.

Episodes are played from scripts of shown calls against a `HarnessSession` and stored like `coevo.episode` stores them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from coevo.chat import Sampling, ToolCall, ToolSpec
from coevo.errors import ToolError
from coevo.harness.bundle import HarnessBundle
from coevo.harness.sandbox import shared_pool
from coevo.harness.session import HarnessSession
from coevo.harness.tools import ToolEntry
from coevo.records import CallRecord, Episode, EpisodeSpec, Grade, MessageRecord, Status, Turn

Script = Sequence[tuple[str, dict[str, Any]]]


def _spec(name: str, **properties: str) -> ToolSpec:
    schema = {key: {"type": kind} for key, kind in properties.items()}
    return ToolSpec(name, name, {"type": "object", "properties": schema, "required": list(properties)})


FAMILY = (
    _spec("survey", shelf="string"),
    _spec("open_book", book="string"),
    _spec("multiply", pages="integer", rate="integer"),
    _spec("shelve", book="string", price="integer"),
    _spec("discard", book="string"),
    _spec("sweep", shelf="string"),
    _spec("finish"),
)


def base() -> HarnessBundle:
    """All tools, a bare prompt."""
    return HarnessBundle(name="shelf", system_prompt="you keep books .", tools=tuple(ToolEntry(tool.name) for tool in FAMILY))


class Shelf:
    """Three books per shelf; a book with an odd number of pages is discarded, another is shelved for pages * rate."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        numbers = random.sample(range(1000, 9999), 3)
        self.books = {f"bk-{number}": (random.randint(20, 90), random.randint(3, 9)) for number in numbers}
        self.done: dict[str, int | None] = {}
        self.finished = False

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """One tool."""
        match name:
            case "survey":
                return {"books": list(self.books)}
            case "open_book":
                pages, rate = self._book(arguments)
                return {"book": arguments["book"], "pages": pages, "rate": rate}
            case "multiply":
                return {"product": arguments["pages"] * arguments["rate"]}
            case "shelve" | "discard":
                self._book(arguments)
                if arguments["book"] in self.done:
                    raise ToolError("already handled")
                self.done[arguments["book"]] = arguments.get("price")
            case "finish":
                self.finished = True
        return {"ok": True}

    def right(self, book: str) -> int | None:
        """The price due, None for discarding."""
        pages, rate = self.books[book]
        return None if pages % 2 else pages * rate

    @property
    def success(self) -> bool:
        """All books handled right and finished."""
        return self.finished and self.done == {book: self.right(book) for book in self.books}

    def _book(self, arguments: Mapping[str, Any]) -> tuple[int, int]:
        if arguments["book"] not in self.books:
            raise ToolError("unknown book")
        return self.books[arguments["book"]]


def solution(seed: int) -> list[tuple[str, dict[str, Any]]]:
    """Depth first, with the base tools."""
    world = Shelf(seed)
    script: list[tuple[str, dict[str, Any]]] = [("survey", {"shelf": "S7"})]
    for book, (pages, rate) in world.books.items():
        script.append(("open_book", {"book": book}))
        if pages % 2:
            script.append(("discard", {"book": book}))
        else:
            script += [("multiply", {"pages": pages, "rate": rate}), ("shelve", {"book": book, "price": pages * rate})]
    return [*script, ("finish", {})]


def render(value: Any, syntax: str) -> str:
    """As the mini format or a JSON format renders."""
    if syntax == "json":
        return json.dumps(value)
    if isinstance(value, dict):
        parts = [f"{key}={item}" if isinstance(item, int) else f"{key}= {render(item, syntax)}" for key, item in value.items()]
        return " ".join(parts)
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def play_script(seed: int, script: Script, *, bundle: HarnessBundle | None = None, stream: str = "search", syntax: str = "mini") -> Episode:
    """Play shown calls to their end (or the script's) and store the episode."""
    harness = bundle or base()
    world = Shelf(seed)
    session = HarnessSession(harness, FAMILY, world.call, sandboxes=shared_pool())
    session.start("keep shelf S7 .")
    turns = []
    for number, (name, arguments) in enumerate(script):
        if world.finished:
            break
        outcome = session.execute(ToolCall(name, arguments), number)
        text = " ".join([render(outcome.value if outcome.error is None else {"error": outcome.error}, syntax), *outcome.notes])
        turns.append(
            Turn(
                message_index=(0, 1),
                prompt_shared=0,
                prompt_suffix=(),
                completion_text="",
                call=CallRecord(name=name, arguments=arguments),
                executed=tuple(CallRecord(name=call.name, arguments=dict(call.arguments)) for call in outcome.calls),
                result=text,
                result_error=outcome.error is not None,
                firings=session.take_firings(),
            )
        )
    spec = EpisodeSpec(
        task_key=f"shelf/mini/one/{stream}/{seed}",
        world_version="1",
        harness_hash=harness.hash,
        model_id=f"script {len(script)} {json.dumps(list(script))}",
        sampling=Sampling(),
    )
    return Episode(
        id=spec.id,
        spec=spec,
        status=Status.COMPLETED if world.finished else Status.MAX_TURNS,
        grade=Grade(success=world.success, score=float(world.success)),
        messages=(MessageRecord(role="system", content="you keep books ."), MessageRecord(role="user", content="keep shelf S7 .")),
        turns=tuple(turns),
    )


def mixed_episodes(*, syntax: str = "mini") -> tuple[Episode, ...]:
    """Eight successes and one failure of each kind that the operators know, three times over."""
    return tuple(
        [play_script(seed, solution(seed), syntax=syntax) for seed in range(8)]
        + [play_script(seed, script(seed), syntax=syntax) for script in FAILURES.values() for seed in range(20, 23)]
    )


def ends_early(seed: int) -> Script:
    """Finishes with books open."""
    return [*solution(seed)[:-4], ("finish", {})]


def skips_the_product(seed: int) -> Script:
    """Guesses prices."""
    script = [call for call in solution(seed) if call[0] != "multiply"]
    return [(name, {**arguments, "price": 1} if name == "shelve" else arguments) for name, arguments in script]


def copies_wrong(seed: int) -> Script:
    """Computes, then writes another price."""
    return [(name, {**arguments, "price": 1} if name == "shelve" else arguments) for name, arguments in solution(seed)]


def miscopies_an_id(seed: int) -> Script:
    """Opens a book that is not there, then gives up."""
    first = next(iter(Shelf(seed).books))
    wrong = first[:-1] + ("1" if first[-1] != "1" else "2")
    return [("survey", {"shelf": "S7"}), ("open_book", {"book": wrong}), ("finish", {})]


def loops(seed: int) -> Script:
    """Surveys for ever."""
    return [("survey", {"shelf": "S7"})] * 6


def sweeps(seed: int) -> Script:
    """Uses a tool that no success uses."""
    return [("survey", {"shelf": "S7"}), ("sweep", {"shelf": "S7"}), ("finish", {})]


FAILURES = {
    "ends early": ends_early,
    "skips": skips_the_product,
    "copies wrong": copies_wrong,
    "miscopies": miscopies_an_id,
    "loops": loops,
    "sweeps": sweeps,
}
