"""New content for many paths: written aside, made durable together, then renamed into place.

A path in an existing directory gets a temporary beside it. The content of a new directory is built inside a temporary
directory, which appears whole by one rename: writing a whole tree costs no rename per file, and a crash leaves no torn
file.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import closing

from holdfast.files.index.stat_index import Signature, signature_of
from holdfast.files.linux import exclusive_rename, syscalls
from holdfast.files.linux.metadata import read_xattrs_at
from holdfast.files.write import atomic_replacement
from holdfast.files.write._file_creator import FileCreator, FileOrder
from holdfast.files.write._trash import Trash, remove_tree
from holdfast.files.write.atomic_replacement import GONE, Durability, TemporaryNames
from holdfast.files.write.ownership import Owner
from holdfast.files.write.rooted_access import NOT_A_DIRECTORY, Root
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError, StorageError, room_hint
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.paths import MAX_PATH_BYTES, display

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.files.linux.metadata import Xattrs
    from holdfast.files.tree import ApplyNotes
    from holdfast.files.write._file_creator import TreeError
    from holdfast.files.write.displaced_file import DisplacedFile
    from holdfast.model.content import Content, Supply
    from holdfast.model.entries import Change, Entry

IN_THE_WAY = "something that no checkpoint holds is in the way"
NAMED_TWICE = "its name is given twice"
_ONLY_GROWS = "its directory takes new entries and gives none away again (chattr +a)"
_MOVED = "its directory was moved away while it was written"

_STAGE_ROOM = 256
"""How much longer than the path itself the path of a temporary may be."""

_FATAL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EFBIG})
"""Errors that will also affect the next path, or that mean that written data may be lost."""


class PlacedPath(NamedTuple):
    """The result for one path of a batch."""

    change: Change
    reason: str | None
    """Why it was left alone; None if the change was made."""
    seen: Signature | None
    """Its present signature; None if that is uncertain."""


class _Pending(NamedTuple):
    change: Change
    temporary: bytes
    taken: DisplacedFile | None
    written: Signature


def is_out_of_space(error: HoldfastError | OSError) -> bool:
    """True if it is room on the disk, or in a quota, that is missing."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)


def reason_for(error: HoldfastError | OSError, path: bytes, wanted: str = "written") -> str:
    """Why ``path``, which should have been ``wanted``, is left alone after ``error``; raises `StorageError` instead if
    it is useless to go on.
    """
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, OSError) and cause.errno in _FATAL:
        message = f"{display(path)!r} could not be {wanted}: {cause.strerror}"
        raise StorageError(message, hint=room_hint(cause)) from error
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return error.message


class WriteBatch:
    """New files and links of one call that are not in place yet. For one thread; reusable after `commit`."""

    def __init__(
        self,
        root: Root,
        names: TemporaryNames,
        trash: Trash,
        owner: Owner | None,
        notes: ApplyNotes | None = None,
        *,
        flags: bool,
    ) -> None:
        """Creates nothing yet; replaced files go to ``trash``; ``notes`` as for `Tree.apply`; ``flags`` as for
        `atomic_replacement.exchange`.
        """
        self._root = root
        self._names = names
        self._trash = trash
        self._owner = owner
        self._notes = notes
        self._flags = flags
        self.touched: set[bytes] = set()
        """Directories whose entries have changed; the caller syncs them after `commit` (see `sync`)."""
        self.changed_xattrs: list[bytes] = []
        """The paths whose extended attributes the system did not let them keep."""
        self.changed_owners: list[bytes] = []
        """Paths whose owner and group could not be kept."""
        self._begin()

    @property
    def ordered(self) -> int:
        """How many of the files are only ordered: `commit` makes them."""
        return len(self._orders)

    def _begin(self) -> None:
        self.files = 0
        self.bytes = 0
        self._creator = FileCreator(self._root, self._owner)
        self._supply: Supply | None = None
        self._orders: list[FileOrder] = []
        """Files to be made from the supply."""
        self._pending: list[_Pending] = []
        self._staged: list[tuple[Change, Signature]] = []
        self._named: set[bytes] = set()
        """The paths that are staged, or to be."""
        self._stages: dict[bytes, bytes] = {}
        self._located: dict[bytes, tuple[bytes, bool]] = {}
        self._asked: set[bytes] = set()
        """Directories that are not append-only (chattr +a)."""

    def locate(self, parent: bytes) -> tuple[bytes, bool]:
        """The directory to make the files of the directory ``parent`` in, and whether that is a temporary one."""
        known = self._located.get(parent)
        if known is not None:
            return known
        missing: list[bytes] = []
        at = parent
        staged_above = self._is_staged_above(parent)
        while (found := self._located.get(at)) is None:
            if staged_above:
                missing.append(at)
                at = at.rpartition(b"/")[0]
                continue
            try:
                self._root.directory(at)
                found = self._located[at] = (at, False)
            except NotFoundError as error:
                if error.code == NOT_A_DIRECTORY:
                    raise RefusedError(IN_THE_WAY) from None
                missing.append(at)
                at = at.rpartition(b"/")[0]
        if missing and not found[1] and len(parent) + _STAGE_ROOM > MAX_PATH_BYTES - _STAGE_ROOM:
            # A temporary's name would make paths too long: such directories are made in place.
            self._root.make_directory(parent, self._owner)
            return parent, False
        for at in reversed(missing):
            above, staged = found
            if staged:
                found = (above + b"/" + at.rpartition(b"/")[2], True)
                self._root.make_one(found[0], self._owner, at)
                self._root.directory(found[0])  # raises if another object has that name by now
            else:
                found = (self._new_stage(at, above), True)
                self._stages[at] = found[0]
            self._located[at] = found
        return found

    def _is_staged_above(self, path: bytes) -> bool:
        """True if a directory above ``path`` is known to be a temporary one: then there is nothing at ``path`` yet."""
        at = path
        while at and at not in self._located:
            at = at.rpartition(b"/")[0]
        return self._located.get(at, (b"", False))[1]

    def _new_stage(self, path: bytes, above: bytes) -> bytes:
        self._refuse_what_only_grows(above)
        while True:
            name = self._names.new()
            stage = above + b"/" + name if above else name
            # A directory of that name is left over from a killed call: none of its content may ever get into the tree.
            if not exclusive_rename.exists(self._root.directory(above), name):
                self._root.make_one(stage, self._owner, path)
                return stage

    def stage(self, change: Change, directory: bytes, content: Content | Supply) -> str | None:
        """Write a new path into the temporary ``directory`` that `locate` gave; the reason if it cannot be."""
        if change.path in self._named:
            return NAMED_TWICE
        self._named.add(change.path)
        name = change.path.rpartition(b"/")[2]
        return self._make(FileOrder(change, _after(change), directory, name, True, None, ()), content)

    def prepare(
        self,
        change: Change,
        content: Content | Supply,
        taken: DisplacedFile | None,
        xattrs: Xattrs = (),
        kept: Owner | None = None,
    ) -> str | None:
        """Write a temporary beside the path, to replace ``taken`` (or nothing), with the extended attributes
        ``xattrs``, owned by ``kept``; returns the reason if that is impossible.
        """
        directory = change.path.rpartition(b"/")[0]
        self._refuse_what_only_grows(directory)
        dir_fd = self._root.directory(directory)
        temporary = self._names.new()
        while exclusive_rename.exists(dir_fd, temporary):
            temporary = self._names.new()
        return self._make(FileOrder(change, _after(change), directory, temporary, False, taken, xattrs, kept), content)

    def _make(self, order: FileOrder, content: Content | Supply) -> str | None:
        """Make it now, or with others by `commit` if ``content`` is still to be fetched."""
        self.files += 1
        self.bytes += order.after.size
        if isinstance(content, (bytes, Iterator)):
            return self._made(order, self._creator.create(order, content))
        self._supply = content
        self._orders.append(order)
        return None

    def _made(self, order: FileOrder, made: Signature | TreeError) -> str | None:
        """Record a file that was made, for putting it in place; returns the reason if it was not made."""
        if isinstance(made, FileExistsError) and order.staged:
            return NAMED_TWICE
        if not isinstance(made, Signature):
            return reason_for(made, order.change.path)
        if order.staged:
            self._staged.append((order.change, made))
        else:
            self._pending.append(_Pending(order.change, order.name, order.taken, made))
            if order.xattrs and not self._has(order):
                self.changed_xattrs.append(order.change.path)
            if order.kept is not None and self._owner_of(order) != order.kept:
                self.changed_owners.append(order.change.path)
        return None

    def _owner_of(self, order: FileOrder) -> Owner:
        """The owner of the new file."""
        info = os.stat(order.name, dir_fd=self._root.directory(order.directory), follow_symlinks=False)
        return Owner(info.st_uid, info.st_gid)

    def _has(self, order: FileOrder) -> bool:
        """Whether the new file has all of its ordered attributes."""
        found = read_xattrs_at(self._root.directory(order.directory), order.name)
        return set(order.xattrs) <= set(found)

    def _refuse_what_only_grows(self, directory: bytes) -> None:
        """Raise `RefusedError` if a temporary in the directory could never be renamed, nor removed again."""
        if directory not in self._asked:
            if syscalls.only_grows(self._root.directory(directory)):
                raise RefusedError(_ONLY_GROWS)
            self._asked.add(directory)

    def commit(self, report: Callable[[int], None]) -> Iterator[PlacedPath]:
        """Make the ordered files, make all files durable, then put each in its place. The caller uses the iterator up.

        ``report`` is called with how many of the ordered files are made. The renames are durable after `sync`. Raises
        `StorageError`, `OSError`, and what the supply raises; then `abandon`.
        """
        if self._supply is not None:
            with closing(self._creator.create_all(self._orders, self._supply, report)) as making:
                for order, made in making:
                    reason = self._made(order, made)
                    if reason is not None:
                        yield PlacedPath(order.change, reason, None)
            self._orders = []
        content = self._creator.content
        # (If `content` syncs the whole device, that includes the temporary directories.)
        if not content.covers(self._creator.devices):
            for directory, staged in self._located.values():
                if staged:
                    content.add_directory(self._root.directory(directory))
        content.flush()
        # Looked up afresh from here: a directory that was swapped since does not hold its temporaries any more.
        self._root.forget()
        yield from self._place_stages()
        # Each stays among the pending ones until it is placed, for `abandon` to find it by the name that it has then.
        self._pending.reverse()
        while self._pending:
            yield self._place(self._pending[-1])
            self._pending.pop()
        self._begin()

    def sync(self, durability: Durability, before: Callable[[Durability], None]) -> None:
        """Make every change of a directory so far durable, and all that ``durability`` holds. ``before`` is called just
        before that, when no directory has to be opened any more, and may add to it.
        """
        for path in self.touched:
            try:
                durability.add_directory(self._root.directory(path))
            except HoldfastError:
                continue  # it was removed or swapped since: its content is not at these paths any more
        before(durability)
        durability.flush()
        self.touched.clear()

    def abandon(self) -> None:
        """Remove every temporary that is not in place, as far as the system lets us."""
        self._creator.content.close()
        self._root.forget()
        for item in self._pending:
            try:
                dir_fd, name = self._root.locate(item.change.path)
                if _unchanged(dir_fd, item.temporary, item.written):
                    os.unlink(item.temporary, dir_fd=dir_fd)
                else:
                    atomic_replacement.keep_beside(dir_fd, item.temporary, name)
            except (HoldfastError, OSError):
                continue
        for stage in self._stages.values():
            try:
                remove_tree(self._root, stage)
            except HoldfastError:
                continue
        self._begin()

    def _place(self, item: _Pending) -> PlacedPath:
        change, taken = item.change, item.taken
        seen = None
        try:
            dir_fd, name = self._root.locate(change.path)
            if taken is not None:
                item = self._mark(item, dir_fd, taken)
                try:
                    reason = atomic_replacement.exchange(dir_fd, item.temporary, name, taken, flags=self._flags)
                except OSError as error:
                    if error.errno != errno.EBUSY or not atomic_replacement.is_mount_point(dir_fd, name):
                        raise
                    return self._write_over(item, dir_fd, name, taken)
            elif exclusive_rename.move_if_absent(dir_fd, item.temporary, dir_fd, name, flags=self._flags):
                reason = None
            else:
                os.unlink(item.temporary, dir_fd=dir_fd)
                reason = IN_THE_WAY
            parent = change.path.rpartition(b"/")[0]
            self.touched.add(parent)
            if reason is None:
                if taken is not None:
                    self._trash.add(parent, item.temporary, change.path, taken)
                seen = _unchanged(dir_fd, name, item.written)
        except (FileNotFoundError, NotFoundError):
            reason = _MOVED
        except (HoldfastError, OSError) as error:
            reason = reason_for(error, change.path)
            self._drop(item)
        return PlacedPath(change, reason, seen)

    def _write_over(self, item: _Pending, dir_fd: int, name: bytes, taken: DisplacedFile) -> PlacedPath:
        """Write the content of the temporary into the file ``name``, a mount point. Raises `OSError`."""
        change, after = item.change, _after(item.change)
        seen: str | os.stat_result = atomic_replacement.MOUNT_POINT
        if self._notes is not None and not after.is_symlink:
            self._notes.in_place(change.path)
            seen = atomic_replacement.write_over(dir_fd, item.temporary, name, taken, after)
        self._drop(item)
        self.touched.add(change.path.rpartition(b"/")[0])
        return PlacedPath(change, seen, None) if isinstance(seen, str) else PlacedPath(change, None, signature_of(seen))

    def _mark(self, item: _Pending, dir_fd: int, taken: DisplacedFile) -> _Pending:
        """Give the temporary, which is durable, the name for an exchange with a file of the tree."""
        marked = self._names.exchanged(item.temporary, _after(item.change), taken)
        os.rename(item.temporary, marked, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        self._pending[-1] = item._replace(temporary=marked)
        return self._pending[-1]

    def _drop(self, item: _Pending) -> None:
        """Remove a temporary that could not be put in place, if it is unchanged."""
        try:
            dir_fd, _ = self._root.locate(item.change.path)
            if _unchanged(dir_fd, item.temporary, item.written):
                os.unlink(item.temporary, dir_fd=dir_fd)
        except (HoldfastError, OSError):
            return

    def _place_stages(self) -> Iterator[PlacedPath]:
        failed: dict[bytes, str] = {}
        moved: set[bytes] = set()
        for path, stage in list(self._stages.items()):
            self._place_stage(path, stage, failed, moved)
            del self._stages[path]
        for change, seen in self._staged:
            reason = _covering(failed, change.path)
            if reason is not None:
                yield PlacedPath(change, reason, None)
            elif change.path in moved:
                yield self._moved(change, seen)
            else:
                yield PlacedPath(change, None, seen)
        self._staged = []

    def _moved(self, change: Change, written: Signature) -> PlacedPath:
        try:
            seen = _unchanged(*self._root.locate(change.path), written)
        except (HoldfastError, OSError) as error:
            return PlacedPath(change, reason_for(error, change.path), None)
        return PlacedPath(change, None, seen)

    def _place_stage(self, path: bytes, stage: bytes, failed: dict[bytes, str], moved: set[bytes]) -> None:
        """Rename a temporary directory to ``path``. If another process has made that meanwhile, move in the files
        without a counterpart there.

        ``failed`` gets the paths that were left alone with all below them, ``moved`` the singly renamed files.
        """
        todo = [(stage, path)]
        while todo:
            source, target = todo.pop()
            try:
                old, new = self._root.locate(source), self._root.locate(target)
                is_directory = stat.S_ISDIR(self._root.lstat(source).st_mode)
                if exclusive_rename.move_if_absent(old.dir_fd, old.name, new.dir_fd, new.name, flags=self._flags):
                    self._root.forget(source)
                    self.touched.add(target.rpartition(b"/")[0])
                    if not is_directory:
                        moved.add(target)
                elif is_directory and stat.S_ISDIR(self._root.lstat(target).st_mode):
                    todo += [(source + b"/" + name, target + b"/" + name) for name in self._root.list(source)]
                else:
                    failed[target] = IN_THE_WAY
            except (FileNotFoundError, NotFoundError):
                failed[target] = _MOVED
            except (HoldfastError, OSError) as error:
                failed[target] = reason_for(error, target)
        try:
            remove_tree(self._root, stage)
        except NotFoundError:
            pass  # the common case: all of it moved
        except HoldfastError as error:
            reason_for(error, stage)


def _after(change: Change) -> Entry:
    if change.after is None:
        raise RefusedError(GONE)
    return change.after


def _unchanged(dir_fd: int, name: bytes, written: Signature) -> Signature | None:
    """The present signature of the ``written`` file (a rename changes the ctime); None if it was changed."""
    seen = signature_of(os.stat(name, dir_fd=dir_fd, follow_symlinks=False))
    return seen if seen._replace(ctime_ns=written.ctime_ns) == written else None


def _covering(failed: dict[bytes, str], path: bytes) -> str | None:
    if not failed:
        return None
    while path:
        if (reason := failed.get(path)) is not None:
            return reason
        path = path.rpartition(b"/")[0]
    return None
