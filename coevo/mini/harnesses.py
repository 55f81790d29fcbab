"""Random harnesses for pretraining: generic tool use and playbooks whose tool names must be read from the context.

Names are drawn from closed lists, chains are one to three steps long, notes, guards and trimmed contexts come and go. No harness here is a
candidate of any search: a search starts from the family's base harness and mines its own edits.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from random import Random

from coevo.evolve.components import finish_guard, loop_breaker, playbook, recipe_tool, todo_note
from coevo.harness.bundle import HarnessBundle
from coevo.mini.tokenizer import CHAIN_NAMES, LIST_NAMES, RECORD_NAMES

__all__ = ["DemoHarness", "base_demo", "hand_made", "random_demo"]

_SETTLING = ("submit_pay", "escalate")
_LIMITS = "limits: {max_turns: 24, max_completion_tokens: 1200, max_parse_failures: 3, max_observation_chars: 2000}"
_PAY_ONLY = '''def {name}(employee: str) -> dict:
    """pay of an employee"""
    record = get_record(employee=employee)
    outcome = calc(hours=record["hours"], rate=record["rate"])
    return {{"employee": employee, "value": outcome["value"]}}
'''
_PROBE = '''def {name}(employee: str) -> dict:
    """check an employee"""
    record = get_record(employee=employee)
    return {{"employee": record["employee"], "ok": True}}
'''


@dataclass(frozen=True, slots=True)
class DemoHarness:
    """A harness with what a demonstrator must know to use it.

    Attributes:
        bundle: The harness.
        listing: Shown name of the listing tool.
        chain: Shown names of the tools to call for one employee before settling, in order.
        playbook: The chain stands in the prompt.
        plan_first: The prompt asks for a plan.
        todo: Observations carry the todo note.
    """

    bundle: HarnessBundle
    listing: str = "list_employees"
    chain: tuple[str, ...] = ("get_record", "calc")
    playbook: bool = False
    plan_first: bool = False
    todo: bool = False


def _bundle(prompt: str, tools: list[str], composites: dict[str, str], hooks: dict[str, str], keep_last_turns: int | None) -> HarnessBundle:
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


def base_demo(*, plan_first: bool = False) -> DemoHarness:
    """The base harness's shape: all family tools, a bare prompt."""
    prompt = "you audit payroll ." + (" plan first ." if plan_first else "")
    tools = [_entry(tool, tool) for tool in ("list_employees", "get_record", "calc", "submit_pay", "escalate", "finish")]
    return DemoHarness(_bundle(prompt, tools, {}, {}, None), plan_first=plan_first)


def hand_made() -> DemoHarness:
    """The hand-made harness of the pretraining gates: recipe tool, playbook, todo note, finish guard, short context."""
    name = "compute_pay"
    composites = {name: recipe_tool(name, "employee", "get_record", "calc", ("hours", "rate"))}
    hooks = {"todo": todo_note("list_employees", _SETTLING), "guard": finish_guard("list_employees", _SETTLING), "loop": loop_breaker()}
    steps = [("list_employees", name), (name, "submit_pay"), ("submit_pay", name)]
    tools = [_entry("list_employees", "list_employees"), f"{{composite: {name}}}"]
    tools += [_entry(tool, tool) for tool in ("submit_pay", "escalate", "finish")]
    bundle = _bundle("you audit payroll . " + playbook(steps), tools, composites, hooks, 3)
    return DemoHarness(bundle, chain=(name,), playbook=True, todo=True)


def random_demo(random: Random, *, plan_first: bool = False) -> DemoHarness:
    """Draw one harness."""
    listing, record = random.choice(LIST_NAMES), random.choice(RECORD_NAMES)
    names = random.sample(CHAIN_NAMES, 2)
    full, pay, probe = recipe_tool(names[0], "employee", "get_record", "calc", ("hours", "rate")), _PAY_ONLY, _PROBE
    layout = random.choices(("full", "record_pay", "record_probe_pay", "probe_full", "plain"), (0.34, 0.28, 0.10, 0.10, 0.18))[0]
    chains: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
        "full": ((names[0],), {names[0]: full}),
        "record_pay": ((record, names[0]), {names[0]: pay.format(name=names[0])}),
        "record_probe_pay": ((record, names[1], names[0]), {names[1]: probe.format(name=names[1]), names[0]: pay.format(name=names[0])}),
        "probe_full": ((names[1], names[0]), {names[1]: probe.format(name=names[1]), names[0]: full}),
        "plain": ((record, "calc"), {}),
    }
    chain, composites = chains[layout]
    hide_record = layout in ("full", "probe_full") and random.random() < 0.6
    hide_calc = layout != "plain" and random.random() < 0.7
    with_playbook = (hide_calc and layout != "plain" and random.random() < 0.9) or (not hide_calc and random.random() < 0.8)
    todo = random.random() < 0.7 and not plan_first
    keep = random.choice((None, 3, 3, 4, 6)) if todo else None
    tools = [_entry("list_employees", listing)]
    tools += [] if hide_record else [_entry("get_record", record)]
    tools += [f"{{composite: {name}}}" for name in random.sample(sorted(composites), len(composites))]
    tools += [] if hide_calc else [_entry("calc", "calc")]
    tools += [_entry(tool, tool) for tool in ("submit_pay", "escalate", "finish")]
    used = chain if with_playbook or hide_calc else (record, "calc")
    return DemoHarness(
        _bundle(_prompt(random, listing, chain, with_playbook, plan_first), tools, composites, _hooks(random, todo), keep),
        listing=listing,
        chain=used,
        playbook=with_playbook,
        plan_first=plan_first,
        todo=todo,
    )


def _prompt(random: Random, listing: str, chain: tuple[str, ...], with_playbook: bool, plan_first: bool) -> str:
    prompt = "you audit payroll ." + (" plan first ." if plan_first else "")
    if not with_playbook:
        return prompt
    walk = [listing, *chain, "submit_pay", chain[0]]
    steps = list(pairwise(walk))
    if random.random() < 0.3:
        steps.append(("escalate", chain[0]))
    if random.random() < 0.3:
        random.shuffle(steps)
    return f"{prompt} {playbook(steps)}"


def _hooks(random: Random, todo: bool) -> dict[str, str]:
    hooks = {"todo": todo_note("list_employees", _SETTLING)} if todo else {}
    if random.random() < (0.8 if todo else 0.2):
        hooks["guard"] = finish_guard("list_employees", _SETTLING)
    if random.random() < 0.5:
        hooks["loop"] = loop_breaker()
    return hooks
