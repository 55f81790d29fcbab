"""A small environment over MCP, on stdio or HTTP: trays of letters that must be stamped, each letter once."""

from __future__ import annotations

import sys
from random import Random
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("desk")
trays: dict[str, tuple[list[str], list[str]]] = {}


@server.tool()
def open_task(template: str, stream: str, seed: int) -> dict[str, Any]:
    """Start a task."""
    random = Random(f"{template}/{stream}/{seed}")
    letters = [f"L{number}" for number in random.sample(range(100, 1000), 3)]
    trays[task_id := f"T{len(trays)}"] = (letters, [])
    return {"instruction": f"Stamp all letters of the {template} tray.", "task_id": task_id}


@server.tool()
def list_letters(task_id: str) -> dict[str, Any]:
    """Letters of the tray."""
    return {"letters": trays[task_id][0]}


@server.tool()
def stamp(letter: str, task_id: str) -> dict[str, Any]:
    """Stamp a letter."""
    letters, stamped = trays[task_id]
    if letter not in letters:
        raise ToolError(f"there is no letter {letter}")
    stamped.append(letter)
    return {"stamped": len(stamped)}


@server.tool()
def grade_task(task_id: str) -> dict[str, Any]:
    """Judge the tray."""
    letters, done = trays[task_id]
    checks: list[dict[str, Any]] = [{"name": f"stamped:{one}", "passed": one in done, "feedback": "not stamped"} for one in letters]
    checks.append({"name": "once", "passed": len(set(done)) == len(done), "feedback": "a letter has two stamps", "guard": True})
    return {"checkpoints": checks}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run()
