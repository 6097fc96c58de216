"""Whose a change is that an event tells of."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.supervisor.outsiders import outside_watcher
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
@pytest.mark.parametrize("may_be_ours", [True, False])
def test_a_writer_that_has_ended_is_an_outsider_unless_it_may_be_ours_and_the_log_explains_it(
    tmp_path: Path, *, explained: bool, may_be_ours: bool
) -> None:
    """Also before its parent has waited for it: a process that was killed is of no tree any more by then."""
    (tmp_path / "f").touch()
    service: Any = Service()
    log: Any = Explained(explained)
    may_write = os.pipe()
    has_ended = threading.Event()

    def is_inside(process: int) -> bool:
        # (Of all others on the file system it is asked as well, and while it waits, none of their events is read.)
        return process in written_by and not has_ended.wait(timeout=60)

    written_by: list[int] = []
    watcher = OutsideWatcher(service, log, bytes(tmp_path), (), is_inside, lambda _: may_be_ours, backend="fanotify")
    watcher.start()
    assert watcher._ready.wait(60)
    if not (pid := os.fork()):
        os.read(may_write[0], 1)
        with open(tmp_path / "f", "a") as file:
            file.write("late")
        os._exit(0)
    written_by.append(pid)
    os.write(may_write[1], b"!")
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    has_ended.set()
    watcher.end()
    os.waitpid(pid, 0)
    assert set(service.outsides) == (
        set() if explained and may_be_ours else {(b"f",)}
    )  # (by each of its writes, if read apart)


@pytest.mark.root
@pytest.mark.parametrize("explained", [True, False])
@pytest.mark.parametrize("writes", [True, False])
def test_an_outsider_that_only_lets_a_file_go_has_changed_nothing_that_the_log_explains(
    tmp_path: Path, explained: bool, writes: bool
) -> None:
    """A process that looks at a descriptor in ``/proc`` holds its file for a moment, and may be the last that does."""
    service: Any = Service()
    log: Any = Explained(explained)
    watcher = OutsideWatcher(service, log, bytes(tmp_path), (), lambda _: False, lambda _: True, backend="fanotify")
    watcher.start()
    assert watcher._ready.wait(60)
    held = os.open(tmp_path / "f", os.O_WRONLY | os.O_CREAT, 0o600)
    ours, its = socket.socketpair()
    if not (pid := os.fork()):
        its.recv(1)
        if writes:
            os.write(held, b"by an outsider")
        os.close(held)
        its.send(b"!")
        its.recv(1)  # (of one that has ended less is known)
        os._exit(0)
    os.close(held)
    ours.send(b"!")
    ours.recv(1)
    watcher.end()
    ours.send(b"!")
    os.waitpid(pid, 0)
    ours.close()
    its.close()
    assert set(service.outsides) == (set() if explained and not writes else {(b"f",)})


@pytest.mark.parametrize(
    ("seconds", "may_be_ours", "is_sure"), [(60, True, True), (-1, True, False), (-1, False, False)]
)
def test_a_process_that_is_gone_is_who_had_its_number_for_some_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int, *, may_be_ours: bool, is_sure: bool
) -> None:
    """Later a supervised process may have had the number, and have ended as well: then the undo log decides."""
    monkeypatch.setattr(outside_watcher, "_KNOWN_SECONDS", seconds)
    service: Any = Service()
    log: Any = Explained(True)
    watcher = OutsideWatcher(service, log, bytes(tmp_path), (), lambda _: False, lambda _: may_be_ours)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as outsider:
        alive = watcher._who(outsider.pid)
    gone = watcher._who(outsider.pid)
    assert alive.is_sure
    assert gone == alive._replace(is_sure=is_sure, is_stranger=not may_be_ours)
