"""Seeded shift checks: twenty templates built from atoms, an area in which each of them decides a case, and all that lies around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType

from coevo.errors import ConfigError, nearest
from coevo.identity import derive_seed
from coevo.tasks.anomaly.documents import Setting, documents
from coevo.tasks.anomaly.readings import Series
from coevo.tasks.anomaly.rulebook import KINDS, Atom, Device, Fault, Level, Rules, Ticket, draw_rules, judge
from coevo.tasks.anomaly.standard import AnomalyData, AnomalyWorld, Area
from coevo.tasks.contacts import Answer, Contact
from coevo.tasks.family import Size, TaskInstance
from coevo.tasks.rounds import Scale, Shelf

__all__ = ["SCALES", "TEMPLATES", "Template", "open_anomaly"]

SCALES = MappingProxyType(
    {
        Size.STANDARD: Scale((6, 9), groups=2, distractors=6, paragraphs=(1, 2), part_chars=3000, history=2, people=6),
        Size.LONG: Scale((7, 10), groups=44, distractors=60, paragraphs=(10, 18), part_chars=3000, history=5, people=60),
    }
)
"""Sizes of this world; `history` counts days of readings."""


@dataclass(frozen=True, slots=True)
class Template:
    """One wording with the rules that apply. `draft` puts a draft of the limits on the shelf."""

    wording: str
    atoms: tuple[Atom, ...]
    draft: bool = False


_A = Atom
TEMPLATES: Mapping[str, Template] = MappingProxyType(
    {
        "night": Template("Please do the shift check of {area} at {site} ({day}).", (_A.MAINTENANCE, _A.DROPOUT)),
        "work": Template("Check the sensors of {area}, {site}, for {day}. There was work going on.", (_A.MAINTENANCE, _A.KNOWN)),
        "gaps": Template(
            "{area} at {site} lost readings on {day}. Do the check and open what must be opened.", (_A.DROPOUT, _A.STUCK), draft=True
        ),
        "offsets": Template("Do the {day} check of {area} ({site}); some probes were calibrated.", (_A.CALIBRATION, _A.MAINTENANCE)),
        "drifts": Template("Run the check of {area} at {site} for {day} and mind slow changes.", (_A.DRIFT, _A.DROPOUT)),
        "known": Template("Shift check {area}, {site}, {day}. Please don't open tickets twice.", (_A.KNOWN, _A.DROPOUT)),
        "alarms": Template("There were alarms in {area} ({site}) on {day}. Settle all devices.", (_A.TECHNICIAN, _A.MAINTENANCE)),
        "zones": Template(
            "Do the check of {area} at {site}, {day}; the sensitive zones first come to mind.", (_A.ZONES, _A.DROPOUT), draft=True
        ),
        "twins": Template("Check {area} at {site} for {day}. Not every alarm is one.", (_A.TWIN, _A.STUCK)),
        "imports": Template("Check {area}, {site}, {day}. Some devices came from the American plant.", (_A.IMPERIAL, _A.DROPOUT)),
        "duty": Template("Shift check of {area} ({site}) for {day}, and tell the right team.", (_A.DUTY, _A.MAINTENANCE, _A.STUCK)),
        "frozen": Template("Some charts of {area} at {site} look frozen on {day}. Do the check.", (_A.STUCK, _A.KNOWN)),
        "slow": Template("Look through {area} at {site} for {day}.", (_A.DRIFT, _A.CALIBRATION), draft=True),
        "asked": Template("Check of {area}, {site}, {day}. Ask before you wake anybody.", (_A.TECHNICIAN, _A.ZONES, _A.KNOWN)),
        "sensors": Template("Sort out {area} at {site} for {day}: plant or sensor?", (_A.TWIN, _A.DROPOUT, _A.DRIFT)),
        "mixed": Template("Close the check of {area} ({site}) for {day}.", (_A.IMPERIAL, _A.CALIBRATION, _A.STUCK), draft=True),
        "inspection": Template("An inspection is due: check {area} at {site} for {day}.", (_A.ZONES, _A.TWIN, _A.MAINTENANCE)),
        "handover": Template(
            "Hand-over of {area}, {site}: do the check of {day} and log it.", (_A.KNOWN, _A.DRIFT, _A.DUTY, _A.MAINTENANCE)
        ),
        "storm": Template(
            "A storm passed {site} on {day}. Check {area}.", (_A.DROPOUT, _A.STUCK, _A.TECHNICIAN, _A.ZONES, _A.KNOWN), draft=True
        ),
        "full": Template(
            "Do the complete shift check of {area} at {site} for {day}.",
            (_A.MAINTENANCE, _A.DROPOUT, _A.DRIFT, _A.CALIBRATION, _A.TWIN, _A.KNOWN),
            draft=True,
        ),
    }
)
"""Seeded templates; a run of diversity d draws from the first d."""

_SITES = ("Harbour", "Mill", "Quarry", "Foundry", "Brewery", "Dairy", "Depot", "Refinery")
_PLACES = ("Boiler", "Packing", "Cold store", "Loading", "Press", "Paint", "Turbine", "Filter", "Mixing", "Drying", "Assembly", "Bottling")
_PARTS = ("east", "west", "ground", "upper", "central")
_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December")
_SPOTS = ("supply", "return", "inlet", "outlet", "bearing", "housing", "ceiling", "floor", "door", "duct", "pump", "valve", "tank", "belt")
_FIRST = ("Ana", "Bo", "Chidi", "Dana", "Emre", "Farah", "Goran", "Hana", "Ivo", "Jun", "Kira", "Lars", "Mina", "Noor", "Olga", "Piotr")
_LAST = ("Adler", "Brandt", "Costa", "Diaz", "Evans", "Fischer", "Grant", "Horvat", "Ito", "Jensen", "Kaya", "Lopez", "Moreau", "Novak")
_ROLES = ("shift lead", "plant engineer", "safety officer", "buyer", "data analyst", "electrician", "warehouse clerk", "auditor")
_UNITS = MappingProxyType({"temperature": "C", "pressure": "bar", "vibration": "mm", "humidity": "percent"})


def open_anomaly(instance: TaskInstance) -> AnomalyWorld:
    """Generate and open one instance. Raises `ConfigError` for an unknown template."""
    template = TEMPLATES.get(instance.template)
    if template is None:
        raise ConfigError("unknown anomaly template", seen=instance.template, fix=nearest(instance.template, TEMPLATES))
    random = Random(derive_seed(instance.family, instance.size, instance.template, instance.stream, instance.seed))
    scale = SCALES[instance.size]
    names = random.sample([f"{place} {part}" for place in _PLACES for part in _PARTS], scale.groups + 1)
    zones = tuple(f"Z{number}" for number in random.sample(range(10, 100), 5))
    day = f"{random.randint(1, 28)} {random.choice(_MONTHS)} 2026"
    setting = Setting(names[0], random.choice(_SITES), day, tuple(names[1:]), zones)
    rules = draw_rules(random, template.atoms, zones)
    draft = _Draft(random, rules, zones, days=scale.history)
    area = Area(setting.area, tuple(draft.check(random.randint(*scale.cases))))
    others = [Area(name, tuple(draft.elsewhere(random.randint(4, 10)))) for name in setting.others]
    contacts = [f"U{number}" for number in random.sample(range(100, 1000), len(zones) + scale.people)]
    technicians = tuple(zip(zones, contacts, strict=False))
    papers = documents(random, rules, setting, scale, draft=template.draft)
    people = _people(random, area, technicians, contacts[len(zones) :])
    areas = tuple(sorted([area, *others], key=lambda one: one.name))
    data = AnomalyData(setting, area, areas, tuple(draft.twins), technicians, rules, Shelf(papers, people), scale.part_chars or 0)
    return AnomalyWorld(instance, instruction=template.wording.format(area=setting.area, site=setting.site, day=day), data=data)


def _people(random: Random, area: Area, technicians: tuple[tuple[str, str], ...], crowd: list[str]) -> tuple[Contact, ...]:
    names = iter(random.sample([f"{first} {last}" for first in _FIRST for last in _LAST], len(technicians) + len(crowd)))
    people = [_technician(contact, next(names), zone, area) for zone, contact in technicians]
    otherwise = "I can't help with that. Please see the documents, or ask who is responsible."
    people += [Contact(one, next(names), random.choice(_ROLES), (), otherwise) for one in crowd]
    random.shuffle(people)
    return tuple(people)


def _technician(contact: str, name: str, zone: str, area: Area) -> Contact:
    answers = [Answer((), f"{one.id}: {_REPLIES[one.explained]}", one.id) for one in area.devices if one.zone == zone]
    return Contact(
        contact, name, f"technician zone {zone}", tuple(answers), "That is not in my zone. The record of a device names its zone."
    )


_REPLIES = {True: "explained, we washed the line down there.", False: "unexplained, nobody was there and nothing was done."}


_DRAWS = 200


class _Draft:
    """Draws devices that fit the rules of one instance; `twins` collects the sensors beside them."""

    def __init__(self, random: Random, rules: Rules, zones: tuple[str, ...], *, days: int) -> None:
        self._random, self._rules, self._zones = random, rules, zones
        self._series = Series(random, rules, days=days)
        self._ids = iter(random.sample(range(1000, 10000), 1200))
        self._tickets = iter(random.sample(range(1000, 10000), 3000))
        self.twins: list[Device] = []
        self._makers: dict[Atom, Callable[[Device], Device]] = {
            Atom.MAINTENANCE: self._worked_on,
            Atom.DROPOUT: self._dropout,
            Atom.STUCK: self._stuck,
            Atom.DRIFT: self._drifting,
            Atom.CALIBRATION: self._calibrated,
            Atom.IMPERIAL: self._fahrenheit,
            Atom.ZONES: self._sensitive,
            Atom.TWIN: self._alone,
            Atom.KNOWN: self._known,
            Atom.TECHNICIAN: self._explained,
        }

    def check(self, count: int) -> Iterator[Device]:
        """An area in which each active atom decides at least one case and one ticket at least is opened."""
        random = self._random
        made = [self._deciding(atom) for atom in self._rules.atoms if atom in self._makers]
        made += [maker(self._blank()) for maker in (self._excursion, self._quiet, *self._decoys())]
        pool = (self._quiet, self._excursion, *self._decoys(), *(self._makers[atom] for atom in self._rules.atoms if atom in self._makers))
        made += [random.choice((self._quiet, self._excursion, *pool))(self._blank()) for _ in range(count - len(made))]
        random.shuffle(made)
        yield from made

    def _deciding(self, atom: Atom) -> Device:
        """A device that is settled in another way where the atom is left out."""
        without = replace(self._rules, atoms=tuple(one for one in self._rules.atoms if one is not atom))
        for _ in range(_DRAWS):
            one = self._makers[atom](self._blank())
            twin = self.twins[-1]
            if judge(self._rules, one, twin).settle != judge(without, one, twin).settle:
                return one
            self.twins.pop()
        raise ConfigError("no device turns on a rule", seen=str(atom), fix="report this as a bug of the anomaly family")

    def _decoys(self) -> Iterator[Callable[[Device], Device]]:
        """Cases that look like a rule's and are not."""
        if Atom.MAINTENANCE in self._rules.atoms:
            yield self._worked_before
        if Atom.CALIBRATION in self._rules.atoms:
            yield self._settled_offset

    def elsewhere(self, count: int) -> Iterator[Device]:
        """Devices of another area."""
        for _ in range(count):
            one = self._blank(twin=False)
            yield replace(one, days=self._series.plain(one.kind, one.unit), tickets=self._earlier(self._random.randint(0, 3)))

    def _blank(self, *, twin: bool = True) -> Device:
        """A device within limits, in a zone without rules of its own, beside a quiet twin."""
        random = self._random
        kind = random.choice(KINDS)
        beside = f"T{next(self._ids)}"
        one = Device(
            id=f"T{next(self._ids)}",
            name=f"{random.choice(_SPOTS)} {random.randint(1, 40)}",
            kind=kind,
            zone=random.choice([zone for zone in self._zones if zone not in self._rules.zones]),
            unit=_UNITS[kind],
            days=(),
            offset=0,
            pending=False,
            work=None,
            twin=beside,
            tickets=(),
            explained=False,
        )
        if not twin:
            return one
        one = replace(one, days=self._series.plain(kind, one.unit))
        self.twins.append(replace(one, id=beside, twin=one.id))
        return one

    def _beside(self, one: Device, level: Level) -> None:
        """Give the twin an excursion of its own."""
        place = next(index for index, twin in enumerate(self.twins) if twin.id == one.twin)
        self.twins[place] = self._at(replace(self.twins[place], kind=one.kind, unit=one.unit), level)

    def _at(self, one: Device, level: Level) -> Device:
        """A peak well inside the band of a level; the readings are drawn anew."""
        first, second = self._rules.limit(one.kind)
        low, high = {
            Level.NONE: (0.3 * first, 0.8 * first),
            Level.WARNING: (1.12 * first, first + 0.8 * (second - first)),
            Level.ALARM: (1.1 * second, 1.8 * second),
        }[level]
        return replace(one, days=self._series.peaked(one.kind, one.unit, self._random.uniform(low, high), one.offset if one.pending else 0))

    def _quiet(self, one: Device) -> Device:
        return replace(self._at(one, Level.NONE) if self._random.random() < 0.5 else one, tickets=self._earlier(self._random.randint(0, 1)))

    def _excursion(self, one: Device) -> Device:
        """A warning or an alarm that twin and technician confirm; earlier tickets are closed or about something else."""
        checked = {Atom.TWIN, Atom.TECHNICIAN} & set(self._rules.atoms)
        level = Level.ALARM if self._random.random() < (0.3 if checked else 0.5) else Level.WARNING
        self._beside(one, Level.ALARM)
        other = (self._ticket(self._random.choice((Fault.STUCK, Fault.DROPOUT)), is_open=True),) if self._random.random() < 0.4 else ()
        return replace(self._at(one, level), tickets=(*other, *self._earlier(self._random.randint(0, 2))))

    def _worked_on(self, one: Device) -> Device:
        check = self._rules.check
        start = self._random.randint(check.start - 3, check.end - 2)
        end = self._random.randint(max(start, check.start) + 1, check.end)
        return replace(self._at(one, self._random.choice((Level.WARNING, Level.ALARM))), work=(start, end))

    def _worked_before(self, one: Device) -> Device:
        """Work that was over when the check began."""
        start = self._random.randint(1, self._rules.check.start - 5)
        return replace(self._excursion(one), work=(start, start + self._random.randint(1, 3)))

    def _dropout(self, one: Device) -> Device:
        gaps = self._rules.gaps + self._random.randint(0, 3)
        return replace(one, days=self._series.with_gaps(self._at(one, self._random.choice(tuple(Level))).days, gaps))

    def _stuck(self, one: Device) -> Device:
        return replace(one, days=self._series.stuck(one.kind, one.unit))

    def _drifting(self, one: Device) -> Device:
        share = self._random.uniform(0.64, 0.78)
        days = self._series.shifted(one.kind, one.unit, share * self._rules.limit(one.kind)[0], one.offset if one.pending else 0)
        return replace(one, days=days)

    def _calibrated(self, one: Device) -> Device:
        """A pending offset of about a limit."""
        device = replace(one, offset=self._offset(one.kind), pending=True)
        self._beside(device, Level.ALARM)
        return self._at(device, self._random.choice((Level.NONE, Level.WARNING, Level.ALARM)))

    def _settled_offset(self, one: Device) -> Device:
        """An offset that was applied: the readings are right."""
        return replace(self._excursion(one), offset=self._offset(one.kind))

    def _offset(self, kind: str) -> float:
        digits = 2 if kind in ("pressure", "vibration") else 1
        return round(self._random.choice((1, -1)) * self._random.uniform(0.6, 0.9) * self._rules.limit(kind)[0], digits)

    def _fahrenheit(self, one: Device) -> Device:
        """A peak that passes the limit in Fahrenheit, and in Celsius only sometimes."""
        device = replace(one, kind="temperature", unit="F")
        self._beside(device, Level.ALARM)
        return self._at(device, self._random.choice((Level.NONE, Level.WARNING, Level.WARNING, Level.ALARM)))

    def _sensitive(self, one: Device) -> Device:
        self._beside(one, Level.WARNING)
        return replace(self._at(one, Level.WARNING), zone=self._random.choice(self._rules.zones))

    def _alone(self, one: Device) -> Device:
        self._beside(one, Level.NONE)
        return self._at(one, Level.ALARM)

    def _known(self, one: Device) -> Device:
        device = self._excursion(one)
        closed = self._ticket(Fault.EXCURSION, is_open=False)
        return replace(device, tickets=(closed, self._ticket(Fault.EXCURSION, is_open=True), *self._earlier(1)))

    def _explained(self, one: Device) -> Device:
        self._beside(one, Level.ALARM)
        return replace(self._at(one, Level.ALARM), explained=True)

    def _earlier(self, count: int) -> tuple[Ticket, ...]:
        return tuple(self._ticket(self._random.choice(tuple(Fault)), is_open=False) for _ in range(count))

    def _ticket(self, fault: Fault, *, is_open: bool) -> Ticket:
        return Ticket(f"K{next(self._tickets)}", fault, is_open)
