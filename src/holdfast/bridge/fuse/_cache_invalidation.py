"""Tells the kernel which of its caches are out of date, after changes by other processes or an undo.

Uses its own thread: to forget a name, the kernel waits for the requests that use it, and these wait for the server. It
forgets attributes at once.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

from holdfast.files.watch.event_masks import NAMES
from holdfast.undo.tree.rooted_directories import Directories
from holdfast.vfs.file_system import ROOT
from holdfast.wire.fuse import notifications

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.vfs.recorded.node_registry import NodeRegistry


class CacheInvalidator:
    """See the module. `note_changed`, `invalidate_all` and `thin_out` may be called from any thread, and return at
    once.
    """

    def __init__(self, notify: Callable[[bytes], None], root_fd: int, objects: NodeRegistry) -> None:
        """``notify`` is `Transport.notify`. ``root_fd`` is borrowed, until `stop`."""
        self._notify = notify
        self._root_fd = root_fd
        self._objects = objects
        self.expires = False
        """Names can be looked up again without being dropped (`Init.HAS_EXPIRE_ONLY`)."""
        self._news: queue.SimpleQueue[tuple[bytes, int] | threading.Event | None] = queue.SimpleQueue()
        self._all = False
        self._thins = False
        self._thread = threading.Thread(target=self._tell, name="holdfast-fuse-teller", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout: float = 10.0) -> bool:
        """Tell nothing more; whether the thread has ended."""
        self._news.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def note_changed(self, path: bytes, mask: int = NAMES) -> None:
        """Report a change at a path; ``mask`` is its kind (`holdfast.files.watch.event_masks`)."""
        self._news.put((path, mask))

    def invalidate_all(self) -> None:
        """Anything may have been changed, anywhere."""
        self._all = True
        self._news.put((b"", 0))

    def thin_out(self) -> None:
        """Make the kernel forget some of its entries, as their number is near the limit."""
        if not self._thins:
            self._thins = True
            self._news.put((b"", 0))

    def note_mappable(self, node: int) -> None:
        """Report that a process can now write to a file through a mapping, so that long-lived attributes told before
        are out of date. Call this before the process has the mapping. May be called from any thread.
        """
        self._notify(notifications.invalidate_inode(node))

    def settle(self, timeout: float) -> bool:
        """Wait until the kernel knows all changes reported so far; returns whether it does."""
        done = threading.Event()
        self._news.put(done)
        return done.wait(timeout)

    # The thread -------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        directories = Directories(self._root_fd)
        try:
            while (news := self._news.get()) is not None:
                if isinstance(news, threading.Event):
                    news.set()
                    continue
                if self._all:
                    self._all = False
                    directories.close()
                    self._tell_all()
                if self._thins:
                    for parent, name in self._objects.unused_names():
                        self._notify(notifications.invalidate_entry(parent, name))
                    self._thins = False
                if news[0]:  # (nothing else reports a change to a cached miss)
                    self._tell_of(directories, *news)
                if self._news.empty():
                    directories.close()  # (an open one may have another path the next time)
        finally:
            directories.close()

    def _tell_of(self, directories: Directories, path: bytes, mask: int) -> None:
        try:
            place = directories.place(path)
            parent = self._objects.known_node(place.dir_fd)
        except OSError:
            return  # the directory above is gone as well, and is reported itself
        if mask & NAMES:
            directories.forget(path)
            if parent is None:
                return
            self._notify(notifications.invalidate_entry(parent, place.name, expire_only=self.expires))
            self._forget_content(parent)  # (of a directory: its cached listing)
        try:
            node = self._objects.known_node(place.dir_fd, place.name)
        except OSError:
            return
        if node is not None:
            self._forget_content(node)

    def _tell_all(self) -> None:
        for node, parent, name in self._objects.known_nodes():
            if node != ROOT and name:
                self._notify(notifications.invalidate_entry(parent, name, expire_only=self.expires))
            self._forget_content(node)

    def _forget_content(self, node: int) -> None:
        self._notify(notifications.invalidate_inode(node, 0, 0))
