"""What the tests of the engine over its trees share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.engine.upkeep import verify

if TYPE_CHECKING:
    from collections.abc import Iterator


from .engine_house import House, Space


@pytest.fixture(params=["directory", "memory"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
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
