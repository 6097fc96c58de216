"""The context of a reversal: the tree, the log, others' changes, and its own changes and records so far."""

from __future__ import annotations

import errno
import os
import stat
from functools import partial
from typing import TYPE_CHECKING, Final

from holdfast.files.linux.file_handle import Identity, identity
from holdfast.files.linux.metadata import Metadata, apply_metadata, proc_path, read_xattrs
from holdfast.files.linux.reflink import copy_content
from holdfast.files.write.refusals import refusal_cause
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.undo.foreign_edits.other_links import OtherLinks
from holdfast.undo.journal.preimages import is_empty_directory
from holdfast.undo.journal.records import FileType, Keeping, KeepMethod, ReversalConflict, Signature, StepId, file_type
from holdfast.undo.tree.signatures import signature_of
from holdfast.undo.whole_writes import AT_ONCE, write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.undo.interceptor import Place
    from holdfast.undo.journal.preimages import Preimages
    from holdfast.undo.journal.quarantine import Quarantine
    from holdfast.undo.recorder.recorder import Recorder
    from holdfast.undo.tree.rooted_directories import Directories

OBJECT: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})

ELSE: Final = "something else is there now"
NOT_THERE: Final = "it is not there any more"
NO_DIRECTORY: Final = "its directory is not there any more"
FOREIGN_EDIT: Final = "another process has changed it since"
UNPROTECTED: Final = "it was not kept, as the step was not protected any more"
DETACHED: Final = "its other names were not found: it is an object of its own now"
MOVED: Final = "another step has brought it here"
NOT_DESCRIBED: Final = "it is back, but the system refuses some of its owner, permissions, attributes and times"
LOST: Final = "the copy that was kept aside for it is gone"
NO_FOREIGN_EDIT: Final = frozenset({UNPROTECTED, DETACHED, MOVED, NOT_DESCRIBED, LOST})
"""Conflicts without further changes: the present object is the reversal's result."""

_UNCHANGEABLE: Final = "it cannot be changed: "
_REFUSALS: Final = {
    errno.EPERM: "the system does not permit it",
    errno.EACCES: "permission denied",
    errno.EROFS: "it is on a read-only file system",
    errno.EBUSY: "something is mounted there",
    errno.ETXTBSY: "a process runs it as its program",
    errno.EXDEV: "it is on another mount than the undo log",
}
"""Errors that mean the system does not permit this user to change a path, with words for unknown causes. They concern
that path alone: the rest of the tree can be changed.
"""


class Conflict(NamedTuple):
    """An object that could not be restored, because it is not the step's result, or cannot be changed."""

    step: StepId
    path: bytes
    reason: str
    aside: int | None = None
    """The number in `Quarantine` of what belongs there; None if nothing was lost."""


class NotDescribedError(PermissionError):
    """A restored object lacks a part of its metadata: the system refuses it."""

    def __init__(self, path: bytes) -> None:
        super().__init__(errno.EPERM, os.strerror(errno.EPERM))
        self.path = path


class ReversalTools(NamedTuple):
    """The tools of a reversal."""

    recorder: Recorder
    preimages: Preimages
    quarantine: Quarantine
    directories: Directories


class ReversalContext:
    """The same for all records of a reversal, except ``step`` and ``seq``, which are the present record's."""

    def __init__(self, tools: ReversalTools, foreign: frozenset[Identity], known: Iterable[Conflict]) -> None:
        """``foreign`` and ``known`` as `holdfast.undo.reversal._record_reversal.Reversal` has them."""
        self.recorder, self.preimages, self.quarantine, self.directories = tools
        self.aliases = self.recorder.aliases
        self.foreign = self.aliases.all(foreign)
        self.step: StepId = 0
        self.seq = 0
        self.conflicts = list(known)
        self.created: frozenset[Identity] = frozenset()
        """Objects that the steps had made: their absence is no conflict."""
        self.other_links = OtherLinks(self.directories, self.aliases, ())
        self._changed: list[int] = []
        """Descriptors of the objects that the reversal of this record has changed."""

    def note_changed_at(self, place: Place) -> None:
        """The reversal of this record changed the object at the place."""
        if not self.foreign or identity(place.dir_fd, place.name) not in self.foreign:
            self._changed.append(os.open(place.name, OBJECT, dir_fd=place.dir_fd))

    def note_changed(self, fd: int) -> None:
        """The object, open as the borrowed ``fd``, was changed by the reversal of this record."""
        self._changed.append(os.dup(fd))

    def final_signatures(self) -> tuple[Signature, ...]:
        """How that looks, now that nothing more is done to it."""
        device = self.directories.device
        left = tuple(signature_of(os.fstat(fd), device, partial(read_xattrs, fd)) for fd in self._changed)
        for fd in self._changed:
            os.close(fd)
        self._changed.clear()
        return left

    def holds(self, place: Place, object_: Identity) -> bool:
        """Whether the object, by its present identity, is at the place."""
        try:
            return identity(place.dir_fd, place.name) == self.aliases.now(object_)
        except OSError as error:
            if error.errno in _GONE:
                return False
            raise

    def is_at(self, path: bytes, object_: Identity) -> bool:
        """The same of a path, whose directory need not be there."""
        try:
            return bool(path) and self.holds(self.directories.place(path), object_)
        except OSError as error:
            if error.errno in _GONE:
                return False
            raise

    def put_aside(self, path: bytes, reason: str, type_: FileType, keeping: Keeping, metadata: Metadata) -> None:
        """The object of this path cannot be restored there: put it into quarantine, and record the conflict."""
        if type_ == "d" and reason == ELSE:
            place = self.directories.place(path)
            found = lstat_of(place)
            if found is not None and stat.S_ISDIR(found.st_mode):
                return  # it has become another step's or process's, but there it is: nothing is lost
        self.note(path, reason, aside=self.quarantine.keep(self.seq, type_, keeping, metadata))

    def note(self, path: bytes, reason: str, *, aside: bool = False) -> None:
        """Record a conflict, once; ``aside`` if the preimage is in quarantine."""
        conflict = Conflict(self.step, path, reason, self.seq if aside else None)
        if conflict not in self.conflicts:
            self.recorder.note(ReversalConflict(self.recorder.next_seq(), self.step, self.seq, path, reason, aside))
            self.conflicts.append(conflict)

    def fill(self, fd: int, keeping: Keeping) -> None:
        """Give a regular file, open in any way, the content that was kept. Raises `BlockingIOError` if it is leased."""
        target = os.open(proc_path(fd), os.O_RDWR | AT_ONCE)
        try:
            if keeping.how is KeepMethod.INLINE:
                # If it were emptied first, ext4 would write it to the disk at once.
                write_whole(target, keeping.content)
                os.ftruncate(target, len(keeping.content))
                return
            source = self.preimages.open(keeping.number)
            try:
                copy_content(source, target)
            finally:
                os.close(source)
        finally:
            os.close(target)


def conflict_reason(error: OSError) -> str | None:
    """How the tree differs from what the step left, if ``error`` says that; None if the system failed."""
    if error.errno in _GONE:
        return NO_DIRECTORY
    return ELSE if error.errno in (errno.EEXIST, errno.ENOTEMPTY) else None


def refusal_reason(root_fd: int, path: bytes, error: OSError | None = None) -> str | None:
    """Why the system does not permit a change of the path, relative to the root, with the remedy. None if ``error`` is
    another error; without an error, if no obstacle is known.
    """
    if error is not None and error.errno not in _REFUSALS:
        return None
    cause = refusal_cause(root_fd, path) or (error and _REFUSALS.get(error.errno or 0))
    return cause and _UNCHANGEABLE + cause


def is_refusal(reason: str) -> bool:
    """Whether the reason of a conflict is a `refusal_reason`."""
    return reason.startswith(_UNCHANGEABLE)


def describe(path: bytes, fd: int, metadata: Metadata) -> None:
    """Set the metadata of a restored object at the path, open as ``fd``. Raises `NotDescribedError`, `OSError`."""
    try:
        apply_metadata(fd, metadata)
    except PermissionError as error:
        raise NotDescribedError(path) from error


def lstat_of(place: Place) -> os.stat_result | None:
    """The `lstat` of the place; None if it is empty."""
    try:
        return os.stat(place.name, dir_fd=place.dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def is_pristine(place: Place, found: os.stat_result, type_: FileType) -> bool:
    """Whether the object there can be new from a creation: empty, and of the right type."""
    if file_type(found.st_mode) != type_:
        return False
    if type_ == "d":
        return is_empty_directory(place.dir_fd, place.name)
    return type_ != "f" or found.st_size == 0
