"""Objects in a local directory: synced, private, atomic.

The layout is specified in ``docs/formats/objects.md``. The store's directory is trusted: it is private to its owner.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from holdfast.model.content import CHUNK_BYTES
from holdfast.model.errors import IntegrityError, NotFoundError, StorageError, UsageError
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.store.objects.disk_port import SYSTEM_DISK, Disk, is_marked_durable
from holdfast.store.objects.object_keys import TEMPORARY, check_key, check_prefix
from holdfast.store.objects.object_store import ObjectInfo, put_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from holdfast.store.objects.object_store import Upload

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_HINT = (
    "free some space: `holdfast gc --grace 0`, after `holdfast forget --keep-last N` if that is too little; "
    "nothing that was stored before is affected"
)
_ABSENT = (errno.ENOENT, errno.ENOTDIR)


def _refused(action: str, name: str, error: OSError) -> StorageError:
    hint = _FULL_HINT if error.errno in _FULL else None
    return StorageError(f"cannot {action} {name}: {error.strerror or error}", hint=hint)


class LocalObjects:
    """An `ObjectStore` in the directory ``root``, which is created (mode 0700) when the first object is written.

    ``random`` makes the names of temporary files; ``disk`` is how the directory is changed.
    """

    def __init__(
        self, root: str | bytes, *, random: Callable[[int], bytes] = os.urandom, disk: Disk = SYSTEM_DISK
    ) -> None:
        self.root = os.path.abspath(os.fsdecode(root))
        self.disk = disk
        self._random = random
        self._temporary = f"{self.root}/{TEMPORARY}"
        self._synced: set[str] = set()
        """Directories whose own entry, and that of every directory above up to the root's, this process has made
        durable.
        """

    def upload(self) -> Upload:
        """See `ObjectStore.upload`."""
        path = f"{self._temporary}/{self._random(16).hex()}"
        try:
            try:
                fd = self.disk.create(path)
            except FileNotFoundError:
                self._synced.clear()
                self._ensure_directory(self._temporary)
                fd = self.disk.create(path)
        except OSError as error:
            raise _refused("write an object in", self._temporary, error) from error
        return _LocalUpload(self, path, fd)

    def put(self, key: str, parts: Iterable[bytes]) -> None:
        """See `ObjectStore.put`."""
        put_parts(self, check_key(key), parts)

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """See `ObjectStore.get`."""
        return self.get_ranges(key, [(offset, length)])[0]

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int | None]]) -> list[bytes]:
        """See `holdfast.store.objects.object_store.get_ranges`: the object is opened once."""
        found: list[bytes] = []
        fd = -1
        try:
            size = 0
            for offset, length in ranges:
                if offset < 0 or (length is not None and length < 0):
                    raise UsageError(f"bad range of object {key}: {length} bytes at {offset}")
                if fd < 0:
                    fd, size = self._open(key)
                wanted = max(size - offset, 0) if length is None else length
                # A damaged catalog may ask for anything, and the memory is taken before the first byte is read.
                data = os.pread(fd, wanted, offset) if offset + wanted <= size else b""
                if 0 < len(data) < wanted:
                    data = self._read_on(fd, data, wanted, offset)
                if len(data) != wanted or offset > size:
                    raise IntegrityError(f"object {key} is too short: {wanted} bytes at {offset} of {size}")
                found.append(data)
        except OSError as error:
            raise _refused("read", key, error) from error
        finally:
            if fd >= 0:
                os.close(fd)
        return found

    def stream(self, key: str) -> Iterator[bytes]:
        """See `ObjectStore.stream`."""
        fd, _ = self._open(key)
        try:
            while piece := os.read(fd, CHUNK_BYTES):
                yield piece
        except OSError as error:
            raise _refused("read", key, error) from error
        finally:
            os.close(fd)

    def size(self, key: str) -> int | None:
        """See `ObjectStore.size`."""
        try:
            status = os.lstat(f"{self.root}/{check_key(key)}")
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise _refused("look up", key, error) from error
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        try:
            self.disk.remove(f"{self.root}/{check_key(key)}")
        except OSError as error:
            if error.errno not in (*_ABSENT, errno.EISDIR):
                raise _refused("delete", key, error) from error

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`."""
        directory, beginning = check_prefix(prefix)
        yield from self._walk(directory, beginning)

    def clean(self, older_than: int) -> int:
        """See `ObjectStore.clean`."""
        removed = 0
        try:
            with os.scandir(self._temporary) as entries:
                for entry in entries:
                    try:
                        if entry.stat(follow_symlinks=False).st_mtime_ns // 1000 < older_than:
                            self.disk.remove(entry.path)
                            removed += 1
                    except FileNotFoundError:
                        continue
        except FileNotFoundError:
            return removed
        except OSError as error:
            raise _refused("clean", self._temporary, error) from error
        return removed

    def publish(self, temporary: str, key: str) -> None:
        """Rename the synced file ``temporary`` to ``key`` and make the name durable; raises `OSError`."""
        target = f"{self.root}/{key}"
        directory = os.path.dirname(target)
        self._ensure_directory(directory)
        try:
            self.disk.rename(temporary, target)
        except FileNotFoundError:
            # Another process has removed the directory since; if the temporary file is gone, this fails again.
            self._synced.clear()
            self._ensure_directory(directory)
            self.disk.rename(temporary, target)
        self.disk.sync_directory(directory)

    def _ensure_directory(self, path: str) -> None:
        """Make ``path`` and missing parents; afterwards the entry of each, from the root down, is durable.

        A store then marks the directory. An existing one without the mark is synced as if it were new: another process
        may have just made it, and been killed before the sync.
        """
        if path in self._synced:
            return
        if path != self.root and is_marked_durable(path):
            self._synced.add(path)
            return
        parent = os.path.dirname(path)
        created = False
        try:
            self.disk.make_directory(path)
            created = True
        except FileExistsError:
            pass
        except FileNotFoundError:
            self._ensure_directory(parent)
            try:
                self.disk.make_directory(path)
                created = True
            except FileExistsError:
                pass
        if created or path.startswith(f"{self.root}/"):
            self._ensure_directory(parent)
            self.disk.sync_directory(parent)
            if path != self.root:
                # Only now: the mark may reach the disk before anything that comes after this sync, but not before it.
                with suppress(OSError):  # a file system without modes: the next process syncs again
                    self.disk.mark_durable(path)
        self._synced.add(path)

    def _open(self, key: str) -> tuple[int, int]:
        path = f"{self.root}/{check_key(key)}"
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            if error.errno in _ABSENT:
                raise NotFoundError(f"no object {key}") from error
            raise _refused("open", key, error) from error
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise NotFoundError(f"no object {key}")
        return fd, status.st_size

    def _read_on(self, fd: int, data: bytes, wanted: int, offset: int) -> bytes:
        # One call reads at most 2 GiB, and a signal or a network file system may cut any read short.
        parts = [data]
        have = len(data)
        while have < wanted and parts[-1]:
            parts.append(os.pread(fd, wanted - have, offset + have))
            have += len(parts[-1])
        return b"".join(parts)

    def _walk(self, directory: str, beginning: str) -> Iterator[ObjectInfo]:
        try:
            with os.scandir(f"{self.root}/{directory}") as entries:
                found = [entry for entry in entries if entry.name.startswith(beginning)]
            for entry in found:
                key = directory + entry.name
                if entry.is_dir(follow_symlinks=False):
                    if key != TEMPORARY:
                        yield from self._walk(f"{key}/", "")
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    yield ObjectInfo(key, status.st_size, status.st_mtime_ns // 1000)
        except OSError as error:
            if error.errno not in _ABSENT:
                raise _refused("list", directory or self.root, error) from error


class _LocalUpload:
    """An object being written to a temporary file."""

    __slots__ = ("_disk", "_fd", "_path", "_store")

    def __init__(self, store: LocalObjects, path: str, fd: int) -> None:
        self._store = store
        self._disk = store.disk
        self._path = path
        self._fd: int | None = fd

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See `Upload.write`."""
        fd = self._descriptor()
        try:
            done = self._disk.write(fd, data)
            if done < len(data):
                with memoryview(data) as view:
                    while done < len(view):
                        done += self._disk.write(fd, view[done:])
        except OSError as error:
            self.abort()
            raise _refused("write an object in", os.path.dirname(self._path), error) from error

    def commit(self, key: str) -> None:
        """See `Upload.commit`. If the very last step fails, the sync of the directory, the object may remain.

        It is not removed: another process may have stored the same content under the same key meanwhile.
        """
        fd = self._descriptor()
        try:
            check_key(key)
            try:
                self._disk.sync(fd)
            except OSError as error:
                # The kernel may have dropped the pages and the error with them: a second sync would mean nothing.
                raise _refused("sync", key, error) from error
            self._fd = None
            try:
                self._disk.close(fd)
                self._store.publish(self._path, key)
            except OSError as error:
                self._discard()
                raise _refused("publish", key, error) from error
        finally:
            self.abort()

    def abort(self) -> None:
        """See `Upload.abort`."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        try:
            self._disk.close(fd)
        except OSError:
            pass
        self._discard()

    def _descriptor(self) -> int:
        if self._fd is None:
            raise StorageError("this upload has ended: it was committed, aborted, or could not be written")
        return self._fd

    def _discard(self) -> None:
        try:
            self._disk.remove(self._path)
        except OSError:
            # Remaining files are invisible, and `clean` removes them.
            pass
