"""Any environment that is served over MCP (Model Context Protocol), through the official SDK: a local process on stdio, or a URL.

The server offers the agent's tools and two more, which only this adapter calls:

- `open_task(template, stream, seed)` starts a task and returns JSON with `instruction`, and with `task_id` where the server plays several;
- `grade_task()` changes nothing and returns JSON with `checkpoints`: a list of `name`, `passed`, and where wanted `weight`, `feedback`,
  `guard` (true where doing nothing is enough to pass).

A tool that takes `task_id` gets it from this adapter; agents never see it.

A family is then an object in a module of yours, named in the configuration as `module:attribute`:

    family = McpFamily(McpEnvironment("desk", templates=("refund",), command=("python", "desk_server.py"), harness=Path("harness")))

A world is its instance and its log; the connection is a cache. Forks and worlds whose connection was given up open a new one and replay the
log, so the server must answer equal calls equally. On stdio each world has a process of its own; over HTTP, where the protocol keeps no
state, a server tells tasks apart by `task_id`.
Limits: text and JSON results only; no reference policy; a server that breaks off is an infrastructure error, never a failed task.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from coevo.chat import Message, ToolSpec
from coevo.errors import ConfigError, GraderError, InfraError, ToolError, boundary
from coevo.records import Grade
from coevo.tasks.adapters.loose import LooseToolbox
from coevo.tasks.adapters.optional import need
from coevo.tasks.family import Conduct, Policy, Size, Style, TaskInstance, Unrecoverable, World
from coevo.tasks.grading import Judgement, weigh
from coevo.tasks.variants import Variant, VariantFamily
from coevo.tasks.world import TERMINAL_TOOL, PlainWorld, Toolbox

__all__ = ["McpEnvironment", "McpFamily", "McpWorld"]

MAX_OPEN = 8
"""Connections that a process keeps; the one that was used least recently goes first."""

INSTALL = "pip install mcp"
_SHOWN_CHARS = 2000
_Result = TypeVar("_Result")
_FINISH = ToolSpec(
    TERMINAL_TOOL,
    "End the task.",
    {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
)


@dataclass(frozen=True, slots=True)
class McpEnvironment:
    """How to reach an environment; picklable.

    Attributes:
        name: Of the family.
        templates: Names that `open_task` knows, in the order in which `diversity` takes them.
        harness: Folder of the harness that evolution starts from.
        command: Program and arguments of a server on stdio; or
        url: Address of a server over HTTP. Exactly one of the two.
        writes: Tools that change what is graded; None: all of them.
        version: Enters every episode's identity; change it with the server.
        call_s: Seconds that one call may take.
        opening, grading, handle: The convention's names, where a server uses others.
    """

    name: str
    templates: tuple[str, ...]
    harness: Path
    command: tuple[str, ...] = ()
    url: str = ""
    writes: frozenset[str] | None = None
    version: str = "1"
    call_s: float = 60.0
    opening: str = "open_task"
    grading: str = "grade_task"
    handle: str = "task_id"

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ConfigError("an MCP environment needs a command or a URL", seen=(self.command, self.url), fix="give exactly one of them")
        if not self.templates:
            raise ConfigError("an MCP environment has no templates", seen=self.name, fix="name at least one that its server knows")


class _Loop:
    """One event loop in a thread of its own, for all connections of the process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mcp", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _Result], *, timeout_s: float) -> _Result:
        """Run a coroutine there and wait for it. Raises `InfraError` when it takes too long."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except FutureTimeoutError as error:
            future.cancel()
            raise InfraError("an MCP server did not answer", seen=f"{timeout_s:g} s", fix="look at the server, or raise call_s") from error


_loops: list[_Loop] = []


def _loop() -> _Loop:
    if not _loops:
        _loops.append(_Loop())
        atexit.register(_connections_closed)
    return _loops[0]


_Request = tuple[Callable[[Any], Awaitable[Any]], "Future[Any]"]


class _Connection:
    """A client of the SDK, alive in one task of the loop: the SDK wants to be left where it was entered."""

    def __init__(self, environment: McpEnvironment) -> None:
        self._environment = environment
        self._closed = False
        self.task_id: str | None = None
        self._requests: asyncio.Queue[_Request | None] = _loop().run(self._start(), timeout_s=environment.call_s)

    async def _start(self) -> asyncio.Queue[_Request | None]:
        requests: asyncio.Queue[_Request | None] = asyncio.Queue()
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._serve(requests, ready))
        await ready
        return requests

    async def _serve(self, requests: asyncio.Queue[_Request | None], ready: asyncio.Future[None]) -> None:
        sdk, environment = need("mcp", package="mcp", install=INSTALL), self._environment
        server: Any = environment.url
        if environment.command:
            server = sdk.stdio_client(sdk.StdioServerParameters(command=environment.command[0], args=list(environment.command[1:])))
        try:
            async with sdk.Client(server) as client:
                ready.set_result(None)
                while (request := await requests.get()) is not None:
                    await _answer(client, *request)
        except Exception as error:  # noqa: BLE001 - whatever the transport raises means that there is no server
            if not ready.done():
                ready.set_exception(error)
        finally:
            self._closed = True
            while not requests.empty():
                left = requests.get_nowait()
                if left is not None:
                    left[1].set_exception(ConnectionError("the connection is closed"))

    def ask(self, action: Callable[[Any], Awaitable[_Result]]) -> _Result:
        """The result of an action on the client. Raises `InfraError` for whatever goes wrong on the way."""
        with boundary(InfraError, f"the MCP server of {self._environment.name!r} failed", fix="start it again, or look at its log"):
            if self._closed:
                raise ConnectionError("the connection is closed")
            return _loop().run(self._asked(action), timeout_s=self._environment.call_s)

    async def _asked(self, action: Callable[[Any], Awaitable[_Result]]) -> _Result:
        answer: Future[Any] = Future()
        await self._requests.put((action, answer))
        result: _Result = await asyncio.wrap_future(answer)
        return result

    def close(self) -> None:
        """End the connection and the server's process."""
        if not self._closed:
            _loop().run(self._ended(), timeout_s=self._environment.call_s)

    async def _ended(self) -> None:
        await self._requests.put(None)
        await self._task


async def _answer(client: Any, action: Callable[[Any], Awaitable[Any]], answer: Future[Any]) -> None:
    try:
        result = await action(client)
    except Exception as error:  # noqa: BLE001 - travels to the caller, who attributes it
        answer.set_exception(error)
        return
    answer.set_result(result)


_open: OrderedDict[int, tuple[McpWorld, _Connection]] = OrderedDict()
_open_lock = threading.RLock()


def _connections_closed() -> None:
    """At exit: no server process stays behind."""
    with _open_lock:
        for _, connection in _open.values():
            connection.close()
        _open.clear()


class McpWorld(PlainWorld):
    """See the module docstring. All state is the server's; what this side keeps is the log."""

    def __init__(self, instance: TaskInstance, environment: McpEnvironment, toolbox: Toolbox, handled: frozenset[str]) -> None:
        self._environment, self._toolbox, self._handled = environment, toolbox, handled
        super().__init__(instance, instruction="", data={"environment": environment.name}, state={"accepted": []})
        self._instruction = str(self._reset(self._connect()).get("instruction", ""))

    @property
    def toolbox(self) -> Toolbox:  # type: ignore[override]
        """The server's tools and `finish`."""
        return self._toolbox

    def apply(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Run one tool on the server."""
        if name == TERMINAL_TOOL:
            return super().apply(name, arguments)
        result = self._run(self._connection(), name, arguments)
        self._state["accepted"].append([name, dict(arguments)])
        return result

    def grade(self) -> Grade:
        """The server's checkpoints and `finished`. Raises `GraderError` for an answer in another form."""
        answer = self._run(self._connection(), self._environment.grading, {})
        with boundary(GraderError, "an MCP server graded in an unknown form", fix="return checkpoints with name and passed"):
            judgements = [_judgement(one) for one in answer["checkpoints"]]
            return weigh(judgements, finished=self.finished)

    def _connection(self) -> _Connection:
        """The world's connection; a new one, with the log replayed, where it has none."""
        with _open_lock:
            held = _open.get(id(self))
            if held is not None and held[0] is self:
                _open.move_to_end(id(self))
                return held[1]
        connection = self._connect()
        self._reset(connection)
        for name, arguments in self._state["accepted"]:
            self._run(connection, name, arguments)
        return connection

    def _run(self, connection: _Connection, name: str, arguments: Mapping[str, Any]) -> Any:
        handle = {self._environment.handle: connection.task_id} if name in self._handled else {}
        return _called(connection, name, {**arguments, **handle})

    def _connect(self) -> _Connection:
        with boundary(InfraError, f"no connection to the MCP server of {self._environment.name!r}", fix="check its command or address"):
            connection = _Connection(self._environment)
        dropped: list[_Connection] = []
        with _open_lock:
            _open[id(self)] = (self, connection)
            while len(_open) > MAX_OPEN:
                dropped.append(_open.popitem(last=False)[1][1])
        for one in dropped:
            one.close()
        return connection

    def _reset(self, connection: _Connection) -> Any:
        one = self.instance
        opened = _called(connection, self._environment.opening, {"template": one.template, "stream": str(one.stream), "seed": one.seed})
        connection.task_id = opened.get(self._environment.handle)
        return opened


def _judgement(one: Mapping[str, Any]) -> Judgement:
    problem = None if one["passed"] is True else str(one.get("feedback") or "not as it should be")
    return Judgement(str(one["name"]), problem, float(one.get("weight", 1.0)), guard=bool(one.get("guard", False)))


def _called(connection: _Connection, name: str, arguments: Mapping[str, Any]) -> Any:
    """A tool's result as JSON where it is JSON. Raises `ToolError` with the server's words when it refuses."""

    async def call(client: Any) -> Any:
        return await client.call_tool(name, dict(arguments))

    result = connection.ask(call)
    text = "\n".join(one.text for one in result.content if getattr(one, "type", "") == "text")
    if result.is_error:
        raise ToolError(text[:_SHOWN_CHARS] or f"{name} failed")
    if result.structured_content is not None:
        found = result.structured_content
        return found["result"] if set(found) == {"result"} else found
    try:
        return json.loads(text)
    except ValueError:
        return text


class _NoReference:
    """A foreign environment has no reference policy."""

    def move(self, world: World, visible: Sequence[Message], *, limited: bool = False) -> Unrecoverable:
        return Unrecoverable("an environment over MCP has no reference policy; use a remote expert")


class McpFamily(VariantFamily):
    """An environment behind the family protocol, in the size `standard`; its tools are asked for once, when they are first needed."""

    def __init__(self, environment: McpEnvironment) -> None:
        super().__init__(environment.name, environment.version, {}, seeds=environment.harness.parent)
        self.environment = environment
        self._listing: tuple[Toolbox, frozenset[str]] | None = None

    def templates(self, size: Size) -> tuple[str, ...]:
        """As the environment names them."""
        return self.environment.templates if Size(size) is Size.STANDARD else ()

    def open(self, instance: TaskInstance) -> McpWorld:
        """Raises `ConfigError` for another family's instance, `InfraError` when the server can't be reached."""
        if instance.family != self.name:
            raise ConfigError("an instance belongs to another family", seen=instance.key, fix=f"open it with {instance.family!r}")
        return McpWorld(instance, self.environment, *self._listed())

    def policy(self, style: Style) -> Policy:
        """Gives up in every state."""
        return _NoReference()

    def base_harness(self, size: Size) -> Path:
        """The environment's own."""
        return self.environment.harness

    def _variant(self, size: Size) -> Variant:
        if Size(size) is not Size.STANDARD:
            raise ConfigError("an environment over MCP has one size", seen=str(size), fix=f"use {Size.STANDARD}")
        specs = self._listed()[0].specs
        writes = self.environment.writes
        writes = frozenset(one.name for one in specs) if writes is None else writes | {TERMINAL_TOOL}
        return Variant(self.environment.templates, specs, Conduct(writes), self.open, self.policy)

    def _listed(self) -> tuple[Toolbox, frozenset[str]]:
        if self._listing is None:
            self._listing = _listed(self.environment)
        return self._listing


def _listed(environment: McpEnvironment) -> tuple[Toolbox, frozenset[str]]:
    """The agent's tools, and which of the server's take the task's handle; over a connection of its own."""

    async def listing(client: Any) -> Any:
        return await client.list_tools()

    with boundary(InfraError, f"no connection to the MCP server of {environment.name!r}", fix="check its command or address"):
        connection = _Connection(environment)
    try:
        tools = connection.ask(listing).tools
    finally:
        connection.close()
    names = {one.name for one in tools}
    lacking = {environment.opening, environment.grading} - names
    if lacking:
        raise ConfigError("an MCP server lacks a tool of the convention", seen=sorted(lacking), fix="see coevo.tasks.adapters.mcp")
    hidden = {environment.opening, environment.grading, TERMINAL_TOOL}
    handled = frozenset(one.name for one in tools if environment.handle in one.input_schema.get("properties", {}))
    specs = [
        ToolSpec(one.name, one.description or "", _without(one.input_schema, environment.handle)) for one in tools if one.name not in hidden
    ]
    return LooseToolbox([*specs, _FINISH]), handled


def _without(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A schema without one property."""
    properties = {key: value for key, value in schema.get("properties", {}).items() if key != name}
    return {**schema, "properties": properties, "required": [key for key in schema.get("required", ()) if key != name]}
