"""Workspaces that requests borrow: one is for one thread at a time, and opening one takes a while."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.model.errors import NotFoundError, RefusedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from holdfast.engine.workspace.workspace import Workspace


class Workspaces:
    """Opens the same workspace for several requests at once. Of the idle ones the last used is taken first: it has the
    history in memory.
    """

    def __init__(self, open_workspace: Callable[[], Workspace], most_idle: int = 4) -> None:
        self._open = open_workspace
        self._most_idle = most_idle
        self._lock = threading.Lock()
        self._idle: list[Workspace] = []
        self._closed = False

    @contextmanager
    def borrow(self) -> Generator[Workspace]:
        """A workspace for the length of the block. After an error it is closed, unless the request caused the error."""
        with self._lock:
            workspace = self._idle.pop() if self._idle else None
        if workspace is None:
            workspace = self._open()
        try:
            yield workspace
        except (NotFoundError, RefusedError, UsageError):
            self._give_back(workspace)
            raise
        except BaseException:
            workspace.close()
            raise
        self._give_back(workspace)

    def _give_back(self, workspace: Workspace) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < self._most_idle:
                self._idle.append(workspace)
                return
        workspace.close()

    def close(self) -> None:
        """Close the idle workspaces, and from now on every one that is returned."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for workspace in idle:
            workspace.close()
