"""Bad input through the command line, in one process: a three-part error, exit code 2, no traceback, nothing written.

The runner opens the real run (`RunContext.open`) and goes no further: what it refuses, it refuses before the name is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner
from typer.testing import Result as Outcome

from coevo.config import RunConfig
from coevo.display import Display
from coevo.mini.harnesses import base_demo, hand_made
from coevo.tasks import load_family
from jobs.cli import build_app
from jobs.context import RunContext, StageResult

FAMILY = load_family("payroll")


@dataclass(frozen=True)
class Place:
    """A config file and the store it names."""

    config: Path
    store: Path

    def files(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.store)): path.read_bytes() for path in sorted(self.store.rglob("*")) if path.is_file()}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    store = tmp_path / "store"
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump({"name": "trial", "store": str(store)}))
    return Place(config, store)


def only_open(verb: str, config: RunConfig, display: Display) -> StageResult:
    with RunContext.open(config, display=display) as context:
        return StageResult(verb, (f"opened {context.run}",))


def call(place: Place, *settings: str) -> Outcome:
    options = [part for setting in settings for part in ("--set", setting)]
    return CliRunner().invoke(build_app(only_open), ["evolve", str(place.config), "--display", "plain", *options])


def refused(outcome: Outcome, *said: str) -> None:
    assert outcome.exit_code == 2, outcome.stderr
    lines = outcome.stderr[outcome.stderr.index("error: ") :].splitlines()
    assert any(line.startswith("  seen: ") for line in lines), lines
    assert any(line.startswith("  fix: ") for line in lines), lines
    assert "Traceback" not in outcome.stderr
    assert "bug in coevo" not in outcome.stderr
    assert outcome.stdout == ""
    for part in said:
        assert part in "\n".join(lines), lines


def harness_folder(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_good_input_opens_the_run(place: Place) -> None:
    """The control: the same call with nothing wrong claims the name."""
    outcome = call(place)
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.stdout.splitlines() == ["opened trial"]
    assert list(place.files()) == ["trial/config.json"]


def test_a_good_harness_folder_opens_the_run(place: Place, tmp_path: Path) -> None:
    """The control of the broken folders below."""
    folder = harness_folder(tmp_path / "harness", hand_made(FAMILY).bundle.files())
    assert call(place, f"evolve.harness={folder}").exit_code == 0


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("family=payrol", ("payrol", "did you mean 'payroll'")),
        ("family=no_such_module.families:FAMILY", ("no_such_module",)),
        ("weak.chat_format=hermess", ("hermess", "did you mean 'hermes'")),
        ("weak.model=no/such/folder", ("no/such/folder",)),
        ("evolve.harness=no/such/folder", ("no/such/folder",)),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(place: Place, setting: str, said: tuple[str, ...]) -> None:
    refused(call(place, setting), *said)
    assert place.files() == {}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("hooks/todo.py", "def before_model(state, event:\n    return None\n", ("todo",)),
        ("hooks/todo.py", "import os\n\n\ndef before_model(state, event):\n    os.remove('x')\n    return {}\n", ("todo",)),
        ("hooks/todo.py", "def before_lunch(state, event):\n    return {}\n", ("todo",)),
        ("hooks/todo.py", "def before_model(state, event):\n    while True:\n        pass\n", ("todo",)),
        ("hooks/todo.py", "def before_model(state, event):\n    return before_model(state, event)\n", ("todo", "RecursionError")),
        ("tools/compute_pay.py", "def compute_pay(employee: str) -> dict\n    return {}\n", ("compute_pay",)),
        ("tools/compute_pay.py", "def other(employee: str) -> dict:\n    return {}\n", ("compute_pay",)),
        ("tools/compute_pay.py", 'def compute_pay(employee: str) -> dict:\n    """pay"""\n    return open("x").read()\n', ("compute_pay",)),
        ("tools.yaml", "- composite: compute_pay\n- tool: get_recrd\n- tool: finish\n", ("get_recrd",)),
        ("tools.yaml", "- composite: compute_pay\n- tool: get_record\n", ("finish",)),
        ("context.yaml", "keep_first: many\n", ("keep_first",)),
        ("harness.yaml", "schema: 1\nname: x\nfast: true\n", ("fast",)),
    ],
    ids=[
        "hook syntax", "hook import", "hook event", "hook loop", "hook depth", "tool syntax", "tool name", "tool host call", "unknown tool",
        "no finish", "context value", "harness key",
    ],
)  # fmt: skip
def test_a_broken_harness_folder_is_refused(place: Place, tmp_path: Path, name: str, text: str, said: tuple[str, ...]) -> None:
    """A hook or tool that can't run, an unknown tool, a wrong value: the file is named before anything is written (R15, I9)."""
    folder = harness_folder(tmp_path / "harness", hand_made(FAMILY).bundle.files() | {name: text})
    refused(call(place, f"evolve.harness={folder}"), *said)
    assert place.files() == {}


def test_a_run_name_used_with_another_config_is_refused(place: Place) -> None:
    """The fields that differ are named; the stored configuration stands (I4)."""
    assert call(place).exit_code == 0
    before = place.files()
    refused(call(place, "seed=5", "train.rank=4"), "seed", "train.rank", "trial")
    assert place.files() == before


def test_where_a_run_runs_may_change(place: Place) -> None:
    """Resuming on another machine is no other run."""
    assert call(place).exit_code == 0
    assert call(place, "cluster.cpus=16", "rollout.concurrency=2").exit_code == 0


def test_a_harness_of_another_place_is_another_config(place: Place, tmp_path: Path) -> None:
    """A name that was opened with the family's harness is not reopened with a folder."""
    assert call(place).exit_code == 0
    folder = harness_folder(tmp_path / "harness", base_demo(FAMILY).bundle.files())
    before = place.files()
    refused(call(place, f"evolve.harness={folder}"), "evolve.harness")
    assert place.files() == before
