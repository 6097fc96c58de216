"""Writing whole files for interfaces, through the interceptor, like commands.

No link is followed, neither in the path nor at its end (I7). An existing file is written in place, so that its other
names, owner and permissions stay. A new one, and each missing parent directory, gets owner and permissions from its
directory, so private directories stay private.

Others may change the same file. Taking the preimage of a large one takes time, and a concurrent write would be in
neither the preimage nor the new content. So the file is compared before that and again directly before the truncation.
From then on, a process that opens it waits until it is complete, if the kernel grants a write lease. Without one, a
process that had it open before may lose a write in that moment.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Protocol, TypeVar

from holdfast.files.linux.file_lease import exclusive_lease
from holdfast.files.linux.metadata import proc_path
from holdfast.model.errors import EscapeError, HoldfastError, RefusedError, StorageError, room_hint
from holdfast.model.ids import Hasher
from holdfast.model.paths import check_path, display
from holdfast.undo.safeguards.guard import NO_RISK, risk_of
from holdfast.undo.whole_writes import AT_ONCE, TRY_AGAIN, leased_reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.files.protected_directories import ProtectedDirectories
    from holdfast.undo.interceptor import Place
    from holdfast.undo.journal.records import FileType, StepId
    from holdfast.undo.safeguards.guard import Risk
    from holdfast.undo.tree.rooted_directories import Directories

T = TypeVar("T")

_PIECE = 1 << 20
_ATTEMPTS = 3
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OBJECT = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

ABSENT = b""
"""Expected where there must be no file."""


class FileInterceptor(Protocol):
    """The part of an `Interceptor` that is needed here."""

    def create(self, step: StepId, place: Place, type_: FileType, perform: Callable[[], T]) -> T:
        """See `Interceptor.create`."""
        ...

    def before_open(self, step: StepId, place: Place, fd: int, risk: Risk = NO_RISK) -> bool:
        """See `Interceptor.before_open`."""
        ...

    def cancel_open(self, step: StepId, fd: int) -> bool:
        """See `Interceptor.cancel_open`."""
        ...


def write_file(
    interceptor: FileInterceptor,
    directories: Directories,
    own: ProtectedDirectories,
    step: StepId,
    path: bytes,
    content: int,
    expected: bytes | None,
) -> None:
    """Write the content of the descriptor ``content``, of a regular file, to the file ``path``.

    ``expected`` is the hash that the present content must have, `ABSENT` for no file; None for any. Raises
    `RefusedError` (code ``changed``) if it differs; `HeldError` if a person must be asked first, then call it again;
    `EscapeError`, also for paths in ``own``; `StorageError`. Changes before an error are recorded in the step.
    """
    check_path(path)
    try:
        _make_directories(interceptor, directories, own, step, os.path.dirname(path))
        place = directories.place(path)
        own.check(place.dir_fd, path)
        found = _lstat(place)
        if found is None:
            if expected:
                raise _changed(path, "it is not there any more")
            _create(interceptor, step, place, content)
        elif not stat.S_ISREG(found.st_mode):
            raise _no_file(place, found)
        elif expected == ABSENT:
            raise _changed(path, "it is there already")
        else:
            _overwrite(interceptor, step, place, content, expected)
    except OSError as error:
        raise _translated(path, error) from error


def _make_directories(
    interceptor: FileInterceptor, directories: Directories, own: ProtectedDirectories, step: StepId, path: bytes
) -> None:
    missing: list[bytes] = []
    while True:
        try:
            directories.directory(path)
            break
        except FileNotFoundError:
            missing.append(path)
            path = os.path.dirname(path)
    for each in reversed(missing):
        place = directories.place(each)
        own.check(place.dir_fd, each)
        above = os.stat(place.dir_fd)

        def make(place: Place = place) -> None:
            os.mkdir(place.name, 0o700, dir_fd=place.dir_fd)

        try:
            interceptor.create(step, place, "d", make)
        except FileExistsError:
            continue  # another process has just made it
        made = directories.directory(each)
        _inherit(made, above, above.st_mode & 0o777)


def _create(interceptor: FileInterceptor, step: StepId, place: Place, content: int) -> None:
    fd = interceptor.create(step, place, "f", lambda: os.open(place.name, _NEW, 0o600, dir_fd=place.dir_fd))
    try:
        above = os.stat(place.dir_fd)
        _inherit(fd, above, above.st_mode & 0o666)
        _copy(content, fd)
    finally:
        os.close(fd)


def _overwrite(interceptor: FileInterceptor, step: StepId, place: Place, content: int, expected: bytes | None) -> None:
    held = os.open(place.name, _OBJECT, dir_fd=place.dir_fd)
    try:
        for _ in range(_ATTEMPTS):
            if _rewrite(interceptor, step, place, held, content, expected):
                return
            if expected is not None:
                break
        raise _changed(place.path, "another process has changed it")
    finally:
        os.close(held)


def _rewrite(
    interceptor: FileInterceptor, step: StepId, place: Place, held: int, content: int, expected: bytes | None
) -> bool:
    """Write to the file ``held``; False if another process was quicker, nothing has happened, and it may be tried
    again.
    """
    looked = _look(place, held)
    if expected is not None and _hash(os.open(proc_path(held), os.O_RDONLY | AT_ONCE)) != expected:
        return False
    # Before anything is recorded; from here on, no process gets a lease on it.
    fd = os.open(proc_path(held), os.O_WRONLY | AT_ONCE)
    try:
        is_kept_now = interceptor.before_open(step, place, held, risk_of(os.O_WRONLY | os.O_TRUNC))
        with exclusive_lease(fd):
            if looked is None or _look(place, held) != looked:
                if is_kept_now and not interceptor.cancel_open(step, held):
                    raise _changed(place.path, "another process has changed it")
                return False
            os.ftruncate(fd, 0)
            _copy(content, fd)
        if _look(place, held) is None:
            raise _changed(place.path, "another process has put another file in its place")
        return True
    finally:
        os.close(fd)


def _look(place: Place, held: int) -> tuple[int, int, int] | None:
    """Values that change with the content of the file ``held``; None if it is no longer at its place."""
    found, named = os.fstat(held), _lstat(place)
    if named is None or not os.path.samestat(found, named):
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _inherit(fd: int, above: os.stat_result, mode: int) -> None:
    if os.geteuid() == 0:
        os.chown(proc_path(fd), above.st_uid, above.st_gid)
    os.chmod(proc_path(fd), mode)


def _copy(source: int, target: int) -> None:
    at = 0
    while piece := os.pread(source, _PIECE, at):
        view = memoryview(piece)
        while view:
            written = os.pwrite(target, view, at)
            at += written
            view = view[written:]


def _hash(fd: int) -> bytes:
    hasher = Hasher()
    try:
        while piece := os.read(fd, _PIECE):
            hasher.update(piece)
    finally:
        os.close(fd)
    return hasher.hash()


def _lstat(place: Place) -> os.stat_result | None:
    try:
        return os.stat(place.name, dir_fd=place.dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _changed(path: bytes, what: str) -> RefusedError:
    return RefusedError(f"{display(path)} was not written: {what}", hint="read it again", code="changed")


def _no_file(place: Place, found: os.stat_result) -> HoldfastError:
    if stat.S_ISLNK(found.st_mode):
        target = display(os.readlink(place.name, dir_fd=place.dir_fd))
        return EscapeError(f"{display(place.path)} is a link to {target}", hint="write to where it leads")
    return RefusedError(f"{display(place.path)} is no regular file", code="not_a_file")


def _translated(path: bytes, error: OSError) -> HoldfastError:
    if error.errno in (errno.ELOOP, errno.EXDEV):
        return EscapeError(f"{display(path)} leads through a link", hint="name where it leads")
    if error.errno == errno.ENOTDIR:
        return RefusedError(f"{display(path)} cannot be: a part of it is no directory", code="not_a_file")
    if error.errno == errno.EAGAIN:
        return RefusedError(f"{display(path)} was not written: {leased_reason(path)}", hint=TRY_AGAIN, code="leased")
    return StorageError(f"{display(path)} cannot be written: {error.strerror}", hint=room_hint(error))
