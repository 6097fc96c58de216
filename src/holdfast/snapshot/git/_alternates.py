"""The stores that a store of objects borrows from: the files ``objects/info/alternates``, read and written.

Source: gitrepository-layout(5).
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Protocol

from holdfast.files.git.configuration import MAX_RULES_BYTES
from holdfast.model.errors import RefusedError
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST = 200
_QUOTED = re.compile(rb'"((?:[^"\\]|\\(?:[abfnrtv"\\]|[0-3][0-7]{2}))*+)"')
_ESCAPED = re.compile(rb"\\([0-3][0-7]{2}|[abfnrtv\"\\])")
_LETTERS = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


class ReadFile(Protocol):
    """How files of a repository are read."""

    def __call__(self, path: bytes, limit: int) -> bytes | None:
        """At most ``limit`` bytes of the regular file ``path``; None if it is missing. Never blocks. Raises
        `RefusedError` for a file that may not be read, `OSError`.
        """
        ...


def stores_behind(store: bytes, *, read: ReadFile) -> list[bytes]:
    """The real paths of the directory ``store``, and of all that it borrows from, deepest first. Git itself follows no
    more than five in a row, and a fork of a fork of a fork could have more. Raises `RefusedError` (``git_objects``) if
    there are too many to follow, and the errors of ``read``.
    """
    found: dict[bytes, None] = {}
    _follow(os.path.realpath(store), read, found, set())
    return list(found)


def alternate(path: bytes, also: bytes = b"") -> bytes:
    """A path as a line of ``alternates``, quoted as C has it where needed, or for one of the bytes in ``also``."""
    if path.isascii() and not any(byte < 0x20 or byte in b'"\\#' + also for byte in path):
        return path
    shown = b"".join(
        b"\\%03o" % byte if byte < 0x20 or byte > 0x7E else b"\\" + bytes([byte]) if byte in b'"\\' else bytes([byte])
        for byte in path
    )
    return b'"' + shown + b'"'


def _follow(objects: bytes, read: ReadFile, found: dict[bytes, None], begun: set[bytes]) -> None:
    if objects in begun:
        return
    begun.add(objects)
    text = read(path := os.path.join(objects, b"info/alternates"), MAX_RULES_BYTES + 1) or b""
    if len(begun) > _MOST or len(text) > MAX_RULES_BYTES:
        raise RefusedError(
            f"{display(path)} is one of more than {_MOST}, or longer than {MAX_RULES_BYTES} bytes",
            hint="have the repository borrow from less; or use another provider of snapshots",
            code="git_objects",
        )
    for line in _paths_in(text):
        # Git resolves `..` before it follows links.
        _follow(os.path.realpath(os.path.normpath(os.path.join(objects, line))), read, found, begun)
    found[objects] = None


def _paths_in(text: bytes) -> Iterator[bytes]:
    """The paths in a file of alternates, parsed as Git does: a quoted one may span several lines, and the text after it
    is another path.
    """
    text, at = text.partition(b"\0")[0], 0
    while at < len(text):
        quoted = _QUOTED.match(text, at)
        after = text.find(b"\n", at)
        end = quoted.end() if quoted else after if after >= 0 else len(text)
        path = _ESCAPED.sub(_meant, quoted[1]) if quoted else text[at:end]
        if path.partition(b"\0")[0] and (quoted or not path.startswith(b"#")):
            yield path.partition(b"\0")[0]
        at = end + 1


def _meant(escaped: re.Match[bytes]) -> bytes:
    text = escaped[1]
    return bytes([int(text, 8)]) if len(text) == 3 else _LETTERS.get(text, text)
