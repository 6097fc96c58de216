"""The disk of a virtual machine: a qcow2 file with an ext4 file system, made with the rights of a user.

At most one machine has a disk. A lock says so (flock(2)), which belongs to the open file that QEMU inherits: it is
held until the last of the two has ended, however that is.

Sources: mke2fs(8), qemu-img(1).
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.model.errors import LockedError, NotFoundError, StorageError, UsageError, room_hint
from holdfast.model.paths import display
from holdfast.processes.child import Limits, run
from holdfast.sandbox.vm.programs import find_program

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST_BYTES, MOST_BYTES = 64 << 20, 16 << 40
_SECONDS = 300.0
_LABEL = "holdfast"
_SIZE = slice(24, 32)
"""Where a qcow2 says it (QEMU's ``docs/interop/qcow2.rst``)."""


def create_disk(path: bytes, size: int) -> None:
    """Make the new file ``path`` (mode 0600), a disk of ``size`` bytes that takes some megabytes at first.

    Raises `UsageError` for a size that no disk can have, `StorageError` (also if the file is there),
    `UnsupportedError` if a program is missing.
    """
    _create(path, size)
    try:
        os.link(path + b".new", path)
    except FileExistsError as error:
        raise StorageError(f"{display(path)} is there already") from error
    except OSError as error:
        raise StorageError(f"cannot make {display(path)}: {error.strerror}") from error
    finally:
        os.unlink(path + b".new")


def size_of_disk(path: bytes) -> int:
    """How many bytes it holds at most: what `create_disk` was given, rounded up to a multiple of 512. Raises
    `StorageError`.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(_SIZE.stop)
    except OSError as error:
        raise StorageError(f"cannot read {display(path)}: {error.strerror}") from error
    return int.from_bytes(head[_SIZE], "big")


def remove_disk(path: bytes) -> None:
    """Remove it. Raises as `open_disk`."""
    fd = open_disk(path)
    try:
        os.unlink(path)
    finally:
        os.close(fd)


def open_disk(path: bytes) -> int:
    """Open and lock it; the lock is held until every copy of the descriptor is closed.

    Raises `LockedError` if a machine has it, `NotFoundError`, `StorageError`.
    """
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError as error:
            raise NotFoundError(f"there is no disk {display(path)}") from error
        except OSError as error:
            raise StorageError(f"cannot open {display(path)}: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The opened file may have been replaced before it was locked.
            if os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False)):
                return fd
            os.close(fd)
        except BlockingIOError as error:
            os.close(fd)
            raise LockedError(
                f"another machine has the disk {display(path)}", hint="end that machine, or use another disk"
            ) from error
        except FileNotFoundError:
            os.close(fd)
        except OSError as error:
            os.close(fd)
            raise StorageError(f"cannot lock {display(path)}: {error.strerror}") from error


def _create(path: bytes, size: int) -> None:
    """Make ``path.new``."""
    if not LEAST_BYTES <= size <= MOST_BYTES:
        raise UsageError(
            f"a disk cannot have {size} bytes", hint=f"from {LEAST_BYTES >> 20} MiB to {MOST_BYTES >> 40} TiB"
        )
    raw, new = path + b".raw", path + b".new"
    mke2fs, qemu_img = find_program("mke2fs", "e2fsprogs"), find_program("qemu-img", "qemu-utils")
    try:
        for name in (raw, new):
            with suppress(FileNotFoundError):
                os.unlink(name)
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        os.truncate(raw, size)
        # The tables of inodes count as initialized, and are holes: the guest does not fill them in the background.
        options = "lazy_itable_init=0,root_owner=0:0"
        _run([mke2fs, "-q", "-F", "-t", "ext4", "-m", "0", "-L", _LABEL, "-E", options, raw])
        _run([qemu_img, "convert", "-q", "-f", "raw", "-O", "qcow2", raw, new])
    except OSError as error:
        raise StorageError(f"cannot make {display(path)}: {error.strerror}", hint=room_hint(error)) from error
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(new)
        raise
    finally:
        with suppress(FileNotFoundError):
            os.unlink(raw)


def _run(words: Sequence[str | bytes]) -> None:
    ended = run(words, Limits(_SECONDS), environment={"LC_ALL": "C"})
    if ended.code:
        why = ended.errors.decode("utf-8", "replace").strip() or f"exit code {ended.code}"
        raise StorageError(f"a disk cannot be made: {why}")
