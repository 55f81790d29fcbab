"""Source text of hooks that repair arguments: ids that were miscopied, and sums that differ from what was computed."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["repair_ids", "repair_value"]

_IDS = """import re

MOST = 300


def words_of(value):
    if isinstance(value, str):
        return [word for word in re.findall("[A-Za-z0-9_-]+", value) if re.search("[0-9]", word)]
    found = []
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        found = found + words_of(item)
    return found


def near(one, other):
    if abs(len(one) - len(other)) > 1:
        return False
    start = 0
    while start < min(len(one), len(other)) and one[start] == other[start]:
        start = start + 1
    rest, more = one[start:], other[start:]
    return rest[1:] == more[1:] or rest == more[1:] or rest[1:] == more


def repaired(value, seen):
    if isinstance(value, list):
        return [repaired(item, seen) for item in value]
    if not isinstance(value, str) or value in seen or words_of(value) != [value]:
        return value
    close = [word for word in seen if near(value, word)]
    return close[0] if len(close) == 1 else value


def remember(value, state):
    seen = state.get("seen", [])
    fresh = [word for word in words_of(value) if word not in seen]
    return {"seen": (seen + list(dict.fromkeys(fresh)))[:MOST]}


def on_start(event, state):
    return {"state": remember(event["instruction"], state)}


def after_tool(event, state):
    return None if event["error"] else {"state": remember(event["result"], state)}


def before_tool(event, state):
    call = event["call"]
    arguments = {name: repaired(value, state.get("seen", [])) for name, value in call["arguments"].items()}
    if arguments != call["arguments"]:
        return {"rewrite_call": {"name": call["name"], "arguments": arguments}}
    return None
"""

_VALUE = """
ITEM = {item!r}
FIELD = {field!r}
ARGUMENT = {argument!r}
SETTLING = {settling!r}


def after_tool(event, state):
    if event["error"]:
        return None
    values = state.get("values", {{}})
    item = event["call"]["arguments"].get(ITEM, state.get("item"))
    if not isinstance(item, str):
        item = None
    result = event["result"]
    value = result.get(FIELD) if isinstance(result, dict) else None
    if item is not None and isinstance(value, (int, float)):
        values = {{**values, item: value}}
    return {{"state": {{"item": item, "values": values}}}}


def before_tool(event, state):
    call = event["call"]
    known = state.get("values", {{}}).get(str(call["arguments"].get(ITEM)))
    if call["name"] not in SETTLING or known is None or ARGUMENT not in call["arguments"]:
        return None
    if call["arguments"][ARGUMENT] == known:
        return None
    return {{"rewrite_call": {{"name": call["name"], "arguments": {{**call["arguments"], ARGUMENT: known}}}}}}
"""


def repair_ids() -> str:
    """Hook that replaces an id which no observation carried by the one carried id that is a single edit away, if there is exactly one."""
    return _IDS


def repair_value(*, item: str, field: str, argument: str, settling: Sequence[str]) -> str:
    """Hook that puts the last computed value of an item into the call that settles it.

    Args:
        item: Argument name that says which item a call is about; a computation without it belongs to the item before.
        field: Field of a result that carries the value.
        argument: Argument of the settling calls that must equal it.
        settling: Tools whose calls are repaired.
    """
    return _VALUE.format(item=item, field=field, argument=argument, settling=tuple(sorted(settling))).lstrip()
