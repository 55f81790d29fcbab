"""A model that knows nothing: it finishes at once. A harness under which it succeeds solves the task by itself, and the gate refuses it."""

from __future__ import annotations

from dataclasses import dataclass

from coevo.chat import Completion, ModelRequest, ToolCall
from coevo.formats import chat_format
from coevo.formats.family import ChatFormat

__all__ = ["NullModel", "NullSource"]

FINISH = ToolCall("finish", {})


class NullModel:
    """Calls `finish` at every turn, in a chat format."""

    model_id = "null"

    def __init__(self, syntax: ChatFormat) -> None:
        self._format = syntax

    async def complete(self, request: ModelRequest) -> Completion:
        """The same turn always."""
        return Completion(self._format.render_turn("", FINISH, request.tools))

    async def aclose(self) -> None:
        """Nothing to close."""


@dataclass(frozen=True, slots=True)
class NullSource:
    """Picklable recipe of a `NullModel`."""

    chat_format: str

    @property
    def model_id(self) -> str:
        """`null`."""
        return NullModel.model_id

    def open(self) -> NullModel:
        """Build it."""
        return NullModel(chat_format(self.chat_format))
