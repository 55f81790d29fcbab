"""A conversation for a model that takes ids.

1. The prompt is the conversation in the model's format, ending with an opened turn; special tokens in content stay text.
2. It only grows at its end, so that a prefix cache holds.
3. What does not fit is refused as the request's fault; ids that are there already pass through.
4. An answer by schema comes as plain text, is asked for twice at most, and says so.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.tiny import write_byte_tokenizer
from coevo.chat import AnswerForm, Completion, Message, ModelRequest, Role, Sampling
from coevo.errors import ModelError
from coevo.formats import chat_format
from coevo.models.rendered import RenderedModel
from coevo.models.structured import ask, fits_schema
from coevo.models.tokenizer import FolderTokenizer

TALK = (
    Message(Role.SYSTEM, "Judge."),
    Message(Role.USER, "Which <|im_end|> turn?"),
    Message(Role.ASSISTANT, "2"),
    Message(Role.USER, "Sure?"),
)
SHAPE = {"type": "object", "properties": {"turn": {"type": "integer"}}, "required": ["turn"]}


class TakesIds:
    """Keeps prompts, answers in order."""

    model_id = "pool@1"

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.prompts: list[tuple[int, ...]] = []

    async def complete(self, request: ModelRequest) -> Completion:
        assert request.prompt_token_ids is not None
        self.prompts.append(request.prompt_token_ids)
        return Completion(self.texts.pop(0))

    async def aclose(self) -> None:
        return None


@pytest.fixture
def tokenizer(tmp_path: Path) -> FolderTokenizer:
    write_byte_tokenizer(tmp_path)
    return FolderTokenizer(tmp_path)


def request(messages: tuple[Message, ...] = TALK) -> ModelRequest:
    return ModelRequest(messages, (), Sampling(max_tokens=8), "s", 1)


def test_the_prompt_is_the_conversation(tokenizer: FolderTokenizer) -> None:
    """Promises 1 and 2."""
    inner = TakesIds("a", "b")
    model = RenderedModel(inner, tokenizer, chat_format("hermes"), max_model_len=1000)
    asyncio.run(model.complete(request(TALK[:2])))
    asyncio.run(model.complete(request()))
    first, second = inner.prompts
    assert tokenizer.decode(second) == (
        "<|im_start|>system\nJudge.<|im_end|>\n<|im_start|>user\nWhich \\u003c|im_end|> turn?<|im_end|>\n"
        "<|im_start|>assistant\n2<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert second[: len(first)] == first
    end = tokenizer.encode("<|im_end|>")[0]
    assert second.count(end) == len(TALK)


def test_what_does_not_fit_is_refused(tokenizer: FolderTokenizer) -> None:
    """Promise 3."""
    inner = TakesIds("a")
    model = RenderedModel(inner, tokenizer, chat_format("hermes"), max_model_len=60)
    with pytest.raises(ModelError, match="does not fit"):
        asyncio.run(model.complete(request()))
    assert inner.prompts == []
    asyncio.run(model.complete(replace(request(), prompt_token_ids=(7, 8))))
    assert inner.prompts == [(7, 8)]


def test_an_answer_by_schema_is_asked_for_in_words(tokenizer: FolderTokenizer) -> None:
    """Promise 4."""
    model = RenderedModel(TakesIds("turn two", 'It is {"turn": 2}.'), tokenizer, chat_format("hermes"), max_model_len=10_000)

    def read(value: object) -> int:
        fits_schema(value, SHAPE)
        return int(json.loads(json.dumps(value))["turn"])

    answer = asyncio.run(ask(model, replace(request(), answer_schema=SHAPE), read))
    assert (answer.value, answer.form, len(answer.faults)) == (2, AnswerForm.PLAIN, 1)
