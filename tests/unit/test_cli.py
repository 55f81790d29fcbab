"""Promises:

1. `--help` of everything is quick to load: neither Ray nor torch, engine, trainer, plotting or statistics come in.
2. Exit codes: 0 done, 1 failed or bug, 2 bad usage or configuration, 3 partial, 130 interrupted.
3. Errors of our own have three parts on standard error and no traceback; `--debug` shows it.
4. Bad input is refused before anything is written.
5. Results are on standard output, everything else on standard error.
6. `--set` reaches the stage; `--dry-run` reaches none.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner
from typer.testing import Result as Outcome

from coevo.config import RunConfig
from coevo.display import Display
from coevo.errors import CoevoError, ConfigError, InfraError, PartialResultError, PrerequisiteError, StoreError
from jobs.cli import STAGES, build_app
from jobs.exits import INTERRUPTED

ROOT = Path(__file__).resolve().parents[2]
HELP_ONLY = """
import json, sys
from typer.testing import CliRunner
from jobs.cli import STAGES, build_app
app = build_app()
pages = [CliRunner().invoke(app, [*verb, "--help"]) for verb in ([], *([v] for v in (*STAGES, "status", "doctor")))]
print(json.dumps({"codes": [p.exit_code for p in pages], "loaded": sorted({m.partition(".")[0] for m in sys.modules})}))
"""


@dataclass(frozen=True)
class Told:
    stage: str
    lines: tuple[str, ...]


class Recorder:
    """A runner that records what it was asked and says or raises what it was told."""

    def __init__(self, outcome: BaseException | None = None) -> None:
        self.outcome = outcome
        self.calls: list[tuple[str, RunConfig]] = []

    def __call__(self, verb: str, config: RunConfig, display: Display) -> Told:
        self.calls.append((verb, config))
        display.note("a note while working")
        if self.outcome is not None:
            raise self.outcome
        return Told(verb, ("the grid", "report: somewhere.html"))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({"name": "trial", "store": str(tmp_path / "store")}))
    return path


def call(runner: Recorder, *arguments: object) -> Outcome:
    return CliRunner().invoke(build_app(runner), [str(argument) for argument in arguments])


def test_help_loads_nothing_heavy() -> None:
    """R15: the command line starts on a machine that has neither engine nor trainer."""
    result = subprocess.run([sys.executable, "-c", HELP_ONLY], cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    seen = json.loads(result.stdout.splitlines()[-1])
    assert set(seen["codes"]) == {0}
    heavy = {"ray", "vllm", "torch", "deepspeed", "transformers", "boto3", "trl", "peft", "datasets", "matplotlib", "scipy", "pyarrow"}
    assert heavy & set(seen["loaded"]) == set()


@pytest.mark.parametrize("verb", list(STAGES))
def test_every_stage_verb_reaches_its_job(config: Path, verb: str) -> None:
    """The verb, the overrides and the results travel; results are on standard output, plan and notes on standard error."""
    runner = Recorder()
    result = call(runner, verb, config, "--set", "evolve.generations=3", "--set", "seed=7", "--display", "plain")
    assert result.exit_code == 0, result.stderr
    (seen,) = runner.calls
    assert (seen[0], seen[1].evolve.generations, seen[1].seed) == (verb, 3, 7)
    assert result.stdout.splitlines() == ["the grid", "report: somewhere.html"]
    assert "a note while working" in result.stderr
    assert f"coevo {verb}, run 'trial'" in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("what", seen="this", fix="do that"), 2),
        (PrerequisiteError("what", seen="this", fix="do that"), 2),
        (StoreError("what", seen="this", fix="do that"), 2),
        (InfraError("what", seen="this", fix="do that"), 1),
        (PartialResultError("what", seen="this", fix="do that"), 3),
    ],
)
def test_our_errors_have_three_parts_and_no_traceback(config: Path, error: CoevoError, code: int) -> None:
    """Bad input: a three-part error and its exit code; the traceback only on request."""
    result = call(Recorder(error), "run", config)
    assert result.exit_code == code
    assert result.stderr.splitlines()[-3:] == ["error: what", "  seen: this", "  fix: do that"]
    assert "Traceback" not in result.stderr
    shown = call(Recorder(error), "run", config, "--debug")
    assert shown.exit_code == code
    assert "Traceback" in shown.stderr


def test_an_interrupt_exits_130_and_says_how_to_resume(config: Path) -> None:
    result = call(Recorder(KeyboardInterrupt()), "run", config)
    assert result.exit_code == INTERRUPTED == 130
    assert "same command again resumes" in result.stderr


def test_an_unexpected_exception_is_called_a_bug(config: Path) -> None:
    """One short line and the way to the traceback, exit code 1."""
    result = call(Recorder(ZeroDivisionError("by zero")), "run", config)
    assert result.exit_code == 1
    assert "bug in coevo" in result.stderr
    assert "ZeroDivisionError: by zero" in result.stderr
    assert "--debug" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Traceback" in call(Recorder(ZeroDivisionError("by zero")), "run", config, "--debug").stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--set", "evolve.genrations=3"), "did you mean 'generations'"),
        (("--set", "evolve.generations"), "--set section.key=value"),
        (("--set", "evolve.generations=0"), "evolve.generations"),
        (("--set", "name=UPPER"), "name"),
        (("--set", "family=payrol"), "did you mean 'payroll'"),
    ],
)
def test_bad_configurations_exit_2_before_anything_runs(config: Path, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    """Unknown key or family, value out of range: exit code 2, the nearest known name, nothing written."""
    runner = Recorder()
    result = call(runner, "run", config, *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "  fix: " in result.stderr
    assert runner.calls == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.yaml"]


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", ""])
def test_a_file_that_is_no_config_exits_2(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    result = call(Recorder(), "run", path)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert call(Recorder(), "run", tmp_path / "absent.yaml").exit_code == 2


@pytest.mark.parametrize("arguments", [("run",), ("fly", "x.yaml"), ("run", "x.yaml", "--fast"), ("run", "x.yaml", "--display", "neon")])
def test_bad_usage_exits_2(arguments: tuple[str, ...]) -> None:
    runner = Recorder()
    assert call(runner, *arguments).exit_code == 2
    assert runner.calls == []


def test_dry_run_prints_the_plan_and_runs_nothing(config: Path, tmp_path: Path) -> None:
    runner = Recorder()
    result = call(runner, "run", config, "--dry-run", "--display", "plain")
    assert result.exit_code == 0
    assert runner.calls == []
    assert "evaluate" in result.stdout
    assert "no price known" in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.yaml"]


def test_json_gives_one_object_per_line_on_both_streams(config: Path) -> None:
    """A caller can parse either stream line by line."""
    result = call(Recorder(), "run", config, "--display", "json")
    events = [json.loads(line) for line in result.stderr.splitlines()]
    assert [event["event"] for event in events] == ["plan", "note"]
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"event": "result", "stage": "run", "lines": ["the grid", "report: somewhere.html"]}
    ]
