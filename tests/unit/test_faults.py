"""Injected faults and the drill: what a case promises, the weak agent's habits, and a bounded sample of the accuracy bench.

1. Each generator changes one call in the way that its kind says, with a call that fits the tool's schema by name.
2. A case fails as injected and succeeds when its one turn is restored; the turn of the record is the fault's.
3. The weak agent makes its mistake with the stated strength, does not mend it, and finishes early with the stated probability.
4. A delayed fault strikes a turn that reads; every turn from there to the first wrong write, `DELAY` or more later, is right.
5. Evidence and replay find the turn in a sample over all families and kinds (`tests/bench/bench_localize.py` measures the whole).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from coevo.chat import ModelRequest, Sampling
from coevo.episode import ForcedTurn, forced_prefix, play
from coevo.errors import ConfigError, ModelError
from coevo.harness.bundle import HarnessBundle
from coevo.harness.sandbox import shared_pool
from coevo.localize.drill import BelieverSource, Case, cases, right_episode
from coevo.localize.evidence import Depth
from coevo.localize.faults import DELAY, DELAYED, FaultKind, Script, delayed_faults, faults
from coevo.localize.stage import LocalizeStage
from coevo.models.scripted import turn_number
from coevo.records import Episode
from coevo.store import LocalSource
from coevo.tasks import FAMILIES, load_family
from coevo.tasks.family import Size, Stream, TaskInstance

SAMPLED = ("payroll", "budget", "stock", "anomaly", "browser", "website", "refactor")


def instance(family: str, seed: int = 5000, size: Size = Size.MINI) -> TaskInstance:
    return load_family(family).instance(Stream.SEARCH, seed, size, diversity=3)


@pytest.fixture(scope="module")
def right() -> Episode:
    return asyncio.run(right_episode(instance("payroll")))


@pytest.fixture(scope="module")
def script(right: Episode) -> Script:
    return Script(right, load_family("payroll"))


@pytest.mark.parametrize("kind", list(FaultKind))
def test_a_fault_changes_one_call(script: Script, kind: FaultKind) -> None:
    """Promise 1."""
    found = faults(script, kind, Random(1))
    assert found
    assert found == faults(script, kind, Random(1))
    for fault in found:
        assert script.calls[fault.turn] == fault.intended
        assert fault.made != fault.intended
        assert fault.made.name in script.tools
        assert set(fault.made.arguments) <= set(script.tools[fault.made.name].parameters["properties"])


def test_kinds_are_what_they_say(script: Script) -> None:
    """Promise 1, kind by kind."""
    offered = {kind: faults(script, kind, Random(2)) for kind in FaultKind}
    assert all(fault.made.name == "finish" for fault in offered[FaultKind.EARLY_FINISH])
    assert all(fault.made.name != fault.intended.name for fault in offered[FaultKind.WRONG_TOOL])
    assert all(fault.intended.name not in script.writes for fault in offered[FaultKind.SKIPPED_LOOKUP])
    assert all(fault.made.name in script.writes for fault in offered[FaultKind.SKIPPED_LOOKUP])
    for fault in (*offered[FaultKind.WRONG_ARGUMENT], *offered[FaultKind.STALE_VALUE]):
        differing = [name for name, value in fault.made.arguments.items() if value != fault.intended.arguments[name]]
        assert len(differing) == 1
        assert script.subjects_of(fault.made) == script.subjects_of(fault.intended)
    for fault in offered[FaultKind.SWAPPED_IDS]:
        assert fault.made.name == fault.intended.name
        assert script.subjects_of(fault.made) != script.subjects_of(fault.intended)


@pytest.mark.parametrize("kind", list(FaultKind))
def test_a_delayed_fault_reads_wrong_and_writes_wrong_later(script: Script, kind: FaultKind) -> None:
    """Promise 4, as offered."""
    found = delayed_faults(script, kind, Random(1))
    assert bool(found) == (kind in DELAYED)
    assert found == delayed_faults(script, kind, Random(1))
    for fault in found:
        assert script.calls[fault.turn] == fault.intended == fault.believed
        assert {fault.intended.name, fault.made.name}.isdisjoint(script.writes)
        assert fault.effect is not None
        assert fault.effect.right.name in script.writes
        assert fault.effect.right in script.calls[fault.turn + DELAY :]
        assert fault.effect.wrong != fault.effect.right
        assert script.subjects_of(fault.effect.wrong) == script.subjects_of(fault.effect.right)


@pytest.mark.parametrize("kind", list(DELAYED))
def test_a_delayed_case_is_right_until_its_write(right: Episode, kind: FaultKind) -> None:
    """Promises 2 and 4, as played."""
    (case,) = asyncio.run(cases(instance("payroll"), kind, strength=0.9, slip=0.01, delayed=True))
    calls, true = ([turn.executed[0] for turn in episode.turns] for episode in (case.episode, right))
    first = case.fault.turn
    assert not case.episode.success
    assert case.delay >= DELAY
    assert [index for index, pair in enumerate(zip(calls, true, strict=False)) if pair[0] != pair[1]][:2] == [first, first + case.delay]
    assert continued(case, rewritten=True, slip=0.0)
    assert not continued(case, rewritten=False, slip=0.0)


@pytest.fixture(scope="module")
def sample() -> tuple[Case, ...]:
    """One case per family and kind where there is one."""
    found: list[Case] = []
    for family in SAMPLED:
        for kind in FaultKind:
            found += asyncio.run(cases(instance(family), kind, strength=0.9, slip=0.01))
    return tuple(found)


def test_the_sample_covers_families_and_kinds(sample: tuple[Case, ...]) -> None:
    assert set(SAMPLED) <= set(FAMILIES)
    assert len(sample) >= 36
    assert {case.fault.kind for case in sample} == set(FaultKind)
    assert {case.agent.family for case in sample} == set(SAMPLED)


def test_a_case_fails_and_its_turn_alone_saves_it(sample: tuple[Case, ...]) -> None:
    """Promise 2."""
    for case in sample[::5]:
        played = case.episode.turns[case.fault.turn]
        assert not case.episode.success
        assert played.call is not None
        assert (played.call.name, played.call.arguments) == (case.fault.made.name, dict(case.fault.made.arguments))
        assert continued(case, rewritten=True, slip=0.0)
        assert not continued(case, rewritten=False, slip=0.0)


def continued(case: Case, *, rewritten: bool, slip: float, repeat: int = 0) -> bool:
    """Whether the episode succeeds with the turn restored or as it was, the agent's slips set."""
    source = case.agent.model
    assert isinstance(source, BelieverSource)
    agent = replace(case.agent, model=replace(source, slip=slip)).open()
    task = TaskInstance.parse(case.episode.spec.task_key)
    family = load_family(task.family)
    prefix = forced_prefix(case.episode, case.fault.turn + 1)
    if rewritten:
        prefix = (*prefix[:-1], ForcedTurn(agent.chat_format.render_turn("", case.fault.intended, family.tools(task.size))))
    ended = play(task, family=family, agent=agent, sandboxes=shared_pool(), prefix=prefix, branch="test", repeat=repeat)
    return asyncio.run(ended).success


def test_the_weak_agent_repeats_its_mistake(sample: tuple[Case, ...]) -> None:
    """Promise 3: a fresh turn at the place is nearly always wrong again, at strength 1 always, and slips end episodes early."""
    case = min((one for one in sample if one.fault.kind is FaultKind.WRONG_ARGUMENT), key=lambda one: one.fault.turn)
    source = case.agent.model
    assert isinstance(source, BelieverSource)
    task = TaskInstance.parse(case.episode.spec.task_key)
    made = []
    for strength in (1.0, 0.0):
        agent = replace(case.agent, model=replace(source, strength=strength, slip=0.0)).open()
        prefix = forced_prefix(case.episode, case.fault.turn)
        played = asyncio.run(
            play(task, family=load_family(task.family), agent=agent, sandboxes=shared_pool(), prefix=prefix, branch="again")
        )
        made.append(played.turns[case.fault.turn].call)
        assert played.success == (strength == 0.0)
    assert made[0] is not None
    assert dict(made[0].arguments) == dict(case.fault.made.arguments)
    assert not continued(case, rewritten=True, slip=1.0)


def test_the_weak_agent_plays_only_where_belief_can_be_laid_over_the_messages(sample: tuple[Case, ...]) -> None:
    source = sample[0].agent.model
    assert isinstance(source, BelieverSource)
    assert source.model_id != replace(source, strength=0.5).model_id
    assert HarnessBundle.load(load_family("payroll").base_harness(Size.MINI)).hash == sample[0].agent.bundle.hash
    with pytest.raises(ModelError, match="only inside episodes"):
        asyncio.run(source.open().complete(_bare()))
    with pytest.raises(ConfigError):
        asyncio.run(right_episode(TaskInstance("payroll", "no-such-template", Stream.SEARCH, 0, Size.MINI)))


def _bare() -> ModelRequest:
    request = ModelRequest((), (), Sampling(), "nobody", 0)
    assert turn_number(request) == 0
    return request


def test_evidence_and_replay_find_the_turn(sample: tuple[Case, ...], tmp_path: Path) -> None:
    """Promise 5: the threshold lies below what the bench measures on far more cases."""
    store, exact = LocalSource(str(tmp_path)), 0
    for case in sample:
        stage = LocalizeStage(
            case.agent,
            store,
            "found",
            "run",
            candidates=8,
            continuations=8,
            alpha=0.1,
            depth=Depth.FULL,
            first_look=4,
            skip_same_call=True,
        )
        worker = stage.open()
        record, _ = asyncio.run(worker.localize(case.episode))
        exact += record.turn == case.fault.turn
    assert exact >= 0.8 * len(sample)
