"""`coevo harness`: promises.

1. show, diff, export and lint take folders, families, runs and candidates of runs; what is exported loads as the same harness.
2. Bad input is a three-part error with exit code 2 and nothing written.
3. A candidate is shown with the edits that led to it.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import yaml
from typer.testing import CliRunner
from typer.testing import Result as Outcome

from coevo.evolve.proposals import EditRecord, ProposalLog, ProposalRecord
from coevo.evolve.propose import Edit
from coevo.harness.bundle import HarnessBundle, Skill
from coevo.harness.edits import changes_between
from coevo.store import LocalSource
from coevo.tasks import load_family
from coevo.tasks.family import Size
from jobs.cli import build_app

BASE = HarnessBundle.load(load_family("payroll").base_harness(Size.MINI))
HOOK = "def after_tool(event, state):\n    return {'note': 'seen'}\n"
CHILD = BASE.replace(hooks={"h": HOOK})
GRANDCHILD = CHILD.replace(skills={"s": Skill("paid", "pay once .")})


def call(*arguments: object) -> Outcome:
    return CliRunner().invoke(build_app(), ["harness", *map(str, arguments)])


def refused(outcome: Outcome, said: str) -> None:
    assert outcome.exit_code == 2, outcome.output
    assert outcome.stdout == ""
    for part in ("error: ", "  seen: ", "  fix: ", said):
        assert part in outcome.stderr
    assert "Traceback" not in outcome.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    CHILD.save(tmp_path / "child")
    return tmp_path / "child"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose search proposed two edits, one on top of the other."""
    log = ProposalLog(LocalSource(str(tmp_path / "store")).open(), "trial/proposals")
    for number, (parent, child, idea) in enumerate([(BASE, CHILD, "note"), (CHILD, GRANDCHILD, "skill")]):
        edit = Edit(f"{idea}:x", idea, f"the {idea} helps", (("e", 0),), ("e",), ("none",), child)
        key = f"{Random(number).getrandbits(256):064x}"
        log.put(ProposalRecord(key=key, proposer="catalogue", parent=parent.hash, edits=(EditRecord.of(edit, parent),)))
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump({"name": "trial", "store": str(tmp_path / "store")}))
    return config


def test_show(folder: Path) -> None:
    """Promise 1."""
    shown = call("show", folder)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith(f"{CHILD.hash}\n")
    assert "hook:h: 2 lines" in shown.stdout
    assert "limits:max_turns: 24" in shown.stdout
    assert call("show", folder, "hook:h").stdout == HOOK
    assert call("show", "payroll").stdout.startswith(BASE.hash)
    assert call("show", "payroll/standard").exit_code == 0


def test_diff(folder: Path) -> None:
    shown = call("diff", "payroll/mini", folder)
    assert shown.exit_code == 0
    assert shown.stdout.startswith("add hook:h\n")
    assert "+    return {'note': 'seen'}" in shown.stdout
    assert call("diff", folder, folder).stdout == "no change\n"


def test_export(folder: Path, tmp_path: Path) -> None:
    """Promise 1: and an occupied folder is left alone."""
    assert call("export", folder, tmp_path / "out").exit_code == 0
    assert HarnessBundle.load(tmp_path / "out") == CHILD
    before = sorted((tmp_path / "out").rglob("*"))
    refused(call("export", folder, tmp_path / "out"), "not empty")
    assert sorted((tmp_path / "out").rglob("*")) == before


def test_lint(folder: Path, run: Path) -> None:
    for arguments in ([folder, "--family", "payroll"], ["stock/mini"], [f"{run}#{CHILD.hash[:10]}"]):
        checked = call("lint", *arguments)
        assert checked.exit_code == 0, checked.output
        assert "survives a dry run" in checked.stdout
    refused(call("lint", folder), "--family")
    refused(call("lint", folder, "--family", "stock"), "unknown family tool")
    (folder / "hooks" / "h.py").write_text("def after_tool(event, state):\n    return 'x'\n")
    refused(call("lint", folder, "--family", "payroll"), "hooks/h.py: after_tool")


def test_candidates_of_a_run(run: Path) -> None:
    """Promise 3."""
    shown = call("show", f"{run}#{GRANDCHILD.hash[:12]}")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith(GRANDCHILD.hash)
    line = shown.stdout.splitlines()[-3:]
    assert [text.partition(" ")[0] for text in line] == [BASE.hash[:12], CHILD.hash[:12], GRANDCHILD.hash[:12]]
    assert line[1].endswith("note:x: note: the note helps")
    assert call("show", run).stdout.startswith(BASE.hash), "before the search is done a run has its base"
    assert call("show", f"{run}#base").stdout.startswith(BASE.hash)
    assert "add skill:s" in call("diff", f"{run}#{CHILD.hash[:12]}", f"{run}#{GRANDCHILD.hash[:12]}").stdout
    assert [change.component for change in changes_between(CHILD, GRANDCHILD)] == ["skill:s"]


def test_bad_input(folder: Path, run: Path, tmp_path: Path) -> None:
    """Promise 2."""
    refused(call("show", tmp_path / "nowhere"), "no harness folder")
    refused(call("show", "payrol"), "did you mean 'payroll'")
    refused(call("show", "payroll/huge"), "unknown size")
    refused(call("show", folder, "hook:nothing"), "did you mean 'hook:h'")
    refused(call("show", f"{folder}#abc"), "only a run has candidates")
    refused(call("show", f"{run}#0000"), "no candidate has this hash")
    refused(call("show", tmp_path / "none.yaml"), "config file can't be read")
    (folder / "tools.yaml").write_text("- tool\n")
    refused(call("show", folder), "tools.yaml:1: not a tool entry")
    (folder / "tools.yaml").write_bytes(b"\xff")
    refused(call("diff", folder, folder), "UTF-8")
