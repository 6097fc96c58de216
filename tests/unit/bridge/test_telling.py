"""What the kernel is told, by a device that is a pipe here."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from holdfast.bridge.objects import Objects
from holdfast.bridge.telling import Teller
from holdfast.wire.fuse import notifications
from holdfast.wire.fuse.kernel import ROOT

_HEADER = struct.Struct("=IiQ")


def test_what_is_missing_is_told_of_though_everything_is_told_at_the_same_time(tmp_path: Path) -> None:
    """Nobody but who brings a name back knows of it."""
    root = os.open(tmp_path, os.O_RDONLY)
    out, device = os.pipe2(os.O_NONBLOCK)
    objects = Objects(root, ())
    teller = Teller(device, root, objects)
    teller.changed(b"back")
    teller.everything()  # before the thread has looked at the first
    teller.start()
    assert teller.settle(20)
    assert teller.stop()
    told = os.read(out, 1 << 16)
    names: list[bytes] = []
    while told:
        length, _, _ = _HEADER.unpack_from(told)
        if told[:length].endswith(b"back\0"):
            assert int.from_bytes(told[16:24], "little") == ROOT
            names.append(b"back")
        told = told[length:]
    assert names == [b"back"]
    objects.close()
    for fd in (root, out, device):
        os.close(fd)


def test_a_listing_is_forgotten_when_a_name_of_it_changes(tmp_path: Path) -> None:
    """The attributes alone would not do it, where the time of modification is set back."""
    root = os.open(tmp_path, os.O_RDONLY)
    out, device = os.pipe2(os.O_NONBLOCK)
    objects = Objects(root, ())
    teller = Teller(device, root, objects)
    teller.changed(b"gone")
    teller.start()
    assert teller.settle(20)
    assert teller.stop()
    assert notifications.invalidate_inode(ROOT, 0, 0) in os.read(out, 1 << 16)
    objects.close()
    for fd in (root, out, device):
        os.close(fd)
