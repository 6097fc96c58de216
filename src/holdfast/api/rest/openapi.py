"""The OpenAPI document, generated from the table of endpoints and the types of what they take and answer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import __version__
from holdfast.api.rest import answers, endpoints, requests
from holdfast.api.rest.endpoints import ENDPOINTS
from holdfast.engine.exports.exports import NAME_PATTERN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.api.rest.endpoints import Endpoint

Json = dict[str, Any]

_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)\}")
_IDS = {"type": "string", "pattern": "^[0-9a-f]{24}$"}
_PATH_SCHEMAS: Mapping[str, Json] = {
    "name": {"type": "string", "pattern": NAME_PATTERN, "maxLength": 64},
    "project": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$", "maxLength": 128},
    "promotion": {"type": "string", "pattern": "^[0-9a-f]{16}$"},
    "reapply": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
    "id": _IDS,
    "a": _IDS,
    "b": _IDS,
}
_TEXT = {
    endpoints.EVENTS.path: "text/event-stream",
    endpoints.METRICS.path: "text/plain",
    endpoints.DOCS.path: "text/html",
}
IDEMPOTENCY_PATTERN = "^[!-~]{1,128}$"


def document() -> Json:
    """The whole of it."""
    types = [answers.Problem]
    types += [kind for one in ENDPOINTS for kind in (one.answer, one.body) if kind not in (bytes, str, requests.NoBody)]
    each = list({id(kind): kind for kind in types}.values())
    references, components = msgspec.json.schema_components(each, ref_template=_REF)
    known = {id(kind): reference for kind, reference in zip(each, references, strict=True)}
    problem = known[id(answers.Problem)]
    paths: dict[str, Json] = {}
    for one in ENDPOINTS:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, known)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": __version__,
            "description": "Save points, diff, undo and forks of directories that agents work in. "
            "Times are UTC in ISO 8601, sizes bytes, paths as `docs/reference/json.md` says. Fields may be added.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "Problem": {
                    "description": "It was not done: `code` says why.",
                    "content": {"application/problem+json": {"schema": problem}},
                }
            },
        },
    }


def _operation(one: Endpoint, known: Mapping[int, Json]) -> Json:
    kind = _TEXT.get(one.path, "application/octet-stream" if one.answer is bytes else "application/json")
    schema = known.get(id(one.answer), {} if one.answer is bytes else {"type": "string"})
    found: Json = {
        "operationId": one.operation,
        "summary": one.meaning,
        "tags": [_tag(one)],
        "parameters": [*_path_parameters(one), *_query_parameters(one), *_header_parameters(one)],
        "responses": {
            "200": {"description": "It was done.", "content": {kind: {"schema": schema}}},
            "default": {"$ref": "#/components/responses/Problem"},
        },
    }
    if one is endpoints.READY:
        found["responses"]["503"] = found["responses"]["200"] | {"description": "It cannot."}
    if one.rights is None:
        found["security"] = []
    else:
        found["description"] = f"Needs a token with the right `{one.rights}`."
    if one.body is not requests.NoBody:
        needed = any(field.required for field in msgspec.structs.fields(one.body))
        found["requestBody"] = {"required": needed, "content": {"application/json": {"schema": known[id(one.body)]}}}
    return found


def _tag(one: Endpoint) -> str:
    parts = one.path.split("/")
    return parts[2] if len(parts) > 2 and parts[2] in ("exports", "checkpoints", "merge", "projects") else "server"


def _path_parameters(one: Endpoint) -> list[Json]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _PATH_SCHEMAS[name]}
        for name in _PARAMETER.findall(one.path)
    ]


def _query_parameters(one: Endpoint) -> list[Json]:
    schema = msgspec.json.schema(one.query)
    of_struct = schema["$defs"][one.query.__name__]["properties"] if "$defs" in schema else schema.get("properties", {})
    needed = {field.name for field in msgspec.structs.fields(one.query) if field.required}
    return [
        {"name": name, "in": "query", "required": name in needed, "schema": part} for name, part in of_struct.items()
    ]


def _header_parameters(one: Endpoint) -> list[Json]:
    if one is endpoints.EVENTS:
        about = "The id of the last event that was received."
        return [
            {"name": "Last-Event-ID", "in": "header", "required": False, "description": about, "schema": _string(200)}
        ]
    if one.changes:
        about = "The same request with the same key is done once, and answered the same."
        schema = {"type": "string", "pattern": IDEMPOTENCY_PATTERN}
        return [{"name": "Idempotency-Key", "in": "header", "required": False, "description": about, "schema": schema}]
    return []


def _string(most: int) -> Json:
    return {"type": "string", "maxLength": most}
