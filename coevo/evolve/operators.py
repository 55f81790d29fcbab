"""Operators of the catalogue beyond the default ones. A run names those it wants in `evolve.proposer.operators`.

Like the default ones they know no family, read the parent's search episodes only, and say which failures show the need. What they write
into a prompt or skill are names of tools and arguments and the family's own refusals, never values of an instance.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import pairwise, takewhile
from types import MappingProxyType

from coevo.evolve import catalogue, components, repairs
from coevo.evolve.catalogue import Mined, Operator, Place, hook_edit, mined_edit, shown_names
from coevo.evolve.propose import Edit
from coevo.evolve.traces import Step, Trace
from coevo.harness.bundle import Skill
from coevo.harness.tools import FINISH
from coevo.records import Status

__all__ = [
    "CATALOGUE",
    "cycle_breaker",
    "elide_repeats",
    "few_shot",
    "finish_reminder",
    "pin_listing",
    "playbook_lines",
    "rename_confused",
    "repair_types",
    "trim_observations",
]

_MIN_EPISODES = 2
_MIN_TRIGGER_CHARS = 8
_EXAMPLE_CALLS = 16
_ROUND_CHARS = 50
_UNKNOWN = re.compile(r"unknown tool ([A-Za-z][A-Za-z0-9_.-]{0,63})")
_SPENT = (Status.CONTEXT_OVERFLOW, Status.MAX_TOKENS)


def repair_types(mined: Mined) -> list[Edit]:
    """Write refused arguments in the type and under the name that the tool's schema asks for."""
    specs = {tool.name: tool.parameters.get("properties", {}) for tool in mined.evidence.family_tools}

    def mistyped(trace: Trace) -> int | None:
        return next(
            (step.turn for step in trace.steps if step.refused and any(_misfit(call.name, call.arguments, specs) for call in step.calls)),
            None,
        )

    places = mined.failed_at(mistyped)
    turns = dict(places)
    broken = {
        call.name for trace in mined.failures for step in trace.steps if turns.get(trace.episode_id) == step.turn for call in step.calls
    }
    types = [(tool, name, schema.get("type", "")) for tool in sorted(broken) for name, schema in specs.get(tool, {}).items()]
    hypothesis, risk = "calls are refused for the type or the name of an argument", "a value that was meant as text becomes a number"
    return hook_edit(mined, "types", repairs.repair_types(types), "repair types", hypothesis, places, risk)


def _misfit(tool: str, arguments: Mapping[str, object], specs: Mapping[str, Mapping[str, Mapping[str, object]]]) -> bool:
    known = specs.get(tool, {})
    kinds = {"integer": (int,), "number": (int, float), "string": (str,)}
    return any(
        name not in known or not isinstance(value, kinds.get(str(known[name].get("type")), (object,))) for name, value in arguments.items()
    )


def cycle_breaker(mined: Mined) -> list[Edit]:
    """Refuse the third equal call since anything was settled, whatever stands between."""

    def cycles(trace: Trace) -> int | None:
        seen: Counter[str] = Counter()
        for step in trace.steps:
            if mined.worklist is not None and not step.refused and any(call.name in mined.worklist.settling for call in step.calls):
                seen.clear()
            seen[step.shown.model_dump_json()] += 1
            if seen[step.shown.model_dump_json()] > 2:
                return step.turn
        return None

    source = components.cycle_breaker(mined.worklist.settling if mined.worklist is not None else ())
    hypothesis, risk = "the same call is made again and again with others between", "a result that changes by itself can't be polled"
    return hook_edit(mined, "cycle", source, "cycle breaker", hypothesis, mined.failed_at(cycles), risk)


def finish_reminder(mined: Mined) -> list[Edit]:
    """Say that nothing is left, where episodes run on with everything settled."""
    work = mined.worklist
    if work is None:
        return []

    def unfinished(trace: Trace) -> int | None:
        idle = trace.status is not Status.COMPLETED and work.listed(trace) and not work.open_items(trace)
        return trace.last_turn if idle else None

    source = components.finish_reminder(work.listing, work.settling, field=work.item)
    hypothesis, risk = "everything is settled and finish is not called", "work that no list names is left undone"
    return hook_edit(mined, "remind", source, "finish reminder", hypothesis, mined.failed_at(unfinished), risk)


def trim_observations(mined: Mined) -> list[Edit]:
    """Show no more of a result than nine in ten results of successes have, where long ones fill the context."""
    lengths = sorted(len(step.text) for trace in mined.successes for step in trace.steps)
    if not lengths:
        return []
    usual = lengths[min(len(lengths) - 1, 9 * len(lengths) // 10)]
    limit = max(_ROUND_CHARS, -(-usual // _ROUND_CHARS) * _ROUND_CHARS)

    def flooded(trace: Trace) -> int | None:
        return next((step.turn for step in trace.steps if len(step.text) > 2 * limit), None)

    places = mined.failed_at(flooded)
    if not places:
        return []
    policy = dataclasses.replace(mined.parent.context, max_observation_chars=limit)
    hypothesis = f"results of more than {2 * limit} characters bury what matters; successes read at most about {usual}"
    return [
        mined_edit(mined, "context", f"cut results at {limit}", hypothesis, places, ("the end of a long result is needed",), context=policy)
    ]


def elide_repeats(mined: Mined) -> list[Edit]:
    """Show a result that was shown before as a short mark, where repeats fill the context."""

    def repeats(trace: Trace) -> int | None:
        texts: set[str] = set()
        for step in trace.steps:
            if step.text in texts and (trace.status in _SPENT or len(trace.steps) > 2 * _usual_length(mined)):
                return step.turn
            texts.add(step.text)
        return None

    places = mined.failed_at(repeats)
    if not places or mined.parent.context.elide_repeats:
        return []
    policy = dataclasses.replace(mined.parent.context, elide_repeats=True)
    hypothesis = "the same result stands in the context several times"
    return [mined_edit(mined, "context", "elide repeats", hypothesis, places, ("the mark is read as an error",), context=policy)]


def _usual_length(mined: Mined) -> float:
    return sum(len(trace.steps) for trace in mined.successes) / max(1, len(mined.successes))


def pin_listing(mined: Mined) -> list[Edit]:
    """Keep the turn that named the items in view, where a trimmed context loses it."""
    work, policy = mined.worklist, mined.parent.context
    name = mined.shown.get(work.listing) if work is not None else None
    if work is None or name is None or policy.keep_last_turns is None or name in policy.pins:
        return []
    keep = policy.keep_last_turns

    def lost(trace: Trace) -> int | None:
        listed = next((step.turn for step, call in trace.accepted() if call.name == work.listing), None)
        gone = listed is not None and trace.last_turn - listed > keep and work.open_items(trace)
        return listed + keep + 1 if gone and listed is not None else None

    places = mined.failed_at(lost)
    if not places:
        return []
    pinned = dataclasses.replace(policy, pins=(*policy.pins, name))
    hypothesis = f"the items that {name} named are out of view after {keep} turns, and stay open"
    return [mined_edit(mined, "context", "pin the list", hypothesis, places, ("one more turn in every prompt",), context=pinned)]


def playbook_lines(mined: Mined) -> list[Edit]:
    """For each cluster of equal refusals: what successes do before that tool, as a line of the prompt, and as a skill on the refusal."""
    before = _usual_before(mined)
    edits: list[Edit] = []
    for tool, refused in _refusal_clusters(mined).items():
        needed = before.get(tool)
        if needed is None:
            continue
        places = tuple((trace.episode_id, step.turn) for trace, step in refused)
        line = f"before {tool} do {needed} ."
        hypothesis = f"{tool} is refused in {len(places)} failed episodes where {needed} did not come first, as it does in successes"
        prompt = components.with_sentence(mined.parent.system_prompt, line)
        risk = (f"{needed} is repeated where it is not needed",)
        edits.append(mined_edit(mined, "prompt", "playbook line", hypothesis, places, risk, system_prompt=prompt))
        trigger = _trigger([step.text for _, step in refused])
        if trigger:
            skills = {**mined.parent.skills, f"after_{_slug(tool)}": Skill(trigger, line)}
            edits.append(mined_edit(mined, f"skill:after_{_slug(tool)}", "skill on refusal", hypothesis, places, risk, skills=skills))
    return edits


def _refusal_clusters(mined: Mined) -> dict[str, list[tuple[Trace, Step]]]:
    """Shown tool -> the first refused call of it per failed episode, where there are several."""
    found: dict[str, dict[str, tuple[Trace, Step]]] = defaultdict(dict)
    for trace in mined.failures:
        for step in trace.steps:
            if step.refused and step.calls:
                found[step.shown.name].setdefault(trace.episode_id, (trace, step))
    return {tool: list(rows.values()) for tool, rows in sorted(found.items()) if len(rows) >= _MIN_EPISODES}


def _usual_before(mined: Mined) -> dict[str, str]:
    """Shown tool -> the tool that comes right before it in most of its uses in successes."""
    before: dict[str, Counter[str]] = defaultdict(Counter)
    for trace in mined.successes:
        for first, second in pairwise(shown_names(trace)):
            before[second][first] += 1
    usual = {}
    for tool, counts in before.items():
        name, count = min(counts.items(), key=lambda item: (-item[1], item[0]))
        if 2 * count >= counts.total() and name != tool:
            usual[tool] = name
    return usual


def _trigger(texts: list[str]) -> str:
    """The words without digits that all refusals begin with; empty when that is too little to recognise one by."""
    split = [re.split(r"(\s+)", text) for text in texts]
    common = takewhile(lambda words: len(set(words)) == 1 and not any(char.isdigit() for char in words[0]), zip(*split, strict=False))
    kept = "".join(words[0] for words in common).strip()
    return kept if len(kept) >= _MIN_TRIGGER_CHARS and "\n" not in kept else ""


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:24]


def few_shot(mined: Mined) -> list[Edit]:
    """Show a success in the prompt, as tools with the names of their arguments: of those that use most tools the shortest."""
    model = min(mined.successes, key=lambda trace: (-len(set(shown_names(trace))), len(trace.steps), trace.episode_id))
    calls = [(step.shown.name, tuple(step.shown.arguments)) for step in model.steps if not step.refused]
    if len(calls) > _EXAMPLE_CALLS:
        return []
    tools = {name for name, _ in calls} - {FINISH}

    def lacks(trace: Trace) -> int | None:
        return trace.last_turn if tools - set(shown_names(trace)) else None

    places = mined.failed_at(lacks)
    if not places:
        return []
    prompt = components.with_sentence(re.sub(r"\s*\bexample [^.]*\.", "", mined.parent.system_prompt), components.example(calls))
    hypothesis = "failed episodes leave out tools that a whole success shows in their order"
    return [
        mined_edit(
            mined, "prompt", "few-shot", hypothesis, places, ("the example is followed where it does not fit",), system_prompt=prompt
        )
    ]


def rename_confused(mined: Mined) -> list[Edit]:
    """Show a tool under the name by which failed episodes call it in vain."""
    taken = {tool.name for tool in mined.evidence.family_tools} | {entry.shown_name for entry in mined.parent.tools}
    wanted: dict[str, list[Place]] = defaultdict(list)
    for name, place in _unknown_calls(mined):
        if name not in taken and name.casefold() != FINISH:
            wanted[name].append(place)
    edits = []
    for name, places in sorted(wanted.items(), key=lambda item: (-len(item[1]), item[0])):
        own = [entry.shown_name for entry in mined.parent.tools if not entry.composite and entry.name != FINISH]
        close = difflib.get_close_matches(name, own, n=1)
        if len(places) < _MIN_EPISODES or not close:
            continue
        tools = tuple(dataclasses.replace(one, shown=name) if one.shown_name == close[0] else one for one in mined.parent.tools)
        prompt = re.sub(rf"(?<!\w){re.escape(close[0])}(?!\w)", name, mined.parent.system_prompt)
        hypothesis = f"{len(places)} failed episodes call {name}, which is {close[0]} here"
        risk = ("a model that knows the old name loses it",)
        edits.append(mined_edit(mined, f"entry:{close[0]}", "rename", hypothesis, places, risk, tools=tools, system_prompt=prompt))
    return edits


def _unknown_calls(mined: Mined) -> list[tuple[str, Place]]:
    """(name, place) of the first call of each unknown tool in each failed episode, whether the format or the harness refused it."""
    failed = {trace.episode_id for trace in mined.failures}
    found: dict[tuple[str, str], int] = {}
    for episode in mined.evidence.episodes:
        for number, turn in enumerate(episode.turns if episode.id in failed else ()):
            said = _UNKNOWN.search(turn.parse_failure or (turn.result if turn.result_error and not turn.executed else ""))
            if said is not None:
                found.setdefault((said[1], episode.id), number)
    return [(name, (episode_id, number)) for (name, episode_id), number in found.items()]


_MORE: tuple[Operator, ...] = (
    repair_types,
    cycle_breaker,
    finish_reminder,
    trim_observations,
    elide_repeats,
    pin_listing,
    playbook_lines,
    few_shot,
    rename_confused,
    catalogue.rename_tool,
)

CATALOGUE: Mapping[str, Operator] = MappingProxyType({operator.__name__: operator for operator in (*catalogue.OPERATORS, *_MORE)})
"""Every operator by name; `rename_tool` is an edit that should do nothing, to see a gate refuse it."""
