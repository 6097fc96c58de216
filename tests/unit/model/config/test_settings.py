"""The table of the settings: that it has what the model has, and that the documentation agrees."""

from __future__ import annotations

import json
import re
from pathlib import Path

from holdfast.model.config.keys import KEYS
from holdfast.model.config.settings import Settings, default
from holdfast.model.config.values import parse_value

DOCUMENT = Path(__file__).parents[4] / "docs" / "reference/configuration.md"


def test_the_table_has_exactly_the_keys_of_the_model() -> None:
    defaults = Settings()
    keys = [f"{section}.{key}" for section in Settings._fields for key in getattr(defaults, section)._fields]
    assert list(KEYS) == keys


def test_every_default_is_a_value_that_may_be_set() -> None:
    for name in KEYS:
        assert parse_value(name, default(name)) == default(name)


def test_the_documentation_shows_every_default_as_it_may_be_written() -> None:
    rows = re.findall(r"^- `([a-z]+\.[a-z_]+)` \((\w*)(?:, )?(?:`(.*?)`)?", DOCUMENT.read_text(), re.MULTILINE)
    assert [(name, kind) for name, kind, _ in rows] == [
        (name, "" if key.choices else key.kind) for name, key in KEYS.items()
    ]
    for name, kind, shown in rows:
        raw: object = json.loads(shown) if shown.startswith("[") else shown
        if kind in ("integer", "ratio"):
            raw = float(shown) if kind == "ratio" else int(shown)
        if shown:
            assert parse_value(name, raw) == default(name), name
        else:
            assert default(name) in ("", ()), name
