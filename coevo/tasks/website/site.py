"""The shop as an HTTP application: the API of `routes` over one shop, without a network (`coevo.tasks.loopback` serves it).

    GET  /api/records/returns?status=open&page=1
    POST /api/records/returns/R1043/reject   {"code": "K21"}

Answers are JSON. Refusals carry `{"error": text}` with status 400 (no JSON object), 404 (unknown address, record, document or person), 405
(wrong method) or 422 (anything that the shop refuses).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from coevo.errors import ToolError
from coevo.tasks.loopback import Request, Response
from coevo.tasks.website.routes import ROUTES
from coevo.tasks.website.shop import TOOLS, Shop, ShopData
from coevo.tasks.world import Toolbox

__all__ = ["ShopSite"]

_TOOLBOX = Toolbox(TOOLS)
_TYPES = {tool.name: {name: schema["type"] for name, schema in tool.parameters["properties"].items()} for tool in TOOLS}
_PATTERNS = {tool: re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", route.path)) for tool, route in ROUTES.items()}


class ShopSite:
    """One session: a shop and what happened to its records."""

    def __init__(self, data: ShopData, changes: Mapping[str, Mapping[str, Any]]) -> None:
        self._shop = Shop(data)
        self.changes = {one: dict(fields) for one, fields in changes.items()}

    def answer(self, request: Request, base: str) -> Response:
        """See `coevo.tasks.loopback.Site`."""
        matches = [(tool, match) for tool, pattern in _PATTERNS.items() if (match := pattern.fullmatch(request.path))]
        if not matches:
            return _refusal(404, "unknown address")
        fitting = next(((tool, match) for tool, match in matches if ROUTES[tool].method == request.method), None)
        if fitting is None:
            return _refusal(405, f"this address takes {ROUTES[matches[0][0]].method}")
        tool, match = fitting
        try:
            given = _query(tool, request.query) if request.method == "GET" else json.loads(request.body)
            arguments = {**given, **match.groupdict()}
        except (ValueError, TypeError):
            return _refusal(400, "the body must be a JSON object, and numbers in the query whole numbers")
        try:
            result = self._shop.perform(tool, _TOOLBOX.signature(tool).bind(arguments), self.changes)
        except ToolError as error:
            return _refusal(404 if error.what.startswith("unknown") else 422, error.what)
        return Response(200, json.dumps(result).encode())


def _query(tool: str, query: Mapping[str, str]) -> dict[str, Any]:
    """The query, with whole numbers where the tool takes them."""
    types = _TYPES[tool]
    return {name: int(value) if types.get(name) == "integer" else value for name, value in query.items()}


def _refusal(status: int, text: str) -> Response:
    return Response(status, json.dumps({"error": text}).encode())
