"""The kinds of work: each changes the package before it (what was left wrong) or after it (what is asked), and says what will show it.

A job is drawn on a `Bench`: two drafts of the same package, which it makes differ. Its marks are made when both are written out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from coevo.errors import ConfigError
from coevo.tasks.refactor.blueprint import Piece, planted
from coevo.tasks.refactor.draft import Draft, Home, acyclic, signature
from coevo.tasks.refactor.house import GUIDES, House, Person
from coevo.tasks.refactor.marks import (
    Constant,
    Defined,
    Files,
    KeywordFlag,
    Mark,
    Names,
    NoFile,
    NoImport,
    NoKeyword,
    NoSign,
    Quoted,
    Section,
    Shim,
    Style,
    Undefined,
    Uses,
    Words,
)

__all__ = ["JOBS", "Bench", "Fact", "Job"]

API, README = "docs/api.md", "README.md"
_WRONG_VERBS = ("get", "do", "handle", "process", "fetch", "my")
_WRONG_PARAMS = {"quantity": ("q", "n_things"), "text": ("s", "inp"), "amount": ("a", "val_in")}
_WRONG_MODULES = ("misc", "stuff", "tidbits", "varia")


@dataclass(frozen=True, slots=True)
class Fact:
    """Something to learn before a change: the tokens that a document (`source` is a path) or a person's answer on `about` carries."""

    source: str
    tokens: tuple[str, ...]
    about: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of work.

    Attributes:
        kind: Which, for checkpoint names.
        ask: Sentence of the instruction.
        change: Kind of change in the changelog.
        names: What the changelog must name.
        facts: What must be learned.
        queries: Words that lead to the places.
        marks: From the files before and after: what will show the work.
        gone: Slots whose tests may go with them.
    """

    kind: str
    ask: str
    change: str
    names: tuple[str, ...]
    facts: tuple[Fact, ...]
    queries: tuple[str, ...]
    marks: Callable[[Files, Files], list[Mark]]
    gone: tuple[str, ...] = ()


@dataclass
class Bench:
    """Where jobs are drawn.

    Attributes:
        random: Of the instance.
        house: Rules.
        before, after: The package as it is, and as it should be.
        taken: Slots and module keys that a job has for itself.
        partners: Names that partners call.
        answers: (person id, function name) -> reply.
    """

    random: Random
    house: House
    before: Draft
    after: Draft
    taken: set[str] = field(default_factory=set)
    partners: list[str] = field(default_factory=list)
    answers: dict[tuple[str, str], str] = field(default_factory=dict)

    def pick(self, wanted: Callable[[str], bool]) -> str:
        """A random free slot of the package that fits; it is taken. Raises `ConfigError` where none does."""
        free = [slot for slot in self.after.pieces if slot not in self.taken and self.after.pieces[slot].role and wanted(slot)]
        if not free:
            raise ConfigError("no function of the package fits a job", seen=sorted(self.taken), fix="use fewer jobs or more modules")
        slot = self.random.choice(free)
        self.taken.add(slot)
        return slot

    def module(self, *, but: Sequence[str] = ()) -> str:
        """A random ordinary module key."""
        return self.random.choice([one for one in self.after.modules if one not in self.after.internal and one not in but])

    def plant(self, piece: Piece, module: str, *, after: Piece | None = None, name: str = "") -> None:
        """Put a piece into both drafts, as `after` into the second; it is taken."""
        name = name or self.named(piece)
        self.before.add(piece, module, name=name)
        self.after.add(piece if after is None else after, module, name=name)
        self.taken.add(piece.slot)

    def named(self, piece: Piece) -> str:
        """The name by the rules."""
        return f"{self.house.verbs[piece.role]}_{piece.slot}"

    def now(self, path: str) -> str:
        """Where a file of the package before is after the work."""
        return next((self.after.path(key) for key in self.before.modules if self.before.path(key) == path), path)

    def spread(self, count: int) -> list[str]:
        """Different ordinary modules."""
        return self.random.sample([one for one in self.after.modules if one not in self.after.internal], count)

    def owner(self, slot: str) -> Person:
        """Owner of the module that defines a piece."""
        return self.house.owner(list(self.before.modules).index(self.before.homes[slot].module))

    def fact(self, topic: str, *tokens: str) -> Fact:
        """A fact of a document in force."""
        return Fact(GUIDES[topic], tokens)

    def shim(self, slot: str, old: str) -> Fact:
        """Deprecate the name `old` of a piece by the rules, in the package after; the fact is how."""
        shim = Piece(f"old_{slot}", _shim_code(f"old_{slot}", slot, self.house.major))
        place = self.before.homes[slot].module if self.house.beside else "compat"
        behind = slot if self.after.homes[slot].module == place else ""
        self.after.add(shim, place, name=old, after=behind)
        self.taken.add(shim.slot)
        if self.house.beside:
            self.after.public.append(shim.slot)
        return self.shim_fact()

    def shim_fact(self) -> Fact:
        """What the rules say on deprecated names."""
        place = "beside" if self.house.beside else self.after.modules["compat"][0]
        return self.fact("api", place, self.house.major, "notices", "note", "args", "kwargs", "Deprecated")

    def ask_owner(self, slot: str, reply: str, *tokens: str) -> tuple[Fact, Fact]:
        """A question that the owner of a piece must be asked: who it is, and the answer."""
        person, name = self.owner(slot), self.before.names[slot]
        self.answers[(person.id, name)] = reply
        return self.fact("owners", person.id), Fact(person.id, tokens, name)


def _shim_code(old: str, new: str, release: str) -> str:
    return (
        f'def ${old}(*args, **kwargs):\n    """Deprecated, use ${new}."""\n    $note("${old}", "${new}", "{release}")\n'
        f"    return ${new}(*args, **kwargs)\n"
    )


def _holding(files: Files, word: str, *, suffix: str = "") -> list[str]:
    return [path for path, text in files.items() if path.endswith(suffix) and re.search(rf"\b{word}\b", text)]


def _gone(before: Files, after: Files, old: Sequence[str], new: Sequence[str] = (), *, spare: Sequence[str] = ()) -> list[Mark]:
    """Marks for names that leave: in code and documents that had them, except where the package after still has them on purpose."""
    marks: list[Mark] = []
    for path in dict.fromkeys(path for name in old for path in _holding(before, name)):
        if path not in after or not path.endswith((".py", ".md")):
            continue
        kept = set(_holding(after, "|".join(old)))
        present = tuple(name for name in new if re.search(rf"\b{name}\b", after[path]))
        if path in (API, README):
            absent = tuple(name for name in old if not re.search(rf"\b{name}\b", after[path]))
            marks.append(Words(path, present, absent))
        elif path.endswith(".py"):
            exported = path.endswith("__init__.py") and path in kept
            marks.append(Names(path, (*present, *old) if exported else present, () if exported else tuple(old), frozenset(spare)))
    return marks


def rename(bench: Bench, *, public: bool) -> Job:
    """A verb against the rules; public functions leave a deprecated name."""
    after, before = bench.after, bench.before
    slot = bench.pick(lambda one: (one in after.public) == public and bool(after.users(one)))
    old = f"{bench.random.choice(_WRONG_VERBS)}_{slot}"
    before.names[slot] = old
    new, module = after.names[slot], before.modules[before.homes[slot].module][0]
    facts = [bench.fact("names", after.names[slot].removesuffix(f"_{slot}")), bench.fact("contributing", bench.house.changes["renamed"])]
    facts += [bench.shim(slot, old)] if public else [bench.fact("api", "internal")]
    place = after.path(after.homes[f"old_{slot}"].module) if public else ""

    def marks(old_files: Files, new_files: Files) -> list[Mark]:
        found = _gone(old_files, new_files, [old], [new], spare=[old])
        found.append(Defined(after.where(slot), signature(slot, after)))
        return [*found, Shim(place, old, new, bench.house.major)] if public else found

    ask = f"`{old}` in `{module}` has a name against our rules. Rename it and leave everything as the rules want it."
    return Job("rename", ask, "renamed", (old, new), tuple(facts), (old,), marks)


def rename_public(bench: Bench) -> Job:
    """See `rename`."""
    return rename(bench, public=True)


def rename_internal(bench: Bench) -> Job:
    """See `rename`."""
    return rename(bench, public=False)


def move(bench: Bench) -> Job:
    """An internal function in a module that is not that of its subject."""
    before, after = bench.before, bench.after

    def places(slot: str) -> list[str]:
        found = []
        for module in after.modules:
            trial = before.copy()
            trial.homes[slot] = Home(module, trial.homes[slot].tests)
            if module not in (after.homes[slot].module, *after.internal, *bench.taken) and acyclic(trial):
                found.append(module)
        return found

    def fits(slot: str) -> bool:
        home = after.homes[slot].module
        outside = [one for one in after.users(slot) if after.homes[one].module != home]
        return slot not in after.public and home not in bench.taken and bool(outside) and bool(places(slot))

    slot = bench.pick(fits)
    wrong, home = bench.random.choice(places(slot)), after.homes[slot].module
    before.homes[slot] = Home(wrong, home)
    bench.taken.update((wrong, home))
    name, (source, _), (target, _) = after.names[slot], before.modules[wrong], after.modules[home]

    def marks(old_files: Files, new_files: Files) -> list[Mark]:
        users = [path for path in _holding(old_files, name, suffix=".py") if path != before.path(wrong)]
        found: list[Mark] = [
            Defined(after.path(home), signature(slot, after)),
            Section(API, target, name),
            Undefined(before.path(wrong), name),
        ]
        return [*found, *(NoImport(bench.now(path), before.dotted(wrong), name) for path in users)]

    facts = (bench.fact("layout", target), bench.fact("api", "internal"), bench.fact("contributing", bench.house.changes["moved"]))
    ask = f"`{name}` sits in `{source}.py`, where it does not belong. Put it where the layout wants it."
    return Job("move", ask, "moved", (name,), facts, (name,), marks)


def module(bench: Bench) -> Job:
    """A module under a name that the layout does not know."""
    before, after = bench.before, bench.after
    key = bench.random.choice(
        [one for one in after.modules if one not in after.internal and one not in bench.taken and _imported(after, one)]
    )
    bench.taken.add(key)
    (new, title), old = after.modules[key], bench.random.choice(_WRONG_MODULES)
    before.modules[key] = (old, title)
    for draft in (before, after):
        draft.test_names[key] = old

    def marks(old_files: Files, new_files: Files) -> list[Mark]:
        slots_here = [slot for slot, home in after.homes.items() if home.module == key and after.pieces[slot].role]
        found: list[Mark] = [NoFile(before.path(key)), Words(API, (new,), (old,))]
        found += [Defined(after.path(key), signature(slot, after)) for slot in slots_here]
        return [*found, *(NoImport(path, before.dotted(key)) for path in old_files if path.endswith(".py") and path != before.path(key))]

    facts = (bench.fact("layout", new), bench.fact("contributing", bench.house.changes["moved"]))
    ask = f"`{old}.py` has a name that says nothing ({title[0].lower()}{title[1:]}). Give the module the name that the layout has for it."
    return Job("module", ask, "moved", (new,), facts, (old,), marks)


def _imported(draft: Draft, key: str) -> bool:
    return any(draft.homes[user].module != key for slot, home in draft.homes.items() if home.module == key for user in draft.users(slot))


def extract(bench: Bench) -> Job:
    """Copied steps become one helper; a look-alike stays."""
    copies = bench.random.choice([one for one in planted().copies if one.helper.slot not in bench.taken])
    places = bench.spread(4)
    for (old, new), place in zip(copies.hosts, places, strict=False):
        bench.plant(old, place, after=new)
    bench.plant(copies.decoy, places[3])
    name = bench.named(copies.helper)
    bench.after.add(copies.helper, "shared", name=name)
    bench.taken.add(copies.helper.slot)
    after = bench.after

    def marks(old_files: Files, new_files: Files) -> list[Mark]:
        found: list[Mark] = [Defined(after.path("shared"), signature(copies.helper.slot, after))]
        for host, _ in copies.hosts:
            path, function = after.where(host.slot), after.names[host.slot]
            found += [Uses(path, function, name), NoSign(path, function, copies.sign)]
        return found

    shared, (sample, _) = after.modules["shared"][0], copies.hosts[0]
    facts = (
        bench.fact("layout", shared),
        bench.fact("style", "docstring", "Every", "function"),
        bench.fact("contributing", bench.house.changes["internal"]),
    )
    ask = (
        f"{copies.what[0].upper()}{copies.what[1:]} are written out in several functions, for example in "
        f"`{bench.before.names[sample.slot]}`. Make them one shared helper `{signature(copies.helper.slot, after)}` and use it wherever "
        "the same is done."
    )
    return Job("extract", ask, "internal", (name,), facts, (copies.sign,), marks)


def numbers(bench: Bench) -> Job:
    """A bare number becomes a named constant; the same number with another meaning stays."""
    found = bench.random.choice([one for one in planted().numbers if one.constant not in bench.taken])
    places = bench.spread(4)
    for (old, new), place in zip(found.hosts, places, strict=False):
        bench.plant(old, place, after=new)
    bench.plant(found.decoy, places[3])
    bench.after.add(Piece(found.constant, f"${found.constant} = {found.value}\n"), "settings", name=found.constant)
    bench.taken.add(found.constant)
    after = bench.after

    def marks(old_files: Files, new_files: Files) -> list[Mark]:
        made: list[Mark] = [Constant(after.path("settings"), found.constant, found.value)]
        for host, _ in found.hosts:
            path, function = after.where(host.slot), after.names[host.slot]
            made += [Uses(path, function, found.constant), NoSign(path, function, number=found.value)]
        return made

    facts = (bench.fact("layout", after.modules["settings"][0], "constants"), bench.fact("contributing", bench.house.changes["internal"]))
    ask = f"Several functions have a bare {found.value} for the {found.what}. Make it one shared constant `{found.constant}`."
    return Job("constant", ask, "internal", (found.constant,), facts, (str(found.value),), marks)


def dead(bench: Bench) -> Job:
    """Suspected leftovers: some are dead, one is called by partners, one by a job that only its owner knows."""
    pieces = bench.random.sample([one for one in planted().leftovers if one.slot not in bench.taken], 5)
    for piece, place in zip(pieces, (bench.module() for _ in pieces), strict=True):
        bench.plant(piece, place)
    gone, (called, kept) = pieces[:3], pieces[3:]
    before, after = bench.before, bench.after
    names = {piece.slot: before.names[piece.slot] for piece in pieces}
    bench.partners.append(names[called.slot])
    facts = [bench.fact("partners", names[called.slot]), bench.fact("contributing", bench.house.changes["removed"])]
    for piece in gone:
        name = names[piece.slot]
        facts += bench.ask_owner(piece.slot, f"{name}: nobody outside uses it as far as I know. It can go.", name, "go")
        after.drop(piece.slot)
    name = names[kept.slot]
    facts += bench.ask_owner(kept.slot, f"{name}: a nightly job of the warehouse imports it. It has to stay.", name, "stay")
    removed = tuple(names[piece.slot] for piece in gone)

    def marks(old_files: Files, new_files: Files) -> list[Mark]:
        return _gone(old_files, new_files, removed)

    shown = ", ".join(f"`{name}`" for name in sorted(names.values()))
    ask = f"A tool reports that nothing in the package uses {shown}. Remove those of them that are really dead."
    return Job("dead", ask, "removed", removed, tuple(facts), tuple(names.values()), marks, tuple(piece.slot for piece in gone))


def sunset(bench: Bench) -> Job:
    """Deprecated names whose time is over leave; one stays longer by its note, one for partners, one for a job that its owner knows."""
    before, after, house = bench.before, bench.after, bench.house
    after_major = f"{int(house.major.partition('.')[0]) + 1}.0"
    slots_used = [bench.pick(lambda one: bool(after.users(one)) and not after.pieces[one].flag) for _ in range(5)]
    releases = [house.major, f"{int(house.major.partition('.')[0]) - 1}.0", after_major, house.major, house.major]
    names: dict[str, str] = {}
    facts = [bench.shim_fact(), bench.fact("releases", house.major, after_major), bench.fact("contributing", house.changes["removed"])]
    for slot, release in zip(slots_used, releases, strict=True):
        shim, name = f"old_{slot}", f"{bench.random.choice(_WRONG_VERBS)}_{slot}"
        piece = Piece(shim, _shim_code(shim, slot, release))
        place = before.homes[slot].module if house.beside else "compat"
        for draft in (before, after):
            draft.add(piece, place, name=name, after=slot if house.beside and draft.homes[slot].module == place else "")
        bench.taken.add(shim)
        names[slot] = name
    due, (_, called, kept) = slots_used[:2], slots_used[2:]
    bench.partners.append(names[called])
    facts.append(bench.fact("partners", names[called]))
    for slot in due:
        facts += bench.ask_owner(f"old_{slot}", f"{names[slot]}: all callers have moved on. It can go.", names[slot], "go")
        _call_instead(before, slot, f"old_{slot}", bench.random)
        after.drop(f"old_{slot}")
    answer = f"{names[kept]}: the till scripts still call it, until {after_major}. It has to stay."
    facts += bench.ask_owner(f"old_{kept}", answer, names[kept], "stay")
    removed = tuple(names[slot] for slot in due)

    def marks(old_files: Files, new_files: Files) -> list[Mark]:
        return _gone(old_files, new_files, removed)

    ask = f"We prepare release {house.major}. Clear away the deprecated functions that leave with it."
    return Job("sunset", ask, "removed", removed, tuple(facts), ("note(",), marks, tuple(f"old_{slot}" for slot in due))


def _call_instead(draft: Draft, slot: str, other: str, random: Random) -> None:
    """One or two users of a piece call another piece instead, as long as no circle of imports comes of it."""
    users = [one for one in draft.users(slot) if one != other and not one.startswith("old_")]
    for user in random.sample(users, min(2, len(users))):
        piece = draft.pieces[user]
        trial = draft.copy()
        trial.pieces[user] = replace(piece, code=re.sub(rf"\${slot}\b", f"${other}", piece.code))
        if acyclic(trial):
            draft.pieces[user] = trial.pieces[user]


def flag(bench: Bench) -> Job:
    """A boolean option that can be given by position."""
    before, after = bench.before, bench.after
    slot = bench.pick(lambda one: bool(after.pieces[one].flag))
    before.positional.add(slot)
    name = after.names[slot]
    positions = len(_parameter_names(signature(slot, before))) - 1

    def marks(old_files: Files, new_files: Files) -> list[Mark]:
        found: list[Mark] = [Defined(after.where(slot), signature(slot, after)), Quoted(API, signature(slot, after))]
        found += [KeywordFlag(path, name, positions) for path in _holding(old_files, name, suffix=".py")]
        return found

    facts = (bench.fact("api", "keyword", "only"), bench.fact("contributing", bench.house.changes["signature"]))
    ask = f"Bring the signature of `{name}` in line with our rules, with everything that calls it."
    return Job("flag", ask, "signature", (name,), facts, (name,), marks)


def _parameter_names(text: str) -> list[str]:
    inside = text.partition("(")[2].rpartition(")")[0]
    return [one.strip() for one in inside.split(",") if one.strip() and one.strip() != "*"]


def parameter(bench: Bench) -> Job:
    """A main parameter under a name of its own."""
    before, after = bench.before, bench.after
    slot = bench.pick(lambda one: bool(after.pieces[one].param))
    kind = after.pieces[slot].param
    old, new = bench.random.choice(_WRONG_PARAMS[kind]), after.params[slot]
    before.params[slot] = old
    name = after.names[slot]

    def marks(old_files: Files, new_files: Files) -> list[Mark]:
        found: list[Mark] = [Defined(after.where(slot), signature(slot, after)), Quoted(API, signature(slot, after))]
        return [*found, *(NoKeyword(path, name, old) for path in _holding(old_files, name, suffix=".py"))]

    facts = (bench.fact("names", new), bench.fact("contributing", bench.house.changes["signature"]))
    ask = f"The parameter `{old}` of `{name}` has a name against our rules. Correct it, with everything that depends on it."
    return Job("parameter", ask, "signature", (name,), facts, (name,), marks)


def inline(bench: Bench) -> Job:
    """An internal function that only calls another one."""
    before, after = bench.before, bench.after
    slot = bench.pick(lambda one: bool(after.users(one)) and not after.pieces[one].flag and not after.pieces[one].param)
    wrapper, name = f"just_{slot}", f"{bench.random.choice(_WRONG_VERBS)}_just_{slot}"
    inside = re.search(r"def \S+\((.*)\):", after.pieces[slot].code)
    given = inside.group(1) if inside else ""
    passed = ", ".join(one.partition("=")[0].strip() for one in given.split(","))
    code = f'def ${wrapper}({given}):\n    """Call ${slot}."""\n    return ${slot}({passed})\n'
    before.add(Piece(wrapper, code, text=after.pieces[slot].text), before.homes[slot].module, name=name, after=slot)
    bench.taken.add(wrapper)
    _call_instead(before, slot, wrapper, bench.random)

    def marks(old_files: Files, new_files: Files) -> list[Mark]:
        return _gone(old_files, new_files, [name])

    facts = (bench.fact("api", "internal"), bench.fact("contributing", bench.house.changes["removed"]))
    ask = f"`{name}` only calls `{after.names[slot]}`. Do without it; it is internal, and its owner agrees."
    return Job("inline", ask, "removed", (name,), facts, (name,), marks)


def deprecate(bench: Bench) -> Job:
    """A public function that does what another one does."""
    before, after, house = bench.before, bench.after, bench.house
    slot = bench.pick(lambda one: bool(after.users(one)) and not after.pieces[one].flag)
    twin, name = f"twin_{slot}", f"{house.verbs[after.pieces[slot].role]}_simple_{slot}"
    piece = after.pieces[slot]
    copy = replace(piece, slot=twin, code=piece.code.replace(f"def ${slot}(", f"def ${twin}("), tests=(), probes=(), param="", flag="")
    home = before.homes[slot].module
    before.add(copy, home, name=name, after=slot)
    before.public.append(twin)
    shim = Piece(twin, _shim_code(twin, slot, house.major))
    after.add(shim, home if house.beside else "compat", name=name, after=slot if house.beside else "")
    if house.beside:
        after.public.append(twin)
    bench.taken.add(twin)
    _call_instead(before, slot, twin, bench.random)
    place, new = after.where(twin), after.names[slot]

    def marks(old_files: Files, new_files: Files) -> list[Mark]:
        return [*_gone(old_files, new_files, [name], spare=[name]), Shim(place, name, new, house.major)]

    facts = (bench.shim_fact(), bench.fact("contributing", house.changes["deprecated"]))
    ask = f"`{name}` and `{new}` do the same. Deprecate the first in favour of the second, as the rules want it."
    return Job("deprecate", ask, "deprecated", (name, new), facts, (name,), marks)


def style(bench: Bench) -> Job:
    """A module that was written before the style rules."""
    before, after = bench.before, bench.after
    key = bench.random.choice([one for one in after.modules if one not in after.internal and one not in bench.taken])
    bench.taken.add(key)
    free = [one for one in planted().sins if one.before.slot not in bench.taken]
    sins = [
        bench.random.choice([one for one in free if one.rule == rule]) for rule in bench.random.sample(["defaults", "none", "percent"], 2)
    ]
    for sin in sins:
        bench.plant(sin.before, key, after=sin.after)
    for slot in [one for one, home in before.homes.items() if home.module == key and before.pieces[one].role and one not in bench.taken][
        :2
    ]:
        piece = before.pieces[slot]
        before.pieces[slot] = replace(piece, code=piece.code.replace('."""', '"""', 1))
        bench.taken.add(slot)
    after.listed.add(key)
    rules = ["docstrings", "listing", *(sin.rule for sin in sins)]

    def marks(old_files: Files, new_files: Files) -> list[Mark]:
        return [Style(after.path(key), rule) for rule in rules]

    name = after.modules[key][0]
    facts = (
        bench.fact("style", "alphabetical", "__all__", "stop", "is", "not", "None", "if", "else", "f", "strings"),
        bench.fact("contributing", bench.house.changes["internal"]),
    )
    ask = f"`{name}.py` was written before our rules on the look of code. Bring it in line with all of them."
    return Job("style", ask, "internal", (name,), facts, (f"{name}",), marks)


JOBS: Mapping[str, Callable[[Bench], Job]] = {
    "rename": rename_public,
    "rename_internal": rename_internal,
    "move": move,
    "module": module,
    "extract": extract,
    "numbers": numbers,
    "dead": dead,
    "sunset": sunset,
    "flag": flag,
    "parameter": parameter,
    "inline": inline,
    "deprecate": deprecate,
    "style": style,
}
"""Kinds of work by name; a template lists them in the order in which they are drawn."""
