"""The command line: `coevo VERB CONFIG`.

A stage verb checks the configuration, prints the arithmetic of the run, opens the run and calls `main(context)` of `jobs/VERB.py`; the
same command again resumes it. Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 failed, 2 bad usage
or configuration, 3 more owed episodes than allowed, 130 interrupted. Jobs are imported when their verb is used, so `--help` loads no Ray
and no torch.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn, Protocol

import typer

from coevo.config import RunConfig, load_config
from coevo.display import Display, DisplayKind, open_display
from coevo.errors import CoevoError
from jobs.harness import build_harness_app

__all__ = ["STAGES", "Result", "build_app", "guarded", "main", "run_stage"]

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

INTERRUPTED = 130

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file of the run.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="a.b=c", help="Change one value of the config; the value is YAML. Repeatable.", show_default=False),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan (episodes, tokens, dollars, engines) and stop.")]
Shown = Annotated[
    DisplayKind | None, typer.Option("--display", help="How progress is shown; rich on a terminal, else plain.", show_default=False)
]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks and debug logs.")]


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


def guarded(action: Callable[[], int], *, debug: bool = False) -> int:
    """Run `action`; its value, or the exit code of what it raised, told on standard error in three parts.

    Tracebacks appear only with `debug`: a wrong configuration is not a crash.
    """
    try:
        return action()
    except KeyboardInterrupt:
        _tell("interrupted; what is committed stays, the same command again resumes", debug=debug)
        return INTERRUPTED
    except CoevoError as error:
        _tell(f"error: {error}", debug=debug)
        return error.exit_code
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # noqa: BLE001 - the last border: whatever is left is a bug, and says so in one line
        hint = "" if debug else "\n  fix: run the same command with --debug for the traceback, and report it"
        _tell(f"error: this is a bug in coevo\n  seen: {type(error).__name__}: {str(error)[:600]}{hint}", debug=debug)
        return 1


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
    app.command("status", help="What is stored of a run: stages, rows, owed, tokens, attempts. Reads the store only.")(_status)
    app.command("submit", help="Hand the run to a cluster's Jobs server and follow it. The same command again attaches or resumes.")(
        _submit
    )
    app.command("doctor", help="Check this machine, the store and a cluster, one line each.")(_doctor)
    app.command("gc", help="List what nobody needs of a run (leftovers, old attempts, old runs) and remove it after asking.")(_gc)
    app.command("new-family", help="Write a working skeleton of a task family: world, grader, reference, base harness, test.")(_new_family)
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

            _log(debug)
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


def _status(
    run: Annotated[str, typer.Argument(metavar="CONFIG|NAME", help="YAML file of the run, or with --store its name.", show_default=False)],
    store: Annotated[str, typer.Option("--store", metavar="URI", help="Where the run NAME is stored; no config is read.")] = "",
    overrides: Overrides = None,
    shown: Shown = None,
    debug: Debug = False,
) -> None:
    def action() -> int:
        from jobs.status import show_run, show_status

        _log(debug)
        if store:
            return show_run(run, store, open_display(shown))
        return show_status(load_config(Path(run), overrides or ()), open_display(shown))

    raise typer.Exit(guarded(action, debug=debug))


def _submit(
    config: ConfigPath,
    address: Annotated[str, typer.Option("--address", metavar="URL", help="Jobs server, http://HEAD:8265.", show_default=False)],
    overrides: Overrides = None,
    verb: Annotated[str, typer.Option("--verb", help="Verb that the job runs.")] = "run",
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Show its output until it ends; Ctrl-C only detaches.")] = True,
    baked: Annotated[bool, typer.Option("--image-baked", help="The image holds the packages: upload the config only.")] = False,
    working_dir: Annotated[Path | None, typer.Option("--working-dir", help="A folder of yours to upload too.", show_default=False)] = None,
    needs: Annotated[list[str] | None, typer.Option("--needs", metavar="NAME", help="Variable that the nodes must set.")] = None,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the job of this run instead.")] = False,
    debug: Debug = False,
) -> None:
    def action() -> int:
        from jobs import submit

        _log(debug)
        return submit.main(
            load_config(config, overrides or ()),
            open_display(DisplayKind.PLAIN),
            address=address,
            verb=verb,
            follow=follow,
            baked=baked,
            working_dir=working_dir,
            needs=tuple(needs or ()),
            stop=stop,
        )

    raise typer.Exit(guarded(action, debug=debug))


def _doctor(
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG]", help="Check the store of this run.", show_default=False)] = None,
    store: Annotated[str, typer.Option("--store", metavar="URI", help="Check this store instead, as s3://BUCKET/PREFIX.")] = "",
    address: Annotated[str, typer.Option("--address", metavar="HOST:PORT", help="Check all nodes of this cluster, or a Jobs URL.")] = "",
    engine: Annotated[bool, typer.Option("--engine", help="Also start the engine once and decode a few tokens.")] = False,
    shown: Shown = None,
    debug: Debug = False,
) -> None:
    def action() -> int:
        from jobs.doctor import examine

        _log(debug)
        run_config = load_config(config) if config is not None else RunConfig(name="doctor")
        return examine(run_config, open_display(shown), engine=engine, store=store, address=address)

    raise typer.Exit(guarded(action, debug=debug))


def _gc(
    config: ConfigPath,
    overrides: Overrides = None,
    run: Annotated[str, typer.Option("--run", metavar="NAME", help="Remove this whole run of the same store instead.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List only.")] = False,
    shown: Shown = None,
    debug: Debug = False,
) -> None:
    def action() -> int:
        from jobs.gc import collect

        _log(debug)
        return collect(load_config(config, overrides or ()), open_display(shown), run=run, yes=yes, dry_run=dry_run)

    raise typer.Exit(guarded(action, debug=debug))


def _new_family(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the family and of its package.", show_default=False)],
    into: Annotated[Path, typer.Option("--into", metavar="FOLDER", help="Folder that gets it.")] = Path(),
    shown: Shown = None,
    debug: Debug = False,
) -> None:
    def action() -> int:
        from jobs.new_family import create

        _log(debug)
        return create(name, into, open_display(shown))

    raise typer.Exit(guarded(action, debug=debug))


def _log(debug: bool) -> None:
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )


def _tell(text: str, *, debug: bool) -> None:
    if debug:
        traceback.print_exc(file=sys.stderr)
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
