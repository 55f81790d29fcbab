"""The embedded model's tokenizer, corpus and shipped files.

1. Any text survives encoding and decoding; known words are one token wherever they stand, digits are single.
2. The shipped folder is what the code says: tokenizer, vocabulary, weights hash, gates.
3. A corpus row trains exactly the assistant turns of a demonstration that the real world executed.
4. The corpus is a function of its seed and draws from the pretraining stream alone.
5. A copying row trains only what its list determines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coevo.formats.mini import ASSISTANT, CALL, END, SPECIAL_TOKENS, SYSTEM, TOOL, MiniFormat
from coevo.harness.sandbox import shared_pool
from coevo.identity import content_hash
from coevo.mini.corpus import CorpusPlan, Row, build_corpus, pack
from coevo.mini.gates import GATE_INSTANCES, GATE_SEED_FIRST, GATES, check_gates
from coevo.mini.model import MINI_PATH, folder_model_id, mini_path
from coevo.mini.tokenizer import CHAIN_NAMES, LIST_NAMES, RECORD_NAMES, WORDS, build_tokenizer, save_tokenizer
from coevo.models.tokenizer import FolderTokenizer
from coevo.tasks import load_family
from coevo.tasks.family import Size, Stream, TaskInstance, World

FAMILY = load_family("payroll")
FORMAT = MiniFormat()
BASE_ONLY = CorpusPlan(episodes=12, plan_share=0.0, base_share=1.0, copy_share=0.0)
MIXED = CorpusPlan(episodes=24)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FolderTokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return FolderTokenizer(folder)


class Watched:
    """The family, remembering which instances were asked for and which worlds were opened."""

    def __init__(self) -> None:
        self.instances: list[TaskInstance] = []
        self.worlds: list[World] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(FAMILY, name)

    def instance(self, stream: Stream, seed: int, size: Size, *, diversity: int) -> TaskInstance:
        self.instances.append(FAMILY.instance(stream, seed, size, diversity=diversity))
        return self.instances[-1]

    def open(self, instance: TaskInstance) -> World:
        self.worlds.append(FAMILY.open(instance))
        return self.worlds[-1]


def built(plan: CorpusPlan, tokenizer: FolderTokenizer, *, seed: int = 1, first: int = 0, family: Any = FAMILY) -> list[Row]:
    return build_corpus(plan, family=family, tokenizer=tokenizer, sandboxes=shared_pool(), seed=seed, first=first)


def runs(row: Row) -> Iterator[tuple[int, int]]:
    """Half-open ranges of the tokens that are trained."""
    edges = np.flatnonzero(np.diff([0, *row[1], 0]))
    yield from zip(edges[0::2].tolist(), edges[1::2].tolist(), strict=True)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(text=st.text(max_size=80))
def test_any_text_round_trips(tokenizer: FolderTokenizer, text: str) -> None:
    """Promise 1: the bytes cover what the words do not."""
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(parts=st.lists(st.sampled_from([*SPECIAL_TOKENS, *(f" {word}" for word in WORDS), " .", " ,", "(", ")", "7", "\n"]), max_size=30))
def test_the_languages_own_text_round_trips(tokenizer: FolderTokenizer, parts: list[str]) -> None:
    """Promise 1: one token per part, whatever stands beside it."""
    ids = tokenizer.encode("".join(parts))
    assert tokenizer.decode(ids) == "".join(parts)
    assert len(ids) == len(parts)


def test_a_word_has_one_token_wherever_it_stands(tokenizer: FolderTokenizer) -> None:
    """Promise 1."""
    for word in WORDS:
        (id,) = tokenizer.encode(f" {word}")
        for text in (f"<|user|> {word}<|end|>", f"3 {word} .", f"7 {word}(1)", f"( {word} {word}"):
            assert tokenizer.encode(text).count(id) == text.count(f" {word}"), text
    assert len({tuple(tokenizer.encode(f" {word}")) for word in WORDS}) == len(WORDS)
    assert set(WORDS) >= {*CHAIN_NAMES, *LIST_NAMES, *RECORD_NAMES}


def test_digits_are_single(tokenizer: FolderTokenizer) -> None:
    """Promise 1: numbers are copied digit by digit."""
    assert len(tokenizer.encode("9081726354")) == 10
    assert tokenizer.encode(" E204") == [*tokenizer.encode(" E"), *(tokenizer.encode(digit)[0] for digit in "204")]


def test_special_tokens_are_one_token_each(tokenizer: FolderTokenizer) -> None:
    """Promise 1."""
    assert [tokenizer.encode(token) for token in SPECIAL_TOKENS] == [[tokenizer.token_id(token)] for token in SPECIAL_TOKENS]
    assert tokenizer.token_id(SPECIAL_TOKENS[0]) == 0


def test_the_shipped_tokenizer_is_the_codes(tokenizer: FolderTokenizer) -> None:
    """Promise 2."""
    assert json.loads((mini_path() / "tokenizer.json").read_text(encoding="utf-8")) == json.loads(json.dumps(build_tokenizer()))
    shipped = json.loads((MINI_PATH / "config.json").read_text(encoding="utf-8"))
    assert shipped["vocab_size"] == tokenizer.vocab_size
    assert tokenizer.vocab_size % 64 == 0


def test_the_shipped_weights_are_those_that_passed_the_gates() -> None:
    """Promise 2: weights, their record and their gates belong together (I6, I12)."""
    record = json.loads((MINI_PATH / "pretrain.json").read_text(encoding="utf-8"))
    assert content_hash((MINI_PATH / "model.safetensors").read_bytes()) == record["weights_sha256"]
    gates = json.loads((MINI_PATH / "gates.json").read_text(encoding="utf-8"))
    assert check_gates(gates["base"]["success"], gates["hand_made"]["success"]) == []
    assert gates["failures"] == []
    assert gates["instances"] == GATE_INSTANCES
    assert folder_model_id(str(MINI_PATH)).startswith("mini-")


def test_gates_refuse_what_lies_outside_their_bands() -> None:
    """Promise 2: every gate can fail, in words that name it."""
    low, high = GATES[0].low, GATES[0].high
    assert check_gates((low + high) / 2, (low + high) / 2 + 0.2) == []
    assert any("base = " in failure for failure in check_gates(high + 0.05, 0.84))
    assert any("hand_made = " in failure for failure in check_gates(low, 0.99))
    assert any("hand_made - base" in failure for failure in check_gates(0.4, 0.4))


def test_the_loss_covers_exactly_the_assistant_turns(tokenizer: FolderTokenizer) -> None:
    """Promise 3 (I7): what is trained, read back, is what the world executed, call by call."""
    family = Watched()
    rows = built(BASE_ONLY, tokenizer, family=family)
    worlds = family.worlds[0::2]  # the other one of each pair is the demonstrator's own
    assert len(rows) == len(worlds) == BASE_ONLY.episodes
    tools = FAMILY.tools(Size.MINI)
    for row, world in zip(rows, worlds, strict=True):
        ids, mask = row
        assert len(ids) == len(mask)
        spans = list(runs(row))
        assert len(spans) == ids.count(tokenizer.token_id(ASSISTANT))
        calls = []
        for start, stop in spans:
            assert ids[start - 1] == tokenizer.token_id(ASSISTANT)
            assert ids[stop - 1] == tokenizer.token_id(END)
            parsed = FORMAT.parse(tokenizer.decode(ids[start : stop - 1]), tools)
            assert parsed.failure is None
            assert parsed.call is not None
            calls.append((parsed.call.name, dict(parsed.call.arguments)))
        assert calls == [(call.name, dict(call.arguments)) for call in world.log]


def test_trimmed_windows_train_whole_turns_too(tokenizer: FolderTokenizer) -> None:
    """Promise 3 for random harnesses: loss on whole assistant turns only, the last turn always."""
    rows = built(replace(MIXED, copy_share=0.0), tokenizer)
    for row in rows:
        ids, mask = row
        assert tokenizer.decode(ids).startswith(SYSTEM)
        assert len(ids) <= MIXED.max_tokens
        assert mask[-1] == 1
        for start, stop in runs(row):
            assert ids[start - 1] == tokenizer.token_id(ASSISTANT)
            assert ids[stop - 1] == tokenizer.token_id(END)
            assert ids[start:stop].count(tokenizer.token_id(END)) == 1
    assert len(rows) > MIXED.episodes, "no harness trimmed its context: the test saw no windows"


def test_the_corpus_is_a_function_of_its_seed(tokenizer: FolderTokenizer) -> None:
    """Promise 4 (I4): and its parts may be built apart."""
    whole = built(MIXED, tokenizer)
    assert whole == built(MIXED, tokenizer)
    halves = [built(replace(MIXED, episodes=12), tokenizer, first=first) for first in (0, 12)]
    assert whole == [*halves[0], *halves[1]]
    assert whole != built(MIXED, tokenizer, seed=2)


def test_the_corpus_draws_from_the_pretraining_stream_alone(tokenizer: FolderTokenizer) -> None:
    """Promise 4 (I8): no instance of it is a gate's, a search's or a test's."""
    family = Watched()
    built(MIXED, tokenizer, family=family)
    assert len(family.instances) == MIXED.episodes
    assert {instance.stream for instance in family.instances} == {Stream.PRETRAIN}
    assert {world.instance.stream for world in family.worlds} == {Stream.PRETRAIN}
    assert max(instance.seed for instance in family.instances) < GATE_SEED_FIRST


def test_copying_rows_train_what_the_list_determines(tokenizer: FolderTokenizer) -> None:
    """Promise 5."""
    rows = built(replace(BASE_ONLY, episodes=16, copy_share=0.5), tokenizer)
    copies = [row for row in rows if tokenizer.decode(row[0]).startswith(TOOL)]
    assert len(copies) == 16
    for row in copies:
        ids, mask = row
        header = ids.index(tokenizer.token_id(END))
        assert not any(mask[:header])
        listed = tokenizer.decode(ids[:header])
        for start, stop in runs(row):
            assert tokenizer.decode(ids[start:stop]) in listed
            assert tokenizer.token_id(ASSISTANT) not in ids[start:stop]
        assert sum(mask) > 0


def test_packed_rows_are_the_rows(tokenizer: FolderTokenizer) -> None:
    """What the training loop reads is what was built."""
    rows = built(BASE_ONLY, tokenizer)
    arrays: Mapping[str, Any] = pack(rows)
    offsets = arrays["offsets"].tolist()
    again = [(arrays["ids"][a:b].tolist(), arrays["mask"][a:b].tolist()) for a, b in pairwise(offsets)]
    assert again == rows
    assert CALL in tokenizer.decode(again[0][0])
