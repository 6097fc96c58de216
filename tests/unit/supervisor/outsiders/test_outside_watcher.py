"""Whose a change is that an event tells of."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.supervisor.outsiders.outside_watcher import OutsideWatcher


class Explained:
    """An undo log that explains everything, or nothing."""

    def __init__(self, everything: bool) -> None:
        self.gate = threading.RLock()
        self.everything = everything

    def refresh(self) -> None: ...

    def note_read(self, at: int) -> None: ...

    def path_of(self, object_: object) -> None: ...

    def explains(self, path: bytes) -> bool:
        return self.everything

    def is_gone(self, path: bytes) -> bool:
        return False


class Service:
    """Notes what is an outside change."""

    def __init__(self) -> None:
        self.outsides: list[tuple[bytes, ...]] = []

    def record_foreign_edit(self, paths: tuple[bytes, ...], who: str, **_: object) -> None:
        self.outsides.append(paths)


@pytest.mark.root
@pytest.mark.parametrize("explained", [True, False])
def test_a_writer_that_has_ended_is_an_outsider_unless_the_log_explains_it(tmp_path: Path, explained: bool) -> None:
    """Also before its parent has waited for it: a process that was killed is of no tree any more by then."""
    (tmp_path / "f").touch()
    service: Any = Service()
    log: Any = Explained(explained)
    has_ended = threading.Event()
    watcher = OutsideWatcher(
        service, log, bytes(tmp_path), (), lambda _: not has_ended.wait(timeout=60), backend="fanotify"
    )
    watcher.start()
    assert watcher._ready.wait(60)
    if not (pid := os.fork()):
        with open(tmp_path / "f", "a") as file:
            file.write("late")
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    has_ended.set()
    watcher.end()
    os.waitpid(pid, 0)
    assert set(service.outsides) == (set() if explained else {(b"f",)})  # (by each of its writes, if read apart)
