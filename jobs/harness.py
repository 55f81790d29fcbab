"""`coevo harness show|diff|export|lint`: harnesses for people, from folders, families and runs (`jobs.harness_names`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from coevo.config import load_config
from coevo.display import DisplayKind, open_display
from coevo.errors import ConfigError, nearest
from coevo.harness.edits import changes_between, component_texts
from coevo.harness.lint import lint
from coevo.identity import short
from coevo.tasks import FAMILIES, load_family
from coevo.tasks.family import Size
from jobs.harness_names import find_harness

__all__ = ["build_harness_app"]

Named = Annotated[
    str, typer.Argument(metavar="HARNESS", help="Folder, FAMILY[/SIZE], CONFIG.yaml or CONFIG.yaml#HASH.", show_default=False)
]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
Guard = Callable[..., int]


def _tell(title: str, lines: list[str]) -> int:
    open_display(DisplayKind.PLAIN).result(title, tuple(lines))
    return 0


def _show(name: str, component: str) -> int:
    line = find_harness(name)
    texts = component_texts(line[-1][1])
    if component:
        if component not in texts:
            raise ConfigError("the harness has no such component", seen=component, fix=nearest(component, texts))
        return _tell(component, texts[component].rstrip("\n").splitlines())
    lines = [f"{line[-1][1].hash}", *(f"{address}: {_size(text)}" for address, text in texts.items())]
    for edit, bundle in line if len(line) > 1 else ():
        said = f"{edit.component}: {edit.mechanism}: {edit.hypothesis}" if edit is not None else "made by the search itself"
        lines.append(f"{short(bundle.hash)} {'base' if bundle.hash == line[0][1].hash else said}")
    return _tell("harness", lines)


def _size(text: str) -> str:
    rows = text.count("\n")
    return text if not rows and len(text) <= 100 else f"{max(1, rows)} lines, {len(text)} characters"


def _diff(first: str, second: str) -> int:
    old, new = find_harness(first)[-1][1], find_harness(second)[-1][1]
    changes = changes_between(old, new)
    return _tell("diff", [*(f"{one.action} {one.component}" for one in changes), *old.diff(new).splitlines()] if changes else ["no change"])


def _lint(name: str, family: str, size: str) -> int:
    bundle = find_harness(name)[-1][1]
    if name.partition("#")[0].endswith((".yaml", ".yml")):
        config = load_config(Path(name.partition("#")[0]))
        family, size = family or config.family, size or config.size
    known, _, own = name.partition("/") if not Path(name).is_dir() else ("", "", "")
    family, size = family or (known if known in FAMILIES else ""), size or own or "mini"
    if not family:
        raise ConfigError("a folder says not which family it is for", seen=name, fix=f"--family, one of {', '.join(FAMILIES)}")
    if size not in list(Size):
        raise ConfigError("unknown size", seen=size, fix=nearest(size, [str(one) for one in Size]))
    problems = lint(bundle, load_family(family).tools(Size(size)))
    if problems:
        raise ConfigError("the harness can't be used", seen="\n    ".join(map(str, problems)), fix="mend what is named above")
    return _tell("lint", [f"{short(bundle.hash)}: every component loads, fits {family} ({size}) and survives a dry run"])


def _export(name: str, into: Path) -> int:
    bundle = find_harness(name)[-1][1]
    bundle.save(into)
    return _tell("export", [f"{bundle.hash}", f"written: {into}", f"use it: --set evolve.harness={into}"])


def build_harness_app(guarded: Guard) -> typer.Typer:
    """The commands; `guarded` turns errors into exit codes."""
    app = typer.Typer(no_args_is_help=True, help="Show, compare, export and check harnesses.")

    @app.command(help="Hash, components and, for a candidate, the edits that led to it; or the text of one component.")
    def show(
        harness: Named, component: Annotated[str, typer.Argument(metavar="[COMPONENT]", help="As hook:todo.")] = "", debug: Debug = False
    ) -> None:
        raise typer.Exit(guarded(lambda: _show(harness, component), debug=debug))

    @app.command(help="Typed changes from one harness to another, then the unified diff of their files.")
    def diff(first: Named, second: Named, debug: Debug = False) -> None:
        raise typer.Exit(guarded(lambda: _diff(first, second), debug=debug))

    @app.command(help="Write a harness as a folder.")
    def export(harness: Named, into: Annotated[Path, typer.Argument(metavar="FOLDER", show_default=False)], debug: Debug = False) -> None:
        raise typer.Exit(guarded(lambda: _export(harness, into), debug=debug))

    @app.command("lint", help="Check a harness against a family and dry-run its components.")
    def check(
        harness: Named,
        family: Annotated[str, typer.Option("--family", help="Family that it is for.")] = "",
        size: Annotated[str, typer.Option("--size", help="Size of its instances.")] = "",
        debug: Debug = False,
    ) -> None:
        raise typer.Exit(guarded(lambda: _lint(harness, family, size), debug=debug))

    return app
