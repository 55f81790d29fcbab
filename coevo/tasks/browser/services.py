"""The desks of the portal that deal with requests of colleagues: access rights, room bookings, helpdesk tickets."""

from __future__ import annotations

from random import Random
from types import MappingProxyType
from typing import Any

from coevo.tasks.browser.paperwork import PEOPLE
from coevo.tasks.deskwork import Act, Action, Ask, Desk, Facts, Ids, Record, Rule, Terms

__all__ = ["ACCESS", "BOOKINGS", "CHOICES", "SERVICE_ACTIONS", "TICKETS"]

CHOICES = MappingProxyType(
    {
        "role": ("reader", "editor", "approver"),
        "setup": ("none", "rows", "circle", "buffet"),
        "team": ("onsite", "network", "software", "vendor"),
        "priority": ("low", "normal", "high"),
    }
)
"""Field -> options of its list."""

_SYSTEMS = ("Ledger", "Atlas", "Beacon", "Cobalt", "Drift", "Ember")


def _code(label: str, tool: str, key: str) -> Any:
    return lambda facts, terms: Act(tool, {key: facts["id"], "code": terms["codes"][label]})


def _access_terms(random: Random) -> dict[str, Any]:
    return {"longest": random.choice((30, 60, 90)), "watched": sorted(random.sample(_SYSTEMS, 2))}


def _access_facts(random: Random, terms: Terms) -> dict[str, Any]:
    return {
        "system": random.choice((random.choice(_SYSTEMS), random.choice(terms["watched"]))),
        "role": random.choice(CHOICES["role"]),
        "days": random.choice((10, 14, 20, 45, 75, 120, 180)),
        "contract": random.choice(("permanent", "permanent", "temporary")),
        "training": random.choice(("done", "done", "done", "missing")),
        "cleared": random.choice(("cleared", "refused")),
    }


def _access_records(random: Random, facts: Facts, ids: Ids) -> tuple[Record, ...]:
    employee = ids.take("E")
    request = {
        "id": facts["id"],
        "status": "open",
        "system": facts["system"],
        "role": facts["role"],
        "days": facts["days"],
        "employee": employee,
    }
    person = {"id": employee, "name": random.choice(PEOPLE), "contract": facts["contract"], "training": facts["training"]}
    return (
        Record("access", facts["id"], request, ("system", "role", "days", "employee")),
        Record("employees", employee, person, ("contract", "training")),
    )


ACCESS = Desk(
    name="access",
    prefix="A",
    title="Access requests",
    intro="How open access requests are settled. A request is granted with a role for a number of days, or denied.",
    rules=(
        Rule(
            "training",
            "the employee's training is missing: deny, reason no training;",
            lambda facts, terms: facts["training"] == "missing",
            _code("no training", "deny_access", "request"),
            label="no training",
        ),
        Rule(
            "watched",
            "the systems {watched} are watched; ask the security officer whether the person is cleared. If not: deny, reason not cleared;",
            lambda facts, terms: facts["system"] in terms["watched"] and facts["cleared"] == "refused",
            _code("not cleared", "deny_access", "request"),
            label="not cleared",
            ask=Ask("security", "cleared", "{id}: I looked it up. The person is {value}."),
            arises=lambda facts, terms: facts["system"] in terms["watched"],
        ),
        Rule(
            "temporary",
            "a temporary contract and more than {longest} days: grant the role that was asked for, for {longest} days;",
            lambda facts, terms: facts["contract"] == "temporary" and facts["days"] > terms["longest"],
            lambda facts, terms: Act("grant_access", {"request": facts["id"], "role": facts["role"], "days": terms["longest"]}),
            core=True,
        ),
        Rule(
            "asked",
            "otherwise grant what was asked for.",
            lambda facts, terms: True,
            lambda facts, terms: Act("grant_access", {"request": facts["id"], "role": facts["role"], "days": facts["days"]}),
            core=True,
        ),
    ),
    terms=_access_terms,
    facts=_access_facts,
    records=_access_records,
    words=("rights", "request", "systems"),
)


def _booking_terms(random: Random) -> dict[str, Any]:
    crowd, few = random.sample(CHOICES["setup"][1:], 2)
    return {"hours": random.choice((3, 4, 5)), "crowd": random.choice((9, 11, 12)), "crowd_setup": crowd, "few_setup": few}


def _booking_facts(random: Random, terms: Terms) -> dict[str, Any]:
    return {
        "people": random.randint(2, 20),
        "hours": random.choice((1, 2, 3, 4, 6, 8)),
        "needs_video": random.choice(("no", "no", "yes")),
        "seats": random.choice((8, 12, 16, 24)),
        "video": random.choice(("yes", "no")),
        "state": random.choice(("ready", "ready", "ready", "closed")),
    }


def _booking_records(random: Random, facts: Facts, ids: Ids) -> tuple[Record, ...]:
    room = ids.take("M")
    booking = {
        "id": facts["id"],
        "status": "open",
        "name": random.choice(PEOPLE),
        "people": facts["people"],
        "hours": facts["hours"],
        "needs_video": facts["needs_video"],
        "room": room,
    }
    place = {"id": room, "seats": facts["seats"], "video": facts["video"], "state": facts["state"], "floor": random.randint(1, 9)}
    return (
        Record("bookings", facts["id"], booking, ("people", "hours", "needs_video", "room")),
        Record("rooms", room, place, ("seats", "video", "state")),
    )


def _confirm(setup: str) -> Any:
    return lambda facts, terms: Act("confirm_booking", {"booking": facts["id"], "setup": terms[setup]})


BOOKINGS = Desk(
    name="bookings",
    prefix="B",
    title="Room bookings",
    intro="How open room bookings are settled. A booking is confirmed with a setup, or declined.",
    rules=(
        Rule(
            "closed",
            "the room's state is closed: decline, reason closed room;",
            lambda facts, terms: facts["state"] == "closed",
            _code("closed room", "decline_booking", "booking"),
            label="closed room",
        ),
        Rule(
            "long",
            "more than {hours} hours: decline, reason too long;",
            lambda facts, terms: facts["hours"] > terms["hours"],
            _code("too long", "decline_booking", "booking"),
            label="too long",
        ),
        Rule(
            "video",
            "video is needed and the room has none: decline, reason no video;",
            lambda facts, terms: facts["needs_video"] == "yes" and facts["video"] == "no",
            _code("no video", "decline_booking", "booking"),
            label="no video",
        ),
        Rule(
            "small",
            "more people than seats: decline, reason too small;",
            lambda facts, terms: facts["people"] > facts["seats"],
            _code("too small", "decline_booking", "booking"),
            label="too small",
            core=True,
        ),
        Rule(
            "crowd",
            "{crowd} people or more: confirm with the setup {crowd_setup};",
            lambda facts, terms: facts["people"] >= terms["crowd"],
            _confirm("crowd_setup"),
        ),
        Rule("few", "otherwise confirm with the setup {few_setup}.", lambda facts, terms: True, _confirm("few_setup"), core=True),
    ),
    terms=_booking_terms,
    facts=_booking_facts,
    records=_booking_records,
    words=("booking", "room", "rooms", "meeting"),
)


def _ticket_terms(random: Random) -> dict[str, Any]:
    hardware, other = random.sample(CHOICES["team"][:3], 2)
    urgent, calm = random.sample(CHOICES["priority"], 2)
    return {"hardware": hardware, "other": other, "urgent": urgent, "calm": calm, "waiting": random.choice((3, 4, 5, 6)), "maker": "vendor"}


_TROUBLE = MappingProxyType(
    {
        "password": ("I can't sign in any more.", "The system says that my password has expired."),
        "hardware": ("The screen stays dark.", "The keyboard types everything twice.", "It makes a noise like a kettle."),
        "software": ("The table opens, but all numbers are gone.", "Every print comes out twice.", "The update stops at the same place."),
    }
)


def _ticket_facts(random: Random, terms: Terms) -> dict[str, Any]:
    return {
        "category": random.choice(("password", "hardware", "hardware", "software", "software")),
        "waiting": random.randint(0, 9),
        "warranty": random.choice(("expired", "expired", "valid")),
        "duplicate": random.choice(("none", "none", "none", f"T{random.randint(100, 999)}")),
    }


def _ticket_records(random: Random, facts: Facts, ids: Ids) -> tuple[Record, ...]:
    device = ids.take("Y")
    ticket = {
        "id": facts["id"],
        "status": "open",
        "category": facts["category"],
        "name": random.choice(PEOPLE),
        "days_waiting": facts["waiting"],
        "duplicate_of": facts["duplicate"],
        "text": random.choice(_TROUBLE[facts["category"]]),
        "device": device,
    }
    thing = {"id": device, "model": random.choice(("desk", "travel", "studio")), "warranty": facts["warranty"]}
    return (
        Record("tickets", facts["id"], ticket, ("category", "days_waiting", "duplicate_of", "device")),
        Record("devices", device, thing, ("warranty",)),
    )


def _assign(team: str, priority: str) -> Any:
    return lambda facts, terms: Act("assign_ticket", {"ticket": facts["id"], "team": terms[team], "priority": terms[priority]})


TICKETS = Desk(
    name="tickets",
    prefix="T",
    title="Helpdesk tickets",
    intro="What happens to open tickets. Each is assigned to a team with a priority, or closed.",
    rules=(
        Rule(
            "duplicate",
            "it is a duplicate of another ticket: close it, reason duplicate;",
            lambda facts, terms: facts["duplicate"] != "none",
            _code("duplicate", "close_ticket", "ticket"),
            label="duplicate",
        ),
        Rule(
            "password",
            "category password: close it, reason self service;",
            lambda facts, terms: facts["category"] == "password",
            _code("self service", "close_ticket", "ticket"),
            label="self service",
        ),
        Rule(
            "warranty",
            "hardware with a valid warranty: assign to the team {maker} with priority {calm};",
            lambda facts, terms: facts["category"] == "hardware" and facts["warranty"] == "valid",
            _assign("maker", "calm"),
        ),
        Rule(
            "waiting",
            "waiting for more than {waiting} days: assign to {other} with priority {urgent};",
            lambda facts, terms: facts["waiting"] > terms["waiting"],
            _assign("other", "urgent"),
        ),
        Rule(
            "hardware",
            "category hardware: assign to {hardware} with priority {calm};",
            lambda facts, terms: facts["category"] == "hardware",
            _assign("hardware", "calm"),
            core=True,
        ),
        Rule("other", "otherwise assign to {other} with priority {calm}.", lambda facts, terms: True, _assign("other", "calm"), core=True),
    ),
    terms=_ticket_terms,
    facts=_ticket_facts,
    records=_ticket_records,
    words=("ticket", "helpdesk", "support"),
)

SERVICE_ACTIONS = MappingProxyType(
    {
        one.tool: one
        for one in (
            Action("grant_access", "access", "request", "grant", "granted", "open", ("role", "days")),
            Action("deny_access", "access", "request", "deny", "denied", "open", ("code",)),
            Action("confirm_booking", "bookings", "booking", "confirm", "confirmed", "open", ("setup",)),
            Action("decline_booking", "bookings", "booking", "decline", "declined", "open", ("code",)),
            Action("assign_ticket", "tickets", "ticket", "assign", "assigned", "open", ("team", "priority")),
            Action("close_ticket", "tickets", "ticket", "close", "closed", "open", ("code",)),
        )
    }
)
"""Form -> what it does to a request, a booking or a ticket."""
