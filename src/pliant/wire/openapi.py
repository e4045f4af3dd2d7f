"""The OpenAPI 3.1 document of the API, made from the route table."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from pliant import __version__
from pliant.core.model.names import NAME_MAX
from pliant.wire.api import PROTOCOL_HEADER, STORE_HEADER, Problem, Scope
from pliant.wire.routes import ROUTES, NameQuery, Query, Route

REFUSALS = {
    "400": "The request cannot be parsed.",
    "401": "The credential is missing, expired or revoked.",
    "403": "The credential's scope is too narrow.",
    "404": "There is no such job or member.",
    "405": "The path takes another method.",
    "408": "The body came too slowly.",
    "409": "Refused in the current state; `code` has the reason.",
    "410": "Gone for good.",
    "413": "The body is too large.",
    "414": "The address is too long.",
    "415": "The body is not JSON.",
    "421": "The Host header does not name this coordinator.",
    "422": "The request was parsed, and its values are not valid.",
    "426": "The client is too old for this coordinator.",
    "431": "The headers are too large.",
    "503": "Not now: retry, here or at another coordinator.",
}
_NAME = {
    "type": "string",
    "minLength": 1,
    "maxLength": NAME_MAX,
    "pattern": "^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$",
}


def document() -> dict[str, Any]:
    """The whole document, as what `json.dumps` takes."""
    types = [one for route in ROUTES for one in (route.body, route.reply) if isinstance(one, type)]
    _, components = msgspec.json.schema_components([Problem, *types], ref_template="#/components/schemas/{name}")
    for name, schema in components.items():
        if schema.get("type") == "object" and name != "EventPage":
            schema["additionalProperties"] = False
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Pliant coordinator",
            "version": __version__,
            "description": f"Every answer carries `{PROTOCOL_HEADER}` and `{STORE_HEADER}`. Clients send theirs, too.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.about,
        "x-pliant-scope": route.scope.value,
        "security": [] if route.scope is Scope.PUBLIC else [{"token": []}],
        "responses": {
            "200": {"description": "Done.", "content": _content(route)},
            **{status: _refusal(about) for status, about in REFUSALS.items()},
        },
    }
    parameters = [_in_path(name) for name in re.findall(r"{(\w+)}", route.path)] + list(map(_in_query, route.query))
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(route.body)}}}
    return operation


def _content(route: Route) -> dict[str, Any]:
    if isinstance(route.reply, str):
        return {route.reply: {"schema": {} if "json" in route.reply else {"type": "string"}}}
    content: dict[str, Any] = {"application/json": {"schema": _ref(route.reply)}}
    if route.streams:
        content[route.streams] = {"schema": {"type": "string"}}
    return content


def _refusal(about: str) -> dict[str, Any]:
    return {"description": about, "content": {"application/json": {"schema": _ref(Problem)}}}


def _ref(cls: type) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{cls.__name__}"}


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": _NAME}


def _in_query(query: Query | NameQuery) -> dict[str, Any]:
    if isinstance(query, NameQuery):
        return {"name": query.name, "in": "query", "required": False, "description": query.about, "schema": _NAME}
    schema = {
        "type": "integer" if query.kind is int else "number",
        "default": query.kind(query.default),
        "minimum": query.kind(query.low),
        "maximum": query.kind(query.high),
    }
    return {"name": query.name, "in": "query", "required": False, "description": query.about, "schema": schema}
