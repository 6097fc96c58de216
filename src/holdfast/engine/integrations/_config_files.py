"""Configuration files on disk: read within limits, and replaced atomically, never over another program's latest change.

The given path may be a link, for users who keep the configuration in another place: its target is replaced, in its own
directory, with the same permissions, owner and extended attributes. The path is resolved once, when the file is read:
later links in it are not followed.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.files.linux.exclusive_rename import move_if_absent
from holdfast.files.linux.metadata import apply_metadata, read_metadata
from holdfast.files.write.atomic_replacement import TemporaryNames, exchange, move_aside
from holdfast.files.write.displaced_file import DisplacedFile, identity_of
from holdfast.files.write.ownership import owner_for
from holdfast.files.write.rooted_access import Root, open_root
from holdfast.model.entries import file_entry
from holdfast.model.errors import EscapeError, NotFoundError, RefusedError, StorageError, room_hint
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.ids import hash_bytes
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.files.linux.metadata import Metadata

MAX_BYTES = 16 << 20
"""A larger file is no configuration that a person has written."""

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class ConfigFile(NamedTuple):
    """A file as it was read."""

    path: bytes
    """The real one."""
    content: bytes | None
    """None for a missing file."""
    root: bytes
    """The real path of the directory that it is reached from, by way of no link."""
    info: os.stat_result | None = None
    metadata: Metadata | None = None


def read_file(path: str, *, beneath: str | None = None) -> ConfigFile:
    """Read a file, following links; ``beneath``: the directory that they must not lead out of.

    Raises `RefusedError` for anything but a regular file of one name and a bearable size.
    """
    real = os.path.realpath(os.fsencode(path))
    root = _there(os.path.dirname(real)) if beneath is None else os.path.realpath(os.fsencode(beneath))
    if not real.startswith(root.rstrip(b"/") + b"/"):
        raise RefusedError(
            f"{path} leads out of the project, to {display(real)}",
            hint="configure that place by itself, or replace the link",
            code="escape",
        )
    found = ConfigFile(real, None, root)
    try:
        with _folder(found) as folder, _opened(folder, os.path.basename(real)) as fd:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise RefusedError(f"{display(real)} is no regular file")
            if info.st_size > MAX_BYTES:
                raise RefusedError(f"{display(real)} has {info.st_size} bytes: no configuration is that large")
            if info.st_nlink > 1:
                raise RefusedError(
                    f"{display(real)} has several names (hard links): the others would keep the old content",
                    hint="give each its own file, or change it by hand",
                )
            return found._replace(content=_read(fd), info=info, metadata=read_metadata(fd, info, readable=True))
    except (FileNotFoundError, NotFoundError):
        return found
    except OSError as error:
        raise StorageError(f"cannot read {display(real)}: {error.strerror}") from error


def replace_file(found: ConfigFile, content: bytes | None) -> None:
    """Replace the content of the file, or (None) delete it, if it is still as ``found``. Atomic and durable.

    Raises `RefusedError`, and changes nothing, if it has changed or a link is in its path by now; `StorageError`.
    """
    try:
        with _folder(found, make=content is not None) as fd:
            problem = _put(fd, os.path.basename(found.path), found, content)
            os.fsync(fd)
    except NotFoundError:
        problem = "cannot be reached any more"
    except OSError as error:
        raise StorageError(f"cannot write {display(found.path)}: {error.strerror}", hint=room_hint(error)) from error
    if problem is not None:
        raise RefusedError(
            f"{display(found.path)} was not changed: it {problem}",
            hint="run the command again; it reads the file anew",
            code="changed_meanwhile",
        )


def delete_file(path: bytes) -> None:
    """Delete a file of our own. Harmless if it is not there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _put(fd: int, name: bytes, found: ConfigFile, content: bytes | None) -> str | None:
    names = TemporaryNames(os.urandom(8).hex())
    temporary = names.new()
    if content is None:
        problem = move_aside(fd, name, fd, temporary, _taken(found))
        if problem is None:
            _unlink(fd, temporary)
        return problem
    _write(fd, temporary, content, found.metadata)
    try:
        if found.info is None:
            return None if move_if_absent(fd, temporary, fd, name) else "was made meanwhile"
        return exchange(fd, temporary, name, _taken(found))
    finally:
        _unlink(fd, temporary)


def _write(fd: int, name: bytes, content: bytes, like: Metadata | None) -> None:
    mode = 0o666 if like is None else 0o600
    file = os.open(name, _NEW, mode, dir_fd=fd)
    try:
        if like is not None:
            apply_metadata(file, like._replace(mtime=os.fstat(file).st_mtime_ns))
        elif (owner := owner_for(fd)) is not None:
            owner.take_fd(file, os.fstat(file))
        view = memoryview(content)
        while view:
            view = view[os.write(file, view) :]
        os.fsync(file)
    except BaseException:
        _unlink(fd, name)
        raise
    finally:
        os.close(file)


def _taken(found: ConfigFile) -> DisplacedFile:
    if found.info is None or found.content is None:
        raise NotFoundError(f"there is no {display(found.path)}")
    entry = file_entry(hash_bytes(found.content), len(found.content), stat.S_IMODE(found.info.st_mode))
    return DisplacedFile(identity_of(found.info), entry, doubtful=True)


def _read(fd: int) -> bytes:
    pieces: list[bytes] = []
    left = MAX_BYTES + 1
    while left and (piece := os.read(fd, left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _unlink(fd: int, name: bytes) -> None:
    try:
        os.unlink(name, dir_fd=fd)
    except FileNotFoundError:
        pass


def _there(folder: bytes) -> bytes:
    """The directory, or the nearest existing one above it."""
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


@contextmanager
def _folder(found: ConfigFile, *, make: bool = False) -> Generator[int]:
    """The directory of a file, reached from where it was looked for without following a link; ``make``: made if it is
    missing. Raises `RefusedError` if a link is on the way, `NotFoundError`, `StorageError`, `OSError`.
    """
    way = os.path.dirname(os.path.relpath(found.path, found.root))
    try:
        with Root(open_root(found.root)) as tree:
            yield tree.make_directory(way, owner_for(tree.fd)) if make else tree.directory(way)
    except EscapeError as error:
        raise RefusedError(
            f"{display(found.path)} was left alone: a link was put on the way to it",
            hint="look where it leads, and do it again",
            code=error.code,
        ) from error


@contextmanager
def _opened(folder: int, name: bytes) -> Generator[int]:
    fd = os.open(name, _READ, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)
