"""The refactoring family: its linker, its marks, and what its reference writes.

1. A package of several files runs as one program; what it can't run is said with file and line.
2. The stock of code is sound: every function's tests pass, jobs change no behaviour, and do-nothing satisfies no requirement.
3. Another way to do the work passes too; the grader is about the result and not about the reference's text.
4. The reference writes only what consists of parts that it has read (the contract leaves file texts free).
5. Two draws of an instance are equal, without any cache.
"""

from __future__ import annotations

from random import Random

import pytest

from coevo.chat import Role, ToolCall
from coevo.errors import ToolError
from coevo.identity import canonical_json
from coevo.tasks.family import Size, Stream, Style, TaskInstance
from coevo.tasks.refactor import family
from coevo.tasks.refactor.case import Volume, draw_case
from coevo.tasks.refactor.jobs import JOBS
from coevo.tasks.refactor.linker import LinkError, link
from coevo.tasks.refactor.marks import Defined, Entry, KeywordFlag, Names, NoImport, Shim, problem_of
from coevo.tasks.refactor.marks import Style as StyleMark
from coevo.tasks.refactor.policy import subwords
from coevo.tasks.refactor.standard import CONDUCT, TEMPLATES, draw, facts
from coevo.tasks.refactor.trial import run_probes, run_tests, same
from tests.contract.walks import Walk

PACKAGE = {
    "p/__init__.py": "from p.a import one\nfrom .b import C\n__version__ = '1'\n",
    "p/a.py": "import math\nfrom p import b as other\n\ndef one(x=1):\n    return math.floor(x) + other.two()\n",
    "p/b.py": "TABLE = {}\n\ndef two():\n    return 2\n\nclass C:\n    def __init__(self, n):\n        self.n = n\n",
    "tests/test_a.py": (
        "import p.a\nfrom p import C\n\ndef test_one():\n    assert p.a.one(3) == 5\n\ndef test_bad():\n    assert C(1).n == 2\n"
    ),
}


def instance(template: str, seed: int = 0, size: Size = Size.STANDARD) -> TaskInstance:
    return TaskInstance("refactor", template, Stream.SEARCH, seed, size)


def test_packages_run_as_one_program() -> None:
    run = run_tests(PACKAGE)
    assert run.passed == 1
    assert [name for name, _ in run.failed] == ["tests/test_a.py::test_bad"]
    assert run_probes(PACKAGE, ["p.a"], ["_m('p.a').one(2.5)", "_m('p.b').two(1)"])[0] == ["value", 4]
    broken = {**PACKAGE, "p/b.py": "from p.a import one\n\ndef two():\n    return one()\n"}
    typed = (
        "from collections.abc import Sequence\nfrom p import b as other\n\ndef one(x: Sequence[int] | None = None) -> int:\n    return 5\n"
    )
    assert run_tests({**PACKAGE, "p/a.py": typed}).passed == 1
    assert "circular import" in str(run_tests(broken).failed[0])
    assert "cannot import name 'gone'" in str(run_tests({**PACKAGE, "p/a.py": "from p.b import gone\n"}).failed[0])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def f(:\n", "SyntaxError"),
        ("n = 0\ndef f():\n    global n\n", "'global'"),
        ("from p.b import *\n", "star imports"),
        ("x = " + "-" * 300 + "1\n", "levels deep"),
        ("x = " + "(" * 3000 + ")" * 3000, "p/a.py"),
        ("_BODIES['p.b'] = None\n", "test runner"),
        ("x = 1\n" * 20_000, "characters"),
    ],
)
def test_what_cannot_run_is_named(text: str, reason: str) -> None:
    with pytest.raises(LinkError, match=r"p/a\.py") as caught:
        link({**PACKAGE, "p/a.py": text}, ["p.a"])
    assert reason in str(caught.value)


def test_values_compare_by_value() -> None:
    """T4: 1 is 1.0, a sum in another order is the same sum, true is not 1, text is not a number."""
    assert same(["value", 1], ["value", 1.0])
    assert same([0.1 + 0.2 + 0.3], [0.3 + 0.2 + 0.1])
    assert not same(True, 1)
    assert not same("1", 1)
    assert not same([1], [1, 2])


def test_marks_see_the_code_and_not_its_layout() -> None:
    files = {
        "a.py": "from p.b import (\n    old as fresh,\n)\n\ndef new(a: int, *, b: bool = True) -> int:\n    return fresh(a, 1)\n",
        "shim.py": "def old(*a, **k):\n    note('old', 'new', '3.0')\n    return new(*a, **k)\n",
        "CHANGELOG.md": "## Unreleased\n\n- **Renamed**: `old` to `new`\n\n## 1.0\n\n- Removed: gone\n",
    }
    assert problem_of(Names("a.py", ("new",), ("old",)), files) is not None
    assert problem_of(Defined("a.py", "new(a, *, b=True)"), files) is None
    assert problem_of(Defined("a.py", "new(a, b=True)"), files) is not None
    assert problem_of(NoImport("a.py", "p.b", "old"), files) is not None
    assert problem_of(KeywordFlag("a.py", "fresh", 1), files) is not None
    assert problem_of(Shim("shim.py", "old", "new", "3.0"), files) is None
    assert problem_of(Shim("shim.py", "old", "new", "4.0"), files) is not None
    assert problem_of(Entry("CHANGELOG.md", "Renamed", ("old", "new")), files) is None
    assert problem_of(Entry("CHANGELOG.md", "Removed", ("gone",)), files) is not None
    assert problem_of(StyleMark("a.py", "docstrings"), files) is not None
    assert problem_of(StyleMark("none.py", "docstrings"), files) is not None


@pytest.mark.parametrize("kind", sorted(JOBS))
def test_jobs_change_no_behaviour_and_ask_for_something(kind: str) -> None:
    """T1, T2."""
    case = draw_case(Random(f"{kind}-unit"), (kind,), Volume(tops=2, notes=2, neighbours=0, releases=2))
    assert run_tests(case.before).failed == run_tests(case.target).failed == ()
    assert all(one.guard or one.problem(case.before) for one in case.requirements)
    assert all(one.problem(case.before) is None for one in case.requirements if one.guard)
    assert [one.problem(case.target) for one in case.requirements if one.problem(case.target)] == []
    after = run_probes(case.target, case.modules, case.probes)
    modules = [path.removesuffix(".py").replace("/", ".") for path in case.before if path.startswith(f"{case.package}/")]
    before = run_probes(case.before, modules, [pair for pair in case.pairs if pair is not None])
    assert isinstance(after, list)
    assert isinstance(before, list)
    kept = [value for value, pair in zip(after, case.pairs, strict=True) if pair is not None]
    assert same(kept, before)
    assert len(kept) > 50


def test_another_way_of_the_same_work_passes() -> None:
    """A whole file written anew, annotations, a helper import under an alias, an extra test."""
    world = family.open(instance("copies", 3))
    case = facts(world).case
    for path, text in case.target.items():
        old = case.before.get(path)
        if text != old:
            world.call("delete_file", {"path": path})
            body = text.replace("):\n", ") -> object:\n", 1) if path.startswith(f"{case.package}/") else text
            world.call("create_file", {"path": path, "text": f"{body}\n# tidy\n" if path.endswith(".py") else body})
    world.call("create_file", {"path": "tests/test_extra.py", "text": "def test_more():\n    assert len('ab') == 2\n"})
    assert world.call("run_tests", {})["failed"] == 0
    world.call("finish", {})
    assert world.grade().success, world.grade()


@pytest.mark.parametrize("style", list(Style))
@pytest.mark.parametrize("window", [None, 3], ids=["full", "limited"])
def test_the_reference_writes_only_parts_that_it_has_read(style: Style, window: int | None) -> None:
    """T2: every part of every name in every argument, file texts included; queries and page numbers are its own. Templates take turns."""
    turn = 2 * list(Style).index(style) + (window is None)
    for place, template in enumerate(TEMPLATES):
        if place % 4 != turn:
            continue
        walk = Walk(family.open(instance(template, place)), window)
        assert walk.follow(family.policy(style)) is None
        assert walk.world.grade().success, template
        for move, visible in walk.moves:
            texts = (one.content.partition("<")[0] if one.role is Role.ASSISTANT else one.content for one in visible)
            read = frozenset[str]().union(*map(subwords, texts))
            given = (str(value) for name, value in move.call.arguments.items() if name not in ("query", "page"))
            assert not subwords(" ".join(given)) - read, (template, move)


def test_two_draws_are_equal() -> None:
    """T7: no cache helps here."""
    for size in (Size.STANDARD, Size.LONG):
        first, second = draw(instance("release", 5, size)), draw(instance("release", 5, size))
        for one, other in ((first.before, second.before), (first.target, second.target), (first.probes, second.probes)):
            assert canonical_json(dict(one) if hasattr(one, "items") else one) == canonical_json(
                dict(other) if hasattr(other, "items") else other
            )
        assert first.instruction == second.instruction


def test_the_long_world_is_long() -> None:
    """100,000 tokens at four characters each, behind pages."""
    world = family.open(instance("rename", 1, Size.LONG))
    assert sum(map(len, facts(world).case.before.values())) > 400_000
    name = facts(world).case.package
    assert world.call("search", {"query": "def "})["pages"] > 20
    assert world.call("list_files", {"folder": ""})["pages"] >= 1
    assert world.call("list_files", {"folder": name})["entries"]
    with pytest.raises(ToolError, match="no page"):
        world.call("list_files", {"folder": name, "page": 99})


def test_reads_and_writes_are_told_apart() -> None:
    assert {"edit_file", "restore_file", "finish"} <= CONDUCT.writes
    world = family.open(instance("rename"))
    world.call("run_tests", {})
    assert ToolCall("run_tests", {}) in world.log
    assert world.call("list_changes", {}) == {"changed": []}
