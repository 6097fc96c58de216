"""Directories and files as JSON objects; see `holdfast.engine.encoding.encoding`."""

from __future__ import annotations

import base64
from codecs import getincrementaldecoder
from typing import TYPE_CHECKING

from holdfast.model.clock import isoformat
from holdfast.model.ids import format_hash
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.diffs.browsing import Item
    from holdfast.engine.results import objects
    from holdfast.engine.results.results import Read


def entry(value: Item) -> objects.Entry:
    """What a directory holds."""
    return {
        "name": display(value.name),
        "kind": value.kind,
        "size": value.size,
        "mode": f"{value.mode:04o}",
        "mtime": isoformat(value.mtime // 1000),
        "target": None if value.target is None else display(value.target),
    }


def listing(path: bytes, items: Sequence[Item]) -> objects.Listing:
    """A directory, or a part of it."""
    return {"path": display(path), "entries": [entry(each) for each in items]}


def read(path: bytes, value: Read) -> objects.Part:
    """A part of a file: ``data`` is text, or ``data_base64`` bytes where it is not UTF-8; the other one is null.

    A character that the part ends in the middle of is left for the next one. ``next_offset`` is null at the end.
    """
    content, text = _as_text(value)
    end = value.offset + len(content)
    return {
        "path": display(path),
        "offset": value.offset,
        "size": value.size,
        "hash": None if value.hash is None else format_hash(value.hash),
        "data": text,
        "data_base64": None if text is not None else base64.b64encode(content).decode("ascii"),
        "next_offset": None if end >= value.size or not content else end,
    }


def _as_text(value: Read) -> tuple[bytes, str | None]:
    """So much of the content as makes whole characters, and those; or all of it, and None."""
    decoder = getincrementaldecoder("utf-8")()
    try:
        text = decoder.decode(value.content, final=value.offset + len(value.content) >= value.size)
    except UnicodeDecodeError:
        return value.content, None
    content = value.content[: len(value.content) - len(decoder.getstate()[0])]
    return (content, text) if content or not value.content else (value.content, None)
