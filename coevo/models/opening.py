"""A model whose every turn begins with given tokens: what it does when it is not free to begin as it likes.

With the mark of a call as the opening, a model that was taught to say a sentence before it calls a tool calls at once. The same weights
with and without the opening tell what the sentence does at the moment of the decision, apart from what training on sentences did to them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coevo.chat import Completion, ModelRequest
from coevo.errors import ModelError
from coevo.identity import content_hash
from coevo.ports import ChatModel, ModelSource

__all__ = ["OpeningModel", "OpeningSource"]


class OpeningModel:
    """`ChatModel` over a token-in model."""

    def __init__(self, inner: ChatModel, recipe: OpeningSource) -> None:
        self._inner, self._recipe = inner, recipe

    @property
    def model_id(self) -> str:
        """See `OpeningSource.model_id`."""
        return self._recipe.model_id

    async def complete(self, request: ModelRequest) -> Completion:
        """The opening and the model's continuation of it, without log-probabilities: the opening was not sampled.

        Raises:
            ModelError: The request carries no prompt ids, or names another model.
        """
        prompt, opening = request.prompt_token_ids, self._recipe.token_ids
        if prompt is None:
            raise ModelError("an opening needs prompts as token ids", seen="prompt_token_ids=None", fix="give the agent a tokenizer")
        if request.model_id not in ("", self.model_id):
            raise ModelError("the request names another model", seen=request.model_id, fix=f"this one is {self.model_id}")
        asked = replace(request, prompt_token_ids=(*prompt, *opening), model_id=self._recipe.inner.model_id if request.model_id else "")
        said = await self._inner.complete(asked)
        return replace(said, text=self._recipe.text + said.text, token_ids=(*opening, *said.token_ids), logprobs=())

    async def aclose(self) -> None:
        """Close the inner model."""
        await self._inner.aclose()


@dataclass(frozen=True, slots=True)
class OpeningSource:
    """Recipe; crosses Ray.

    Attributes:
        inner: The model that goes on.
        text: How every turn begins.
        token_ids: The same as ids of the model's tokenizer.
    """

    inner: ModelSource
    text: str
    token_ids: tuple[int, ...]

    @property
    def model_id(self) -> str:
        """The model and, as 8 hex digits, the opening."""
        return f"{self.inner.model_id}/{content_hash([self.text, list(self.token_ids)])[:8]}"

    def open(self) -> OpeningModel:
        """Open the inner model."""
        return OpeningModel(self.inner.open(), self)
