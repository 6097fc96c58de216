"""The home: the private directory in which everything is kept."""

from __future__ import annotations

import os

from holdfast.model.errors import NotFoundError, RefusedError, StorageError, room_hint
from holdfast.model.locations import local_directory
from holdfast.model.paths import display
from holdfast.model.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.model.config import Settings


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
    """The real paths of what is Holdfast's own, wherever it lies (I14): the home, and the objects where they are in a
    directory elsewhere. (An undo log in the tree comes on top: see `holdfast.engine.opening.undo_log`.)
    """
    objects = local_directory(settings.store.url) if settings.store.url else None
    return tuple(os.path.realpath(path) for path in (home, objects) if path is not None)


def forks_directory(home: bytes, settings: Settings) -> bytes:
    """Where forks that snapshots are worked in lie, outside of the home: what runs supervised may not write there."""
    named = settings.snapshot.directory
    return os.path.abspath(os.path.expanduser(os.fsencode(named))) if named else home.rstrip(b"/") + b"-forks"


def make_private(path: bytes) -> None:
    """Make the directory ``path`` with mode 0700 if there is none; refuse one that belongs to somebody else."""
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
    """Make ``path`` and what is missing above it, and sync each directory that got an entry (I4)."""
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
