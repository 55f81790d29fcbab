"""One instance: a package drawn by seed with jobs to do on it, its documents, the files as they are and as they could be in the end.

The target files are one way to do the jobs, for the reference policy and for expected results; the grader asks for marks and behaviour, not
for these files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from string import Template
from types import MappingProxyType

from coevo.tasks.refactor.blueprint import Blueprint, Copies, Numbers, Piece, library, planted, slots
from coevo.tasks.refactor.draft import CHANGELOG, Draft, files_of
from coevo.tasks.refactor.house import House, Setting, documents, draw_house
from coevo.tasks.refactor.jobs import JOBS, Bench, Job
from coevo.tasks.refactor.marks import Entry, Files, Mark, Style, problem_of

__all__ = ["Case", "Requirement", "Volume", "draw_case"]

_PACKAGES = (
    ("bookshop", "book", "Tools of a bookshop"),
    ("toolhire", "tool", "Tools of a hire shop"),
    ("seedbank", "seed", "Tools of a seed store"),
    ("bikepool", "bike", "Tools of a bicycle pool"),
    ("winecellar", "bottle", "Tools of a wine merchant"),
    ("fleetdesk", "van", "Tools of a delivery fleet"),
    ("mealplan", "dish", "Tools of a canteen"),
    ("printworks", "print", "Tools of a print shop"),
    ("museum", "exhibit", "Tools of a museum"),
    ("timber", "plank", "Tools of a timber yard"),
    ("pharmacy", "remedy", "Tools of a pharmacy"),
    ("toyshop", "toy", "Tools of a toy shop"),
    ("nursery", "plant", "Tools of a plant nursery"),
    ("bakery", "loaf", "Tools of a bakery"),
    ("archive", "file", "Tools of an archive"),
    ("marina", "boat", "Tools of a marina"),
)
_WORDS = ("oak", "lamp", "river", "stone", "amber", "violet", "harbour", "maple", "cedar", "pearl", "comet", "willow", "ember", "linen")
_INPUT = re.compile(r"<(?:([id])(\d+)-(\d+)|(w|code|date|ints|decs))>")
_OPENINGS = (
    "You maintain the package `{package}`.",
    "This is the repository of `{package}`.",
    "Please look after `{package}` for us.",
    "A small piece of work on `{package}`:",
)


@dataclass(frozen=True, slots=True)
class Volume:
    """How much there is beside the package of the work.

    Attributes:
        tops: Modules of the top layer, each with all that it uses.
        notes: Documents that rule nothing.
        neighbours: Other packages in the repository.
        releases: Releases in the changelog.
    """

    tops: int
    notes: int
    neighbours: int
    releases: int


@dataclass(frozen=True, slots=True)
class Requirement:
    """Marks that make one checkpoint. A `guard` holds before any work and must hold after it."""

    name: str
    marks: tuple[Mark, ...]
    guard: bool

    def problem(self, files: Files) -> str | None:
        """The first problem."""
        return next((found for mark in self.marks if (found := problem_of(mark, files)) is not None), None)


@dataclass(frozen=True, eq=False)
class Case:
    """Everything about one instance; equal only to itself, so that results can be cached by it.

    Attributes:
        instruction: What the user asks.
        package: Import name.
        before, target: path -> text.
        jobs: What is to be done.
        requirements: What will show it.
        modules: Dotted names that probes load.
        probes: Expressions over hidden inputs, for the package after the work.
        pairs: The same for the package before it, where the function exists in both; None elsewhere.
        answers: (person id, function name) -> reply.
        people: Person id -> name.
        lost_tests: Tests that may go.
    """

    instruction: str
    package: str
    before: Mapping[str, str]
    target: Mapping[str, str]
    jobs: tuple[Job, ...]
    requirements: tuple[Requirement, ...]
    modules: tuple[str, ...]
    probes: tuple[str, ...]
    pairs: tuple[str | None, ...]
    answers: Mapping[tuple[str, str], str]
    people: Mapping[str, str]
    lost_tests: frozenset[str]


def draw_case(random: Random, kinds: Sequence[str], volume: Volume) -> Case:
    """Draw a package and put the jobs of these kinds on it."""
    packages = random.sample(_PACKAGES, volume.neighbours + 1)
    major = random.randint(1, 4)
    house = draw_house(random, major)
    draft = _draft(random, house, packages[0], f"{major}.{random.randint(0, 9)}.{random.randint(0, 9)}", volume.tops)
    bench = Bench(random, house, draft, draft.copy())
    bench.taken.update(_habits(random, bench, kinds))
    jobs = tuple(JOBS[kind](bench) for kind in kinds)
    _publish(bench)
    return _written(random, bench, jobs, packages, volume)


def _draft(random: Random, house: House, package: tuple[str, str, str], version: str, tops: int) -> Draft:
    """A package that keeps all rules: `tops` modules of the top layer and what they use."""
    name, item, about = package
    draft = Draft(name, version, {"item": item, "about": about})
    stock = {one.key: one for one in library()}
    for key in _needed(random, stock, tops):
        draft.modules[key] = (random.choice(stock[key].names), stock[key].title)
        for piece in stock[key].pieces:
            draft.add(piece, key, name=f"{house.verbs[piece.role]}_{piece.slot}")
            if piece.param:
                draft.params[piece.slot] = house.words[piece.param]
    for key, title in _SERVICE.items():
        draft.modules[key] = (random.choice(_SERVICE_NAMES[key]), title)
        draft.internal.add(key)
    draft.add(Piece("NOTICES", "$NOTICES = []\n"), "notices", name="NOTICES")
    draft.add(Piece("note", _NOTE), "notices", name="note")
    idle = [slot for slot in draft.pieces if draft.pieces[slot].role and not draft.users(slot)]
    used = [slot for slot in draft.pieces if draft.pieces[slot].role and draft.users(slot)]
    draft.public = [*idle, *random.sample(used, min(5, len(used) // 2))]
    return draft


_SERVICE = {
    "shared": "Helpers that several modules share",
    "settings": "Constants that several modules share",
    "compat": "Deprecated names",
    "notices": "Notes on the use of deprecated names",
}
_SERVICE_NAMES = {
    "shared": ("shared", "parts", "toolbox"),
    "settings": ("settings", "constants", "limits"),
    "compat": ("compat", "legacy"),
    "notices": ("notices",),
}
_NOTE = (
    'def $note(old, new, release):\n    """Remember that a deprecated name was used."""\n'
    '    $NOTICES.append(f"{old} is deprecated, use {new}; it leaves with {release}")\n'
)


def _needed(random: Random, stock: Mapping[str, Blueprint], tops: int) -> list[str]:
    """Keys of random top modules and of all that they use, in the order of the stock."""
    owner = {piece.slot: key for key, one in stock.items() for piece in one.pieces}
    top = [key for key, one in stock.items() if one.layer == max(other.layer for other in stock.values())]
    wanted, waiting = set[str](), random.sample(top, min(tops, len(top)))
    while waiting:
        key = waiting.pop()
        if key not in wanted:
            wanted.add(key)
            waiting += [owner[slot] for piece in stock[key].pieces for slot in slots(piece.code) if slot in owner]
    return [key for key in stock if key in wanted]


def _habits(random: Random, bench: Bench, kinds: Sequence[str]) -> set[str]:
    """A shared helper and a shared constant that are already there, as examples to follow; the pieces are taken."""
    copies = random.choice(planted().copies)
    numbers = random.choice(planted().numbers)
    places = bench.spread(4)
    found: list[Copies | Numbers] = [copies, numbers]
    for group in found:
        for (_, piece), place in zip(group.hosts[:2], places, strict=False):
            bench.plant(piece, place)
        places = places[2:]
    bench.plant(copies.helper, "shared")
    bench.plant(Piece(numbers.constant, f"${numbers.constant} = {numbers.value}\n"), "settings", name=numbers.constant)
    return {copies.decoy.slot, numbers.decoy.slot, *(host.slot for group in found for host, _ in group.hosts)}


def _publish(bench: Bench) -> None:
    """Whatever nothing uses is public, except what jobs planted as leftovers or internal wrappers."""
    leftovers = {piece.slot for piece in planted().leftovers}
    for slot, piece in bench.after.pieces.items():
        if piece.role and slot not in leftovers and slot in bench.before.pieces and not bench.after.users(slot):
            for draft in (bench.before, bench.after):
                if slot not in draft.public:
                    draft.public.append(slot)


def _written(random: Random, bench: Bench, jobs: tuple[Job, ...], packages: Sequence[tuple[str, str, str]], volume: Volume) -> Case:
    before, after, house = bench.before, bench.after, bench.house
    setting = Setting(
        package=after.package,
        version=after.version,
        modules=[after.modules[key] for key in after.modules if key not in after.internal],
        shared=after.modules["shared"][0],
        settings=after.modules["settings"][0],
        compat=after.modules["compat"][0],
        partners=bench.partners,
    )
    common = documents(random, house, setting, extra=volume.notes)
    for package in packages[1:]:
        common |= _neighbour(random, package)
    log = _changelog(random, before, volume.releases)
    entries = [f"- {house.changes[job.change]}: {', '.join(f'`{name}`' for name in job.names)}" for job in jobs]
    old_files = {**common, **files_of(before), CHANGELOG: log.format(entries="")}
    new_files = {**common, **files_of(after), CHANGELOG: log.format(entries="".join(f"{entry}\n" for entry in entries))}
    instruction = " ".join([random.choice(_OPENINGS).format(package=before.package), *(job.ask for job in jobs)])
    probes = _probes(random, bench)
    return Case(
        instruction=f"{instruction} The rules for contributors are in the repository.",
        package=before.package,
        before=MappingProxyType(old_files),
        target=MappingProxyType(new_files),
        jobs=jobs,
        requirements=_requirements(jobs, house, old_files, new_files),
        modules=tuple(after.dotted(key) for key in after.modules),
        probes=tuple(one for one, _ in probes),
        pairs=tuple(other for _, other in probes),
        answers=MappingProxyType(bench.answers),
        people=MappingProxyType({person.id: person.name for person in house.people}),
        lost_tests=frozenset(f"test_{slot}" for job in jobs for slot in job.gone),
    )


def _requirements(jobs: Sequence[Job], house: House, before: Files, target: Files) -> tuple[Requirement, ...]:
    """Marks by checkpoint: work by kind and file, what holds already in one guard, the changelog."""
    work: dict[str, list[Mark]] = {}
    held: list[Mark] = []
    for job in jobs:
        for mark in job.marks(before, target):
            if problem_of(mark, before) is None:
                held.append(mark)
            else:
                label = f"{job.kind}_{mark.rule}" if isinstance(mark, Style) else job.kind
                work.setdefault(f"{label}:{mark.path}", []).append(mark)
    found = [Requirement(name, tuple(marks), False) for name, marks in work.items()]
    found.append(Requirement(f"entry:{CHANGELOG}", tuple(Entry(CHANGELOG, house.changes[job.change], job.names) for job in jobs), False))
    return (*found, Requirement("held_before", tuple(held), True))


def _neighbour(random: Random, package: tuple[str, str, str]) -> dict[str, str]:
    """Another package of the repository, with its own habits; none of the work is there."""
    house = draw_house(random, random.randint(1, 4))
    draft = _draft(random, house, package, f"{random.randint(1, 4)}.{random.randint(0, 9)}.0", 3)
    moved = {"README.md": f"{package[0]}/README.md", "docs/api.md": f"{package[0]}/api.md"}
    return {moved.get(path, path.replace("tests/", f"{package[0]}/tests/")): text for path, text in files_of(draft).items()}


def _changelog(random: Random, draft: Draft, releases: int) -> str:
    """A changelog with the slot `entries` in its unreleased part."""
    major, minor, _ = (int(part) for part in draft.version.split("."))
    parts = ["# Changes\n\n## Unreleased\n\n{entries}"]
    slots_here = [slot for slot in draft.pieces if draft.pieces[slot].role]
    for number in range(releases):
        version = (
            draft.version if number == 0 else f"{major}.{minor - number}.0" if minor >= number else f"{max(major - 1, 0)}.{99 - number}.0"
        )
        lines = [f"- {random.choice(_PAST).format(name=random.choice(slots_here).replace('_', ' '))}" for _ in range(random.randint(2, 4))]
        parts.append("\n".join([f"## {version}", "", *lines, ""]))
    return "\n".join(parts)


_PAST = ("Faster {name}.", "Corrected the {name} for empty input.", "Documented the {name}.", "Added the {name}.", "Tests for the {name}.")


def _probes(random: Random, bench: Bench) -> list[tuple[str, str | None]]:
    """(expression after, the same before or None); deprecated names are tried too, with the note that they leave."""
    before, after = bench.before, bench.after
    found: list[tuple[str, str | None]] = []
    for slot, piece in after.pieces.items():
        old = before.pieces.get(slot)
        for probe in piece.probes:
            drawn = _INPUT.sub(lambda match: _drawn(random, match), probe)
            found.append((_reached(drawn, after), _reached(drawn, before) if old is not None else None))
        target = re.search(r"return \$(\w+)\(\*args", piece.code)
        if target is not None:
            for probe in after.pieces[target.group(1)].probes[:2]:
                called = re.sub(rf"\${target.group(1)}\b", f"${slot}", _INPUT.sub(lambda match: _drawn(random, match), probe))
                found.append((f"[{_reached(called, after)}, _m({after.dotted('notices')!r}).NOTICES[-1:]]", None))
    return found


def _reached(template: str, draft: Draft) -> str:
    values = dict(draft.nouns)
    for slot in slots(template):
        if slot in draft.homes:
            values[slot] = f"_m({draft.dotted(draft.homes[slot].module)!r}).{draft.names[slot]}"
    return Template(template).substitute(values)


def _drawn(random: Random, match: re.Match[str]) -> str:
    kind, low, high, other = match.groups()
    if kind:
        number = random.randint(int(low), int(high))
        return str(number) if kind == "i" else f"{number}.{random.randint(1, 99):02d}"
    draw: Mapping[str, Callable[[], str]] = {
        "w": lambda: random.choice(_WORDS),
        "code": lambda: f"{random.choice('abxy')}{random.choice('abxy')} {random.randint(1, 99)}",
        "date": lambda: f"{random.randint(2019, 2027)}-{random.randint(1, 12):02d}-{random.randint(1, 28):02d}",
        "ints": lambda: str([random.randint(-9, 60) for _ in range(random.randint(1, 7))]),
        "decs": lambda: str([random.randint(1, 900) / 4 for _ in range(random.randint(1, 7))]),
    }
    return draw[other]()
