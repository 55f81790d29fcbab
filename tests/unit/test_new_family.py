"""A family of one's own: what `coevo new-family` writes, and how a run finds it.

1. The skeleton passes the hygiene suite as written, and the tests that come with it.
2. It is found by dotted path and by entry point, and a configuration takes either.
3. Bad names and taken folders are refused, with nothing written.
4. The family of the README passes the hygiene suite.
"""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coevo.config import load_config
from coevo.errors import ConfigError
from coevo.tasks import load_family
from coevo.tasks.family import Size
from coevo.tasks.hygiene import check_family
from coevo.tasks.scaffold import FILES, write_skeleton
from coevo.tasks.variants import SEEDS
from jobs.cli import build_app

ROOT = Path(__file__).parents[2]
NAME = "errands_of_test"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the import path; what was imported from it is forgotten."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "") or "").startswith(str(tmp_path)):
            del sys.modules[name]


def test_the_skeleton_passes_its_own_suite(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written by the command, imported by the dotted path of its own configuration."""
    done = CliRunner().invoke(build_app(), ["new-family", NAME, "--into", str(home), "--display", "plain"])
    assert done.exit_code == 0, done.output
    folder = home / NAME
    assert {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()} == {path.format(name=NAME) for path in FILES}
    assert not [file for file in home.iterdir() if file != folder]
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    config = load_config(folder / "run.yaml")
    assert config.family == f"{NAME}:family"
    family = load_family(config.family)
    seen = check_family(family, Size.STANDARD, count=3)
    assert (seen.instances, seen.walks) == (3, 12)
    assert family.templates(Size.MINI) == ()
    monkeypatch.syspath_prepend(str(folder / "tests"))
    tests = importlib.import_module(f"test_{NAME}")
    tests.test_settling_everything_alike_fails()


def test_an_installed_family_is_found_by_its_entry_point(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short name of the group `coevo.tasks`, as an installation would register it."""
    folder = write_skeleton(NAME, into=home)
    monkeypatch.syspath_prepend(str(folder))
    meta = folder / f"{NAME}-0.1.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 0.1\n")
    (meta / "entry_points.txt").write_text(f"[coevo.tasks]\n{NAME} = {NAME}:family\n")
    importlib.invalidate_caches()
    assert load_family(NAME) is load_family(f"{NAME}:family")
    with pytest.raises(ConfigError, match=NAME):
        load_family(f"{NAME}s")


@pytest.mark.parametrize("name", ["payroll", "json", "coevo", "Big", "a-b", "class", "../x", "", "9lives", "x" * 60])
def test_bad_names_are_refused(tmp_path: Path, name: str) -> None:
    """R14: nothing is written."""
    with pytest.raises(ConfigError) as caught:
        write_skeleton(name, into=tmp_path)
    assert caught.value.fix
    assert not list(tmp_path.iterdir())


def test_folders_are_never_overwritten(tmp_path: Path) -> None:
    mine = tmp_path / NAME
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="taken"):
        write_skeleton(NAME, into=tmp_path)
    assert [file.name for file in mine.iterdir()] == ["notes.txt"]
    with pytest.raises(ConfigError, match="no folder"):
        write_skeleton(NAME, into=tmp_path / "nowhere")


def test_the_family_of_the_readme_works(home: Path) -> None:
    """Its code, beside a base harness made from the payroll one."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = text.split("```python\n")[1].split("```")[0]
    assert len(code.splitlines()) < 45
    (home / "claims_of_test.py").write_text(code)
    importlib.invalidate_caches()
    family = load_family("claims_of_test:family")
    shutil.copytree(SEEDS / "payroll-mini", family.base_harness(Size.MINI))
    tools = "".join(f"- tool: {tool.name}\n" for tool in family.tools(Size.MINI))
    (family.base_harness(Size.MINI) / "tools.yaml").write_text(tools)
    assert check_family(family, Size.MINI, count=4).walks == 16
