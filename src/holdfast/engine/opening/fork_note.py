"""What a workspace's folder says of a fork that is mounted: of which checkpoint, and how it looks.

As long as the note is there, the workspace's content is that checkpoint with the changes of the upper layer, whether
it is mounted at the moment or not. The format is specified in ``docs/formats/mounted-fork.md``.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast.engine.opening.folder import FORK_NOTE
from holdfast.files.notes import NoteFile
from holdfast.model.named import NamedTuple
from holdfast.model.paths import display

if TYPE_CHECKING:
    from holdfast.bridge.overlay import Attributes

_FILE = NoteFile(
    name=FORK_NOTE,
    magic=b"HFMF 1 ",
    what="the note of a mounted fork",
    max_bytes=4096,
    advice="the fork's changes are in the directory `overlay` beside it: save what you need of them",
)


class ForkNote(NamedTuple):
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
    attributes: Attributes
    became: tuple[int, int] | None = None
    """Device and inode of the plain directory that has its content and is about to take its place."""


_KINDS = dict.fromkeys(("pin", "changed_at", "uid", "gid", "root_permissions", "permissions"), int) | dict.fromkeys(
    ("checkpoint", "root", "attributes"), str
)


def pinned_for(path: bytes) -> str:
    """What the pin of the fork with the directory ``path`` says that it is for."""
    return f"the fork {display(path)}"


def write(folder: bytes, note: ForkNote) -> None:
    """Put the note in place, atomic and durable; replaces an earlier one. Raises `StorageError`."""
    import json

    _FILE.write(folder, json.dumps(note._asdict()).encode() + b"\n")


def read(folder: bytes) -> ForkNote | None:
    """The note; None if the workspace is no fork by mount. Raises `FormatError` if it is damaged or too new."""
    if not os.path.lexists(os.path.join(folder, FORK_NOTE)):
        return None
    body = _FILE.read(folder)
    if body is None:
        return None
    try:
        return _decode(body)
    except (ValueError, TypeError, RecursionError) as error:
        raise _FILE.bad(folder, f"says something else than it should: {error}") from error


def remove(folder: bytes) -> None:
    """Take the note away: the workspace is a plain directory. Durable. Raises `StorageError`."""
    _FILE.remove(folder)


def has_become(note: ForkNote, path: bytes) -> bool:
    """True if the directory at ``path`` is the plain one that has the fork's content."""
    with suppress(OSError):
        about = os.lstat(path)
        return note.became == (about.st_dev, about.st_ino)
    return False


def _decode(body: bytes) -> ForkNote:
    """Raises `ValueError` that names the field, or `TypeError`."""
    import json

    fields: dict[str, Any] = dict(json.loads(body))
    found: dict[str, Any] = {name: fields.get(name) for name in _KINDS}
    for name, kind in _KINDS.items():
        if type(found[name]) is not kind:
            raise ValueError(f"{name} is not there, or of another kind")
    if found["attributes"] not in ("trusted", "user"):
        raise ValueError("attributes are others")
    bytes.fromhex(found["root"])
    match fields.get("became"):
        case None:
            return ForkNote(**found)
        case [int(device), int(inode)]:
            return ForkNote(**found, became=(device, inode))
        case _:
            raise ValueError("became is no pair of numbers")
