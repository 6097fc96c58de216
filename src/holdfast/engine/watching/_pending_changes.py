"""The changes since the last scan, as the watch service gathers them, including those that the watcher cannot see."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

from holdfast.files.tree import DirtyPaths

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.files.watch import Watcher

_MAX_PATHS = 500_000
_MOST_PREPARED = 1000
"""Of more changed paths than this nothing more is prepared: it would take as long as the save itself, and memory."""
_OFTEN = 3
"""How often a path is prepared at most: preparing a file that changes all the time is wasted."""


class WatchExclusion(Protocol):
    """Says what a watcher may leave unwatched; see `holdfast.files.ignore.excluded_paths.ExcludedDirectories`."""

    def __call__(self, path: bytes, /) -> bool:
        """True if nothing in the directory ``path`` is captured."""
        ...

    def outside_changed(self) -> bool:
        """True once after the rules have changed that lie where no watcher looks."""
        ...


class PendingChanges:
    """The watcher's answers, added up until a scan takes them."""

    def __init__(
        self, watcher: Watcher, exclusion: WatchExclusion, noticed: Callable[[], None], doubted: Callable[[], None]
    ) -> None:
        """``noticed`` is called after each change, ``doubted`` when there may have been one."""
        self._watcher = watcher
        self._exclusion = exclusion
        self._noticed = noticed
        self._doubted = doubted
        self._everything = False
        self._paths: set[bytes] = set()
        self._refresh_due = False
        self._unprepared: set[bytes] = set()
        self._prepared: Counter[bytes] = Counter()
        """How often each path was prepared since the last scan."""

    def read_watcher(self) -> None:
        """Read the watcher, and check for changes that it cannot see."""
        answer = self._watcher.drain()
        if self._exclusion.outside_changed():
            answer = DirtyPaths(everything=True, paths=frozenset())
        if answer.everything or len(self._paths) + len(answer.paths) > _MAX_PATHS:
            self._everything = True
            self._paths.clear()
            self._unprepared.clear()
        elif not self._everything:
            self._paths |= answer.paths
            self._unprepared |= answer.paths
            if len(self._paths) > _MOST_PREPARED:
                self._unprepared.clear()
        if answer.news and (answer.everything or answer.paths):
            self._noticed()

    @property
    def unprepared(self) -> bool:
        """Whether `to_prepare` has any paths to give."""
        return bool(self._unprepared)

    def to_prepare(self, most: int) -> list[bytes]:
        """Some of the paths that have changed since they were given by this, each a few times between two scans."""
        paths = [self._unprepared.pop() for _ in range(min(most, len(self._unprepared)))]
        self._prepared.update(paths)
        return [path for path in paths if self._prepared[path] <= _OFTEN]

    def doubt(self) -> None:
        """Let everything count as changed."""
        self._everything = True
        self._paths.clear()
        self._unprepared.clear()
        self._doubted()

    def drain(self) -> DirtyPaths:
        """See `DirtySource.drain`."""
        self.read_watcher()
        taken = DirtyPaths(self._everything, frozenset(self._paths))
        self._refresh_due = self._refresh_due or self._everything
        self._everything = False
        self._paths.clear()
        self._unprepared.clear()
        self._prepared.clear()
        return taken

    def scanned(self) -> bool:
        """Note that a scan has succeeded. A full one has read the ignore rules again, so the watcher is told. True if
        it must be read again soon: files that the new rules include were not watched until now.
        """
        refreshed, self._refresh_due = self._refresh_due, False
        return refreshed and self._watcher.refresh()
