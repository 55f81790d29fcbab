"""An LLM that says where a failed episode went wrong: one structured call, and three baselines from the literature.

`structured` asks once for the cause in words, for what would have happened with that turn put right (the counterfactual), and for up to k
turns; it may say that no single turn is to blame. The baselines are those of Zhang et al. 2025 ("Which agent causes task failures and
when?", arXiv 2505.00212): `all_at_once` asks for the one turn, `step_by_step` shows the episode growing turn by turn and stops at the first
that the model calls the mistake, `binary_search` halves the episode. Works over any ChatModel; an answer that does not fit its schema is
asked for once more (`coevo.models.structured`). A judge proposes, replay decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Protocol

from coevo.chat import Message, ModelRequest, Role
from coevo.errors import ModelError
from coevo.identity import derive_seed
from coevo.localize.detectors.family import Suspect
from coevo.models.structured import Answer, ask, fits_schema
from coevo.ports import ChatModel
from coevo.records import Episode, ExpertUse, Proposal
from coevo.rewrite.llm import LLMRecipe
from coevo.rewrite.spend import use_of

__all__ = ["JUDGE_VERSION", "Blame", "Judge", "JudgeSource", "JudgeStyle", "LLMJudge", "Named", "proposal_of", "transcript"]

JUDGE_VERSION = 1
"""Part of a judge's identity: another wording is another judge."""

MAX_RESULT_CHARS = 1200
"""Of one observation in a transcript; the cut is marked."""

_HOW = """You examine how an agent failed a task. It acts through tools, one call per turn; turns are numbered from 0.
Look for the decisive turn: the earliest one after which the task could no longer succeed the way the agent went on, and which, done right,
would have let it succeed. A later turn that only carries an earlier mistake on is not decisive. Answer with JSON only."""


class JudgeStyle(StrEnum):
    """How the model is asked."""

    STRUCTURED = "structured"
    """One call: cause, counterfactual, up to k turns, or unlocalizable."""
    ALL_AT_ONCE = "all_at_once"
    """One call: the one turn."""
    STEP_BY_STEP = "step_by_step"
    """A call per turn, up to the first that is called the mistake."""
    BINARY_SEARCH = "binary_search"
    """A call per halving."""


@dataclass(frozen=True, slots=True)
class Named:
    """A turn that a judge blames, and why."""

    turn: int
    reason: str


@dataclass(frozen=True, slots=True)
class Blame:
    """What a judge came to.

    Attributes:
        turns: Most likely first; empty for `unlocalizable`, and where no answer could be used.
        cause: What went wrong, in words.
        counterfactual: What would have happened with the turn done right.
        unlocalizable: The judge says that no single turn is to blame.
        faults: Why answers could not be used.
        use: Calls, tokens and dollars.
    """

    turns: tuple[Named, ...]
    cause: str = ""
    counterfactual: str = ""
    unlocalizable: bool = False
    faults: tuple[str, ...] = ()
    use: ExpertUse = field(default_factory=ExpertUse)


class Judge(Protocol):
    """Names up to k turns of a failed episode. Backend trouble is `InfraError`; nothing else is raised."""

    async def blame(self, episode: Episode, *, k: int, evidence: Sequence[Suspect] = ()) -> Blame: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class JudgeSource:
    """Recipe of an `LLMJudge`; crosses Ray."""

    recipe: LLMRecipe
    style: JudgeStyle = JudgeStyle.STRUCTURED

    def open(self) -> LLMJudge:
        """Connect."""
        return LLMJudge(self.recipe, self.style)


class LLMJudge:
    """See the module docstring."""

    def __init__(self, recipe: LLMRecipe, style: JudgeStyle) -> None:
        self._recipe, self._style = recipe, style
        self._model: ChatModel = recipe.model.open()

    async def blame(self, episode: Episode, *, k: int, evidence: Sequence[Suspect] = ()) -> Blame:
        """Ask.

        Args:
            episode: The failed episode.
            k: Turns named at most.
            evidence: What detectors found; only `structured` shows it.

        Raises:
            InfraError: The endpoint failed.
        """
        match self._style:
            case JudgeStyle.STRUCTURED:
                return await self._structured(episode, k, evidence)
            case JudgeStyle.ALL_AT_ONCE:
                return await self._all_at_once(episode)
            case JudgeStyle.STEP_BY_STEP:
                return await self._step_by_step(episode)
            case JudgeStyle.BINARY_SEARCH:
                return await self._binary_search(episode)

    async def aclose(self) -> None:
        """Close the model's client."""
        await self._model.aclose()

    async def _structured(self, episode: Episode, k: int, evidence: Sequence[Suspect]) -> Blame:
        last = len(episode.turns) - 1
        found = "\n".join(f"- turn {one.turn}: {one.reason}" for one in evidence)
        asked = f"""What rules noticed, right or wrong:
{found or "- nothing"}

First find the cause. Then say what would have happened if the decisive turn had been done right. Then name up to {k} turns that may be the
decisive one, most likely first. If no single turn is to blame, name none and set "unlocalizable"."""
        answer = await self._ask(episode, last, asked, _blame_schema(last, k), lambda value: _read_blame(value, last, k), "structured")
        if answer.value is None:
            return Blame((), faults=answer.faults, use=self._use(answer))
        turns, cause, counterfactual, unlocalizable = answer.value
        return Blame(turns, cause, counterfactual, unlocalizable, use=self._use(answer))

    async def _all_at_once(self, episode: Episode) -> Blame:
        last = len(episode.turns) - 1
        answer = await self._ask(episode, last, "Which turn is the decisive one?", _turn_schema(last), _turn_reader(last), "all")
        return Blame(() if answer.value is None else (answer.value,), faults=answer.faults, use=self._use(answer))

    async def _step_by_step(self, episode: Episode) -> Blame:
        use, faults = ExpertUse(), list[str]()
        for turn in range(len(episode.turns)):
            asked = f"You see the episode up to turn {turn}. Is turn {turn} the decisive mistake?"
            answer = await self._ask(episode, turn, asked, _MISTAKE, _read_mistake, f"step {turn}")
            use += self._use(answer)
            faults += answer.faults
            if answer.value is not None and answer.value[0]:
                return Blame((Named(turn, answer.value[1]),), faults=tuple(faults), use=use)
        return Blame((), unlocalizable=True, faults=tuple(faults), use=use)

    async def _binary_search(self, episode: Episode) -> Blame:
        low, high, use, faults, why = 0, len(episode.turns) - 1, ExpertUse(), list[str](), ""
        while low < high:
            middle = (low + high) // 2
            asked = f"The decisive turn is one of {low} to {high}. Is it among {low} to {middle}, or among {middle + 1} to {high}?"
            answer = await self._ask(episode, len(episode.turns) - 1, asked, _HALF, _read_half, f"half {low} {high}")
            use += self._use(answer)
            faults += answer.faults
            if answer.value is None:
                return Blame((), faults=tuple(faults), use=use)
            earlier, why = answer.value
            low, high = (low, middle) if earlier else (middle + 1, high)
        return Blame((Named(low, why),) if episode.turns else (), faults=tuple(faults), use=use)

    async def _ask(self, episode: Episode, last: int, asked: str, schema: Mapping[str, Any], read: Any, step: str) -> Answer[Any]:
        """The episode up to `last` comes first and the question behind it, so that an endpoint's prefix cache serves all questions."""
        shown = f"{transcript(episode, last=last)}\n\n{_checks(episode)}\n\n{asked}"
        request = ModelRequest(
            (Message(Role.SYSTEM, _HOW), Message(Role.USER, shown)),
            (),
            self._recipe.sampling,
            f"{episode.id}/judge",
            derive_seed("judge", JUDGE_VERSION, self._style, episode.id, step),
            answer_schema=schema,
        )
        return await ask(self._model, request, read)

    def _use(self, answer: Answer[Any]) -> ExpertUse:
        return use_of(answer.usage, calls=answer.calls, price=self._recipe.price, form=answer.form)


def proposal_of(method: str, blame: Blame) -> Proposal:
    """The record of what a judge came to."""
    return Proposal(
        method=method,
        turns=tuple(one.turn for one in blame.turns),
        cause=blame.cause,
        counterfactual=blame.counterfactual,
        unlocalizable=blame.unlocalizable,
        faults=blame.faults,
        expert=blame.use,
    )


def transcript(episode: Episode, *, last: int | None = None) -> str:
    """The task and the turns as numbered text, up to and including turn `last`."""
    stop = len(episode.turns) if last is None else last + 1
    task = next((message.content for message in episode.messages if message.role == Role.USER), "")
    lines = [f"# Task\n{task.strip()}\n\n# Turns"]
    for index, turn in enumerate(episode.turns[:stop]):
        said = turn.completion_text.strip()
        result = turn.result.strip()
        cut = f"{result[:MAX_RESULT_CHARS]} [cut]" if len(result) > MAX_RESULT_CHARS else result
        lines.append(f"## Turn {index}\n{said}\nResult: {cut}")
    return "\n\n".join(lines)


def _checks(episode: Episode) -> str:
    checks = episode.grade.checkpoints if episode.grade is not None else ()
    failed = [f"- {check.feedback or check.name}" for check in checks if not check.passed]
    return "# Checks that failed at the end\n" + ("\n".join(failed) or f"- the episode ended with status {episode.status}")


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


_TEXT: Mapping[str, Any] = MappingProxyType({"type": "string"})
_MISTAKE = _object(mistake={"type": "boolean"}, reason=dict(_TEXT))
_HALF = _object(half={"type": "string", "enum": ["earlier", "later"]}, reason=dict(_TEXT))


def _turn_schema(last: int) -> dict[str, Any]:
    return _object(turn={"type": "integer", "minimum": 0, "maximum": last}, reason=dict(_TEXT))


def _blame_schema(last: int, k: int) -> dict[str, Any]:
    named = {"type": "array", "items": _turn_schema(last), "maxItems": k}
    return _object(cause=dict(_TEXT), counterfactual=dict(_TEXT), turns=named, unlocalizable={"type": "boolean"})


def _read_blame(value: Any, last: int, k: int) -> tuple[tuple[Named, ...], str, str, bool]:
    """Raises `ModelError` for a wrong shape, and for an answer that names turns and calls the episode unlocalizable, or neither."""
    fits_schema(value, _blame_schema(last, k))
    if bool(value["turns"]) == value["unlocalizable"]:
        raise ModelError("turns: name at least one turn, or none with unlocalizable set to true")
    named = {one["turn"]: Named(one["turn"], one["reason"]) for one in reversed(value["turns"])}
    order = dict.fromkeys(one["turn"] for one in value["turns"])
    return tuple(named[turn] for turn in order), value["cause"], value["counterfactual"], value["unlocalizable"]


def _turn_reader(last: int) -> Any:
    def read(value: Any) -> Named:
        fits_schema(value, _turn_schema(last))
        return Named(value["turn"], value["reason"])

    return read


def _read_mistake(value: Any) -> tuple[bool, str]:
    fits_schema(value, _MISTAKE)
    return value["mistake"], value["reason"]


def _read_half(value: Any) -> tuple[bool, str]:
    fits_schema(value, _HALF)
    return value["half"] == "earlier", value["reason"]
