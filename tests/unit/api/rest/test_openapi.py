"""What can be asked for, what the page says of it, and what the OpenAPI document says: the same."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from litestar.handlers import HTTPRouteHandler

from holdfast.api.rest import _openapi as openapi
from holdfast.api.rest._endpoints import ENDPOINTS
from holdfast.api.rest._problems import STATUS, TITLES, status_of
from holdfast.model.errors import HoldfastError

PAGE = (Path(__file__).parents[4] / "docs" / "reference/rest.md").read_text()
DOCUMENT = openapi.document(ENDPOINTS)


def where(one: HTTPRouteHandler) -> tuple[str, str]:
    """Its method and path, as the page has them."""
    (method,), (path,) = one.http_methods, one.paths
    return method, re.sub(r":str\}", "}", path)


def test_the_document_has_every_endpoint_once_and_nothing_else() -> None:
    paths = DOCUMENT["paths"]
    found = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert found == set(map(where, ENDPOINTS))
    names = [operation["operationId"] for methods in paths.values() for operation in methods.values()]
    assert len(set(names)) == len(names)
    assert all(operation["summary"] for methods in paths.values() for operation in methods.values())


def test_the_page_has_every_endpoint_once() -> None:
    found = re.findall(r"^- `([A-Z]+) (/[^`]*)`", PAGE, re.MULTILINE)
    assert sorted(found) == sorted(map(where, ENDPOINTS))


def test_the_document_refers_to_nothing_that_is_not_there() -> None:
    whole = DOCUMENT
    for reference in set(re.findall(r'"\$ref":"#/([^"]+)"', msgspec.json.encode(whole).decode())):
        at = whole
        for part in reference.split("/"):
            at = at[part]
        assert at


def test_every_code_has_a_status_and_the_page_lists_it_there() -> None:
    rows = dict(re.findall(r"^- (\d{3}): (.*)$", PAGE, re.MULTILINE))
    assert set(map(int, rows)) == set(TITLES)
    for code, status in STATUS.items():
        assert f"`{code}`" in rows[str(status)], code
        assert status_of(HoldfastError("x", code=code)) == status


def test_the_page_for_people_loads_nothing_from_elsewhere() -> None:
    text = openapi.page(DOCUMENT)
    assert not re.search(r"<script|<link|<img|src=|https?://|@import|url\(", text)
    assert all(where(one)[1] in text for one in ENDPOINTS)
