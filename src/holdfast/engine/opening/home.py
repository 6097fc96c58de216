"""The home: the private directory in which everything is kept."""

from __future__ import annotations

import os
from contextlib import suppress

from holdfast.model.errors import NotFoundError, RefusedError, StorageError, room_hint
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.ids import hash_bytes
from holdfast.model.paths import display
from holdfast.model.store_location import local_directory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.model.config.settings import Settings
    from holdfast.store.catalog_records import WorkspaceRow


def default_home(environ: Mapping[str, str]) -> bytes:
    """``$HOLDFAST_HOME``, else ``holdfast`` in the XDG data directory."""
    named = environ.get("HOLDFAST_HOME")
    if named:
        return os.path.abspath(os.fsencode(named))
    data = environ.get("XDG_DATA_HOME")
    if data and os.path.isabs(data):
        return os.path.join(os.fsencode(data), b"holdfast")
    user = environ.get("HOME")
    if not user:
        raise NotFoundError("no home directory is known", hint="set HOLDFAST_HOME, or give --home")
    return os.path.join(os.fsencode(user), b".local/share/holdfast")


def own_directories(home: bytes, settings: Settings) -> tuple[bytes, ...]:
    """The real paths of Holdfast's own files (I14): the home, and the objects if they are in a directory elsewhere. An
    undo log in the tree is additional: see `holdfast.engine.opening.undo_log`.
    """
    objects = local_directory(settings.store.url) if settings.store.url else None
    return tuple(os.path.realpath(path) for path in (home, objects) if path is not None)


def forks_directory(home: bytes, settings: Settings) -> bytes:
    """Where forks that snapshots are worked in lie, outside of the home: what runs supervised may not write there."""
    named = settings.snapshot.directory
    return os.path.abspath(os.path.expanduser(os.fsencode(named))) if named else home.rstrip(b"/") + b"-forks"


def make_private(path: bytes) -> None:
    """Make the directory ``path`` with mode 0700 if it is missing; refuse one that belongs to another user."""
    try:
        if not os.path.isdir(path):
            _make_durably(path)
        about = os.stat(path)
    except OSError as error:
        raise StorageError(
            f"cannot make {display(path)}: {error.strerror}",
            hint=room_hint(error) or "set HOLDFAST_HOME to a directory you may write",
        ) from error
    if about.st_uid != os.geteuid():
        raise RefusedError(
            f"{display(path)} belongs to user {about.st_uid}, not to you",
            hint="set HOLDFAST_HOME to a directory of your own",
        )
    if about.st_mode & 0o077:
        os.chmod(path, 0o700)


def _make_durably(path: bytes) -> None:
    """Make ``path`` and its missing parents, and sync each directory that got an entry (I4)."""
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        _make_durably(parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# A workspace's own folder of the home, and the names in it.

INDEX = b"index"
"""The stat index: docs/formats/mounted-fork.md."""
DIRECTORIES = b"directories"
"""The permissions of directories that were removed: docs/formats/directory-modes.md."""
LOCK = b"lock"
"""Held by operations that change the workspace or its history."""
ROOT_BIRTH = b"root"
"""When the root directory was born, in nanoseconds since 1970, as decimal digits and a line feed."""
DISK = b"disk"
"""Which file system the root directory is on: docs/formats/disk.md."""
OWN_MOUNT = b"mount"
"""Exists if the root directory is a mount of its own: docs/formats/disk.md."""
OPERATION = b"operation"
"""There while an operation changes the tree: docs/formats/operation.md."""
RESTORE_JOURNAL = b"restore"
"""Older versions wrote it during a restore: docs/formats/restore-journal.md."""
UNDO_NOTE = b"undoing"
"""Older versions wrote it while they reversed steps: docs/formats/undo-note.md."""
CREDENTIALS_REPORTED = b"told"
"""Credential files that were reported to the user: docs/formats/told.md."""
GIT_HEADS = b"heads"
"""The repository's HEAD at each saved state: docs/formats/git-heads.md."""
UNDO_LOG = b"undo"
"""The directory of the undo log: docs/formats/undo-log.md."""
FORK_NOTE = b"fork"
"""There if the workspace is a fork by mount: docs/formats/mounted-fork.md."""
FORK_LOCK = b"fork.lock"
"""Held by the process that serves such a fork, for as long as it lives; the file holds its pid."""
OVERLAY = b"overlay"
"""The directory of such a fork's layers."""
LAYER = b"layer"
"""The identity of its upper layer when the index was written: docs/formats/mounted-fork.md."""
SNAPSHOTS = b"snapshots"
"""The snapshot providers' directory, with one for each: docs/formats/snapshot-ledger.md."""
WATCH_SOCKET = b"watch.sock"
"""Where the watcher answers."""
WATCH_LOCK = b"watch.lock"
"""Held by the one watcher of the workspace for as long as it lives; the file holds its pid."""


def workspace_folder(home: bytes, workspace: WorkspaceRow) -> bytes:
    """The folder of a workspace in the home."""
    return os.path.join(home, b"workspaces", workspace.id.encode())


# Links from workspaces' paths to their ids, for commands that have not opened the catalog. Only the catalog knows for
# certain, and opening it takes most of the time that an early scan could use. So the home links ``places/{hash of the
# root's path}`` to each workspace's id (docs/formats/places.md). A link may be out of date: work that was started by it
# counts only if the catalog agrees.

_WORKSPACE_LINKS = b"places"
_ID_LETTERS = frozenset(b"0123456789abcdef")


def remember_folder(home: bytes, workspace: WorkspaceRow) -> None:
    """Note where the workspace is, for `remembered_folder`. Best effort."""
    link, name = _link_of(home, workspace.path), workspace.id.encode()
    try:
        if _read_link(link) == name:
            return
        os.makedirs(os.path.dirname(link), 0o700, exist_ok=True)
        new = link + b".new-" + name
        with suppress(FileNotFoundError):
            os.unlink(new)  # a process was killed here
        os.symlink(name, new)
        os.rename(new, link)
    except OSError:
        return


def remembered_folder(home: bytes, root: bytes) -> bytes | None:
    """The folder of the workspace that is noted to be at ``root``."""
    name = _read_link(_link_of(home, root))
    return os.path.join(home, b"workspaces", name) if name and _ID_LETTERS.issuperset(name) else None


def _link_of(home: bytes, root: bytes) -> bytes:
    return os.path.join(home, _WORKSPACE_LINKS, hash_bytes(root).hex().encode())


def _read_link(link: bytes) -> bytes | None:
    try:
        return os.readlink(link)
    except OSError:
        return None


# The logs of processes that go on by themselves, each in the folder of its workspace.

_MAX_LOG_BYTES = 1 << 20


def open_process_log(folder: bytes, name: bytes) -> int:
    """Open the log ``name`` of a process that goes on by itself: mode 0600, begun anew when it has grown beyond 1 MiB.

    Raises `StorageError`.
    """
    path = folder + b"/" + name
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if os.fstat(fd).st_size > _MAX_LOG_BYTES:
            os.ftruncate(fd, 0)
        return fd
    except OSError as error:
        raise StorageError(f"cannot open {display(path)}: {error.strerror}") from error


# Which directories may become a workspace: not unusual ones.

_SYSTEM = frozenset(
    b"/bin /boot /dev /etc /home /lib /lib32 /lib64 /media /mnt /opt /proc /root /run /sbin /snap /srv /sys /tmp /usr "
    b"/usr/bin /usr/lib /usr/local /usr/share /var /var/lib /var/log /var/tmp /Applications /Library /System "
    b"/Users".split()
)
_NEVER = (b"/proc", b"/sys", b"/dev")


def check_root(path: bytes, *, home: bytes, user_home: bytes | None, force: bool) -> bytes:
    """Return the real path of ``path`` if it may become a workspace.

    Refused unless ``force``: ``/``, the user's home directory or a parent of it, and system directories. Always
    refused: a path that is no directory, paths in ``/proc``, ``/sys`` or ``/dev``, and the Holdfast home with
    everything in it.
    """
    real = os.path.realpath(path)
    if not os.path.isdir(real):
        raise NotFoundError(f"{display(path)} is not a directory", hint="name a directory that exists")
    for kernel in _NEVER:
        if real == kernel or real.startswith(kernel + b"/"):
            raise RefusedError(f"{display(real)} belongs to the kernel, and cannot be a workspace")
    refuse_own(real, home)
    reason = _reason_against(real, user_home)
    if reason is not None and not force:
        raise RefusedError(
            f"{display(real)} is {reason}, an unusual workspace",
            hint="go to a project's directory; `holdfast init --force` allows this one",
        )
    return real


def refuse_own(real: bytes, home: bytes) -> None:
    """Raise `RefusedError` if the real path is the Holdfast home or lies in it (I14)."""
    holdfast = os.path.realpath(home)
    if real == holdfast or real.startswith(holdfast + b"/"):
        raise RefusedError(f"{display(real)} is Holdfast's own home; it never captures itself")


def _reason_against(real: bytes, user_home: bytes | None) -> str | None:
    if real == b"/":
        return "the root of the file system"
    if user_home is not None:
        mine = os.path.realpath(user_home)
        if real == mine:
            return "your home directory"
        if mine.startswith(real + b"/"):
            return "a directory that holds your home directory"
    if real in _SYSTEM:
        return "a system directory"
    return None
