"""Images that are made of next to nothing, for tests that start no machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from holdfast.sandbox.images.debian_builder import Kernel
from holdfast.sandbox.images.manifest import NOTE, Image, encode_manifest
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


def lend_image(image: Image, home: bytes) -> Image:
    """The same image in the store of another home, by hard links where that is possible."""
    folder = os.path.join(home, b"images")
    for path in (image.kernel, image.initrd, image.root):
        target = os.path.join(folder, b".files", os.path.basename(path))
        os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
        if not os.path.exists(target):
            try:
                os.link(path, target)
            except OSError:
                shutil.copyfile(path, target)
    os.makedirs(os.path.join(folder, image.name.encode()), 0o700, exist_ok=True)
    # (After them: a file that was changed later than the manifest is read whole each time.)
    NOTE.write(os.path.join(folder, image.name.encode()), encode_manifest(image.manifest))
    return ImageStore(home).find(image.name)
