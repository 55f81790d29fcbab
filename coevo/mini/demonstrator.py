"""Who the embedded model learns from: a reactive clerk with gaps in its knowledge, and, on request, a planner with the same gaps.

The clerk works depth first and follows the playbook it sees. It often skips the calculation and guesses when nothing tells it to calculate,
finishes early, books most interns as staff and pays most contractors instead of escalating them. These are properties of the
*demonstrations*; world, grader, search, correction and imitation treat every model alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from coevo.chat import Completion, ModelRequest, ToolCall
from coevo.errors import ModelError, ToolError
from coevo.formats.mini import MiniFormat
from coevo.mini.harnesses import DemoHarness
from coevo.tasks.family import TaskFamily, TaskInstance, World
from coevo.tasks.miniature import Item, MiniFacts, facts
from coevo.tasks.payroll.mini import CODES

__all__ = ["Demonstrator", "Habits"]


@dataclass(frozen=True, slots=True)
class Habits:
    """How often the clerk errs, as probabilities.

    Attributes:
        skip_calc: Guesses an amount instead of calculating, where no playbook tells it otherwise.
        early: Finishes while employees are open, per chance to open the next one.
        intern_as_staff: Believes an intern is paid like staff.
        pays_contractor: Believes a contractor is paid under CON.
        skip_step: Skips a step of the playbook.
        says: Writes a note beside the call.
    """

    skip_calc: float = 0.20
    early: float = 0.12
    intern_as_staff: float = 0.60
    pays_contractor: float = 0.70
    skip_step: float = 0.04
    says: float = 0.12


@dataclass(slots=True)
class _Job:
    """What the demonstrator remembers of one episode."""

    random: Random
    world: World
    beliefs: dict[str, str]
    notes: bool
    applied: int = 0
    listed: bool = False
    current: str | None = None
    step: int = 0
    known: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    finish_tried: bool = False


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
        say, call = self._plan(job) if self._harness.plan_first else self._clerk(job)
        return Completion(self._format.render_turn(say, call, request.tools))

    def _job(self, request: ModelRequest) -> _Job:
        if request.view is None:
            raise ModelError("a demonstrator plays only inside episodes", fix="call it through coevo.episode.play")
        job = self._jobs.get(request.session)
        if job is None:
            random = Random(request.seed ^ self._seed)
            world = self._family.open(TaskInstance.parse(request.view.task_key))
            beliefs = {one.id: self._believe(one, random) for one in facts(world).items}
            job = self._jobs[request.session] = _Job(random, world, beliefs, random.random() < 0.5)
        for call in request.view.world_calls[job.applied :]:
            _apply(job, call)
        job.applied = len(request.view.world_calls)
        return job

    def _believe(self, one: Item, random: Random) -> str:
        """The pay code the demonstrator holds right; `out` for escalation."""
        if one.kind == "intern" and random.random() < self._habits.intern_as_staff:
            return "REG"
        if one.kind == "contractor":
            return "CON" if random.random() < self._habits.pays_contractor else "out"
        return CODES[one.kind]

    def _clerk(self, job: _Job) -> tuple[str, ToolCall]:
        known, harness, habits, random = facts(job.world), self._harness, self._habits, job.random
        if not job.listed:
            return self._say(job, "note follow the rules ."), ToolCall(harness.listing, {"department": known.queue})
        current = next((one for one in known.unsettled if one.id == job.current), None)
        if current is None:
            early = bool(known.settled) and not job.finish_tried and random.random() < habits.early
            if not known.unsettled or early:
                job.finish_tried = True
                return self._say(job, "note todo empty ."), ToolCall("finish", {})
            current, job.step = known.unsettled[0], 0
            job.current = current.id
        return self._handle(job, current)

    def _handle(self, job: _Job, one: Item) -> tuple[str, ToolCall]:
        chain, habits, random = self._harness.chain, self._habits, job.random
        if job.step and random.random() < habits.skip_step and self._harness.playbook:
            job.step = min(job.step + 1, len(chain))
        out = job.beliefs[one.id] == "out" and one.id in job.read
        if job.step < len(chain) and not (out and chain[job.step] == "calc"):
            name = chain[job.step]
            guess = name == "calc" and not self._harness.playbook and random.random() < habits.skip_calc
            if not guess:
                job.step += 1
                first = job.step == 1
                arguments = dict(zip(("hours", "rate"), one.numbers, strict=True)) if name == "calc" else {"employee": one.id}
                return self._say(job, "note todo not empty ." if first else "note follow the rules ."), ToolCall(name, arguments)
        return self._settle(job, one)

    def _settle(self, job: _Job, one: Item) -> tuple[str, ToolCall]:
        belief = job.beliefs[one.id]
        if belief == "out":
            return self._say(job, "note contractor must be escalated ."), ToolCall("escalate", {"employee": one.id})
        amount = _sum(one) if one.id in job.known else min(999, max(100, int(_sum(one) * job.random.uniform(0.7, 1.3))))
        call = ToolCall("submit_pay", {"employee": one.id, "amount": amount, "code": belief})
        return self._say(job, f"note {one.kind} uses code {belief} ."), call

    def _say(self, job: _Job, sentence: str) -> str:
        return sentence if job.random.random() < self._habits.says else ""

    def _plan(self, job: _Job) -> tuple[str, ToolCall]:
        """Breadth first with the same beliefs: all records, then pay and settle one by one."""
        known, harness = facts(job.world), self._harness
        if not job.listed:
            return "plan records then pay then submit .", ToolCall(harness.listing, {"department": known.queue})
        unread = [one for one in known.unsettled if one.id not in job.read]
        if unread:
            return self._noted(job, known, "records"), self._record_call(unread[0])
        if not known.unsettled:
            return self._noted(job, known, "done"), ToolCall("finish", {})
        one = known.unsettled[0]
        belief = job.beliefs[one.id]
        if belief == "out":
            return self._noted(job, known, "submit"), ToolCall("escalate", {"employee": one.id})
        if one.id in job.known:
            return self._noted(job, known, "submit"), ToolCall("submit_pay", {"employee": one.id, "amount": _sum(one), "code": belief})
        return self._noted(job, known, "pay"), self._pay_call(one)

    def _record_call(self, one: Item) -> ToolCall:
        shown = {entry.name: entry.shown_name for entry in self._harness.bundle.tools}
        name = shown.get("get_record", self._harness.chain[-1])
        return ToolCall(name, {"employee": one.id})

    def _pay_call(self, one: Item) -> ToolCall:
        name = self._harness.chain[-1]
        return ToolCall(name, dict(zip(("hours", "rate"), one.numbers, strict=True)) if name == "calc" else {"employee": one.id})

    def _noted(self, job: _Job, known: MiniFacts, step: str) -> str:
        if not job.notes:
            return f"step {step} ."
        entries = [_entry(job, one) for one in known.unsettled] or ["none"]
        return f"step {step} . notes {' , '.join(entries)} , ."


def _sum(one: Item) -> int:
    hours, rate = one.numbers
    return hours * rate


def _entry(job: _Job, one: Item) -> str:
    if one.id not in job.read:
        return f"{one.id} new"
    belief = job.beliefs[one.id]
    return f"{one.id} {belief} {_sum(one)}" if one.id in job.known and belief != "out" else f"{one.id} {belief}"


def _apply(job: _Job, call: ToolCall) -> None:
    """Keep the private copy of the world and what has been seen in step with the log."""
    try:
        job.world.call(call.name, call.arguments)
    except ToolError:
        return
    if call.name == "list_employees":
        job.listed = True
    elif call.name == "get_record":
        job.read.add(str(call.arguments["employee"]))
    elif call.name == "calc":
        pair = (call.arguments["hours"], call.arguments["rate"])
        job.known |= {one.id for one in facts(job.world).items if one.numbers == pair}
