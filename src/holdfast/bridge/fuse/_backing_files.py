"""Passthrough: once open, these files are read and written by the kernel itself, without asking.

While an inode has an open passthrough handle, each further handle must be one too, with the same id; and while it has
an ordinary handle, no passthrough handle is possible. Needs Linux 6.9, and CAP_SYS_ADMIN. Source:
``include/uapi/linux/fuse.h``, ``FUSE_DEV_IOC_BACKING_OPEN``, and ``fs/fuse/iomode.c``.
"""

from __future__ import annotations

import errno
import fcntl
import struct
import threading
from typing import TYPE_CHECKING, Final

from holdfast.model.log import Log

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from holdfast.bridge.fuse._kernel_node import KernelNode

_LOG = Log(__name__)
_OPEN: Final = 0x4010E501
_CLOSE: Final = 0x4004E502
_MAP: Final = struct.Struct("=iIQ")
_ID: Final = struct.Struct("=I")
_NEVER: Final = (errno.EPERM, errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP)
"""Errors which mean that passthrough will never work here."""


class BackingFiles:
    """The ids of one mount. For any number of threads."""

    def __init__(self, device: int | None) -> None:
        """``device`` is the mounted FUSE device, borrowed; None if nothing is to be passed through."""
        self._device = device
        self._lock = threading.Lock()

    def take(self, kept: KernelNode, fd: int, name: AbstractContextManager[None], *, strips: bool) -> int:
        """The backing id for a further open handle of the object, whose descriptor is ``fd``; 0 for none.

        For the first handle, the kernel acts with the credentials of this thread inside ``name``; ``strips`` says
        whether its writes clear set-id bits. Release either with `give`.
        """
        with self._lock:
            if not kept.backing and (kept.plain or not self._register(kept, fd, name, strips=strips)):
                kept.plain += 1
                return 0
            kept.backed += 1
            return kept.backing

    def give(self, kept: KernelNode, backing: int) -> None:
        """A handle that had been given ``backing`` is closed."""
        with self._lock:
            if not backing:
                kept.plain -= 1
                return
            kept.backed -= 1
            if kept.backed:
                return
            kept.backing = 0
            assert self._device is not None
            try:
                fcntl.ioctl(self._device, _CLOSE, _ID.pack(backing))
            except OSError as error:
                _LOG.warning("the kernel keeps a file open: %s", error.strerror)

    def _register(self, kept: KernelNode, fd: int, name: AbstractContextManager[None], *, strips: bool) -> bool:
        if self._device is None:
            return False
        try:
            with name:
                kept.backing = fcntl.ioctl(self._device, _OPEN, bytearray(_MAP.pack(fd, 0, 0)))
            kept.strips = strips
        except OSError as error:
            if error.errno in _NEVER:
                _LOG.info("the kernel does not read and write by itself here: %s", error.strerror)
                self._device = None
            return False
        return True
