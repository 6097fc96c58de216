"""How a command is told which steps are meant."""

from __future__ import annotations

import argparse

import pytest

from holdfast.cli.steps_barriers_safeguard import step_numbers


@pytest.mark.parametrize(("text", "numbers"), [("3", [3]), ("-3", [-3]), ("3-5", [3, 4, 5]), ("7-7", [7])])
def test_one_step_or_those_from_one_to_another(text: str, numbers: list[int]) -> None:
    assert list(step_numbers(text)) == numbers


@pytest.mark.parametrize("text", ["", "x", "5-3", "3-x", "-3-5x", "1-99999999999"])
def test_what_names_no_steps_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        step_numbers(text)
