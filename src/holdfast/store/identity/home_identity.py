"""The identity of a home among those that share a catalog: a random number in the home; and who may write there.

A number of the machine is not enough: containers of one image share it, and a home may be moved.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.model.errors import IntegrityError, StorageError, room_hint
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = b"machine.id"
_TEXT = re.compile(rb"[0-9a-f]{32}\n")


def identify(home: bytes, random: Callable[[int], bytes]) -> tuple[str, bool]:
    """The number of this home, made if it is missing, as 32 hex digits; and whether this process may write there.

    Durable when it returns. A supervised process may not write the home, and so not the catalog either. Raises
    `StorageError`, and `IntegrityError` for an invalid file.
    """
    path = os.path.join(home, NAME)
    found = _read(path)
    if found is None:
        _begin(home, path, random(16).hex().encode() + b"\n")
        found = _read(path)
    if found is None or not _TEXT.fullmatch(found[0]):
        raise IntegrityError(
            f"{display(path)} is damaged: it is not the number of a home",
            hint="put it back from a copy: the workspaces of this home are known by it",
        )
    return found[0].decode().strip(), found[1]


def _read(path: bytes) -> tuple[bytes, bool] | None:
    """The content of the file, and whether it is writable; None if it is missing."""
    for flags, writable in ((os.O_RDWR, True), (os.O_RDONLY, False)):
        try:
            fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            if writable:
                continue
            raise StorageError(f"cannot read {display(path)}: {error.strerror}") from error
        try:
            return os.read(fd, 64), writable and not os.fstatvfs(fd).f_flag & os.ST_RDONLY
        finally:
            os.close(fd)
    raise AssertionError


def _begin(home: bytes, path: bytes, content: bytes) -> None:
    """Make the file whole or not at all; another process may be first."""
    draft = path + b"." + os.urandom(4).hex().encode()
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with open(fd, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                os.link(draft, path)
        finally:
            os.unlink(draft)
        directory = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise StorageError(f"cannot make {display(path)}: {error.strerror}", hint=room_hint(error)) from error
