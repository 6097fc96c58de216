"""The configuration space of a file system device, held against ``struct virtio_fs_config``."""

from __future__ import annotations

import pytest

from holdfast.model.errors import UsageError
from holdfast.wire.virtio.filesystem_device import encode_config


def test_the_tag_is_padded_and_the_number_little_endian() -> None:
    assert encode_config("work", 2) == b"work" + bytes(32) + b"\2\0\0\0"
    assert encode_config("é" * 18, 1) == "é".encode() * 18 + b"\1\0\0\0"


@pytest.mark.parametrize("tag", ["", "a" * 37, "é" * 19, "a\0b"])
def test_a_tag_that_no_guest_can_mount(tag: str) -> None:
    with pytest.raises(UsageError, match="tag"):
        encode_config(tag, 1)
