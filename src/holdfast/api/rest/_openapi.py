"""The OpenAPI document: Litestar makes it of the endpoints, `holdfast.model.json_schema` the objects in it."""

from __future__ import annotations

import json
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

from litestar import Litestar, Router
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, License, SecurityScheme
from litestar.plugins import OpenAPISchemaPlugin

from holdfast import __version__
from holdfast.api.rest._request_reader import JsonBody
from holdfast.api.rest._request_types import Body
from holdfast.model.answers import faces
from holdfast.model.json_encoder import is_described
from holdfast.model.json_schema import components

if TYPE_CHECKING:
    from collections.abc import Sequence

    from litestar.handlers import HTTPRouteHandler
    from litestar.typing import FieldDefinition

Json = dict[str, Any]

_REF = "#/components/schemas/{name}"
_PROBLEM: Json = {
    "description": "It was not done: `code` says why.",
    "content": {"application/problem+json": {"schema": {"$ref": _REF.format(name="Problem")}}},
}


class _Objects(OpenAPISchemaPlugin):
    """Refers to the objects that requests and answers are, and remembers them: `document` describes them."""

    def __init__(self) -> None:
        self.kinds: dict[type, None] = {}

    def is_plugin_supported_field(self, field_definition: FieldDefinition) -> bool:
        """See `OpenAPISchemaPlugin`."""
        kind = field_definition.annotation
        return is_described(kind) or (isinstance(kind, type) and issubclass(kind, Body))

    def to_openapi_schema(self, field_definition: FieldDefinition, schema_creator: Any) -> Any:
        """See `OpenAPISchemaPlugin`."""
        self.kinds[field_definition.annotation] = None
        registry = schema_creator.schema_registry
        registry.get_schema_for_field_definition(field_definition)
        return registry.get_reference_for_field_definition(field_definition)


@cache
def document(endpoints: Sequence[HTTPRouteHandler]) -> Json:
    """The whole of it."""
    objects = _Objects()
    application = Litestar(
        [Router("/", route_handlers=endpoints, dto=JsonBody, return_dto=None)],
        openapi_config=OpenAPIConfig(
            title="Holdfast",
            version=__version__,
            description="Save points, diff, undo and forks of directories that agents work in. "
            "Times are UTC in ISO 8601, sizes bytes, paths as `docs/reference/json.md` says. Fields may be added.",
            license=License(name="Apache-2.0", identifier="Apache-2.0"),
            components=Components(security_schemes={"token": SecurityScheme(type="http", scheme="bearer")}),
        ),
        plugins=[objects],
        logging_config=None,
    )
    found = application.openapi_schema.to_schema()
    _, schemas = components([*objects.kinds, faces.Problem], _REF)
    found["components"]["schemas"] = schemas
    found["components"]["responses"] = {"Problem": _PROBLEM}
    for operation in (one for path in found["paths"].values() for one in path.values()):
        operation["responses"].pop("400", None)  # Litestar's own answer, which is never sent
        operation["responses"]["default"] = {"$ref": "#/components/responses/Problem"}
        if "requestBody" in operation:
            body = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            operation["requestBody"]["required"] = bool(schemas[body].get("required"))
    return found


# The OpenAPI document as a page for people: plain HTML, without scripts and external resources.

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
        for one in operation.get("parameters", [])
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
