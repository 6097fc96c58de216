"""Sees changes made in a served tree other than through the mount, so that the kernel is told at once.

Uses fanotify alone, as only that reports the thread: the server knows its own changes already, but not those of other
parts of its process (the keeper's undo, another mount of the tree). Needs the privilege for fanotify.
"""

from __future__ import annotations

import os
import select
import threading
from typing import TYPE_CHECKING, Final

from holdfast.files.watch import open_watcher
from holdfast.files.watch.event_masks import Q_OVERFLOW
from holdfast.model.errors import UnsupportedError
from holdfast.model.log import Log

if TYPE_CHECKING:
    from holdfast.bridge.fuse._cache_invalidation import CacheInvalidator
    from holdfast.bridge.server.request_threads import ServingThreads
    from holdfast.files.linux.file_handle import Identity

_LOG = Log(__name__)
_BREATH_MILLISECONDS: Final = 5
"""Pause between two reads: changes anywhere on the file system make events. To read each at once would take the
interpreter from the serving threads.
"""


class ChangeWatcher:
    """Watches from its creation on, which must precede any mount over the tree."""

    def __init__(self, root: bytes, own: ServingThreads) -> None:
        """``own`` are the server's threads. Raises `UnsupportedError` where that is not possible."""
        self._teller: CacheInvalidator | None = None
        self._over = os.eventfd(0, os.EFD_CLOEXEC)
        try:
            self._watcher = open_watcher(root, "fanotify", notice=self._notice, passed=own, by_thread=True)
        except BaseException:
            os.close(self._over)
            raise
        self._thread = threading.Thread(target=self._look, name="holdfast-fuse-outside", daemon=True)

    def start(self, teller: CacheInvalidator) -> None:
        """Begin to tell."""
        self._teller = teller
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer."""
        os.eventfd_write(self._over, 1)
        if self._thread.is_alive():
            self._thread.join()
        self._watcher.close()
        os.close(self._over)

    def _look(self) -> None:
        wakers, over = select.poll(), select.poll()
        wakers.register(self._over, select.POLLIN)
        over.register(self._over, select.POLLIN)
        wakers.register(self._watcher.fileno(), select.POLLIN)
        while not over.poll(_BREATH_MILLISECONDS):
            try:
                self._watcher.drain()
            except OSError as error:
                _LOG.warning("edits by others are noticed late from here on: %s", error.strerror)
                return
            wakers.poll()

    def _notice(self, path: bytes | None, mask: int, _: int | None, _object: Identity | None) -> None:
        if self._teller is None:
            return
        if not path or mask & Q_OVERFLOW:
            self._teller.invalidate_all()
        else:
            self._teller.note_changed(path, mask)


def watch_changes(root: bytes, own: ServingThreads) -> ChangeWatcher | None:
    """`ChangeWatcher` where it is possible; None, which is logged, where it is not."""
    try:
        return ChangeWatcher(root, own)
    except UnsupportedError as error:
        _LOG.info("%s", error.message)
        return None
