"""The contract of task families (`coevo.tasks.family`), run on samples of every family of the table in every size it has.

1. Two opens are byte-identical; a fork is a replay; streams are disjoint (T7).
2. The reference scores 1.0 in both styles, in a full and in a limited view, from the start and from any recoverable state (T2).
3. It uses nothing that is not in view.
4. Who does nothing, who only finishes, who replays another solution, who calls at random: no success (T1, H19).
5. Reads never change the grade (T4); no observation carries the expected result, the grader's words or the instance's key (T8).
6. Bad calls are refused, logged and change nothing (T4, R14); only the world's own tool ends an episode (T9).

Which tools write and which arguments are free is the family's own statement. Samples take every template once in mini and standard; all
instances of all splits are the benchmark's (`tests/bench/bench_families.py`), whose counts stand in `docs/families.md`.
"""

from __future__ import annotations

import json
from functools import cache
from random import Random
from typing import Any

import pytest

from coevo.chat import ToolCall
from coevo.errors import ConfigError, ToolError
from coevo.harness.bundle import HarnessBundle
from coevo.tasks import FAMILIES, load_family
from coevo.tasks.family import Size, Stream, Style, TaskInstance
from coevo.tasks.splits import FIRST_SEED, fixed_split, total
from coevo.tasks.world import TERMINAL_TOOL, replay
from tests.contract import hygiene
from tests.contract.hygiene import WINDOW, sample
from tests.contract.walks import Walk, random_call

CASES = [(name, size) for name in FAMILIES for size in Size if load_family(name).templates(size)]
PLAYED = {Size.MINI: 20, Size.STANDARD: 20, Size.LONG: 4}
PROBED = {Size.MINI: 8, Size.STANDARD: 3, Size.LONG: 1}

pytestmark = pytest.mark.parametrize(("name", "size"), CASES, ids=[f"{name}-{size}" for name, size in CASES])


@cache
def solved(name: str, size: Size) -> tuple[Walk, ...]:
    """The reference's walks: one per instance, the four pairs of style and view in turn."""
    family, styles = load_family(name), list(Style)
    return tuple(
        hygiene.check_reference(family, instance, styles[place % 2], (None, WINDOW)[place // 2 % 2])
        for place, instance in enumerate(sample(family, size, PLAYED[size]))
    )


def test_reference_scores_one(name: str, size: Size) -> None:
    """T2: on every template in mini and standard; the harness's turn limit suffices."""
    family = load_family(name)
    limit = HarnessBundle.load(family.base_harness(size)).limits.max_turns
    walks = solved(name, size)
    assert all(len(walk.turns) <= limit for walk in walks), max(len(walk.turns) for walk in walks)
    if size is not Size.LONG:
        assert {walk.world.instance.template for walk in walks} == set(family.templates(size))


def test_reference_uses_only_what_is_in_view(name: str, size: Size) -> None:
    """T2."""
    family, walks = load_family(name), solved(name, size)
    for walk in walks:
        hygiene.check_in_view(family, walk)
    assert sum(len(walk.moves) for walk in walks) > 4 * len(walks)


def test_reference_recovers_from_any_recoverable_state(name: str, size: Size, capsys: pytest.CaptureFixture[str]) -> None:
    """T2: five random states of mixed origin per instance."""
    family, instances = load_family(name), sample(load_family(name), size, PROBED[size])
    lost = sum(hygiene.check_recovery(family, instance, states=5) for instance in instances)
    with capsys.disabled():
        print(f"\n  {name} {size}: {lost} of {5 * len(instances)} random states unrecoverable", end=" ")
    assert lost < 5 * len(instances) * 2 / 3


def test_cheap_agents_never_succeed(name: str, size: Size) -> None:
    """T1, T9, H19: nothing at all, finishing at once, reading only, another instance's solution, random calls."""
    family, accepted = load_family(name), 0
    instances = sample(family, size, PROBED[size])
    canned = [walk.world.log for walk in solved(name, size)]
    for instance in instances:
        hygiene.check_idle(family, instance)
        for log, walk in zip(canned, solved(name, size), strict=True):
            if walk.world.instance != instance:
                hygiene.check_canned(family, instance, log)
                break
        accepted += hygiene.check_random(family, instance)
    assert accepted > len(instances)


def test_extra_reads_never_change_the_grade(name: str, size: Size) -> None:
    """T4."""
    family = load_family(name)
    for instance in sample(family, size, PROBED[size]):
        hygiene.check_reads(family, instance)


def test_observations_leak_nothing(name: str, size: Size) -> None:
    """T8."""
    family = load_family(name)
    for walk in solved(name, size)[: PROBED[size]]:
        hygiene.check_leaks(family, walk.world.instance, walk)


def test_worlds_are_reproducible(name: str, size: Size) -> None:
    """T7, ARCHITECTURE 2: reopened, forked and replayed worlds are equal and independent."""
    family = load_family(name)
    for instance in sample(family, size, PLAYED[size]):
        hygiene.check_reopened(family, instance)
    for instance in sample(family, size, 4):
        hygiene.check_forks(family, instance, every=1 if size is Size.MINI else 4)


def test_streams_are_disjoint_and_instances_differ(name: str, size: Size) -> None:
    """I8: same seeds, other streams, other worlds; within a stream all differ."""
    family, keys, worlds = load_family(name), set(), set()
    amount = 3 if size is Size.LONG else 15
    for stream in Stream:
        for seed in range(amount):
            instance = family.instance(stream, seed, size, diversity=len(family.templates(size)))
            keys.add(instance.key)
            worlds.add(json.dumps(json.loads(family.open(instance).snapshot())["data"]))
    assert len(keys) == len(worlds) == amount * len(Stream)


def test_templates_and_splits(name: str, size: Size) -> None:
    """I8: twenty templates, taken in order by diversity; 20, 20 and 60 percent, disjoint, balanced, away from all other seeds."""
    family = load_family(name)
    names = family.templates(size)
    assert len(set(names)) == len(names) == 20
    for diversity in (1, 3, 8, 20):
        split = fixed_split(family, size, diversity=diversity)
        amount = total(family)
        assert [len(split[stream]) for stream in (Stream.SEARCH, Stream.SELECTION, Stream.TEST)] == [
            amount // 5,
            amount // 5,
            amount * 3 // 5,
        ]
        drawn = [one for part in split.values() for one in part]
        assert len({one.key for one in drawn}) == amount
        assert {one.template for one in drawn} == set(names[:diversity])
        assert min(one.seed for one in drawn) >= FIRST_SEED
    for wrong in (0, 21):
        with pytest.raises(ConfigError, match="diversity"):
            family.instance(Stream.SEARCH, 0, size, diversity=wrong)


def test_the_log_is_chained(name: str, size: Size) -> None:
    """T11: every call, also a refused one, moves the hash; order and arguments count."""
    family, walk = load_family(name), solved(name, size)[0]
    log, instance = list(walk.world.log), walk.world.instance
    hashes = {replay(family, instance, log[:end]).log_hash for end in range(min(len(log), 12) + 1)}
    assert len(hashes) == min(len(log), 12) + 1
    assert replay(family, instance, [log[1], log[0], *log[2:]]).log_hash != walk.world.log_hash
    assert replay(family, instance, [*log[:-1], ToolCall("no_such_tool", {}), log[-1]]).log_hash != walk.world.log_hash


def test_bad_calls_are_refused_and_change_nothing(name: str, size: Size) -> None:
    """T4, R14: unknown tools and arguments, missing and mistyped ones; the message names the tool's arguments."""
    family = load_family(name)
    instance = sample(family, size, 1)[0]
    for spec in family.tools(size):
        world = family.open(instance)
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
    family, walk = load_family(name), solved(name, size)[0]
    again = Walk(walk.world.fork(), walk.window)
    hygiene.unrecoverable_after_the_end(family, again)


def test_conduct_and_base_harness_fit_the_tools(name: str, size: Size) -> None:
    """The harness that evolution starts from has prompt and tools only; the family states what writes, and that it ends."""
    family = load_family(name)
    tools, conduct = family.tools(size), family.conduct(size)
    bundle = HarnessBundle.load(family.base_harness(size))
    assert [entry.name for entry in bundle.tools] == [tool.name for tool in tools]
    assert not bundle.hooks
    assert not bundle.skills
    assert conduct.writes <= {tool.name for tool in tools}
    assert TERMINAL_TOOL in conduct.writes
    assert conduct.free <= {argument for tool in tools for argument in tool.argument_names}
    assert {call.name for walk in solved(name, size) for call in walk.world.log} & conduct.writes > {TERMINAL_TOOL}


def test_foreign_and_unknown_instances_are_refused(name: str, size: Size) -> None:
    family = load_family(name)
    with pytest.raises(ConfigError, match="another family"):
        family.open(TaskInstance("other", family.templates(size)[0], Stream.TEST, 0, size))
    with pytest.raises(ConfigError, match="did you mean"):
        family.open(TaskInstance(name, family.templates(size)[0] + "x", Stream.TEST, 0, size))
