"""A caller of the shop's HTTP application: tools become requests, refusals become the `ToolError`s that the in-process shop raises."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from coevo.errors import InfraError, ToolError, boundary
from coevo.tasks.website.routes import ROUTES

__all__ = ["ShopClient"]

TIMEOUT_S = 30.0
"""Of one request on loopback."""

_ID = re.compile(r"[A-Za-z0-9_]{1,40}")
_NO_ID = "-"
"""Stands in an address for text that can be no id (empty, dots, slashes): the application knows no such record."""


class ShopClient:
    """One session of the application behind a port of loopback."""

    def __init__(self, session: str, port: int) -> None:
        self._session = session
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)

    def perform(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """One request. Raises `ToolError` for a refusal, `InfraError` when the application can't be reached."""
        route = ROUTES[tool]
        path = f"/{self._session}" + route.path.format(**{name: _segment(value) for name, value in arguments.items()})
        rest = {name: value for name, value in arguments.items() if f"{{{name}}}" not in route.path}
        if route.method == "GET":
            return self._send("GET", f"{path}?{urlencode(rest, errors='replace')}" if rest else path, None)
        return self._send("POST", path, json.dumps(rest).encode())

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

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
