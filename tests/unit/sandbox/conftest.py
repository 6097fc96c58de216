"""What the tests of channels share."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.testing.exit_pipe import ExitPipe


@pytest.fixture
def leash(tmp_path: Path) -> ExitPipe:
    return ExitPipe(tmp_path / "leash")
