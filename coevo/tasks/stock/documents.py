"""The library of an alert round: five rules in force, each beside its superseded version, drafts, other desks' rules and distractors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from coevo.tasks.boilerplate import chapter
from coevo.tasks.library import Document
from coevo.tasks.rounds import Scale, plain
from coevo.tasks.stock.rulebook import HOME, KINDS, Atom, Rules, draw_rules

__all__ = ["FEED_QUERY", "QUERIES", "Setting", "Topic", "documents"]

FEED_QUERY = "market data"
"""Words that find the market data desk in the directory."""


class Topic(StrEnum):
    """What a document rules."""

    MOVES = "price moves"
    MUTING = "muting"
    ROUTING = "alert routing"
    REPORT = "round report"
    ROSTER = "duty roster"


QUERIES = {
    Topic.MOVES: "price moves limits severity",
    Topic.MUTING: "muting escalation reason codes",
    Topic.ROUTING: "alert routing recipients",
    Topic.REPORT: "round report exposure",
    Topic.ROSTER: "duty roster risk officer",
}
"""The words by which the reference looks for each."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and when a round takes place."""

    desk: str
    day: str
    others: tuple[str, ...]


def documents(
    random: Random, rules: Rules, setting: Setting, scale: Scale, *, people: tuple[str, ...], draft: bool
) -> tuple[Document, ...]:
    """The shelf of one instance, shuffled."""
    numbers = iter(random.sample(range(100, 1000), 40 + scale.distractors))
    shelf = [*_rule_documents(random, rules, setting, scale, numbers, people, draft=draft)]
    titles = random.sample(_DISTRACTORS, min(4, scale.distractors))
    titles += [_numbered(random, one) for one in random.choices(_DISTRACTORS, k=max(0, scale.distractors - 4))]
    for title, text in titles:
        body = chapter(random, text, count=random.randint(*scale.paragraphs))
        shelf.append(Document(f"P{next(numbers)}", title, body, tuple(title.casefold().replace(",", "").split())))
    random.shuffle(shelf)
    return tuple(shelf)


def _rule_documents(
    random: Random, rules: Rules, setting: Setting, scale: Scale, numbers: Iterator[int], people: tuple[str, ...], *, draft: bool
) -> Iterator[Document]:
    topics = [topic for topic in Topic if topic is not Topic.ROSTER or Atom.ROSTER in rules.atoms]
    for topic in topics:
        current, old = f"P{next(numbers)}", f"P{next(numbers)}"
        writer = _Writer(random, scale, topic)
        yield writer.document(current, rules, setting, _in_force(topic, setting, old), keep=True)
        yield writer.document(old, _other(random, rules, people), setting, _superseded(random, topic, setting, current))
    if draft:
        writer = _Writer(random, scale, Topic.MOVES)
        status = "Draft for comment. It is not in force; comments are due by 30 September 2027."
        yield writer.document(f"P{next(numbers)}", _other(random, rules, people), setting, status)
    other = random.choice(setting.others)
    writer = _Writer(random, scale, Topic.MOVES)
    status = f"In force since 1 February 2026 for the {other} desk only. It does not apply to other desks."
    yield writer.document(f"P{next(numbers)}", _other(random, rules, people), setting, status, title=f"Price moves of the {other} desk")


def _in_force(topic: Topic, setting: Setting, old: str) -> str:
    if topic is Topic.ROSTER:
        return f"In force on {setting.day}."
    return f"In force since 1 January 2026, for all desks without rules of their own. It replaces {old}."


def _superseded(random: Random, topic: Topic, setting: Setting, current: str) -> str:
    if topic is Topic.ROSTER:
        return f"In force on {random.randint(1, 28)} March 2025. The roster of {setting.day} is {current}."
    return f"In force from 1 April 2023. Since 1 January 2026 it is replaced by {current}."


class _Writer:
    """Writes versions of one topic in one layout."""

    def __init__(self, random: Random, scale: Scale, topic: Topic) -> None:
        self._random, self._scale, self._topic = random, scale, topic

    def document(self, number: str, rules: Rules, setting: Setting, status: str, *, keep: bool = False, title: str = "") -> Document:
        text, facts = _TEXTS[self._topic](rules, setting)
        head, keywords = _TITLES[self._topic]
        body = chapter(self._random, text, count=self._random.randint(*self._scale.paragraphs))
        return Document(number, title or head, f"{status}\n\n{body}", keywords, facts if keep else (), str(self._topic) if keep else None)


def _other(random: Random, rules: Rules, people: tuple[str, ...]) -> Rules:
    """Rules of another version: every literal that decides differs."""
    while True:
        other = draw_rules(random, rules.atoms, people)
        shared = set(other.codes) & set(rules.codes) or {one for _, one in other.reasons} & {one for _, one in rules.reasons}
        if (
            not shared
            and other.limits != rules.limits
            and other.step != rules.step
            and other.unit != rules.unit
            and not set(other.recipients) & set(rules.recipients)
        ):
            return other


_TITLES = {
    Topic.MOVES: (
        "Price moves and alert limits",
        ("price", "moves", "move", "alert", "alerts", "limits", "limit", "severity", "rules", "policy"),
    ),
    Topic.MUTING: (
        "Muting and escalation",
        ("muting", "mute", "escalation", "escalate", "reason", "reasons", "codes", "halt", "duplicates", "alerts", "rules", "policy"),
    ),
    Topic.ROUTING: (
        "Routing of alerts",
        ("alert", "alerts", "routing", "recipients", "recipient", "notify", "severity", "rules", "policy"),
    ),
    Topic.REPORT: ("Round report", ("round", "report", "exposure", "closing", "rules", "policy")),
    Topic.ROSTER: ("Duty roster", ("duty", "roster", "risk", "officer", "assistant", "today")),
}


def _write_moves(rules: Rules, _setting: Setting) -> tuple[str, tuple[str, ...]]:
    watch, notice, critical = rules.codes
    limits = [(kind, *map(_text, rules.limit(kind))) for kind in KINDS]
    facts = ["100", watch, notice, critical, *(value for _, *pair in limits for value in pair), _text(rules.step)]
    lines = [
        "The move of an instrument in percent is the last price less the previous close, divided by the previous close, times 100.",
        "It is negative when the price fell.",
        f"It is stated rounded to the nearest {_text(rules.step)} (halves upwards), but compared unrounded and without its sign.",
        f"Severities are, from the lowest to the highest, watch ({watch}), notice ({notice}) and critical ({critical}).",
        "From the first limit on a notice is due, from the second on a critical alert:",
        f"{'; '.join(f'{kind} {low} and {high}' for kind, low, high in limits)}. Below the first limit the instrument is cleared.",
    ]
    if Atom.DIVIDEND in rules.atoms:
        lines.append("On the day of a dividend the previous close is reduced by the dividend before anything else.")
    if Atom.SPLIT in rules.atoms:
        lines.append("On the day of a split the previous close is divided by the ratio before anything else.")
    if Atom.EARNINGS in rules.atoms:
        facts.append(_text(rules.factor))
        lines.append(f"On the day of its earnings both limits of an instrument are multiplied by {facts[-1]}.")
    if Atom.TURNOVER in rules.atoms:
        facts += [_text(rules.heavy), watch]
        lines.append(
            f"A move below the first limit with a turnover of {facts[-2]} times the average or more is watched (severity {watch})."
        )
    if Atom.EXPOSURE in rules.atoms:
        facts.append(str(rules.large))
        lines.append(f"A notice about a position with an exposure above {rules.large} {HOME} is raised to critical.")
    return " ".join(lines), tuple(facts)


def _write_muting(rules: Rules, _setting: Setting) -> tuple[str, tuple[str, ...]]:
    reason, fresh = dict(rules.reasons), str(rules.fresh_minutes)
    facts, lines = [], []
    if Atom.HALT in rules.atoms:
        facts.append(reason[Atom.HALT])
        lines.append(f"trading is halted: mute with reason {reason[Atom.HALT]}")
    if Atom.STALE in rules.atoms:
        facts += [fresh, reason[Atom.STALE]]
        lines.append(f"the quote is older than {fresh} minutes: escalate with reason {reason[Atom.STALE]}")
    if Atom.PRICE_CHECK in rules.atoms:
        facts.append(fresh)
        lines.append(
            f"the quote is older than {fresh} minutes: ask the market data desk for the price and go on with theirs "
            "in place of the last price"
        )
    if Atom.DUPLICATE in rules.atoms:
        facts += [str(rules.repeat_hours), reason[Atom.DUPLICATE]]
        lines.append(
            f"an alert is due, and one of the same or a higher severity was sent within the last {rules.repeat_hours} hours: "
            f"mute with reason {reason[Atom.DUPLICATE]}"
        )
    if Atom.ORDER in rules.atoms:
        facts.append(reason[Atom.ORDER])
        lines.append(
            "a critical alert is due: ask the manager of the position whether the move was planned; if it was, "
            f"mute with reason {reason[Atom.ORDER]}"
        )
    steps = "; ".join(f"({place}) {line}" for place, line in enumerate(lines, start=1))
    return (
        f"Before an alert goes out these cases are checked in this order, and the first one that mutes or escalates decides: {steps}. "
        "What is muted or escalated is not alerted. An instrument for which no alert is due is cleared, never muted."
    ), tuple(facts)


def _write_routing(rules: Rules, _setting: Setting) -> tuple[str, tuple[str, ...]]:
    if Atom.ROSTER in rules.atoms:
        return (
            "A notice goes to the manager of the position. A critical alert goes to the risk officer on duty, a watch alert to the "
            "assistant on duty; the duty roster of the day says who that is. Nobody else is alerted."
        ), ("roster",)
    watch, critical = rules.recipients
    return (
        f"A notice goes to the manager of the position. A critical alert goes to the risk officer, contact {critical}; a watch alert "
        f"goes to the assistant of the desks, contact {watch}. Nobody else is alerted."
    ), (watch, critical)


def _write_report(rules: Rules, _setting: Setting) -> tuple[str, tuple[str, ...]]:
    price = " or the price of the market data desk where that was used" if Atom.PRICE_CHECK in rules.atoms else ""
    convert = f" times the rate of its currency on the currency board, for all but {HOME}" if Atom.CURRENCY in rules.atoms else ""
    return (
        "Every round ends with one report per desk. It states how many alerts were sent in this round, of any severity, and the "
        "exposure of the instruments that they are about. The exposure of a position is its quantity times the last "
        f"price{price}{convert}, rounded to the nearest multiple of {rules.unit} {HOME} (halves upwards); the report gives the sum. "
        "Muted, escalated and cleared instruments do not count."
    ), ("exposure", str(rules.unit))


def _write_roster(rules: Rules, _setting: Setting) -> tuple[str, tuple[str, ...]]:
    watch, critical = rules.recipients
    text = f"On duty as risk officer: contact {critical}. On duty as assistant: contact {watch}. Swaps are entered here at once."
    return text, (watch, critical)


_TEXTS: dict[Topic, Callable[[Rules, Setting], tuple[str, tuple[str, ...]]]] = {
    Topic.MOVES: _write_moves,
    Topic.MUTING: _write_muting,
    Topic.ROUTING: _write_routing,
    Topic.REPORT: _write_report,
    Topic.ROSTER: _write_roster,
}

_DISTRACTORS = (
    ("Trading hours and holidays", "Alert rounds take place at 11:00 and 15:30. On half days only the first one does."),
    ("Opening of accounts", "A custody account is opened within 5 days. Limits for new accounts are set by the credit team."),
    ("Best execution", "Orders are split over at most 3 venues. Price moves during an order are noted in its record."),
    ("Colours of the alert screen", "Red means that nobody looked yet, blue that somebody did. Colours have no meaning for severity."),
    ("Alert archive of 2021", "In 2021 every move above 2 percent was alerted to the whole floor. That was given up as useless."),
    ("Research notes", "Notes are sent before 9:00. A note is no alert and needs no routing."),
    ("Dividends paid to clients", "Dividends reach clients within 2 days. Tax vouchers follow once a quarter."),
    ("Phone recording", "Calls on the desk are recorded and kept for 5 years."),
    ("Expenses of the desks", "Data subscriptions above 900 a month need the approval of the head of desk."),
    (
        "Client reports",
        "Client reports are sent on the 10th. Their exposure figures come from the accounting system and not from the desks.",
    ),
    ("Market data contracts", "The feeds are renewed in June. Whoever needs a new feed asks the market data desk."),
    ("Names and identifiers", "Instruments are named by their identifier. Names are for people and may repeat."),
)


def _numbered(random: Random, one: tuple[str, str]) -> tuple[str, str]:
    """A distractor of another team, so that titles differ."""
    title, text = one
    team = random.choice(("settlement", "custody", "sales", "credit", "treasury", "onboarding", "pensions", "audit", "tax", "lending"))
    place = random.choice(("Basel", "Dublin", "Lyon", "Porto", "Ghent", "Turin", "Malmo", "Leeds"))
    return f"{title}, {team} {place}", f"{text} This holds for {team} in {place}."


def _text(number: float) -> str:
    return str(plain(number))
