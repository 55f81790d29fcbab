"""The task of an LLM that proposes edits: a world whose tools read failures, harness and past edits, and write typed edits.

It is a task family like any other, so the proposer is an agent played by `coevo.episode.play`, under a harness of its own
(`harness/seeds/workshop-standard`), and its work is an episode that can be read, replayed and paid for. The edits are a function of the
episode's log: `edits_of` replays it. What an edit must be is checked when it is submitted (lint with a dry run, leakage screen, nothing
twice), and the refusal tells the model what to mend. Episodes go by short names (`f1` a failure, `s1` a success); task keys, and with them
seeds, are never shown. The world has no reference policy and no claim to be solvable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import coevo.harness
from coevo.chat import ToolCall, ToolSpec
from coevo.errors import ConfigError, ToolError
from coevo.evolve.proposals import EditRecord
from coevo.evolve.propose import Edit, Evidence
from coevo.evolve.screen import LeakageScreen
from coevo.harness.bundle import HarnessBundle
from coevo.harness.edits import Change, ComponentRole, apply_changes, changes_between, component_texts
from coevo.harness.lint import lint
from coevo.harness.sandbox import SandboxPool
from coevo.harness.tools import FINISH
from coevo.identity import content_hash
from coevo.records import CallRecord, Checkpoint, Episode, Grade, Status
from coevo.tasks.family import Conduct, Policy, Size, Stream, Style, TaskInstance
from coevo.tasks.world import PlainWorld, Toolbox, replay

__all__ = ["Desk", "Workshop", "WorkshopWorld", "edits_of", "workshop_harness"]

_PAGE = 12
_MAX_TURNS_READ = 8
_TEXT_CHARS = 1500


def _spec(name: str, description: str, optional: Sequence[str] = (), **properties: dict[str, Any]) -> ToolSpec:
    required = [key for key in properties if key not in optional]
    return ToolSpec(name, description, {"type": "object", "properties": properties, "required": required})


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _texts(description: str) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "string"}, "description": description}


def _number(description: str) -> dict[str, Any]:
    return {"type": "integer", "minimum": 0, "description": description}


SPECS = (
    _spec("list_episodes", "Failed episodes, a page at a time, and the names of the successes.", ("page",), page=_number("From 0.")),
    _spec(
        "read_turns",
        f"Raw turns of an episode: what the model wrote, what ran, what it was told. At most {_MAX_TURNS_READ} at a time.",
        ("first", "count"),
        episode=_text("Name, as f1."),
        first=_number("First turn, from 0."),
        count=_number("How many."),
    ),
    _spec(
        "read_harness",
        "All components of the draft with their sizes, or the text of one.",
        ("component",),
        component=_text("Address, as hook:NAME."),
    ),
    _spec("read_past_edits", "Edits tried before: what they were for, what they did, and how right their predictions were."),
    _spec(
        "write_component",
        "Add or change one component of the draft. The whole text, not a patch.",
        component=_text("Address, as hook:NAME."),
        text=_text("Its new text."),
    ),
    _spec("remove_component", "Remove one component from the draft.", component=_text("Address, as hook:NAME.")),
    _spec("drop_draft", "Start again from the present harness. Submitted edits stay."),
    _spec(
        "submit_edit",
        "Check the draft and hand it in as one edit.",
        ("predicted_regressions",),
        mechanism=_text("The idea in one to three words."),
        hypothesis=_text("Why it should help, one sentence."),
        evidence=_texts("Turns that show the need, as f2:5."),
        predicted_fixes=_texts("Failed episodes that it should turn, as f2."),
        predicted_regressions=_texts("Successful episodes that it might lose, as s1."),
        risk=_text("What it might break, one sentence."),
    ),
    _spec(FINISH, "End the work."),
)


@dataclass(frozen=True)
class Desk:
    """What lies before one proposer. Immutable; shared by all worlds of one workshop.

    Attributes:
        parent: The harness to edit.
        evidence: What may be read.
        sandboxes: Where candidates are dry-run.
        max_edits: Edits that one episode may submit.
    """

    parent: HarnessBundle
    evidence: Evidence
    sandboxes: SandboxPool
    max_edits: int

    @cached_property
    def played(self) -> dict[str, Episode]:
        """Short name -> graded episode of the parent: failures `f1`, `f2`, then successes `s1`, `s2`."""
        own = [one for one in self.evidence.episodes if one.spec.harness_hash == self.parent.hash and one.status is not Status.INFRA_ERROR]
        named = {f"f{number}": one for number, one in enumerate((one for one in own if not one.success), start=1)}
        return named | {f"s{number}": one for number, one in enumerate((one for one in own if one.success), start=1)}

    @cached_property
    def screen(self) -> LeakageScreen:
        """See `LeakageScreen`."""
        return LeakageScreen.of(self.evidence, self.parent)

    @cached_property
    def texts(self) -> dict[str, str]:
        """The parent's components by address."""
        return component_texts(self.parent)

    @cached_property
    def digest(self) -> str:
        """16 hex digits of everything that can be read here."""
        past = [(one.mechanism, one.hypothesis, one.outcome, one.delta) for one in self.evidence.past]
        return content_hash([self.parent.hash, [one.id for one in self.evidence.episodes], past, self.max_edits])[:16]


class WorkshopWorld(PlainWorld):
    """See the module docstring. State: the draft (address -> text, None for removed) and the submitted edits as records."""

    toolbox = Toolbox(SPECS)

    def __init__(self, instance: TaskInstance, desk: Desk) -> None:
        failures = sum(name.startswith("f") for name in desk.played)
        instruction = (
            f"The agent played {len(desk.played)} episodes under its present harness and failed {failures}. "
            f"Write up to {desk.max_edits} edits of the harness, one mechanism each, then finish."
        )
        super().__init__(instance, instruction=instruction, data=desk.digest, state={"draft": {}, "edits": []})
        self._desk = desk

    @property
    def edits(self) -> tuple[Edit, ...]:
        """What was submitted."""
        return tuple(EditRecord.model_validate(record).edit(self._desk.parent) for record in self._state["edits"])

    def grade(self) -> Grade:
        """Whether anything was submitted; whether it helps is measured elsewhere."""
        done = bool(self._state["edits"])
        feedback = "" if done else "no edit was submitted"
        return Grade(success=done, score=float(done), checkpoints=(Checkpoint(name="edit", weight=1.0, passed=done, feedback=feedback),))

    def tool_list_episodes(self, page: int = 0) -> dict[str, Any]:
        """One page of failures."""
        failures = [(name, one) for name, one in self._desk.played.items() if name.startswith("f")]
        pages = max(1, -(-len(failures) // _PAGE))
        if page >= pages:
            raise ToolError(f"there are {pages} pages, from 0")
        shown = [_summary(name, episode) for name, episode in failures[page * _PAGE : (page + 1) * _PAGE]]
        return {"page": page, "pages": pages, "failures": shown, "successes": [name for name in self._desk.played if name.startswith("s")]}

    def tool_read_turns(self, episode: str, first: int = 0, count: int = _MAX_TURNS_READ) -> dict[str, Any]:
        """Raw turns."""
        found = self._episode(episode)
        if first >= max(1, len(found.turns)):
            raise ToolError(f"{episode} has {len(found.turns)} turns, from 0")
        last = min(len(found.turns), first + max(1, min(count, _MAX_TURNS_READ)))
        instruction = found.messages[1].content if len(found.messages) > 1 else ""
        turns = [_turn(found, number) for number in range(first, last)]
        return {**_summary(episode, found), "instruction": _cut(instruction), "shown": turns}

    def tool_read_harness(self, component: str = "") -> dict[str, Any]:
        """All components, or one."""
        texts = component_texts(self._draft())
        if not component:
            shown = {tool.name: f"{tool.description} ({', '.join(tool.argument_names)})" for tool in self._desk.evidence.family_tools}
            return {"components": {name: f"{len(text)} characters" for name, text in texts.items()}, "family_tools": shown}
        if component not in texts:
            raise ToolError(f"there is no {component}; the components are {', '.join(texts)}")
        return {"component": component, "text": texts[component]}

    def tool_read_past_edits(self) -> dict[str, Any]:
        """What was tried."""
        rows = []
        for one in self._desk.evidence.past:
            row: dict[str, Any] = {"component": one.component, "mechanism": one.mechanism, "hypothesis": one.hypothesis}
            row |= {"outcome": one.outcome, "gain": None if one.delta is None else round(one.delta, 3), "instances": one.instances}
            if one.score is not None:
                came = f"{one.score.right_fixes} of {one.score.predicted_fixes} predicted fixes came true"
                row["predictions"] = f"{came}; {one.score.regressions} successes were lost, {one.score.right_regressions} of them predicted"
            rows.append(row)
        return {"past": rows}

    def tool_write_component(self, component: str, text: str) -> dict[str, Any]:
        """Put a text into the draft."""
        return self._redraft(component, text)

    def tool_remove_component(self, component: str) -> dict[str, Any]:
        """Take a component out of the draft."""
        if component not in component_texts(self._draft()):
            raise ToolError(f"the draft has no {component}")
        return self._redraft(component, None)

    def tool_drop_draft(self) -> dict[str, Any]:
        """Empty the draft."""
        self._state["draft"] = {}
        return {"ok": True}

    def tool_submit_edit(
        self,
        mechanism: str,
        hypothesis: str,
        evidence: list[str],
        predicted_fixes: list[str],
        risk: str,
        predicted_regressions: list[str] | None = None,
    ) -> dict[str, Any]:
        """Check the draft and keep it."""
        if len(self._state["edits"]) >= self._desk.max_edits:
            raise ToolError(f"{self._desk.max_edits} edits are written: call finish")
        if not (mechanism.strip() and hypothesis.strip() and risk.strip() and evidence and predicted_fixes):
            raise ToolError("an edit needs mechanism, hypothesis, risk, evidence and predicted_fixes")
        bundle = self._draft()
        self._check(bundle)
        changes = changes_between(self._desk.parent, bundle)
        main = next((one for one in changes if one.role not in (ComponentRole.ENTRY, ComponentRole.TOOLS)), changes[0])
        edit = Edit(
            component=main.component,
            mechanism=mechanism.strip()[:60],
            hypothesis=hypothesis.strip()[:400],
            evidence=tuple(self._place(place) for place in evidence),
            predicted_fixes=tuple(self._names(predicted_fixes, "f")),
            predicted_risks=(risk.strip()[:400],),
            bundle=bundle,
            predicted_regressions=tuple(self._names(predicted_regressions or [], "s")),
        )
        self._state["edits"] = [*self._state["edits"], EditRecord.of(edit, self._desk.parent).model_dump(mode="json")]
        self._state["draft"] = {}
        return {"ok": True, "edits": len(self._state["edits"]), "left": self._desk.max_edits - len(self._state["edits"])}

    def _check(self, bundle: HarnessBundle) -> None:
        if bundle.hash in {self._desk.parent.hash, *(record["harness_hash"] for record in self._state["edits"])}:
            raise ToolError("the draft changes nothing, or only what an edit of yours changed already")
        problems = lint(bundle, self._desk.evidence.family_tools, sandboxes=self._desk.sandboxes)
        if problems:
            raise ToolError("the draft does not work: " + "; ".join(map(str, problems))[:_TEXT_CHARS])
        refusal = self._desk.screen.refusal(self._desk.parent, bundle)
        if refusal:
            raise ToolError(f"the draft copies from the episodes: {refusal}")

    def _redraft(self, component: str, text: str | None) -> dict[str, Any]:
        """Change one address of the draft if the whole stays a harness; a composite brings and takes its line."""
        draft: dict[str, str | None] = {**self._state["draft"], component: text}
        role, _, name = component.partition(":")
        line = f"{ComponentRole.ENTRY}:{name}"
        if role == ComponentRole.TOOL and (text is None or line not in component_texts(self._draft())):
            draft[line] = None if text is None else f'{{"composite": "{name}"}}'
        draft = {address: value for address, value in draft.items() if value != self._desk.texts.get(address)}
        bundle = self._apply(draft)
        self._state["draft"] = draft
        return {"ok": True, "draft": [f"{one.action} {one.component}" for one in changes_between(self._desk.parent, bundle)]}

    def _draft(self) -> HarnessBundle:
        return self._apply(self._state["draft"])

    def _apply(self, draft: Mapping[str, str | None]) -> HarnessBundle:
        first = self._desk.parent.tools[0].name if self._desk.parent.tools else ""
        changes = [Change(component=name, old=self._desk.texts.get(name), new=text, before=first) for name, text in draft.items()]
        try:
            return apply_changes(self._desk.parent, changes)
        except ConfigError as error:
            raise ToolError(f"{error.what}: {error.seen}; {error.fix}"[:_TEXT_CHARS]) from error

    def _episode(self, name: str) -> Episode:
        if name not in self._desk.played:
            raise ToolError(f"there is no episode {name[:40]}; list_episodes names them")
        return self._desk.played[name]

    def _place(self, text: str) -> tuple[str, int]:
        name, _, number = text.partition(":")
        episode = self._episode(name.strip())
        if number.strip() not in {str(turn) for turn in range(len(episode.turns))} or episode.success:
            raise ToolError(f"{text[:40]} is no turn of a failure; write it as f2:5")
        return episode.id, int(number)

    def _names(self, names: Sequence[str], kind: str) -> list[str]:
        for name in names:
            if not name.startswith(kind):
                raise ToolError(f"{name[:40]} is no {'failure' if kind == 'f' else 'success'}: their names begin with {kind}")
        return list(dict.fromkeys(self._episode(name).id for name in names))


class Workshop:
    """The family of one desk: `coevo.episode.play` takes it like any task family.

    `world_version` holds a digest of what lies on the desk, so that episodes at other desks have other ids.
    """

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.name = "workshop"
        self.world_version = f"1/{desk.digest}"

    def templates(self, size: Size) -> tuple[str, ...]:
        """One, of size standard."""
        return ("edit",) if size is Size.STANDARD else ()

    def tools(self, size: Size) -> tuple[ToolSpec, ...]:
        """The workshop's tools."""
        del size
        return SPECS

    def conduct(self, size: Size) -> Conduct:
        """Which tools write."""
        del size
        writes = frozenset({"write_component", "remove_component", "drop_draft", "submit_edit", FINISH})
        return Conduct(writes, frozenset({"text", "mechanism", "hypothesis", "risk", "page", "first", "count", "component"}))

    def instance(self, stream: Stream, seed: int, size: Size, *, diversity: int = 1) -> TaskInstance:
        """An instance is a seed; all stand at the same desk."""
        del diversity
        return TaskInstance(self.name, "edit", stream, seed, size)

    def open(self, instance: TaskInstance) -> WorkshopWorld:
        """The desk with an empty draft."""
        return WorkshopWorld(instance, self.desk)

    def policy(self, style: Style) -> Policy:
        """There is none. Raises `ConfigError`."""
        raise ConfigError("the workshop has no reference policy", seen=style.value, fix="play it with a model")

    def base_harness(self, size: Size) -> Path:
        """Folder of the proposer's own harness."""
        return Path(coevo.harness.__file__).parent / "seeds" / f"{self.name}-{size}"


def workshop_harness(*, max_turns: int | None = None) -> HarnessBundle:
    """The harness that a proposing LLM works under; `max_turns` replaces its own limit."""
    bundle = HarnessBundle.load(Path(coevo.harness.__file__).parent / "seeds" / f"workshop-{Size.STANDARD}")
    if max_turns is None:
        return bundle
    limits = {name: getattr(bundle.limits, name) for name in bundle.limits.__slots__}
    return bundle.replace(limits=type(bundle.limits)(**{**limits, "max_turns": max_turns}))


def edits_of(desk: Desk, episode: Episode) -> tuple[Edit, ...]:
    """The edits that an episode at this desk submitted, by replaying its log; an episode that broke off keeps what it had submitted."""
    family = Workshop(desk)
    log = [ToolCall(call.name, call.arguments) for call in episode.world_log]
    world = replay(family, TaskInstance.parse(episode.spec.task_key), log)
    return world.edits if isinstance(world, WorkshopWorld) else ()


def _summary(name: str, episode: Episode) -> dict[str, Any]:
    checks = episode.grade.checkpoints if episode.grade is not None else ()
    failed = [f"{one.name}: {one.feedback}" if one.feedback else one.name for one in checks if not one.passed]
    ended = "success" if episode.success else str(episode.status)
    return {"episode": name, "ended": ended, "turns": len(episode.turns), "failed_checks": [_cut(text) for text in failed[:8]]}


def _turn(episode: Episode, number: int) -> dict[str, Any]:
    turn = episode.turns[number]
    fired = [f"{one.component} {one.effect}: {one.detail}" for one in turn.firings]
    row: dict[str, Any] = {"turn": number, "wrote": _cut(turn.completion_text), "told": _cut(turn.result), "refused": turn.result_error}
    row["call"] = _call(turn.call) if turn.call is not None else turn.parse_failure
    row["ran"] = [_call(call) for call in turn.executed]
    return {**row, "harness": fired} if fired else row


def _call(call: CallRecord) -> dict[str, Any]:
    return {"name": call.name, "arguments": call.arguments}


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_CHARS else f"{text[:_TEXT_CHARS]} [cut: {len(text) - _TEXT_CHARS} more characters]"
