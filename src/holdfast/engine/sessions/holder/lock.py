"""One process at a time has a session open: its lock, its children, and the end of those of a killed holder."""

from __future__ import annotations

import os
import re
import secrets
import select
import shutil
import signal
import tempfile
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from holdfast.engine.opening.home import make_private
from holdfast.engine.sessions.identifiers import SESSION_VARIABLE
from holdfast.files.linux.process_lock import exclusive
from holdfast.model.decoders import json_decoder
from holdfast.model.errors import HoldfastError, LockedError, RefusedError, StorageError, room_hint
from holdfast.model.log import Log
from holdfast.model.paths import display, parse_display

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from holdfast.model.clock import Clock
    from holdfast.model.session_types import SessionId


# Processes that a session's commands left running, and their end.
#
# They have ``HOLDFAST_SESSION`` in their initial environment, which children inherit, daemons included. A process that
# has removed it, or belongs to another user, is not found.

_GRACE_SECONDS = 2.0
_ROUNDS = 10


def end_leftovers(session: SessionId) -> int:
    """End the processes of a session with SIGTERM, and after two seconds with SIGKILL; their number.

    None of them runs when this returns, except for processes that start children faster than they can be found.
    """
    wanted = f"{SESSION_VARIABLE}={session}".encode()
    own = os.getpid()

    def running() -> Iterator[int]:
        names = (name for name in os.listdir("/proc") if name.isdigit() and int(name) != own)
        return (int(name) for name in names if _is_part(name, wanted))

    return end_all(running, (signal.SIGTERM,))


def end_all(find: Callable[[], Iterable[int]], signals: Sequence[signal.Signals]) -> int:
    """End the processes that ``find`` finds, again and again: asked to by ``signals``, and after two seconds made to;
    how many there were.
    """
    ended = 0
    for turn in range(_ROUNDS):
        found = _opened(find)
        if not found:
            break
        try:
            for fd in found:
                for number in (signal.SIGKILL,) if turn else signals:
                    _send(fd, number)
            _wait(found, _GRACE_SECONDS if turn == 0 else 1.0)
        finally:
            for fd in found:
                os.close(fd)
        ended += len(found) if turn == 0 else 0
    return ended


def _opened(find: Callable[[], Iterable[int]]) -> list[int]:
    """A descriptor of each process that is found."""
    descriptors: dict[int, int] = {}
    for pid in find():
        with suppress(OSError):
            descriptors[pid] = os.pidfd_open(pid)
    # Checked again with the descriptors open: the numbers cannot be reused for other processes now.
    again = set(find()) if descriptors else set[int]()
    for pid in descriptors.keys() - again:
        os.close(descriptors.pop(pid))
    return list(descriptors.values())


def _is_part(name: str, wanted: bytes) -> bool:
    try:
        with open(f"/proc/{name}/environ", "rb") as file:
            return wanted in file.read().split(b"\0")
    except OSError:
        return False


def _send(fd: int, number: signal.Signals) -> None:
    try:
        signal.pidfd_send_signal(fd, number)
    except OSError:
        pass  # it has ended, or may not be signalled


def _wait(processes: list[int], seconds: float) -> None:
    """Wait until all of them have ended, or the time has passed."""
    poll = select.poll()
    for fd in processes:
        poll.register(fd, select.POLLIN)
    left, until = len(processes), time.monotonic() + seconds
    while left and (rest := until - time.monotonic()) > 0:
        for fd, _ in poll.poll(rest * 1000):
            poll.unregister(fd)
            left -= 1


# The processes and files of a session's holder, noted beside the lock: the next holder after a kill removes them.
#
# A shell that runs a command is identified by its number and start time, and its processes by their session id
# (setsid(2)), which stays taken as long as one of them runs. A daemon with a session id of its own goes on, like a
# background process of a finished command.

_LOG = Log(__name__)
_PREFIX = b"holdfast-"
_OURS = re.compile(rb"/(.*/)?holdfast-[0-9a-f]{16}", re.DOTALL)
_MOST_CHILDREN = 1 << 14
_LOOKS, _LOOK_SECONDS = 10, 0.002
_SIGNALS = (signal.SIGHUP, signal.SIGTERM, signal.SIGCONT)


class _Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    folder: str
    """A private directory, as `display` shows it."""
    process: str = ""
    """The shell, as `work_lease` names a process; empty: it may not have been started."""


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
        """Note the shell, the leader of a session (setsid(2)) of its own."""
        from holdfast.store.catalog.work_lease import process_name

        with suppress(OSError):
            self._write(_Note(display(self.folder), process_name(pid)))

    def over(self) -> None:
        """Note its end: all its processes are gone."""
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
    """The note, beside the lock, of the processes that the session's holder has started."""
    return lock.removesuffix(b".lock") + b".running"


def tree_note_path(lock: bytes) -> bytes:
    """The note, beside the lock, of the run of the tree in which the session's commands start."""
    return lock.removesuffix(b".lock") + b".tree.run"


def machine_note_path(lock: bytes) -> bytes:
    """The note, beside the lock, of the run of the machine in which the session's commands run."""
    return lock.removesuffix(b".lock") + b".machine.run"


def output_path(lock: bytes) -> bytes:
    """The file, beside the lock, with the output of an experiment's attempt so far."""
    return lock.removesuffix(b".lock") + b".output"


@contextmanager
def in_flight(path: bytes | None = None) -> Generator[InFlight]:
    """Have a note for the length of the block; see `InFlight`."""
    found = InFlight(path)
    try:
        yield found
    finally:
        found.over()


def end_orphans(lock: bytes, session: SessionId) -> None:
    """End the processes of a killed holder, and remove its files. The caller must hold the session."""
    path = note_path(lock)
    try:
        with open(path, "rb") as file:
            note = json_decoder(_Note).decode(file.read(_MOST_CHILDREN))
        folder = parse_display(note.folder)
    except FileNotFoundError:
        return
    except (OSError, msgspec.MsgspecError, ValueError, HoldfastError) as error:
        _LOG.warning("%s cannot be read, and is removed: %s", display(path), error)
        with suppress(OSError):
            os.unlink(path)
        return
    from holdfast.store.catalog.work_lease import of_this_boot

    if not note.process or of_this_boot(note.process):
        ended = end_all(lambda: _members(note, folder, session), _SIGNALS)
        if ended:
            processes = "a process" if ended == 1 else f"{ended} processes"
            _LOG.warning("%s that a killed command of the session %s left running were ended", processes, session)
    if _OURS.fullmatch(folder) and not os.path.islink(folder):
        shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        os.unlink(path)


def at_work(lock: bytes) -> int:
    """The process that was started for what runs in the session, as far as it is noted and lives; 0 for none."""
    from holdfast.store.catalog.work_lease import process_named

    try:
        with open(note_path(lock), "rb") as file:
            return process_named(json_decoder(_Note).decode(file.read(_MOST_CHILDREN)).process) or 0
    except (OSError, msgspec.MsgspecError, ValueError):
        return 0


def _members(note: _Note, folder: bytes, session: SessionId) -> Iterator[int]:
    """The processes that surely belong to a note."""
    from holdfast.store.catalog.work_lease import process_named

    found = {int(name): status for name in os.listdir("/proc") if name.isdigit() and (status := _sid(name))}
    own = f"{SESSION_VARIABLE}={session}".encode()

    def is_own(pid: int) -> bool:
        return own in _said(pid, "environ").split(b"\0")

    if not note.process:
        # Killed before the note had the process: its command line has the directory's name, which no other process has.
        known = found if _OURS.fullmatch(folder) else {}
        named = {pid: sid for pid, sid in known.items() if folder in _begun_as(pid)}
        leaders = [sid for sid in {*named.values()} if sid in named]
        # Subshells still have the command line of their leader, which has ended.
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
            # Without its leader, the number is weaker evidence: each process must be the session's own.
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
    """The command line and the environment of a process. A process that is just beginning its program has neither, for
    a moment after its starter knows that it has begun.
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


LOCKS = b"sessions"
"""The directory of the home: in it one for each tenant."""
_MOST = 512
_GENERATIONS = 1000


def lock_path(home: bytes, tenant: str, session: SessionId) -> bytes:
    """Where the lock of a session is."""
    return os.path.join(home, LOCKS, tenant.encode(), session.encode() + b".lock")


def socket_name(session: SessionId) -> bytes:
    """The name of the socket, beside the lock, for requests to an open session."""
    return session.encode() + b".sock"


@contextmanager
def holding(path: bytes, session: SessionId, *, timeout: float, clock: Clock, at_rest: bool = False) -> Generator[None]:
    """Hold a session for the length of the block. The processes of a killed holder are ended first; with ``at_rest``,
    they are left alone and the session is not held (`RefusedError`, code ``left_running``).

    Raises `LockedError` (code ``session_busy``; at once and with the code ``own_session`` if its holder waits for this
    process), `StorageError`.
    """
    from holdfast.store.catalog.work_lease import this_process

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
                f"this runs in the session {session} itself, and each would wait for the other",
                hint="a session's commands may use `session checkpoint`, `branch`, `fork`, "
                "`info` and `history`; do the rest outside",
                code="own_session",
            ) from None
        if _holder(path) == os.getpid():
            raise LockedError(
                f"the session {session} is open in this process already",
                hint="use the open session, or close it first",
                code="session_busy",
            ) from None
        hint = (
            "only one process at a time has a session open; begin your own in the same directory "
            "(`holdfast session start`), or fork it"
        )
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
                    f"a killed process had the session {session} open, and one of its commands may still run",
                    hint="the next command that opens the session ends it",
                    code="left_running",
                )

            end_orphans(path, session)
        yield
    finally:
        with suppress(OSError):
            # The session may have been deleted, and the path be another session's by now.
            if ours is not None and os.path.samestat(os.stat(path, follow_symlinks=False), ours):
                _write(path, "")
        lock.__exit__(None, None, None)


def remove_lock(path: bytes) -> None:
    """Remove the lock of a deleted session, which this process holds, and the files beside it."""
    notes = (tree_note_path(path), machine_note_path(path), note_path(path), output_path(path))
    beside = (path.removesuffix(b".lock") + b".sock", *notes)
    for name in (*beside, note_path(path) + b".new", path):
        with suppress(OSError):
            os.unlink(name)


def is_held(path: bytes) -> bool:
    """Whether a process may have the session open: takes no lock, and may be wrong the moment after."""
    from holdfast.store.catalog.work_lease import may_run

    try:
        with open(path, "rb") as file:
            owner = file.read(_MOST).decode("ascii", "replace")
    except OSError:
        return False
    return bool(owner) and may_run(owner)


def _holder(path: bytes) -> int | None:
    """The process that holds the lock, as far as that is known."""
    from holdfast.store.catalog.work_lease import process_named

    try:
        with open(path, "rb") as file:
            return process_named(file.read(_MOST).decode("ascii", "replace"))
    except OSError:
        return None


def _is_held_above(path: bytes) -> bool:
    """Whether the holder of the lock is an ancestor of this process."""
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
