"""The catalogue proposer: typed mutation operators with no LLM, driven only by what the parent's search episodes show.

The operators know no family: tools, items and fields are mined (`coevo.evolve.traces`), sources are filled in
(`coevo.evolve.components`, `coevo.evolve.repairs`). Further operators are in `coevo.evolve.operators`, and take part where a run's
configuration names them. Each operator says which failed episodes show the need; the proposer ranks by their
number. It is the embedded default and a baseline for proposers that think; it can't find what its catalogue lacks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

from coevo.errors import ConfigError
from coevo.evolve import components, repairs
from coevo.evolve.propose import Edit, Evidence
from coevo.evolve.traces import Recipe, Trace, Worklist, carried_values, find_recipes, find_worklist, read_trace, transitions, words
from coevo.harness.bundle import HarnessBundle
from coevo.harness.lint import lint
from coevo.harness.sandbox import SandboxPool, shared_pool
from coevo.harness.tools import FINISH, ToolEntry
from coevo.records import Status

__all__ = ["OPERATORS", "CatalogueProposer", "Mined", "Operator", "Place", "hook_edit", "mined_edit", "rename_tool", "shown_names"]

_MIN_SUCCESSES = 2
_KEEP_TURNS = (3, 4, 6)
_MIN_TO_HIDE = 5

Place = tuple[str, int]
"""(episode id, turn)."""


@dataclass(frozen=True, slots=True)
class Mined:
    """What the operators work from.

    Attributes:
        parent: The harness to edit.
        evidence: Everything the proposer may read.
        traces: The parent's graded episodes.
        worklist: The worklist they show, or None.
        names: Names for new composite tools, in order of preference.
    """

    parent: HarnessBundle
    evidence: Evidence
    traces: tuple[Trace, ...]
    worklist: Worklist | None
    names: tuple[str, ...]

    @property
    def successes(self) -> list[Trace]:
        """Successful traces."""
        return [trace for trace in self.traces if trace.success]

    @property
    def failures(self) -> list[Trace]:
        """Failed traces."""
        return [trace for trace in self.traces if not trace.success]

    @property
    def shown(self) -> dict[str, str]:
        """Family name -> shown name, of the family tools that are shown."""
        return {entry.name: entry.shown_name for entry in self.parent.tools if not entry.composite}

    def failed_at(self, find: Callable[[Trace], int | None]) -> tuple[Place, ...]:
        """Places in failed traces where `find` names a turn."""
        return tuple((trace.episode_id, turn) for trace in self.failures if (turn := find(trace)) is not None)


Operator = Callable[[Mined], list[Edit]]


def mined_edit(
    mined: Mined, component: str, mechanism: str, hypothesis: str, places: Sequence[Place], risks: Iterable[str], **changes: object
) -> Edit:
    """An edit of the mined parent: `changes` are attributes of the bundle, `places` its evidence and predicted fixes."""
    bundle = mined.parent.replace(**changes)
    fixes = tuple(dict.fromkeys(episode_id for episode_id, _ in places))
    return Edit(component, mechanism, hypothesis, tuple(places), fixes, tuple(risks), bundle)


def hook_edit(mined: Mined, name: str, source: str, mechanism: str, hypothesis: str, places: Sequence[Place], risk: str) -> list[Edit]:
    """An edit that adds or updates one hook; nothing when no failed episode asks for it."""
    if not places:
        return []
    hooks = {**mined.parent.hooks, name: source}
    return [mined_edit(mined, f"hook:{name}", mechanism, hypothesis, places, (risk,), hooks=hooks)]


def todo_note(mined: Mined) -> list[Edit]:
    """Keep the list of open items in view."""
    work = mined.worklist
    if work is None:
        return []
    source = components.todo_note(work.listing, work.settling, field=work.item)
    places = mined.failed_at(lambda trace: trace.last_turn if work.open_items(trace) or not work.listed(trace) else None)
    hypothesis = f"items from {work.listing} stay open; a note after every result names them until {' or '.join(work.settling)} took them"
    return hook_edit(mined, "todo", source, "todo note", hypothesis, places, "the note costs tokens in every observation")


def finish_guard(mined: Mined) -> list[Edit]:
    """Refuse to finish while items are open."""
    work = mined.worklist
    if work is None:
        return []
    source = components.finish_guard(work.listing, work.settling, field=work.item)

    def early(trace: Trace) -> int | None:
        left = trace.status is Status.COMPLETED and (work.open_items(trace) or not work.listed(trace))
        return trace.last_turn if left else None

    risk = "an item that can't be settled blocks the episode until its turns run out"
    return hook_edit(mined, "guard", source, "finish guard", "episodes finish while items are open", mined.failed_at(early), risk)


def loop_breaker(mined: Mined) -> list[Edit]:
    """Refuse a call equal to the one before."""

    def loops(trace: Trace) -> int | None:
        pairs = zip(trace.steps, trace.steps[1:], strict=False)
        return next((after.turn for step, after in pairs if step.shown == after.shown), None)

    places, risk = mined.failed_at(loops), "a read that must be repeated at once is refused"
    return hook_edit(mined, "loop", components.loop_breaker(), "loop breaker", "the same call is made twice running", places, risk)


def recipe_tool(mined: Mined) -> list[Edit]:
    """Offer a frequent read-then-use pair as one tool, with a playbook that uses it; hiding what it covers, or not."""
    work = mined.worklist
    barred = {work.listing, *work.settling} if work is not None else set()
    taken = {entry.shown_name for entry in mined.parent.tools} | {tool.name for tool in mined.evidence.family_tools}
    edits: list[Edit] = []
    for recipe in find_recipes(mined.traces, exclude=barred):
        covered = any(f"{recipe.read}(" in source and f"{recipe.then}(" in source for source in mined.parent.composites.values())
        name = next((name for name in mined.names if name not in taken and name not in mined.parent.composites), None)
        if covered or name is None:
            continue
        taken.add(name)
        edits += [_recipe_edit(mined, recipe, name, hide=hide) for hide in (True, False)]
    return [edit for edit in edits if edit.evidence]


def _recipe_edit(mined: Mined, recipe: Recipe, name: str, *, hide: bool) -> Edit:
    covered = {recipe.read, recipe.then} if hide else set()
    source = components.recipe_tool(name, recipe.parameter, recipe.read, recipe.then, recipe.fields)
    tools: list[ToolEntry] = []
    for entry in mined.parent.tools:
        if entry.name == recipe.read:
            tools.append(ToolEntry(name, composite=True))
        if entry.name not in covered:
            tools.append(entry)
    if all(entry.name != name for entry in tools):
        tools.insert(0, ToolEntry(name, composite=True))
    steps = transitions(_with_recipe(trace, mined, recipe, name, hide=hide) for trace in mined.successes)
    share = f"{recipe.count} of {recipe.reads} times in successes"
    return mined_edit(
        mined,
        f"tool:{name}",
        "recipe tool" + (", parts hidden" if hide else ""),
        f"{recipe.then} follows {recipe.read} with its fields {share}; one call can't skip or miscopy it",
        mined.failed_at(recipe.broken_at),
        ("a case that needs only one of the two can't be handled",) if hide else ("one more tool to choose from",),
        composites={**mined.parent.composites, name: source},
        tools=tuple(tools),
        system_prompt=components.with_playbook(mined.parent.system_prompt, steps),
    )


def _with_recipe(trace: Trace, mined: Mined, recipe: Recipe, name: str, *, hide: bool) -> list[str]:
    """Shown names of a trace's accepted calls, as they would be with the recipe in place."""
    sequence: list[str] = []
    read, then = mined.shown.get(recipe.read), mined.shown.get(recipe.then)
    for shown in shown_names(trace):
        if shown == read:
            sequence.append(name)
        elif shown == then and sequence and sequence[-1] == name:
            continue
        elif not (hide and shown == then):
            sequence.append(shown)
    return sequence


def shown_names(trace: Trace) -> list[str]:
    """Shown names of the calls that were not refused, in order."""
    return [step.shown.name for step in trace.steps if not step.refused]


def hide_covered(mined: Mined) -> list[Edit]:
    """Hide the tools that a composite already performs."""
    edits: list[Edit] = []
    for name, source in mined.parent.composites.items():
        parts = {tool for tool in mined.shown if f"{tool}(" in source}
        places = mined.failed_at(
            lambda trace, parts=parts: next(  # type: ignore[misc]
                (step.turn for step in trace.steps if len(step.calls) == 1 and step.calls[0].name in parts), None
            )
        )
        tools = tuple(entry for entry in mined.parent.tools if entry.composite or entry.name not in parts)
        if parts and places:
            hypothesis = f"{name} does what {' and '.join(sorted(parts))} do; going around it is where episodes fail"
            edits.append(mined_edit(mined, "tools", "hide covered tools", hypothesis, places, ("a case needs a part alone",), tools=tools))
    return edits


def playbook(mined: Mined) -> list[Edit]:
    """Write the successes' usual order of calls into the prompt."""
    steps = transitions(shown_names(trace) for trace in mined.successes)
    usual = dict(steps)

    def deviates(trace: Trace) -> int | None:
        pairs = zip(trace.steps, trace.steps[1:], strict=False)
        return next((after.turn for step, after in pairs if usual.get(step.shown.name, after.shown.name) != after.shown.name), None)

    places = mined.failed_at(deviates)
    if not steps or not places:
        return []
    prompt = components.with_playbook(mined.parent.system_prompt, steps)
    risk = "what the usual order leaves out is done less"
    hypothesis = "failed episodes leave the order of calls that successes share"
    return [mined_edit(mined, "prompt", "playbook", hypothesis, places, (risk,), system_prompt=prompt)]


def trim_context(mined: Mined) -> list[Edit]:
    """Show only the last turns; offered when a todo note carries what must be remembered."""
    if "todo" not in mined.parent.hooks:
        return []
    edits: list[Edit] = []
    for keep in _KEEP_TURNS:
        policy = dataclasses.replace(mined.parent.context, keep_last_turns=keep)

        def late(trace: Trace, keep: int = keep) -> int | None:
            overflow = trace.status in (Status.CONTEXT_OVERFLOW, Status.MAX_TOKENS)
            wrong = (step.turn for step in trace.steps if step.refused and step.turn > keep)
            return trace.last_turn if overflow else next(wrong, None)

        hypothesis = f"mistakes come late; with {keep} turns in view the note says what is left and old text distracts no more"
        places, risks = mined.failed_at(late), ("a value read earlier is out of view when it is needed",)
        edits.append(mined_edit(mined, "context", f"keep {keep} turns", hypothesis, places, risks, context=policy))
    return edits


def repair_ids(mined: Mined) -> list[Edit]:
    """Repair miscopied ids."""

    def miscopied(trace: Trace) -> int | None:
        seen = set(words(trace.instruction))
        for step in trace.steps:
            ids = [word for word in words(step.shown.arguments) if any(char.isdigit() for char in word)]
            if any(word not in seen and sum(_near(word, other) for other in seen) == 1 for word in ids):
                return step.turn
            seen |= set(words(step.text)) if not step.refused else set()
        return None

    hypothesis, risk = (
        "a call names an id that no result carried and one that did is a single edit away",
        "a rare id is taken for a common one",
    )
    return hook_edit(mined, "ids", repairs.repair_ids(), "repair ids", hypothesis, mined.failed_at(miscopied), risk)


def _near(one: str, other: str) -> bool:
    if abs(len(one) - len(other)) > 1 or one == other or not any(char.isdigit() for char in other):
        return False
    start = 0
    while start < min(len(one), len(other)) and one[start] == other[start]:
        start += 1
    rest, more = one[start:], other[start:]
    return rest[1:] == more[1:] or rest == more[1:] or rest[1:] == more


def repair_value(mined: Mined) -> list[Edit]:
    """Put the computed value into the call that settles the item."""
    work = mined.worklist
    if work is None or not work.item:
        return []
    edits: list[Edit] = []
    for carried in carried_values(mined.traces, work)[:1]:
        source = repairs.repair_value(item=work.item, field=carried.field, argument=carried.argument, settling=carried.tools)
        hypothesis = f"{carried.argument} differs from the {carried.field} computed just before"
        places, risk = mined.failed_at(carried.broken_at), "a value computed for another purpose is forced into the call"
        edits += hook_edit(mined, "value", source, "repair value", hypothesis, places, risk)
    return edits


def hide_unused(mined: Mined) -> list[Edit]:
    """Hide tools that no success used."""
    used = {name for trace in mined.successes for name in shown_names(trace)}
    idle = {entry.shown_name for entry in mined.parent.tools} - used - {mined.shown.get(FINISH, FINISH)}
    places = mined.failed_at(lambda trace: next((step.turn for step in trace.steps if step.shown.name in idle), None))
    if not idle or not places or len(mined.successes) < _MIN_TO_HIDE:
        return []
    tools = tuple(entry for entry in mined.parent.tools if entry.shown_name not in idle)
    composites = {entry.name: mined.parent.composites[entry.name] for entry in tools if entry.composite}
    hypothesis = f"no success used {', '.join(sorted(idle))}; failures did"
    return [mined_edit(mined, "tools", "hide unused", hypothesis, places, ("a rare case needs it",), tools=tools, composites=composites)]


def rename_tool(mined: Mined) -> list[Edit]:
    """Give the first shown tool a free name: an edit that should do nothing, to see a gate refuse it. Not among `OPERATORS`."""
    taken = {tool.name for tool in mined.evidence.family_tools} | {entry.shown_name for entry in mined.parent.tools}
    free = next((name for name in mined.names if name not in taken and name not in mined.parent.composites), None)
    entries = list(mined.parent.tools)
    index = next((number for number, entry in enumerate(entries) if not entry.composite and entry.name != FINISH), None)
    if free is None or index is None:
        return []
    entries[index] = dataclasses.replace(entries[index], shown=free)
    risk = "the prompt names the tool by its old name"
    return [mined_edit(mined, "tools", "rename", f"none: {entries[index].name} is shown as {free}", (), (risk,), tools=tuple(entries))]


OPERATORS: tuple[Operator, ...] = (
    recipe_tool,
    finish_guard,
    todo_note,
    playbook,
    repair_value,
    repair_ids,
    loop_breaker,
    hide_covered,
    hide_unused,
    trim_context,
)
"""In the order that breaks ties."""


class CatalogueProposer:
    """See the module docstring.

    Args:
        names: Names that new composite tools may get, in order of preference; a model with a closed vocabulary must know them.
        operators: Which operators to try.
        sandboxes: Where candidates are dry-run; the process's own pool by default.

    Raises:
        ConfigError: No names.
    """

    name = "catalogue"

    def __init__(self, names: Sequence[str], *, operators: Sequence[Operator] = OPERATORS, sandboxes: SandboxPool | None = None) -> None:
        if not names:
            raise ConfigError("the catalogue has no names for new tools", seen=names, fix="give at least one verb")
        self._names = tuple(names)
        self._operators = tuple(operators)
        self._sandboxes = sandboxes

    def propose(self, parent: HarnessBundle, evidence: Evidence, rng: Random) -> list[Edit]:
        """Edits of `parent`, those that address most of its failed episodes first; ties in the operators' order.

        Nothing comes out of fewer than two successful episodes of the parent: there is nothing to mine. `rng` is not needed, since every
        operator is deterministic.
        """
        traces = tuple(
            read_trace(episode)
            for episode in evidence.episodes
            if episode.spec.harness_hash == parent.hash and episode.status is not Status.INFRA_ERROR
        )
        if sum(trace.success for trace in traces) < _MIN_SUCCESSES:
            return []
        mined = Mined(parent, evidence, traces, find_worklist(traces), self._names)
        edits = [edit for operator in self._operators for edit in operator(mined)]
        ranked = sorted(edits, key=lambda edit: -len(edit.predicted_fixes))
        return self._sound(parent, ranked, evidence)

    def _sound(self, parent: HarnessBundle, edits: Iterable[Edit], evidence: Evidence) -> list[Edit]:
        """Drop edits that change nothing, repeat another, or do not survive the dry run."""
        kept: dict[str, Edit] = {}
        for edit in edits:
            known = edit.bundle.hash == parent.hash or edit.bundle.hash in kept
            if not known and not lint(edit.bundle, evidence.family_tools, sandboxes=self._sandboxes or shared_pool()):
                kept[edit.bundle.hash] = edit
        return list(kept.values())
