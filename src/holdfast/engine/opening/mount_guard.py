"""What is never taken for a workspace's own directory: what comes in the place of one that Holdfast itself has made for
a fork, what is mounted over any, and the empty mount point of one that is not mounted.
"""

from __future__ import annotations

import os

from holdfast.engine.opening import disk, identity, own_mount
from holdfast.model.errors import RefusedError
from holdfast.model.paths import MERGED, display
from holdfast.model.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.opening.context import Context
    from holdfast.store.catalog import Catalog
    from holdfast.store.records import Workspace


def check(catalog: Catalog, folder: bytes, workspace: Workspace, *, by_mount: bool, anew: bool) -> None:
    """Raise `RefusedError` (``mounted_over``, ``not_ours``) if the workspace is a fork of a session, and what is at its
    path is not what was made for that. Any other workspace may be made again at its path by whoever has it; what
    `refuse_other_mount` refuses is the workspace ``anew`` only.

    An empty directory is let through, which is filled by whoever opens the session, and one in a home that was copied
    as a whole; and so is what a promotion that was killed as it swapped has put there: that has its own proof of what
    it is. Of a fork ``by_mount`` nothing is in the directory itself: that may be any, with nothing else mounted over.
    """
    from holdfast.files.staying import mounted_at
    from holdfast.store.promotion_rows import PromotionRows
    from holdfast.store.session_rows import SessionRows

    forks = [one.id for one in SessionRows(catalog).list(workspace.id) if one.purpose != "session"]
    if not forks:
        if not anew:
            refuse_other_mount(folder, workspace)
        return
    path = workspace.path
    if by_mount and not mounted_at(path):
        return
    # (Numbers of devices are others after a restart, and those of inodes may be in an overlay.)
    may_differ = os.path.basename(path) == MERGED and os.path.ismount(path)
    if (may_differ or os.lstat(path).st_ino == workspace.inode) and identity.may_be(folder, path):
        return
    if (_is_empty(path) or identity.is_copied(folder, workspace)) and not mounted_at(path):
        return
    if all(one.phase != "swapping" for one in PromotionRows(catalog).list(workspace.id, unfinished=True)):
        refuse(path, forks[0])


def refuse_other_mount(folder: bytes, workspace: Workspace) -> None:
    """Raise `RefusedError` (``mounted_over``) if another directory is mounted over that of a workspace: this was one of
    the file system around it. What is a mount of its own (see `own_mount`), a disk or a volume, may be another one each
    time; its mount point, with nothing mounted there and nothing in it, is not the workspace (``not_mounted``). An
    overlay shows what is below it. Looks further only where the directory is another one.
    """
    path = workspace.path
    try:
        about = os.lstat(path)
    except OSError:
        return
    if (about.st_dev, about.st_ino) == (workspace.device, workspace.inode):
        return
    # (Numbers of devices are others after a restart.)
    if about.st_ino == workspace.inode and identity.may_be(folder, path):
        return
    import shlex

    from holdfast.bridge.overlay import FILE_SYSTEM
    from holdfast.files.staying import type_mounted_at

    try:
        over = type_mounted_at(path)
    except OSError:
        return  # nothing tells
    word = shlex.quote(display(path))
    if own_mount.is_remembered(folder):
        if over is None and _is_empty(path):
            raise RefusedError(
                f"the workspace {display(path)} is a mount of its own, and nothing is mounted there now",
                hint=f"mount it again; if the empty directory is to be the workspace from now on, "
                f"`holdfast init --force {word}` says so",
                code="not_mounted",
            )
        return
    if over in (None, FILE_SYSTEM) or not disk.is_there(folder, os.path.dirname(path)):
        return
    raise RefusedError(
        f"something is mounted over the workspace {display(path)}",
        hint=f"nothing was touched; if what is mounted there is the workspace from now on, `holdfast init --force "
        f"{word}` says so; if it only hides the workspace, `umount {word}` shows that again",
        code="mounted_over",
    )


def _is_empty(path: bytes) -> bool:
    try:
        with os.scandir(path) as inside:
            return next(inside, None) is None
    except OSError:
        return False


def refuse(path: bytes, fork: str) -> None:
    """Raise `RefusedError`: something else is at ``path`` than the directory that was made for a fork."""
    import shlex

    from holdfast.files.staying import mounted_at

    if mounted_at(path):
        raise RefusedError(
            f"something is mounted over {display(path)}, the directory of the fork {fork}",
            hint=f"`umount {shlex.quote(display(path))}` first; what is mounted there stays what it is",
            code="mounted_over",
        )
    raise RefusedError(
        f"{display(path)} is not the directory that was made for the fork {fork}",
        hint="nothing was touched; look at what is there now, and move it away: the directory that was made can be "
        "moved back, or the fork is made again as it was saved last",
        code="not_ours",
    )


def make_root(context: Context) -> None:
    """Make the workspace's directory again if it is gone, and note at once which one it is now: nobody else's would be
    taken for a fork's.
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
    identity.remember(context.folder, path)
