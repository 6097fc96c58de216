"""The table of the settings: that it has what the model has, and that the documentation agrees."""

from __future__ import annotations

import json
import re
from pathlib import Path

from holdfast.model.config.keys import KEYS, Key
from holdfast.model.config.settings import Settings, default
from holdfast.model.config.values import parse_age, parse_duration, parse_size, parse_value

DOCUMENT = Path(__file__).parents[4] / "docs" / "reference/configuration.md"


def test_the_table_has_exactly_the_keys_of_the_model() -> None:
    defaults = Settings()
    keys = [f"{section}.{key}" for section in Settings._fields for key in getattr(defaults, section)._fields]
    assert list(KEYS) == keys


def test_every_default_is_a_value_that_may_be_set() -> None:
    for name in KEYS:
        assert parse_value(name, default(name)) == default(name)


def test_the_documentation_lists_every_key_with_its_type_default_and_meaning() -> None:
    rows = re.findall(
        r"^\| `([a-z]+\.[a-z_]+)` \| (\w+) \| `(.*?)` \|(?: (.+?))? \| (\w+) \| (.*) \|$",
        DOCUMENT.read_text(),
        re.MULTILINE,
    )
    assert [row[0] for row in rows] == list(KEYS)
    for name, kind, shown, limits, workspace, meaning in rows:
        key = KEYS[name]
        least, _, most = limits.removeprefix("from ").partition(" to ")
        parse = {"size": parse_size, "duration": parse_duration, "age": parse_age}.get(kind, float)
        assert parse(least or "0") == key.least, name
        assert (parse(most) if most else Key(key.kind, "").most) == key.most, name
        assert (kind, workspace) == (key.kind, key.workspace)
        assert meaning == key.meaning + (f" ({', '.join(key.choices)})" if key.choices else "")
        raw: object = json.loads(shown) if shown.startswith(("[", '"')) else shown
        if kind in ("integer", "ratio"):
            raw = float(shown) if kind == "ratio" else int(shown)
        assert parse_value(name, raw) == default(name), name
