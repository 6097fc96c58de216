"""``fusermount3``: a set-uid program of libfuse that mounts for users other than root, and hands the device over."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from typing import TYPE_CHECKING, Final

from holdfast.ipc import private_socket
from holdfast.model.errors import StorageError, UnsupportedError
from holdfast.model.paths import display
from holdfast.processes.child import Limits, run

if TYPE_CHECKING:
    from collections.abc import Sequence


MOUNTING_NEEDS: Final = (
    "mounting needs /dev/fuse, and root or fusermount3 (the package fuse3); in a container also "
    "`--device /dev/fuse --cap-add SYS_ADMIN`"
)
"""The hint where nothing can be mounted."""

_PROGRAM: Final = "fusermount3"
_SECONDS: Final = 30
_LIMITS: Final = Limits(_SECONDS)


def mount(directory: bytes, options: Sequence[bytes]) -> int:
    """Have it mount a file system on ``directory``; the device. Raises `UnsupportedError`, and says what would help."""
    program = shutil.which(_PROGRAM)
    if program is None:
        raise UnsupportedError(
            f"{display(directory)} cannot be mounted on: no permission, and no {_PROGRAM}", hint=MOUNTING_NEEDS
        )
    ours, theirs = socket.socketpair()  # (libfuse's protocol on this socket: the device, without a message)
    with ours, theirs:
        try:
            done = run(
                [program, b"-o", b",".join(options), b"--", directory],
                _LIMITS,
                environment={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
                pass_fds=(theirs.fileno(),),
            )
        except OSError as error:
            raise UnsupportedError(f"{program} cannot be used: {error}", hint=MOUNTING_NEEDS) from error
        if done.why:
            raise UnsupportedError(f"{program} cannot be used: it does not end", hint=MOUNTING_NEEDS)
        if done.code:
            why = display(done.errors.strip()) or f"it ended with {done.code}"
            raise UnsupportedError(f"{display(directory)} cannot be mounted on: {why}", hint=MOUNTING_NEEDS)
        theirs.close()
        return _received(ours)


def unmount(directory: bytes, *, lazily: bool = False) -> str:
    """Have it unmount ``directory``; returns its error text, or "". Raises `OSError` if it does not end."""
    done = run([shutil.which(_PROGRAM) or _PROGRAM, b"-u", *([b"-z"] if lazily else []), b"--", directory], _LIMITS)
    if done.why:
        raise OSError(errno.ETIMEDOUT, f"{_PROGRAM} does not end")
    return display(done.errors.strip()) or f"{_PROGRAM} ended with {done.code}" if done.code else ""


def _received(ours: socket.socket) -> int:
    """The descriptor that the helper has sent."""
    ours.settimeout(_SECONDS)
    _, found = private_socket.receive(ours, 1, 1)
    if not found:
        raise StorageError(f"{_PROGRAM} has mounted, and handed over nothing")
    return found[0]
