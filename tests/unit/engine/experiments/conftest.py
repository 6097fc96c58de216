"""A session in the workspace of the test, and what opens others of its home."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.sessions.registry import Sessions
from holdfast.engine.sessions.session import Session


@pytest.fixture
def make(home: Path) -> Callable[[], Sessions]:
    return lambda: Sessions(home=os.fsencode(home), agent="me")


@pytest.fixture
def session(make: Callable[[], Sessions], home: Path, tree: Path) -> Iterator[Session]:
    """In a directory with the files a, b and c; afterwards the store is verified."""
    for name in "abc":
        (tree / name).write_text(f"{name}\n")
    with holdfast.init(tree, home=home) as workspace:
        workspace.checkpoint()
    with make() as sessions, sessions.start(os.fsencode(tree), "main") as found:
        yield found
    with holdfast.open(tree, home=home) as workspace:
        assert workspace.verify(read_data=True).ok
