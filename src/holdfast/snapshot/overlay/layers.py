"""The layers of an overlay: a constant lower directory, and the changes.

The changes are a directory of their own that can be copied, mounted or not: an upper layer, and beside it the index of
copied-up files, so that all names of a file remain names of one file.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.files.directories.replication import replicate
from holdfast.files.linux.metadata import apply_metadata, read_metadata
from holdfast.files.linux.mount_table import mounts
from holdfast.files.protected_directories import find_protected
from holdfast.model.errors import RefusedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.paths import MERGED, display

if TYPE_CHECKING:
    from holdfast.bridge.mount.overlayfs import Attributes

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_UPPER_XATTR = {"trusted": "trusted.overlay.upper", "user": "user.overlay.upper"}
"""On an index: which upper layer it is of. Of a copy that is another one."""


def refuse_unmounted(path: bytes) -> None:
    """Raise `RefusedError` if layers belong on the directory, and are not mounted: it does not show the working
    copy then. Raises `OSError`.
    """
    place = os.path.dirname(path)
    if not os.path.isdir(OverlayLayers(place, b"", "user").upper) or os.path.ismount(path):
        return
    raise RefusedError(
        f"the overlay {display(path)} is not mounted; its changes are kept",
        hint="the next command in its session mounts it again, such as `holdfast session exec -s ID true`",
        code="not_mounted",
    )


class OverlayLayers(NamedTuple):
    """Where the parts of one overlay are."""

    place: bytes
    """The directory that all is in but the lower layer."""
    lower: bytes
    attributes: Attributes

    @property
    def upper(self) -> bytes:
        """The directory of the changes."""
        return os.path.join(self.place, b"layer/upper")

    @property
    def work(self) -> bytes:
        """Where overlayfs prepares changes, and has its index."""
        return os.path.join(self.place, b"layer/work")

    @property
    def merged(self) -> bytes:
        """The mount point, if it has a path of its own."""
        return os.path.join(self.place, MERGED)

    @property
    def written_out(self) -> bytes:
        """Where all of it is a plain copy, if it is one."""
        return os.path.join(self.place, b"shown")

    @property
    def held(self) -> bytes:
        """The file that its holder is known by."""
        return os.path.join(self.place, b"held")

    @property
    def words(self) -> tuple[bytes, bytes, bytes, bytes]:
        """The arguments of the process that mounts it."""
        return self.lower, self.upper, self.work, self.attributes.encode()

    def make(self) -> None:
        """Make them, with nothing changed. ``place`` exists. Raises `OSError`."""
        for path in (os.path.dirname(self.upper), self.upper, self.work):
            os.mkdir(path, 0o700)
        lower, upper = os.open(self.lower, _DIRECTORY), os.open(self.upper, _DIRECTORY)
        try:
            # The mount has the metadata of the upper layer's root.
            apply_metadata(upper, read_metadata(lower, readable=True))
        finally:
            os.close(upper)
            os.close(lower)

    def copy(self, other: OverlayLayers) -> None:
        """Make them as ``other`` has them now; the lower one is the same. Durable. Raises `OSError`."""
        theirs, ours = (os.path.dirname(one.upper) for one in (other, self))
        replicate(theirs, ours, without=find_protected([os.path.join(other.work, b"work")]))
        with suppress(OSError):  # it is missing, or has no index
            os.removexattr(os.path.join(self.work, b"index"), _UPPER_XATTR[self.attributes])

    def is_mounted(self) -> bool:
        """Whether it is mounted at a path of its own. Raises `OSError`."""
        return any(mount.point == self.merged and mount.type == b"overlay" for mount in mounts())
