"""How messages for people say how much there is."""

from __future__ import annotations

import pytest

from holdfast.model.message_text import plural, size, step_options


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (6_700, "6.7 kB"), (999_600, "1.0 MB"), (123_456_789, "123 MB")],
)
def test_sizes_for_people(number: int, text: str) -> None:
    assert size(number) == text


def test_plurals() -> None:
    assert [plural(n, "file") for n in (0, 1, 12_000)] == ["0 files", "1 file", "12,000 files"]
    assert plural(2, "path is", "paths are") == "2 paths are"


def test_few_steps_are_options_as_they_come_and_many_are_ranges() -> None:
    assert step_options([2, 1]) == " --step 2 --step 1"
    assert step_options([*range(1, 300), 402, -7, *range(310, 312)]) == (
        " --step -7 --step 1-299 --step 310-311 --step 402"
    )
