"""A caller of the shop's HTTP application: tools become requests, refusals become the `ToolError`s that the in-process shop raises."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Self
from urllib.parse import urlencode

from coevo.errors import InfraError, ToolError, boundary
from coevo.tasks.website.routes import ROUTES
from coevo.tasks.website.shop import ShopData

__all__ = ["ShopClient"]

TIMEOUT_S = 30.0
"""Of one request on loopback."""

_ID = re.compile(r"[A-Za-z0-9_]{1,40}")
_NO_ID = "-"
"""Stands in an address for text that can be no id (empty, dots, slashes): the application knows no such record."""


class ShopClient:
    """One session of the application."""

    def __init__(self, session: str, port: int, *, admin: Mapping[str, Callable[..., Any]]) -> None:
        self._session, self._admin = session, admin
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)

    @classmethod
    def connect(cls, data: ShopData) -> Self:
        """Open a session over unchanged records. The first call of a process starts the application."""
        from coevo.tasks.website.service import service

        running = service()
        admin: dict[str, Callable[..., Any]] = {"changes": running.changes, "restore": running.restore, "close": running.close}
        return cls(running.open(data), running.port, admin=admin)

    def perform(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """One request. Raises `ToolError` for a refusal, `InfraError` when the application can't be reached."""
        route = ROUTES[tool]
        path = f"/{self._session}" + route.path.format(**{name: _segment(value) for name, value in arguments.items()})
        rest = {name: value for name, value in arguments.items() if f"{{{name}}}" not in route.path}
        if route.method == "GET":
            return self._send("GET", f"{path}?{urlencode(rest, errors='replace')}" if rest else path, None)
        return self._send("POST", path, json.dumps(rest).encode())

    def changes(self) -> dict[str, dict[str, Any]]:
        """What happened to the records."""
        changes: dict[str, dict[str, Any]] = self._admin["changes"](self._session)
        return changes

    def restore(self, changes: Mapping[str, Mapping[str, Any]]) -> None:
        """Put the session where another one stood."""
        self._admin["restore"](self._session, changes)

    def close(self) -> None:
        """End the session and the connection."""
        self._connection.close()
        self._admin["close"](self._session)

    def _send(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        headers = {} if body is None else {"Content-Type": "application/json"}
        with boundary(InfraError, "the shop's HTTP application did not answer"):
            self._connection.request(method, path, body=body, headers=headers)
            response = self._connection.getresponse()
            answer: dict[str, Any] = json.loads(response.read())
        if response.status >= 500:
            raise InfraError("the shop's HTTP application failed", seen=str(response.status))
        if response.status >= 400:
            raise ToolError(answer["error"])
        return answer


def _segment(value: Any) -> str:
    text = str(value)
    return text if _ID.fullmatch(text) else _NO_ID
