"""Where a promotion is built: a private directory beside production, or in the home where the two cannot change places.

Its name has the promotion's id, 64 random bits, and it is noted in the catalog before it is made: what has such a name,
is a directory, private and the user's own, is surely ours.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from holdfast.engine.opening.undo_log import log_directory
from holdfast.files.directories.btrfs_subvolume import remove_subvolume
from holdfast.files.directories.directory_exchange import CANNOT, exchange, hindrance
from holdfast.files.directories.replication import remove_whole
from holdfast.files.directories.tree_stamps import FileStamp
from holdfast.files.linux import syscalls
from holdfast.files.linux.mount_table import mounts
from holdfast.files.protected_directories import find_protected
from holdfast.model.errors import FormatError, StorageError, room_hint
from holdfast.model.ids import hash_bytes
from holdfast.model.paths import PROMOTION_PREFIX, UNDO_LOG_IN_TREE, display, parse_display, under

if TYPE_CHECKING:
    from holdfast.engine.promotion._job_context import Work
    from holdfast.files.directories.tree_stamps import Stamps
    from holdfast.files.protected_directories import ProtectedDirectories

TREE = b"tree"
_GOING = b"going"


def container_of(work: Work) -> bytes:
    """Where it is built; empty if nothing was begun."""
    return parse_display(work.facts.container)


def tree_of(work: Work) -> bytes:
    """The tree that is built, in there; after the swap the one that was production."""
    return os.path.join(container_of(work), TREE)


def prepare(work: Work) -> None:
    """Decide where it is built, note that, and make the directory, empty. Raises `StorageError`."""
    remove(work)
    root = work.context.workspace.path
    facts = work.facts
    why = (
        facts.hindrance or hindrance(root, _mounted(), (os.path.join(root, UNDO_LOG_IN_TREE),)) or _captured(work, root)
    )
    beside = os.path.join(os.path.dirname(root), PROMOTION_PREFIX + work.row.id.encode())
    inside = os.path.join(work.folder, b"build")
    facts.exchange, facts.hindrance = why is None, why or ""
    facts.container = display(inside if why else beside)
    facts.built = None
    work.save()
    try:
        _make(container_of(work))
        if facts.exchange and (why := _try(beside)) is not None:
            os.rmdir(beside)
            facts.exchange, facts.hindrance, facts.container = False, why, display(inside)
            work.save()
            _make(inside)
    except OSError as error:
        raise StorageError(f"cannot make {facts.container}: {error.strerror}", hint=room_hint(error)) from error


def remove(work: Work) -> bool:
    """Remove what was built, if it is surely ours; True if nothing of it is left. Raises `StorageError`."""
    path = container_of(work)
    if not path:
        return True
    try:
        about = os.lstat(path)
    except FileNotFoundError:
        return True
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
        return False
    try:
        with suppress(FileNotFoundError):
            # What is removed in part is not to be taken for the old directory, to which somebody has done something.
            os.rename(os.path.join(path, TREE), os.path.join(path, _GOING))
        remove_subvolume(os.path.join(path, _GOING))
        remove_whole(path)
    except OSError as error:
        raise StorageError(f"cannot remove {display(path)}: {error.strerror}") from error
    return True


def own_in(work: Work, root: bytes) -> ProtectedDirectories:
    """What of Holdfast's lies in ``root``: it is of no tree."""
    return find_protected(own_paths(work, root))


def own_paths(work: Work, root: bytes) -> list[bytes]:
    """What `own_in` finds, by where it may lie."""
    from holdfast.engine.opening.home import own_directories

    directories = [*own_directories(work.opener.home, work.context.settings), os.path.join(root, UNDO_LOG_IN_TREE)]
    log = log_directory(work.context)
    return [*directories, *([log] if under(log, root) else [])]


def _captured(work: Work, root: bytes) -> str | None:
    """Whether what is made beside production would be captured there."""
    catalog = work.context.catalog
    above = os.path.dirname(root)
    while above != b"/":
        if catalog.find_workspace(above) is not None:
            return f"it lies in the workspace {display(above)}, which would capture what is built"
        above = os.path.dirname(above)
    return None


def _make(path: bytes) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    os.mkdir(path, 0o700)


def _try(container: bytes) -> str | None:
    """Why directories cannot be exchanged on this file system; None if they can."""
    one, other = (os.path.join(container, name) for name in (b"one", b"other"))
    os.mkdir(one)
    os.mkdir(other)
    try:
        exchange(one, other)
        return None
    except OSError as error:
        if error.errno not in CANNOT:
            raise
        return f"its file system cannot exchange directories ({errno.errorcode[error.errno]})"
    finally:
        os.rmdir(one)
        os.rmdir(other)


def _mounted() -> list[bytes]:
    return [mount.point for mount in mounts()]


def sync(path: bytes) -> None:
    """Make all of the file system that holds ``path`` durable. Raises `StorageError`."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        syscalls.syncfs(fd)
    except OSError as error:
        raise StorageError(f"cannot make {display(path)} durable: {error.strerror}", hint=room_hint(error)) from error
    finally:
        os.close(fd)


# What trees looked like at some moments of a promotion, kept in its folder: docs/formats/promotion.md.
#
# One that is lost or damaged makes the promotion begin anew; production does not depend on it.

BEFORE_COPY = b"before-copy"
"""Production before it was copied."""
AFTER_APPLY = b"after-apply"
"""The copy before anything was built in it."""
AT_SWAP = b"at-swap"
"""The old tree when it was swapped."""

_MAGIC = b"HFPS 1\n"
_HASH_BYTES = 16
_Rows = list[tuple[bytes, int, int, int, int, int, int, int]]


def save_stamps(work: Work, name: bytes, found: Stamps) -> None:
    """Keep them: atomic. Raises `StorageError`."""
    path = os.path.join(work.folder, name)
    body = msgspec.msgpack.encode([(where, *stamp) for where, stamp in found.items()])
    try:
        with open(path + b".new", "wb") as file:
            file.write(_MAGIC + hash_bytes(body) + body)
        os.rename(path + b".new", path)
    except OSError as error:
        raise StorageError(f"cannot write {display(path)}: {error.strerror}", hint=room_hint(error)) from error


def load_stamps(work: Work, name: bytes) -> Stamps:
    """What was kept. Raises `FormatError` if that is damaged or not there."""
    path = os.path.join(work.folder, name)
    try:
        with open(path, "rb") as file:
            data = file.read()
        head, body = data[: len(_MAGIC) + _HASH_BYTES], data[len(_MAGIC) + _HASH_BYTES :]
        if head != _MAGIC + hash_bytes(body):
            raise FormatError(f"{display(path)} is damaged, or of another version", hint="promote again")
        rows = msgspec.msgpack.decode(body, type=_Rows)
    except (OSError, msgspec.MsgspecError) as error:
        raise FormatError(f"{display(path)} cannot be read: {error}", hint="promote again") from error
    return {row[0]: FileStamp(*row[1:]) for row in rows}
