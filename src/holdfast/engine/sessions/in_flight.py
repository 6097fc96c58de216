"""What a session's holder has started for it, noted beside the lock: whoever holds it after a kill ends and removes it.

A shell that runs a command is known by its number and when it began, and whatever belongs to it by its session (as of
setsid(2)): the number of one stays taken as long as anything of it runs. What has made a session of its own, a daemon,
is let go on, as what a command leaves running that has ended.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import tempfile
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from holdfast.engine.sessions.leftovers import end_all
from holdfast.engine.sessions.naming import SESSION_VARIABLE
from holdfast.model.errors import HoldfastError, StorageError, room_hint
from holdfast.model.log import Log
from holdfast.model.paths import display, parse_display

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from holdfast.model.session import SessionId

_LOG = Log(__name__)
_PREFIX = b"holdfast-"
_OURS = re.compile(rb"/(.*/)?holdfast-[0-9a-f]{16}", re.DOTALL)
_MOST = 1 << 14
_LOOKS, _LOOK_SECONDS = 10, 0.002
_SIGNALS = (signal.SIGHUP, signal.SIGTERM, signal.SIGCONT)


class _Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    folder: str
    """A private directory, as `display` shows it."""
    process: str = ""
    """The shell, as `store.lease` names a process; empty: it may not have been started."""


class InFlight:
    """One command, or one shell at a terminal."""

    def __init__(self, path: bytes | None) -> None:
        """``path`` is the note's; None: nothing is noted. Raises `StorageError`."""
        self._path = path
        self.folder = os.path.join(os.fsencode(tempfile.gettempdir()), _PREFIX + secrets.token_hex(8).encode())
        """A private directory, for as long as it runs."""
        try:
            self._write(_Note(display(self.folder)))
            os.mkdir(self.folder, 0o700)
        except OSError as error:
            self.over()
            message = f"cannot make {display(self.folder)}: {error.strerror}"
            raise StorageError(message, hint=room_hint(error)) from error

    def started(self, pid: int) -> None:
        """The shell runs: the leader of a session of its own."""
        from holdfast.store.lease import process_name

        with suppress(OSError):
            self._write(_Note(display(self.folder), process_name(pid)))

    def over(self) -> None:
        """It has ended: nothing of it stays."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._path is not None:
            with suppress(OSError):
                os.unlink(self._path)

    def _write(self, note: _Note) -> None:
        if self._path is None:
            return
        fd = os.open(self._path + b".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(fd, msgspec.json.encode(note))
        finally:
            os.close(fd)
        os.replace(self._path + b".new", self._path)


def note_path(lock: bytes) -> bytes:
    """Where it is noted, beside the lock, what the session's holder has started."""
    return lock.removesuffix(b".lock") + b".running"


@contextmanager
def in_flight(path: bytes | None = None) -> Generator[InFlight]:
    """Have something in flight for the length of the block; see `InFlight`."""
    found = InFlight(path)
    try:
        yield found
    finally:
        found.over()


def end_what_was_left(lock: bytes, session: SessionId) -> None:
    """End what a killed holder has left running, and remove what it has left lying. For who holds the session."""
    path = note_path(lock)
    try:
        with open(path, "rb") as file:
            note = msgspec.json.decode(file.read(_MOST), type=_Note)
        folder = parse_display(note.folder)
    except FileNotFoundError:
        return
    except (OSError, msgspec.MsgspecError, ValueError, HoldfastError) as error:
        _LOG.warning("%s cannot be read, and is removed: %s", display(path), error)
        with suppress(OSError):
            os.unlink(path)
        return
    from holdfast.store.lease import of_this_boot

    if not note.process or of_this_boot(note.process):
        ended = end_all(lambda: _members(note, folder, session), _SIGNALS)
        if ended:
            processes = "a process" if ended == 1 else f"{ended} processes"
            _LOG.warning("%s that a killed command of the session %s had left running were ended", processes, session)
    if _OURS.fullmatch(folder) and not os.path.islink(folder):
        shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        os.unlink(path)


def _members(note: _Note, folder: bytes, session: SessionId) -> Iterator[int]:
    """The processes that surely belong to what was noted."""
    from holdfast.store.lease import process_named

    found = {int(name): status for name in os.listdir("/proc") if name.isdigit() and (status := _sid(name))}
    own = f"{SESSION_VARIABLE}={session}".encode()

    def is_own(pid: int) -> bool:
        return own in _said(pid, "environ").split(b"\0")

    if not note.process:
        # Killed before it was noted what was started: that was given the directory's name, which nobody else has.
        known = found if _OURS.fullmatch(folder) else {}
        named = {pid: sid for pid, sid in known.items() if folder in _begun_as(pid)}
        leaders = [sid for sid in {*named.values()} if sid in named]
        # (Of one that has ended, its subshells have the command line still.)
        leaders += {sid for pid, sid in named.items() if sid not in found and is_own(pid)}
    else:
        _, _, number = note.process.partition(" ")
        number = number.partition(" ")[0]
        leaders = [int(number)] if number.isdecimal() else []
    for leader in leaders:
        alive = process_named(note.process) == leader if note.process else leader in found
        for pid, sid in found.items():
            if sid != leader or pid == os.getpid():
                continue
            # (Where the leader has ended, its number says less: then each has to be the session's.)
            if alive or (leader not in found and is_own(pid)):
                yield pid


def _sid(name: str) -> int:
    """The session of a process that runs; 0 if it has ended."""
    try:
        with open(f"/proc/{name}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return 0 if fields[0] == b"Z" else int(fields[3])
    except (OSError, ValueError, IndexError):
        return 0


def _begun_as(pid: int) -> bytes:
    """The command line and the environment of a process. One that is just beginning its program has neither, for a
    moment after whoever started it has been told that it has begun.
    """
    for _ in range(_LOOKS):
        said = _said(pid, "cmdline", "environ")
        if said or not _sid(str(pid)) or not os.access(f"/proc/{pid}/environ", os.R_OK):
            return said
        time.sleep(_LOOK_SECONDS)
    return b""


def _said(pid: int, *names: str) -> bytes:
    said = b""
    for name in names:
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                said += file.read()
        except OSError:
            continue
    return said
