"""The contract of task families (`coevo.tasks.family`), run on every family of the table in every size.

1. Two opens are byte-identical; a fork is a replay; streams are disjoint (T7).
2. The reference scores 1.0 in both styles, in a full and in a limited view, from the start and from any recoverable state (T2).
3. It uses nothing that is not in view.
4. Who does nothing, who only finishes, who calls at random: no success (T1, H19).
5. Reads never change the grade (T4); no observation carries the expected result, the grader's words or the instance's key (T8).
6. Bad calls are refused, logged and change nothing (T4, R14); only the world's own tool ends an episode (T9).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from coevo.chat import ToolCall
from coevo.errors import ConfigError, ToolError
from coevo.harness.bundle import HarnessBundle
from coevo.tasks import FAMILIES, load_family
from coevo.tasks.family import Move, Size, Stream, Style, TaskFamily, TaskInstance, Unrecoverable, World
from coevo.tasks.world import TERMINAL_TOOL, replay
from tests.contract.walks import Walk, literals, random_call, seen

CASES = [(name, size) for name in FAMILIES for size in Size if load_family(name).templates(size)]
COUNTS = {Size.MINI: 200, Size.STANDARD: 60, Size.LONG: 60}
WINDOW = 3

pytestmark = pytest.mark.parametrize(("name", "size"), CASES, ids=[f"{name}-{size}" for name, size in CASES])


def instances(family: TaskFamily, size: Size, count: int, *, stream: Stream = Stream.SEARCH) -> Iterator[TaskInstance]:
    diversity = len(family.templates(size))
    return (family.instance(stream, seed, size, diversity=diversity) for seed in range(count))


def outcome(world: World) -> tuple[bool, float]:
    grade = world.grade()
    return grade.success, grade.score


def test_reopened_worlds_are_byte_identical(name: str, size: Size) -> None:
    """T7."""
    family = load_family(name)
    for instance in instances(family, size, 50):
        assert family.open(instance).snapshot() == load_family(name).open(TaskInstance.parse(instance.key)).snapshot()


def test_streams_are_disjoint_and_instances_differ(name: str, size: Size) -> None:
    """I8: same seeds, other streams, other worlds; within a stream all differ."""
    family = load_family(name)
    keys, worlds, amount = set(), set(), 60
    for stream in Stream:
        for instance in instances(family, size, amount, stream=stream):
            keys.add(instance.key)
            worlds.add(json.dumps(json.loads(family.open(instance).snapshot())["data"]))
    assert len(keys) == len(worlds) == amount * len(Stream)


def test_diversity_takes_the_first_templates(name: str, size: Size) -> None:
    family = load_family(name)
    names = family.templates(size)
    for diversity in range(1, len(names) + 1):
        drawn = {family.instance(Stream.SEARCH, seed, size, diversity=diversity).template for seed in range(40 * diversity)}
        assert drawn == set(names[:diversity])
    for wrong in (0, len(names) + 1):
        with pytest.raises(ConfigError, match="diversity"):
            family.instance(Stream.SEARCH, 0, size, diversity=wrong)


@pytest.mark.parametrize("window", [None, WINDOW], ids=["full", "limited"])
@pytest.mark.parametrize("style", list(Style))
def test_reference_scores_one_on_every_template(name: str, size: Size, style: Style, window: int | None) -> None:
    """T2: also every announced plan begins with the call that is made, and the harness's turn limit suffices."""
    family = load_family(name)
    limit = HarnessBundle.load(family.base_harness(size)).limits.max_turns
    templates = set()
    for instance in instances(family, size, COUNTS[size]):
        walk = Walk(family.open(instance), window)
        assert walk.follow(family.policy(style)) is None, instance.key
        assert outcome(walk.world) == (True, 1.0), instance.key
        assert len(walk.turns) <= limit, instance.key
        templates.add(instance.template)
    assert templates == set(family.templates(size))


@pytest.mark.parametrize("window", [None, WINDOW], ids=["full", "limited"])
@pytest.mark.parametrize("style", list(Style))
def test_reference_uses_only_what_is_in_view(name: str, size: Size, style: Style, window: int | None) -> None:
    """Every literal of every call that stands for something read is a whole token of a visible message, and so is every noted one."""
    family = load_family(name)
    checked = 0
    for instance in instances(family, size, COUNTS[size] // 2):
        walk = Walk(family.open(instance), window)
        walk.follow(family.policy(style))
        for move, visible in walk.moves:
            read = {key: value for key, value in move.call.arguments.items() if key not in family.conduct(size).free}
            missing = set(literals(read)) - seen(visible)
            assert not missing, (instance.key, move, missing)
            noted = {token for token in literals([move.strategy]) if any(letter.isdigit() for letter in token)}
            assert noted <= seen(visible), (instance.key, move.strategy)
            checked += 1
    assert checked > 5 * COUNTS[size] // 2


@pytest.mark.parametrize("style", list(Style))
def test_reference_recovers_from_any_recoverable_prefix(name: str, size: Size, style: Style, capsys: pytest.CaptureFixture[str]) -> None:
    """T2: reference moves, random reads and random writes mixed; what the policy calls recoverable, it solves; the rest can't be solved."""
    family, lost = load_family(name), 0
    for index, instance in enumerate(instances(family, size, COUNTS[size])):
        random = Random(index)
        walk = Walk(family.open(instance), random.choice([None, WINDOW]))
        policies = [family.policy(one) for one in Style]
        for _ in range(random.randint(0, 25)):
            wander(walk, random, family, policies)
        before = outcome(walk.world)
        if walk.follow(family.policy(style)) is None:
            assert outcome(walk.world) == (True, 1.0), instance.key
        else:
            lost += 1
            assert not before[0], instance.key
    with capsys.disabled():
        print(f"\n  {name} {size} {style}: {lost} of {COUNTS[size]} random prefixes unrecoverable", end=" ")
    assert 0 < lost < COUNTS[size] / 2


def wander(walk: Walk, random: Random, family: TaskFamily, policies: list[Any]) -> None:
    """One step of somebody: mostly the reference in either style, sometimes a random read, rarely a random write."""
    tools, draw = family.tools(walk.world.instance.size), random.random()
    if walk.world.finished:
        return
    if draw < 0.6:
        move = random.choice(policies).move(walk.world, walk.visible(), limited=walk.window is not None)
        if isinstance(move, Move) and move.call.name != TERMINAL_TOOL:
            walk.call(move.call, move.strategy if random.random() < 0.5 else "")
        return
    barred = family.conduct(walk.world.instance.size).writes if draw < 0.95 else frozenset({TERMINAL_TOOL})
    walk.call(random_call(random, tools, sorted(seen(walk.visible())), without=barred))


def test_idle_and_canned_agents_score_zero(name: str, size: Size) -> None:
    """T1, T9: nothing at all, finishing at once, reading and finishing; a claim in words is not an end."""
    family = load_family(name)
    for instance in instances(family, size, COUNTS[size]):
        idle = family.open(instance)
        assert outcome(idle) == (False, 0.0)
        assert not idle.finished
        canned = family.open(instance)
        canned.call(TERMINAL_TOOL, {})
        assert canned.finished
        assert outcome(canned) == (False, 0.0)
        reader = Walk(family.open(instance))
        random = Random(instance.seed)
        for _ in range(10):
            reader.call(random_call(random, family.tools(size), sorted(seen(reader.visible())), without=family.conduct(size).writes))
        reader.call(ToolCall(TERMINAL_TOOL, {}))
        assert outcome(reader.world) == (False, 0.0)


def test_random_agents_never_succeed(name: str, size: Size) -> None:
    """T1, H19: forty random calls with values it has observed, then finish."""
    family = load_family(name)
    applied = 0
    for instance in instances(family, size, COUNTS[size]):
        walk, random = Walk(family.open(instance)), Random(instance.seed)
        listing = family.policy(Style.REACTIVE).move(walk.world, walk.visible())
        assert isinstance(listing, Move)
        walk.call(listing.call)
        for _ in range(40):
            walk.call(random_call(random, family.tools(size), sorted(seen(walk.visible())), without=frozenset({TERMINAL_TOOL})))
        walk.call(ToolCall(TERMINAL_TOOL, {}))
        applied += sum(not text.startswith("error") for text in walk.observations)
        assert not walk.world.grade().success, instance.key
    assert applied > 3 * COUNTS[size]


def test_fork_equals_replay_and_is_independent(name: str, size: Size) -> None:
    """ARCHITECTURE 2: at every step, refused calls included."""
    family = load_family(name)
    for instance in instances(family, size, 20):
        walk, random = Walk(family.open(instance)), Random(instance.seed)
        for _ in range(12):
            wander(walk, random, family, [family.policy(style) for style in Style])
            fork = walk.world.fork()
            again = replay(family, instance, walk.world.log)
            assert fork.snapshot() == walk.world.snapshot() == again.snapshot()
            assert fork.log_hash == again.log_hash
            assert list(fork.log) == list(again.log) == list(walk.world.log)
            before = walk.world.snapshot()
            fork.call(TERMINAL_TOOL, {}) if not fork.finished else None
            assert walk.world.snapshot() == before


def test_the_log_is_chained(name: str, size: Size) -> None:
    """T11: every call, also a refused one, moves the hash; order and arguments count."""
    family = load_family(name)
    instance = next(instances(family, size, 1))
    walk = Walk(family.open(instance))
    walk.follow(family.policy(Style.REACTIVE))
    log, hashes = list(walk.world.log), set()
    for end in range(len(log) + 1):
        hashes.add(replay(family, instance, log[:end]).log_hash)
    assert len(hashes) == len(log) + 1
    assert replay(family, instance, [log[1], log[0], *log[2:]]).log_hash != walk.world.log_hash
    assert replay(family, instance, [*log[:-1], ToolCall("no_such_tool", {}), log[-1]]).log_hash != walk.world.log_hash


def test_extra_reads_never_change_the_grade(name: str, size: Size) -> None:
    """T4: random reads, good and bad, between all moves of the reference."""
    family = load_family(name)
    for instance in instances(family, size, 30):
        walk, random = Walk(family.open(instance)), Random(instance.seed)
        policy = family.policy(Style.REACTIVE)
        while not walk.world.finished:
            move = policy.move(walk.world, walk.visible())
            assert isinstance(move, Move)
            walk.call(move.call)
            if walk.world.finished:
                break
            before = walk.world.grade()
            walk.call(random_call(random, family.tools(size), sorted(seen(walk.visible())), without=family.conduct(size).writes))
            assert walk.world.grade() == before
        assert outcome(walk.world) == (True, 1.0)


def test_observations_leak_nothing(name: str, size: Size) -> None:
    """T8: no instance key, stream, template, checkpoint name or grader's word in what the agent reads, before and after its mistakes."""
    family = load_family(name)
    for instance in instances(family, size, 40):
        walk, random = Walk(family.open(instance)), Random(instance.seed)
        for _ in range(30):
            wander(walk, random, family, [family.policy(style) for style in Style])
            walk.call(random_call(random, family.tools(size), sorted(seen(walk.visible())), without=frozenset({TERMINAL_TOOL})))
        grade = walk.world.grade()
        hidden = [instance.key, f"/{instance.stream}/", *(check.name for check in grade.checkpoints if check.name != "finished")]
        hidden += [check.feedback for check in grade.checkpoints if check.feedback]
        read = "\n".join([walk.world.instruction, *walk.observations])
        assert not [text for text in hidden if text in read], instance.key


def test_bad_calls_are_refused_and_change_nothing(name: str, size: Size) -> None:
    """T4, R14: unknown tools and arguments, missing and mistyped ones; the message names the tool's arguments."""
    family = load_family(name)
    for spec in family.tools(size):
        world = family.open(next(instances(family, size, 1)))
        start = world.grade()
        bad: list[dict[str, Any]] = [{"nonsense": 1}, {"": 1}]
        for argument, schema in spec.parameters["properties"].items():
            wrong = 7 if schema["type"] in ("string", "array") else "31"
            good = random_call(Random(0), [spec], ["x"]).arguments
            bad += [{**good, argument: wrong}, {**good, argument: None}, {**good, argument: {"a": 1}}, {**good, "extra": 1}]
            if argument in spec.parameters["required"]:
                bad.append({key: value for key, value in good.items() if key != argument})
        for arguments in bad:
            with pytest.raises(ToolError) as caught:
                world.call(spec.name, arguments)
            assert all(argument in str(caught.value) for argument in spec.argument_names), str(caught.value)
        assert len(world.log) == len(bad)
        assert world.grade() == start
        assert not world.finished
    with pytest.raises(ToolError, match="unknown tool"):
        world.call("no_such_tool", {})


def test_nothing_works_after_the_end(name: str, size: Size) -> None:
    """T9."""
    family = load_family(name)
    walk = Walk(family.open(next(instances(family, size, 1))))
    walk.follow(family.policy(Style.REACTIVE))
    grade = walk.world.grade()
    for call in list(walk.world.log):
        with pytest.raises(ToolError):
            walk.world.call(call.name, call.arguments)
    assert walk.world.grade() == grade
    assert isinstance(family.policy(Style.REACTIVE).move(walk.world, walk.visible()), Unrecoverable)


def test_base_harness_shows_the_family_tools(name: str, size: Size) -> None:
    """The harness that evolution starts from has prompt and tools only."""
    family = load_family(name)
    bundle = HarnessBundle.load(family.base_harness(size))
    assert [entry.name for entry in bundle.tools] == [tool.name for tool in family.tools(size)]
    assert not bundle.hooks
    assert not bundle.skills


def test_foreign_and_unknown_instances_are_refused(name: str, size: Size) -> None:
    family = load_family(name)
    with pytest.raises(ConfigError, match="another family"):
        family.open(TaskInstance("other", family.templates(size)[0], Stream.TEST, 0, size))
    with pytest.raises(ConfigError, match="did you mean"):
        family.open(TaskInstance(name, family.templates(size)[0] + "x", Stream.TEST, 0, size))
