"""What the index of a pack names. Source: gitformat-pack(5)."""

from __future__ import annotations

import os

from holdfast.model.errors import StorageError


def names_in(index: bytes, digits: int) -> set[str]:
    """The objects that a pack's index (version 2) names, by names of so many hexadecimal digits. Raises `StorageError`
    if it is no such index, `OSError`.
    """
    with open(index, "rb") as file:
        head = file.read(8 + 256 * 4)
        if head[:8] != b"\xfftOc\0\0\0\2" or len(head) < 8 + 256 * 4:
            raise StorageError(f"{os.fsdecode(index)} is no index of a pack", code="git_failed")
        size, count = digits // 2, int.from_bytes(head[-4:], "big")
        # (Each object has a checksum and a place beside its name; whoever wrote the file may have claimed any number.)
        if os.fstat(file.fileno()).st_size < len(head) + count * (size + 8) + 2 * size:
            raise StorageError(f"{os.fsdecode(index)} names more objects than it has room for", code="git_failed")
        names = file.read(count * size)
    return {names[at : at + size].hex() for at in range(0, len(names), size)}
