"""The place of a promotion's build: a private directory beside production, or in the home if the two cannot be swapped.

Its name has the promotion's id, 64 random bits, and the catalog has it before it is made. So a private directory with
such a name that the user owns is surely ours.
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
from holdfast.model.decoders import msgpack_decoder
from holdfast.model.errors import FormatError, StorageError, room_hint
from holdfast.model.ids import hash_bytes
from holdfast.model.paths import PROMOTION_PREFIX, UNDO_LOG_IN_TREE, display, parse_display, under

if TYPE_CHECKING:
    from holdfast.engine.promotion._job_context import PromotionJob
    from holdfast.files.directories.tree_stamps import Stamps
    from holdfast.files.protected_directories import ProtectedDirectories

TREE = b"tree"
_HOME = b"home"
_GOING = b"going"


def container_of(job: PromotionJob) -> bytes:
    """Where it is built; empty if nothing was begun."""
    return parse_display(job.facts.container)


def tree_of(job: PromotionJob) -> bytes:
    """The tree being built; after the swap the old production."""
    return os.path.join(container_of(job), TREE)


def home_of(job: PromotionJob) -> bytes:
    """The directory that isolated commands see in the place of the user's home: for caches and other files."""
    return os.path.join(container_of(job), _HOME)


def remove_home(job: PromotionJob) -> None:
    """Remove that home when no command needs it any more. If that fails, it is removed with the rest."""
    if container_of(job):
        with suppress(OSError):
            remove_whole(home_of(job))


def prepare(job: PromotionJob) -> None:
    """Decide where it is built, note that, and make the directory, empty. Raises `StorageError`."""
    remove(job)
    root = job.context.workspace.path
    facts = job.facts
    why = (
        facts.hindrance or hindrance(root, _mounted(), (os.path.join(root, UNDO_LOG_IN_TREE),)) or _captured(job, root)
    )
    beside = os.path.join(os.path.dirname(root), PROMOTION_PREFIX + job.row.id.encode())
    inside = os.path.join(job.folder, b"build")
    facts.exchange, facts.hindrance = why is None, why or ""
    facts.container = display(inside if why else beside)
    facts.built = None
    job.save()
    try:
        _make(container_of(job))
        if facts.exchange and (why := _exchange_hindrance(beside)) is not None:
            os.rmdir(beside)
            facts.exchange, facts.hindrance, facts.container = False, why, display(inside)
            job.save()
            _make(inside)
    except OSError as error:
        raise StorageError(f"cannot make {facts.container}: {error.strerror}", hint=room_hint(error)) from error


def remove(job: PromotionJob) -> bool:
    """Remove the build, if it is surely ours; True if it is completely gone. Raises `StorageError`."""
    path = container_of(job)
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
            # A partly removed tree must not be mistaken for the old production with another process's changes.
            os.rename(os.path.join(path, TREE), os.path.join(path, _GOING))
        remove_subvolume(os.path.join(path, _GOING))
        remove_whole(path)
    except OSError as error:
        raise StorageError(f"cannot remove {display(path)}: {error.strerror}") from error
    return True


def own_entries(job: PromotionJob, root: bytes) -> ProtectedDirectories:
    """Holdfast's own files in ``root``, which belong to no tree."""
    return find_protected(own_entry_paths(job, root))


def own_entry_paths(job: PromotionJob, root: bytes) -> list[bytes]:
    """The paths that `own_entries` finds, at their possible places."""
    from holdfast.engine.opening.home import own_directories

    directories = [*own_directories(job.opener.home, job.context.settings), os.path.join(root, UNDO_LOG_IN_TREE)]
    log = log_directory(job.context)
    return [*directories, *([log] if under(log, root) else [])]


def _captured(job: PromotionJob, root: bytes) -> str | None:
    """Whether a directory beside production would be captured there."""
    catalog = job.context.catalog
    above = os.path.dirname(root)
    while above != b"/":
        if catalog.find_workspace(above) is not None:
            return f"it lies in the workspace {display(above)}, which would capture the build"
        above = os.path.dirname(above)
    return None


def _make(path: bytes) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    os.mkdir(path, 0o700)


def _exchange_hindrance(container: bytes) -> str | None:
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


BEFORE_COPY = b"before-copy"
"""Production before it was copied."""
AFTER_APPLY = b"after-apply"
"""The copy before anything was built in it."""
AT_SWAP = b"at-swap"
"""The old tree when it was swapped."""

_MAGIC = b"HFPS 1\n"
_HASH_BYTES = 16
_Rows = list[tuple[bytes, int, int, int, int, int, int, int]]


def save_stamps(job: PromotionJob, name: bytes, found: Stamps) -> None:
    """Keep what a tree looked like, in the promotion's folder: docs/formats/promotion.md. Atomic. A file that is lost
    or damaged makes the promotion begin anew; production does not depend on it. Raises `StorageError`.
    """
    path = os.path.join(job.folder, name)
    body = msgspec.msgpack.encode([(where, *stamp) for where, stamp in found.items()])
    try:
        with open(path + b".new", "wb") as file:
            file.write(_MAGIC + hash_bytes(body) + body)
        os.rename(path + b".new", path)
    except OSError as error:
        raise StorageError(f"cannot write {display(path)}: {error.strerror}", hint=room_hint(error)) from error


def load_stamps(job: PromotionJob, name: bytes) -> Stamps:
    """The saved stamps. Raises `FormatError` if they are damaged or missing."""
    path = os.path.join(job.folder, name)
    try:
        with open(path, "rb") as file:
            data = file.read()
        head, body = data[: len(_MAGIC) + _HASH_BYTES], data[len(_MAGIC) + _HASH_BYTES :]
        if head != _MAGIC + hash_bytes(body):
            raise FormatError(f"{display(path)} is damaged, or of another version", hint="promote again")
        rows = msgpack_decoder(_Rows).decode(body)
    except (OSError, msgspec.MsgspecError) as error:
        raise FormatError(f"{display(path)} cannot be read: {error}", hint="promote again") from error
    return {row[0]: FileStamp(*row[1:]) for row in rows}
