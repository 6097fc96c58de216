"""The layers of a fork that is mounted: where they are, and what its tree is made of."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from holdfast.engine.opening.home import FORK_LOCK, FORK_NOTE, LAYER, OVERLAY
from holdfast.files.linux.syscalls import birth_time
from holdfast.files.note_file import NoteFile
from holdfast.model.errors import RefusedError, StorageError, room_hint
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.ids import Hash
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.bridge.mount.overlayfs import Attributes
    from holdfast.files.scan.overlay_layer import UpperLayer
    from holdfast.model.entries import Entry
    from holdfast.store.store import Store

_TRIES: Final = 10
_PAUSE: Final = 0.02


class LowerState:
    """The checkpoint that a fork was made from, as its mount shows it (`holdfast.files.index.index_seed.LowerTree`)."""

    def __init__(self, store: Store, note: ForkNote) -> None:
        self._store = store
        self.root = Hash(bytes.fromhex(note.root))
        self.changed_ns = note.changed_at * 1000

    def entries(self, path: bytes) -> Iterator[tuple[bytes, Entry, int]]:
        """See `LowerTree.entries`."""
        from holdfast.bridge.mount.overlayfs import inode_of_lower
        from holdfast.store.manifests import manifest
        from holdfast.store.manifests.ordered_manifest import OrderedManifest
        from holdfast.vfs.checkpoint_tree import number_of_file

        pages = self._store.pages
        first = OrderedManifest(pages, self.root).find(path + b"/") if path else 0
        below = path + b"/" if path else b""
        position = first
        for at, entry in manifest.iterate(pages, self.root, path):
            if at.startswith(below):
                yield at, entry, inode_of_lower(number_of_file(position))
                position += 1

    def entry(self, path: bytes) -> Entry | None:
        """See `LowerTree.entry`."""
        from holdfast.store.manifests import manifest

        return manifest.get(self._store.pages, self.root, path)

    def read(self, path: bytes, limit: int) -> bytes | None:
        """See `LowerTree.read`."""
        from holdfast.engine.opening.context import read_saved

        return read_saved(self._store, self.root, path, limit)


def overlay_path(folder: bytes) -> bytes:
    """The directory of the layers, in the folder of the workspace."""
    return os.path.join(folder, OVERLAY)


def lower_path(folder: bytes) -> bytes:
    """Where the checkpoint is mounted, as long as it takes to mount the overlay."""
    return os.path.join(overlay_path(folder), b"lower")


def upper_path(folder: bytes) -> bytes:
    """The directory of the changes."""
    return os.path.join(overlay_path(folder), b"upper")


def work_path(folder: bytes) -> bytes:
    """Where overlayfs prepares changes."""
    return os.path.join(overlay_path(folder), b"work")


def make_layers(folder: bytes, note: ForkNote) -> None:
    """Make the directories of the layers where they are not there. Raises `StorageError`."""
    upper = upper_path(folder)
    try:
        for path in (os.path.dirname(upper), lower_path(folder), work_path(folder)):
            with suppress(FileExistsError):
                os.mkdir(path, 0o700)
        with suppress(FileExistsError):
            os.mkdir(upper, 0o700)
            os.chown(upper, note.uid, note.gid)
            os.chmod(upper, note.root_permissions)
    except OSError as error:
        raise StorageError(f"cannot make {display(upper)}: {error.strerror}", hint=room_hint(error)) from error


def merged_path(folder: bytes) -> bytes:
    """Where all of the fork is mounted while it is made a plain directory."""
    return os.path.join(overlay_path(folder), b"merged")


def fork_layer(store: Store, folder: bytes, note: ForkNote) -> UpperLayer:
    """The facts about the fork that a `LocalTree` needs."""
    from holdfast.files.scan.overlay_layer import UpperLayer

    return UpperLayer(upper_path(folder), note.attributes, LowerState(store, note), os.path.join(folder, LAYER))


def is_mounted(folder: bytes, directory: bytes) -> bool:
    """True if the fork whose workspace has this ``folder`` is mounted on ``directory``, served or not."""
    try:
        # The root of an overlay has the inode number and birth time of its upper layer, but another device.
        upper, seen = os.stat(upper_path(folder)), os.lstat(directory)
        return (
            stat.S_ISDIR(seen.st_mode)
            and upper.st_dev != seen.st_dev
            and upper.st_ino == seen.st_ino
            and birth_time(upper_path(folder)) == birth_time(directory)
        )
    except OSError:
        return False


def is_served(folder: bytes) -> bool:
    """True if a process serves the fork."""
    try:
        fd = os.open(os.path.join(folder, FORK_LOCK), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def refuse_unmounted(folder: bytes, directory: bytes) -> None:
    """Raise `RefusedError` unless the fork is mounted and served: otherwise the directory does not show its content."""
    shown = display(directory)
    if is_mounted(folder, directory):
        if is_served(folder):
            return
        message = f"the process that serves the fork {shown} was ended; the fork's changes are kept"
    else:
        message = f"the fork {shown} is not mounted; its changes are kept"
    raise RefusedError(message, hint=f"`holdfast mount {shown}` mounts it again", code="not_mounted")


def claim_layers(folder: bytes) -> int | None:
    """The lock of the process that serves the fork, as an open file to be kept; None if another process has it."""
    path = os.path.join(folder, FORK_LOCK)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if not left:
                os.close(fd)
                return None
            time.sleep(_PAUSE)  # it may be a process that just looks whether it is held
    with suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    return fd


# The note in a workspace's folder about a mounted fork: its checkpoint, and its mount.
#
# While the note exists, the workspace's content is that checkpoint with the changes of the upper layer, even while it
# is not mounted. The format is specified in ``docs/formats/mounted-fork.md``.

_FILE = NoteFile(
    name=FORK_NOTE,
    magic=b"HFMF 1 ",
    what="the note of a mounted fork",
    max_bytes=4096,
    advice="the fork's changes are in the directory `overlay` beside it: save what you need of them",
)


class ForkNote(NamedTuple):
    """The parts of a mounted fork."""

    checkpoint: str
    """The checkpoint that it was made from."""
    root: str
    """The root page of its manifest, in hexadecimal digits."""
    pin: int
    """Of the catalog: keeps that."""
    changed_at: int
    """Of all that is unchanged, in microseconds since 1970."""
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


def pin_reason(path: bytes) -> str:
    """The reason in the pin of the fork with the directory ``path``."""
    return f"the fork {display(path)}"


def write_note(folder: bytes, note: ForkNote) -> None:
    """Put the note in place, atomic and durable; replaces an earlier one. Raises `StorageError`."""
    import json

    _FILE.write(folder, json.dumps(note._asdict()).encode() + b"\n")


def read_note(folder: bytes) -> ForkNote | None:
    """The note; None if the workspace is no fork by mount. Raises `FormatError` if it is damaged or too new."""
    if not os.path.lexists(os.path.join(folder, FORK_NOTE)):
        return None
    body = _FILE.read(folder)
    if body is None:
        return None
    try:
        return _decode(body)
    except (ValueError, TypeError, RecursionError) as error:
        raise _FILE.damaged_error(folder, f"says something else than it should: {error}") from error


def remove_note(folder: bytes) -> None:
    """Take the note away: the workspace is a plain directory. Durable. Raises `StorageError`."""
    _FILE.remove(folder)


def is_plain_directory(note: ForkNote, path: bytes) -> bool:
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
