"""What is published of the protocol is what holds: the schema is that of the types, and the page names all."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.api.stdio import schema
from holdfast.api.stdio._directory_operations import REQUESTS
from holdfast.api.stdio._event_messages import EVENTS
from holdfast.api.stdio._result_types import Limits
from holdfast.model import json_schema

DOCS = Path(__file__).parents[4] / "docs"
PAGE = (DOCS / "reference/stdio.md").read_text()
TABLES = PAGE.partition("## A session\n")[0]
CELLS = [[cell.strip() for cell in row.split("|")[1:-1]] for row in TABLES.splitlines() if row.startswith("| `")]
ROWS = {cells[0].strip("`"): cells[1:] for cells in CELLS}


def test_the_published_schema_is_what_the_types_say() -> None:
    assert (DOCS / "reference/stdio-schema.json").read_text() == schema.text(), (
        "python -m holdfast.api.stdio.schema has it anew"
    )


def test_every_reference_leads_to_a_definition() -> None:
    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if "$ref" in value else set()
            return own.union(*map(references, value.values()))
        return set().union(*map(references, value)) if isinstance(value, list) else set()

    whole = json.loads(schema.text())
    assert references(whole) <= {f"#/$defs/{name}" for name in whole["$defs"]}


@pytest.mark.parametrize("name", REQUESTS)
def test_the_page_has_every_operation_with_every_field(name: str) -> None:
    payload, result = REQUESTS[name]
    asked, answered = ROWS[name]
    for field in payload.__struct_fields__:
        assert f"`{field}`" in asked, field
    if not answered.startswith(("as ", "the ", "see ")):
        for field in json_schema.hints(result):
            assert f"`{field}`" in answered, field


@pytest.mark.parametrize("name", EVENTS)
def test_the_page_has_every_event_with_every_field(name: str) -> None:
    (told,) = ROWS[name]
    if not told.startswith("the same"):
        for field in json_schema.hints(EVENTS[name]):
            assert f"`{field}`" in told, field


def test_the_page_has_every_limit() -> None:
    for field in msgspec.structs.fields(Limits):
        assert field.name in ROWS


def test_the_page_has_every_code_of_its_own() -> None:
    source = "".join(path.read_text() for path in (DOCS.parent / "src/holdfast/api/stdio").glob("*.py"))
    codes = set(re.findall(r'code="([a-z_]+)"', source))
    assert len(codes) > 10
    for code in codes:
        assert f"`{code}`" in PAGE, code
