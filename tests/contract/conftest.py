"""What the tests of the engine over its trees share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.engine.upkeep.housekeeping import verify

if TYPE_CHECKING:
    from collections.abc import Iterator


from .engine_house import House, Space

ALWAYS_SHARED = {
    "test_undo_walks_back_and_redo_forward",
    "test_undo_steps_over_forgotten_checkpoints",
    "test_a_fork_of_a_fork_stands_on_its_own",
    "test_a_restore_that_was_cut_short_is_finished_or_taken_back",
    "test_what_cannot_be_captured_is_recorded_and_shown",
    "test_a_policy_can_be_tried_first",
    "test_collection_between_two_saves_takes_nothing_that_comes_back",
    "test_a_bundle_carries_checkpoints_to_another_tree",
    "test_large_files_are_streamed_through_either_tree",
}
"""What runs always with a catalog on PostgreSQL as well; the rest does with ``--thorough``."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        call = getattr(item, "callspec", None)
        if call is not None and call.params.get("house") == "shared" and item.originalname not in ALWAYS_SHARED:  # type: ignore[attr-defined]
            item.add_marker(pytest.mark.thorough)


@pytest.fixture(params=["directory", "memory", "shared"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    """``shared``: a directory, with a catalog on PostgreSQL."""
    if request.param == "shared":
        house = House("directory", tmp_path, request.getfixturevalue("catalog_url"))
    else:
        house = House(request.param, tmp_path)
    yield house
    space = house.new()
    found = verify(space.context, read_data=True)
    assert found.ok, found.problems
    house.opener.close()
    if house.kind == "memory":
        assert os.listdir(tmp_path) == ["home"], "something was made where the workspace only claims to be"


@pytest.fixture
def space(house: House) -> Space:
    return house.new()
