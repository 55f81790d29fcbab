"""Models that follow a script: for tests, dry runs and fault drills. A product feature, not a test double.

A script sees one request and returns the turn's text; it must depend on nothing else, so that concurrent episodes and replays agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coevo.chat import Completion, FinishReason, ModelRequest, Role, Usage
from coevo.errors import CoevoError, InfraError, ModelError, boundary
from coevo.ports import Tokenizer

__all__ = ["Script", "ScriptedModel", "ScriptedSource", "faulty", "turn_number"]

Script = Callable[[ModelRequest], str]
"""Request -> text of the turn, without the end-of-turn token. May raise `ModelError` or `InfraError` to play a fault."""


def turn_number(request: ModelRequest) -> int:
    """How many turns the model has taken in this context, from the request itself."""
    return sum(message.role is Role.ASSISTANT for message in request.messages)


class ScriptedModel:
    """A ChatModel that plays a script.

    Args:
        script: A function of the request, or one text per turn (the turn is counted from the request's assistant messages).
        model_id: Its id.
        tokenizer: With it, completions carry token ids and respect `max_tokens`.
        end_of_turn: Text of the token that closes a turn; its id ends `token_ids`.
    """

    def __init__(
        self,
        script: Script | Sequence[str],
        *,
        model_id: str = "scripted",
        tokenizer: Tokenizer | None = None,
        end_of_turn: str = "",
    ) -> None:
        self._script = script if callable(script) else _Texts(tuple(script))
        self._model_id = model_id
        self._tokenizer = tokenizer
        self._end_of_turn = end_of_turn

    @property
    def model_id(self) -> str:
        """As given."""
        return self._model_id

    async def aclose(self) -> None:
        """Nothing to close."""

    async def complete(self, request: ModelRequest) -> Completion:
        """The script's turn.

        Raises:
            ModelError: The request names another model, the script is exhausted, or it raised something of its own.
            InfraError: When the script raises it.
        """
        if request.model_id not in ("", self._model_id):
            raise ModelError("the request names another model", seen=request.model_id, fix=f"this one is {self._model_id}")
        with boundary(ModelError, "the script failed", fix="a script may raise ModelError or InfraError"):
            text = self._script(request)
        prompt_tokens = len(request.prompt_token_ids or ())
        if self._tokenizer is None:
            return Completion(text, usage=Usage(prompt_tokens=prompt_tokens))
        ids = self._tokenizer.encode(text + self._end_of_turn)
        if len(ids) <= request.sampling.max_tokens:
            return Completion(text, FinishReason.STOP, tuple(ids), usage=Usage(prompt_tokens, 0, len(ids)))
        cut = ids[: request.sampling.max_tokens]
        return Completion(self._tokenizer.decode(cut), FinishReason.LENGTH, tuple(cut), usage=Usage(prompt_tokens, 0, len(cut)))


@dataclass(frozen=True, slots=True)
class ScriptedSource:
    """Recipe of a `ScriptedModel`; picklable when its script is (a list of texts, or a function of a module)."""

    script: Script | tuple[str, ...]
    model_id: str = "scripted"

    def open(self) -> ScriptedModel:
        """A fresh model."""
        return ScriptedModel(self.script, model_id=self.model_id)


@dataclass(frozen=True, slots=True)
class _Texts:
    texts: tuple[str, ...]

    def __call__(self, request: ModelRequest) -> str:
        turn = turn_number(request)
        if turn >= len(self.texts):
            raise ModelError(
                "the script has no more turns", seen=f"turn {turn} of {len(self.texts)}", fix="add texts, or end the episode earlier"
            )
        return self.texts[turn]


def faulty(script: Script, *, fails: Callable[[ModelRequest], bool], error: CoevoError | None = None) -> Script:
    """A script that raises on some requests (default: an `InfraError`), else plays `script`: for fault injection."""

    def play(request: ModelRequest) -> str:
        if fails(request):
            raise error or InfraError("a fault was asked for", seen=request.session, fix="none needed: this is a drill")
        return script(request)

    return play
