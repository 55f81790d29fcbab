"""All miniature sizes share one mechanism and one closed vocabulary, so that one small model can learn every family.

1. Every word of every text is in the embedded tokenizer's list or in the family's own word list.
2. An untrimmed reference episode fits the embedded context of about 1,000 tokens.
3. Tool names and nouns differ between families: what is learnt must be read from the context.
"""

from __future__ import annotations

import importlib
import re

import pytest

from coevo.errors import ToolError
from coevo.formats.mini import MiniFormat
from coevo.mini.tokenizer import WORDS
from coevo.tasks import FAMILIES, load_family
from coevo.tasks.family import Size, Style
from coevo.tasks.miniature import Miniature, MiniWorld, facts
from tests.contract.hygiene import sample
from tests.contract.walks import Walk

NAMES = [name for name in FAMILIES if isinstance(load_family(name).open(sample(load_family(name), Size.MINI, 1)[0]), MiniWorld)]
PIECE = re.compile(r" ?[A-Za-z_]+|\d| ?[^\sA-Za-z_\d]")
CONTEXT = 1000


def spec_of(name: str) -> Miniature:
    return facts(load_family(name).open(sample(load_family(name), Size.MINI, 1)[0])).spec


def words_of(name: str) -> tuple[str, ...]:
    words: tuple[str, ...] = importlib.import_module(f"coevo.tasks.{name}.mini").WORDS
    return words


def refusals(name: str) -> list[str]:
    """What a clumsy agent reads."""
    family, spec, texts = load_family(name), spec_of(name), []
    world = family.open(sample(family, Size.MINI, 1)[0])
    item = facts(world).items[0].id
    world.call(spec.decline.name, {spec.item: item})
    calls = [("nope", {}), (spec.compute.name, {}), (spec.listing.name, {spec.queue: "x"}), (spec.record.name, {spec.item: "x"})]
    calls += [(spec.decline.name, {spec.item: item}), (spec.settle.name, {spec.item: item})]
    for tool, arguments in calls:
        with pytest.raises(ToolError) as caught:
            world.call(tool, arguments)
        texts.append(str(caught.value))
    return texts


@pytest.mark.parametrize("name", NAMES)
def test_all_texts_use_the_closed_vocabulary(name: str) -> None:
    """Also the prompt and the tools' signatures; what a text has beyond words is digits and marks."""
    family, spec, format_ = load_family(name), spec_of(name), MiniFormat()
    head = format_.render_head((family.base_harness(Size.MINI) / "prompt" / "system.md").read_text(), spec.tools)
    texts = [head, *spec.codes.values(), *spec.decoys, *refusals(name)]
    for place, instance in enumerate(sample(family, Size.MINI, 40)):
        walk = Walk(family.open(instance), (None, 3)[place % 2], format_.render_observation)
        walk.follow(family.policy(list(Style)[place // 2 % 2]))
        said = [f"{move.strategy} {format_.render_turn('', move.call, spec.tools)}" for move, _ in walk.moves]
        texts += [walk.world.instruction, *walk.observations, *said]
        assert walk.world.instruction.endswith(" .")
    used = {
        word
        for text in texts
        for word in re.findall(r"[A-Za-z_]+", text.replace("<|call|>", "").replace("<|system|>", "").replace("<|end|>", ""))
    }
    own = words_of(name)
    assert not used - {*WORDS, *own}, used - {*WORDS, *own}


@pytest.mark.parametrize("name", NAMES)
def test_episodes_fit_the_context(name: str) -> None:
    family, spec, format_ = load_family(name), spec_of(name), MiniFormat()
    head = format_.render_head((family.base_harness(Size.MINI) / "prompt" / "system.md").read_text(), spec.tools)
    for instance in sample(family, Size.MINI, 20):
        walk = Walk(family.open(instance), None, format_.render_observation)
        walk.follow(family.policy(Style.PLAN_FIRST))
        said = [f"{move.strategy} {format_.render_turn('', move.call, spec.tools)}" for move, _ in walk.moves]
        pieces = sum(len(PIECE.findall(text)) + 2 for text in (head, walk.world.instruction, *walk.observations, *said))
        assert pieces <= CONTEXT, (instance.key, pieces)


def test_families_differ_in_names() -> None:
    specs = [spec_of(name) for name in NAMES]
    for field in ("queue", "item", "settle", "decline", "listing"):
        values = [str(getattr(spec, field)) for spec in specs]
        assert len(set(values)) == len(values), (field, values)
