"""The command line: `coevo VERB CONFIG`.

A stage verb checks the configuration, prints the arithmetic of the run, opens the run and calls `main(context)` of `jobs/VERB.py`; the
same command again resumes it. Results go to standard output, everything else to standard error; exit codes are in `jobs/exits.py`. Jobs are
imported when their verb is used, so `--help` loads no Ray and no torch.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import NoReturn, Protocol

import typer

from coevo.config import RunConfig, load_config
from coevo.display import Display, open_display
from jobs.exits import guarded, log_to_stderr
from jobs.harness import build_harness_app
from jobs.options import ConfigPath, Debug, DryRun, Overrides, Shown
from jobs.verbs import add_verbs

__all__ = ["STAGES", "Result", "build_app", "main", "run_stage"]

STAGES = {
    "run": "The whole loop once: evolve, rollout, localize, rewrite, dataset, train, publish, evaluate, report.",
    "evolve": "Search a better harness for the weak model.",
    "transfer": "Measure weak model and expert under the base and the evolved harness (selection stream).",
    "rollout": "Play the evolved agent on the search stream, to find failures.",
    "localize": "Find the turn that made an episode fail, by replay.",
    "rewrite": "Let the expert rewrite that turn; verify by replay.",
    "dataset": "Build and check the training rows of each arm.",
    "tune": "Choose the learning rate of each arm from one grid (selection stream).",
    "train": "Fine-tuning of each arm, by LoRA or of all weights.",
    "publish": "Serve the adapters under immutable ids, after the canary.",
    "evaluate": "The final grid on the test stream, opened once.",
    "report": "Write the report of what is stored: one HTML file and its JSON twin.",
}
"""Stage verbs and their help; each is `main(context)` of the module of that name in `jobs`."""


class Result(Protocol):
    """What a stage hands back: its name and the closing lines."""

    @property
    def stage(self) -> str: ...

    @property
    def lines(self) -> tuple[str, ...]: ...


StageRunner = Callable[[str, RunConfig, Display], Result]
"""Runs a stage verb with a configuration and a display."""


def run_stage(verb: str, config: RunConfig, display: Display) -> Result:
    """Open the run and call the verb's job."""
    context_module = importlib.import_module("jobs.context")
    job = importlib.import_module(f"jobs.{verb}")
    with context_module.RunContext.open(config, display=display) as context:
        result: Result = job.main(context)
    return result


def build_app(runner: StageRunner = run_stage) -> typer.Typer:
    """The application; `runner` is what stage verbs call."""
    app = typer.Typer(
        name="coevo",
        help="Evolve an agent's harness, then fine-tune its model on corrections of its own failed turns.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for verb, text in STAGES.items():
        app.command(verb, help=text)(_stage_command(verb, runner))
    add_verbs(app)
    app.add_typer(build_harness_app(guarded), name="harness")
    return app


def main() -> NoReturn:
    """Console script `coevo`."""
    build_app()()
    sys.exit(0)


def _stage_command(verb: str, runner: StageRunner) -> Callable[..., None]:
    def command(
        config: ConfigPath, overrides: Overrides = None, dry_run: DryRun = False, shown: Shown = None, debug: Debug = False
    ) -> None:
        def action() -> int:
            from jobs.plan import make_plan

            log_to_stderr(debug=debug)
            run_config = load_config(config, overrides or ())
            display = open_display(shown)
            plan = make_plan(run_config, verb=verb)
            if dry_run:
                display.result("plan", plan.lines())
                return 0
            display.start(plan.lines())
            try:
                result = runner(verb, run_config, display)
                display.result(result.stage, result.lines)
            finally:
                display.close()
            return 0

        raise typer.Exit(guarded(action, debug=debug))

    return command


if __name__ == "__main__":
    main()
