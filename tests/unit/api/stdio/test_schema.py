"""What is published of the protocol is what holds: the schema is that of the types, and the page names all."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from holdfast.api.stdio import schema

DOCS = Path(__file__).parents[4] / "docs"
PAGE = (DOCS / "reference/stdio.md").read_text()


def test_every_reference_leads_to_a_definition() -> None:
    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if "$ref" in value else set()
            return own.union(*map(references, value.values()))
        return set().union(*map(references, value)) if isinstance(value, list) else set()

    whole = json.loads(schema.text())
    assert references(whole) <= {f"#/$defs/{name}" for name in whole["$defs"]}


def test_the_page_has_every_code_of_its_own() -> None:
    source = "".join(path.read_text() for path in (DOCS.parent / "src/holdfast/api/stdio").glob("*.py"))
    codes = set(re.findall(r'code="([a-z_]+)"', source))
    assert len(codes) > 10
    for code in codes:
        assert f"`{code}`" in PAGE, code
