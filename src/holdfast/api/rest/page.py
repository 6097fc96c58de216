"""The OpenAPI document as a page for people: nothing but HTML, with no script and nothing from elsewhere."""

from __future__ import annotations

import json
from html import escape
from typing import Any

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
            by_tag.setdefault(operation["tags"][0], []).append(_operation(method, path, operation))
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


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
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
