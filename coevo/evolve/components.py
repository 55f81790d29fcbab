"""Source text of harness components that operators write: hooks, composite tools, playbook lines.

Plain functions from names to source. The catalogue proposer fills them with what it mined from episodes; the pretraining of the
embedded model fills them with random names, so that a model knows how such components speak, and no operator is known by name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = [
    "cycle_breaker",
    "example",
    "finish_guard",
    "finish_reminder",
    "loop_breaker",
    "playbook",
    "recipe_tool",
    "todo_note",
    "with_playbook",
    "with_sentence",
]

_TRACK = """
LISTING = {listing!r}
SETTLING = {settling!r}
FIELD = {field!r}


def items_of(result):
    found = []
    for value in result.values() if isinstance(result, dict) else [result]:
        if isinstance(value, list):
            found = found + [item.get(FIELD) if isinstance(item, dict) else item for item in value]
    return [item for item in found if isinstance(item, str)]


def track(event, state):
    listed = state.get("listed")
    settled = state.get("settled", [])
    call = event["call"]
    if not event["error"]:
        if call["name"] == LISTING:
            known = listed or []
            listed = known + [item for item in items_of(event["result"]) if item not in known]
        elif call["name"] in SETTLING:
            for value in call["arguments"].values():
                settled = settled + [str(item) for item in (value if isinstance(value, list) else [value])]
    return {{"listed": listed, "settled": settled}}


def still_open(state):
    return [item for item in state.get("listed") or [] if item not in state.get("settled", [])]

"""

_COUNT_OPEN = """
def after_tool(event, state):
    state = track(event, state)
    if state["listed"] is None:
        return {"state": state}
    left = still_open(state)
    return {"state": state, "note": "todo " + (" ".join(left) if left else "none")}
"""

_GUARD = """
def after_tool(event, state):
    return {"state": track(event, state)}


def before_finish(event, state):
    if state.get("listed") is None:
        return {"block_call": "blocked todo list"}
    left = still_open(state)
    if left:
        return {"block_call": "blocked todo " + " ".join(left)}
    return None
"""

_REMIND = """
def after_tool(event, state):
    return {"state": track(event, state)}


def before_model(event, state):
    if state.get("listed") and not still_open(state):
        return {"inject_message": "todo none , finish"}
    return None
"""

_CYCLE = """SETTLING = {settling!r}
KEPT = 20


def before_tool(event, state):
    seen = state.get("seen", [])
    call = event["call"]
    if len([one for one in seen if one == call]) >= {times}:
        return {{"block_call": "same call again"}}
    return {{"state": {{"seen": (seen + [call])[-KEPT:]}}}}


def after_tool(event, state):
    if event["error"] or event["call"]["name"] not in SETTLING:
        return None
    return {{"state": {{"seen": []}}}}
"""

_LOOP = """def before_tool(event, state):
    call = event["call"]
    if state.get("last") == call:
        return {"block_call": "repeat"}
    return {"state": {"last": call}}
"""


def todo_note(listing: str, settling: Sequence[str], *, field: str = "") -> str:
    """Hook that appends `todo A B` (or `todo none`) to every observation once `listing` has named the items.

    Items are the strings of the lists that `listing` returns; where a list holds objects, their `field`. Further pages add to the first.
    """
    return _TRACK.format(listing=listing, settling=tuple(sorted(settling)), field=field).lstrip() + _COUNT_OPEN


def finish_guard(listing: str, settling: Sequence[str], *, field: str = "") -> str:
    """Hook that refuses `finish` while listed items are unsettled, or nothing was listed; items as in `todo_note`."""
    return _TRACK.format(listing=listing, settling=tuple(sorted(settling)), field=field).lstrip() + _GUARD


def loop_breaker() -> str:
    """Hook that refuses a call equal to the one before."""
    return _LOOP


def finish_reminder(listing: str, settling: Sequence[str], *, field: str = "") -> str:
    """Hook that says before each turn that nothing is left once all listed items are settled; items as in `todo_note`."""
    return _TRACK.format(listing=listing, settling=tuple(sorted(settling)), field=field).lstrip() + _REMIND


def cycle_breaker(settling: Sequence[str], *, times: int = 2) -> str:
    """Hook that refuses a call made `times` times already since the last settling call, whatever stood between."""
    return _CYCLE.format(settling=tuple(sorted(settling)), times=times)


def example(calls: Sequence[tuple[str, Sequence[str]]]) -> str:
    """`example survey shelf , open_book book , finish .`: tools with the names of their arguments, never the values."""
    return f"example {' , '.join(' '.join([tool, *arguments]) for tool, arguments in calls)} ."


def with_sentence(prompt: str, sentence: str) -> str:
    """The prompt with a sentence at its end, once."""
    bare = prompt.rstrip()
    return f"{bare}\n" if sentence in bare else f"{bare} {sentence}\n"


def recipe_tool(name: str, parameter: str, read: str, then: str, fields: Sequence[str]) -> str:
    """Composite tool `name(parameter)`: `read` the item, then call `then` with `fields` of what was read; returns both results merged."""
    arguments = ", ".join(f"{field}=record[{field!r}]" for field in fields)
    return (
        f"def {name}({parameter}: str) -> dict:\n"
        f'    """{read} and {then} in one step"""\n'
        f"    record = {read}({parameter}={parameter})\n"
        f"    outcome = {then}({arguments})\n"
        "    return {**record, **outcome}\n"
    )


def playbook(steps: Sequence[tuple[str, str]]) -> str:
    """`rules after A do B . after B do C .`"""
    return " ".join(["rules", *(f"after {first} do {second} ." for first, second in steps)])


def with_playbook(prompt: str, steps: Sequence[tuple[str, str]]) -> str:
    """The prompt with its playbook replaced by (or extended with) these steps; no steps removes it."""
    bare = re.sub(r"\s*\brules( after \S+ do \S+ \.)+", "", prompt).rstrip()
    return f"{bare} {playbook(steps)}\n" if steps else f"{bare}\n"
