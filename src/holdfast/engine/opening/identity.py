"""Recognising a root that was moved, mounted over or removed, and refusing a wrong directory in its place."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from holdfast.engine.opening.home import DISK, OWN_MOUNT, ROOT_BIRTH
from holdfast.files.linux.regular_file import read_regular
from holdfast.model.errors import EscapeError, RefusedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.log import Log
from holdfast.model.paths import MERGED, display
from holdfast.store.catalog_records import last_seen_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.opening.context import Context
    from holdfast.store.catalog.catalog import Catalog
    from holdfast.store.catalog_records import WorkspaceRow


_LOG = Log(__name__)


# Whether a workspace's file system is present: a device number alone is reused soon.
#
# New disks get the numbers of removed ones, and overlays, tmpfs and btrfs take theirs from a common pool. So this
# identity is recorded as well: the UUID of the file system, its ``f_fsid``, and the birth time of its topmost visible
# directory. Sources: statvfs(3), statx(2), ioctl FS_IOC_GETFSUUID (Linux 6.9).

_GETFSUUID = 0x80111500
_MAX_BYTES = 128
_UNKNOWN = "-"


class Disk(NamedTuple):
    """Identifies a file system, as text; ``-`` for values that this system or file system does not provide."""

    uuid: str
    fsid: str
    """Of some file systems just the device number again: it never proves that two are one."""
    born: str


def remember_disk(folder: bytes, root: bytes) -> None:
    """Record in the workspace's ``folder`` the file system of the directory ``root``. Best effort: without a record the
    file system counts as absent.
    """
    try:
        text = " ".join(_disk_at(root)) + "\n"
        fd = os.open(
            os.path.join(folder, DISK), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        with open(fd, "w", encoding="ascii") as file:
            file.write(text)
    except OSError:
        return


def is_disk_remembered(folder: bytes) -> bool:
    """True if the workspace's ``folder`` has such a record."""
    return os.path.lexists(os.path.join(folder, DISK))


def is_disk_there(folder: bytes, directory: bytes) -> bool:
    """True if ``directory`` is on the file system that was noted in the workspace's ``folder``; False in any doubt."""
    try:
        text = read_regular(os.path.join(folder, DISK), _MAX_BYTES)
        noted = Disk(*(text or b"").decode("ascii").removesuffix("\n").split(" "))
        now = _disk_at(directory)
    except (OSError, ValueError, TypeError):
        return False
    alike = [one == other for one, other in zip(noted, now, strict=True) if _UNKNOWN not in (one, other)]
    proven = _UNKNOWN not in (noted.uuid, now.uuid) or _UNKNOWN not in (noted.born, now.born)
    return proven and all(alike)


def _disk_at(directory: bytes) -> Disk:
    from holdfast.files.linux import syscalls

    fsid = os.statvfs(directory).f_fsid
    born = syscalls.birth_time(_topmost(directory))
    return Disk(_uuid(directory), f"{fsid:x}" if fsid else _UNKNOWN, _UNKNOWN if born is None else str(born))


def _topmost(directory: bytes) -> bytes:
    """The highest directory above ``directory`` that is on the same file system."""
    device = os.stat(directory).st_dev
    while (above := os.path.dirname(directory)) != directory and os.stat(above).st_dev == device:
        directory = above
    return directory


def _uuid(directory: bytes) -> str:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = fcntl.ioctl(fd, _GETFSUUID, bytes(17))
    except OSError:
        return _UNKNOWN
    finally:
        os.close(fd)
    uuid = found[1 : 1 + min(found[0], 16)]
    return uuid.hex() if any(uuid) else _UNKNOWN


# Whether a workspace is a mount of its own, a disk or a container's volume: then anything mounted there is it.
#
# Only commands with which a user names the workspace record it. Other visits do not: one before the disk is mounted, as
# after a restart, would make the disk a foreign one.


def remember_own_mount(folder: bytes, root: bytes) -> None:
    """Record in the workspace's ``folder`` whether the real path ``root`` is a mount point. Best effort: without a
    record the workspace counts as a directory of the surrounding file system.
    """
    from holdfast.files.directories.removal_obstacles import mounted_at

    path = os.path.join(folder, OWN_MOUNT)
    with suppress(OSError):
        if mounted_at(root):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        elif os.path.lexists(path):
            os.unlink(path)


def is_own_mount_remembered(folder: bytes) -> bool:
    """True if the workspace with this ``folder`` was recorded as a mount of its own."""
    return os.path.lexists(os.path.join(folder, OWN_MOUNT))


def is_overlaid(folder: bytes, root: bytes) -> bool:
    """True if an overlay is mounted exactly at the real path ``root``, over a workspace that is no mount of its own."""
    from holdfast.bridge.mount.overlayfs import FILE_SYSTEM
    from holdfast.files.directories.removal_obstacles import type_mounted_at

    try:
        return type_mounted_at(root) == FILE_SYSTEM and not is_own_mount_remembered(folder)
    except OSError:
        return False


def recognise_workspace(
    catalog: Catalog,
    folder_of: Callable[[WorkspaceRow], bytes],
    root: bytes,
    *,
    check: Callable[[WorkspaceRow], None] | None = None,
) -> WorkspaceRow | None:
    """The workspace at exactly ``root``, its record updated if the directory was moved or made again.

    ``folder_of`` gives a workspace's folder in the home. Raises `EscapeError` and records nothing if a component of
    ``root`` is a link, which leads to another directory. ``check`` is called with a workspace whose path has another
    directory than recorded, before that is recorded; its errors leave the record unchanged.
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
        and not (found is not None and _is_same_directory(found) and could_be(folder_of(found), root))
        and not _is_same_directory(by_identity)
        and could_be(folder_of(by_identity), root)
    ):
        found = by_identity
    if found is None:
        return None
    noted = (found.path, found.device, found.inode) == (root, about.st_dev, about.st_ino)
    if not noted or not could_be(folder_of(found), root):
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
            remember_own_mount(folder_of(found), root)
        overlaid = found.path == root and is_overlaid(folder_of(found), root)
        found = found._replace(path=root, device=about.st_dev, inode=about.st_ino)
        if overlaid:
            _remember_birth(folder_of(found), root)  # its disk is what the overlay is mounted over
        else:
            remember_root(folder_of(found), root)
    elif not is_disk_remembered(folder_of(found)):
        remember_disk(folder_of(found), root)  # it is older than this file
    return found


def is_unchanged(folder: bytes, workspace: WorkspaceRow) -> bool:
    """True if the recorded directory exists and still seems to be the same; ``folder`` is the workspace's own in the
    home. Records nothing.
    """
    return _is_same_directory(workspace) and could_be(folder, workspace.path)


def _is_same_directory(workspace: WorkspaceRow) -> bool:
    """True if the path still has the directory that the record means."""
    if workspace.path != last_seen_path(workspace.path):
        return False
    try:
        about = _look_at(workspace.path)
    except (OSError, EscapeError):
        return False
    return (about.st_dev, about.st_ino) == (workspace.device, workspace.inode)


def _look_at(root: bytes) -> os.stat_result:
    """`stat` of the directory at the real path ``root``. Raises `EscapeError` for a link in the path, and `OSError`."""
    from holdfast.files.write.rooted_access import open_root

    fd = open_root(root, readable=False)
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)


def remember_root(folder: bytes, root: bytes) -> None:
    """Note in the workspace's ``folder`` when the directory ``root`` was born, and on which file system it is. Best
    effort: see `could_be` and `is_disk_there`.
    """
    remember_disk(folder, root)
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


def could_be(folder: bytes, root: bytes) -> bool:
    """False if the directory ``root`` is surely not the recorded one, in spite of the same inode number.

    True if no birth time was recorded, or the file system keeps none: then the number alone decides.
    """
    noted = _noted_birth(folder)
    return noted is None or _birth_time(root) in (None, noted)


def is_copied(folder: bytes, workspace: WorkspaceRow) -> bool:
    """Whether even the parent directory, which was made before the root, is younger than the recorded root and the
    workspace: then all of it was copied or restored from a backup, as with a whole home. The root alone does not show
    it: a snapshot of btrfs has the birth time of its source.
    """
    noted, above = _noted_birth(folder), _birth_time(os.path.dirname(workspace.path))
    return noted is not None and above is not None and above > max(noted, workspace.created_at * 1000)


def _noted_birth(folder: bytes) -> int | None:
    try:
        return int(read_regular(os.path.join(folder, ROOT_BIRTH), 32) or b"")
    except (OSError, ValueError):
        return None


def _birth_time(path: bytes) -> int | None:
    from holdfast.files.linux import syscalls

    try:
        return syscalls.birth_time(path)
    except OSError:
        return None


# Directories that never count as a workspace's own: another one in the place of a fork's that Holdfast made, one that
# is mounted over any workspace, and the empty mount point of an unmounted one.


def check_fork_directory(
    catalog: Catalog, folder: bytes, workspace: WorkspaceRow, *, by_mount: bool, anew: bool
) -> None:
    """Raise `RefusedError` (``mounted_over``, ``not_ours``) if the workspace is a fork of a session, and its path does
    not have the directory that was made for it. Users may make any other workspace's directory anew at its path;
    ``anew`` accepts even one that `refuse_other_mount` refuses.

    Three others are accepted: an empty directory, which the session fills when it is opened; one in a home that was
    copied as a whole; and one that a killed promotion swapped in, which is verified elsewhere. A fork ``by_mount`` has
    no files in its directory: that may be any, with no other mount over it.
    """
    from holdfast.files.directories.removal_obstacles import mounted_at
    from holdfast.store.catalog.promotion_rows import PromotionRows
    from holdfast.store.catalog.session_rows import SessionRows

    forks = [one.id for one in SessionRows(catalog).list(workspace.id) if one.purpose != "session"]
    if not forks:
        if not anew:
            refuse_other_mount(folder, workspace)
        return
    path = workspace.path
    if by_mount and not mounted_at(path):
        return
    # Device numbers change with a restart, and inode numbers of an overlay may.
    may_differ = os.path.basename(path) == MERGED and os.path.ismount(path)
    if (may_differ or os.lstat(path).st_ino == workspace.inode) and could_be(folder, path):
        return
    if (_is_empty(path) or is_copied(folder, workspace)) and not mounted_at(path):
        return
    if all(one.phase != "swapping" for one in PromotionRows(catalog).list(workspace.id, unfinished=True)):
        refuse_replaced_fork(path, forks[0])


def refuse_other_mount(folder: bytes, workspace: WorkspaceRow) -> None:
    """Raise `RefusedError` (``mounted_over``) if another directory is mounted over a workspace's own, which belongs to
    the surrounding file system. A workspace that is a mount of its own (see `own_mount`), a disk or a volume, may have
    another one each time; its empty mount point without a mount is not the workspace (``not_mounted``). An overlay
    shows the files below it. Checks further only if the directory is another one.
    """
    path = workspace.path
    try:
        about = os.lstat(path)
    except OSError:
        return
    if (about.st_dev, about.st_ino) == (workspace.device, workspace.inode):
        return
    # Device numbers change with a restart.
    if about.st_ino == workspace.inode and could_be(folder, path):
        return
    import shlex

    from holdfast.bridge.mount.overlayfs import FILE_SYSTEM
    from holdfast.files.directories.removal_obstacles import type_mounted_at

    try:
        over = type_mounted_at(path)
    except OSError:
        return  # nothing tells
    word = shlex.quote(display(path))
    if is_own_mount_remembered(folder):
        if over is None and _is_empty(path):
            raise RefusedError(
                f"the workspace {display(path)} is a mount of its own, and nothing is mounted there now",
                hint=f"mount it again; `holdfast init --force {word}` makes the empty directory the workspace",
                code="not_mounted",
            )
        return
    if over in (None, FILE_SYSTEM) or not is_disk_there(folder, os.path.dirname(path)):
        return
    raise RefusedError(
        f"something is mounted over the workspace {display(path)}",
        hint=f"`umount {word}` shows the workspace again; `holdfast init --force {word}` "
        "makes the mounted directory the workspace",
        code="mounted_over",
    )


def _is_empty(path: bytes) -> bool:
    try:
        with os.scandir(path) as inside:
            return next(inside, None) is None
    except OSError:
        return False


def refuse_replaced_fork(path: bytes, fork: str) -> None:
    """Raise `RefusedError`: ``path`` has another file than the directory that was made for a fork."""
    import shlex

    from holdfast.files.directories.removal_obstacles import mounted_at

    if mounted_at(path):
        raise RefusedError(
            f"something is mounted over {display(path)}, the directory of the fork {fork}",
            hint=f"`umount {shlex.quote(display(path))}` shows the fork's directory again",
            code="mounted_over",
        )
    raise RefusedError(
        f"{display(path)} is not the directory that was made for the fork {fork}",
        hint="move it away, and move the fork's directory back; or Holdfast makes the fork again as it was saved last",
        code="not_ours",
    )


def recreate_root(context: Context) -> None:
    """Make the workspace's directory again if it is gone, and note at once which one it is now: that of another user
    would be taken for a fork's.
    """
    path = context.workspace.path
    was_there = os.path.lexists(path)
    context.tree.make_root()
    if was_there:
        return
    try:
        about = os.lstat(path)
    except OSError:
        return  # the tree is not of this machine
    context.catalog.move_workspace(context.workspace.id, path, about.st_dev, about.st_ino)
    remember_root(context.folder, path)
