"""How a root that was moved is known again: inode numbers are used anew at once, the moment of birth is not."""

from __future__ import annotations

import os

from holdfast.engine.opening import disk, own_mount
from holdfast.engine.opening.folder import ROOT_BIRTH
from holdfast.files.gitconfig import read_regular
from holdfast.model.errors import EscapeError
from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.model.typed import TYPE_CHECKING
from holdfast.store.records import seen_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.store.catalog import Catalog
    from holdfast.store.records import Workspace

_LOG = Log(__name__)


def recognise(
    catalog: Catalog,
    folder_of: Callable[[Workspace], bytes],
    root: bytes,
    *,
    check: Callable[[Workspace], None] | None = None,
) -> Workspace | None:
    """The workspace at exactly ``root``, its record brought up to date if the directory was moved or made again.

    ``folder_of`` gives a workspace's folder in the home. Raises `EscapeError`, and notes nothing, if a part of ``root``
    is a link: what that leads to is not what was there. ``check`` is called with a workspace at whose path there is
    another directory than was noted, before this one is; what it raises leaves the note as it is.
    """
    try:
        about = _look_at(root)
    except OSError:
        return catalog.find_workspace(root)
    by_identity = catalog.find_workspace_by_identity(about.st_dev, about.st_ino)
    found = catalog.find_workspace(root)
    if (
        by_identity is not None
        and by_identity.path != root
        and not (found is not None and _is(found) and may_be(folder_of(found), root))
        and not _is(by_identity)
        and may_be(folder_of(by_identity), root)
    ):
        found = by_identity
    if found is None:
        return None
    noted = (found.path, found.device, found.inode) == (root, about.st_dev, about.st_ino)
    if not noted or not may_be(folder_of(found), root):
        if check is not None and found.path == root:
            check(found)
        other = catalog.move_workspace(found.id, root, about.st_dev, about.st_ino)
        if other is not None:
            _LOG.warning(
                "%s is another workspace than it was; the checkpoints of the one before (%s) are kept",
                display(root),
                other,
            )
        if found.path != root:
            own_mount.remember(folder_of(found), root)
        overlaid = found.path == root and own_mount.is_overlaid(folder_of(found), root)
        found = found._replace(path=root, device=about.st_dev, inode=about.st_ino)
        if overlaid:
            _remember_birth(folder_of(found), root)  # its disk is what the overlay is mounted over
        else:
            remember(folder_of(found), root)
    elif not disk.is_remembered(folder_of(found)):
        disk.remember(folder_of(found), root)  # it is older than this file
    return found


def is_as_noted(folder: bytes, workspace: Workspace) -> bool:
    """True if the directory that the record names is there, and still the one that it means, as far as can be told;
    ``folder`` is the workspace's own in the home. Notes nothing.
    """
    return _is(workspace) and may_be(folder, workspace.path)


def _is(workspace: Workspace) -> bool:
    """True if the directory that the record names is still the one that it means."""
    if workspace.path != seen_at(workspace.path):
        return False
    try:
        about = _look_at(workspace.path)
    except (OSError, EscapeError):
        return False
    return (about.st_dev, about.st_ino) == (workspace.device, workspace.inode)


def _look_at(root: bytes) -> os.stat_result:
    """What is at the real path ``root``, a directory. Raises `EscapeError` if a part of it is a link, and `OSError`."""
    from holdfast.files.rooted import open_root

    fd = open_root(root, readable=False)
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)


def remember(folder: bytes, root: bytes) -> None:
    """Note in the workspace's ``folder`` when the directory ``root`` was born, and on which file system it is. Best
    effort: see `may_be` and `disk.is_there`.
    """
    disk.remember(folder, root)
    _remember_birth(folder, root)


def _remember_birth(folder: bytes, root: bytes) -> None:
    born = _birth_time(root)
    path = os.path.join(folder, ROOT_BIRTH)
    try:
        if born is None:
            if os.path.lexists(path):
                os.unlink(path)
            return
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "wb") as file:
            file.write(b"%d\n" % born)
    except OSError:
        return


def may_be(folder: bytes, root: bytes) -> bool:
    """False if the directory ``root`` is surely not the one that was noted, though its inode number is the same.

    True where nothing was noted or the file system does not keep such times: then the number alone must do.
    """
    noted = _noted(folder)
    return noted is None or _birth_time(root) in (None, noted)


def is_copied(folder: bytes, workspace: Workspace) -> bool:
    """Whether even the directory above the root, which was there first, is younger than the root that was noted, and
    than the workspace: all of it was copied, or brought back from a backup, as it is with a home. (The root alone does
    not tell: a snapshot of btrfs is born with its source.)
    """
    noted, above = _noted(folder), _birth_time(os.path.dirname(workspace.path))
    return noted is not None and above is not None and above > max(noted, workspace.created_at * 1000)


def _noted(folder: bytes) -> int | None:
    try:
        return int(read_regular(os.path.join(folder, ROOT_BIRTH), 32) or b"")
    except (OSError, ValueError):
        return None


def _birth_time(path: bytes) -> int | None:
    from holdfast.files import kernel

    try:
        return kernel.birth_time(path)
    except OSError:
        return None
