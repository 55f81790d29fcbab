"""Promises of the bundle:

1. files -> bundle -> files is the identity on canonical files; the hash covers behaviour only (not name, not parent);
2. every broken folder is one `ConfigError` that names the file and carries a fix; where a line is known it is named;
3. lint finds what a load can't: what doesn't fit the family, and what doesn't survive a dry run.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from coevo.chat import ToolSpec
from coevo.errors import ConfigError
from coevo.harness.bundle import HarnessBundle
from coevo.harness.context import ContextPolicy
from coevo.harness.lint import lint
from coevo.harness.sandbox import SandboxLimits, SandboxPool
from coevo.harness.tools import ToolEntry, composite_spec

HOOK = "def after_tool(event, state):\n    return {'note': 'seen'}\n"
TOOL = 'def both(item: str, times: int = 2, *, loud: bool = False) -> dict:\n    """Reads.\n\n    Twice."""\n    return read(item=item)\n'
FILES = {
    "harness.yaml": "schema: 1\nname: sample\nparent: null\nlimits:\n  max_turns: 5\n",
    "prompt/system.md": 'You work on {family}. Example: {"a": 1}\r\n\n',
    "tools.yaml": "- tool: read\n  as: look\n- composite: both\n- tool: finish\n",
    "context.yaml": "keep_last_turns: 3\npins: [keep me]\n",
    "tools/both.py": TOOL,
    "hooks/h.py": HOOK,
    "skills/s.md": "trigger: E1\nE1 is special.\n",
}
FAMILY = (
    ToolSpec("read", "reads", {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}),
    ToolSpec("write", "writes", {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}),
    ToolSpec("finish", "ends", {"type": "object", "properties": {}, "required": []}),
)


POOL = SandboxPool(SandboxLimits(call_s=0.3), max_workers=2)


@pytest.fixture(scope="module", autouse=True)
def _close_pool() -> Iterator[None]:
    yield
    POOL.close()


def test_round_trip(tmp_path: Path) -> None:
    first = HarnessBundle.from_files(FILES)
    first.save(tmp_path / "out")
    again = HarnessBundle.load(tmp_path / "out")
    assert again == first
    assert again.files() == first.files()
    assert again.hash == first.hash
    assert pickle.loads(pickle.dumps(first)) == first
    assert hash(again) == hash(first)


def test_parsed() -> None:
    parsed = HarnessBundle.from_files(FILES)
    assert parsed.limits.max_turns == 5
    assert parsed.tools == (ToolEntry("read", shown="look"), ToolEntry("both", composite=True), ToolEntry("finish"))
    assert parsed.context == ContextPolicy(keep_last_turns=3, pins=("keep me",))
    assert parsed.skills["s"].trigger == "E1"
    assert lint(parsed, FAMILY) == []


def test_canonical_text_is_one_spelling() -> None:
    """Promise 1: whatever PyYAML was built with, text outside ASCII is written as it is, and `1` is no `true`."""
    entry = ToolEntry("read", description="Größe — ✓ 😀")
    counted = HarnessBundle.from_files(FILES).replace(tools=(entry, ToolEntry("both", composite=True)), context=ContextPolicy(pins=("1",)))
    assert counted.files()["tools.yaml"] == "- tool: read\n  description: Größe — ✓ 😀\n- composite: both\n"
    assert "elide_repeats: false\npins:\n- '1'\n" in counted.files()["context.yaml"]
    flagged = counted.replace(context=ContextPolicy(elide_repeats=True))
    assert "elide_repeats: true\n" in flagged.files()["context.yaml"]
    assert "keep_last_turns: 1\n" in flagged.replace(context=ContextPolicy(keep_last_turns=1)).files()["context.yaml"]


def test_identity_is_behaviour() -> None:
    first = HarnessBundle.from_files(FILES)
    assert first.replace(name="other", parent="f" * 64).hash == first.hash
    assert first.replace(system_prompt=first.system_prompt + "\n\n").hash == first.hash
    changes = [
        {"system_prompt": "x"},
        {"hooks": {}},
        {"skills": {}},
        {"context": ContextPolicy()},
        {"tools": tuple(reversed(first.tools))},
        {"composites": {"both": TOOL + "# why\n"}},
    ]
    hashes = {first.replace(**change).hash for change in changes}
    assert len(hashes) == len(changes)
    assert first.hash not in hashes


def test_replace_names_the_parent_and_diff_shows_the_edit() -> None:
    first = HarnessBundle.from_files(FILES)
    child = first.replace(hooks={"h": HOOK.replace("seen", "done")})
    assert child.parent == first.hash
    assert "-    return {'note': 'seen'}" in first.diff(child)
    assert "+    return {'note': 'done'}" in first.diff(child)


def test_a_bundle_can_not_be_changed() -> None:
    first = HarnessBundle.from_files(FILES)
    with pytest.raises(TypeError):
        first.hooks["x"] = "y"  # type: ignore[index]


def test_composite_schema() -> None:
    spec = composite_spec("both", TOOL)
    assert spec.parameters["properties"] == {"item": {"type": "string"}, "times": {"type": "integer"}, "loud": {"type": "boolean"}}
    assert spec.parameters["required"] == ["item"]
    assert spec.description == "Reads.\n\nTwice."


BROKEN = {
    "schema": ("harness.yaml", "schema: 9\nname: x\n", r"harness\.yaml:1: "),
    "no name": ("harness.yaml", "schema: 1\n", r"harness\.yaml"),
    "broken yaml": ("harness.yaml", "schema: 1\nname: [\n", r"harness\.yaml:\d+: broken YAML"),
    "unknown key": ("harness.yaml", "schema: 1\nname: x\nlimit: {}\n", r"harness\.yaml:3: unknown key"),
    "unknown limit": ("harness.yaml", "schema: 1\nname: x\nlimits:\n  max_turn: 3\n", r"harness\.yaml:4: unknown key"),
    "limit type": ("harness.yaml", "schema: 1\nname: x\nlimits:\n  max_turns: many\n", r"harness\.yaml:4: limits\.max_turns"),
    "limit bool": ("harness.yaml", "schema: 1\nname: x\nlimits:\n  max_turns: true\n", r"harness\.yaml:4: limits\.max_turns"),
    "limit zero": ("harness.yaml", "schema: 1\nname: x\nlimits:\n  max_turns: 0\n", r"harness\.yaml:4: max_turns"),
    "not a mapping": ("harness.yaml", "- 1\n", r"harness\.yaml:1: not a mapping"),
    "empty": ("harness.yaml", "", r"harness\.yaml:1: not a mapping"),
    "slot": ("prompt/system.md", "hello {instruction}", r"prompt/system\.md: unknown slot"),
    "tools not a list": ("tools.yaml", "tool: read\n", r"tools\.yaml:1: "),
    "tool entry": ("tools.yaml", "- tool: read\n- read\n- composite: both\n", r"tools\.yaml:2: not a tool entry"),
    "tool key": ("tools.yaml", "- tool: read\n- composite: both\n  as: x\n", r"tools\.yaml:2: unknown key"),
    "tool value": ("tools.yaml", "- tool: 3\n- composite: both\n", r"tools\.yaml:1: tool is not text"),
    "composite without file": ("tools.yaml", "- composite: both\n- composite: bath\n", r"no file tools/bath\.py"),
    "file without entry": ("tools.yaml", "- tool: read\n", r"tools/both\.py is not listed"),
    "composite finish": ("tools/finish.py", "def finish():\n    return 1\n", r"finish"),
    "composite syntax": ("tools/both.py", "def both(:\n", r"tools/both\.py:1: broken Python"),
    "composite annotation": ("tools/both.py", "def both(item):\n    return 1\n", r"tools/both\.py:1: argument 'item'"),
    "composite list": ("tools/both.py", "def both(item: list):\n    return 1\n", r"tools/both\.py:1: argument 'item'"),
    "composite stars": ("tools/both.py", "def both(*items: str):\n    return 1\n", r"tools/both\.py:1: "),
    "hook syntax": ("hooks/h.py", "def after_tool(event, state):\nreturn\n", r"hooks/h\.py:2: broken Python"),
    "hook event": ("hooks/h.py", "def after_tol(event, state):\n    return\n", r"hooks/h\.py: no event function"),
    "hook signature": ("hooks/h.py", "def after_tool(event):\n    return\n", r"hooks/h\.py:1: wrong signature"),
    "context key": ("context.yaml", "keep_first: 2\nkeep_last: 3\n", r"context\.yaml:2: unknown key"),
    "context type": ("context.yaml", "elide_repeats: maybe\n", r"context\.yaml:1: elide_repeats"),
    "context pins": ("context.yaml", "pins: [1]\n", r"context\.yaml:1: pins"),
    "context drops instruction": ("context.yaml", "keep_first: 1\n", r"context\.yaml:1: keep_first"),
    "context zero": ("context.yaml", "keep_last_turns: 0\n", r"context\.yaml:1: keep_last_turns"),
    "skill trigger": ("skills/s.md", "E1 is special.\n", r"skills/s\.md:1: no trigger"),
    "skill empty trigger": ("skills/s.md", "trigger:\ntext\n", r"skills/s\.md: no trigger"),
    "foreign file": ("notes.txt", "hello", r"no part of a harness"),
    "foreign folder file": ("tools/data.json", "{}", r"no part of a harness"),
    "hook name": ("hooks/My-Hook.py", HOOK, r"not a component name"),
}


@pytest.mark.parametrize(("name", "text", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_broken_folders(tmp_path: Path, name: str, text: str, message: str) -> None:
    for path, content in (FILES | {name: text}).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        HarnessBundle.load(tmp_path)
    assert caught.value.fix
    assert caught.value.exit_code == 2


def test_missing_folder_and_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no harness folder"):
        HarnessBundle.load(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"no harness\.yaml"):
        HarnessBundle.load(tmp_path)
    (tmp_path / "harness.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        HarnessBundle.load(tmp_path)


def test_save_keeps_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        HarnessBundle.from_files(FILES).save(tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "mine"


def lint_of(**changes: object) -> str:
    return "\n".join(map(str, lint(HarnessBundle.from_files(FILES).replace(**changes), FAMILY, sandboxes=POOL)))


def test_lint_against_the_family() -> None:
    both = ToolEntry("both", composite=True)
    assert "did you mean 'read'" in lint_of(tools=(ToolEntry("reed"), both, ToolEntry("finish")))
    assert "finish is hidden" in lint_of(tools=(ToolEntry("read"), both))
    assert "shadows" in lint_of(tools=(ToolEntry("read", shown="write"), both, ToolEntry("finish")))
    assert "two tools under one name" in lint_of(tools=(ToolEntry("read"), ToolEntry("read"), both, ToolEntry("finish")))
    shadow = "def write(item: str):\n    return 1\n"
    assert "shadows" in lint_of(tools=(ToolEntry("write", composite=True), ToolEntry("finish")), composites={"write": shadow})
    assert "no tool is shown" in lint_of(tools=(), composites={})


DRY = {
    "endless": ("def on_start(event, state):\n    while True:\n        pass\n", "limit"),
    "wrong return": ("def on_start(event, state):\n    return 'note'\n", "dict or None"),
    "wrong key": ("def on_start(event, state):\n    return {'note': 'x'}\n", "can't return this key"),
    "uses a tool": ("def on_start(event, state):\n    return {'inject_message': read(item='E1')}\n", "NameError"),
    "assumes": ("def after_tool(event, state):\n    return {'note': event['result']['items']}\n", "TypeError"),
}


@pytest.mark.parametrize(("source", "message"), DRY.values(), ids=DRY.keys())
def test_lint_dry_runs_hooks(source: str, message: str) -> None:
    assert message in lint_of(hooks={"bad": source})


def test_lint_dry_runs_composites() -> None:
    data = "def both(item: str):\n    return read(item=item)['missing']\n"
    assert lint_of(composites={"both": data}) == ""
    assert "NameError" in lint_of(composites={"both": "def both(item: str):\n    return nowhere(item=item)\n"})
    assert "NameError" in lint_of(composites={"both": "def both(item: str):\n    return finish()\n"})
    assert "limit" in lint_of(composites={"both": "def both(item: str):\n    while True:\n        pass\n"})
