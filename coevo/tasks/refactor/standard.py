"""The standard and the long refactoring world: a repository behind file tools, its rules in documents, owners who answer questions.

The instruction names the work and nothing of the rules. The agent finds what the rules want (names, places, deprecated names, the line in
the changelog), changes all callers, tests and documents along, and finishes. Changes can be taken back file by file, so only finishing
too early is final. The long world adds other packages with the same kind of code, a long changelog and many documents that rule nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar

from coevo.errors import ConfigError, ToolError, nearest
from coevo.identity import derive_seed
from coevo.records import Grade
from coevo.tasks.family import Conduct, Size, TaskInstance, World
from coevo.tasks.grading import Judgement, weigh
from coevo.tasks.refactor.case import Case, Volume, draw_case
from coevo.tasks.refactor.grading import judge
from coevo.tasks.refactor.repository import Repository
from coevo.tasks.refactor.trial import run_tests
from coevo.tasks.rounds import string, tool_spec
from coevo.tasks.world import TERMINAL_TOOL, PlainWorld, Toolbox

__all__ = ["CONDUCT", "TEMPLATES", "TOOLS", "RefactorFacts", "RefactorWorld", "draw", "facts", "open_repository"]

TEMPLATES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "rename": ("rename",),
        "signature": ("flag",),
        "copies": ("extract",),
        "layout": ("move",),
        "leftovers": ("dead",),
        "deprecation": ("deprecate",),
        "numbers": ("numbers",),
        "look": ("style",),
        "internals": ("rename_internal",),
        "sunset": ("sunset",),
        "module": ("module",),
        "wrapper": ("inline",),
        "parameter": ("parameter",),
        "names": ("rename", "rename_internal"),
        "interface": ("flag", "parameter"),
        "sharing": ("extract", "numbers"),
        "places": ("module", "move"),
        "tidying": ("dead", "style"),
        "release": ("sunset", "deprecate"),
        "overhaul": ("extract", "parameter", "inline"),
    }
)
"""Template -> kinds of work; a run of diversity d draws from the first d."""

_VOLUMES = MappingProxyType(
    {
        Size.STANDARD: Volume(tops=2, notes=4, neighbours=0, releases=3),
        Size.LONG: Volume(tops=3, notes=10, neighbours=13, releases=90),
    }
)
_MAX_FAILED = 8
_PAGE = {"type": "integer", "minimum": 1, "description": "page number, from 1"}
_PATH = string("path of a file, from the root of the repository")

TOOLS = (
    tool_spec("list_files", "What lies in a folder.", optional=("page",), folder=string("path of a folder; empty: the root"), page=_PAGE),
    tool_spec("read_file", "Lines of a file, a page at a time.", optional=("page",), path=_PATH, page=_PAGE),
    tool_spec(
        "search", "Lines of all files that contain a text, case counts.", optional=("page",), query=string("text to look for"), page=_PAGE
    ),
    tool_spec(
        "edit_file", "Replace a text that occurs once in a file.", path=_PATH, old=string("text to replace"), new=string("text instead")
    ),
    tool_spec("replace_word", "Replace a word everywhere in a file.", path=_PATH, old=string("whole word"), new=string("word instead")),
    tool_spec("create_file", "Write a new file.", path=_PATH, text=string("all of its text")),
    tool_spec("move_file", "Give a file another path.", path=_PATH, to=string("new path")),
    tool_spec("delete_file", "Delete a file.", path=_PATH),
    tool_spec("restore_file", "Make a file what it was at the start; a file that was not there goes.", path=_PATH),
    tool_spec("list_changes", "Paths of all files that differ from the start."),
    tool_spec("run_tests", "Run the tests of the package, or of one test file.", optional=("path",), path=string("path of a test file")),
    tool_spec("ask", "Ask an owner about a function.", person=string("id of the owner"), about=string("name of the function")),
    tool_spec(TERMINAL_TOOL, "Hand in the work when it is complete."),
)
"""The family tools of these sizes, in the order in which harnesses show them."""

CONDUCT = Conduct(
    writes=frozenset({"edit_file", "replace_word", "create_file", "move_file", "delete_file", "restore_file", TERMINAL_TOOL}),
    free=frozenset({"query", "page", "old", "new", "text"}),
)
"""Names in code are made of parts: what is written must consist of parts that were read, which a test of this family checks."""


class RefactorWorld(PlainWorld):
    """See the module docstring. `state["changed"]` maps path -> text, or None for a deleted file."""

    toolbox: ClassVar[Toolbox] = Toolbox(TOOLS)

    def __init__(self, instance: TaskInstance, case: Case) -> None:
        super().__init__(instance, instruction=case.instruction, data={"files": dict(case.before)}, state={"changed": {}})
        self._case = case

    @property
    def _repository(self) -> Repository:
        return Repository(self._case.before, self._state["changed"])

    def tool_list_files(self, folder: str, page: int = 1) -> dict[str, Any]:
        """One page of entries; folders end with a slash."""
        return self._repository.listing(folder, page)

    def tool_read_file(self, path: str, page: int = 1) -> dict[str, Any]:
        """Lines of one page."""
        return self._repository.page(path, page)

    def tool_search(self, query: str, page: int = 1) -> dict[str, Any]:
        """One page of hits."""
        return self._repository.search(query, page)

    def tool_edit_file(self, path: str, old: str, new: str) -> dict[str, Any]:
        """Replace one occurrence."""
        self._repository.edit(path, old, new)
        return {"ok": True, "path": path}

    def tool_replace_word(self, path: str, old: str, new: str) -> dict[str, Any]:
        """Replace all occurrences of a word."""
        return {"ok": True, "path": path, "replaced": self._repository.replace_word(path, old, new)}

    def tool_create_file(self, path: str, text: str) -> dict[str, Any]:
        """A new file."""
        self._repository.create(path, text)
        return {"ok": True, "path": path}

    def tool_move_file(self, path: str, to: str) -> dict[str, Any]:
        """Another path."""
        self._repository.move(path, to)
        return {"ok": True, "path": to}

    def tool_delete_file(self, path: str) -> dict[str, Any]:
        """Without the file."""
        self._repository.delete(path)
        return {"ok": True, "path": path}

    def tool_restore_file(self, path: str) -> dict[str, Any]:
        """As at the start."""
        self._repository.restore(path)
        return {"ok": True, "path": path}

    def tool_list_changes(self) -> dict[str, Any]:
        """Changed paths in alphabetical order."""
        return {"changed": sorted(self._state["changed"])}

    def tool_run_tests(self, path: str = "") -> dict[str, Any]:
        """How many pass, and the first that do not."""
        files = self._repository.files
        if path and not (path in files and path.startswith("tests/test")):
            raise ToolError("unknown test file; list_files gives paths")
        run = run_tests(files, only=path)
        failed = [{"test": test, "message": message} for test, message in run.failed[:_MAX_FAILED]]
        return {"passed": run.passed, "failed": len(run.failed), "first": failed}

    def tool_ask(self, person: str, about: str) -> dict[str, Any]:
        """What the person knows about a function."""
        name = self._case.people.get(person)
        if name is None:
            raise ToolError("unknown person; the list of owners gives ids")
        reply = self._case.answers.get((person, about), f"I know nothing about {about[:60]}. Please ask the owner of its module.")
        return {"person": person, "name": name, "reply": reply}

    def grade(self) -> Grade:
        """One checkpoint per kind of work and file, guards for behaviour, tests and the rest, and `finished`."""
        return weigh(self._judgements(), finished=self.finished)

    def reveal(self) -> RefactorFacts:
        """See `facts`."""
        return RefactorFacts(self._case, self._repository, MappingProxyType(dict(self._state["changed"])), self._judgements)

    def _judgements(self) -> tuple[Judgement, ...]:
        return judge(self._case, tuple(sorted(self._state["changed"].items())))


@dataclass(frozen=True, slots=True)
class RefactorFacts:
    """The whole truth about a world, for policies and demonstrations only: no tool, harness or proposer gets one.

    Attributes:
        case: See `Case`.
        repository: The files as they are.
        changed: path -> text now, for files that differ from the start.
        judgements: Judges the files as they are.
    """

    case: Case
    repository: Repository
    changed: Mapping[str, str | None]
    judgements: Any


def facts(world: World) -> RefactorFacts:
    """Look behind the tools. Raises `ConfigError` for a world of another kind."""
    if not isinstance(world, RefactorWorld):
        raise ConfigError(
            "only a repository has refactoring facts", seen=type(world).__name__, fix="open a refactor instance of size standard or long"
        )
    return world.reveal()


def draw(instance: TaskInstance) -> Case:
    """The case of an instance. Raises `ConfigError` for an unknown template."""
    kinds = TEMPLATES.get(instance.template)
    if kinds is None:
        raise ConfigError("unknown refactor template", seen=instance.template, fix=nearest(instance.template, TEMPLATES))
    seed = derive_seed(instance.family, instance.size, instance.template, instance.stream, instance.seed)
    return draw_case(Random(seed), kinds, _VOLUMES[instance.size])


@lru_cache(maxsize=64)
def _drawn(instance: TaskInstance) -> Case:
    """A harness tried on forks and replays opens the same instance again and again."""
    return draw(instance)


def open_repository(instance: TaskInstance) -> RefactorWorld:
    """Open one instance. Raises `ConfigError` for an unknown template."""
    return RefactorWorld(instance, _drawn(instance))
