"""The OpenAPI document, generated from the table of endpoints and the types of what they take and answer."""

from __future__ import annotations

import json
import re
from html import escape
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import __version__
from holdfast.api.rest import _endpoints as endpoints
from holdfast.api.rest import _request_types as request_types
from holdfast.api.rest import _response_types as response_types
from holdfast.api.rest._endpoints import ENDPOINTS
from holdfast.engine.exports.named_workspaces import NAME_PATTERN
from holdfast.model.json_schema import components

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.api.rest._endpoints import Endpoint

Json = dict[str, Any]

_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)\}")
_IDS = {"type": "string", "pattern": "^[0-9a-f]{24}$"}
_PATH_SCHEMAS: Mapping[str, Json] = {
    "name": {"type": "string", "pattern": NAME_PATTERN, "maxLength": 64},
    "project": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$", "maxLength": 128},
    "promotion": {"type": "string", "pattern": "^[0-9a-f]{16}$"},
    "snapshot": {"type": "string", "minLength": 1, "maxLength": 128},
    "reapply": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
    "session": {"type": "string", "minLength": 1, "maxLength": 200},
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
    types = [response_types.Problem]
    types += [
        kind for one in ENDPOINTS for kind in (one.answer, one.body) if kind not in (bytes, str, request_types.NoBody)
    ]
    each = list({id(kind): kind for kind in types}.values())
    references, schemas = components(each, _REF)
    known = {id(kind): reference for kind, reference in zip(each, references, strict=True)}
    problem = known[id(response_types.Problem)]
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
            "schemas": schemas,
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
    if one.body is not request_types.NoBody:
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


# The OpenAPI document as a page for people: nothing but HTML, with no script and nothing from elsewhere.

_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;
color:#222;background:#fff}
h2{margin-top:2.5rem}code,pre{font:14px/1.4 ui-monospace,monospace;background:#f3f3f3}pre{padding:.7rem;overflow:auto}
details{border:1px solid #ccc;border-radius:.4rem;margin:.6rem 0;padding:.4rem .8rem}summary{cursor:pointer}
.method{display:inline-block;min-width:4.5rem;font-weight:600}table{border-collapse:collapse}td,th{text-align:left;
padding:.2rem .8rem .2rem 0;vertical-align:top}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}code,pre{background:#282828}}"""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


def page(document: dict[str, Any]) -> str:
    """The page."""
    info = document["info"]
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append(_operation_section(method, path, operation))
    sections = "".join(f"<h2>{escape(tag)}</h2>{''.join(parts)}" for tag, parts in by_tag.items())
    schemas = "".join(
        f"<details id='{escape(name)}'><summary><code>{escape(name)}</code></summary>{_pre(schema)}</details>"
        for name, schema in document["components"]["schemas"].items()
    )
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>{escape(info['title'])} {escape(info['version'])}</title><style>{_STYLE}</style>"
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info['description'])}</p>"
        f"<p>The same for programs: <a href='/api/openapi.json'>openapi.json</a>.</p>"
        f"{sections}<h2>Objects</h2>{schemas}</html>\n"
    )


def _operation_section(method: str, path: str, operation: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(one['name'])}</code></td><td>{escape(one['in'])}"
        f"{', required' if one['required'] else ''}</td><td>{_inline(one['schema'])}</td></tr>"
        for one in operation["parameters"]
    )
    body = operation.get("requestBody")
    parts = [f"<p>{escape(operation.get('description', ''))}</p>"]
    if rows:
        parts.append(f"<table>{rows}</table>")
    if body is not None:
        parts.append(f"<p>Body: {_kind(body['content'])}</p>")
    parts.append(f"<p>Answer: {_kind(operation['responses']['200']['content'])}</p>")
    return (
        f"<details><summary><span class='method'>{method.upper()}</span> <code>{escape(path)}</code> "
        f"{escape(operation['summary'])}</summary>{''.join(parts)}</details>"
    )


def _kind(content: dict[str, Any]) -> str:
    kind, value = next(iter(content.items()))
    return f"{escape(kind)} {_inline(value['schema'])}"


def _inline(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"<a href='#{escape(name)}'><code>{escape(name)}</code></a>"
    return f"<code>{escape(json.dumps(schema))}</code>" if schema else ""


def _pre(schema: dict[str, Any]) -> str:
    return f"<pre>{escape(json.dumps(schema, indent=1))}</pre>"
