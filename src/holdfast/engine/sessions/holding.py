"""One process at a time has a session open: it holds a lock file in the home, which says who it is."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from holdfast.engine.opening.home import make_private
from holdfast.engine.sessions.in_flight import note_path
from holdfast.files.locking import exclusive
from holdfast.model.errors import LockedError, RefusedError, StorageError, room_hint
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.model.clock import Clock
    from holdfast.model.session import SessionId

LOCKS = b"sessions"
"""The directory of the home: in it one for each tenant."""
_MOST = 512
_GENERATIONS = 1000


def lock_path(home: bytes, tenant: str, session: SessionId) -> bytes:
    """Where the lock of a session is."""
    return os.path.join(home, LOCKS, tenant.encode(), session.encode() + b".lock")


def socket_name(session: SessionId) -> bytes:
    """What the socket is called, beside the lock, where a session is asked that is open."""
    return session.encode() + b".sock"


@contextmanager
def holding(path: bytes, session: SessionId, *, timeout: float, clock: Clock, at_rest: bool = False) -> Generator[None]:
    """Hold a session for the length of the block. What a killed holder has left running is ended first; ``at_rest``:
    it is left alone, and the session not held (`RefusedError`, code ``left_running``).

    Raises `LockedError` (code ``session_busy``; at once and with the code ``own_session`` where it is held by a process
    that waits for this one), `StorageError`.
    """
    from holdfast.store.lease import this_process

    make_private(os.path.dirname(os.path.dirname(path)))
    make_private(os.path.dirname(path))
    what = f"the session {session}"
    if timeout > 0 and _is_held_above(path):
        timeout = 0
    lock = exclusive(path, timeout=timeout, clock=clock, what=what)
    try:
        lock.__enter__()
    except LockedError as error:
        if _is_held_above(path):
            raise LockedError(
                f"this runs in the session {session} itself, which waits for it: each would wait for the other",
                hint="inside of a session you can use `session checkpoint`, `branch`, `fork`, `info` and `history` of "
                "it; do the rest when this has ended, or in a fork",
                code="own_session",
            ) from None
        if _holder(path) == os.getpid():
            raise LockedError(
                f"the session {session} is open in this process already",
                hint="use what has it open, or close that first",
                code="session_busy",
            ) from None
        hint = "one process at a time has a session open; fork it to work beside that one"
        raise LockedError(error.message, hint=hint, code="session_busy") from None
    ours = None
    try:
        try:
            ours = _write(path, this_process())
        except OSError as error:
            message = f"cannot write {display(path)}: {error.strerror}"
            raise StorageError(message, hint=room_hint(error)) from error
        if os.path.lexists(note_path(path)):
            if at_rest:
                raise RefusedError(
                    f"a command may still run that was left by a process that had the session {session} and was killed",
                    hint="whoever opens the session next ends it",
                    code="left_running",
                )
            from holdfast.engine.sessions.in_flight import end_what_was_left

            end_what_was_left(path, session)
        yield
    finally:
        with suppress(OSError):
            # (It may have gone with the session, and be another's by now.)
            if ours is not None and os.path.samestat(os.stat(path, follow_symlinks=False), ours):
                _write(path, "")
        lock.__exit__(None, None, None)


def remove(path: bytes) -> None:
    """Remove the lock of a session that was deleted, which this process holds, and what else lies beside it."""
    for name in (path.removesuffix(b".lock") + b".sock", note_path(path), note_path(path) + b".new", path):
        with suppress(OSError):
            os.unlink(name)


def is_held(path: bytes) -> bool:
    """Whether a process may have the session open: takes no lock, and may be wrong the moment after."""
    from holdfast.store.lease import may_run

    try:
        with open(path, "rb") as file:
            owner = file.read(_MOST).decode("ascii", "replace")
    except OSError:
        return False
    return bool(owner) and may_run(owner)


def _holder(path: bytes) -> int | None:
    """The process that holds the lock, as far as that is known."""
    from holdfast.store.lease import process_named

    try:
        with open(path, "rb") as file:
            return process_named(file.read(_MOST).decode("ascii", "replace"))
    except OSError:
        return None


def _is_held_above(path: bytes) -> bool:
    """Whether the process that holds the lock is one that this one descends from, as what it has started does."""
    holder = _holder(path)
    if holder is None:
        return False
    at = os.getppid()
    for _ in range(_GENERATIONS):
        if at <= 1 or at == holder:
            return at == holder
        try:
            with open(f"/proc/{at}/stat", "rb") as file:
                at = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return False


def _write(path: bytes, text: str) -> os.stat_result:
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.write(fd, text.encode())
        return os.fstat(fd)
    finally:
        os.close(fd)
