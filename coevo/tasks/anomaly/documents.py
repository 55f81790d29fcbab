"""The library of a shift check: five rules in force, each beside its superseded version, drafts, other sites' rules and distractors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from coevo.tasks.anomaly.rulebook import DOWNWARD, KINDS, Atom, Fault, Rules, Window, draw_rules
from coevo.tasks.boilerplate import chapter
from coevo.tasks.library import Document
from coevo.tasks.rounds import Scale, plain

__all__ = ["QUERIES", "Setting", "Topic", "documents"]


class Topic(StrEnum):
    """What a document rules."""

    LIMITS = "limits and baselines"
    FAULTS = "faults"
    SILENCE = "silencing"
    TICKETS = "tickets and teams"
    LOG = "the shift log"
    DUTY = "duty"


QUERIES = {
    Topic.LIMITS: "limits baseline deviation",
    Topic.FAULTS: "faults classification codes",
    Topic.SILENCE: "silencing maintenance reasons",
    Topic.TICKETS: "tickets priority teams",
    Topic.LOG: "shift log missing readings",
    Topic.DUTY: "duty plan teams",
}
"""The words by which the reference looks for each."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and when a check takes place."""

    area: str
    site: str
    day: str
    others: tuple[str, ...]
    zones: tuple[str, ...]


def documents(random: Random, rules: Rules, setting: Setting, scale: Scale, *, draft: bool) -> tuple[Document, ...]:
    """The shelf of one instance, shuffled."""
    numbers = iter(random.sample(range(100, 1000), 40 + scale.distractors))
    shelf = [*_rule_documents(random, rules, setting, scale, numbers, draft=draft)]
    titles = random.sample(_DISTRACTORS, min(4, scale.distractors))
    titles += [_of_another_plant(random, one) for one in random.choices(_DISTRACTORS, k=max(0, scale.distractors - 4))]
    for title, text in titles:
        body = chapter(random, text, count=random.randint(*scale.paragraphs))
        shelf.append(Document(f"N{next(numbers)}", title, body, tuple(title.casefold().replace(",", "").split())))
    random.shuffle(shelf)
    return tuple(shelf)


def _rule_documents(
    random: Random, rules: Rules, setting: Setting, scale: Scale, numbers: Iterator[int], *, draft: bool
) -> Iterator[Document]:
    for topic in Topic:
        if topic is Topic.DUTY and Atom.DUTY not in rules.atoms:
            continue
        current, old = f"N{next(numbers)}", f"N{next(numbers)}"
        writer = _Writer(random, scale, topic)
        yield writer.document(current, rules, _in_force(topic, setting, old), keep=True)
        yield writer.document(old, _other(random, rules, setting), _superseded(random, topic, setting, current))
    if draft:
        status = "Draft for comment. It is not in force; comments are due by 30 November 2027."
        yield _Writer(random, scale, Topic.LIMITS).document(f"N{next(numbers)}", _other(random, rules, setting), status)
    plant = random.choice(_PLANTS)
    status = f"In force since 1 April 2026 in the pilot plant {plant} only. It does not apply elsewhere."
    writer = _Writer(random, scale, Topic.FAULTS)
    yield writer.document(f"N{next(numbers)}", _other(random, rules, setting), status, title=f"Faults in the pilot plant {plant}")


def _in_force(topic: Topic, setting: Setting, old: str) -> str:
    if topic is Topic.DUTY:
        return f"In force on {setting.day}."
    return f"In force since 1 March 2026 on all sites. It replaces {old}."


def _superseded(random: Random, topic: Topic, setting: Setting, current: str) -> str:
    if topic is Topic.DUTY:
        return f"In force on {random.randint(1, 28)} May 2025. The plan of {setting.day} is {current}."
    return f"In force from 1 May 2024. Since 1 March 2026 it is replaced by {current}."


class _Writer:
    """Writes versions of one topic in one layout."""

    def __init__(self, random: Random, scale: Scale, topic: Topic) -> None:
        self._random, self._scale, self._topic = random, scale, topic

    def document(self, number: str, rules: Rules, status: str, *, keep: bool = False, title: str = "") -> Document:
        text, facts = _TEXTS[self._topic](rules)
        head, keywords = _TITLES[self._topic]
        body = chapter(self._random, text, count=self._random.randint(*self._scale.paragraphs))
        topic = str(self._topic) if keep else None
        return Document(number, title or head, f"{status}\n\n{body}", keywords, facts if keep else (), topic)


def _other(random: Random, rules: Rules, setting: Setting) -> Rules:
    """Rules of another version: every literal that decides differs."""
    while True:
        other = draw_rules(random, rules.atoms, setting.zones)
        codes = {*other.faults, *other.priorities, *(reason for reason, _ in other.reasons)}
        shared = codes & {*rules.faults, *rules.priorities, *(reason for reason, _ in rules.reasons)} or set(other.teams) & set(rules.teams)
        same = other.check == rules.check or other.baseline == rules.baseline or other.limits == rules.limits or other.gaps == rules.gaps
        if not shared and not same and other.zones != rules.zones:
            return other


_TITLES = {
    Topic.LIMITS: (
        "Limits and baselines",
        ("limits", "limit", "baseline", "baselines", "deviation", "readings", "check", "rules", "calibration"),
    ),
    Topic.FAULTS: (
        "Classification of faults",
        ("faults", "fault", "classification", "classes", "codes", "code", "check", "anomaly", "rules"),
    ),
    Topic.SILENCE: (
        "Silencing of devices",
        ("silencing", "silence", "maintenance", "work", "reasons", "reason", "alarm", "alarms", "technician", "rules"),
    ),
    Topic.TICKETS: ("Tickets and teams", ("tickets", "ticket", "priority", "priorities", "teams", "team", "routing", "rules")),
    Topic.DUTY: ("Duty plan", ("duty", "plan", "teams", "team", "today")),
    Topic.LOG: ("Shift log", ("shift", "log", "missing", "readings", "report", "closing", "rules")),
}


def _write_limits(rules: Rules) -> tuple[str, tuple[str, ...]]:
    limits = [(kind, *map(_text, rules.limit(kind))) for kind in KINDS]
    facts = [*_hours(rules.check), *_hours(rules.baseline), *(value for _, *pair in limits for value in pair), _text(rules.step)]
    before = f"of the day before (day {rules.baseline.day})" if rules.baseline.day else "of the same day"
    lines = [
        f"A check looks at the readings of its day from hour {rules.check.start} to hour {rules.check.end}, both included.",
        f"The baseline of a device is the mean of its readings from hour {rules.baseline.start} to hour {rules.baseline.end} {before}.",
        "The deviation of a device is the highest reading of the check less the baseline.",
        f"Devices for {DOWNWARD} are watched the other way round: their deviation is the baseline less the lowest reading of the check.",
        "Deviations are compared unrounded, in the unit of the kind, with two limits, the first for a warning and the second for an alarm:",
        f"{'; '.join(f'{kind} {low} and {high}' for kind, low, high in limits)}. A limit counts as passed when it is reached.",
        f"Where a deviation is stated it is rounded to the nearest {_text(rules.step)}, halves upwards.",
    ]
    if rules.baseline.day:
        facts.append(str(rules.baseline.day))
    if Atom.DRIFT in rules.atoms:
        drifts = [(kind, _text(rules.drift(kind))) for kind in KINDS]
        facts += [value for _, value in drifts]
        lines.append(
            "The drift of a device is computed like the deviation, with the mean of the check in place of the highest or lowest reading. "
            f"Its limits are {'; '.join(' '.join(pair) for pair in drifts)}. Drifts are rounded like deviations."
        )
    if Atom.CALIBRATION in rules.atoms:
        lines.append(
            "A calibration offset that is pending is still in the readings of the check, but not in the baseline: it is subtracted from "
            "every reading and mean of the check. An offset that is applied needs nothing."
        )
    if Atom.IMPERIAL in rules.atoms:
        facts += ["5", "9"]
        lines.append("Limits for temperature are in degrees C; a difference of readings in F is multiplied by 5/9 before anything else.")
    return " ".join(lines), tuple(facts)


def _hours(window: Window) -> tuple[str, str]:
    return str(window.start), str(window.end)


def _write_faults(rules: Rules) -> tuple[str, tuple[str, ...]]:
    facts, lines = [], []
    if Atom.DROPOUT in rules.atoms:
        facts += [str(rules.gaps), rules.code(Fault.DROPOUT)]
        lines.append(
            f"{rules.gaps} or more readings of the check are missing: dropout, code {rules.code(Fault.DROPOUT)}, "
            "value: the number of missing ones"
        )
    if Atom.STUCK in rules.atoms:
        facts.append(rules.code(Fault.STUCK))
        lines.append(f"all readings of the check are the same: stuck, code {rules.code(Fault.STUCK)}, value: that reading")
    facts.append(rules.code(Fault.EXCURSION))
    lines.append(f"the deviation passes the first limit: excursion, code {rules.code(Fault.EXCURSION)}, value: the deviation")
    if Atom.DRIFT in rules.atoms:
        facts.append(rules.code(Fault.DRIFT))
        lines.append(f"the drift passes its limit: drift, code {rules.code(Fault.DRIFT)}, value: the drift")
    text = f"Faults are looked for in this order and the first one that is found counts: {_numbered(lines)}. "
    text += "A device without a fault is accepted."
    if Atom.ZONES in rules.atoms:
        facts += rules.zones
        text += f" In the zones {' and '.join(rules.zones)} every excursion counts as an alarm."
    if Atom.TWIN in rules.atoms:
        facts.append(rules.code(Fault.SENSOR))
        text += (
            " An alarm is compared with the twin of the device: where the twin's own deviation, from its own readings and baseline, stays "
            f"below the first limit, the fault is not an excursion but a sensor fault, code {rules.code(Fault.SENSOR)}, value: the "
            "deviation of the device, and no alarm any more."
        )
    return text, tuple(facts)


def _write_silence(rules: Rules) -> tuple[str, tuple[str, ...]]:
    (work, work_hours), (reply, reply_hours) = rules.reasons
    facts, lines = [], []
    if Atom.MAINTENANCE in rules.atoms:
        facts += [work, str(work_hours)]
        lines.append(
            f"A device in a zone with planned work during any hour of the check is silenced with reason {work} for {work_hours} hours, "
            "whatever its readings say; work at other hours does not matter."
        )
    if Atom.TECHNICIAN in rules.atoms:
        facts += [reply, str(reply_hours)]
        lines.append(
            "Before a ticket is opened for an alarm, the technician of the zone is asked about the device. If the technician can explain "
            f"the alarm, the device is silenced with reason {reply} for {reply_hours} hours and no ticket is opened."
        )
    lines.append("For any other reason nothing is silenced, and nothing is silenced for longer than that.")
    return " ".join(lines), (*facts, "silenced")


def _write_tickets(rules: Rules) -> tuple[str, tuple[str, ...]]:
    ordinary, urgent = rules.priorities
    facts: tuple[str, ...]
    if Atom.DUTY in rules.atoms:
        teams, facts = "The duty plan of the day says which teams these are.", (ordinary, urgent)
    else:
        teams, facts = f"The teams are {_teams(rules)}.", (ordinary, urgent, *rules.teams)
    text = (
        f"An excursion that is an alarm gets priority {urgent}, every other fault {ordinary}. Excursions and drifts go to the team for the "
        f"kind of device, all other faults are faults of the sensor itself and go to the team for sensors. {teams}"
    )
    if Atom.KNOWN in rules.atoms:
        text += (
            " Where an open ticket of the device has the same fault, no ticket is opened and nobody is asked: the finding is added to that "
            "ticket. Closed tickets and tickets about other faults do not count."
        )
    return text, facts


def _write_duty(rules: Rules) -> tuple[str, tuple[str, ...]]:
    return f"On duty are {_teams(rules)}. Teams swap among themselves and enter it here at once.", rules.teams


def _teams(rules: Rules) -> str:
    return ", ".join(f"{rules.teams[place]} for {what}" for place, what in enumerate((*KINDS, "sensors")))


def _write_log(rules: Rules) -> tuple[str, tuple[str, ...]]:
    hours = f"the hours {rules.check.start} to {rules.check.end}"
    return (
        "Every check ends with one entry in the shift log of the area. It states how many tickets were opened in this check, not counting "
        f"findings that were added to earlier tickets, and how many readings of {hours} are missing, over all devices of the area "
        "together, silenced ones included. Twins do not count, they belong to no area."
    ), ("missing", *_hours(rules.check))


def _numbered(lines: list[str]) -> str:
    return "; ".join(f"({place}) {line}" for place, line in enumerate(lines, start=1))


_TEXTS: dict[Topic, Callable[[Rules], tuple[str, tuple[str, ...]]]] = {
    Topic.LIMITS: _write_limits,
    Topic.FAULTS: _write_faults,
    Topic.SILENCE: _write_silence,
    Topic.TICKETS: _write_tickets,
    Topic.LOG: _write_log,
    Topic.DUTY: _write_duty,
}

_PLANTS = ("Ostend", "Tarragona", "Kiel", "Gavle", "Trieste", "Rijeka")

_DISTRACTORS = (
    ("Mounting of sensors", "Sensors are mounted at a distance of at least 30 cm from doors. Vibration sensors are glued, not screwed."),
    ("Batteries", "Batteries are changed after 18 months or below 2.7 volts. Old ones go into the red box."),
    (
        "Gateway updates",
        "Gateways are updated on the first Tuesday of a month. An update takes 12 minutes, in which readings are buffered.",
    ),
    ("Names of devices", "A device has a name for people and an identifier for systems. Names may repeat."),
    ("Archive of 2019", "In 2019 a deviation of 10 of any kind opened a ticket. That was given up as useless."),
    ("Visits of the area", "Visitors wear shoes of class S3. Alarm lamps must not be covered."),
    ("Colour of the charts", "Charts show the last 72 hours. The colour of a line has no meaning for limits."),
    ("Purchase of sensors", "Purchases above 2000 need two offers. Twins are always bought together."),
    ("Energy report", "The energy report is due on the 5th. It uses the meters and not the sensors of the areas."),
    ("Radio licences", "Radio channels 3 and 7 are reserved for the fire brigade."),
    ("Cleaning of probes", "Probes are cleaned every 90 days. Cleaning is announced as planned work."),
    ("Spare parts", "For every 20 devices one spare is kept. The sensor team counts them twice a year."),
)


def _of_another_plant(random: Random, one: tuple[str, str]) -> tuple[str, str]:
    """A distractor of another plant, so that titles differ."""
    title, text = one
    plant = random.choice(_PLANTS)
    part = random.choice(("north wing", "south wing", "yard", "tower", "quay", "annex", "basement", "old hall"))
    return f"{title}, {plant} {part}", f"{text} This holds for {plant}, {part}."


def _text(number: float) -> str:
    return str(plain(number))
