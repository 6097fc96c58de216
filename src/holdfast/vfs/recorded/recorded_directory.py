"""A real directory as a writable file system, each change recorded before it happens.

The asking kernel checks permissions, by the modes, owners and access control lists that it gets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.vfs.recorded.attributes import RecordedAttributes
from holdfast.vfs.recorded.callers import Credited
from holdfast.vfs.recorded.directories import RecordedDirectories
from holdfast.vfs.recorded.files import MOST_FILES, RecordedFiles
from holdfast.vfs.recorded.names import RecordedNames
from holdfast.vfs.recorded.node import Node
from holdfast.vfs.recorded.node_registry import NodeRegistry

if TYPE_CHECKING:
    from holdfast.vfs.recorded.callers import LogNames, RecordingHost


class RecordedDirectory:
    """`FileSystem` of a directory."""

    def __init__(
        self,
        host: RecordingHost,
        kept: LogNames,
        *,
        node_type: type[Node] = Node,
        most: int = MOST_FILES,
        makes_devices: bool = True,
        is_read_only: bool = False,
    ) -> None:
        """At most ``most`` files, and as many directories, may be open at a time. Unless it ``makes_devices``, nodes
        for hardware cannot be made (EPERM). ``is_read_only`` is for servers, to refuse every change that the other side
        sends (EROFS).
        """
        self.is_read_only: Final = is_read_only
        self.objects = NodeRegistry(host.root_fd, host.hidden, node_type=node_type)
        self.credited = Credited()
        self.names = RecordedNames(host, self.objects, self.credited, makes_devices=makes_devices)
        self.files = RecordedFiles(host, self.objects, self.credited, most=most)
        self.attributes = RecordedAttributes(host, self.objects, self.files, kept)
        self.directories = RecordedDirectories(self.objects, self.files.share, most=most)

    def close(self) -> None:
        """Close all open descriptors; no method may be called any more."""
        self.files.close()
        self.directories.close()
        self.objects.close()
