"""Promises:

1. Importing every module of `coevo` loads no cluster, engine, trainer or cloud package (R15).
2. `coevo`, `cluster` and `jobs` are ours, not namesakes from the package index.
3. The floors are enforced by import-linter, and the contract would notice a breach.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import cluster
import coevo
import jobs

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("ray", "vllm", "torch", "deepspeed", "transformers", "boto3", "trl", "peft", "datasets")
IMPORT_ALL = """
import importlib, json, pkgutil, sys
import coevo
def refuse(name):
    raise ImportError(name)
names = sorted(m.name for m in pkgutil.walk_packages(coevo.__path__, "coevo.", onerror=refuse))
for name in names:
    importlib.import_module(name)
print(json.dumps({"imported": names, "loaded": sorted({m.partition(".")[0] for m in sys.modules})}))
"""


def run_python(source: str, *, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(cwd)}
    return subprocess.run([sys.executable, "-c", source], cwd=cwd, env=environment, capture_output=True, text=True, timeout=50, check=False)


def test_importing_all_of_coevo_loads_nothing_heavy() -> None:
    """R15: the control package pulls in neither an engine nor a trainer."""
    result = run_python(IMPORT_ALL, cwd=ROOT)
    assert result.returncode == 0, result.stderr[-2000:]
    seen = json.loads(result.stdout.splitlines()[-1])
    on_disk = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / "coevo").rglob("*.py")
        if all((folder / "__init__.py").exists() for folder in path.parents if folder != ROOT and ROOT in folder.parents)
    }
    assert on_disk - {"coevo"} == set(seen["imported"]), "a module of coevo was not imported by this test"
    assert sorted(set(seen["loaded"]) & set(HEAVY)) == []


def test_the_import_probe_notices_a_heavy_module(tmp_path: Path) -> None:
    """The test above can fail: a package of the same shape that imports one forbidden name is reported."""
    (tmp_path / "coevo").mkdir()
    (tmp_path / "coevo" / "__init__.py").write_text("")
    (tmp_path / "coevo" / "slip.py").write_text("import peft\n")
    (tmp_path / "peft.py").write_text("")
    result = run_python(IMPORT_ALL, cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-2000:]
    assert "peft" in json.loads(result.stdout.splitlines()[-1])["loaded"]


@pytest.mark.parametrize("package", [coevo, cluster, jobs])
def test_packages_resolve_to_this_checkout(package: object) -> None:
    """`cluster` and `jobs` are common names: somebody else's package must not shadow ours."""
    origin = Path(str(getattr(package, "__file__", None))).resolve()
    assert origin.parent.parent == ROOT


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    tool = Path(sys.executable).with_name("lint-imports")
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run([str(tool), "--no-cache"], cwd=folder, env=environment, capture_output=True, text=True, timeout=50, check=False)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("coevo/breach.py", "import cluster\n"),
        ("cluster/breach.py", "import jobs\n"),
        ("coevo/breach.py", "def lazily() -> None:\n    import torch\n"),
    ],
)
def test_import_linter_refuses_a_breach(tmp_path: Path, module: str, source: str) -> None:
    """The contracts in pyproject.toml bite: upward imports and heavy modules in the method, lazy ones too."""
    for package in ("coevo", "cluster", "jobs"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    clean = lint_imports(tmp_path)
    assert clean.returncode == 0, clean.stdout + clean.stderr
    (tmp_path / module).write_text(source)
    broken = lint_imports(tmp_path)
    assert broken.returncode == 1, broken.stdout + broken.stderr
    assert "BROKEN" in broken.stdout


def test_the_forbidden_list_is_complete() -> None:
    """The linter's list and this test's list are the same."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    forbidden = next(contract["forbidden_modules"] for contract in contracts if contract["type"] == "forbidden")
    assert sorted(forbidden) == sorted(HEAVY)
