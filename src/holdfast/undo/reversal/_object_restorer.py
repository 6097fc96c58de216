"""Bringing back what a step removed or replaced, at its path: from the log, or by another of its names."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import closing
from typing import TYPE_CHECKING

from holdfast.files.linux.file_handle import Identity, identity
from holdfast.files.linux.metadata import Metadata, mtime_of, proc_path
from holdfast.undo.journal.preimages import preimage_path
from holdfast.undo.journal.records import FileType, Keeping, KeepMethod, Make
from holdfast.undo.reversal.reversal_context import (
    DETACHED,
    ELSE,
    FOREIGN_EDIT,
    NOT_DESCRIBED,
    OBJECT,
    UNPROTECTED,
    conflict_reason,
    describe,
    is_pristine,
    lstat_of,
)

if TYPE_CHECKING:
    from holdfast.undo.interceptor import Place
    from holdfast.undo.reversal.reversal_context import ReversalContext

_CANNOT_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOENT})


class ObjectRestorer:
    """Brings back one object at a time, on a `ReversalContext`."""

    def __init__(self, context: ReversalContext) -> None:
        """Nothing is done yet."""
        self._context = context
        self._recorder, self._directories, self._aliases = context.recorder, context.directories, context.aliases

    def bring_back(self, path: bytes, type_: FileType, object_: Identity, keeping: Keeping, metadata: Metadata) -> bool:
        """Bring the object back at ``path``; whether anything was changed for that. Where it cannot be, that is noted.

        Raises `OSError` where the system fails, `BlockingIOError` where a process has a lease.
        """
        try:
            return self._try_bring_back(path, type_, object_, keeping, metadata)
        except OSError as error:
            if (reason := conflict_reason(error)) is None:
                raise
            self._context.put_aside(path, reason, type_, keeping, metadata)
            return False

    def _try_bring_back(
        self, path: bytes, type_: FileType, object_: Identity, keeping: Keeping, metadata: Metadata
    ) -> bool:
        match keeping.how:
            case KeepMethod.NOT:
                if keeping.shared and self._try_name_again(path, object_):
                    return True
                if object_ not in self._context.created:
                    self._context.note(path, UNPROTECTED)
                return False
            case KeepMethod.MOVED | KeepMethod.LINKED:
                try:
                    actual = identity(self._context.preimages.fd, preimage_path(keeping.number))
                except FileNotFoundError:
                    return False  # it was not taken, or given back already
                place = self._directories.place(path)
                if keeping.how is KeepMethod.LINKED and self._context.holds(place, object_):
                    self._context.preimages.discard(keeping.number)  # the name was never removed
                    self._context.note_changed_at(place)
                    return False
                if self._aliases.now(object_) not in (object_, actual) and self._try_name_again(path, object_):
                    # A restore has put another object in place of its other name, perhaps as this one was edited by it.
                    self._context.preimages.discard(keeping.number)
                    return True
                self._stands_for(object_, actual)  # it may have been broken off
                self._recorder.put(self._context.step, place, type_, actual, keeping.number)
                if type_ == "d":
                    self._context.other_links.directories_moved()
                    self._set_mtime(place, metadata)
                self._context.note_changed_at(place)
            case KeepMethod.RELATED:
                return self._try_link_again(path, object_, keeping.content)
            case KeepMethod.COPIED | KeepMethod.INLINE:
                place = self._directories.place(path)
                if lstat_of(place) is not None and not self._is_half_made(place, type_):
                    if self._made_again(place) in self._context.foreign:
                        self._context.put_aside(path, FOREIGN_EDIT, type_, keeping, metadata)
                    elif not self._context.holds(place, object_):
                        self._context.put_aside(path, ELSE, type_, keeping, metadata)
                    return False
                if not (keeping.shared and self._try_name_again(path, object_)):
                    if keeping.shared and object_ in self._context.created:
                        return False  # it is nowhere any more, and is not missed
                    self._recreate(path, type_, object_, keeping, metadata)
        return True

    def _try_link_again(self, path: bytes, object_: Identity, other: bytes) -> bool:
        if self._context.is_at(path, object_):
            return False  # the name was never removed
        if not self._context.is_at(other, object_):
            self._context.note(path, "the file that it was another name of is not there any more")
            return False
        source = self._directories.place(other)
        fd = os.open(source.name, OBJECT, dir_fd=source.dir_fd)
        try:
            self._link(path, fd)
        finally:
            os.close(fd)
        return True

    def _try_name_again(self, path: bytes, object_: Identity) -> bool:
        """Give an object that has lived on by other names this one again, if any is found and the place is free."""
        if lstat_of(self._directories.place(path)) is not None:
            return False
        with closing(self._context.other_links.descriptors(path, object_)) as descriptors:
            for fd in descriptors:
                try:
                    self._link(path, fd)
                except OSError as error:
                    if error.errno not in _CANNOT_LINK:
                        raise
                else:
                    return True
        return False

    def _link(self, path: bytes, fd: int) -> None:
        place = self._directories.place(path)
        self._recorder.link(
            self._context.step,
            fd,
            place,
            lambda: os.link(proc_path(fd), place.name, dst_dir_fd=place.dir_fd, follow_symlinks=True),
        )
        self._context.note_changed_at(place)

    def _is_half_made(self, place: Place, type_: FileType) -> bool:
        """Whether this reversal made the present object before it was interrupted."""
        if (made := self._made_again(place)) is not None:
            return made not in self._context.foreign
        opened = self._recorder.step(self._context.step)
        last = opened.records[-1] if opened.records else None
        found = lstat_of(place)
        if (
            not isinstance(last, Make)
            or last.path != place.path
            or found is None
            or not is_pristine(place, found, type_)
        ):
            return False
        # It was interrupted before it could record that.
        self._recorder.note_made(self._context.step, last, place)
        return True

    def _made_again(self, place: Place) -> Identity | None:
        """The object at the place, if this reversal has made it."""
        there = identity(place.dir_fd, place.name)
        return there if there in self._recorder.step(self._context.step).created else None

    def _stands_for(self, object_: Identity, actual: Identity) -> None:
        if actual != self._aliases.now(object_):
            self._recorder.alias(self._context.step, object_, actual)

    def _recreate(self, path: bytes, type_: FileType, object_: Identity, keeping: Keeping, metadata: Metadata) -> None:
        # For an object that still exists, earlier records refer to that object.
        stands = not keeping.shared or self._context.other_links.is_away(object_)
        if keeping.shared:
            self._context.note(path, DETACHED)
        place = self._directories.place(path)
        mode = {"f": stat.S_IFREG, "p": stat.S_IFIFO, "s": stat.S_IFSOCK, "c": stat.S_IFCHR, "b": stat.S_IFBLK}
        name, dir_fd = place.name, place.dir_fd
        if lstat_of(place) is None:
            match type_:
                case "d":
                    self._recorder.create(self._context.step, place, "d", lambda: os.mkdir(name, 0o700, dir_fd=dir_fd))
                case "l":
                    target = keeping.content
                    self._recorder.create(
                        self._context.step, place, "l", lambda: os.symlink(target, name, dir_fd=dir_fd)
                    )
                case _:
                    device = int.from_bytes(keeping.content, "little") if type_ in ("c", "b") else 0
                    self._recorder.create(
                        self._context.step,
                        place,
                        type_,
                        lambda: os.mknod(name, mode[type_] | 0o600, device, dir_fd=dir_fd),
                    )
        fd = os.open(name, OBJECT, dir_fd=dir_fd)
        try:
            if stands:
                self._stands_for(object_, identity(fd, b""))
            if type_ == "f":
                self._context.fill(fd, keeping)
            self._context.note_changed(fd)
            describe(path, fd, metadata)
        finally:
            os.close(fd)

    def _set_mtime(self, place: Place, metadata: Metadata) -> None:
        """Some file systems change the mtime of a directory that gets another parent."""
        found = os.stat(place.name, dir_fd=place.dir_fd, follow_symlinks=False)
        if mtime_of(found) != metadata.mtime:
            try:
                os.utime(place.name, ns=(found.st_atime_ns, metadata.mtime), dir_fd=place.dir_fd, follow_symlinks=False)
            except PermissionError:  # it is another user's
                self._context.note(place.path, NOT_DESCRIBED)
