"""The shop as an HTTP application on loopback: aiohttp in a thread of this process, one address per session.

    GET  /SESSION/api/records/returns?status=open&page=1
    POST /SESSION/api/records/returns/R1043/reject   {"code": "K21"}

Answers are JSON; refusals have status 400, 404 or 422 and the body `{"error": text}`. A session name is 128 random bits, so nobody meets a
session by guessing. Opening, reading the changes of, and closing a session are calls in this process and have no address.
"""

from __future__ import annotations

import asyncio
import copy
import json
import secrets
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache, partial
from typing import Any

from aiohttp import web

from coevo.errors import InfraError, ToolError
from coevo.tasks.website.routes import ROUTES
from coevo.tasks.website.shop import TOOLS, Shop, ShopData
from coevo.tasks.world import Toolbox

__all__ = ["Service", "service"]

_START_TIMEOUT_S = 30.0
_MAX_LINE_BYTES = 1 << 17
"""Longest request line: two texts of the longest kind that worlds let through, percent-encoded."""


class Service:
    """The application with its sessions. Sessions are opened from any thread; requests are handled one at a time."""

    def __init__(self) -> None:
        self._sessions: dict[str, tuple[Shop, dict[str, dict[str, Any]]]] = {}
        self._toolbox = Toolbox(TOOLS)
        self._ready = threading.Event()
        self.port = 0
        threading.Thread(target=self._serve, name="website-service", daemon=True).start()
        if not self._ready.wait(_START_TIMEOUT_S) or not self.port:
            raise InfraError("the shop's HTTP application did not start", seen=f"{_START_TIMEOUT_S} s", fix="use the in-process backend")

    def open(self, data: ShopData) -> str:
        """A new session over unchanged records; its name is the first part of all its addresses."""
        session = secrets.token_hex(16)
        self._sessions[session] = (Shop(data), {})
        return session

    def changes(self, session: str) -> dict[str, dict[str, Any]]:
        """A copy of what happened to the records."""
        return copy.deepcopy(self._sessions[session][1])

    def restore(self, session: str, changes: Mapping[str, Mapping[str, Any]]) -> None:
        """Put a session where another one stood."""
        shop, _ = self._sessions[session]
        self._sessions[session] = (shop, {one: dict(fields) for one, fields in changes.items()})

    def close(self, session: str) -> None:
        """Forget a session; its addresses are gone."""
        self._sessions.pop(session, None)

    def _serve(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        app = web.Application(client_max_size=1 << 20)
        for tool, route in ROUTES.items():
            app.router.add_route(route.method, f"/{{session}}{route.path}", self._handler(tool))
        runner = web.AppRunner(app, access_log=None, max_line_size=_MAX_LINE_BYTES)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        self._ready.set()
        await asyncio.Event().wait()

    def _handler(self, tool: str) -> Callable[[web.Request], Awaitable[web.Response]]:
        return partial(self._answer, tool)

    async def _answer(self, tool: str, request: web.Request) -> web.Response:
        arguments: dict[str, Any] = dict(request.match_info)
        found = self._sessions.get(arguments.pop("session"))
        if found is None:
            return _refusal(404, "unknown session")
        try:
            arguments |= self._given(tool, request) if request.method == "GET" else await request.json()
        except (ValueError, TypeError):
            return _refusal(400, "the body must be a JSON object")
        shop, changes = found
        try:
            result = shop.perform(tool, self._toolbox.signature(tool).bind(arguments), changes)
        except ToolError as error:
            return _refusal(404 if error.what.startswith("unknown") else 422, error.what)
        return web.json_response(result)

    def _given(self, tool: str, request: web.Request) -> dict[str, Any]:
        """The query, with whole numbers where the tool takes them."""
        spec = next(one for one in TOOLS if one.name == tool)
        types = {name: schema["type"] for name, schema in spec.parameters["properties"].items()}
        return {name: int(value) if types.get(name) == "integer" else value for name, value in request.query.items()}


def _refusal(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=json.dumps({"error": text}), content_type="application/json")


@lru_cache(maxsize=1)
def service() -> Service:
    """The application of this process, started at the first call; it ends with the process."""
    return Service()
