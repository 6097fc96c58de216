"""What has changed since the last scan, as the watch service gathers it: what the watcher says, and what it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from holdfast.files.dirty import Dirty

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.files.watch import Watcher

_MAX_PATHS = 500_000


class Exclusion(Protocol):
    """Says what a watcher may leave unwatched; see `holdfast.files.exclusion.ExcludedDirectories`."""

    def __call__(self, path: bytes, /) -> bool:
        """True if nothing in the directory ``path`` is captured."""
        ...

    def outside_changed(self) -> bool:
        """True once after the rules have changed that lie where no watcher looks."""
        ...


class Changes:
    """The watcher's answers, added up until a scan takes them."""

    def __init__(self, watcher: Watcher, exclusion: Exclusion, noticed: Callable[[], None]) -> None:
        """``noticed`` is called whenever an answer is not empty."""
        self._watcher = watcher
        self._exclusion = exclusion
        self._noticed = noticed
        self._everything = False
        self._paths: set[bytes] = set()
        self._refresh_due = False

    def look(self) -> None:
        """Read the watcher, and look whether what it cannot see has changed."""
        answer = self._watcher.drain()
        if self._exclusion.outside_changed():
            answer = Dirty(everything=True, paths=frozenset())
        if answer.everything or len(self._paths) + len(answer.paths) > _MAX_PATHS:
            self._everything = True
            self._paths.clear()
        elif not self._everything:
            self._paths |= answer.paths
        if answer.everything or answer.paths:
            self._noticed()

    def doubt(self) -> None:
        """Let everything count as changed."""
        self._everything = True
        self._paths.clear()
        self._noticed()

    def drain(self) -> Dirty:
        """See `DirtySource.drain`."""
        self.look()
        taken = Dirty(self._everything, frozenset(self._paths))
        self._refresh_due = self._refresh_due or self._everything
        self._everything = False
        self._paths.clear()
        return taken

    def scanned(self) -> bool:
        """A scan has succeeded. If it was a full one, it has read the ignore rules anew: then the watcher is told. True
        if it is to be looked at soon, since what comes into view by them is not watched before that.
        """
        refreshed, self._refresh_due = self._refresh_due, False
        return refreshed and self._watcher.refresh()
