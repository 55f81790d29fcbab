"""Datasets. Promises:

1. The arms `correction` and `imitation` under the quickstart's settings are the bytes that they were when the method was first measured.
2. In every arm a row's prompt is what was seen at its turn, its loss covers exactly that turn, and no row is there twice (I7).
3. All arms have equal rows; trained tokens come within the tolerance where an arm has rows to exchange, and what stays outside is told.
4. The share and the choice of the weak model's own turns are what the configuration says.
5. Each control differs from `correction` in the one thing that its name says.
6. Failed episodes give rewritten turns or turns before the failing one, nothing else (I2); other streams give nothing (I8).
7. Rows that would be cut are counted; more than 5 % of them is refused with a length that suffices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo.config import Arm, DatasetConfig, load_config
from coevo.dataset.arms import Material, Takeover, arm_rows, chosen_rewrite, own_turns
from coevo.dataset.balance import equalize, token_ratios, trained_tokens
from coevo.dataset.guard import check_rows, fit_rows, require_disjoint
from coevo.errors import ConfigError, StoreError
from coevo.formats.mini import END, MiniFormat
from coevo.identity import content_hash
from coevo.records import CallRecord, Correction, CorrectionCandidate, Episode, PromptOrigin, TrainingRow
from tests.unit.rows import CORRECTIONS, EXPERTS, FAILED, SUCCEEDED, Letters, a_correction, an_episode, say

QUICKSTART = load_config(Path(__file__).parents[2] / "jobs/configs/quickstart.yaml").dataset
LETTERS, FORMAT = Letters(), MiniFormat()
BY_ID = {episode.id: episode for episode in (*FAILED, *SUCCEEDED, *EXPERTS)}
TAKEN = [
    Takeover(an_episode(300 + number, success=number % 3 != 0, calls=["look", "pay", "escalate", "finish"], model="expert"), 2)
    for number in range(30)
]
MATERIAL = Material(
    corrections=CORRECTIONS,
    failed={episode.id: episode for episode in FAILED},
    successes=SUCCEEDED,
    experts=EXPERTS,
    unverified=[a_correction(episode, 2, verified=False) for episode in FAILED],
    at_random=[a_correction(episode, number % 4, verified=False, offers=number % 5 and 1) for number, episode in enumerate(FAILED)],
    at_last=[a_correction(episode, 3, verified=False) for episode in FAILED],
    takeovers=TAKEN,
)


def rows_of(arm: Arm, *, seed: int = 0, material: Material = MATERIAL, **settings: object) -> list[TrainingRow]:
    config = DatasetConfig.model_validate({"rows": 60, "self_success_share": 0.25, **settings})
    return arm_rows(arm, material, tokenizer=LETTERS, chat_format=FORMAT, config=config, seed=seed)


def texts(rows: Sequence[TrainingRow], source: str) -> set[str]:
    return {LETTERS.decode(row.completion_token_ids) for row in rows if row.source == source}


def digest(rows: Sequence[TrainingRow]) -> str:
    return content_hash(b"\n".join(row.to_bytes() for row in rows))


@pytest.mark.parametrize(
    ("seed", "correction", "imitation"), [(0, "084c0a4ca2ca4b0c", "6c1ad034fdc4d7b9"), (3, "205eeda2166a0c2c", "f63b1864e049ff09")]
)
def test_the_first_arms_keep_their_bytes(seed: int, correction: str, imitation: str) -> None:
    """Promise 1."""
    made = {"tokenizer": LETTERS, "chat_format": FORMAT, "config": QUICKSTART, "seed": seed}
    corrected = arm_rows(Arm.CORRECTION, Material(corrections=CORRECTIONS, failed=MATERIAL.failed, successes=SUCCEEDED), **made)  # type: ignore[arg-type]
    arms = equalize({"correction": corrected, "imitation": arm_rows(Arm.IMITATION, Material(experts=EXPERTS), **made)})  # type: ignore[arg-type]
    assert {name: len(rows) for name, rows in arms.items()} == {"correction": 85, "imitation": 85}
    assert (digest(arms["correction"])[:16], digest(arms["imitation"])[:16]) == (correction, imitation)


@pytest.mark.parametrize("arm", Arm)
def test_a_row_is_one_turn_at_the_prompt_that_was_seen(arm: Arm) -> None:
    """Promises 2 and 6; equal settings give equal rows, another seed does not."""
    rows = rows_of(arm)
    assert rows
    check_rows(rows, tokenizer=LETTERS, chat_format=FORMAT, max_length=10_000)
    episodes = BY_ID | {one.episode.id: one.episode for one in TAKEN}
    for row in rows:
        episode = episodes[row.episode_id]
        assert row.arm == arm
        assert row.prompt_token_ids == episode.prompt_token_ids(row.turn)
        assert (row.loss_span.start, row.loss_span.stop) == (
            len(row.prompt_token_ids),
            len(row.prompt_token_ids + row.completion_token_ids),
        )
        weak = row.source in ("rewritten_turn", "self_success", "before_the_failure")
        assert (row.prompt_origin is PromptOrigin.SAMPLED) == weak
        assert episode.success or row.source in ("rewritten_turn", "before_the_failure")
    assert digest(rows) == digest(rows_of(arm))
    assert digest(rows) != digest(rows_of(arm, seed=1))


def test_other_streams_give_no_rows() -> None:
    """Promise 6."""
    for stream in ("selection", "test"):
        foreign = an_episode(7, success=True, calls=["look", "finish"], stream=stream)
        with pytest.raises(ConfigError, match="search stream"):
            rows_of(Arm.IMITATION, material=replace(MATERIAL, experts=[foreign]))
    require_disjoint(["a", "b"], ["c"])
    with pytest.raises(StoreError, match="evaluation instances"):
        require_disjoint(["a", "b"], ["c", "b"])


@pytest.mark.parametrize(("choice", "share"), [("none", 0.5), ("random", 0.12), ("random", 0.5), ("contrast", 0.4)])
def test_own_turns_are_mixed_as_configured(choice: str, share: float) -> None:
    """Promise 4: contrast takes the kind of call that the failed turns made, random any."""
    for arm in (Arm.CORRECTION, Arm.RANDOM_TURN, Arm.EXPERT_FINISH, Arm.MASK_FAILED):
        rows = rows_of(arm, self_success=choice, self_success_share=share)
        own = [row for row in rows if row.source == "self_success"]
        wanted = 0.0 if choice == "none" else share
        assert len(own) / len(rows) == pytest.approx(wanted, abs=1 / len(rows))
        calls = {BY_ID[row.episode_id].turns[row.turn].call.name for row in own}  # type: ignore[union-attr]
        assert calls == {"none": set(), "random": {"look", "pay", "escalate", "finish"}, "contrast": {"pay"}}[choice] or len(own) < 10
        if choice == "contrast":
            assert calls == {"pay"}


def test_confirmed_turns_are_the_expert_s_where_it_acts_the_same() -> None:
    """Promise 4: the kept call with the expert's sentence; where the expert would act otherwise, nothing; without a sentence in the arm
    that has none.
    """
    config = DatasetConfig(rows=60, self_success_share=0.5, self_success="confirmed")
    chosen = own_turns(MATERIAL, 40, tokenizer=LETTERS, chat_format=FORMAT, config=config, seed=0)
    assert len(chosen) == len({(episode.id, turn) for episode, turn in chosen}) == 40
    assert all(episode.success for episode, _ in chosen)
    assert {episode.turns[turn].call.name for episode, turn in chosen} == {"pay"}  # type: ignore[union-attr]
    agreed = [an_answer(episode, turn, name="pay") for episode, turn in chosen[::2]]
    other = [an_answer(episode, turn, name="look") for episode, turn in chosen[1::2]]
    material = replace(MATERIAL, answered=[*agreed, *other, agreed[0].model_copy(update={"candidates": ()})])
    settings = {"self_success": "confirmed", "self_success_share": 0.5, "material": material}
    kept = {(one.episode_id, one.turn): one for one in agreed}
    for arm in (Arm.CORRECTION, Arm.SELF_SUCCESS, Arm.CORRECTION_CALL_ONLY):
        own = [row for row in rows_of(arm, **settings) if row.source != "rewritten_turn"]  # type: ignore[arg-type]
        assert len(own) == len(agreed)
        for row in own:
            answer = kept[row.episode_id, row.turn]
            strategy = "" if arm is Arm.CORRECTION_CALL_ONLY else answer.candidates[0].strategy
            assert row.source == "confirmed_turn"
            assert row.prompt_token_ids == BY_ID[row.episode_id].prompt_token_ids(row.turn)
            assert LETTERS.decode(row.completion_token_ids) == say(answer.candidates[0].call, strategy) + END


def test_any_turn_may_be_asked_about() -> None:
    """Promise 4: `confirmed_random` asks about turns of every kind, and trains on those that the expert confirms."""
    config = DatasetConfig(rows=60, self_success_share=0.5, self_success="confirmed_random")
    chosen = own_turns(MATERIAL, 40, tokenizer=LETTERS, chat_format=FORMAT, config=config, seed=0)
    assert len(chosen) == len({(episode.id, turn) for episode, turn in chosen}) == 40
    called = {(episode.id, turn): episode.turns[turn].call.name for episode, turn in chosen}  # type: ignore[union-attr]
    assert set(called.values()) == {"look", "pay", "escalate", "finish"}
    agreed = [an_answer(episode, turn, name=called[episode.id, turn]) for episode, turn in chosen[::2]]
    other = [an_answer(episode, turn, name="nothing") for episode, turn in chosen[1::2]]
    settings = {"self_success": "confirmed_random", "self_success_share": 0.5, "material": replace(MATERIAL, answered=[*agreed, *other])}
    own = [row for row in rows_of(Arm.CORRECTION, **settings) if row.source == "confirmed_turn"]  # type: ignore[arg-type]
    assert {(row.episode_id, row.turn) for row in own} == {(one.episode_id, one.turn) for one in agreed}


def an_answer(episode: Episode, turn: int, *, name: str) -> Correction:
    """The expert at one of the weak model's own turns: its call, or another tool with the same arguments."""
    kept = episode.turns[turn].call
    assert kept is not None
    call = CallRecord(name=name, arguments=kept.arguments)
    offered = CorrectionCandidate(strategy="amount is due", call=call, text=say(call, "amount is due"), schema_valid=True)
    return a_correction(episode, turn, verified=False).model_copy(update={"candidates": (offered,)})


def test_contrast_keeps_the_proportions_of_the_failed_decisions() -> None:
    """Promise 4: three corrections of a rare decision give it its share of the own turns and no more."""
    rare = [a_correction(episode, 0, verified=True) for episode in FAILED[:3]]
    mixed = replace(MATERIAL, corrections=[*rare, *(one for one in CORRECTIONS if one.verified)])
    rows = rows_of(Arm.CORRECTION, material=mixed, self_success="contrast", self_success_share=0.4)
    calls = Counter(BY_ID[row.episode_id].turns[row.turn].call.name for row in rows if row.source == "self_success")  # type: ignore[union-attr]
    failed = Counter(MATERIAL.failed[one.episode_id].turns[one.turn].call.name for one in mixed.verified)  # type: ignore[union-attr]
    assert set(calls) == set(failed) == {"look", "pay"}
    assert calls["look"] == pytest.approx(calls.total() * failed["look"] / failed.total(), abs=1)


def test_controls_differ_in_what_their_names_say() -> None:
    """Promise 5."""
    verified = {one.episode_id: one.turn for one in CORRECTIONS if one.verified}
    correction = rows_of(Arm.CORRECTION)
    assert all(verified[row.episode_id] == row.turn for row in correction if row.source == "rewritten_turn")
    assert texts(correction, "rewritten_turn") == {" step 0<|call|> escalate( E1)<|end|>", " step 0<|call|> escalate( E2)<|end|>"}
    assert texts(rows_of(Arm.CORRECTION_CALL_ONLY), "rewritten_turn") == {"<|call|> escalate( E1)<|end|>", "<|call|> escalate( E2)<|end|>"}
    unverified = [row for row in rows_of(Arm.CORRECTION_UNVERIFIED, rows=80) if row.source == "rewritten_turn"]
    assert not {row.episode_id for row in unverified} <= set(verified)
    assert {row.turn for row in rows_of(Arm.LAST_TURN) if row.source == "rewritten_turn"} == {3}
    assert {row.turn for row in rows_of(Arm.RANDOM_TURN, self_success="none") if row.source == "rewritten_turn"} == {0, 1, 2, 3}
    assert {row.source for row in rows_of(Arm.SELF_SUCCESS)} == {"self_success"}
    masked = [row for row in rows_of(Arm.MASK_FAILED) if row.source == "before_the_failure"]
    assert masked
    assert all(row.turn < verified[row.episode_id] for row in masked)
    finished = [row for row in rows_of(Arm.EXPERT_FINISH) if row.source == "expert_finish"]
    assert {row.turn for row in finished} == {2, 3}


def test_whole_episodes_stay_whole() -> None:
    """Promise 5: at most the last episode of `imitation_full` is cut, and both kinds are there."""
    rows = rows_of(Arm.IMITATION_FULL, rows=63)
    assert len(rows) == 63
    assert {row.source for row in rows} == {"expert_turn", "self_success"}
    turns: dict[str, int] = {}
    for row in rows:
        turns[row.episode_id] = turns.get(row.episode_id, 0) + 1
    partial = [id for id, count in turns.items() if count != len(BY_ID[id].turns)]
    assert partial in ([], [rows[-1].episode_id])


def test_the_rewrite_is_selected_as_configured() -> None:
    """The record's own choice is the likeliest; the other rule takes what gains most, among the sound ones only."""
    correction = a_correction(FAILED[0], 1, offers=3)
    assert chosen_rewrite(correction, "lowest_nll").strategy == "step 0"
    assert chosen_rewrite(correction, "highest_gain").strategy == "step 2"
    refused = correction.candidates[2].model_copy(update={"executed": False})
    mended = correction.model_copy(update={"candidates": (*correction.candidates[:2], refused)})
    assert chosen_rewrite(mended, "highest_gain").strategy == "step 1"
    material = replace(MATERIAL, corrections=[a_correction(episode, 1, offers=3) for episode in FAILED])
    most = rows_of(Arm.CORRECTION_HIGHEST_GAIN, material=material)
    assert [row.completion_token_ids for row in most] == [
        row.completion_token_ids for row in rows_of(Arm.CORRECTION, material=material, selection="highest_gain")
    ], "the arm is that rule, with the same own turns"
    assert " step 2<|call|>" in next(iter(texts(rows_of(Arm.CORRECTION, material=material, selection="highest_gain"), "rewritten_turn")))


def sized(lengths: Sequence[int]) -> list[TrainingRow]:
    row = rows_of(Arm.SELF_SUCCESS)[0]
    start = len(row.prompt_token_ids)
    return [
        row.model_copy(
            update={
                "turn": number,
                "completion_token_ids": (100,) * length,
                "loss_span": row.loss_span.model_copy(update={"stop": start + length}),
            }
        )
        for number, length in enumerate(lengths)
    ]


@given(st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=30), min_size=2, max_size=4), st.floats(0.01, 0.5))
def test_arms_are_equal_in_rows_and_near_in_tokens(lengths: list[list[int]], tolerance: float) -> None:
    """Promise 3: rows are exchanged, never made up or doubled, never further away than the plain cut, and not where none need be."""
    arms = {f"arm{number}": sized(each) for number, each in enumerate(lengths)}
    size = min(len(rows) for rows in arms.values())
    cut = {name: rows[:size] for name, rows in arms.items()}
    out = equalize(arms, token_tolerance=tolerance)
    first = trained_tokens(cut["arm0"])
    for name, rows in out.items():
        assert len(rows) == size
        assert len({row.turn for row in rows}) == size
        assert abs(trained_tokens(rows) - first) <= abs(trained_tokens(cut[name]) - first)
        if abs(trained_tokens(cut[name]) - first) <= round(tolerance * first):
            assert rows == cut[name]
    assert out["arm0"] == cut["arm0"]
    assert token_ratios(out)["arm0"] == 1.0


def test_tokens_come_within_the_tolerance_where_rows_can_be_exchanged() -> None:
    """Promise 3, both ways."""
    arms = {"first": sized([20] * 40), "long": sized([40] * 40 + [2] * 40), "stuck": sized([5] * 40)}
    out = equalize(arms, token_tolerance=0.1)
    ratios = token_ratios(out)
    assert ratios["long"] == pytest.approx(1.0, abs=0.1)
    assert ratios["stuck"] == 0.25


def test_rows_that_would_be_cut_are_counted_or_refused() -> None:
    """Promise 7: at 5 % they are left out and counted, above it the message names lengths that take all or nearly all."""
    rows = sized([10] * 95 + [60] * 5)
    short = len(rows[0].prompt_token_ids) + 10
    fitted = fit_rows(rows, arm="correction", max_length=short)
    assert (len(fitted.rows), fitted.cut) == (95, 5)
    assert fit_rows(rows, arm="correction", max_length=short + 50).cut == 0
    with pytest.raises(ConfigError, match=f"train.max_length={short + 50} takes all of them, {short} all but 5%") as refused:
        fit_rows(rows, arm="correction", max_length=short - 1)
    assert "100 of 100 rows of correction" in str(refused.value)
    with pytest.raises(ConfigError, match=f"6 of 100 rows(.|\n)*train.max_length={short + 50} takes all of them$"):
        fit_rows(sized([10] * 94 + [60] * 6), arm="correction", max_length=short)
