"""Processes that die at a chosen change: just before their Nth call that changes a file, a directory or the catalog."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.files.linux import syscalls

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from contextlib import AbstractContextManager
    from types import ModuleType

CALLS = (
    *((os, name) for name in ("write", "fsync", "rename", "unlink", "mkdir", "rmdir", "symlink", "link")),
    *((os, name) for name in ("fchmod", "chmod", "fchown", "chown", "copy_file_range")),
    *((syscalls, name) for name in ("renameat2", "syncfs", "chown_opened")),
)
"""The calls that change a disk, besides opening for creation and SQLite's commits."""

MUTATIONS = (
    *CALLS,
    *((os, name) for name in ("pwrite", "mknod", "utime", "setxattr", "removexattr", "ftruncate", "truncate")),
)
"""The same, and what else changes a tree: for what works on one in place."""

_SYNCS = ("fsync", "syncfs")


class ChildResult(NamedTuple):
    """How a child ended."""

    killed: bool
    """True if it died where it was to die; False if it came to its end before."""
    steps: list[str]
    """The steps that it reached, the fatal one last; only if requested."""


class _Steps:
    """Counts the changes of this process, and ends it at one of them."""

    def __init__(self, fatal: int, told: int | None) -> None:
        self.count = 0
        self._fatal = fatal
        self._told = told
        self._write = os.write

    def step(self, name: str) -> None:
        self.count += 1
        if self._told is not None:
            self._write(self._told, name.encode() + b"\n")
        if self.count == self._fatal:
            os.kill(os.getpid(), signal.SIGKILL)


class UnsyncedConnection(sqlite3.Connection):
    """A connection that waits for no disk: a kill loses no written data. Pass it as ``factory``."""

    def execute(self, sql: str, /, *parameters: Any) -> sqlite3.Cursor:
        """As the real one, without syncs."""
        return super().execute("PRAGMA synchronous=OFF" if sql == "PRAGMA synchronous=FULL" else sql, *parameters)


def without_syncs() -> AbstractContextManager[None]:
    """While it lasts, nothing that this process does waits for a disk."""
    from contextlib import contextmanager
    from unittest import mock

    @contextmanager
    def patched() -> Generator[None]:
        connect = partial(sqlite3.connect, factory=UnsyncedConnection)
        with (
            mock.patch.object(os, "fsync", _nothing),
            mock.patch.object(syscalls, "syncfs", _nothing),
            mock.patch.object(sqlite3, "connect", connect),
        ):
            yield

    return patched()


def _nothing(fd: int) -> None:
    """The sync that is not done."""
    del fd


def run_killed(
    work: Callable[[], object], fatal: int, *, told: bool = False, calls: Iterable[tuple[ModuleType, str]] = CALLS
) -> ChildResult:
    """Do ``work`` in a child that kills itself with SIGKILL just before its ``fatal``-th change (from 1).

    An exception of ``work`` is printed, and raised here as `AssertionError`. ``told``: say which steps there were.
    ``calls`` are counted, also where a module of the project has imported one by name. The caller has no threads.
    """
    ours, theirs = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.close(ours)
            _arm(_Steps(fatal, theirs if told else None), calls)
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - the child ends here, whatever it was
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(theirs)
    with open(ours, "rb") as pipe:
        steps = pipe.read().decode().split("\n")[:-1]
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), f"the child failed at other than its fatal step (exit {status})"
    return ChildResult(status != 0, steps)


def count_steps(work: Callable[[], object], *, calls: Iterable[tuple[ModuleType, str]] = CALLS) -> list[str]:
    """The changes that ``work`` makes in a child that lives, by name."""
    ended = run_killed(work, 0, told=True, calls=calls)
    assert not ended.killed
    return ended.steps


def _arm(steps: _Steps, calls: Iterable[tuple[ModuleType, str]]) -> None:
    ours = [module for name, module in sys.modules.items() if name.startswith("holdfast.")]
    for module, name in calls:
        real = getattr(module, name)
        stepping = _stepping(steps, name, real)
        for holder in (module, *ours):
            if getattr(holder, name, None) is real:
                setattr(holder, name, stepping)
    real_open = os.open

    def opening(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & (os.O_CREAT | os.O_TRUNC):
            steps.step("open")
        return real_open(path, flags, *more, **named)

    os.open = opening

    class Stepping(UnsyncedConnection):
        writing = False

        def execute(self, sql: str, /, *parameters: Any) -> sqlite3.Cursor:
            if sql.startswith("BEGIN"):
                self.writing = sql == "BEGIN IMMEDIATE"
            ends = sql == "COMMIT" and self.writing
            if ends:
                steps.step("commit")
            cursor = super().execute(sql, *parameters)
            if ends:
                steps.step("committed")
            return cursor

    real_connect = sqlite3.connect

    def connect(*positional: Any, **named: Any) -> sqlite3.Connection:
        return real_connect(*positional, **{**named, "factory": Stepping})

    sqlite3.connect = connect


def _stepping(steps: _Steps, name: str, real: Callable[..., object]) -> Callable[..., object]:
    def call(*positional: object, **named: object) -> object:
        steps.step(name)
        return None if name in _SYNCS else real(*positional, **named)

    return call
