"""What the kernel is told, by a device that is a pipe here."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

import pytest

from holdfast.bridge.fuse._cache_invalidation import CacheInvalidator
from holdfast.bridge.server.device_transport import DeviceTransport
from holdfast.vfs.recorded.node_registry import NodeRegistry
from holdfast.wire.fuse import notifications
from holdfast.wire.fuse.protocol_constants import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_HEADER = struct.Struct("=IiQ")


class Kernel:
    """Whom a teller tells."""

    def __init__(self, root: int, objects: NodeRegistry) -> None:
        self._hears, self._told = os.pipe2(os.O_NONBLOCK)
        self.teller = CacheInvalidator(DeviceTransport(self._told).notify, root, objects)

    def told(self) -> bytes:
        """All that it is told of what the teller was told before."""
        self.teller.start()
        assert self.teller.settle(20)
        assert self.teller.stop()
        return os.read(self._hears, 1 << 16)

    def close(self) -> None:
        for fd in (self._hears, self._told):
            os.close(fd)


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    root = os.open(tmp_path, os.O_RDONLY)
    objects = NodeRegistry(root, ())
    found = Kernel(root, objects)
    yield found
    found.close()
    objects.close()
    os.close(root)


def test_what_is_missing_is_told_of_though_everything_is_told_at_the_same_time(kernel: Kernel) -> None:
    """Nobody but who brings a name back knows of it."""
    kernel.teller.note_changed(b"back")
    kernel.teller.invalidate_all()  # before the thread has looked at the first
    told = kernel.told()
    names: list[bytes] = []
    while told:
        length, _, _ = _HEADER.unpack_from(told)
        if told[:length].endswith(b"back\0"):
            assert int.from_bytes(told[16:24], "little") == ROOT
            names.append(b"back")
        told = told[length:]
    assert names == [b"back"]


def test_a_listing_is_forgotten_when_a_name_of_it_changes(kernel: Kernel) -> None:
    """The attributes alone would not do it, where the time of modification is set back."""
    kernel.teller.note_changed(b"gone")
    assert notifications.invalidate_inode(ROOT, 0, 0) in kernel.told()
