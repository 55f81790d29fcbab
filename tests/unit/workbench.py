"""A scripted proposer for tests: it reads like a model would (list, turns, harness) and writes two edits of the shelf harness."""

from __future__ import annotations

from coevo.chat import ModelRequest, ToolCall
from coevo.formats import chat_format
from coevo.models.scripted import turn_number

__all__ = ["GUARD", "TURNS", "thoughtful"]

FORMAT = chat_format("hermes")

GUARD = """def after_tool(event, state):
    call = event["call"]
    if not event["error"] and call["name"] == "survey":
        state["open"] = event["result"]["books"]
    if not event["error"] and call["name"] in ("shelve", "discard"):
        state["open"] = [book for book in state.get("open", []) if book != call["arguments"]["book"]]
    return {"state": state}


def before_finish(event, state):
    if state.get("open"):
        return {"block_call": "still open: " + " ".join(state["open"])}
"""
_LEAKY = {"component": "prompt", "text": "you keep books . begin with bk-2116 and bk-5012 ."}

TURNS: tuple[tuple[str, ToolCall], ...] = (
    ("First I look at what failed.", ToolCall("list_episodes", {})),
    ("", ToolCall("read_turns", {"episode": "f1"})),
    ("", ToolCall("read_turns", {"episode": "s1", "first": 0, "count": 3})),
    ("", ToolCall("read_harness", {})),
    ("", ToolCall("read_past_edits", {})),
    (
        "It finishes with books open.",
        ToolCall("write_component", {"component": "hook:guard", "text": "def before_finish(event):\n    pass"}),
    ),
    ("The signature was wrong.", ToolCall("write_component", {"component": "hook:guard", "text": GUARD})),
    (
        "",
        ToolCall(
            "submit_edit",
            {
                "mechanism": "finish guard",
                "hypothesis": "Episodes finish while books are open; naming the open ones keeps the agent at work.",
                "evidence": ["f1:0", "f2:1"],
                "predicted_fixes": ["f1", "f2"],
                "predicted_regressions": ["s2"],
                "risk": "A book that can't be settled blocks the episode until its turns run out.",
            },
        ),
    ),
    ("Now the prompt.", ToolCall("write_component", {"component": "prompt", "text": "you keep books . after open_book do multiply .\n"})),
    (
        "",
        ToolCall(
            "submit_edit",
            {
                "mechanism": "playbook",
                "hypothesis": "Prices are guessed; the prompt says to compute them.",
                "evidence": ["f4:1"],
                "predicted_fixes": ["f4", "f5"],
                "risk": "Discarded books are computed too.",
            },
        ),
    ),
    ("Nothing more.", ToolCall("finish", {})),
)


def thoughtful(request: ModelRequest) -> str:
    """The turn at this point of the conversation; with a trimmed context the number of turns says less, so finish comes again."""
    said, call = TURNS[min(turn_number(request), len(TURNS) - 1)]
    return FORMAT.render_turn(said, call, request.tools)
