"""What the reference of the shift check needs to know, fact by fact, and where each is read; see `coevo.tasks.inquiry`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from types import MappingProxyType

from coevo.chat import ToolCall
from coevo.tasks.anomaly.documents import QUERIES, Topic
from coevo.tasks.anomaly.rulebook import Atom, Device, Fault, Level, Rules, Verdict, Window, aggregate, extreme, judge
from coevo.tasks.anomaly.standard import AnomalyData, closing_call, facts
from coevo.tasks.family import Style
from coevo.tasks.inquiry import BATCH, Agenda, Case, Fact, Inquiry, Lookup, Single, Sum, rule_of, token
from coevo.tasks.library import Library
from coevo.tasks.rounds import plain, progress_of

__all__ = ["agenda", "anomaly_policy"]

_SENTENCES = MappingProxyType(
    {
        "list_devices": "I look at a page of the devices.",
        "get_devices": "I look up what the devices are.",
        "get_maintenance": "Planned work decides first, so I check it.",
        "get_calibrations": "Offsets change the readings, so I look them up.",
        "get_statistics": "I take the numbers that the rules name.",
        "get_tickets": "There is a fault, so I check the earlier tickets.",
        "read_document": "I read on.",
        "find_contacts": "I look for the technician of the zone.",
        "write_message": "The rules say that the technician is asked first.",
        "calculate": "I calculate what the rules compare.",
        "open_ticket": "There is a fault that nobody knows yet, so I open a ticket.",
        "add_to_ticket": "This fault has an open ticket, so I add to it.",
        "silence": "A rule says that this one is silenced.",
        "accept": "Nothing is wrong here, so I accept it.",
        "file_log": "Everything is settled, so I file the log.",
        "finish": "The log is filed, so I finish.",
    }
)


def anomaly_policy(style: Style) -> Inquiry:
    """The reference policy in a style."""
    return Inquiry(style, agenda=lambda world: agenda(facts(world)), progress=progress_of)


@lru_cache(maxsize=16)
def agenda(data: AnomalyData) -> Agenda:
    """The agenda of one instance."""
    rules, library = data.rules, Library(data.shelf.documents, part_chars=data.part_chars)
    in_force = {one.topic: one for one in data.shelf.documents if one.topic is not None}
    topics = [topic for topic in Topic if topic in in_force]
    sources = [_Sources(rules, one, data.twin(one), dict(data.technicians)[one.zone]) for one in data.area.devices]
    pages = -(-len(sources) // BATCH)
    return Agenda(
        cases=tuple(
            Case(source.one.id, place // BATCH + 1, tuple(source.goals()), source.verdict.settle) for place, source in enumerate(sources)
        ),
        closing=Case("file_log", 0, tuple(_closing_goals(sources)), closing_call(data)),
        rules=tuple(rule_of(library, in_force[topic], topic=str(topic), query=QUERIES[topic]) for topic in topics),
        listings=tuple(ToolCall("list_devices", {"area": data.area.name, "page": page}) for page in range(1, pages + 1)),
        announcement="Plan: list the devices, read the rules, take the statistics, compute, ask, settle all, then file the log.",
        sentences=_SENTENCES,
    )


def _closing_goals(sources: list[_Sources]) -> Iterator[Fact]:
    counts = [source.measured(source.one, "missing", source.rules.check, 3) for source in sources]
    yield from counts
    values = [int(fact.tokens[1]) for fact in counts]
    expression = "+".join(map(str, values))
    yield Fact("", (str(sum(values)),), Sum(expression, sum(values)), 12, tuple(counts))


class _Sources:
    """The facts about one device."""

    def __init__(self, rules: Rules, one: Device, twin: Device, technician: str) -> None:
        self.rules, self.one, self.twin, self.technician = rules, one, twin, technician
        self.verdict: Verdict = judge(rules, one, twin)

    def goals(self) -> Iterator[Fact]:
        """What decides the case, in the order in which it is looked at."""
        atoms, verdict = self.rules.atoms, self.verdict
        yield self.record()
        if Atom.MAINTENANCE in atoms:
            yield self.work()
        if verdict.fault is None and verdict.deviation is None:
            return
        if Atom.DROPOUT in atoms:
            yield self.measured(self.one, "missing", self.rules.check, 3)
        if Atom.STUCK in atoms and verdict.fault is not Fault.DROPOUT:
            yield self.measured(self.one, "distinct", self.rules.check, 3)
        if verdict.fault is Fault.STUCK:
            yield self.measured(self.one, "max", self.rules.check, 3)
        if verdict.deviation is not None:
            yield self.difference(self.one, "deviation", extreme(self.one.kind), verdict.deviation)
        if verdict.drift is not None:
            yield self.difference(self.one, "drift", "mean", verdict.drift)
        if verdict.twin is not None:
            yield self.beside(verdict.twin)
        if Atom.KNOWN in atoms and (verdict.fault is not None or verdict.level is not Level.NONE):
            yield self.tickets()
        if verdict.asked:
            yield self.reply()

    def record(self) -> Fact:
        one = self.one
        return Fact(one.id, ("kind", one.kind, "zone", one.zone, "unit", one.unit), Lookup("get_devices", "devices"), 1)

    def work(self) -> Fact:
        work = self.one.work
        tokens = ("work", "none") if work is None else ("work", "planned", "from", str(work[0]), "to", str(work[1]))
        return Fact(self.one.id, tokens, Lookup("get_maintenance", "devices"), 2)

    def measured(self, device: Device, measure: str, window: Window, order: int, *basis: Fact) -> Fact:
        """An aggregate over a window."""
        extra: tuple[tuple[str, object], ...] = (("start", window.start), ("end", window.end))
        if window.day:
            extra = (*extra, ("day", window.day))
        value = aggregate(device, measure, window)
        return Fact(
            device.id, (measure, "none" if value is None else token(value)), Lookup("get_statistics", "devices", extra), order, basis
        )

    def difference(self, device: Device, name: str, measure: str, sum_of: tuple[str, int | float]) -> Fact:
        """A deviation or drift."""
        basis = [self.measured(device, measure, self.rules.check, 3), self.measured(device, "mean", self.rules.baseline, 4)]
        if Atom.CALIBRATION in self.rules.atoms:
            basis.append(self.calibration())
        return Fact(device.id, (name, token(sum_of[1])), Sum(*sum_of, self.rules.step), 8, (self.record(), *basis))

    def calibration(self) -> Fact:
        one = self.one
        tokens = (
            ("offset", token(plain(one.offset)), "state", "pending" if one.pending else "applied") if one.offset else ("offset", "none")
        )
        return Fact(one.id, tokens, Lookup("get_calibrations", "devices"), 5)

    def beside(self, sum_of: tuple[str, int | float]) -> Fact:
        """The twin's deviation; which sensor the twin is stands in the record of the device."""
        named = Fact(self.twin.id, (), Single(ToolCall("get_devices", {"devices": [self.one.id]})), 9)
        basis = (
            self.measured(self.twin, "mean", self.rules.baseline, 9, named),
            self.measured(self.twin, extreme(self.twin.kind), self.rules.check, 9, named),
        )
        return Fact(self.twin.id, ("deviation", token(sum_of[1])), Sum(*sum_of, self.rules.step), 10, basis)

    def tickets(self) -> Fact:
        """The open ticket of the fault, the latest one, or that there is none."""
        fault = self.verdict.fault or Fault.EXCURSION
        known = [ticket for ticket in self.one.tickets if ticket.open and ticket.fault is fault]
        shown = [*known, *self.one.tickets][:1]
        tokens = [part for one in shown for part in (one.id, self.rules.code(one.fault), "open" if one.open else "closed")] or ["none"]
        return Fact(self.one.id, ("tickets", *tokens), Lookup("get_tickets", "devices"), 11)

    def reply(self) -> Fact:
        """The technician's answer."""
        find = ToolCall("find_contacts", {"query": self.one.zone})
        technician = Fact(self.technician, ("technician", self.one.zone), Single(find), 11)
        call = ToolCall("write_message", {"contact": self.technician, "message": f"Can you explain the alarm of {self.one.id}?"})
        return Fact(self.one.id, ("explained" if self.one.explained else "unexplained",), Single(call), 11, (self.record(), technician))
