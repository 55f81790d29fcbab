"""Random harnesses for pretraining: generic tool use and playbooks whose tool names must be read from the context.

They know no family: nouns and tools come from its miniature, the prompt from its base harness. Names are drawn from closed lists, chains
are one to three steps long, notes, guards and trimmed contexts come and go. No harness here is a candidate of any search: a search starts
from the family's base harness and mines its own edits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from random import Random
from types import MappingProxyType

from coevo.evolve.components import finish_guard, loop_breaker, playbook, recipe_tool, todo_note
from coevo.harness.bundle import HarnessBundle
from coevo.mini.tokenizer import CHAIN_NAMES, LIST_NAMES, RECORD_NAMES
from coevo.tasks.family import Size, TaskFamily
from coevo.tasks.miniature import Miniature, spec_of

__all__ = ["DemoHarness", "base_demo", "hand_made", "random_demo"]

_LIMITS = "limits: {max_turns: 24, max_completion_tokens: 1200, max_parse_failures: 3, max_observation_chars: 2000}"
_HAND_MADE_NAME = "compute_pay"
_LAYOUTS = MappingProxyType({"full": 0.34, "record_value": 0.28, "record_probe_value": 0.10, "probe_full": 0.10, "plain": 0.18})
_VALUE_ONLY = '''def {name}({item}: str) -> dict:
    """value of one {item}"""
    record = {record}({item}={item})
    outcome = {compute}({first}=record["{first}"], {second}=record["{second}"])
    return {{"{item}": {item}, "value": outcome["value"]}}
'''
_PROBE = '''def {name}({item}: str) -> dict:
    """check one {item}"""
    record = {record}({item}={item})
    return {{"{item}": record["{item}"], "ok": True}}
'''


@dataclass(frozen=True, slots=True)
class DemoHarness:
    """A harness with what a demonstrator must know to use it.

    Attributes:
        bundle: The harness.
        listing: Shown name of the listing tool.
        chain: Shown names of the tools to call for one item before settling, in order.
        playbook: The chain stands in the prompt.
        plan_first: The prompt asks for a plan.
        todo: Observations carry the todo note.
    """

    bundle: HarnessBundle
    listing: str
    chain: tuple[str, ...]
    playbook: bool = False
    plan_first: bool = False
    todo: bool = False


@dataclass(frozen=True, slots=True)
class _Chain:
    """The tools for one item before settling, and the source of those that are composites."""

    names: tuple[str, ...]
    composites: Mapping[str, str]


def _ground(family: TaskFamily) -> tuple[Miniature, str]:
    """The family's miniature and the prompt of its base harness."""
    return spec_of(family), _prompt(family.base_harness(Size.MINI))


@lru_cache(maxsize=64)
def _prompt(folder: Path) -> str:
    return HarnessBundle.load(folder).system_prompt.strip()


def _bundle(
    prompt: str, tools: list[str], composites: Mapping[str, str], hooks: dict[str, str], keep_last_turns: int | None
) -> HarnessBundle:
    files = {
        "harness.yaml": f"schema: 1\nname: demo\nparent: null\n{_LIMITS}\n",
        "prompt/system.md": prompt + "\n",
        "tools.yaml": "".join(f"- {tool}\n" for tool in tools),
        "context.yaml": f"keep_first: 2\nkeep_last_turns: {keep_last_turns or 'null'}\n",
    }
    files |= {f"tools/{name}.py": source for name, source in composites.items()}
    files |= {f"hooks/{name}.py": source for name, source in hooks.items()}
    return HarnessBundle.from_files(files)


def _entry(tool: str, shown: str) -> str:
    return f"{{tool: {tool}}}" if tool == shown else f"{{tool: {tool}, as: {shown}}}"


def _settling(spec: Miniature) -> tuple[str, str]:
    return spec.settle.name, spec.decline.name


def _ending(spec: Miniature) -> list[str]:
    return [_entry(tool, tool) for tool in (*_settling(spec), "finish")]


def _recipe(name: str, spec: Miniature) -> str:
    return recipe_tool(name, spec.item, spec.record.name, spec.compute.name, [number.name for number in spec.numbers])


def _asked(prompt: str, *, plan_first: bool) -> str:
    return f"{prompt} plan first ." if plan_first else prompt


def base_demo(family: TaskFamily, *, plan_first: bool = False) -> DemoHarness:
    """The base harness's shape: all family tools, its bare prompt."""
    spec, prompt = _ground(family)
    tools = [_entry(tool.name, tool.name) for tool in spec.tools]
    bundle = _bundle(_asked(prompt, plan_first=plan_first), tools, {}, {}, None)
    return DemoHarness(bundle, spec.listing.name, (spec.record.name, spec.compute.name), plan_first=plan_first)


def hand_made(family: TaskFamily) -> DemoHarness:
    """The hand-made harness of the pretraining gates: recipe tool, playbook, todo note, finish guard, short context."""
    spec, prompt = _ground(family)
    name, listing = _HAND_MADE_NAME, spec.listing.name
    steps = [(listing, name), (name, spec.settle.name), (spec.settle.name, name)]
    tools = [_entry(listing, listing), f"{{composite: {name}}}", *_ending(spec)]
    hooks = {"todo": todo_note(listing, _settling(spec)), "guard": finish_guard(listing, _settling(spec)), "loop": loop_breaker()}
    bundle = _bundle(f"{prompt} {playbook(steps)}", tools, {name: _recipe(name, spec)}, hooks, 3)
    return DemoHarness(bundle, listing, (name,), playbook=True, todo=True)


def random_demo(family: TaskFamily, random: Random, *, plan_first: bool = False) -> DemoHarness:
    """Draw one harness."""
    spec, prompt = _ground(family)
    listing, record = random.choice((spec.listing.name, *LIST_NAMES)), random.choice((spec.record.name, *RECORD_NAMES))
    layout = random.choices(list(_LAYOUTS), list(_LAYOUTS.values()))[0]
    chain = _chain(layout, spec, record, random)
    hide_record = layout in ("full", "probe_full") and random.random() < 0.6
    hide_compute = layout != "plain" and random.random() < 0.7
    with_playbook = (hide_compute and layout != "plain" and random.random() < 0.9) or (not hide_compute and random.random() < 0.8)
    todo = random.random() < 0.7 and not plan_first
    keep = random.choice((None, 3, 3, 4, 6)) if todo else None
    tools = [_entry(spec.listing.name, listing)]
    tools += [] if hide_record else [_entry(spec.record.name, record)]
    tools += [f"{{composite: {name}}}" for name in random.sample(sorted(chain.composites), len(chain.composites))]
    tools += [] if hide_compute else [_entry(spec.compute.name, spec.compute.name)]
    text = _asked(prompt, plan_first=plan_first)
    if with_playbook:
        text = f"{text} {playbook(_steps(random, spec, listing, chain.names))}"
    return DemoHarness(
        _bundle(text, tools + _ending(spec), chain.composites, _hooks(random, spec, todo=todo), keep),
        listing,
        chain.names if with_playbook or hide_compute else (record, spec.compute.name),
        playbook=with_playbook,
        plan_first=plan_first,
        todo=todo,
    )


def _chain(layout: str, spec: Miniature, record: str, random: Random) -> _Chain:
    main, probe = random.sample([name for name in CHAIN_NAMES if name not in {tool.name for tool in spec.tools}], 2)
    first, second = (number.name for number in spec.numbers)
    nouns = {"item": spec.item, "record": spec.record.name, "compute": spec.compute.name, "first": first, "second": second}
    full, value = {main: _recipe(main, spec)}, {main: _VALUE_ONLY.format(name=main, **nouns)}
    check = {probe: _PROBE.format(name=probe, **nouns)}
    chains = {
        "full": _Chain((main,), full),
        "record_value": _Chain((record, main), value),
        "record_probe_value": _Chain((record, probe, main), check | value),
        "probe_full": _Chain((probe, main), check | full),
        "plain": _Chain((record, spec.compute.name), {}),
    }
    return chains[layout]


def _steps(random: Random, spec: Miniature, listing: str, chain: Sequence[str]) -> list[tuple[str, str]]:
    """The playbook's steps, sometimes with the other way to settle, sometimes out of order."""
    steps = list(pairwise([listing, *chain, spec.settle.name, chain[0]]))
    if random.random() < 0.3:
        steps.append((spec.decline.name, chain[0]))
    if random.random() < 0.3:
        random.shuffle(steps)
    return steps


def _hooks(random: Random, spec: Miniature, *, todo: bool) -> dict[str, str]:
    hooks = {"todo": todo_note(spec.listing.name, _settling(spec))} if todo else {}
    if random.random() < (0.8 if todo else 0.2):
        hooks["guard"] = finish_guard(spec.listing.name, _settling(spec))
    if random.random() < 0.5:
        hooks["loop"] = loop_breaker()
    return hooks
