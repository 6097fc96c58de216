"""What the tests of channels share."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.testing.exit_pipe import Leash


@pytest.fixture
def leash(tmp_path: Path) -> Leash:
    return Leash(tmp_path / "leash")
