"""Judging a repository: what the jobs had to change, and what had to stay: behaviour, tests, everything else."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Sequence
from functools import lru_cache

from coevo.tasks.grading import Judgement
from coevo.tasks.refactor.case import Case
from coevo.tasks.refactor.linker import LinkError, parse
from coevo.tasks.refactor.marks import Files
from coevo.tasks.refactor.trial import run_probes, run_tests, same, test_functions

__all__ = ["judge"]

_GUARD_WEIGHT = 3.0
"""Of each guard beside the work: a change that breaks behaviour is worth little."""

_NOT_RUN = "not judged before all of the work is there"


@lru_cache(maxsize=512)
def judge(case: Case, changed: tuple[tuple[str, str | None], ...]) -> tuple[Judgement, ...]:
    """Judgements on the repository of `case` under these changes; cached, because the same state is graded again and again.

    Code runs only where all of the work is there: it costs a hundred times as much as the rest, and half of a change breaks callers anyway.
    """
    files = {path: text for path, text in {**case.before, **dict(changed)}.items() if text is not None}
    work = [Judgement(one.name, one.problem(files), guard=one.guard) for one in case.requirements]
    complete = all(one.problem is None for one in work)
    return (
        *work,
        Judgement("other_files", _kept(case, files), _GUARD_WEIGHT, guard=True),
        Judgement("same_behaviour", _behaviour(case, files) if complete else _NOT_RUN, _GUARD_WEIGHT, guard=True),
        Judgement("tests_kept", _tests(case, files) if complete else _NOT_RUN, _GUARD_WEIGHT, guard=True),
    )


def _behaviour(case: Case, files: Files) -> str | None:
    """Hidden inputs give what they gave before."""
    expected = run_probes(case.target, case.modules, case.probes)
    found = run_probes(files, case.modules, case.probes)
    if isinstance(expected, str):
        raise LinkError(f"the reference of this instance does not run: {expected}")
    if isinstance(found, str):
        return "the package does not run"
    wrong = sum(not same(one, other) for one, other in zip(expected, found, strict=True))
    return f"{wrong} of {len(found)} results differ from those of the package before" if wrong else None


def _tests(case: Case, files: Files) -> str | None:
    """All tests pass, and none was lost or weakened."""
    run = run_tests(files)
    if run.failed:
        return f"{len(run.failed)} tests fail"
    try:
        wanted, found = _checks(case.before), _checks(files)
    except LinkError:
        return "a test file can't be read"
    lost = sum(found.get(name, 0) < count for name, count in wanted.items() if name not in case.lost_tests)
    return f"{lost} tests are gone or check less than before" if lost else None


def _checks(files: Files) -> dict[str, int]:
    """Test function -> asserts that call something."""
    counts: dict[str, int] = {}
    for path, text in files.items():
        if path.startswith("tests/test") and path.endswith(".py"):
            for name, node in test_functions(path, text).items():
                asserts = (one for one in node.body if isinstance(one, ast.Assert))
                counts[name] = counts.get(name, 0) + sum(any(isinstance(part, ast.Call) for part in ast.walk(one.test)) for one in asserts)
    return counts


def _kept(case: Case, files: Files) -> str | None:
    """Nothing changed that has nothing to do with the work."""
    for path in {**case.before, **files}:
        old, target, new = case.before.get(path), case.target.get(path), files.get(path)
        own_test = path.startswith("tests/test_") and path.endswith(".py")
        if new in (old, target) or own_test:
            continue
        if old == target:
            return "a file was changed that has nothing to do with the work"
        if new is None or old is None or target is None:
            continue
        lost = _lost_lines(old, target, new) if path.endswith(".md") else _lost_functions(path, old, target, new)
        if lost:
            return "something was changed that has nothing to do with the work"
    return None


def _lost_lines(old: str, target: str, new: str) -> bool:
    """Lines that the work leaves alone are no longer there, in their order."""
    before, after = old.splitlines(), target.splitlines()
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
    rest = iter(new.splitlines())
    common = (line for block in blocks for line in before[block.a : block.a + block.size] if line.strip())
    return not all(any(line == other for other in rest) for line in common)


def _lost_functions(path: str, old: str, target: str, new: str) -> bool:
    """Functions that the work leaves alone are no longer what they were, or something is defined twice."""
    try:
        names = [node.name for node in parse(path, new).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
        kept = set(_shapes(path, old)) & set(_shapes(path, target))
        return len(set(names)) < len(names) or not kept.issubset(_shapes(path, new))
    except LinkError:
        return True


def _shapes(path: str, text: str) -> Iterator[str]:
    return (_shape(node) for node in parse(path, text).body if isinstance(node, (ast.FunctionDef, ast.ClassDef)))


def _shape(node: ast.FunctionDef | ast.ClassDef) -> str:
    """What a definition is, apart from its docstring and annotations of the result."""
    body: Sequence[ast.stmt] = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    head = ast.dump(node.args) if isinstance(node, ast.FunctionDef) else ""
    return "|".join([node.name, head, *(ast.dump(one) for one in (*node.decorator_list, *body))])
