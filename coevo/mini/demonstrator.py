"""Who the embedded model learns from: a reactive clerk with gaps in its knowledge, and, on request, a planner with the same gaps.

The clerk works depth first and follows the playbook it sees. In every family it has the same habits: it often skips the computation and
guesses when nothing tells it to compute, finishes early, holds the first code for right where the second is, and settles what the house
declines. It knows no family: everything comes from the facts of its miniature. These are properties of the *demonstrations*; world, grader,
search, correction and imitation treat every model alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from coevo.chat import Completion, ModelRequest, ToolCall
from coevo.errors import ModelError, ToolError
from coevo.formats.mini import MiniFormat
from coevo.mini.harnesses import DemoHarness
from coevo.tasks.family import TaskFamily, TaskInstance, World
from coevo.tasks.miniature import Item, Miniature, MiniFacts, facts
from coevo.tasks.world import TERMINAL_TOOL

__all__ = ["Demonstrator", "Habits"]

_OUT = "out"
_FINISH = ToolCall(TERMINAL_TOOL, {})


@dataclass(frozen=True, slots=True)
class Habits:
    """How often the clerk errs, as probabilities.

    Attributes:
        skip_compute: Guesses a value instead of computing it, where no playbook tells it otherwise.
        early: Finishes while items are open, per chance to open the next one.
        first_code: Believes that the second kind with a code has the first kind's code.
        settles_declined: Believes that an item which the house declines, for its kind or for its value, is settled like others.
        skip_step: Skips a step of the playbook.
        says: Writes a note beside the call.
    """

    skip_compute: float = 0.25
    early: float = 0.15
    first_code: float = 0.45
    settles_declined: float = 0.55
    skip_step: float = 0.04
    says: float = 0.12


@dataclass(frozen=True, slots=True)
class _Belief:
    """What the demonstrator holds right about one item.

    Attributes:
        code: Its code; `out` to decline it for its kind.
        by_value: Declines it once its value is known.
    """

    code: str
    by_value: bool


@dataclass(slots=True)
class _Job:
    """What the demonstrator remembers of one episode."""

    random: Random
    world: World
    beliefs: dict[str, _Belief]
    notes: bool
    applied: int = 0
    listed: bool = False
    current: str | None = None
    step: int = 0
    known: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    finish_tried: bool = False

    def declines(self, one: Item) -> bool:
        """Declines the item, as far as what has been seen of it decides that."""
        belief = self.beliefs[one.id]
        return (belief.code == _OUT and one.id in self.read) or (belief.by_value and one.id in self.known)


class Demonstrator:
    """A ChatModel that plays one `DemoHarness`; state per session, all randomness from the request's first seed."""

    def __init__(self, harness: DemoHarness, family: TaskFamily, *, habits: Habits, seed: int) -> None:
        self._harness, self._family, self._habits, self._seed = harness, family, habits, seed
        self._format = MiniFormat()
        self._jobs: dict[str, _Job] = {}

    @property
    def model_id(self) -> str:
        """Names the habits' seed; demonstrations are never measured."""
        return f"demonstrator:{self._seed}"

    async def aclose(self) -> None:
        """Nothing to close."""

    async def complete(self, request: ModelRequest) -> Completion:
        """The next turn."""
        job = self._job(request)
        known = facts(job.world)
        say, call = self._plan(job, known) if self._harness.plan_first else self._clerk(job, known)
        return Completion(self._format.render_turn(say, call, request.tools))

    def _job(self, request: ModelRequest) -> _Job:
        if request.view is None:
            raise ModelError("a demonstrator plays only inside episodes", fix="call it through coevo.episode.play")
        job = self._jobs.get(request.session)
        if job is None:
            random = Random(request.seed ^ self._seed)
            world = self._family.open(TaskInstance.parse(request.view.task_key))
            known = facts(world)
            beliefs = {one.id: self._believe(known.spec, one, random) for one in known.items}
            job = self._jobs[request.session] = _Job(random, world, beliefs, random.random() < 0.5)
        for call in request.view.world_calls[job.applied :]:
            _apply(job, call)
        job.applied = len(request.view.world_calls)
        return job

    def _believe(self, spec: Miniature, one: Item, random: Random) -> _Belief:
        settles = spec.is_declined(one) and random.random() < self._habits.settles_declined
        if one.kind not in spec.codes:
            return _Belief(spec.decoys[0] if settles else _OUT, by_value=False)
        first = spec.codes[spec.kinds[0]]
        code = spec.codes[one.kind]
        if code != first and random.random() < self._habits.first_code:
            code = first
        return _Belief(code, by_value=spec.is_declined(one) and not settles)

    def _clerk(self, job: _Job, known: MiniFacts) -> tuple[str, ToolCall]:
        if not job.listed:
            return self._say(job, "note follow the rules ."), self._list(known)
        current = next((one for one in known.unsettled if one.id == job.current), None)
        if current is None:
            early = bool(known.settled) and not job.finish_tried and job.random.random() < self._habits.early
            if not known.unsettled or early:
                job.finish_tried = True
                return self._say(job, "note todo empty ."), _FINISH
            current, job.step = known.unsettled[0], 0
            job.current = current.id
        return self._handle(job, known.spec, current)

    def _handle(self, job: _Job, spec: Miniature, one: Item) -> tuple[str, ToolCall]:
        chain, habits, random = self._harness.chain, self._habits, job.random
        if job.step and random.random() < habits.skip_step and self._harness.playbook:
            job.step = min(job.step + 1, len(chain))
        if job.step < len(chain):
            name = chain[job.step]
            computes = name == spec.compute.name
            guess = computes and not self._harness.playbook and random.random() < habits.skip_compute
            if not guess and not (computes and job.declines(one)):
                job.step += 1
                note = "note todo not empty ." if job.step == 1 else "note follow the rules ."
                return self._say(job, note), _use(spec, name, one)
        return self._settle(job, spec, one)

    def _settle(self, job: _Job, spec: Miniature, one: Item) -> tuple[str, ToolCall]:
        call = _settling_call(job, spec, one)
        if call.name == spec.decline.name:
            return self._say(job, spec.stopped if job.beliefs[one.id].by_value else spec.declined), call
        return self._say(job, f"note {one.kind} uses {spec.code} {call.arguments[spec.code]} ."), call

    def _say(self, job: _Job, sentence: str) -> str:
        return sentence if job.random.random() < self._habits.says else ""

    def _list(self, known: MiniFacts) -> ToolCall:
        return ToolCall(self._harness.listing, {known.spec.queue: known.queue})

    def _plan(self, job: _Job, known: MiniFacts) -> tuple[str, ToolCall]:
        """Breadth first with the same beliefs: all records, then compute and settle one by one."""
        spec, (records, compute, settle) = known.spec, known.spec.steps
        if not job.listed:
            return f"plan {records} then {compute} then {settle} .", self._list(known)
        unread = [one for one in known.unsettled if one.id not in job.read]
        if unread:
            return self._noted(job, known, records), _use(spec, self._record_name(spec), unread[0])
        if not known.unsettled:
            return self._noted(job, known, "done"), _FINISH
        one = known.unsettled[0]
        if job.declines(one) or one.id in job.known:
            return self._noted(job, known, settle), _settling_call(job, spec, one)
        return self._noted(job, known, compute), _use(spec, self._harness.chain[-1], one)

    def _record_name(self, spec: Miniature) -> str:
        shown = {entry.name: entry.shown_name for entry in self._harness.bundle.tools}
        return shown.get(spec.record.name, self._harness.chain[-1])

    def _noted(self, job: _Job, known: MiniFacts, step: str) -> str:
        if not job.notes:
            return f"step {step} ."
        entries = [_entry(job, known.spec, one) for one in known.unsettled] or ["none"]
        return f"step {step} . notes {' , '.join(entries)} , ."


def _numbers(spec: Miniature, values: Sequence[int]) -> dict[str, Any]:
    return {number.name: value for number, value in zip(spec.numbers, values, strict=True)}


def _use(spec: Miniature, name: str, one: Item) -> ToolCall:
    """A call of a tool of the chain: the computing tool takes numbers, all others the item."""
    return ToolCall(name, _numbers(spec, one.numbers) if name == spec.compute.name else {spec.item: one.id})


def _settling_call(job: _Job, spec: Miniature, one: Item) -> ToolCall:
    """How the demonstrator settles the item; a value that it has not seen is guessed, with as many digits."""
    belief, value = job.beliefs[one.id], spec.value(one)
    if belief.code == _OUT or job.declines(one):
        return ToolCall(spec.decline.name, {spec.item: one.id})
    if one.id not in job.known:
        most = 10 ** len(str(value)) - 1
        value = min(most, max(most // 10 + 1, int(value * job.random.uniform(0.7, 1.3))))
    return ToolCall(spec.settle.name, {spec.item: one.id, spec.amount: value, spec.code: belief.code})


def _entry(job: _Job, spec: Miniature, one: Item) -> str:
    if one.id not in job.read:
        return f"{one.id} new"
    if job.declines(one):
        return f"{one.id} {_OUT}"
    code = job.beliefs[one.id].code
    return f"{one.id} {code} {spec.value(one)}" if one.id in job.known else f"{one.id} {code}"


def _apply(job: _Job, call: ToolCall) -> None:
    """Keep the private copy of the world and what has been seen in step with the log."""
    try:
        job.world.call(call.name, call.arguments)
    except ToolError:
        return
    known = facts(job.world)
    spec = known.spec
    if call.name == spec.listing.name:
        job.listed = True
    elif call.name == spec.record.name:
        job.read.add(str(call.arguments[spec.item]))
    elif call.name == spec.compute.name:
        job.known |= {one.id for one in known.items if _numbers(spec, one.numbers) == dict(call.arguments)}
