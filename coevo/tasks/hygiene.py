"""What every instance of every family must satisfy, one check per function; it ships, because families of others must satisfy it too.

`check_family` runs all checks on a sample; the repository's tests run samples of its own families, `tests/bench/bench_families.py` every
instance.

A check raises AssertionError that begins with the instance's key. No check knows a family: which tools write and which arguments are free
is asked of the family (`TaskFamily.conduct`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from coevo.chat import ToolCall
from coevo.errors import ToolError
from coevo.harness.bundle import HarnessBundle
from coevo.tasks.family import Move, Size, Stream, Style, TaskFamily, TaskInstance, Unrecoverable, World
from coevo.tasks.splits import fixed_split
from coevo.tasks.walks import Walk, literals, random_call, seen
from coevo.tasks.world import TERMINAL_TOOL, replay

__all__ = [
    "NO_END",
    "WINDOW",
    "Hygiene",
    "check_canned",
    "check_family",
    "check_forks",
    "check_harness",
    "check_idle",
    "check_in_view",
    "check_leaks",
    "check_random",
    "check_reads",
    "check_recovery",
    "check_reference",
    "check_reopened",
    "failed",
    "outcome",
    "random_read",
    "sample",
    "split_instances",
    "unrecoverable_after_the_end",
    "wander",
]

WINDOW = 3
"""Turns in view of a limited walk."""

NO_END = frozenset({TERMINAL_TOOL})
"""Left out where a walk must go on."""


class Hygiene(NamedTuple):
    """What `check_family` saw.

    Attributes:
        instances: Instances that passed all checks.
        walks: Reference walks, each at 1.0.
        states: Random states from which the reference went on.
        unrecoverable: Of them, those that it gave up.
        longest: Turns of the longest reference walk.
    """

    instances: int
    walks: int
    states: int
    unrecoverable: int
    longest: int


def check_family(family: TaskFamily, size: Size, *, count: int = 6, states: int = 3) -> Hygiene:
    """Every check on the first `count` instances of the fixed split, templates in turn.

    Raises:
        AssertionError: A check failed; the message begins with the instance's key.
    """
    check_harness(family, size)
    instances = sample(family, size, count)
    solved = {one: [check_reference(family, one, style, window) for style in Style for window in (None, WINDOW)] for one in instances}
    lost = 0
    for place, instance in enumerate(instances):
        check_reopened(family, instance)
        for walk in solved[instance]:
            check_in_view(family, walk)
        lost += check_recovery(family, instance, states=states)
        check_idle(family, instance)
        check_random(family, instance)
        if count > 1:
            check_canned(family, instance, solved[instances[place - 1]][0].world.log)
        check_forks(family, instance)
        check_reads(family, instance)
        check_leaks(family, instance, solved[instance][0])
        unrecoverable_after_the_end(family, solved[instance][-1])
    walks = [walk for some in solved.values() for walk in some]
    longest = max(len(walk.turns) for walk in walks)
    limit = HarnessBundle.load(family.base_harness(size)).limits.max_turns
    assert longest <= limit, f"{family.name} {size}: the reference takes {longest} turns, the base harness allows {limit}"
    return Hygiene(len(instances), len(walks), states * len(instances), lost, longest)


def check_harness(family: TaskFamily, size: Size) -> None:
    """The base harness shows the family's tools, has nothing else yet, and the family says which of them write."""
    tools, bundle, conduct = [tool.name for tool in family.tools(size)], HarnessBundle.load(family.base_harness(size)), family.conduct(size)
    assert [entry.name for entry in bundle.tools] == tools, f"{family.name} {size}: tools.yaml of the base harness must list {tools}"
    assert not [*bundle.hooks, *bundle.skills], f"{family.name} {size}: a base harness has prompt and tools only"
    assert {TERMINAL_TOOL} <= conduct.writes <= set(tools), f"{family.name} {size}: conduct names {sorted(conduct.writes)} as writes"


def split_instances(family: TaskFamily, size: Size, diversity: int) -> list[TaskInstance]:
    """All instances of a fixed split."""
    return [one for part in fixed_split(family, size, diversity=diversity).values() for one in part]


def sample(family: TaskFamily, size: Size, count: int) -> list[TaskInstance]:
    """The first instances at full diversity, templates in turn: of the search part, or of the test part where that is too short."""
    split = fixed_split(family, size, diversity=len(family.templates(size)))
    part = split[Stream.SEARCH] if len(split[Stream.SEARCH]) >= count else split[Stream.TEST]
    return list(part[:count])


def outcome(world: World) -> tuple[bool, float]:
    """Success and score."""
    grade = world.grade()
    return grade.success, grade.score


def check_reopened(family: TaskFamily, instance: TaskInstance) -> None:
    """T7: two opens, one through the printed key, are byte-identical."""
    other = family.open(TaskInstance.parse(instance.key))
    assert family.open(instance).snapshot() == other.snapshot(), instance.key


def check_reference(family: TaskFamily, instance: TaskInstance, style: Style, window: int | None) -> Walk:
    """T2: the reference scores 1.0; the walk comes back for further checks."""
    walk = Walk(family.open(instance), window)
    lost = walk.follow(family.policy(style))
    assert lost is None, f"{instance.key} {style} {window}: {lost}"
    assert outcome(walk.world) == (True, 1.0), f"{instance.key} {style} {window}: {failed(walk.world)}"
    return walk


def failed(world: World) -> list[str]:
    """Feedback of what did not pass."""
    return [check.feedback for check in world.grade().checkpoints if not check.passed]


def check_in_view(family: TaskFamily, walk: Walk) -> None:
    """Every literal of every call that stands for something read is a whole token of a visible message, and so is every noted number."""
    instance = walk.world.instance
    free = family.conduct(instance.size).free
    for move, visible in walk.moves:
        known = seen(visible)
        missing = set(literals({key: value for key, value in move.call.arguments.items() if key not in free})) - known
        assert not missing, f"{instance.key}: {move.call} uses {missing}"
        noted = {token for token in literals([move.strategy]) if any(letter.isdigit() for letter in token)}
        assert noted <= known, f"{instance.key}: {move.strategy!r} notes {noted - known}"


def wander(walk: Walk, random: Random, family: TaskFamily) -> None:
    """One step of somebody: mostly the reference in either style, sometimes a random read, rarely a random write."""
    size = walk.world.instance.size
    draw = random.random()
    if walk.world.finished:
        return
    if draw < 0.6:
        policy = family.policy(random.choice(list(Style)))
        move = policy.move(walk.world, walk.visible(), limited=walk.window is not None)
        if isinstance(move, Move) and move.call.name != TERMINAL_TOOL:
            walk.call(move.call, move.strategy if random.random() < 0.5 else "")
        return
    barred = family.conduct(size).writes if draw < 0.95 else NO_END
    walk.call(random_call(random, family.tools(size), sorted(seen(walk.visible())), without=barred))


def check_recovery(family: TaskFamily, instance: TaskInstance, *, states: int, steps: int = 25) -> int:
    """T2: what a policy calls recoverable it solves, from random states of mixed origin; the rest is no success. Returns how many."""
    lost = 0
    for place in range(states):
        random = Random(f"{instance.key}/{place}")
        walk = Walk(family.open(instance), random.choice([None, WINDOW]))
        for _ in range(random.randint(1, steps)):
            wander(walk, random, family)
        before = walk.world.grade().success
        if walk.follow(family.policy(random.choice(list(Style)))) is None:
            assert outcome(walk.world) == (True, 1.0), f"{instance.key} state {place}: {failed(walk.world)}"
        else:
            lost += 1
            assert not before, f"{instance.key} state {place} was called unrecoverable and is a success"
    return lost


def check_idle(family: TaskFamily, instance: TaskInstance) -> None:
    """T1, T9: doing nothing, finishing at once, reading and finishing score 0; a claim in words is not an end."""
    idle = family.open(instance)
    assert outcome(idle) == (False, 0.0), instance.key
    assert not idle.finished, instance.key
    eager = family.open(instance)
    eager.call(TERMINAL_TOOL, {})
    assert eager.finished, instance.key
    assert outcome(eager) == (False, 0.0), instance.key
    reader, random = Walk(family.open(instance)), Random(instance.seed)
    for _ in range(10):
        reader.call(random_read(random, family, reader))
    reader.call(ToolCall(TERMINAL_TOOL, {}))
    assert outcome(reader.world) == (False, 0.0), instance.key


def check_canned(family: TaskFamily, instance: TaskInstance, canned: Sequence[ToolCall]) -> None:
    """T1: the solution of another instance is none of this one."""
    assert not replay(family, instance, canned).grade().success, instance.key


def check_random(family: TaskFamily, instance: TaskInstance, *, calls: int = 40) -> int:
    """T1, H19: random calls with values it has observed, then finish: no success. Returns how many calls were accepted."""
    walk, random = Walk(family.open(instance)), Random(instance.seed)
    opening = family.policy(Style.REACTIVE).move(walk.world, walk.visible())
    assert isinstance(opening, Move), instance.key
    walk.call(opening.call)
    for _ in range(calls):
        walk.call(random_call(random, family.tools(instance.size), sorted(seen(walk.visible())), without=NO_END))
    walk.call(ToolCall(TERMINAL_TOOL, {}))
    assert not walk.world.grade().success, instance.key
    return sum(not text.startswith("error") for text in walk.observations)


def check_forks(family: TaskFamily, instance: TaskInstance, *, steps: int = 12, every: int = 1) -> None:
    """ARCHITECTURE 2: a fork is a replay of the log, refused calls included, and independent of its original."""
    walk, random = Walk(family.open(instance)), Random(instance.seed)
    for step in range(steps):
        wander(walk, random, family)
        if step % every:
            continue
        fork, again = walk.world.fork(), replay(family, instance, walk.world.log)
        before = walk.world.snapshot()
        assert fork.snapshot() == before == again.snapshot(), instance.key
        assert fork.log_hash == again.log_hash, instance.key
        assert list(fork.log) == list(again.log) == list(walk.world.log), instance.key
        if not fork.finished:
            fork.call(TERMINAL_TOOL, {})
        assert walk.world.snapshot() == before, f"{instance.key}: a fork changed its original"


def check_reads(family: TaskFamily, instance: TaskInstance) -> None:
    """T4: random reads, good and bad, between all moves of the reference never change the grade."""
    walk, random, policy = Walk(family.open(instance)), Random(instance.seed), family.policy(Style.REACTIVE)
    while not walk.world.finished:
        move = policy.move(walk.world, walk.visible())
        assert isinstance(move, Move), instance.key
        walk.call(move.call)
        if walk.world.finished:
            break
        before = walk.world.grade()
        read = random_read(random, family, walk)
        walk.call(read)
        assert walk.world.grade() == before, f"{instance.key}: {read} changed the grade"
    assert outcome(walk.world) == (True, 1.0), instance.key


def check_leaks(family: TaskFamily, instance: TaskInstance, solved: Walk) -> None:
    """T8: no key, stream, checkpoint name, grader's word or serialised answer in what an agent reads, before and after its mistakes."""
    walk, random = Walk(family.open(instance)), Random(instance.seed)
    for _ in range(12):
        wander(walk, random, family)
        walk.call(random_call(random, family.tools(instance.size), sorted(seen(walk.visible())), without=NO_END))
    hidden = [instance.key, f"/{instance.stream}/", *_words_of(walk.world), *_answers(family, solved)]
    read = "\n".join([walk.world.instruction, *walk.observations, *solved.observations])
    assert not [text for text in hidden if text in read], f"{instance.key}: {[text for text in hidden if text in read]}"


def _words_of(world: World) -> Iterator[str]:
    for check in world.grade().checkpoints:
        if check.name != "finished":
            yield check.name
        if check.feedback:
            yield check.feedback


def _answers(family: TaskFamily, solved: Walk) -> Iterator[str]:
    """The arguments of each writing call of the reference that has more than one, as JSON."""
    writes = family.conduct(solved.world.instance.size).writes
    for call in solved.world.log:
        if call.name in writes and len(call.arguments) > 1:
            yield json.dumps(dict(call.arguments))
            yield json.dumps(dict(call.arguments), sort_keys=True)


def random_read(random: Random, family: TaskFamily, walk: Walk) -> ToolCall:
    """A call of a tool that writes nothing, with values that were observed."""
    size = walk.world.instance.size
    return random_call(random, family.tools(size), sorted(seen(walk.visible())), without=family.conduct(size).writes)


def unrecoverable_after_the_end(family: TaskFamily, walk: Walk) -> None:
    """T9: in a finished world nothing works and the policy says so."""
    grade = walk.world.grade()
    for call in list(walk.world.log):
        try:
            walk.world.call(call.name, call.arguments)
        except ToolError:
            continue
        raise AssertionError(f"{walk.world.instance.key}: {call} worked after the end")
    assert walk.world.grade() == grade, walk.world.instance.key
    assert isinstance(family.policy(Style.REACTIVE).move(walk.world, walk.visible()), Unrecoverable), walk.world.instance.key
