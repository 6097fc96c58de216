"""Watching a directory tree: the port, and the choice between fanotify, inotify and polling."""

from __future__ import annotations

from typing import Literal

from holdfast.files.tree import DirtyPaths, DirtySource
from holdfast.files.watch.event_syscalls import why
from holdfast.model.errors import UnsupportedError, UsageError
from holdfast.model.fast_typing import TYPE_CHECKING, Protocol
from holdfast.model.log import Log
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from holdfast.files.watch.event_masks import Notice, Wanted
    from holdfast.files.watch.watched_root import WatchedRoot

__all__ = ["BACKENDS", "Backend", "DirtyPaths", "DirtySource", "Watcher", "open_watcher"]

Backend = Literal["auto", "fanotify", "inotify", "polling"]
BACKENDS: tuple[Backend, ...] = ("auto", "fanotify", "inotify", "polling")

_log = Log(__name__)


class Watcher(DirtySource, Protocol):
    """Notices changes in a tree. One thread at a time. The first answer of `drain` is everything.

    Changes inside directories that are ``excluded`` are left out; a change of a ``.gitignore`` or of a
    ``.checkpointignore`` makes everything dirty, and `refresh` applies the new rules. The caller must check rules
    outside the tree, and in its ``.git``.
    """

    @property
    def backend(self) -> str:
        """``fanotify``, ``inotify`` or ``polling``."""
        ...

    @property
    def limits(self) -> str | None:
        """The changes that it cannot notice, as a sentence for people; None if there are none."""
        ...

    def fileno(self) -> int:
        """A descriptor, always the same, that is readable when there may be changes; `drain` reads it."""
        ...

    def skim(self) -> None:
        """Read the events, and drop those of the processes to be passed over: the next `drain` takes less time. For
        another thread, even during a drain.
        """
        ...

    def refresh(self) -> bool:
        """The answers of ``excluded`` may have changed: ask it again, before the next `drain` answers.

        True if the next drain may begin to watch further directories: then it should be soon.

        Call this after every scan that followed an answer of everything, as that scan read the rules anew. Directories
        that come into view by it are in the next answer.
        """
        ...

    def close(self) -> None:
        """Stop watching. Harmless a second time."""
        ...


def open_watcher(
    root: bytes,
    backend: Backend = "auto",
    excluded: Callable[[bytes], bool] | None = None,
    *,
    poll_interval: float = 10.0,
    notice: Notice | None = None,
    passed: Container[int] | None = None,
    wanted: Wanted | None = None,
    by_thread: bool = False,
) -> Watcher:
    """Watch the directory ``root`` by the best available means, or only by ``backend``.

    ``excluded(directory)`` returns whether nothing in a directory (a relative path) is ever captured. ``poll_interval``
    is in seconds. ``notice`` is called by `drain` with every event, except those by the processes ``passed``, as far as
    the cause is known; with ``by_thread`` ids are those of threads. ``wanted`` adds events, where the means support it.
    Every means that was tried and is unavailable is logged with the reason. Raises `NotFoundError` if there is no such
    directory, `UnsupportedError` if the given ``backend`` is unavailable.
    """
    from holdfast.files.watch.watched_root import WatchedRoot

    if backend not in BACKENDS:
        raise UsageError(f"no such way to watch: {backend!r} (one of {', '.join(BACKENDS)})")
    watched = WatchedRoot(root)
    mount = watched.mount()
    watched.close()
    choices = [backend] if backend != "auto" else ["fanotify", "inotify", "polling"]
    if backend == "auto" and mount.remote:
        _log.warning(
            "%s is on %s, where this kernel does not see all changes: scanning all of it every %g s",
            display(root),
            display(mount.type),
            poll_interval,
        )
        choices = ["polling"]
    for choice in choices:
        watched = WatchedRoot(root)
        try:
            return _open(choice, watched, excluded or _nothing, poll_interval, notice, passed, wanted, by_thread)
        except (OSError, UnsupportedError) as error:
            watched.close()
            reason = why(choice, error)
            if backend != "auto":
                raise UnsupportedError(f"cannot watch {display(root)} by {choice}: {reason}") from error
            # Without privilege fanotify is never available, which is normal; a limit that costs speed is not.
            say = _log.info if choice == "fanotify" else _log.warning
            say("cannot watch %s by %s: %s", display(root), choice, reason)
        except BaseException:
            watched.close()
            raise
    raise UnsupportedError(f"there is no way to watch {display(root)}")


def _open(
    choice: str,
    root: WatchedRoot,
    excluded: Callable[[bytes], bool],
    poll_interval: float,
    notice: Notice | None,
    passed: Container[int] | None,
    wanted: Wanted | None,
    by_thread: bool,
) -> Watcher:
    if choice == "fanotify":
        from holdfast.files.watch._fanotify import FanotifyWatcher

        return FanotifyWatcher(root, excluded, notice, passed, wanted, by_thread=by_thread)
    if choice == "inotify":
        from holdfast.files.watch._inotify import InotifyWatcher

        return InotifyWatcher(root, excluded, notice, poll_interval=poll_interval)
    from holdfast.files.watch._polling import PollingWatcher

    return PollingWatcher(root, excluded, poll_interval)


def _nothing(directory: bytes) -> bool:  # noqa: ARG001 - the default for a callback
    return False
