"""Images that are made of next to nothing, for tests that start no machine."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.sandbox.images.debian_builder import Kernel
from holdfast.sandbox.images.manifest import Image
from holdfast.sandbox.images.store import ImageStore, _Parts


def put_image(store: ImageStore, name: str, *, root: bytes = b"root", kernel: bytes = b"kernel") -> Image:
    """An image of these bytes, put in place as one that was built."""
    with store._making() as work:

        def part(file: str, content: bytes) -> bytes:
            path = Path(os.fsdecode(work)) / file
            path.write_bytes(content)
            return os.fsencode(path)

        made = Kernel(
            "6.1", "linux-image-6.1=1", "0" * 64, part("kernel", kernel), part("initrd", b"initrd"), ("virtio",)
        )
        return store._publish(
            name, _Parts(made, part("root", root)), source="suite http://mirror", python="/usr/bin/python3"
        )


def files_of(home: bytes) -> list[str]:
    """All that is in the directory of images, but for its lock."""
    top = Path(os.fsdecode(home)) / "images"
    return sorted(str(path.relative_to(top)) for path in top.rglob("*") if path.name != ".lock")
