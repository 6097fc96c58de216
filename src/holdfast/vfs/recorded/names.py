"""Names in a recorded directory: looked up, made, moved and removed."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from holdfast.files.linux.metadata import proc_path
from holdfast.files.linux.syscalls import RENAME_EXCHANGE, renameat2
from holdfast.undo.journal.records import file_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.undo.journal.records import FileType
    from holdfast.vfs.file_system import Caller, Found
    from holdfast.vfs.recorded.callers import Credited, RecordingHost
    from holdfast.vfs.recorded.node_registry import NodeRegistry

_RENAME_WHITEOUT = 4


class RecordedNames:
    """`Names` of a recorded directory."""

    def __init__(
        self, host: RecordingHost, objects: NodeRegistry, credited: Credited, *, makes_devices: bool = True
    ) -> None:
        """For ``makes_devices`` see `RecordedDirectory`."""
        self._makes_devices = makes_devices
        self._host = host
        self._objects = objects
        self._credited = credited

    def lookup(self, parent: int, name: bytes) -> Found:
        """See `Names`."""
        return self._objects.enter_from(parent, name)

    def forget(self, node: int, lookups: int) -> None:
        """See `Names`."""
        self._objects.forget(node, lookups)

    def read_link(self, node: int) -> bytes:
        """See `Names`."""
        with self._objects.descriptor(node) as fd:
            return os.readlink(b"", dir_fd=fd)

    # -- made -----------------------------------------------------------------------------------------------------

    def make_directory(self, caller: Caller, parent: int, name: bytes, permissions: int) -> Found:
        """See `Names`."""
        return self._make(caller, parent, name, "d", lambda dir_fd: os.mkdir(name, permissions, dir_fd=dir_fd))

    def make_node(self, caller: Caller, parent: int, name: bytes, mode: int, device: int) -> Found:
        """See `Names`."""

        def perform(dir_fd: int) -> None:
            os.mknod(name, mode, device, dir_fd=dir_fd)

        if stat.S_IFMT(mode) in (stat.S_IFCHR, stat.S_IFBLK) and device and not self._makes_devices:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return self._make(caller, parent, name, file_type(mode), perform)

    def make_symlink(self, caller: Caller, parent: int, name: bytes, target: bytes) -> Found:
        """See `Names`."""
        return self._make(caller, parent, name, "l", lambda dir_fd: os.symlink(target, name, dir_fd=dir_fd))

    def _make(self, caller: Caller, parent: int, name: bytes, type_: FileType, perform: Callable[[int], None]) -> Found:
        with self._objects.directory(parent) as dir_fd:
            performed = self._credited.creating(caller, lambda: perform(dir_fd))
            step, interceptor = self._host.step(caller.thread), self._host.interceptor
            with interceptor.gate:
                interceptor.create(step, self._objects.place(parent, dir_fd, name), type_, performed)
            return self._objects.enter(parent, dir_fd, name)

    def link(self, caller: Caller, node: int, parent: int, name: bytes) -> Found:
        """See `Names`."""
        interceptor, step = self._host.interceptor, self._host.step(caller.thread)
        with (
            self._objects.directory(parent) as dir_fd,
            interceptor.gate,
            self._objects.located(node) as source,
        ):
            place = self._objects.place(parent, dir_fd, name)

            def perform() -> None:
                os.link(proc_path(source.fd), name, dst_dir_fd=dir_fd, follow_symlinks=True)

            found = os.fstat(source.fd)
            if source.path is not None:
                interceptor.link(step, source.fd, place, perform)
            elif not found.st_nlink:
                # It has no name yet (O_TMPFILE): for observers, this link creates it.
                interceptor.create(step, place, file_type(found.st_mode), perform)
            else:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            return self._objects.enter(parent, dir_fd, name)

    # -- removing and moving --------------------------------------------------------------------------------------

    def unlink(self, caller: Caller, parent: int, name: bytes) -> None:
        """See `Names`."""
        with self._objects.directory(parent) as dir_fd:
            step, interceptor = self._host.step(caller.thread), self._host.interceptor
            with interceptor.gate:
                place = self._objects.place(parent, dir_fd, name)
                interceptor.unlink(step, place, lambda: os.unlink(name, dir_fd=dir_fd))

    def rmdir(self, caller: Caller, parent: int, name: bytes) -> None:
        """See `Names`."""
        with self._objects.directory(parent) as dir_fd:
            step, interceptor = self._host.step(caller.thread), self._host.interceptor
            with interceptor.gate:
                place = self._objects.place(parent, dir_fd, name)
                removed = self._objects.known_directory(dir_fd, name)
                interceptor.rmdir(step, place, lambda: os.rmdir(name, dir_fd=dir_fd))
                self._objects.note_removed(removed)

    def rename(self, caller: Caller, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int) -> None:
        """See `Names`."""
        if flags & _RENAME_WHITEOUT:
            # A device that only overlay file systems make: nothing here could reverse it.
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        objects, interceptor, step = self._objects, self._host.interceptor, self._host.step(caller.thread)
        with objects.directory(parent) as dir_fd, objects.directory(new_parent) as new_dir_fd, interceptor.gate:
            source = objects.place(parent, dir_fd, name)
            is_beside = new_parent == parent
            target = objects.beside(source, new_name) if is_beside else objects.place(new_parent, new_dir_fd, new_name)
            replaced = None if flags & RENAME_EXCHANGE else objects.known_directory(new_dir_fd, new_name)
            interceptor.rename(
                step,
                source,
                target,
                flags,
                lambda: renameat2(dir_fd, name, new_dir_fd, new_name, flags),
            )
            objects.note_removed(replaced)
            objects.note_moved(new_parent, new_dir_fd, new_name)
            if flags & RENAME_EXCHANGE:
                objects.note_moved(parent, dir_fd, name)
