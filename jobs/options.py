"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coevo.display import DisplayKind

__all__ = ["ConfigPath", "Debug", "DryRun", "Overrides", "Shown"]

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
