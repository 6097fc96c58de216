"""Whose an undo log is: of which version of the format, and which process keeps it."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from contextlib import suppress

from holdfast.files.linux.process_lock import holder_of
from holdfast.model.errors import FormatError, LockedError, StorageError, room_hint
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.paths import KEEPER_SOCKET, display
from holdfast.undo.journal.heartbeat import BEAT, NONE, Heartbeat, encode_beat, read_beat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOCK = b"lock"
"""The file in a log's directory that its keeper has locked."""

_DYING_SECONDS = 5.0
_PAUSE = 0.005
_VERSION = b"HFUNDO 1\n"
_MARK = b"version"
_OTHERS = b"other-version"
_GONE = b"other-version.discarded"
_SPARED = frozenset({LOCK, b"aside"})
_STAYING = _SPARED | {_OTHERS, _GONE, _MARK, _MARK + b".new", KEEPER_SOCKET, b"keeper.log", b"keeper.log.1"}
_BEATS = frozenset({BEAT, BEAT + b".new"})
_ASIDE = 16
"""Digits of a name beneath ``aside``."""


class VersionMismatchError(FormatError):
    """Another version of Holdfast wrote the undo log. Nothing in it was touched."""

    code = "undo_version_mismatch"


def check_version(directory: bytes) -> None:
    """Raise `VersionMismatchError` for a log of another version. Changes nothing; a missing log is fine."""
    try:
        found = _read_mark(directory)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"{display(directory)}: {error.strerror}") from error
    if found != _VERSION:
        raise VersionMismatchError(
            f"the undo log in {display(directory)} was written by another version of Holdfast",
            hint="its steps cannot be undone with this one; holdfast steps --discard begins a new log",
        )


def begin_version(directory: bytes) -> None:
    """Mark the log in ``directory``, which is locked, as one of this version, if it is new.

    Raises as `check_version`, and `OSError`.
    """
    check_version(directory)
    if not os.path.lexists(os.path.join(directory, _MARK)):
        _write_file(directory, _MARK, _VERSION)


def is_half_done(directory: bytes) -> bool:
    """Whether the keeper of the log, if it is gone, has left a step half done, or may have: as far as its sign of life
    can be read.
    """
    beat = read_beat(directory)
    return beat is not None and beat.at != 0


def set_aside(directory: bytes, least: Heartbeat, say: Callable[[], object]) -> None:
    """Move a log of another version as a whole into a directory of its own, and begin a new one beside it.

    It is neither changed nor lost. The new log gives out larger numbers than ``least``, the history's, and than the old
    log, if that can be read. ``say`` is called before the other version could miss its log. After a kill at any point
    the log still has its old version, and the next call finishes the move.

    Raises `LockedError` while a keeper has the log, `VersionMismatchError` if it has an unfinished step, which only the
    version that wrote it can roll back, and `StorageError`.
    """
    lock = lock_log(directory)
    try:
        try:
            check_version(directory)
        except VersionMismatchError as error:
            if is_half_done(directory):
                raise VersionMismatchError(
                    f"{error.message}, and a step of it was cut short in the middle: its changes are still "
                    "there, and that version alone can roll them back",
                    hint="any command of that version rolls them back; holdfast steps --discard leaves them as they "
                    "are, and begins a new log",
                ) from None
        else:
            return
        say()
        place, is_whole = _place(directory, least)
        if not is_whole:
            for name in _entries(directory):
                os.rename(os.path.join(directory, name), os.path.join(place, name))
            _write_file(place, _MARK, _read_mark(directory))  # last: it marks a complete move
        _begin(directory, _largest_numbers(directory, least))
    except OSError as error:
        raise StorageError(f"{display(directory)}: {error.strerror}", hint=room_hint(error)) from error
    finally:
        os.close(lock)


def last_of_others(directory: bytes) -> int | None:
    """The largest sequence number in set-aside logs of other versions; None if there are none."""
    return max(_numbers(directory), default=None)


def forget_others(directory: bytes) -> None:
    """Delete the set-aside logs, only at a person's request. Raises `StorageError`."""
    others, gone = os.path.join(directory, _OTHERS), os.path.join(directory, _GONE)
    try:
        _remove(gone)
        with suppress(FileNotFoundError):
            os.rename(others, gone)  # at once, so that after a kill the rest is no log
        _remove(gone)
    except OSError as error:
        raise StorageError(f"{display(directory)}: {error.strerror}", hint=room_hint(error)) from error


def discard_log(directory: bytes, least: Heartbeat) -> None:
    """Delete a log of any version, and begin a new one; set-aside logs stay. For ``least`` see `set_aside`.

    Only at a person's request. Raises `LockedError` while a keeper has it, and `StorageError`. After an interruption it
    still has its old version: call it again.
    """
    lock = lock_log(directory)
    try:
        above = _largest_numbers(directory, least)
        for entry in list(os.scandir(directory)):
            if entry.name not in _SPARED and entry.name != _MARK:
                if entry.is_dir(follow_symlinks=False):
                    _remove(entry.path)
                else:
                    os.unlink(entry.path)
        _begin(directory, above)
    except OSError as error:
        raise StorageError(f"{display(directory)}: {error.strerror}", hint=room_hint(error)) from error
    finally:
        os.close(lock)


def has_keeper(directory: bytes) -> bool:
    """Whether a process keeps the log just now, as far as this one may find that out (else yes). One that was killed,
    and has not let go of it yet, is waited for.
    """
    try:
        fd = os.open(os.path.join(directory, LOCK), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return True
    try:
        deadline = time.monotonic() + _DYING_SECONDS
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                if not _was_killed(holder_of(fd)) or time.monotonic() > deadline:
                    return True
                time.sleep(_PAUSE)
            else:
                return False
    finally:
        os.close(fd)


def _was_killed(process: int | None) -> bool:
    """Whether SIGKILL was sent to a process; it is there while any thread of it is (Linux, proc_pid_status(5))."""
    try:
        with open(f"/proc/{process}/status", "rb") as file:
            pending = next((line for line in file if line.startswith(b"ShdPnd:")), b": 0")
    except OSError:
        return process is not None  # it is gone
    return bool(int(pending.split()[1], 16) & 1 << (signal.SIGKILL - 1))


def lock_log(directory: bytes) -> int:
    """A descriptor that holds the lock of the log, which is made if it is missing; closing it gives the lock up.

    Raises `LockedError` if another process has it, and `StorageError`.
    """
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
        fd = os.open(os.path.join(directory, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StorageError(f"{display(directory)}: {error.strerror}", hint=room_hint(error)) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise LockedError("another process keeps the undo log of this workspace") from error
    return fd


def _entries(directory: bytes) -> list[bytes]:
    """The files of the present log, without the mark of its version."""
    return [name for name in os.listdir(directory) if name not in _STAYING]


def _numbers(directory: bytes) -> Iterator[int]:
    try:
        names = os.listdir(os.path.join(directory, _OTHERS))
    except FileNotFoundError:
        return
    for name in names:
        with suppress(ValueError):
            yield int(name)


def _place(directory: bytes, least: Heartbeat) -> tuple[bytes, bool]:
    """The directory that the log is to lie in, which was made if it was not there; and whether all of it is in it."""
    last = last_of_others(directory)
    if last is not None:
        place = _place_of(directory, last)
        is_whole = os.path.lexists(os.path.join(place, _MARK))
        # A heartbeat alone belongs to the new log, which is not marked yet.
        if not is_whole or _BEATS.issuperset(_entries(directory)):
            return place, is_whole
    seq = _largest_numbers(directory, least).seq
    if seq == last or read_beat(directory) in (None, NONE):
        seq += 1  # it may have given out larger numbers; this one is larger than every number in the history
    place = _place_of(directory, seq)
    os.makedirs(place, 0o700)
    return place, False


def _place_of(directory: bytes, number: int) -> bytes:
    return os.path.join(directory, _OTHERS, b"%020d" % number)


def _largest_numbers(directory: bytes, least: Heartbeat) -> Heartbeat:
    """The largest numbers that are known of the log that is there, or was just set aside."""
    last = last_of_others(directory)
    places = [directory] if last is None else [directory, _place_of(directory, last)]
    beats = [least, *(beat for beat in map(read_beat, places) if beat is not None)]
    seqs = [beat.seq for beat in beats]
    if last is not None:
        seqs.append(last)
    with suppress(FileNotFoundError):
        seqs += (int(name, 16) for name in os.listdir(os.path.join(directory, b"aside")) if len(name) == _ASIDE)
    return Heartbeat(0, max(beat.step for beat in beats), min(beat.ambient for beat in beats), max(seqs))


def _begin(directory: bytes, known: Heartbeat) -> None:
    """Begin a new log after the removal of the old one; its numbers are larger than the ``known`` ones."""
    _write_file(directory, BEAT, encode_beat(known._replace(seq=known.seq + 1)))
    _write_file(directory, _MARK, _VERSION)


def _read_mark(directory: bytes) -> bytes:
    with open(os.path.join(directory, _MARK), "rb") as file:
        return file.read(64)


def _write_file(directory: bytes, name: bytes, content: bytes) -> None:
    path = os.path.join(directory, name)
    temporary = path + b".new"
    with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600)) as file:
        file.write(content)
    os.rename(temporary, path)


def _remove(directory: bytes) -> None:
    """Remove a directory with all that is in it; none there is fine. Raises `OSError`."""
    import shutil

    def failed(_: object, path: str, error: tuple[object, BaseException, object]) -> None:
        if isinstance(error[1], FileNotFoundError):
            return
        if not isinstance(error[1], PermissionError):
            raise error[1]
        os.rmdir(path)  # its owner may not be able to read a kept empty directory

    shutil.rmtree(os.fsdecode(directory), onerror=failed)
