"""Web applications on loopback: an aiohttp server in a thread of this process, one address per session of a pure `Site`.

    http://127.0.0.1:PORT/SESSION/any/path?of=the&site=1

A session name is 128 random bits, so nobody meets a session by guessing. The server starts at the first use, on a port that the system
chooses, and ends with the process. Opening and closing a session are calls in this process and have no address. Limits: sites answer from
memory and at once; requests are handled one after the other.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from coevo.errors import InfraError

__all__ = ["Loopback", "Request", "Response", "Site", "loopback"]

_START_TIMEOUT_S = 30.0
_MAX_LINE_BYTES = 1 << 17
"""Longest request line; worlds limit their texts far below it."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as a site sees it: `path` is decoded and starts with `/`, below the session's own address."""

    method: str
    path: str
    query: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    """One answer."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


class Site(Protocol):
    """An application without a network: requests in, answers out."""

    def answer(self, request: Request, base: str) -> Response:
        """Answer; `base` is the session's address without host, for links. Must not raise for anything that a request holds."""
        ...


class Loopback:
    """The server with its sessions; see the module docstring."""

    def __init__(self) -> None:
        self._sites: dict[str, Site] = {}
        self._ready = threading.Event()
        self.port = 0
        threading.Thread(target=lambda: asyncio.run(self._run()), name="loopback", daemon=True).start()
        if not self._ready.wait(_START_TIMEOUT_S) or not self.port:
            raise InfraError("the loopback server did not start", seen=f"{_START_TIMEOUT_S} s", fix="use the in-process backend")

    def open(self, site: Site) -> str:
        """Serve a site; returns the name of its session."""
        session = secrets.token_hex(16)
        self._sites[session] = site
        return session

    def close(self, session: str) -> None:
        """Forget a session; its addresses are gone."""
        self._sites.pop(session, None)

    async def _run(self) -> None:
        from aiohttp import web

        async def handle(request: web.Request) -> web.Response:
            session, path = request.match_info["session"], "/" + request.match_info["path"]
            site = self._sites.get(session)
            if site is None:
                return web.Response(status=404, text='{"error": "unknown session"}', content_type="application/json")
            asked = Request(request.method, path, dict(request.query), await request.read())
            given = site.answer(asked, f"/{session}")
            return web.Response(status=given.status, body=given.body, content_type=given.content_type, headers=dict(given.headers))

        app = web.Application(client_max_size=1 << 20)
        app.router.add_route("*", "/{session}/{path:.*}", handle)
        runner = web.AppRunner(app, access_log=None, max_line_size=_MAX_LINE_BYTES)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = int(runner.addresses[0][1])
        self._ready.set()
        await asyncio.Event().wait()


@lru_cache(maxsize=1)
def loopback() -> Loopback:
    """The server of this process, started at the first call."""
    return Loopback()
