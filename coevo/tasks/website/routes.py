"""The shop's API: each tool as an endpoint, below the address of a session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coevo.tasks.website.catalogue import ACTIONS

__all__ = ["ROUTES", "Route"]


@dataclass(frozen=True, slots=True)
class Route:
    """One endpoint. Arguments named in `path` go there, all others into the query (GET) or the JSON body (POST)."""

    method: str
    path: str


ROUTES: Mapping[str, Route] = {
    "list_records": Route("GET", "/api/records/{kind}"),
    "get_record": Route("GET", "/api/records/{kind}/{record}"),
    "search_documents": Route("GET", "/api/documents"),
    "read_document": Route("GET", "/api/documents/{document}"),
    "find_contacts": Route("GET", "/api/contacts"),
    "ask_contact": Route("POST", "/api/contacts/{contact}/messages"),
    "calculate": Route("POST", "/api/calculations"),
    **{tool: Route("POST", f"/api/records/{one.kind}/{{{one.key}}}/{one.verb}") for tool, one in ACTIONS.items()},
}
"""Tool -> endpoint; `finish` has none, because ending an episode is no matter of the shop."""
