"""Paths inside a workspace: bytes in the file system's own encoding, relative, with ``/`` between the parts.

Names that are not UTF-8 survive: `display` turns any path into text and `parse_display` turns that text back.
"""

from __future__ import annotations

from holdfast.model.errors import EscapeError, UsageError
from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

MAX_PATH_BYTES = 4095
MAX_NAME_BYTES = 255

_NEVER_STORED = frozenset((b".git", b".holdfast"))
UNDO_LOG_IN_TREE = b".holdfast/undo"
"""Where a workspace's undo log is, below its root, if the home is on another mount."""
COPIES_IN_TREE = b".holdfast/snapshots"
"""Where copies of a workspace that share its blocks are, below its root, if the home is on another file system."""
MERGED = b"merged"
"""The directory, in the home, on which the overlay snapshot provider mounts the merged tree."""
KEEPER_SOCKET = b"keeper"
"""In the directory of an undo log: where its keeper answers."""
TEMPORARY_PREFIX = b".holdfast.tmp-"
"""Names of the files that a restore writes before it renames them into place; never captured, removed by recovery."""
PROMOTION_PREFIX = b".holdfast-promotion-"
"""Prefix of the directories beside a production that hold a promotion's build, and the old tree while it is in use."""

_ESCAPE = r"\\(?:\\|x([0-9a-f]{2}))"


def check_path(path: bytes) -> bytes:
    """Return ``path`` if it may name a file of a workspace; raise `EscapeError` otherwise.

    Refused: empty, absolute, NUL, empty or ``.`` or ``..`` parts, parts over 255 bytes, paths over 4095 bytes, and any
    part that is ``.git`` or ``.holdfast`` (no checkpoint holds those).
    """
    if not path or len(path) > MAX_PATH_BYTES:
        raise EscapeError(f"refused path {display(path)[:80]!r}: it is empty or longer than {MAX_PATH_BYTES} bytes")
    if b"\0" in path:
        raise EscapeError(f"refused path {display(path)!r}: it holds a NUL")
    for part in path.split(b"/"):
        if part in (b"", b".", b".."):
            raise EscapeError(f"refused path {display(path)!r}: it is absolute or has an empty, '.' or '..' part")
        if len(part) > MAX_NAME_BYTES:
            raise EscapeError(f"refused path {display(path)[:80]!r}: a part is longer than {MAX_NAME_BYTES} bytes")
        if part in _NEVER_STORED:
            raise EscapeError(f"refused path {display(path)!r}: {display(part)} is never stored")
    return path


def display(path: bytes) -> str:
    r"""``path`` as text for people and JSON: a backslash becomes ``\\``, a byte that is not UTF-8 becomes ``\xHH``."""
    return path.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def parse_display(text: str) -> bytes:
    """The inverse of `display`; raises `UsageError` on a backslash that begins no escape."""
    import re

    out = bytearray()
    at = 0
    while (back := text.find("\\", at)) >= 0:
        out += text[at:back].encode("utf-8", "surrogateescape")
        match = re.compile(_ESCAPE).match(text, back)
        if match is None:
            raise UsageError(f"bad escape in path {text!r} at character {back}")
        out += bytes.fromhex(match[1]) if match[1] else b"\\"
        at = match.end()
    out += text[at:].encode("utf-8", "surrogateescape")
    return bytes(out)


def under_any(path: bytes, prefixes: Container[bytes]) -> bool:
    """True if ``path`` is `under` one of ``prefixes``. The cost depends on its depth and not on their number."""
    return b"" in prefixes or path in prefixes or any(above in prefixes for above in parents(path))


def parents(path: bytes) -> Iterator[bytes]:
    """The parent directories of ``path``, the nearest first, without the root."""
    at = path.rfind(b"/")
    while at > 0:
        yield path[:at]
        at = path.rfind(b"/", 0, at)


def under(path: bytes, prefix: bytes) -> bool:
    """True if ``path`` is ``prefix`` or lies below it; the empty prefix holds everything."""
    return not prefix or path == prefix or path.startswith(prefix + b"/")
