"""The port by which requests come from a kernel, and replies and notifications go to it.

`holdfast.bridge.server.device_transport` is the FUSE device of this system's kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    Reply = bytes | Sequence[bytes | bytearray | memoryview] | None
    """In pieces or whole; None: there is nothing to be said."""


class ClosedTransportError(Exception):
    """No request will come any more: the file system is mounted nowhere, or the connection is gone."""


class Receiver(Protocol):
    """Takes requests for one thread."""

    def wait(self) -> None:
        """Wait until there may be a request, or the transport is closed or woken."""
        ...

    def take(self) -> memoryview | None:
        """The frame of a request, which belongs to this receiver until the next call; None if there is none now.

        Raises `ClosedTransportError`.
        """
        ...


class Transport(Protocol):
    """One connection with one kernel. For any number of threads. A request that comes is received once, and a reply
    goes to the request with its number (``unique``), in any order.
    """

    @property
    def is_local(self) -> bool:
        """Whether the kernel is this system's: only then the thread of a request can be inspected."""
        ...

    @property
    def backing_device(self) -> int | None:
        """The descriptor for giving the kernel files to read and write itself; None if it takes none. Borrowed."""
        ...

    @property
    def notifies(self) -> bool:
        """Whether the kernel can be told of outdated caches."""
        ...

    def receiver(self, limit: int) -> AbstractContextManager[Receiver]:
        """The receiver of the thread that enters it, for requests of at most ``limit`` bytes. The first receiver agrees
        upon the terms.
        """
        ...

    def reply(self, unique: int, reply: Reply) -> None:
        """Answer a request; to be called once for each, with None for one that wants no answer.

        Raises `OSError` if the kernel refuses the reply and still waits for one. Nothing happens if it waits no more.
        """
        ...

    def notify(self, notification: bytes) -> None:
        """Tell the kernel that something is out of date. Harmless if it does not know that, or is gone; any other error
        is only logged.
        """
        ...

    def is_quiet(self) -> bool:
        """Whether no request waits to be received."""
        ...

    def wake(self) -> None:
        """Have every receiver's `Receiver.wait` return, now and from now on."""
        ...

    def close(self) -> None:
        """Close its own resources: nothing is received or answered any more. Harmless for `notify`."""
        ...
