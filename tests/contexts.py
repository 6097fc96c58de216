"""What use-cases work with, for tests that call them below the public API."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from holdfast.engine.opening.opener import Opener

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast import Workspace
    from holdfast.engine.opening.context import Context


@contextmanager
def context_of(workspace: Workspace) -> Generator[Context]:
    """A workspace opened once more, as its own process would open it."""
    with closing(Opener(home=workspace.home)) as opener:
        yield opener.open(workspace.path)
