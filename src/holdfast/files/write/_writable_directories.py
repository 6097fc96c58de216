"""Directories that are read-only to their owner (`chmod -w`), made writable for changes inside."""

from __future__ import annotations

import os
import stat

from holdfast.files.linux.metadata import proc_path
from holdfast.model.errors import HoldfastError, NotFoundError
from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.files.tree import ApplyNotes
    from holdfast.files.write.atomic_replacement import Durability
    from holdfast.files.write.rooted_access import Root

_OBJECT = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_ONLY = stat.S_IRUSR | stat.S_IXUSR


class OpenedDirectories:
    """The directories that one call opens and closes again, below a `Root`. For one thread. No link is followed.

    A directory that belongs to another user, or lies on a read-only file system, stays as it is.
    """

    def __init__(self, root: Root, notes: ApplyNotes) -> None:
        """Nothing is opened yet; `close` also closes what an earlier call has left open."""
        self._root = root
        self._notes = notes
        self._modes = dict(notes.opened)
        root.opened = self._modes

    def open_above(self, paths: Iterable[bytes]) -> None:
        """Make every directory above ``paths`` writable that is read-only to its owner, after noting it. Raises the
        errors of the note. An unreadable directory stays closed: the scan cannot have seen its content.
        """
        above: set[bytes] = set()
        for path in paths:
            at = path
            while at and (at := at.rpartition(b"/")[0]) not in above:
                above.add(at)
        closed = {path: mode for path in sorted(above) if (mode := self._closed(path)) is not None}
        if not closed.keys() <= self._modes.keys():
            self._modes |= {path: mode for path, mode in closed.items() if path not in self._modes}
            self._notes.opening(self._modes)
        for path in closed:
            self._open(path)

    def _closed(self, path: bytes) -> int | None:
        """The permissions of a directory that is read-only to its owner, who is this user, or of a missing one that
        will be made so; None for others.
        """
        # (Nearly always true. Where a link leads this to another directory, nothing will be changed at all.)
        if os.access(path or b".", os.W_OK, dir_fd=self._root.fd, effective_ids=True):
            return None
        try:
            dir_fd, name = self._root.locate(path) if path else (self._root.fd, b".")
            if os.access(name, os.W_OK, dir_fd=dir_fd, effective_ids=True):
                return None
            info = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        except (FileNotFoundError, NotFoundError):
            mode = None if self._root.modes is None else self._root.modes.get(path)
            return None if mode is None or mode & stat.S_IRWXU == stat.S_IRWXU else mode
        except (HoldfastError, OSError):
            return None
        ours = stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid()
        return stat.S_IMODE(info.st_mode) if ours and info.st_mode & stat.S_IRWXU == _READ_ONLY else None

    def _open(self, path: bytes) -> None:
        try:
            dir_fd, name = self._root.locate(path) if path else (self._root.fd, b".")
            fd = os.open(name, _OBJECT, dir_fd=dir_fd)
        except (HoldfastError, OSError):
            return  # it is still to be made, or gone meanwhile
        try:
            os.chmod(proc_path(fd), stat.S_IMODE(os.fstat(fd).st_mode) | stat.S_IRWXU)
        except OSError:
            pass  # the change in it fails then, and says why
        finally:
            os.close(fd)

    def close(self, durability: Durability) -> None:
        """Give all of them back the permissions that they had, durable with ``durability``. Permissions that another
        process has changed meanwhile stay.
        """
        for path in sorted(self._modes, reverse=True):
            try:
                dir_fd, name = self._root.locate(path) if path else (self._root.fd, b".")
                fd = os.open(name, _DIRECTORY, dir_fd=dir_fd)
            except (FileNotFoundError, NotFoundError):
                # It was removed with the rest, perhaps by a call that was killed before it could record that.
                if self._root.modes is not None:
                    self._root.modes.removed(path, self._modes[path])
                continue
            except (HoldfastError, OSError):
                continue
            try:
                mode = self._modes[path]
                if stat.S_IMODE(os.fstat(fd).st_mode) == mode | stat.S_IRWXU:
                    os.fchmod(fd, mode)
                    durability.add_directory(fd)
            except OSError:
                continue
            finally:
                os.close(fd)
