"""The permissions of directories that a restore has removed because it left them empty, for when they are made again.

No checkpoint holds directories, so nothing else remembers their permissions. The file is specified in
``docs/formats/directory-modes.md``.
"""

from __future__ import annotations

import os
import stat

from holdfast.files.linux.regular_file import read_regular
from holdfast.files.note_file import sync_directory
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.ids import hash_bytes
from holdfast.model.log import Log
from holdfast.model.paths import TEMPORARY_PREFIX, display

if TYPE_CHECKING:
    from collections.abc import Container

MOST = 10_000
"""How many directories are remembered; the newest stay."""

_MAGIC = b"HFDM 1 "
_MAX_BYTES = 64 << 20
_RECORD = rb"([0-7]{1,4}) ([^\0]+)\0"
_log = Log(__name__)


class DirectoryModes:
    """The remembered modes of one tree. Losing them is harmless: a directory is then made like the one above it."""

    def __init__(self, path: bytes | None) -> None:
        """Read the file ``path``, if there is one; None: nothing outlives this object."""
        self._path = path
        self._modes: dict[bytes, int] = {}
        self._changed = False
        try:
            data = None if path is None else read_regular(path, _MAX_BYTES)
        except OSError:
            data = None
        if data is not None:
            self._decode(data)

    def _decode(self, data: bytes) -> None:
        head, _, body = data.partition(b"\n")
        if head != _MAGIC + hash_bytes(body).hex().encode():
            _log.warning("%s is damaged, or of another version: it is not used", display(self._path or b""))
            return
        import re

        for mode, path in re.findall(_RECORD, body):
            self._modes[path] = int(mode, 8)

    def get(self, path: bytes) -> int | None:
        """The twelve mode bits of the directory ``path`` when it was removed; None if that is not known."""
        return self._modes.get(path)

    def removed(self, path: bytes, mode: int) -> None:
        """Remember the directory ``path`` of this ``st_mode``, which was removed, or is about to be. Ignores temporary
        directories, which are no part of the tree.
        """
        if any(part.startswith(TEMPORARY_PREFIX) for part in path.split(b"/")):
            return
        if self._modes.pop(path, None) != stat.S_IMODE(mode):
            self._changed = True
        self._modes[path] = stat.S_IMODE(mode)
        if len(self._modes) > MOST:
            del self._modes[next(iter(self._modes))]

    def forget(self, present: Container[bytes]) -> None:
        """Forget the directories that are ``present``: they have permissions of their own, which may change."""
        for path in [path for path in self._modes if path in present]:
            del self._modes[path]
            self._changed = True

    def save(self) -> None:
        """Write the file, if it has changed; durable when it returns. A failure is logged."""
        if self._path is None or not self._changed:
            return
        body = b"".join(b"%o %b\0" % (mode, path) for path, mode in self._modes.items())
        temporary = self._path + b".new"
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(fd, "wb") as file:
                file.write(_MAGIC + hash_bytes(body).hex().encode() + b"\n" + body)
                file.flush()
                os.fsync(fd)
            os.rename(temporary, self._path)
            sync_directory(os.path.dirname(self._path))
        except OSError as error:
            _log.warning("cannot write %s: %s", display(self._path), error.strerror)
            return
        self._changed = False
