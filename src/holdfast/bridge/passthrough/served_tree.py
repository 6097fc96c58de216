"""A real directory as a writable file system, each change recorded before it happens.

The requests are answered by `NameRequests`, `AttributeRequests`, `OpenRequests`, `ContentRequests` and
`ListingRequests`; a `NodeRegistry` says what the kernel's numbers stand for. Permissions are checked by the kernel, by
what it is told of modes, owners and access control lists.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from holdfast.bridge.passthrough._attribute_requests import AttributeRequests
from holdfast.bridge.passthrough._backing_files import BackingFiles
from holdfast.bridge.passthrough._cache_invalidation import CacheInvalidator
from holdfast.bridge.passthrough._cache_validity import CacheValidity
from holdfast.bridge.passthrough._fd_budget import FD_BUDGET
from holdfast.bridge.passthrough._file_requests import MOST_HANDLES, ContentRequests, OpenRequests
from holdfast.bridge.passthrough._host_interface import Callers
from holdfast.bridge.passthrough._listing_requests import ListingRequests
from holdfast.bridge.passthrough._name_requests import NameRequests
from holdfast.bridge.passthrough._node_registry import NodeRegistry
from holdfast.wire.fuse import replies
from holdfast.wire.fuse.negotiation import WANTED, Wishes
from holdfast.wire.fuse.protocol_constants import Init, Opcode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.bridge.passthrough._cache_validity import LogNames
    from holdfast.bridge.passthrough._host_interface import BridgeHost
    from holdfast.bridge.server.loop import Operation
    from holdfast.bridge.server.transport import Reply, Transport
    from holdfast.wire.fuse import request_bodies
    from holdfast.wire.fuse.negotiation import Terms
    from holdfast.wire.fuse.request_bodies import Header

_LOCAL_LOCKS: Final = Init.POSIX_LOCKS | Init.FLOCK_LOCKS


class PassthroughTree:
    """`FileSystem` of a directory."""

    def __init__(
        self, host: BridgeHost, kept: LogNames, transport: Transport, *, passes: bool = True, is_told: bool = False
    ) -> None:
        """``transport`` is its server's; if it ``passes``, the kernel reads and writes itself where it can.
        ``is_told``: the owner reports to `invalidator`, at once, all that others change.
        """
        self._host = host
        self._device = transport.backing_device if passes else None
        self.objects = NodeRegistry(host.root_fd, host.hidden)
        self.invalidator = CacheInvalidator(transport.notify, host.root_fd, self.objects)
        self.objects.crowded = self.invalidator.thin_out
        self._shown = CacheValidity(self.objects, kept, is_told=is_told)
        self._opening: OpenRequests | None = None
        self._share = FD_BUDGET.share()
        self._listings = ListingRequests(self.objects, self._shown, self._share, most=MOST_HANDLES)

    def wishes(self) -> Wishes:
        """See `FileSystem.wishes`."""
        flags = WANTED & ~_LOCAL_LOCKS
        if os.geteuid() == 0:
            flags |= Init.POSIX_ACL | Init.PASSTHROUGH
        return Wishes(flags=flags)

    def operations(self, terms: Terms) -> Mapping[int, Operation]:
        """See `FileSystem.operations`."""
        host, objects, shown = self._host, self.objects, self._shown
        callers = Callers(masks=bool(terms.flags & Init.DONT_MASK))
        self.invalidator.expires = bool(terms.flags & Init.HAS_EXPIRE_ONLY)
        backings = BackingFiles(self._device if terms.flags & Init.PASSTHROUGH else None)
        self._opening = opening = OpenRequests(
            host, objects, shown, callers, backings, self._share, self.invalidator, most=MOST_HANDLES
        )
        return {
            Opcode.FORGET: self._forget,
            Opcode.BATCH_FORGET: self._forget,
            Opcode.INTERRUPT: _go_on,
            **NameRequests(host, objects, shown, callers).operations(),
            **AttributeRequests(host, objects, shown, callers, opening).operations(),
            **opening.operations(),
            **ContentRequests(opening, callers).operations(),
            **self._listings.operations(),
            Opcode.IOCTL: _no_ioctl,
        }

    def close(self) -> None:
        """Close all that is open; the device must be gone, or served no more."""
        if self._opening is not None:
            self._opening.close()
        self._listings.close()
        self.objects.close()

    def _forget(self, _: Header, body: request_bodies.Forget) -> Reply:
        for node, lookups in body.forgets:
            self.objects.forget(node, lookups)


def _go_on(_: Header, _body: request_bodies.Interrupt) -> Reply:
    """A caller that gives up waits all the same, for a moment: what has begun is finished."""


def _no_ioctl(header: Header, _: request_bodies.Ioctl) -> Reply:
    return replies.no_ioctl(header.unique)
