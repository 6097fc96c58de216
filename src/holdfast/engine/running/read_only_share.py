"""An additional directory that a virtual machine sees and cannot change: this process serves it, and records nothing.

Three layers refuse changes: the guest's mount is read-only, the server refuses changing requests, and so does the host
that a recorded directory asks before a change.
"""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final, NoReturn

from holdfast.engine.running.mount_service import Served9p, ServedVirtiofs
from holdfast.model.paths import UNDO_LOG_IN_TREE

if TYPE_CHECKING:
    import socket
    from collections.abc import Generator, Sequence
    from typing import Literal

    from holdfast.undo.interceptor import Interceptor
    from holdfast.undo.journal.records import StepId


class ReadOnlyHost:
    """The host of a recorded directory without changes."""

    def __init__(self, root_fd: int, hidden: tuple[int, ...]) -> None:
        """See `holdfast.vfs.recorded.callers.RecordingHost`; the descriptors are borrowed."""
        self.root_fd = root_fd
        self.hidden = hidden
        self.preimages = _NoLog()
        self.is_read_only: Final = True
        self.waiting: Final = 0

    @property
    def interceptor(self) -> Interceptor:
        """Raises EROFS."""
        _refuse()

    def step(self, thread: int, /) -> StepId:
        """Raises EROFS."""
        del thread
        _refuse()


class _NoLog:
    """`LogNames` of no undo log."""

    def names_of(self, found: os.stat_result, /) -> int:
        """There is none."""
        del found
        return 0


@contextmanager
def shared_read_only(
    directory: int, connection: socket.socket, kind: Literal["virtiofs", "9p"], hidden: Sequence[bytes]
) -> Generator[None]:
    """For the length of the block, serve a directory at a machine's socket, which is taken over. ``directory`` is a
    descriptor of it; ``hidden`` are paths of directories that are not shown. Raises `OSError`.
    """
    with ExitStack() as context:

        def opened(path: bytes, flags: int) -> int:
            fd = os.open(path, flags | os.O_DIRECTORY | os.O_CLOEXEC)
            context.callback(os.close, fd)
            return fd

        root = opened(b"/proc/self/fd/%d" % directory, os.O_RDONLY)
        own: list[int] = []
        for path in (*hidden, os.path.join(b"/proc/self/fd/%d" % root, UNDO_LOG_IN_TREE)):
            with suppress(OSError):
                own.append(opened(path, os.O_PATH | os.O_NOFOLLOW))
        host = ReadOnlyHost(root, tuple(own))
        served = (ServedVirtiofs if kind == "virtiofs" else Served9p)(connection.detach(), host)
        try:
            yield
        finally:
            while not served.close():
                pass


def _refuse() -> NoReturn:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))
