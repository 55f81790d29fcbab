"""Messages for a model that takes token ids: our own pools as experts and judges.

A pool serves ids and knows no chat syntax. Here a conversation becomes one prompt in the model's chat format; tools, if any, must stand in
the messages. A request that brings its ids already passes through. Such a model can't be made to decode by a schema: an answer in JSON is
asked for in plain words, and the completion says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coevo.chat import AnswerForm, Completion, ModelRequest, Role
from coevo.errors import ModelError
from coevo.formats import chat_format
from coevo.formats.family import ChatFormat
from coevo.models.tokenizer import FolderTokenizer
from coevo.ports import ChatModel, ModelSource, Tokenizer

__all__ = ["RenderedModel", "RenderedSource"]


class RenderedModel:
    """`ChatModel` over one that takes ids.

    Args:
        inner: The model.
        tokenizer: Its tokenizer.
        syntax: Its chat format.
        max_model_len: Its context, in tokens.
    """

    def __init__(self, inner: ChatModel, tokenizer: Tokenizer, syntax: ChatFormat, *, max_model_len: int) -> None:
        self._inner, self._tokenizer, self._format, self._max_model_len = inner, tokenizer, syntax, max_model_len

    @property
    def model_id(self) -> str:
        """The inner model's."""
        return self._inner.model_id

    async def complete(self, request: ModelRequest) -> Completion:
        """Render and ask.

        Raises:
            ModelError: The prompt does not fit, or what the inner model raises.
            InfraError: What the inner model raises.
        """
        if request.prompt_token_ids is not None:
            return await self._inner.complete(request)
        prompt = self._prompt(request)
        room = self._max_model_len - len(prompt)
        if room < request.sampling.max_tokens:
            seen = f"{len(prompt)} prompt tokens and {request.sampling.max_tokens} of an answer, context {self._max_model_len}"
            raise ModelError("the conversation does not fit the model", seen=seen, fix="take a model with a longer context")
        completion = await self._inner.complete(replace(request, prompt_token_ids=prompt))
        return completion if request.answer_schema is None else replace(completion, form=AnswerForm.PLAIN)

    def _prompt(self, request: ModelRequest) -> tuple[int, ...]:
        parts = [
            self._format.render_message(message) + (self._format.after_turn if message.role is Role.ASSISTANT else "")
            for message in request.messages
        ]
        return tuple(token for part in (*parts, self._format.open_turn) for token in self._tokenizer.encode(part))

    async def aclose(self) -> None:
        """Close the inner model."""
        await self._inner.aclose()


@dataclass(frozen=True, slots=True)
class RenderedSource:
    """Recipe of a `RenderedModel`; crosses Ray. `folder` holds the tokenizer."""

    inner: ModelSource
    folder: str
    chat_format: str
    max_model_len: int

    @property
    def model_id(self) -> str:
        """The inner model's id."""
        return self.inner.model_id

    def open(self) -> RenderedModel:
        """Connect."""
        return RenderedModel(
            self.inner.open(), FolderTokenizer(self.folder), chat_format(self.chat_format), max_model_len=self.max_model_len
        )
