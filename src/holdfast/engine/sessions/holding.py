"""One process at a time has a session open: it holds a lock file in the home, which says who it is."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from holdfast.engine.home import make_private
from holdfast.files.locking import exclusive
from holdfast.model.errors import LockedError, StorageError, room_hint
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.model.clock import Clock
    from holdfast.model.session import SessionId

LOCKS = b"sessions"
"""The directory of the home: in it one for each tenant."""
_MOST = 512


def lock_path(home: bytes, tenant: str, session: SessionId) -> bytes:
    """Where the lock of a session is."""
    return os.path.join(home, LOCKS, tenant.encode(), session.encode() + b".lock")


@contextmanager
def holding(path: bytes, session: SessionId, *, timeout: float, clock: Clock) -> Generator[None]:
    """Hold a session for the length of the block. Raises `LockedError` (code ``session_busy``), `StorageError`."""
    from holdfast.store.lease import this_process

    make_private(os.path.dirname(os.path.dirname(path)))
    make_private(os.path.dirname(path))
    what = f"the session {session}"
    lock = exclusive(path, timeout=timeout, clock=clock, what=what)
    try:
        lock.__enter__()
    except LockedError as error:
        hint = "one process at a time has a session open; fork it to work beside that one"
        raise LockedError(error.message, hint=hint, code="session_busy") from None
    try:
        try:
            _write(path, this_process())
        except OSError as error:
            message = f"cannot write {display(path)}: {error.strerror}"
            raise StorageError(message, hint=room_hint(error)) from error
        yield
    finally:
        with suppress(OSError):
            _write(path, "")
        lock.__exit__(None, None, None)


def is_held(path: bytes) -> bool:
    """Whether a process may have the session open: takes no lock, and may be wrong the moment after."""
    from holdfast.store.lease import may_run

    try:
        with open(path, "rb") as file:
            owner = file.read(_MOST).decode("ascii", "replace")
    except OSError:
        return False
    return bool(owner) and may_run(owner)


def _write(path: bytes, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
