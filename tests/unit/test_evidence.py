"""Detectors: each names the turn that its rule is about, with a reason in words, and stays silent on a clean episode.

Episodes are written by hand, so that every rule is seen alone.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from coevo.chat import Sampling
from coevo.localize.detectors import checkpoint, document, ending, missing, refusal, repetition
from coevo.localize.detectors.family import Detector, Scene
from coevo.localize.evidence import DETECTORS, Depth, strongest
from coevo.records import CallRecord, Checkpoint, Episode, EpisodeSpec, Firing, Grade, MessageRecord, Status, Turn

WRITES = frozenset({"pay", "refer"})


def call(name: str, **arguments: Any) -> CallRecord:
    return CallRecord(name=name, arguments=arguments)


def scene(
    *played: tuple[CallRecord | None, Any],
    failed: dict[str, str],
    passed: tuple[str, ...] = (),
    status: Status = Status.COMPLETED,
    refused: tuple[int, ...] = (),
    firings: dict[int, tuple[Firing, ...]] | None = None,
) -> Scene:
    """An episode of these calls and results; `failed` maps checkpoint name -> feedback."""
    messages = [MessageRecord(role="system", content="you work with tools"), MessageRecord(role="user", content="settle the cases")]
    turns = []
    for index, (one, result) in enumerate(played):
        text = result if isinstance(result, str) else json.dumps(result)
        turns.append(
            Turn(
                message_index=tuple(range(len(messages))),
                prompt_shared=0,
                prompt_suffix=(),
                completion_text=f"turn {index}",
                call=one,
                parse_failure=None if one is not None else "no tool call found",
                executed=() if one is None else (one,),
                result=text,
                result_error=index in refused or one is None,
                firings=(firings or {}).get(index, ()),
            )
        )
        calls = () if one is None else (one,)
        messages += [MessageRecord(role="assistant", content="", calls=calls), MessageRecord(role="tool", content=text)]
    checks = [Checkpoint(name=name, weight=1.0, passed=True) for name in passed]
    checks += [Checkpoint(name=name, weight=1.0, passed=False, feedback=text) for name, text in failed.items()]
    spec = EpisodeSpec(task_key="desk/mini/a/search/0", world_version="1", harness_hash="0", model_id="m", sampling=Sampling())
    grade = Grade(success=not failed, score=0.5, checkpoints=tuple(checks))
    episode = Episode(id=spec.id, spec=spec, status=status, grade=grade, messages=tuple(messages), turns=tuple(turns))
    return Scene(episode, writes=WRITES, free=frozenset({"query"}))


OK = {"ok": True}
FINISH = (call("finish"), OK)


def case(number: int, *, amount: int | None = None) -> list[tuple[CallRecord, Any]]:
    """Read a case and pay it what was read."""
    due = 100 + number
    return [
        (call("get", case=f"C{number}"), {"case": f"C{number}", "amount": due}),
        (call("pay", case=f"C{number}", amount=due if amount is None else amount), OK),
    ]


def turns_of(detector: Detector, scene: Scene) -> list[int]:
    found = list(detector(scene))
    assert all(one.reason and one.weight > 0 for one in found)
    return sorted(one.turn for one in found)


def test_writes_about_a_failed_subject() -> None:
    """The first write about the subject is the strongest; reads and other subjects are not named."""
    seen = scene(*case(1), *case(2, amount=7), (call("pay", case="C2", amount=9), OK), FINISH, failed={"settled:C2": "C2: wrong amount"})
    found = list(checkpoint.by_write(seen))
    assert [one.turn for one in found] == [3, 4]
    assert found[0].weight > found[1].weight
    assert "C2: wrong amount" in found[0].reason
    assert turns_of(checkpoint.by_subject, seen) == [2, 3, 4]


def test_work_behind_a_write() -> None:
    """A step that names no subject belongs to the subject in hand, up to where the next one is taken up."""
    steps = [(call("open", record="C2"), OK), (call("type", text="9"), OK), (call("press", element="ok"), OK)]
    seen = scene(*case(1), *steps, *case(3), FINISH, failed={"settled:C2": "C2: wrong amount"}, passed=("settled:C1", "settled:C3"))
    assert turns_of(checkpoint.work_on_subject, seen) == [2, 3, 4]


def test_a_write_about_nothing_that_the_task_names() -> None:
    seen = scene(*case(1), (call("pay", case="X9", amount=1), OK), FINISH, failed={"bystanders": "X9 was changed"}, passed=("settled:C1",))
    assert turns_of(checkpoint.stray_write, seen) == [1, 2]
    assert max(checkpoint.stray_write(seen), key=lambda one: one.weight).turn == 2


def test_an_unsettled_subject_points_to_the_write_that_took_its_place() -> None:
    read = (call("get", case="C2"), {"case": "C2", "amount": 102})
    seen = scene(*case(1), read, (call("pay", case="C3", amount=102), OK), FINISH, failed={"settled:C2": "C2: not settled"})
    assert turns_of(missing.turned_away, seen) == [3]


def test_going_back_to_a_settled_subject() -> None:
    read = (call("get", case="C2"), {"case": "C2", "amount": 102})
    seen = scene(*case(1), read, case(1)[0], FINISH, failed={"settled:C2": "C2: not settled"}, passed=("settled:C1",))
    assert turns_of(missing.went_back, seen) == [3]


def test_a_field_that_the_feedback_names() -> None:
    seen = scene(*case(1), (call("pay", unit="X", amount=1), OK), FINISH, failed={"report:North": "North: wrong unit"})
    assert turns_of(checkpoint.by_field, seen) == [2]


def test_any_write_where_no_check_names_a_subject() -> None:
    seen = scene(*case(1), FINISH, failed={"same_behaviour": "one result differs"}, passed=("settled:C1",))
    assert turns_of(checkpoint.stray_write, seen) == [1]


def test_a_lookup_of_another_subject_twice_stands_for_the_one_left_out() -> None:
    again = (call("get", case="C1"), {"case": "C1", "amount": 101})
    paid = (call("pay", case="C2", amount=101), OK)
    seen = scene(*case(1), again, paid, *case(3), FINISH, failed={"settled:C2": "C2: wrong amount"}, passed=("settled:C1", "settled:C3"))
    found = {one.turn: one for one in missing.skipped_lookup(seen)}
    assert found[2].detector == "mixed_up"
    assert found[2].weight > found[3].weight


def test_a_subject_that_no_call_named_points_to_the_end() -> None:
    seen = scene(*case(1), FINISH, failed={"settled:C2": "C2: not settled"}, passed=("settled:C1",))
    assert turns_of(missing.untouched, seen) == [2]
    assert turns_of(ending.early_finish, seen) == [2]


def test_a_lookup_that_the_peers_got() -> None:
    seen = scene(
        *case(1),
        *case(2),
        (call("pay", case="C3", amount=102), OK),
        FINISH,
        failed={"settled:C3": "C3: wrong amount"},
        passed=("settled:C1", "settled:C2"),
    )
    assert turns_of(missing.skipped_lookup, seen) == [0, 2, 4]
    assert max(missing.skipped_lookup(seen), key=lambda one: one.weight).turn == 4


def test_a_value_from_nowhere_and_a_value_carried_over() -> None:
    wrong = {"settled:C2": "C2: wrong amount"}
    invented = scene(*case(1), *case(2, amount=555), FINISH, failed=wrong, passed=("settled:C1",))
    assert turns_of(document.unsourced, invented) == [3]
    carried = scene(*case(1), *case(2, amount=101), FINISH, failed=wrong, passed=("settled:C1",))
    assert turns_of(document.foreign, carried) == [3]
    assert turns_of(document.unsourced, carried) == []
    assert turns_of(document.conflicting, carried) == [3]


def test_a_value_from_a_document_out_of_force() -> None:
    old = (call("read", document="D1"), "Status: superseded. Since 1 April D2 is in force. Late payments carry code T19.")
    new = (call("read", document="D2"), "Status: in force. Late payments carry code T44.")
    paid = (call("refer", case="C1", code="T19"), OK)
    seen = scene(old, new, paid, FINISH, failed={"settled:C1": "C1: wrong code"})
    assert turns_of(document.out_of_force, seen) == [0, 2]
    right = scene(old, new, (call("refer", case="C1", code="T44"), OK), FINISH, failed={"settled:C1": "C1: wrong code"})
    assert turns_of(document.out_of_force, right) == []


def test_refusals() -> None:
    """Unreadable, refused, refused for good, and blocked by a hook."""
    block = Firing(component="hook:guard", event="before_finish", effect="block_call", detail="C2 is open")
    seen = scene(
        *case(1),
        (None, "no tool call found"),
        (call("pay", case="C2", amount=1), "bad arguments"),
        FINISH,
        FINISH,
        failed={"settled:C2": "C2: not settled"},
        refused=(3,),
        firings={4: (block,)},
    )
    assert turns_of(refusal.refused, seen) == [2, 3]
    assert turns_of(refusal.refused_write, seen) == [3]
    assert turns_of(refusal.blocked_finish, seen) == [4, 5]


def test_repetition_and_no_end() -> None:
    seen = scene(*case(1), case(1)[0], failed={"settled:C2": "C2: not settled"}, status=Status.MAX_TURNS)
    assert turns_of(repetition.repeated, seen) == [2]
    assert turns_of(ending.no_finish, seen) == [2]


@pytest.mark.parametrize("depth", list(Depth))
def test_a_clean_episode_has_no_suspects(depth: Depth) -> None:
    clean = scene(*case(1), *case(2), FINISH, failed={}, passed=("settled:C1", "settled:C2"))
    assert [list(detector(clean)) for detector in DETECTORS[depth]] == [[]] * len(DETECTORS[depth])


def test_each_turn_is_named_once_by_its_strongest_reason() -> None:
    seen = scene(*case(1), *case(2, amount=101), FINISH, failed={"settled:C2": "C2: wrong amount"}, passed=("settled:C1",))
    found = strongest(seen, limit=9, depth=Depth.FULL)
    assert len({one.turn for one in found}) == len(found)
    assert found[0].turn == 3
    assert [one.weight for one in found] == sorted((one.weight for one in found), reverse=True)
    assert strongest(seen, limit=1, depth=Depth.FULL) == found[:1]
