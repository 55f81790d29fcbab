"""The rules of one company's package, drawn per instance, and the documents that state them: in force, superseded, drafts, distractors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from coevo.tasks.refactor.blueprint import Role

__all__ = ["GUIDES", "House", "Person", "Setting", "documents", "draw_house", "example_shim"]

GUIDES = {
    "contributing": "CONTRIBUTING.md",
    "names": "docs/naming.md",
    "layout": "docs/layout.md",
    "api": "docs/api-rules.md",
    "style": "docs/style.md",
    "releases": "docs/releases.md",
    "owners": "docs/owners.md",
    "partners": "docs/partners.md",
}
"""Documents in force, by topic."""

_VERBS: Mapping[str, tuple[str, ...]] = {
    "calc": ("compute", "calculate", "derive"),
    "check": ("is", "has", "can_be"),
    "read": ("parse", "read", "decode"),
    "show": ("format", "render", "show"),
    "find": ("find", "locate", "pick"),
    "build": ("build", "make", "create"),
}
_WORDS: Mapping[str, tuple[str, ...]] = {
    "quantity": ("quantity", "units", "amount_of_units"),
    "text": ("text", "source", "raw"),
    "amount": ("amount", "value", "number"),
}
_MEANING = {"quantity": "a number of things or days", "text": "a text that is read or checked", "amount": "a sum or measure"}
_CHANGES: Mapping[str, tuple[str, ...]] = {
    "renamed": ("Renamed", "Changed", "Names"),
    "moved": ("Moved", "Relocated", "Places"),
    "removed": ("Removed", "Dropped", "Gone"),
    "deprecated": ("Deprecated", "Retired", "Replaced"),
    "signature": ("Signature", "Interface", "Arguments"),
    "internal": ("Internal", "Tidied", "Housekeeping"),
}
_CHANGE_MEANING = {
    "renamed": "a function has another name (give both names)",
    "moved": "a function or module has another place (give its name)",
    "removed": "a function is gone (give its name)",
    "deprecated": "a function is deprecated in favour of another (give both names)",
    "signature": "a function takes other arguments (give its name)",
    "internal": "nothing changes for users: shared helpers, constants, style (give the helper, the constant or the module)",
}
_FIRST = ("Ana", "Bo", "Chidi", "Dana", "Emre", "Farah", "Goran", "Hana", "Ivo", "Jun", "Kira", "Lars", "Mina", "Noor", "Olga", "Piotr")
_LAST = ("Adler", "Brandt", "Costa", "Diaz", "Evans", "Fischer", "Grant", "Horvat", "Ito", "Jensen", "Kaya", "Lopez", "Moreau", "Novak")


@dataclass(frozen=True, slots=True)
class Person:
    """An owner of modules; `id` is what `ask` takes."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class House:
    """Rules of one instance.

    Attributes:
        verbs: Role -> verb.
        words: Kind of parameter -> word.
        changes: Kind of change -> word of the changelog.
        beside: Deprecated names stay in their module; else they live in the module of deprecated names alone.
        major: Next major release, `3.0`.
        date: Since when the rules hold.
        people: Owners, in turn over the modules.
    """

    verbs: Mapping[str, str]
    words: Mapping[str, str]
    changes: Mapping[str, str]
    beside: bool
    major: str
    date: str
    people: tuple[Person, ...]

    def owner(self, place: int) -> Person:
        """Of the module at this place of the layout."""
        return self.people[place % len(self.people)]


def draw_house(random: Random, major: int) -> House:
    """Rules for a package in the series `major`."""
    names = random.sample([f"{first} {last}" for first in _FIRST for last in _LAST], 4)
    ids = random.sample(range(10, 100), 4)
    return House(
        {role: random.choice(verbs) for role, verbs in _VERBS.items()},
        {kind: random.choice(words) for kind, words in _WORDS.items()},
        {kind: random.choice(words) for kind, words in _CHANGES.items()},
        random.random() < 0.5,
        f"{major + 1}.0",
        f"1 {random.choice(('January', 'March', 'May', 'September'))} {random.choice((2025, 2026))}",
        tuple(Person(f"U{number}", name) for number, name in zip(ids, names, strict=True)),
    )


def other_house(random: Random, house: House) -> House:
    """Rules of another version: every verb, word and change differs."""
    return House(
        {role: random.choice([one for one in _VERBS[role] if one != verb]) for role, verb in house.verbs.items()},
        {kind: random.choice([one for one in _WORDS[kind] if one != word]) for kind, word in house.words.items()},
        {kind: random.choice([one for one in _CHANGES[kind] if one != word]) for kind, word in house.changes.items()},
        not house.beside,
        house.major,
        "1 April 2021",
        house.people,
    )


@dataclass(frozen=True, slots=True)
class Setting:
    """What documents need to know of a package: `modules` are (file name without ending, subject), `partners` names of functions."""

    package: str
    version: str
    modules: Sequence[tuple[str, str]]
    shared: str
    settings: str
    compat: str
    partners: Sequence[str]


def documents(random: Random, house: House, setting: Setting, *, extra: int = 4) -> dict[str, str]:
    """All documents but README and the list of the API; path -> text. `extra` distractors."""
    old, draft = other_house(random, house), other_house(random, house)
    files = {
        GUIDES["contributing"]: _contributing(house, setting),
        GUIDES["names"]: _naming(house, f"In force since {house.date}. It replaces docs/archive/naming-2021.md."),
        GUIDES["layout"]: _layout(setting, house),
        GUIDES["api"]: _api_rules(house, setting, f"In force since {house.date}. It replaces docs/archive/api-rules-2021.md."),
        GUIDES["style"]: _style(house),
        GUIDES["releases"]: _releases(house, setting),
        GUIDES["owners"]: _owners(house, setting),
        GUIDES["partners"]: _partners(setting),
        "docs/archive/naming-2021.md": _naming(old, f"In force from {old.date}. Replaced on {house.date} by docs/naming.md."),
        "docs/archive/api-rules-2021.md": _api_rules(
            old, setting, f"In force from {old.date}. Replaced on {house.date} by docs/api-rules.md."
        ),
        "docs/archive/style-2021.md": _OLD_STYLE.format(date=old.date),
        "docs/drafts/naming-next.md": _naming(draft, "Draft for discussion. Nothing of this is decided."),
    }
    for number, (name, text) in enumerate(random.sample(_DISTRACTORS, min(extra, len(_DISTRACTORS))), start=1):
        files[f"docs/notes/{number:02d}-{name}.md"] = text.format(package=setting.package) + "\n"
    return files


def _contributing(house: House, setting: Setting) -> str:
    changes = "\n".join(f"   - `{word}`: {_CHANGE_MEANING[kind]}" for kind, word in house.changes.items())
    return f"""# Contributing to {setting.package}

In force since {house.date}. What lies in docs/archive has been replaced, what lies in docs/drafts is not decided.

1. Names of functions and parameters follow {GUIDES["names"]}, places {GUIDES["layout"]}, deprecation and signatures
   {GUIDES["api"]}, the look of code {GUIDES["style"]}, releases {GUIDES["releases"]}.
2. Nothing is removed before the owner of its module has been asked ({GUIDES["owners"]}): scripts and jobs outside of this
   repository call us too. What partners call by name ({GUIDES["partners"]}) is never removed.
3. Every change has its line under `## Unreleased` in CHANGELOG.md, written `- WORD: name`, or with both names. The words:
{changes}
   Lines of releases are never touched.
4. docs/api.md and README.md tell how things are: they change along.
5. Tests change along with what they test. None is dropped or weakened, except with the function that it tests.
6. A change keeps to its subject. Other files stay as they are.
7. Tests run on a small interpreter: functions, plain classes, and the modules math, re, json, datetime. It knows no
   inheritance, property, yield, del, global or star import.
"""


def _naming(house: House, closing: str) -> str:
    verbs = "\n".join(f"- `{house.verbs[role]}`: {text}" for role, text in Role.ALL.items())
    words = "\n".join(f"- `{word}`: {_MEANING[kind]}" for kind, word in house.words.items())
    return f"""# Names

{closing}

A function is called by a verb and an object, joined by underscores. The verb says what the function does:

{verbs}

Where only the verb is wrong, the object stays. A module carries the name that the layout gives it.

The main parameter of a function has one of these names:

{words}
"""


def _layout(setting: Setting, house: House) -> str:
    modules = "\n".join(f"- `{name}.py`: {subject}" for name, subject in setting.modules)
    return f"""# What lives where

In force since {house.date}.

A function lives in the module of its subject:

{modules}
- `{setting.shared}.py`: helpers that several modules share
- `{setting.settings}.py`: constants, in capitals, that several modules share
- `notices.py`: notes on the use of deprecated names

Other module names are leftovers from the time before this list.
"""


def example_shim(house: House) -> str:
    """The example of a deprecated function, as the rules print it."""
    return f"""    def old_name(*args, **kwargs):
        \"\"\"Deprecated, use new_name.\"\"\"
        note("old_name", "new_name", "{house.major}")
        return new_name(*args, **kwargs)
"""


def _api_rules(house: House, setting: Setting, closing: str) -> str:
    place = (
        "in the module from which the function came, and stays in `__init__.py` beside the new name"
        if house.beside
        else f"in `{setting.compat}.py` and nowhere else; `__init__.py` has the new name only"
    )
    return f"""# Rules of the API

{closing}

Public is what `__init__.py` exports. All other functions are internal: they are renamed, moved and removed without a trace.

A public function that gets another name or place, or that another function replaces, stays as a deprecated one
for the rest of the series. It stands {place}:

{example_shim(house)}
`note` comes from `{setting.package}.notices`; its last argument is the next major release ({GUIDES["releases"]}).
Our own code and tests use the new name only.

Options that are true or false are keyword-only. A parameter follows the list of names. Defaults stay as they are.
"""


def _style(house: House) -> str:
    return f"""# How code looks

In force since {house.date}. It replaces docs/archive/style-2021.md.

1. Every function has a docstring of one sentence, with a full stop.
2. A module that is brought in line lists its functions in `__all__`, a plain list in alphabetical order, behind the imports.
3. A default value is never a list or a dict: it is `None`, and the function makes the value
   (`rows = [] if rows is None else rows`).
4. `None` is compared with `is` and `is not`.
5. Text is put together with f-strings or `+`, not with `%` or `.format`.
"""


_OLD_STYLE = """# How code looks

In force from {date}. Replaced by docs/style.md.

1. Docstrings are short and have no full stop.
2. `__all__` is written in the order of definition, or left out.
3. Text is put together with `%`.
"""


def _releases(house: House, setting: Setting) -> str:
    series = setting.version.partition(".")[0]
    later = f"{int(house.major.partition('.')[0]) + 1}.0"
    return f"""# Releases

The current version is {setting.version} of the series {series}. The next major release is {house.major}; the one behind it will be {later}.

When a major release is prepared, the deprecated functions leave whose note names that release or an earlier one. Those whose note
names a later one stay. Exceptions are in {GUIDES["partners"]}, and owners may know of more.
"""


def _owners(house: House, setting: Setting) -> str:
    lines = "\n".join(
        f"- `{name}.py`: {house.owner(place).name} ({house.owner(place).id})" for place, (name, _) in enumerate(setting.modules)
    )
    return f"""# Owners

They answer questions about single functions: the tool `ask` takes the id of the owner and the name of the function.

{lines}
- everything else: {house.people[0].name} ({house.people[0].id})
"""


def _partners(setting: Setting) -> str:
    lines = "\n".join(f"- `{name}`" for name in setting.partners) or "- none at present"
    return f"""# What partners call

Programs of partners, which we do not see, call these functions by name until the contracts are renewed:

{lines}
"""


_DISTRACTORS = (
    (
        "meeting-of-the-guild",
        "# Notes of the guild\n\nWe talked about shorter names. Some want `get_` for everything. Nothing was decided.",
    ),
    ("holiday-cover", "# Who stands in\n\nIn the last two weeks of the year one owner covers for all. Questions wait until January."),
    ("benchmarks", "# Speed\n\nA month of bookings takes 0.3 seconds. The tests take 2. Nobody asked for more."),
    (
        "old-tracker",
        "# From the old tracker\n\nTicket 41: remove unused code some day. Ticket 57: use camelCase. Both were closed unsolved.",
    ),
    ("packaging", "# Packaging\n\n{package} is built with setuptools. The version stands in `__init__.py` only."),
    ("editor", "# Editor settings\n\nFour blanks, no tabs, lines of up to 100 characters where possible."),
    ("licences", "# Licences\n\nWe use the standard library only, so there is nothing to list."),
    ("glossary", "# Glossary\n\nA shim is a small function that keeps an old name alive. A helper is a function that others share."),
    ("release-2019", "# The release of 2019\n\nAll deprecated functions stayed, because nobody had kept a list."),
    ("wish-list", "# Wishes\n\nTypes everywhere, one day. Options as enums. A command line."),
)
