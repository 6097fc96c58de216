"""What a store of objects borrows from: the files ``objects/info/alternates``, read and written.

Source: gitrepository-layout(5).
"""

from __future__ import annotations

import os
import re

from holdfast.files.gitconfig import MAX_RULES_BYTES, read_regular

_MOST = 200


def behind(*stores: bytes) -> list[bytes]:
    """The directories ``stores``, and all that they borrow from, by their real paths: what lies deepest first. Git
    itself follows no more than five in a row, as it would be in a fork of a fork of a fork.
    """
    found: dict[bytes, None] = {}
    begun: set[bytes] = set()
    for path in stores:
        _follow(os.path.realpath(path), found, begun)
    return list(found)


def alternates(*borrowed: bytes) -> bytes:
    """What has a repository borrow objects from the directories ``borrowed``, and from all that those borrow from."""
    return b"".join(alternate(path) + b"\n" for path in behind(*borrowed))


def alternate(path: bytes, also: bytes = b"") -> bytes:
    """A path as a line of ``alternates``, quoted as C has it where needed, or for one of the bytes in ``also``."""
    if path.isascii() and not any(byte < 0x20 or byte in b'"\\#' + also for byte in path):
        return path
    shown = b"".join(
        b"\\%03o" % byte if byte < 0x20 or byte > 0x7E else b"\\" + bytes([byte]) if byte in b'"\\' else bytes([byte])
        for byte in path
    )
    return b'"' + shown + b'"'


def _follow(objects: bytes, found: dict[bytes, None], begun: set[bytes]) -> None:
    if objects in begun or len(begun) >= _MOST:
        return
    begun.add(objects)
    text = read_regular(os.path.join(objects, b"info/alternates"), MAX_RULES_BYTES) or b""
    for line in text.splitlines():
        if line.startswith(b'"') and line.endswith(b'"'):
            line = re.sub(rb"\\([0-7]{3}|.)", _meant, line[1:-1])
        if line and not line.startswith(b"#"):
            _follow(os.path.realpath(os.path.join(objects, line)), found, begun)
    found[objects] = None


def _meant(escaped: re.Match[bytes]) -> bytes:
    text = escaped[1]
    return bytes([int(text, 8) & 0xFF]) if len(text) == 3 else text
