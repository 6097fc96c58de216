"""How messages for people say how much there is."""

from __future__ import annotations

import pytest

from holdfast.model.message_text import plural, size


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (6_700, "6.7 kB"), (999_600, "1.0 MB"), (123_456_789, "123 MB")],
)
def test_sizes_for_people(number: int, text: str) -> None:
    assert size(number) == text


def test_plurals() -> None:
    assert [plural(n, "file") for n in (0, 1, 12_000)] == ["0 files", "1 file", "12,000 files"]
    assert plural(2, "path is", "paths are") == "2 paths are"
