"""Preimages that could not be restored, because their path has another object now: kept for their owner, permanently.

Each is in a directory of the log under the number of the record that would have restored it. Holdfast removes it only
after it was restored.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.files.linux.exclusive_rename import rename_to_free
from holdfast.files.linux.metadata import UNREAD, apply_metadata
from holdfast.undo.journal.preimages import preimage_path
from holdfast.undo.journal.records import KeepMethod
from holdfast.undo.whole_writes import write_whole

if TYPE_CHECKING:
    from holdfast.files.linux.metadata import Metadata
    from holdfast.undo.journal.preimages import Preimages
    from holdfast.undo.journal.records import FileType, Keeping

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


class Quarantine:
    """The directory. Every method raises `OSError`; nothing is durable until synced."""

    def __init__(self, directory: bytes, preimages: Preimages) -> None:
        """Open ``directory``, making it if it is missing. ``preimages`` are of the same log."""
        os.makedirs(directory, 0o700, exist_ok=True)
        self._directory = directory
        self._preimages = preimages
        self._fd = os.open(directory, _DIRECTORY)

    def close(self) -> None:
        """Close the directory; harmless a second time."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def path(self, record: int) -> bytes:
        """The absolute path of the object that is kept for the record with that sequence number."""
        return os.path.join(self._directory, _name(record))

    def holds(self, record: int) -> bool:
        """Whether an object is kept for the record."""
        try:
            os.stat(_name(record), dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def keep(
        self, record: int, type_: FileType, keeping: Keeping, metadata: Metadata, *, is_needed: bool = False
    ) -> bool:
        """Keep the object that the record would have restored. Idempotent. ``is_needed``: its preimage stays in place
        as well.

        False if there is nothing to keep: a directory (it is empty; its entries have records of their own), a pipe, a
        socket, a device, and an object that was given back already.
        """
        if type_ not in ("f", "l"):
            return False
        name = _name(record)
        if not self.holds(record):
            match keeping.how:
                case KeepMethod.NOT | KeepMethod.RELATED:
                    return False
                case KeepMethod.INLINE if type_ == "l":
                    os.symlink(keeping.content, name, dir_fd=self._fd)
                case KeepMethod.INLINE:
                    self._write(name, keeping.content)
                case KeepMethod.MOVED | KeepMethod.LINKED | KeepMethod.COPIED:
                    if self._preimages.metadata_of(keeping.number) is None:
                        return False
                    preimage = preimage_path(keeping.number)
                    if is_needed:
                        os.link(
                            preimage, name, src_dir_fd=self._preimages.fd, dst_dir_fd=self._fd, follow_symlinks=False
                        )
                    else:
                        rename_to_free(self._preimages.fd, preimage, self._fd, name)
        if keeping.how in (KeepMethod.COPIED, KeepMethod.INLINE):
            self._describe(name, metadata)
        return True

    def give_back(self, record: int, keeping: Keeping) -> bool:
        """Move the preimage of the record back to where `keep` took it from. Idempotent. False if it is gone.

        A copy from the record's own content stays until it is `forgotten <forget>`.
        """
        if keeping.how not in (KeepMethod.MOVED, KeepMethod.LINKED, KeepMethod.COPIED):
            return True
        if self._preimages.metadata_of(keeping.number) is None:
            try:
                self._preimages.move_in(self._fd, _name(record), keeping.number)
            except FileNotFoundError:
                return False
        return True

    def forget(self, record: int) -> None:
        """Remove the copy of a restored object, if there is one."""
        with suppress(FileNotFoundError):
            os.unlink(_name(record), dir_fd=self._fd)

    def _write(self, name: bytes, content: bytes) -> None:
        temporary = name + b".new"
        fd = os.open(temporary, _CREATE, 0o600, dir_fd=self._fd)
        try:
            write_whole(fd, content)
        finally:
            os.close(fd)
        os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def _describe(self, name: bytes, metadata: Metadata) -> None:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd)
        try:
            # Its set-id bits would give rights away: outside of its place, nothing restricts who executes it.
            wanted = metadata._replace(mode=metadata.mode & ~(stat.S_ISUID | stat.S_ISGID))
            try:
                apply_metadata(fd, wanted)
            except PermissionError:
                # Another user's owner and attributes cannot be set. Its content is what matters.
                found = os.fstat(fd)
                apply_metadata(fd, wanted._replace(uid=found.st_uid, gid=found.st_gid, xattrs=UNREAD))
        finally:
            os.close(fd)


def _name(record: int) -> bytes:
    return b"%016x" % record
