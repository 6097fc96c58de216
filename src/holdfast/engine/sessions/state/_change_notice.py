"""Notices changes in a session's directory while the session is open (inotify).

A scan then costs as much as the changes, not as the tree. It serves the scans before and after each command; a saved
state needs a full scan, since it must include changes that no watcher notices.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from holdfast.engine.opening.home import WATCH_SOCKET
from holdfast.files.local_tree import LocalTree
from holdfast.files.tree import DirtyPaths
from holdfast.model.errors import HoldfastError
from holdfast.model.log import Log

if TYPE_CHECKING:
    from holdfast.engine.opening.context import Context
    from holdfast.files.watch import Watcher

_LOG = Log(__name__)
_MOST_WATCHES: Final = "/proc/sys/fs/inotify/max_user_watches"
_SHARE: Final = 4
"""Use at most one in so many of a user's inotify watches: an editor needs some, too."""
_EVERYTHING: Final = DirtyPaths(everything=True, paths=frozenset())


class ChangeNotice:
    """The `DirtySource` of a tree, which asks it before each scan. For one thread."""

    def __init__(self, tree: LocalTree, watcher: Watcher) -> None:
        """``watcher`` is of the tree's root, and this object's from now on. The first look is at everything."""
        self._tree = tree
        self._watcher = watcher
        self._doubted = True
        self._refresh = False
        self.useless = False
        """Whether changes may go unnoticed, or be noticed no more: then everything has changed, always."""
        watcher.drain()  # its first answer is everything, which is doubted already
        tree.dirty = self

    def doubt(self) -> None:
        """Have the next look be at everything."""
        self._doubted = True

    def drain(self) -> DirtyPaths:
        """See `DirtySource.drain`."""
        # A watcher notices neither writes by a file's name outside the tree, nor that a file gets one there.
        self.useless |= self._tree.has_hard_links
        if self.useless:
            return _EVERYTHING
        answer = _EVERYTHING
        try:
            if self._refresh:
                self._tree.excluded.refresh()
                self._watcher.refresh()
                self._refresh = False
            answer = self._watcher.drain()
            outside = self._tree.excluded.outside_changed()
            if answer.everything or outside:
                self._refresh = True  # directories may have come into view
        except (OSError, HoldfastError) as error:
            _LOG.info("changes are not noticed any more, and every look is at the whole tree: %s", error)
            self.useless = True
        if self._doubted or self._refresh or self.useless:
            self._doubted = False
            return _EVERYTHING
        return answer

    def end(self) -> None:
        """Let the tree scan everything again, and keep the result. Harmless a second time."""
        if self._tree.dirty is self:
            self._tree.dirty = None
            self._tree.save_index()
        self._watcher.close()


def start_notice(context: Context) -> ChangeNotice | None:
    """Begin to notice; None where that is impossible, or useless because a scan is already that cheap."""
    tree = context.tree
    if not isinstance(tree, LocalTree) or tree.is_layered or tree.has_hard_links or tree.dirty is not None:
        return None
    if context.settings.watch.backend == "polling" or os.path.lexists(os.path.join(context.folder, WATCH_SOCKET)):
        return None  # the running watcher does the work
    try:
        return _begin(tree)
    except (OSError, HoldfastError) as error:
        _LOG.info("changes are not noticed, and every look is at the whole tree: %s", error)
        return None


def _begin(tree: LocalTree) -> ChangeNotice | None:
    from holdfast.files.watch import open_watcher
    from holdfast.files.watch.watched_root import WatchedRoot

    root = WatchedRoot(tree.root)
    try:
        if root.mount().remote or any(mount.remote for mount in root.mounts_below):
            return None
    finally:
        root.close()
    with open(_MOST_WATCHES, "rb") as file:
        if len(tree.index.directories) > int(file.read()) // _SHARE:
            return None
    # Read the exclusions before the watcher asks for them: later changes of the rules are noticed.
    excluded = tree.excluded
    excluded.refresh()
    excluded.outside_changed()
    watcher = open_watcher(tree.root, "inotify", excluded)
    try:
        return ChangeNotice(tree, watcher)
    except BaseException:
        watcher.close()
        raise
