"""A real directory as a file system that anybody may change, each change recorded before it happens.

What is asked for is in `naming`, `attributes`, `opening`, `contents` and `listings`; `objects` is what the kernel's
numbers stand for. Permissions are checked by the kernel, by what it is told of modes, owners and access control lists.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from holdfast.bridge.attributes import AttributesOf
from holdfast.bridge.backing import Backings
from holdfast.bridge.contents import ContentOf
from holdfast.bridge.fd_budget import ROOM
from holdfast.bridge.host import Callers
from holdfast.bridge.listings import Listings
from holdfast.bridge.naming import Naming
from holdfast.bridge.objects import Objects
from holdfast.bridge.opening import MOST_HANDLES, Opening
from holdfast.bridge.shown import Shown
from holdfast.bridge.telling import Teller
from holdfast.wire.fuse import replies
from holdfast.wire.fuse.kernel import Init, Opcode
from holdfast.wire.fuse.negotiation import WANTED, Wishes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.bridge.host import BridgeHost
    from holdfast.bridge.server import Operation, Reply
    from holdfast.bridge.shown import Kept
    from holdfast.wire.fuse import bodies
    from holdfast.wire.fuse.bodies import Header
    from holdfast.wire.fuse.negotiation import Terms

_LOCAL_LOCKS: Final = Init.POSIX_LOCKS | Init.FLOCK_LOCKS


class PassthroughTree:
    """`FileSystem` of a directory."""

    def __init__(
        self, world: BridgeHost, kept: Kept, device: int, *, passes: bool = True, is_told: bool = False
    ) -> None:
        """``device`` is the mounted one, borrowed; if it ``passes``, the kernel reads and writes itself where it can.
        ``is_told``: `teller` hears of all that others change, at once.
        """
        self._world = world
        self._device = device if passes else None
        self.objects = Objects(world.root_fd, world.hidden)
        self.teller = Teller(device, world.root_fd, self.objects)
        self.objects.crowded = self.teller.thin_out
        self._shown = Shown(self.objects, kept, is_told=is_told)
        self._opening: Opening | None = None
        self._share = ROOM.share()
        self._listings = Listings(self.objects, self._shown, self._share, most=MOST_HANDLES)

    def wishes(self) -> Wishes:
        """See `FileSystem.wishes`."""
        flags = WANTED & ~_LOCAL_LOCKS
        if os.geteuid() == 0:
            flags |= Init.POSIX_ACL | Init.PASSTHROUGH
        return Wishes(flags=flags)

    def operations(self, terms: Terms) -> Mapping[int, Operation]:
        """See `FileSystem.operations`."""
        world, objects, shown = self._world, self.objects, self._shown
        callers = Callers(masks=bool(terms.flags & Init.DONT_MASK))
        self.teller.expires = bool(terms.flags & Init.HAS_EXPIRE_ONLY)
        backings = Backings(self._device if terms.flags & Init.PASSTHROUGH else None)
        self._opening = opening = Opening(
            world, objects, shown, callers, backings, self._share, self.teller, most=MOST_HANDLES
        )
        return {
            Opcode.FORGET: self._forget,
            Opcode.BATCH_FORGET: self._forget,
            Opcode.INTERRUPT: _go_on,
            **Naming(world, objects, shown, callers).operations(),
            **AttributesOf(world, objects, shown, callers, opening).operations(),
            **opening.operations(),
            **ContentOf(opening, callers).operations(),
            **self._listings.operations(),
            Opcode.IOCTL: _no_ioctl,
        }

    def close(self) -> None:
        """Close all that is open; the device must be gone, or nobody serve it any more."""
        if self._opening is not None:
            self._opening.close()
        self._listings.close()
        self.objects.close()

    def _forget(self, _: Header, body: bodies.Forget) -> Reply:
        for node, lookups in body.forgets:
            self.objects.forget(node, lookups)


def _go_on(_: Header, _body: bodies.Interrupt) -> Reply:
    """Whoever does not want to wait any more has to, for a moment: what has begun is finished."""


def _no_ioctl(header: Header, _: bodies.Ioctl) -> Reply:
    return replies.no_ioctl(header.unique)
