"""What a workspace's folder says of a fork that is mounted: of which checkpoint, and how it looks.

As long as the note is there, the workspace's content is that checkpoint with the changes of the upper layer, whether
it is mounted at the moment or not. The format is specified in ``docs/formats/mounted-fork.md``.
"""

from __future__ import annotations

import os
from typing import Literal

import msgspec

from holdfast.engine.folder import FORK_NOTE
from holdfast.files.notes import NoteFile

_FILE = NoteFile(
    name=FORK_NOTE,
    magic=b"HFMF 1 ",
    what="the note of a mounted fork",
    max_bytes=4096,
    advice="the fork's changes are in the directory `overlay` beside it: save what you need of them",
)


class ForkNote(msgspec.Struct, frozen=True, kw_only=True):
    """What a mounted fork is made of."""

    checkpoint: str
    """The one that it was made from."""
    root: str
    """The root page of its manifest, in hexadecimal digits."""
    pin: int
    """Of the catalog: keeps that."""
    changed_at: int
    """Of all that nobody has changed, in microseconds since 1970."""
    uid: int
    gid: int
    root_permissions: int
    permissions: int
    attributes: Literal["trusted", "user"]
    became: tuple[int, int] | None = None
    """Device and inode of the plain directory that has its content and is about to take its place."""


def write(folder: bytes, note: ForkNote) -> None:
    """Put the note in place, atomic and durable; replaces an earlier one. Raises `StorageError`."""
    _FILE.write(folder, msgspec.json.encode(note) + b"\n")


def read(folder: bytes) -> ForkNote | None:
    """The note; None if the workspace is no fork by mount. Raises `FormatError` if it is damaged or too new."""
    if not os.path.lexists(os.path.join(folder, FORK_NOTE)):
        return None
    body = _FILE.read(folder)
    if body is None:
        return None
    try:
        note = msgspec.json.decode(body, type=ForkNote)
        bytes.fromhex(note.root)
    except (msgspec.MsgspecError, ValueError) as error:
        raise _FILE.bad(folder, f"says something else than it should: {error}") from error
    return note


def remove(folder: bytes) -> None:
    """Take the note away: the workspace is a plain directory. Durable. Raises `StorageError`."""
    _FILE.remove(folder)
