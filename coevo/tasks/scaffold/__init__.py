"""A skeleton of a new task family: a package with world, grader, reference policy, base harness and a test that runs the hygiene suite.

The files beside this module are its templates. What is written works as it stands; its author changes one file after the other and keeps
the test green.
"""

from __future__ import annotations

import keyword
import re
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from jinja2 import FileSystemLoader, StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from coevo.errors import ConfigError, PrerequisiteError
from coevo.tasks import FAMILIES

__all__ = ["FILES", "write_skeleton"]

FILES = {
    "pyproject.toml": "pyproject.toml.j2",
    "README.md": "readme.md.j2",
    "run.yaml": "run.yaml.j2",
    "tests/test_{name}.py": "test.py.j2",
    "{name}/__init__.py": "family.py.j2",
    "{name}/world.py": "world.py.j2",
    "{name}/reference.py": "reference.py.j2",
    "{name}/harness/{name}-standard/harness.yaml": "harness.yaml.j2",
    "{name}/harness/{name}-standard/context.yaml": "context.yaml.j2",
    "{name}/harness/{name}-standard/tools.yaml": "tools.yaml.j2",
    "{name}/harness/{name}-standard/prompt/system.md": "system.md.j2",
}
"""File of the skeleton -> template."""

_NAME = re.compile(r"[a-z][a-z0-9_]{1,39}\Z")


def write_skeleton(name: str, *, into: Path) -> Path:
    """Write the skeleton of the family `name` into a new folder of that name, whole or not at all.

    Args:
        name: Name of the family and of its package.
        into: Folder that gets it; must exist.

    Returns:
        The new folder.

    Raises:
        ConfigError: The name is no package name or already means something, the folder is taken, or `into` is no folder.
        PrerequisiteError: The folder can't be written.
    """
    _check(name)
    target = into / name
    if not into.is_dir():
        raise ConfigError("there is no folder for the new family", seen=str(into), fix="create it, or give --into an existing folder")
    if target.exists():
        raise ConfigError("the folder of the new family is taken", seen=str(target), fix="use another name, or --into another folder")
    try:
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=into) as draft:
            _write(name, Path(draft) / name)
            (Path(draft) / name).rename(target)
    except OSError as error:
        raise PrerequisiteError("the skeleton could not be written", seen=str(error), fix=f"make {into} writable") from error
    return target


def _check(name: str) -> None:
    if _NAME.match(name) is None or keyword.iskeyword(name):
        fix = "use 2 to 40 lower-case letters, digits and underscores, a letter first"
        raise ConfigError("a family's name must be a package name", seen=name, fix=fix)
    if name in FAMILIES or name in sys.stdlib_module_names or find_spec(name) is not None:
        raise ConfigError("this name already means a family or a module", seen=name, fix="use another name")


def _write(name: str, folder: Path) -> None:
    templates = ImmutableSandboxedEnvironment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    values = {"name": name, "title": "".join(part.capitalize() for part in name.split("_"))}
    for path, template in FILES.items():
        file = folder / path.format(name=name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(templates.get_template(template).render(values), encoding="utf-8")
