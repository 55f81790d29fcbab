"""BFCL multi-turn (the Berkeley Function Calling Leaderboard, package `bfcl-eval`): 800 entries with scripted user turns.

The four categories are templates; an instance is an entry of the package's own files. The first user message is the instruction, the tool
`reply` ends a turn and brings the next user message, `finish` ends the episode. Calls run on the package's simulated services, and the
package's own checkers judge state and results after each turn, and that nothing was called where the needed function was missing.
Success therefore depends on turns, not only on the final state: that is how the suite defines it. In the category of missing functions
they stand in the tool list from the start and are refused until the user's script hands them out (or the suite's own solution uses them
earlier, as in one entry). Instances are not unlimited: 20, 20 and
60 percent of each category belong to the search, selection and test stream, and seeds wrap around.
"""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from coevo.chat import Message, ToolCall, ToolSpec
from coevo.errors import ConfigError, ToolError, nearest
from coevo.records import Grade
from coevo.tasks.adapters.loose import LooseToolbox
from coevo.tasks.adapters.optional import need
from coevo.tasks.family import Conduct, Move, Policy, Size, Stream, Style, TaskInstance, Unrecoverable, World
from coevo.tasks.grading import Judgement, weigh
from coevo.tasks.variants import SEEDS, Variant, VariantFamily
from coevo.tasks.world import TERMINAL_TOOL, PlainWorld, Toolbox

__all__ = ["CATEGORIES", "BfclFamily", "BfclWorld", "Entry", "entries", "family"]

CATEGORIES = ("base", "long_context", "miss_func", "miss_param")
"""Templates, in the order in which `diversity` takes them."""

INSTALL = "pip install --no-deps bfcl-eval mpmath  (its full requirements pin old releases of numpy and others)"
_PACKAGE = "bfcl-eval"
_ROOT = "bfcl_eval"
_CHECKER = "bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker"
_SERVICES = "bfcl_eval.constants.executable_backend_config"
_OTHER_CATEGORIES = ("memory", "web_search")
_REPLY = "reply"
_LATER = "I have some more functions that you can use now: {names}."
_TYPES = MappingProxyType({"dict": "object", "float": "number", "tuple": "array", "any": "string"})
_FIRST_USER = "user"


class Entry(NamedTuple):
    """One entry of the suite.

    Attributes:
        id: Of the suite.
        turns: User messages; an empty one stands where functions are handed out.
        config: Initial state per service.
        services: Names of the simulated services.
        later: Turn -> functions that are handed out then.
        excluded: Functions that do not exist here.
        gold: Calls of the suite's solution per turn.
    """

    id: str
    turns: tuple[str, ...]
    config: Mapping[str, Any]
    services: tuple[str, ...]
    later: Mapping[int, tuple[str, ...]]
    excluded: frozenset[str]
    gold: tuple[tuple[ToolCall, ...], ...]

    @property
    def long_context(self) -> bool:
        """The services are filled with much more than is needed."""
        return "long_context" in self.id


@lru_cache(maxsize=8)
def entries(category: str) -> tuple[Entry, ...]:
    """All entries of a category, in the package's order.

    Raises:
        ConfigError: Unknown category.
        PrerequisiteError: The package is not installed.
    """
    if category not in CATEGORIES:
        raise ConfigError("unknown category of the suite", seen=category, fix=nearest(category, CATEGORIES))
    folder = Path(need(_ROOT, package=_PACKAGE, install=INSTALL).__file__).parent / "data"
    (path,) = folder.glob(f"BFCL_v*_multi_turn_{category}.json")
    golds = {one["id"]: one["ground_truth"] for one in _lines(folder / "possible_answer" / path.name)}
    return tuple(_entry(one, golds[one["id"]]) for one in _lines(path))


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def _entry(one: Mapping[str, Any], gold: Sequence[Sequence[str]]) -> Entry:
    later = {int(turn): tuple(names) for turn, names in one.get("missed_function", {}).items()}
    turns = tuple(
        " ".join(message["content"] for message in turn) if turn else _LATER.format(names=", ".join(later.get(place, ())))
        for place, turn in enumerate(one["question"])
    )
    return Entry(
        id=one["id"],
        turns=turns,
        config=one["initial_config"],
        services=tuple(one["involved_classes"]),
        later=MappingProxyType(later),
        excluded=frozenset(one.get("excluded_function", ())),
        gold=tuple(tuple(_parsed(call) for call in turn) for turn in gold),
    )


@lru_cache(maxsize=8192)
def _parsed(text: str) -> ToolCall:
    """A call as the suite writes it, `cd(folder='document')`, read as literals; positional values get their names from the function."""
    node = ast.parse(text, mode="eval").body
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ConfigError("a solution of the suite is no plain call", seen=text, fix=f"use the tested release of {_PACKAGE}")
    spec = _functions()[node.func.id].spec
    given = dict(zip(spec.argument_names, (ast.literal_eval(value) for value in node.args), strict=False))
    given |= {one.arg: ast.literal_eval(one.value) for one in node.keywords if one.arg is not None}
    return ToolCall(node.func.id, given)


class _Function(NamedTuple):
    service: str
    spec: ToolSpec


@lru_cache(maxsize=1)
def _functions() -> Mapping[str, _Function]:
    """Every function of the suite's services, by name (names are unique over them)."""
    services = need(_SERVICES, package=_PACKAGE, install=INSTALL).MULTI_TURN_FUNC_DOC_FILE_MAPPING
    folder = Path(need(_ROOT, package=_PACKAGE, install=INSTALL).__file__).parent / "data" / "multi_turn_func_doc"
    found: dict[str, _Function] = {}
    for service, name in sorted(services.items()):
        if not name.startswith(_OTHER_CATEGORIES):
            for one in _lines(folder / name):
                description = one["description"].partition("Tool description: ")[2] or one["description"]
                found[one["name"]] = _Function(service, ToolSpec(one["name"], description, _schema(one["parameters"])))
    return MappingProxyType(found)


def _schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    properties = {name: _property(one) for name, one in parameters["properties"].items()}
    return {"type": "object", "properties": properties, "required": list(parameters.get("required", ())), "additionalProperties": False}


def _property(one: Mapping[str, Any]) -> dict[str, Any]:
    kind = _TYPES.get(one["type"], one["type"])
    shown = {"type": kind, "description": one.get("description", "")}
    if kind == "array":
        item = one.get("items", {}).get("type", "string")
        shown["items"] = {"type": _TYPES.get(item, item)}
    return shown


_CONTROL = (
    ToolSpec(
        _REPLY,
        "Answer the user when the turn's work is done, or say what is missing; brings the user's next message.",
        {
            "type": "object",
            "properties": {"text": {"type": "string", "description": "what to tell the user"}},
            "required": ["text"],
            "additionalProperties": False,
        },
    ),
    ToolSpec(
        TERMINAL_TOOL,
        "End the conversation when the user has nothing more to ask.",
        {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    ),
)


@lru_cache(maxsize=1)
def _toolbox() -> Toolbox:
    return LooseToolbox([*_plain_specs(), *_CONTROL])


def _plain_specs() -> list[ToolSpec]:
    return [one.spec for one in _functions().values()]


@dataclass
class _Services:
    """The running services of one entry."""

    instances: dict[str, Any]

    @classmethod
    def start(cls, entry: Entry) -> _Services:
        config = need(_SERVICES, package=_PACKAGE, install=INSTALL)
        instances: dict[str, Any] = {}
        for name in entry.services:
            made = getattr(need(config.CLASS_FILE_PATH_MAPPING[name], package=_PACKAGE, install=INSTALL), name)()
            if name not in config.STATELESS_CLASSES:
                made._load_scenario(copy.deepcopy(entry.config.get(name, {})), long_context=entry.long_context)  # noqa: SLF001 - as the suite's own runner does
            instances[name] = made
        return cls(instances)

    def run(self, call: ToolCall) -> str:
        """The result as the suite's own runner writes it."""
        try:
            found = getattr(self.instances[_functions()[call.name].service], call.name)(**copy.deepcopy(dict(call.arguments)))
        except Exception as error:  # noqa: BLE001 - whatever a simulated service raises is its answer, as in the suite's own runner
            return f"Error during execution: {error}"
        if isinstance(found, str):
            return found
        try:
            return json.dumps(found) if isinstance(found, dict) else str(found)
        except TypeError:
            return str(found)


class BfclWorld(PlainWorld):
    """See the module docstring. `state["turns"]` holds the calls of each turn so far, `[name, arguments, result]` each."""

    def __init__(self, instance: TaskInstance, entry: Entry) -> None:
        super().__init__(instance, instruction=entry.turns[0], data={"entry": entry.id}, state={"turns": [[]]})
        self._entry = entry
        self._services = _Services.start(entry)

    @property
    def toolbox(self) -> Toolbox:  # type: ignore[override]
        """The tools of the whole suite."""
        return _toolbox()

    @property
    def turn(self) -> int:
        """0-based user turn."""
        return len(self._state["turns"]) - 1

    def apply(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Run one tool on bound arguments."""
        if name == _REPLY:
            return self._reply()
        if name == TERMINAL_TOOL:
            return super().apply(name, arguments)
        self._check_available(name)
        result = self._services.run(ToolCall(name, arguments))
        self._state["turns"][-1].append([name, dict(arguments), result])
        return {"result": result}

    def fork(self) -> BfclWorld:
        """An independent copy with its own services."""
        twin = super().fork()
        vars(twin).update(_services=copy.deepcopy(self._services))
        return twin

    def grade(self) -> Grade:
        """One checkpoint per user turn, by the package's own checkers, and `finished`. Turns in which nothing may be called are guards."""
        problems = zip(_problems(self._entry, self._state["turns"]), self._entry.gold, strict=True)
        judgements = (Judgement(f"turn:{turn}", problem, guard=not gold) for turn, (problem, gold) in enumerate(problems))
        return weigh(judgements, finished=self.finished)

    def reveal(self) -> tuple[Entry, list[list[list[Any]]]]:
        """For the reference only: the entry and what was called."""
        return self._entry, self._state["turns"]

    def _reply(self) -> dict[str, Any]:
        turns = self._state["turns"]
        if len(turns) == len(self._entry.turns):
            raise ToolError("the user has nothing more to ask; call finish")
        turns.append([])
        return {"user": self._entry.turns[self.turn]}

    def _check_available(self, name: str) -> None:
        entry = self._entry
        early = {call.name for turn, calls in enumerate(entry.gold) for call in calls if turn < min(entry.later, default=0)}
        held = {one for turn, names in entry.later.items() if turn > self.turn for one in names} - early
        if _functions()[name].service not in entry.services or name in entry.excluded or name in held:
            known = [one for one, found in _functions().items() if found.service in entry.services and one not in entry.excluded | held]
            raise ToolError(f"the tool {name} is not available here; available: {', '.join(known)}")


def _problems(entry: Entry, turns: Sequence[Sequence[Sequence[Any]]]) -> list[str | None]:
    """What is wrong with each turn; the first broken turn breaks all later ones, as in the suite."""
    checker = need(_CHECKER, package=_PACKAGE, install=INSTALL)
    mine, gold = _Services.start(entry), _Services.start(entry)
    results: list[str] = []
    problems: list[str | None] = []
    for turn, wanted in enumerate(entry.gold):
        if turn >= len(turns):
            problems.append("the user's request was never reached")
            continue
        calls = turns[turn]
        results += [mine.run(ToolCall(name, arguments)) for name, arguments, _ in calls]
        expected = [gold.run(call) for call in wanted]
        if problems and problems[-1] is not None:
            problems.append("an earlier turn went wrong")
        elif not wanted:
            problems.append("something was called although the request could not be met" if calls else None)
        elif not calls:
            problems.append("nothing was called")
        elif not checker.state_checker(mine.instances, gold.instances)["valid"]:
            problems.append("the services are not in the state that the request asks for")
        else:
            valid = checker.response_checker(results, expected, turn)["valid"]
            problems.append(None if valid else "something that the request asks for was not looked up")
    return problems


class BfclPolicy:
    """Replays the suite's own solution: acts while what was called is the start of it, and gives up otherwise.

    It knows the solution, so its arguments need not stand in any message; both styles play alike.
    """

    def __init__(self, style: Style) -> None:
        self._style = style

    def move(self, world: World, visible: Sequence[Message], *, limited: bool = False) -> Move | Unrecoverable:
        """See `coevo.tasks.family.Policy`."""
        if not isinstance(world, BfclWorld):
            raise ConfigError("only a BFCL world has a BFCL solution", seen=type(world).__name__, fix="open it with the bfcl family")
        entry, turns = world.reveal()
        made = [[(name, arguments) for name, arguments, _ in calls] for calls in turns]
        gold = [[(call.name, _bound(call)) for call in calls] for calls in entry.gold]
        if world.finished or made[:-1] != gold[: len(made) - 1] or made[-1] != gold[len(made) - 1][: len(made[-1])]:
            return Unrecoverable("what was called is not the start of the solution, or the world is finished")
        left = entry.gold[world.turn][len(made[-1]) :]
        if left:
            return Move("I do the next step.", tuple(left))
        if world.turn + 1 < len(entry.gold):
            return Move("This turn is done.", (ToolCall(_REPLY, {"text": "Done."}),))
        return Move("The user has nothing more to ask.", (ToolCall(TERMINAL_TOOL, {}),))


def _bound(call: ToolCall) -> dict[str, Any]:
    return _toolbox().signature(call.name).bind(call.arguments)


class BfclFamily(VariantFamily):
    """The suite as a family of one size; its tools can be listed only where the package is installed."""

    def __init__(self) -> None:
        super().__init__("bfcl", "1", {}, seeds=SEEDS)

    def templates(self, size: Size) -> tuple[str, ...]:
        """The four categories."""
        return CATEGORIES if Size(size) is Size.STANDARD else ()

    def open(self, instance: TaskInstance) -> World:
        """Raises `ConfigError` for another family's instance, `PrerequisiteError` without the package."""
        if instance.family != self.name:
            raise ConfigError("an instance belongs to another family", seen=instance.key, fix=f"open it with {instance.family!r}")
        pool = _pool(instance.template, instance.stream)
        return BfclWorld(instance, pool[instance.seed % len(pool)])

    def policy(self, style: Style) -> Policy:
        """See `BfclPolicy`."""
        return BfclPolicy(Style(style))

    def _variant(self, size: Size) -> Variant:
        if Size(size) is not Size.STANDARD:
            raise ConfigError("the suite has one size", seen=str(size), fix=f"use {Size.STANDARD}")
        box = _toolbox()
        writes = frozenset(one.name for one in box.specs)
        return Variant(CATEGORIES, box.specs, Conduct(writes, frozenset({"text"})), self.open, self.policy)


def _pool(category: str, stream: Stream) -> tuple[Entry, ...]:
    """The entries of a stream: every fifth to search, the next to selection, three of five to test; pretraining has none."""
    places = {Stream.SEARCH: (0,), Stream.SELECTION: (1,), Stream.TEST: (2, 3, 4)}.get(stream)
    if places is None:
        raise ConfigError("the suite has no instances for this stream", seen=str(stream), fix="use search, selection or test")
    return tuple(entry for place, entry in enumerate(entries(category)) if place % 5 in places)


family = BfclFamily()
"""The one instance; the package is imported when it is first needed."""
