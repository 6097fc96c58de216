"""Damage of the catalog's file that SQLite itself reads without complaint."""

from __future__ import annotations

from pathlib import Path

import holdfast


def test_a_flipped_bit_in_an_id_is_found_although_its_index_still_has_the_right_one(tree: Path, home: Path) -> None:
    (tree / "file").write_text("content\n")
    with holdfast.init(tree, home=home) as workspace:
        saved = workspace.checkpoint().checkpoint.id.encode()
    with holdfast.open(tree, home=home) as workspace:
        assert workspace.verify().ok
    catalog = home / "catalog.db"
    data = bytearray(catalog.read_bytes())
    at = data.find(saved)
    assert at > 0
    data[at + 20] ^= 1
    catalog.write_bytes(data)
    with holdfast.open(tree, home=home) as workspace:
        assert not workspace.verify().ok
