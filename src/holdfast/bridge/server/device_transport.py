"""The FUSE device as a transport. Source: ``fs/fuse/dev.c``.

It is polled, and ``read`` never blocks: only an unmount would wake a thread blocked there.
"""

from __future__ import annotations

import errno
import os
import select
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from holdfast.bridge.server.transport import ClosedTransportError
from holdfast.model.log import Log

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.bridge.server.transport import Reply

_LOG = Log(__name__)
_GONE: Final = (errno.ENODEV, errno.ECONNABORTED, errno.ENOTCONN)
"""Errors of the device when nothing is mounted any more, or the connection was aborted."""
_NOT_WAITED_FOR: Final = errno.ENOENT
"""The device's error for a reply that came too late, or a request that was withdrawn while it was read."""
_NOT_KNOWN: Final = (errno.ENOENT, errno.ENOTEMPTY, errno.ENOTDIR)
"""The kernel's errors for a notification about something unknown, or something that may stay for now."""


class DeviceTransport:
    """`Transport` of a mounted device."""

    def __init__(self, device: int) -> None:
        """``device`` is mounted already, stays the caller's, and becomes non-blocking."""
        self.is_local: Final = True
        self.notifies: Final = True
        self.backing_device: Final = device
        self._device = device
        os.set_blocking(device, False)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    @contextmanager
    def receiver(self, limit: int) -> Generator[_DeviceReceiver]:
        """See `Transport`."""
        with select.epoll() as poll:
            # One request is to wake one thread.
            poll.register(self._device, select.EPOLLIN | select.EPOLLEXCLUSIVE)
            poll.register(self._wake, select.EPOLLIN)
            yield _DeviceReceiver(self._device, poll, bytearray(limit))

    def reply(self, unique: int, reply: Reply) -> None:
        """See `Transport`."""
        del unique  # (the reply contains it)
        if reply is None:
            return
        try:
            os.writev(self._device, (reply,) if isinstance(reply, bytes) else reply)
        except OSError as error:
            if error.errno not in _GONE and error.errno != _NOT_WAITED_FOR:
                raise

    def notify(self, notification: bytes) -> None:
        """See `Transport`."""
        try:
            os.write(self._device, notification)
        except OSError as error:
            if error.errno not in _NOT_KNOWN and error.errno not in _GONE:
                _LOG.warning("the kernel cannot be told of a change: %s", error.strerror)

    def is_quiet(self) -> bool:
        """See `Transport`."""
        asked = select.poll()
        asked.register(self._device, select.POLLIN)
        return not asked.poll(0)

    def wake(self) -> None:
        """See `Transport`."""
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """See `Transport`."""
        os.close(self._wake)


class _DeviceReceiver:
    """`Receiver` of a device."""

    __slots__ = ("_buffer", "_device", "_poll")

    def __init__(self, device: int, poll: select.epoll, buffer: bytearray) -> None:
        self._device = device
        self._poll = poll
        self._buffer = buffer

    def wait(self) -> None:
        """See `Receiver`. (An empty read of the device would raise an exception, nearly each time.)"""
        self._poll.poll()

    def take(self) -> memoryview | None:
        """See `Receiver`."""
        buffer = self._buffer
        try:
            return memoryview(buffer)[: os.readv(self._device, [buffer])]
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in _GONE:
                raise ClosedTransportError from error
            if error.errno != _NOT_WAITED_FOR:
                raise
            return None
