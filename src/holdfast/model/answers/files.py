"""Answers about the contents of a directory, and of a file."""

from __future__ import annotations

import binascii
from codecs import getincrementaldecoder

from holdfast.model.fast_typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from typing import Annotated, Any

    from holdfast.model.answers.words import ContentHash, EntryKind, NanoTime, OctalPermissions, Path


class Entry(TypedDict):
    """An entry of a directory."""

    name: Path
    kind: EntryKind
    size: int
    mode: OctalPermissions
    mtime: NanoTime
    target: Path | None


def part_text(read: Any) -> str | None:
    """The whole characters of a part of a file; None where it is not UTF-8."""
    return _as_text(read)[1]


def part_base64(read: Any) -> str | None:
    """The part in base64 where it is not UTF-8."""
    content, text = _as_text(read)
    return None if text is not None else binascii.b2a_base64(content, newline=False).decode("ascii")


def part_end(read: Any) -> int | None:
    """Where the next part begins: behind the last whole character; None at the end of the file."""
    content, _ = _as_text(read)
    end = read.offset + len(content)
    return None if end >= read.size or not content else end


def _as_text(read: Any) -> tuple[bytes, str | None]:
    """So much of the content as makes whole characters, and those; or all of it, and None."""
    decoder = getincrementaldecoder("utf-8")()
    try:
        text = decoder.decode(read.content, final=read.offset + len(read.content) >= read.size)
    except UnicodeDecodeError:
        return read.content, None
    content = read.content[: len(read.content) - len(decoder.getstate()[0])]
    return (content, text) if content or not read.content else (read.content, None)


class Part(TypedDict):
    """A part of a file."""

    path: Path
    offset: int
    size: int
    hash: ContentHash | None
    data: Annotated[str | None, part_text]
    data_base64: Annotated[str | None, part_base64]
    next_offset: Annotated[int | None, part_end]
