"""Source text of hooks that repair arguments: ids that were miscopied, sums that differ from what was computed, wrong types and names."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["repair_ids", "repair_types", "repair_value"]

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

_TYPES = """import re

TYPES = {types!r}


def fixed(value, kind):
    if isinstance(value, bool):
        return value
    if kind == "string" and isinstance(value, int):
        return str(value)
    if kind not in ("integer", "number") or not isinstance(value, str):
        return value
    text = value.replace(",", "").strip().strip("$").strip()
    if re.fullmatch("-?[0-9]+", text):
        return int(text)
    if kind == "number" and re.fullmatch("-?[0-9]+[.][0-9]+", text):
        return float(text)
    return value


def before_tool(event, state):
    call = event["call"]
    kinds = {{entry[1]: entry[2] for entry in TYPES if entry[0] == call["name"]}}
    if not kinds:
        return None
    unknown = [name for name in call["arguments"] if name not in kinds]
    missing = [name for name in kinds if name not in call["arguments"]]
    arguments = {{}}
    for name, value in call["arguments"].items():
        target = missing[0] if name in unknown and len(unknown) == 1 and len(missing) == 1 else name
        arguments[target] = fixed(value, kinds.get(target))
    if arguments != call["arguments"]:
        return {{"rewrite_call": {{"name": call["name"], "arguments": arguments}}}}
    return None
"""


def repair_ids() -> str:
    """Hook that replaces an id which no observation carried by the one carried id that is a single edit away, if there is exactly one."""
    return _IDS


def repair_types(types: Sequence[tuple[str, str, str]]) -> str:
    """Hook that writes numbers as numbers and text as text, and gives the one unknown argument of a call the name of the one missing.

    Args:
        types: (tool, argument, JSON type) of every argument of the tools to repair.
    """
    return _TYPES.format(types=tuple(types))


def repair_value(*, item: str, field: str, argument: str, settling: Sequence[str]) -> str:
    """Hook that puts the last computed value of an item into the call that settles it.

    Args:
        item: Argument name that says which item a call is about; a computation without it belongs to the item before.
        field: Field of a result that carries the value.
        argument: Argument of the settling calls that must equal it.
        settling: Tools whose calls are repaired.
    """
    return _VALUE.format(item=item, field=field, argument=argument, settling=tuple(sorted(settling))).lstrip()
