"""The virtio file system device (virtio 1.2, section 5.11): its queues, and its configuration.

A request is one chain: the readable part is a FUSE request, whole, the writable part the room for its reply.
"""

from __future__ import annotations

import struct
from typing import Final

from holdfast.model.errors import UsageError

HIGH_PRIORITY_QUEUE: Final = 0
"""FORGET, BATCH_FORGET and INTERRUPT: they need no room for a reply, and do not wait behind others."""
FIRST_REQUEST_QUEUE: Final = 1
TAG_BYTES: Final = 36
_CONFIG: Final = struct.Struct("<36sI")


def encode_config(tag: str, request_queues: int) -> bytes:
    """The configuration space: the ``tag`` that the guest mounts by, and how many request queues there are.

    Raises `UsageError` for a tag that is empty or longer than 36 bytes of UTF-8.
    """
    encoded = tag.encode()
    if not 0 < len(encoded) <= TAG_BYTES or "\0" in tag:
        raise UsageError(f"tag {tag!r}: 1 to {TAG_BYTES} bytes are needed")
    return _CONFIG.pack(encoded, request_queues)
