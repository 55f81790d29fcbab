"""The pretraining corpus of the embedded model: demonstrations played through the real harness, world and format, plus a copy curriculum.

Every demonstration is an `Episode` on the pretraining stream, so what the model is trained to read is token for token what it will be
shown. With a trimmed context a row is one window as the model would see it. The mixture follows what made a miniature learn
(EXPERIMENTS.md): a third under the base harness, a fifth on request plan-first with full history, the rest under random harnesses; one row
in five is copying practice, of lists and of records. Families take turns, so that every part of a corpus holds them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
import numpy.typing as npt

from coevo.chat import Sampling
from coevo.episode import Agent, play
from coevo.formats.mini import ASSISTANT, CALL, END, TOOL, MiniFormat
from coevo.harness.sandbox import SandboxPool
from coevo.identity import derive_seed
from coevo.mini.demonstrator import Demonstrator, Habits
from coevo.mini.harnesses import DemoHarness, base_demo, random_demo
from coevo.mini.tokenizer import CHAIN_NAMES
from coevo.ports import Tokenizer
from coevo.records import Episode
from coevo.tasks.family import Size, Stream, TaskFamily
from coevo.tasks.miniature import Miniature, spec_of

__all__ = ["CorpusPlan", "Row", "build_corpus", "pack"]

Row = tuple[list[int], list[int]]
"""Token ids and loss mask (1 where the token is a target), equal lengths."""


@dataclass(frozen=True, slots=True)
class CorpusPlan:
    """What goes into the corpus.

    Attributes:
        episodes: Demonstrations.
        plan_share: Share on request plan-first.
        base_share: Share under the base harness, reactive.
        copy_share: Copying rows per demonstration is copy_share / (1 - copy_share).
        max_tokens: Longer rows are left out (and counted by the caller through the row count).
        diversity: Templates drawn from.
    """

    episodes: int = 20_000
    plan_share: float = 0.22
    base_share: float = 0.32
    copy_share: float = 0.20
    max_tokens: int = 768
    diversity: int = 8
    habits: Habits = field(default_factory=Habits)


def build_corpus(
    plan: CorpusPlan, *, families: Sequence[TaskFamily], tokenizer: Tokenizer, sandboxes: SandboxPool, seed: int, first: int = 0
) -> list[Row]:
    """Rows of demonstrations `first` .. `first + plan.episodes`, with their share of copying rows.

    Args:
        plan: Mixture and size.
        families: Their miniatures take turns: demonstration n is of family n modulo their number.
        tokenizer: The embedded tokenizer.
        sandboxes: For the random harnesses' components.
        seed: Corpus seed.
        first: Offset of the instance seeds, so that processes share the work.
    """
    rows: list[Row] = []
    specs = [spec_of(family) for family in families]
    for number in range(first, first + plan.episodes):
        random, place = Random(derive_seed("corpus", seed, number)), number % len(families)
        played = _demonstration(plan, families[place], tokenizer, sandboxes, random, number)
        rows += [row for row in played if len(row[0]) <= plan.max_tokens]
        if random.random() < plan.copy_share / (1 - plan.copy_share):
            rows.append(_copying(specs[place], random, tokenizer))
    return rows


def pack(rows: Sequence[Row]) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays `ids`, `mask`, `offsets` that the pretraining loop reads."""
    lengths = [len(ids) for ids, _ in rows]
    return {
        "ids": np.fromiter((token for ids, _ in rows for token in ids), np.uint16, sum(lengths)),
        "mask": np.fromiter((bit for _, mask in rows for bit in mask), np.uint8, sum(lengths)),
        "offsets": np.cumsum([0, *lengths]).astype(np.int64),
    }


def _demonstration(
    plan: CorpusPlan, family: TaskFamily, tokenizer: Tokenizer, sandboxes: SandboxPool, random: Random, number: int
) -> Iterator[Row]:
    harness = _harness(plan, family, random)
    model = Demonstrator(harness, family, habits=plan.habits, seed=random.getrandbits(60))
    agent = Agent(model, harness.bundle, MiniFormat(), tokenizer, 100_000, Sampling(0.0, 1.0, 96))
    instance = family.instance(Stream.PRETRAIN, number, Size.MINI, diversity=plan.diversity)
    episode = asyncio.run(play(instance, family=family, agent=agent, sandboxes=sandboxes))
    if episode.error:
        raise RuntimeError(f"a demonstration failed:\n{episode.error}")
    turns = _windows(episode, harness.bundle.context.keep_last_turns, random)
    for turn, kept in turns:
        yield _row(episode, turn, kept, tokenizer)


def _harness(plan: CorpusPlan, family: TaskFamily, random: Random) -> DemoHarness:
    draw = random.random()
    if draw < plan.plan_share:
        return base_demo(family, plan_first=True) if random.random() < 0.6 else random_demo(family, random, plan_first=True)
    return base_demo(family) if draw < plan.plan_share + plan.base_share else random_demo(family, random)


def _windows(episode: Episode, keep: int | None, random: Random) -> list[tuple[int, int]]:
    """(turn, number of its context's assistant turns that keep their loss): the last turn covers a whole untrimmed episode."""
    last = len(episode.turns) - 1
    if keep is None or last < keep:
        return [(last, last)]
    chosen = {last, *(random.randrange(keep, last + 1) for _ in range(2))}
    return [(keep - 1, keep - 1), *((turn, keep - 1) for turn in sorted(chosen))]


def _row(episode: Episode, turn: int, kept: int, tokenizer: Tokenizer) -> Row:
    """The turn's prompt and completion; loss on the completion and on the last `kept` assistant turns of the prompt."""
    prompt = episode.prompt_token_ids(turn)
    ids = [*prompt, *episode.turns[turn].completion_token_ids]
    start, stop = tokenizer.encode(ASSISTANT)[0], tokenizer.encode(END)[0]
    spans, opened = [], None
    for place, token in enumerate(ids):
        if token == start:
            opened = place + 1
        elif token == stop and opened is not None:
            spans.append((opened, place + 1))
            opened = None
    mask = [0] * len(ids)
    for first, end in spans[-(kept + 1) :]:
        mask[first:end] = [1] * (end - first)
    return ids, mask


def _copying(spec: Miniature, random: Random, tokenizer: Tokenizer) -> Row:
    """Practice in copying: a list's entries, or a record's numbers. Loss on what the text before determines."""
    return _listed(spec, random, tokenizer) if random.random() < 0.5 else _recorded(spec, random, tokenizer)


def _listed(spec: Miniature, random: Random, tokenizer: Tokenizer) -> Row:
    """A list of the family's ids, some with values, then again from the start or from an entry on."""
    entries = [(_id(spec, random), _value(random)) for _ in range(random.randint(2, 5))]
    ids = tokenizer.encode("<|tool|> list" + "".join(id + value for id, value in entries))
    mask = [0] * len(ids)
    for _ in range(3):
        opening = tokenizer.encode(f"{END}{ASSISTANT}" + random.choice((" notes", " step", " note", CALL)))
        ids, mask = ids + opening, mask + [0] * len(opening)
        first = 0 if random.random() < 0.6 else random.randrange(len(entries))
        for place, (id, value) in enumerate(entries[first:]):
            named, valued = tokenizer.encode(id), tokenizer.encode(value)
            free = bool(first) and not place
            ids += named + valued
            mask += [int(not free)] * len(named) + [1] * len(valued)
    return ids, mask


def _recorded(spec: Miniature, random: Random, tokenizer: Tokenizer) -> Row:
    """Records as the family's tool gives them, each followed by a call with its numbers, of one to three digits whatever the family has.

    A family whose first number has two digits shares that with few demonstrations: without this practice a model that copied three digits
    in every other family got its first digit wrong there (EXPERIMENTS.md).
    """
    first, second = (number.name for number in spec.numbers)
    name = random.choice((spec.compute.name, *CHAIN_NAMES))
    ids, mask = list[int](), list[int]()
    for _ in range(random.randint(2, 4)):
        numbers = _number(random), _number(random)
        shown = f"{TOOL} {spec.item}={_id(spec, random)} kind= {random.choice(spec.kinds)} {first}={numbers[0]} {second}={numbers[1]}{END}"
        given, copied = tokenizer.encode(f"{shown}{ASSISTANT}{CALL} {name}("), tokenizer.encode(f"{numbers[0]},{numbers[1]}){END}")
        ids, mask = ids + given + copied, mask + [0] * len(given) + [1] * len(copied)
    return ids, mask


def _id(spec: Miniature, random: Random) -> str:
    """An item's id, or in one of six a queue's."""
    queue, item = spec.letters
    return f" {queue}{random.randint(10, 99)}" if random.random() < 1 / 6 else f" {item}{random.randint(100, 999)}"


def _value(random: Random) -> str:
    return f" {random.randint(100, 999)}" if random.random() < 0.5 else ""


def _number(random: Random) -> int:
    """One to three digits, so that no length is rare."""
    digits = random.randint(1, 3)
    return random.randint(10 ** (digits - 1), 10**digits - 1)
