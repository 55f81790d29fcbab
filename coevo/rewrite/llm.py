"""An LLM as the expert: it rewrites turns, and plays whole episodes under the weak model's harness.

Both go one way: the dialogue of `coevo.rewrite.dialogue`, a turn as JSON of `coevo.rewrite.turn`, asked by `coevo.models.structured` with
one second try. Episodes are played so too, and not through an endpoint's tool calls: those need a parser that the server must have been
started with, come several at a time, and leave out the strategy sentence. Works over any ChatModel that takes messages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coevo.chat import Completion, ModelRequest, Sampling, ToolSpec, Usage
from coevo.episode import Agent
from coevo.errors import ModelError
from coevo.formats import chat_format
from coevo.formats.family import ChatFormat
from coevo.gather import gather_all
from coevo.harness.tools import resolve_tools
from coevo.identity import content_hash, derive_seed
from coevo.models.structured import Answer, ask
from coevo.ports import ChatModel, ModelSource
from coevo.prices import TokenPrice
from coevo.records import Episode, ExpertUse, RejectedRewrite
from coevo.rewrite.dialogue import DIALOGUE_VERSION, play_dialogue, rewrite_dialogue
from coevo.rewrite.expert import Offer, visible_at
from coevo.rewrite.spend import use_of
from coevo.rewrite.turn import Rewrite, read_turn, turn_schema
from coevo.tasks.family import TaskFamily, TaskInstance

__all__ = ["ExpertPlayer", "ExpertPlayerSource", "LLMExpert", "LLMExpertSource", "LLMRecipe"]


@dataclass(frozen=True, slots=True)
class LLMRecipe:
    """Which model is the expert and how it is asked; crosses Ray.

    Attributes:
        model: The model.
        temperature, max_tokens: Decoding settings of one answer.
        price: Of its tokens; None = not known.
    """

    model: ModelSource
    temperature: float = 0.7
    max_tokens: int = 1024
    price: TokenPrice | None = None

    @property
    def model_id(self) -> str:
        """The model and, as 8 hex digits, what else decides its turns: an expert's episodes and rewrites never pass for another's."""
        asked = content_hash([self.temperature, self.max_tokens, DIALOGUE_VERSION])[:8]
        return f"{self.model.model_id}/{asked}"

    @property
    def sampling(self) -> Sampling:
        """Decoding settings."""
        return Sampling(self.temperature, 1.0, self.max_tokens)


@dataclass(frozen=True, slots=True)
class LLMExpertSource:
    """Recipe of an `LLMExpert`."""

    recipe: LLMRecipe

    def open(self, agent: Agent, family: TaskFamily) -> LLMExpert:
        """Connect."""
        return LLMExpert(self.recipe, agent, family)


class LLMExpert:
    """See the module docstring and `coevo.rewrite.expert.Expert`."""

    def __init__(self, recipe: LLMRecipe, agent: Agent, family: TaskFamily) -> None:
        self._recipe, self._agent, self._family = recipe, agent, family
        self._model = recipe.model.open()

    @property
    def model_id(self) -> str:
        """See `LLMRecipe.model_id`."""
        return self._recipe.model_id

    async def rewrite(self, episode: Episode, turn: int, *, n: int) -> Offer:
        """`n` independent answers, one when decoding is greedy; equal ones become one, the most frequent first.

        Raises:
            InfraError: The endpoint failed.
        """
        bundle, chat = self._agent.bundle, self._agent.chat_format
        tools = resolve_tools(bundle.tools, bundle.composites, self._family.tools(TaskInstance.parse(episode.spec.task_key).size)).specs
        messages = rewrite_dialogue(visible_at(bundle, episode, turn), episode, turn, tools=tools, chat_format=chat)
        request = ModelRequest(messages, (), self._recipe.sampling, f"{episode.id}/{turn}", 0, answer_schema=turn_schema(tools))
        seeds = [derive_seed("rewrite", episode.id, turn, index) for index in range(n if self._recipe.temperature > 0 else 1)]
        answers = await gather_all(*(_ask_turn(self._model, request, seed, tools, chat) for seed in seeds))
        return self._offer(answers)

    def _offer(self, answers: list[Answer[Rewrite]]) -> Offer:
        found: dict[str, Rewrite] = {}
        times: dict[str, int] = {}
        rejected, use = [], ExpertUse()
        for answer in answers:
            use += use_of(answer.usage, calls=answer.calls, price=self._recipe.price, form=answer.form)
            if answer.value is None:
                rejected.append(RejectedRewrite(text=answer.text, reason="; then: ".join(answer.faults)))
                continue
            found.setdefault(answer.value.text, answer.value)
            times[answer.value.text] = times.get(answer.value.text, 0) + 1
        ranked = sorted(found.values(), key=lambda one: -times[one.text])
        return Offer(tuple(ranked), tuple(rejected), use)

    async def aclose(self) -> None:
        """Close the model's client."""
        await self._model.aclose()


class ExpertPlayer:
    """`ChatModel`: the expert takes a turn in the weak model's format. An answer that can't be used stands as the turn's text."""

    def __init__(self, recipe: LLMRecipe, syntax: ChatFormat) -> None:
        self._recipe, self._format = recipe, syntax
        self._model = recipe.model.open()

    @property
    def model_id(self) -> str:
        """See `LLMRecipe.model_id`."""
        return self._recipe.model_id

    async def complete(self, request: ModelRequest) -> Completion:
        """One turn.

        Raises:
            ModelError: The endpoint refused the request itself, or it names another model.
            InfraError: The endpoint failed.
        """
        if request.model_id not in ("", self.model_id):
            raise ModelError("the request names another model", seen=request.model_id, fix=f"this one is {self.model_id}")
        asked = ModelRequest(
            play_dialogue(request.messages, request.tools, self._format),
            (),
            self._recipe.sampling,
            request.session,
            request.seed,
            answer_schema=turn_schema(request.tools),
        )
        answer = await _ask_turn(self._model, asked, request.seed, request.tools, self._format)
        if answer.value is None and not answer.calls:
            raise ModelError("the expert gave no answer", seen="; then: ".join(answer.faults), fix="check its context length and settings")
        text = answer.value.text if answer.value is not None else answer.text or "(nothing)"
        return Completion(text, usage=answer.usage, form=answer.form)

    async def aclose(self) -> None:
        """Close the model's client."""
        await self._model.aclose()


@dataclass(frozen=True, slots=True)
class ExpertPlayerSource:
    """Recipe of an `ExpertPlayer`; crosses Ray. `chat_format` is the weak model's."""

    recipe: LLMRecipe
    chat_format: str

    @property
    def model_id(self) -> str:
        """See `LLMRecipe.model_id`."""
        return self.recipe.model_id

    def open(self) -> ExpertPlayer:
        """Connect."""
        return ExpertPlayer(self.recipe, chat_format(self.chat_format))

    def bill(self, usage: Usage, calls: int) -> ExpertUse:
        """What an episode cost (`coevo.rewrite.spend.PaidSource`)."""
        return use_of(usage, calls=calls, price=self.recipe.price)


async def _ask_turn(model: ChatModel, request: ModelRequest, seed: int, tools: tuple[ToolSpec, ...], syntax: ChatFormat) -> Answer[Rewrite]:
    return await ask(model, replace(request, seed=seed), lambda value: read_turn(value, tools, syntax))
