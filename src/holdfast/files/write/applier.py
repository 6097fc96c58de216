"""Changes a directory tree from one state to another: each path atomically, and only if it still is as it was seen."""

from __future__ import annotations

import errno
import os
import stat

from holdfast.files.index.stat_index import signature_of
from holdfast.files.linux import syscalls
from holdfast.files.linux.metadata import proc_path, read_xattrs
from holdfast.files.tree import ApplyResult, CleanResult
from holdfast.files.write._file_creator import TREE_ERRORS, ContentError
from holdfast.files.write._trash import Leftovers, Trash, remove_hollow
from holdfast.files.write._writable_directories import OpenedDirectories
from holdfast.files.write.atomic_replacement import GONE, MOUNT_POINT, Durability, TemporaryNames, is_mount_point
from holdfast.files.write.batch import IN_THE_WAY, WriteBatch, is_out_of_space, reason_for
from holdfast.files.write.displaced_file import CHANGED, DisplacedFile, identity_of, read_entry
from holdfast.files.write.ownership import Owner
from holdfast.files.write.refusals import refusal_cause
from holdfast.files.write.rooted_access import EntryLocation, Root, open_regular
from holdfast.model.entries import Entry, NotCaptured
from holdfast.model.errors import EscapeError, HoldfastError, NotFoundError, StorageError, room_hint
from holdfast.model.fast_typing import TYPE_CHECKING, Protocol
from holdfast.model.log import Log
from holdfast.model.paths import display, parents

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.files.index.stat_index import KnownFile, Signature
    from holdfast.files.linux.metadata import Xattrs
    from holdfast.files.tree import ApplyNotes
    from holdfast.model.content import Content, Progress, Supply
    from holdfast.model.entries import Change

OTHER_NAMES = "it has other names (hard links), whose permissions would change with it"
_REFUSED = frozenset(map(os.strerror, (errno.EPERM, errno.EACCES, errno.EROFS)))
_ACCESS_LIST = "system.posix_acl_access"
_MAX_SAID = 5
DIRECTORY_IN_THE_WAY = "a directory that is not empty is in the way"

_log = Log(__name__)

_BATCH_FILES = 16_384
_BATCH_BYTES = 256 << 20


class ObservedFiles(Protocol):
    """The results of the last scan of the tree, updated with each change."""

    def get(self, path: bytes) -> KnownFile | None:
        """The record of ``path``; None if there is none: its content is then read where it matters."""
        ...

    def put(self, path: bytes, entry: Entry, signature: Signature) -> None:
        """``path`` is ``entry``, certain while it looks like ``signature``, unless that is too new to tell."""
        ...

    def drop(self, path: bytes) -> None:
        """Remove the record of ``path``; harmless if there is none."""
        ...


class Applier:
    """Changes the tree below a `Root`. For one thread at a time; see `holdfast.files.tree.Tree` for the contract."""

    def __init__(
        self,
        root: Root,
        observed: ObservedFiles,
        *,
        owner: Owner | None = None,
        configured: tuple[int | None, int | None] = (None, None),
        flags: bool = True,
    ) -> None:
        """Created files are given to ``owner``, if there is one. A replacement keeps the owner of the old file, except
        for the user and group that are ``configured``. ``flags=False`` does without renameat2(2).
        """
        self._root = root
        self._observed = observed
        self._owner = owner
        self._configured = (None, None) if owner is None else configured
        self._flags = flags

    def apply(
        self,
        deletes: Sequence[Change],
        writes: Iterable[tuple[Change, Content | Supply | None]],
        *,
        nonce: str,
        progress: Progress | None = None,
        notes: ApplyNotes | None = None,
    ) -> ApplyResult:
        """See `Tree.apply`. The phases for ``progress`` are ``delete`` and ``write``.

        ``nonce`` is 1 to 64 letters and digits. Raises `IntegrityError` for content that differs from its entry, the
        errors of the content's own iterators, and `StorageError` when the disk is full or fails: then no temporary of
        this call is left, and earlier replacements stay, durable. A path that is never allowed or leads through a link
        is skipped.
        """
        if os.fstatvfs(self._root.fd).f_flag & os.ST_RDONLY:
            raise StorageError("the tree could not be changed: its file system is mounted read-only")
        names = TemporaryNames(nonce)
        trash = Trash(self._root, names)
        batch = WriteBatch(self._root, names, trash, self._owner, notes, flags=self._flags)
        opened = None if notes is None else OpenedDirectories(self._root, notes)
        work = _Work(self._root, self._observed, trash, batch, progress, opened, self._configured)
        try:
            if opened is not None and notes is not None:
                opened.open_above([*(change.path for change in deletes), *notes.paths])
            work.delete_all(deletes)
            work.write_all(writes)
            work.finish()
        except BaseException as error:
            work.abandon()
            if isinstance(error, ContentError):
                raise error.cause from None
            if isinstance(error, OSError):
                message = f"the tree could not be changed: {error.strerror}"
                raise StorageError(message, hint=room_hint(error)) from error
            raise
        finally:
            self._root.forget()
        _say_lost("had other names (hard links), and are files of their own now", work.parted, work.written)
        _say_lost("could not keep all of their extended attributes", batch.changed_xattrs, work.written)
        _say_lost("could not keep their owner and group", batch.changed_owners, work.written)
        return ApplyResult(work.written, work.deleted, [self._explained(one) for one in work.skipped])

    def _explained(self, skipped: NotCaptured) -> NotCaptured:
        """With the cause of a refusal by the system, and the remedy."""
        if skipped.reason not in _REFUSED:
            return skipped
        return skipped._replace(reason=refusal_cause(self._root.fd, skipped.path) or skipped.reason)

    def clean(self, nonce: str) -> CleanResult:
        """See `Tree.clean`. Follows no link."""
        names = TemporaryNames(nonce)
        left = Leftovers(self._root, names)
        todo = [b""]
        while todo:
            path = todo.pop()
            try:
                ours = False
                for name in self._root.list(path):
                    inner = path + b"/" + name if path else name
                    dir_fd = self._root.directory(path)
                    info = _lstat(EntryLocation(dir_fd, name))
                    if info is None:
                        continue
                    if not names.owns(name):
                        if stat.S_ISDIR(info.st_mode):
                            todo.append(inner)
                        continue
                    ours = True
                    left.remove(inner, info)
                if ours:
                    os.fsync(self._root.directory(path))
            except TREE_ERRORS as error:
                reason_for(error, path)  # gone, swapped or unreadable: no file of ours can be reached there
        self._root.forget()
        return CleanResult(left.removed, left.kept)


class _Work:
    """One call of `Applier.apply`."""

    def __init__(
        self,
        root: Root,
        observed: ObservedFiles,
        trash: Trash,
        batch: WriteBatch,
        progress: Progress | None,
        opened: OpenedDirectories | None,
        configured: tuple[int | None, int | None],
    ) -> None:
        self._root = root
        self._observed = observed
        self._configured = configured
        self._trash = trash
        self._batch = batch
        self._progress = progress
        self._opened = opened
        self._emptied: set[bytes] = set()
        """Directories that lost an entry: removed if they are empty now."""
        self._in_place = Durability()
        """Files whose permissions were changed."""
        self.parted: list[bytes] = []
        """Files that have another name, which the one in their place has not."""
        self.written: list[bytes] = []
        self.deleted: list[bytes] = []
        self.skipped: list[NotCaptured] = []

    def _report(self, phase: str, done: int, total: int, *, every: int = 64) -> None:
        if self._progress is not None and not done % every:
            self._progress(phase, done, total)

    def delete_all(self, deletes: Sequence[Change]) -> None:
        """Delete every path that is still as its change expects; in an order that visits each directory once.

        On a full disk even a rename may need space. Other deletions may free enough of it, so those come first.
        """
        postponed: list[Change] = []
        for done, change in enumerate(sorted(deletes, key=_path_of, reverse=True)):
            self._report("delete", done, len(deletes))
            try:
                self._note_deleted(change, self._delete(change))
            except TREE_ERRORS as error:
                if is_out_of_space(error):
                    postponed.append(change)
                else:
                    self._note_deleted(change, reason_for(error, change.path, "deleted"))
        if postponed:
            self._empty_trash()
        for change in postponed:
            try:
                self._note_deleted(change, self._delete(change))
            except TREE_ERRORS as error:
                self._note_deleted(change, reason_for(error, change.path, "deleted"))
        self._report("delete", len(deletes), len(deletes), every=1)

    def _note_deleted(self, change: Change, reason: str | None) -> None:
        """``change`` was made, or not for the ``reason``."""
        if reason is None:
            self.deleted.append(change.path)
            self._observed.drop(change.path)
        else:
            self.skipped.append(NotCaptured(change.path, reason))

    def _delete(self, change: Change) -> str | None:
        parent = self._root.check(change.path).rpartition(b"/")[0]
        try:
            place = self._root.locate(change.path)
        except (NotFoundError, EscapeError):
            place = None  # objects reached by a link are not in the tree
        info = None if place is None else _lstat(place)
        self._emptied.add(parent)
        if place is None or info is None or stat.S_ISDIR(info.st_mode):
            return None  # a directory is no file: a call that was cut short may have made it
        before = change.before
        if before is None or self._entry_at(change.path, place, info, before) != before:
            return CHANGED
        self._batch.touched.add(parent)
        try:
            return self._trash.take(change.path, self._taken(change.path, info, before))
        except OSError as error:
            if error.errno == errno.EBUSY and is_mount_point(*place):
                return MOUNT_POINT
            raise

    def write_all(self, writes: Iterable[tuple[Change, Content | Supply | None]]) -> None:
        """Write every path that still is what its change expects."""
        done = 0
        self._make_room()
        for change, content in writes:
            if not self._batch.ordered:
                self._report("write", done, 0)
            done += 1
            try:
                if change.after is not None and change.after.size > _BATCH_BYTES:
                    self._make_room(change.after.size)
                reason = self._write(change, content)
            except TREE_ERRORS as error:
                reason = reason_for(error, change.path)
            finally:
                if close := getattr(content, "close", None):
                    close()
            if reason is not None:
                self.skipped.append(NotCaptured(change.path, reason))
            if self._batch.files >= _BATCH_FILES or self._batch.bytes >= _BATCH_BYTES:
                self._commit(done)
                self._make_room()
        self._commit(done)
        self._report("write", done, done, every=1)

    def _make_room(self, size: int = 0) -> None:
        """Delete the removed files now, not at the end, if there is little space for the files to write.

        All of them are in a checkpoint. Only speed is lost: see `holdfast.files.write.atomic_replacement`.
        """
        if not self._trash.holds_room():
            return
        about = os.statvfs(self._root.fd)
        few_files = about.f_files > 0 and about.f_favail < _BATCH_FILES
        if few_files or about.f_bavail * about.f_frsize < size + 2 * _BATCH_BYTES:
            self._empty_trash()

    def _write(self, change: Change, content: Content | Supply | None) -> str | None:
        path, before, after = change
        if after is None:
            return CHANGED
        parent, _, name = self._root.check(path).rpartition(b"/")
        directory, staged = self._batch.locate(parent)
        if staged:
            return GONE if before is not None or content is None else self._batch.stage(change, directory, content)
        place = EntryLocation(self._root.directory(directory), name)
        info = _lstat(place)
        if info is not None and stat.S_ISDIR(info.st_mode):
            if before is not None:
                return CHANGED
            if not remove_hollow(self._root, path):
                return DIRECTORY_IN_THE_WAY
            info = None
        taken = None
        xattrs: Xattrs = ()
        kept: Owner | None = None
        if info is not None:
            found = self._entry_at(path, place, info, before, after)
            if found == after:
                if self._observed.get(path) is None:
                    self._observed.put(path, after, signature_of(info))
                self.written.append(path)
                return None
            if before is None:
                return IN_THE_WAY
            if found != before:
                return CHANGED
            taken = self._taken(path, info, before)
            kept = self._present_owner(path, place, info, after)
            if content is not None and not (before.is_symlink or after.is_symlink):
                xattrs = self._attributes_for(path, place, info, after)
                if info.st_nlink > 1:
                    self.parted.append(path)
        elif before is not None:
            return GONE
        if content is not None:
            self._batch.prepare(change, content, taken, xattrs, kept)
            return None
        if info is None or before is None or after.is_symlink or before.hash != after.hash:
            return CHANGED
        if info.st_nlink > 1:
            return OTHER_NAMES
        return self._change_permissions(path, place, info, after)

    def _present_owner(self, path: bytes, place: EntryLocation, seen: os.stat_result, after: Entry) -> Owner | None:
        """The owner of a file to be replaced. None if another user may have put it there, in a directory writable by
        others, to get content that not all users may read.
        """
        above = os.fstat(place.dir_fd)
        if above.st_mode & 0o022 and seen.st_uid != above.st_uid and not after.permissions & 0o004:
            self._batch.changed_owners.append(path)
            return None
        uid, gid = self._configured
        return Owner(seen.st_uid if uid is None else uid, seen.st_gid if gid is None else gid)

    def _attributes_for(self, path: bytes, place: EntryLocation, seen: os.stat_result, after: Entry) -> Xattrs:
        """The attributes of a file that its replacement gets: the user's own, and an access control list if its
        permissions equal the new ones, as otherwise it would admit users whom neither version did. Capabilities apply
        only to the content that got them.
        """
        fd = os.open(place.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.dir_fd)
        try:
            found = os.fstat(fd)
            if identity_of(found) != identity_of(seen):
                return ()  # (it is left alone, too)
            xattrs = read_xattrs(fd)
        finally:
            os.close(fd)
        may_have_list = found.st_mode & 0o777 == after.permissions
        kept = tuple(one for one in xattrs if one[0].startswith("user.") or (one[0] == _ACCESS_LIST and may_have_list))
        if kept != xattrs:
            self._batch.changed_xattrs.append(path)
        return kept

    def _change_permissions(self, path: bytes, place: EntryLocation, seen: os.stat_result, after: Entry) -> str | None:
        try:
            fd = open_regular(*place)
        except PermissionError:
            return self._change_unreadable(path, place, seen, after)
        if fd is None:
            return CHANGED
        try:
            if signature_of(os.fstat(fd)) != signature_of(seen):
                return CHANGED
            self._chmod(path, fd, fd, seen, after)
            info = os.fstat(fd)
        except BaseException:
            os.close(fd)
            raise
        self._in_place.add(fd, info.st_dev)
        self._observed.put(path, after, signature_of(info))
        self.written.append(path)
        return None

    def _change_unreadable(self, path: bytes, place: EntryLocation, seen: os.stat_result, after: Entry) -> str | None:
        """The owner may change the permissions of a file that not even the owner can open."""
        fd = os.open(place.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.dir_fd)
        try:
            if signature_of(os.fstat(fd)) != signature_of(seen):
                return CHANGED
            # fchmod(2) takes no O_PATH descriptor, but its entry in /proc leads to exactly that file.
            self._chmod(path, fd, proc_path(fd), seen, after)
            info = os.fstat(fd)
        finally:
            os.close(fd)
        syscalls.syncfs(place.dir_fd)
        self._observed.put(path, after, signature_of(info))
        self.written.append(path)
        return None

    def _chmod(self, path: bytes, fd: int, at: int | str, seen: os.stat_result, after: Entry) -> None:
        """Give a file its new permissions; set-id bits set by a user stay. It is open as ``fd``, and changed ``at``
        that or a path.

        The bits of the group are the mask of an access control list: a list that would grant more by them is removed,
        as when the content changes too. No further user can open the file in between.
        """
        if after.permissions & 0o070 & ~seen.st_mode and _ACCESS_LIST in dict(read_xattrs(fd)):
            os.chmod(at, seen.st_mode & 0o7707)
            os.removexattr(at, _ACCESS_LIST)
            self._batch.changed_xattrs.append(path)
        os.chmod(at, (seen.st_mode & 0o7000) | after.permissions)

    def _taken(self, path: bytes, info: os.stat_result, before: Entry) -> DisplacedFile:
        """The file or link to remove at ``path``, which `_entry_at` has found to be ``before``."""
        known = self._observed.get(path)
        seen = known is not None and known.signature == signature_of(info)
        return DisplacedFile(identity_of(info), before, doubtful=not seen)

    def _entry_at(self, path: bytes, place: EntryLocation, info: os.stat_result, *wanted: Entry | None) -> Entry | None:
        """The present entry; None if it is certainly none of ``wanted``. Its content is read only in doubt."""
        known = self._observed.get(path)
        if known is not None and known.signature == signature_of(info):
            return known.entry
        if not any(entry is not None and _may_be(info, entry) for entry in wanted):
            return None
        try:
            return read_entry(*place, info)
        except (FileNotFoundError, PermissionError):
            return None

    def _remove_emptied(self) -> None:
        """Remove every directory that this call emptied, and those above it that this leaves empty."""
        self._root.remember_modes(self._going())
        by_depth: dict[int, set[bytes]] = {}
        for path in self._emptied - {b""}:
            by_depth.setdefault(path.count(b"/"), set()).add(path)
        for depth in range(max(by_depth, default=-1), -1, -1):
            for path in sorted(by_depth.get(depth, ())):
                parent = path.rpartition(b"/")[0]
                try:
                    gone = self._root.rmdir(path)
                    self._batch.touched.add(parent)
                except NotFoundError:
                    gone = True
                except HoldfastError:
                    gone = False  # a mount point, or another user's directory: it stays, empty
                if gone and parent:
                    by_depth.setdefault(depth - 1, set()).add(parent)

    def _going(self) -> list[bytes]:
        """The directories that `_remove_emptied` will remove, unless another process puts an entry in them."""
        going: dict[bytes, None] = {}
        found = {at for emptied in self._emptied for at in (emptied, *parents(emptied)) if at}
        for path in sorted(found, key=_depth_of):
            try:
                if self._root.holds_only(path, going):
                    going[path] = None
            except HoldfastError:
                continue  # gone already, or not to be reached
        return list(going)

    def _commit(self, done: int) -> None:
        """Put all files written so far in place, and the ordered ones; ``done`` includes these."""
        before = done - self._batch.ordered
        for change, reason, seen in self._batch.commit(lambda made: self._report("write", before + made, 0)):
            if reason is not None:
                self.skipped.append(NotCaptured(change.path, reason))
                self._observed.drop(change.path)
                continue
            self.written.append(change.path)
            if seen is None or change.after is None:
                self._observed.drop(change.path)
            else:
                self._observed.put(change.path, change.after, seen)

    def finish(self) -> None:
        """Delete the removed files and the directories that are empty now, and make everything durable.

        One sync is enough for new and removed files: the removed ones are in a checkpoint, and until this returns the
        caller's journal marks the tree as possibly incomplete.
        """
        self._empty_trash()
        self._remove_emptied()
        self._batch.sync(self._in_place, self._close_opened)

    def _close_opened(self, durability: Durability) -> None:
        if self._opened is not None:
            self._opened.close(durability)

    def abandon(self) -> None:
        """After an error: remove the temporaries, and make finished changes durable, as far as the system permits."""
        self._batch.abandon()
        try:
            for path, reason in self._empty_trash():
                _log.warning("%s: %s", display(path), reason)
            self._batch.sync(self._in_place, self._close_opened)
        except (HoldfastError, OSError):
            self._close_opened(self._in_place)
            self._in_place.close()

    def _empty_trash(self) -> list[NotCaptured]:
        """Delete the removed files; returns, and lists as skipped, those that were kept beside their places."""
        touched, kept = self._trash.empty()
        self._batch.touched |= touched
        lost = {path for path, _ in kept}
        if lost:
            self.written = [path for path in self.written if path not in lost]
            self.deleted = [path for path in self.deleted if path not in lost]
            self.skipped += kept
        return kept


def _say_lost(what: str, paths: Sequence[bytes], written: Sequence[bytes]) -> None:
    lost = sorted(set(paths).intersection(written))
    if lost:
        more = len(lost) - _MAX_SAID
        shown = ", ".join(map(display, lost[:_MAX_SAID])) + (f" and {more} more" if more > 0 else "")
        _log.warning("these %s: %s", what, shown)


def _path_of(change: Change) -> bytes:
    return change.path


def _depth_of(path: bytes) -> int:
    return -path.count(b"/")


def _lstat(place: EntryLocation) -> os.stat_result | None:
    try:
        return os.stat(place.name, dir_fd=place.dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _may_be(info: os.stat_result, entry: Entry) -> bool:
    if entry.is_symlink or not stat.S_ISREG(info.st_mode):
        return entry.is_symlink and stat.S_ISLNK(info.st_mode) and info.st_size == entry.size
    return info.st_size == entry.size and info.st_mode & 0o777 == entry.permissions
