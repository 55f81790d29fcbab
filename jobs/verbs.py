"""The verbs that are no stage: they look at a run, hand it to a cluster, check a machine, tidy a store, or begin a family."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coevo.config import RunConfig, load_config
from coevo.display import DisplayKind, open_display
from jobs.exits import guarded, log_to_stderr
from jobs.options import ConfigPath, Debug, Overrides, Shown

__all__ = ["add_verbs"]


def add_verbs(app: typer.Typer) -> None:
    """Add them to the application."""
    app.command("status", help="What is stored of a run: stages, rows, owed, tokens, attempts. Reads the store only.")(_status)
    app.command("submit", help="Hand the run to a cluster's Jobs server and follow it. The same command again attaches or resumes.")(
        _submit
    )
    app.command("doctor", help="Check this machine, the store and a cluster, one line each.")(_doctor)
    app.command("gc", help="List what nobody needs of a run (leftovers, old attempts, old runs) and remove it after asking.")(_gc)
    app.command("new-family", help="Write a working skeleton of a task family: world, grader, reference, base harness, test.")(_new_family)


def _status(
    run: Annotated[str, typer.Argument(metavar="CONFIG|NAME", help="YAML file of the run, or with --store its name.", show_default=False)],
    store: Annotated[str, typer.Option("--store", metavar="URI", help="Where the run NAME is stored; no config is read.")] = "",
    overrides: Overrides = None,
    shown: Shown = None,
    debug: Debug = False,
) -> None:
    def action() -> int:
        from jobs.status import show_run, show_status

        log_to_stderr(debug=debug)
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

        log_to_stderr(debug=debug)
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

        log_to_stderr(debug=debug)
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

        log_to_stderr(debug=debug)
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

        log_to_stderr(debug=debug)
        return create(name, into, open_display(shown))

    raise typer.Exit(guarded(action, debug=debug))
