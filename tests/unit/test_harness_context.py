"""Promises of the context policy: head and the last turns stay, indices point at what was sent, the default changes nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coevo.chat import Message, Role
from coevo.harness.context import CUT_MARK, REPEAT_MARK, ContextPolicy, apply_policy, cut_text

HEAD = [Message(Role.SYSTEM, "s"), Message(Role.USER, "u")]


def talk(*observations: str) -> list[Message]:
    messages = list(HEAD)
    for turn, text in enumerate(observations):
        messages += [Message(Role.ASSISTANT, f"a{turn}"), Message(Role.TOOL, text)]
    return messages


def contents(policy: ContextPolicy, messages: list[Message]) -> list[str]:
    return [message.content for message in apply_policy(policy, messages).messages]


def test_last_turns() -> None:
    policy = ContextPolicy(keep_last_turns=2)
    assert not apply_policy(policy, talk("x", "y")).edited
    view = apply_policy(policy, talk("x", "y", "z"))
    assert [message.content for message in view.messages] == ["s", "u", "a1", "y", "a2", "z"]
    assert view.index == (0, 1, 4, 5, 6, 7)
    assert view.edited
    assert view.touched == (2, 3)


def test_injected_messages_belong_to_the_head_or_their_turn() -> None:
    messages = [*HEAD, Message(Role.USER, "start"), *talk("x", "y")[2:], Message(Role.USER, "hint")]
    assert contents(ContextPolicy(keep_last_turns=1), messages) == ["s", "u", "start", "a1", "y", "hint"]


def test_pins_keep_their_turn() -> None:
    policy = ContextPolicy(keep_last_turns=1, pins=("KEY",))
    assert contents(policy, talk("x", "a KEY", "y", "z")) == ["s", "u", "a1", "a KEY", "a3", "z"]


def test_repeats_and_cuts() -> None:
    long = "abcdefghij" * 5
    policy = ContextPolicy(max_observation_chars=30, elide_repeats=True)
    view = apply_policy(policy, talk(long, "ok", long, "ok"))
    assert [message.content for message in view.messages][3::2] == [long[: 30 - len(CUT_MARK)] + CUT_MARK, "ok", REPEAT_MARK, "ok"]
    assert view.touched == (3, 7)
    assert view.edited


def test_a_repeat_comes_back_when_its_first_copy_leaves() -> None:
    long = "abcdefghij" * 5
    assert contents(ContextPolicy(keep_last_turns=1, elide_repeats=True), talk(long, long)) == ["s", "u", "a1", long]


def test_cut_text() -> None:
    assert cut_text("abc", None) == cut_text("abc", 3) == "abc"
    assert len(cut_text("a" * 100, 20)) == 20


POLICIES = st.builds(
    ContextPolicy,
    keep_first=st.integers(2, 5),
    keep_last_turns=st.none() | st.integers(1, 4),
    max_observation_chars=st.none() | st.integers(20, 40),
    elide_repeats=st.booleans(),
    pins=st.lists(st.sampled_from(["k", "zz"]), max_size=2).map(tuple),
)
TALKS = st.lists(st.tuples(st.sampled_from(list(Role)[1:]), st.text("kz", max_size=60)), max_size=14).map(
    lambda items: [*HEAD, *(Message(role, text) for role, text in items)]
)


@given(POLICIES, TALKS)
def test_properties(policy: ContextPolicy, messages: list[Message]) -> None:
    view = apply_policy(policy, messages)
    assert len(view.messages) == len(view.index)
    assert list(view.index) == sorted(set(view.index))
    assert view.index[:2] == (0, 1)
    assert view.edited == (list(view.messages) != messages)
    for message, position in zip(view.messages, view.index, strict=True):
        assert message.role is messages[position].role
        assert message == messages[position] or (message.role is Role.TOOL and position in view.touched)
    if messages[-1].role is not Role.SYSTEM:
        assert view.index[-1] == len(messages) - 1, "the newest message is always in view"
    assert apply_policy(policy, messages) == view


@given(TALKS)
def test_the_default_policy_sends_everything(messages: list[Message]) -> None:
    view = apply_policy(ContextPolicy(), messages)
    assert list(view.messages) == messages
    assert not view.edited
