"""The episode loop's promises.

1. An episode's record is a function of its inputs: played twice, equal bytes.
2. Prompts are rebuilt exactly from the shared-prefix encoding, and only grow while the context is append-only (R13).
3. A branch with the original turns as prefix rebuilds the original prompts and ends like the original.
4. Parse failures, turn and token limits and a full context end in their own statuses, graded (R14).
5. Trouble in the model ends in INFRA_ERROR, ungraded, with the root traceback (R1, R3).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from coevo.chat import Completion, ModelRequest, Sampling
from coevo.episode import Agent, forced_prefix, play
from coevo.errors import InfraError
from coevo.formats.mini import MiniFormat
from coevo.harness.sandbox import shared_pool
from coevo.mini.demonstrator import Demonstrator, Habits
from coevo.mini.harnesses import DemoHarness, base_demo, hand_made
from coevo.mini.tokenizer import save_tokenizer
from coevo.models.tokenizer import FolderTokenizer
from coevo.records import Episode, Status
from coevo.tasks import load_family
from coevo.tasks.family import Size, Stream

FAMILY = load_family("payroll")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FolderTokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return FolderTokenizer(folder)


def clerk(harness: DemoHarness, tokenizer: FolderTokenizer, *, seed: int = 0, max_model_len: int = 4096) -> Agent:
    model = Demonstrator(harness, FAMILY, habits=Habits(), seed=seed)
    return Agent(model, harness.bundle, MiniFormat(), tokenizer, max_model_len, Sampling(0.0, 1.0, 96))


def played(agent: Agent, number: int, **options: object) -> Episode:
    instance = FAMILY.instance(Stream.SEARCH, number, Size.MINI, diversity=3)
    return asyncio.run(play(instance, family=FAMILY, agent=agent, sandboxes=shared_pool(), **options))  # type: ignore[arg-type]


class Broken:
    """A model whose backend is gone."""

    model_id = "broken"

    async def complete(self, request: ModelRequest) -> Completion:
        raise InfraError("connection refused", seen="127.0.0.1:1", fix="start the server")

    async def aclose(self) -> None:
        return


class Fixed:
    """Says the same text at every turn."""

    model_id = "fixed"

    def __init__(self, text: str) -> None:
        self._text = text

    async def complete(self, request: ModelRequest) -> Completion:
        return Completion(self._text)

    async def aclose(self) -> None:
        return


@pytest.mark.parametrize("harness", [base_demo(FAMILY), hand_made(FAMILY)], ids=["base", "hand_made"])
def test_equal_inputs_give_equal_bytes(harness: DemoHarness, tokenizer: FolderTokenizer) -> None:
    """Promise 1 (I4)."""
    for number in range(5):
        first = played(clerk(harness, tokenizer), number)
        assert first.to_bytes() == played(clerk(harness, tokenizer), number).to_bytes()
        assert Episode.from_bytes(first.to_bytes()) == first
        assert first.id == first.spec.id


def test_append_only_prompts_extend_the_sampled_ids(tokenizer: FolderTokenizer) -> None:
    """Promise 2: under the base harness every prompt starts with the previous prompt and completion."""
    episode = played(clerk(base_demo(FAMILY), tokenizer), 3)
    for number in range(1, len(episode.turns)):
        before = episode.prompt_token_ids(number - 1) + episode.turns[number - 1].completion_token_ids
        assert episode.prompt_token_ids(number)[: len(before)] == before
        assert not episode.turns[number].context_edited


def test_trimmed_prompts_are_what_the_view_renders(tokenizer: FolderTokenizer) -> None:
    """Promise 2: with three kept turns the rebuilt ids decode to head, kept turns and the opened turn."""
    episode = played(clerk(hand_made(FAMILY), tokenizer), 3)
    turn = episode.turns[-1]
    assert turn.context_edited
    text = tokenizer.decode(episode.prompt_token_ids(len(episode.turns) - 1))
    assert text.count("<|tool|>") == 3
    assert text.startswith("<|system|> you audit payroll .")
    assert text.endswith("<|assistant|>")


@pytest.mark.parametrize("harness", [base_demo(FAMILY), hand_made(FAMILY)], ids=["base", "hand_made"])
def test_a_branch_stands_where_the_original_stood(harness: DemoHarness, tokenizer: FolderTokenizer) -> None:
    """Promise 3: all turns forced, nothing sampled: same prompts, same messages, same world."""
    for number in range(6):
        original = played(clerk(harness, tokenizer, seed=number), number)
        agent = replace(clerk(harness, tokenizer), model=Broken())
        branch = played(agent, number, prefix=forced_prefix(original, len(original.turns)), branch="all")
        assert branch.status is original.status
        assert branch.messages == original.messages
        assert branch.log_hash == original.log_hash
        for turn in range(len(original.turns)):
            assert branch.prompt_token_ids(turn) == original.prompt_token_ids(turn)
        assert branch.id != original.id


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (" note follow the rules .", Status.PARSE_FAILURES),
        ("<|call|> calc(2,3)", Status.MAX_TURNS),
        ("<|call|> finish()", Status.COMPLETED),
        (" note" * 200 + "<|call|> calc(2,3)", Status.MAX_TOKENS),
    ],
)
def test_limits_end_in_their_own_status(text: str, status: Status, tokenizer: FolderTokenizer) -> None:
    """Promise 4: every one of them is graded, and none succeeds."""
    episode = played(replace(clerk(base_demo(FAMILY), tokenizer), model=Fixed(text)), 0)
    assert episode.status is status
    assert episode.grade is not None
    assert not episode.success


def test_a_full_context_ends_the_episode(tokenizer: FolderTokenizer) -> None:
    """Promise 4: the prompt that does not fit is not sent."""
    episode = played(clerk(base_demo(FAMILY), tokenizer, max_model_len=220), 0)
    assert episode.status is Status.CONTEXT_OVERFLOW
    assert episode.grade is not None
    assert all(len(episode.prompt_token_ids(number)) + 96 <= 220 for number in range(len(episode.turns)))


def test_backend_trouble_is_not_graded(tokenizer: FolderTokenizer) -> None:
    """Promise 5: the record says what went wrong at its root."""
    episode = played(replace(clerk(base_demo(FAMILY), tokenizer), model=Broken()), 0)
    assert episode.status is Status.INFRA_ERROR
    assert episode.grade is None
    assert "connection refused" in episode.error
    assert not episode.success
