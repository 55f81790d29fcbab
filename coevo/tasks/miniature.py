"""The mechanism that all miniature sizes share, so that one small model can learn every family.

A queue holds two to four items. The listing tool names them, the record tool shows an item's kind and two small numbers, the computing tool
turns the two into a value, and each item is settled once: by the action that takes the value and the code of the item's kind, or by the
other action, which takes the item alone. One kind has no code: that house rule stands in no message. A family gives nouns, tool names,
formula, codes and wordings as a `Miniature`, and its world as a subclass of `MiniWorld`:

    class StockMini(MiniWorld):
        spec = SPEC
        toolbox = SPEC.toolbox()

Everything fits about 1,000 tokens of the embedded tokenizer when every word stands in the family's word list. Limits: values run from 0 to
999 and differ from both numbers (else the computing tool would add nothing); ids are one letter or more and digits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar

import orjson

from coevo.chat import ToolCall, ToolSpec
from coevo.errors import ConfigError, ToolError, nearest
from coevo.identity import derive_seed
from coevo.records import Grade
from coevo.tasks.family import Conduct, Size, Stream, TaskFamily, TaskInstance, World
from coevo.tasks.grading import NOT_SETTLED, grade_settlements
from coevo.tasks.world import MAX_INTEGER, TERMINAL_TOOL, PlainWorld, Toolbox

__all__ = ["Item", "MiniFacts", "MiniTemplate", "MiniWorld", "Miniature", "Number", "Tool", "facts", "open_miniature", "spec_of"]

_DRAWS = 200


@dataclass(frozen=True, slots=True)
class MiniTemplate:
    """One wording with its mix of kinds.

    Attributes:
        wording: Instruction with the slot `{queue}`, ending with ` .`.
        mix: Weight per kind, in the order of `Miniature.kinds`.
        count: Smallest and largest number of items.
    """

    wording: str
    mix: tuple[float, ...]
    count: tuple[int, int] = (2, 4)


@dataclass(frozen=True, slots=True)
class Tool:
    """Name and description of a tool."""

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class Number:
    """A field of the record, argument of the computing tool: `low` to `high`."""

    name: str
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of the queue."""

    id: str
    kind: str
    numbers: tuple[int, int]


def _never(_value: int) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Miniature:
    """What a family adds to the mechanism.

    Attributes:
        family: Name of the family.
        queue, items, item: Nouns: argument of the listing tool, field of its result, argument of all item tools.
        letters: First letters of queue ids (two digits follow) and item ids (three digits follow); they differ.
        kinds: All kinds; the first takes the place of the last item where otherwise nothing would be paid.
        codes: Code per kind; exactly one kind has none and is always settled by `decline`.
        decoys: Codes that are never right.
        numbers: The two numbers of a record.
        formula: The computing tool, on any two integers.
        listing, record, compute, settle, decline: The tools; `finish` comes by itself.
        declined: Sentence that goes with declining the kind without code.
        templates: Name -> wording and mix.
        past: Participle of `settle`, for feedback ("should not have been paid").
        amount, code: Arguments of `settle`.
        steps: What plan-first calls its steps: reading, computing, settling.
        stops: Twist: a value for which an item is declined though its kind has a code.
        stopped: Sentence that goes with it.
    """

    family: str
    queue: str
    items: str
    item: str
    letters: tuple[str, str]
    kinds: tuple[str, ...]
    codes: Mapping[str, str]
    decoys: tuple[str, ...]
    numbers: tuple[Number, Number]
    formula: Callable[[int, int], int]
    listing: Tool
    record: Tool
    compute: Tool
    settle: Tool
    decline: Tool
    declined: str
    templates: Mapping[str, MiniTemplate]
    past: str
    amount: str = "amount"
    code: str = "code"
    steps: tuple[str, str, str] = ("records", "value", "settle")
    stops: Callable[[int], bool] = _never
    stopped: str = ""

    def __post_init__(self) -> None:
        lacking = [kind for kind in self.kinds if kind not in self.codes]
        if len(lacking) != 1 or self.kinds[0] in lacking or self.letters[0] == self.letters[1]:
            raise ConfigError(
                f"the miniature of {self.family} breaks its form",
                seen={"kinds without code": lacking, "letters": self.letters},
                fix="leave out the code of exactly one kind, not the first, and give queue and items different letters",
            )

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The family tools of this size, in the order in which harnesses show them."""
        item: dict[str, Any] = {"type": "string"}
        number: dict[str, Any] = {"type": "integer"}
        code: dict[str, Any] = {"type": "string", "enum": [*self.codes.values(), *self.decoys]}
        return (
            _spec(self.listing, **{self.queue: {"type": "string"}}),
            _spec(self.record, **{self.item: item}),
            _spec(self.compute, **{one.name: number for one in self.numbers}),
            _spec(self.settle, **{self.item: item, self.amount: number, self.code: code}),
            _spec(self.decline, **{self.item: item}),
            _spec(Tool(TERMINAL_TOOL, "all done")),
        )

    @property
    def conduct(self) -> Conduct:
        """The two actions and `finish` write; the code is the agent's own knowledge."""
        return Conduct(frozenset({self.settle.name, self.decline.name, TERMINAL_TOOL}), frozenset({self.code}))

    def toolbox(self) -> Toolbox:
        """The tools, compiled; refusals are short, because the vocabulary is closed."""
        return Toolbox(self.tools, terse=True)

    def value(self, item: Item) -> int:
        """What the computing tool makes of an item's numbers."""
        return self.formula(*item.numbers)

    def is_declined(self, item: Item) -> bool:
        """By the house rule or because its value stops it."""
        return item.kind not in self.codes or self.stops(self.value(item))

    def settling_call(self, item: Item) -> ToolCall:
        """The one right way to settle an item: for the grader, for policies and for demonstrations; no tool calls it."""
        if self.is_declined(item):
            return ToolCall(self.decline.name, {self.item: item.id})
        return ToolCall(self.settle.name, {self.item: item.id, self.amount: self.value(item), self.code: self.codes[item.kind]})


def _spec(tool: Tool, **properties: dict[str, Any]) -> ToolSpec:
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return ToolSpec(tool.name, tool.description, schema)


@dataclass(frozen=True, slots=True)
class MiniFacts:
    """The whole truth about a mini world, for policies and demonstrations only: no tool, harness or proposer gets one.

    Attributes:
        spec: The family's data.
        queue: Letter and two digits.
        items: In list order.
        settled: Item id -> the call that settled it, right or wrong.
    """

    spec: Miniature
    queue: str
    items: tuple[Item, ...]
    settled: MappingProxyType[str, ToolCall]

    @property
    def unsettled(self) -> tuple[Item, ...]:
        """Items still to be handled, in list order."""
        return tuple(one for one in self.items if one.id not in self.settled)

    @property
    def wrong(self) -> tuple[Item, ...]:
        """Items settled wrongly: with one of them, success is out of reach."""
        return tuple(one for one in self.items if one.id in self.settled and self.settled[one.id] != self.spec.settling_call(one))

    def item(self, item: str) -> Item:
        """One item by id. Raises `KeyError`."""
        return {one.id: one for one in self.items}[item]


class MiniWorld(PlainWorld):
    """See the module docstring. `state["settled"]` maps item id -> the call that settled it, `[name, arguments]`."""

    spec: ClassVar[Miniature]

    def __init__(self, instance: TaskInstance, *, instruction: str, queue: str, items: tuple[Item, ...]) -> None:
        self._queue, self._items = queue, items
        data = {self.spec.queue: queue, self.spec.items: [{"id": one.id, **self._shown(one)} for one in items]}
        # Fields in record order, as version 1 of the first miniature had them: `canonical_json` would sort them.
        super().__init__(instance, instruction=instruction, data=orjson.Fragment(orjson.dumps(data)), state={"settled": {}})

    def apply(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Run one tool on bound arguments."""
        spec = self.spec
        if name == spec.listing.name:
            return self._list(arguments[spec.queue])
        if name == spec.record.name:
            item = self._item(arguments[spec.item])
            return {spec.item: item.id, **self._shown(item)}
        if name == spec.compute.name:
            return self._compute(*(arguments[one.name] for one in spec.numbers))
        if name in (spec.settle.name, spec.decline.name):
            return self._settle(name, {one: arguments[one] for one in self.toolbox.signature(name).checks})
        return super().apply(name, arguments)

    def grade(self) -> Grade:
        """One checkpoint per item and `finished`; see `grade_settlements`."""
        settled = self._state["settled"]
        problems = {one.id: _problem(self.spec, self.spec.settling_call(one), settled.get(one.id)) for one in self._items}
        return grade_settlements(problems, finished=self.finished)

    def reveal(self) -> MiniFacts:
        """See `facts`."""
        settled = {item: ToolCall(name, arguments) for item, (name, arguments) in self._state["settled"].items()}
        return MiniFacts(self.spec, self._queue, self._items, MappingProxyType(settled))

    def _shown(self, item: Item) -> dict[str, Any]:
        return {"kind": item.kind, **{one.name: number for one, number in zip(self.spec.numbers, item.numbers, strict=True)}}

    def _list(self, queue: str) -> dict[str, Any]:
        if queue != self._queue:
            raise ToolError(f"unknown {self.spec.queue}")
        return {self.spec.items: [one.id for one in self._items]}

    def _compute(self, first: int, second: int) -> dict[str, Any]:
        value = self.spec.formula(first, second)
        if abs(value) > MAX_INTEGER:
            raise ToolError("bad arguments")
        return {"value": value}

    def _settle(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        settled, item = self._state["settled"], self._item(arguments[self.spec.item]).id
        if item in settled:
            raise ToolError("already settled")
        settled[item] = [name, arguments]
        return {"ok": True}

    def _item(self, item: str) -> Item:
        for one in self._items:
            if one.id == item:
                return one
        raise ToolError(f"unknown {self.spec.item}")


def _problem(spec: Miniature, expected: ToolCall, settled: list[Any] | None) -> str | None:
    """What is wrong, without the answer; None when nothing is."""
    if settled is None:
        return NOT_SETTLED
    name, arguments = settled
    if name != expected.name:
        return f"should {'not ' if name == spec.settle.name else ''}have been {spec.past}"
    if name == spec.settle.name and arguments[spec.amount] != expected.arguments[spec.amount]:
        return f"wrong {spec.amount}"
    return None if arguments == expected.arguments else f"{spec.past} with a wrong {spec.code}"


def facts(world: World) -> MiniFacts:
    """Look behind the tools of a mini world. Raises `ConfigError` for a world of another kind."""
    if not isinstance(world, MiniWorld):
        raise ConfigError("only a mini world has mini facts", seen=type(world).__name__, fix="open an instance of size mini")
    return world.reveal()


def spec_of(family: TaskFamily) -> Miniature:
    """The miniature that a family's size `mini` is. Raises `ConfigError` where that size has a mechanism of its own."""
    return facts(family.open(family.instance(Stream.PRETRAIN, 0, Size.MINI))).spec


def open_miniature(kind: type[MiniWorld], instance: TaskInstance) -> MiniWorld:
    """Generate and open one instance. Raises `ConfigError` for an unknown template."""
    spec = kind.spec
    template = spec.templates.get(instance.template)
    if template is None:
        raise ConfigError(f"unknown {spec.family} template", seen=instance.template, fix=nearest(instance.template, spec.templates))
    random = Random(derive_seed(instance.family, instance.size, instance.template, instance.stream, instance.seed))
    queue = f"{spec.letters[0]}{random.randint(10, 99)}"
    ids = random.sample(range(100, 1000), random.randint(*template.count))
    kinds = random.choices(spec.kinds, template.mix, k=len(ids))
    if not any(one in spec.codes for one in kinds):
        # Somebody must be paid, or an agent that declines everything unread would succeed.
        kinds[-1] = spec.kinds[0]
    items = [_item(spec, random, f"{spec.letters[1]}{number}", one) for number, one in zip(ids, kinds, strict=True)]
    for _ in range(_DRAWS):
        if not all(spec.is_declined(one) for one in items):
            break
        items[-1] = _item(spec, random, items[-1].id, spec.kinds[0])
    return kind(instance, instruction=template.wording.format(queue=queue), queue=queue, items=tuple(items))


def _item(spec: Miniature, random: Random, item: str, kind: str) -> Item:
    for _ in range(_DRAWS):
        first, second = (random.randint(one.low, one.high) for one in spec.numbers)
        value = spec.formula(first, second)
        if 0 <= value <= 999 and value not in (first, second):
            return Item(item, kind, (first, second))
    raise ConfigError(f"the formula of {spec.family} gives no value that can be used", seen=_DRAWS, fix="change the ranges of its numbers")
