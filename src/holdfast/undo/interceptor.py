"""The port that every mutating operation on a workspace passes before it happens.

A server of operations (the supervisor of a process tree, a file system server) resolves where an operation leads, and
then calls the method of the interceptor for it, with a function that performs it. The interceptor journals what
reverses the operation, keeps what would be lost, and calls the function; where it can do the same in a cheaper way (a
removed file is renamed into the log), it does that instead. So nothing can happen before it can be reversed.

Every method may raise `HeldError` before anything has happened: a safeguard asks a person first, or (ticket 0) another
process changes the tree. The caller keeps the operation back and calls again when the decision is there, or in a
moment. So it does with `StepEndedError`. `OSError` is the answer to the operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from holdfast.undo.safeguards.guard import NO_RISK

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from holdfast.undo.journal.records import FileType, StepId
    from holdfast.undo.safeguards.guard import Risk

T = TypeVar("T")


class StepEndedError(KeyError):
    """The step has ended meanwhile, and nothing has happened: the operation belongs to another step by now."""


class Place(NamedTuple):
    """A name in a directory; what is there, if anything, is never followed."""

    dir_fd: int
    """The directory's descriptor, borrowed; ``O_PATH`` is enough."""
    name: bytes
    path: bytes
    """The same relative to the workspace's root."""
    moves: int = -1
    """What `Interceptor.moves` was before the path was asked for, if a mutation may have come in between; -1: none."""

    @property
    def parent(self) -> bytes:
        """The path of the directory; empty for the root."""
        return self.path.rpartition(b"/")[0]


def no_check() -> None:
    """The ``own`` of those whom nothing keeps from going on."""


class Interceptor(Protocol):
    """See the module. Methods may be called from several threads; each is atomic towards the others.

    ``own`` says that the operation is performed with the keeper's own credentials, so that renaming into the log is
    allowed to the caller if the removal is. It is called right before that, in place of ``perform``, and may raise
    `OSError`: then nothing happens. None, if the credentials are another's.
    """

    @property
    def gate(self) -> AbstractContextManager[object]:
        """For the length of a block, no other thread changes anything: a path that is found in it is right when it is
        journalled. Reentrant. Who has it must not wait for another thread.
        """
        ...

    @property
    def moves(self) -> int:
        """Another number whenever something was moved or has lost a name. For who cannot keep the `gate` as long as
        keeping takes: `before_open` and `before_metadata_change` raise `HeldError` (ticket 0) for a `Place` of before.
        """
        ...

    @property
    def arrangement(self) -> int:
        """Another number whenever a directory may lie elsewhere than before."""
        ...

    def create(self, step: StepId, place: Place, type_: FileType, perform: Callable[[], T]) -> T:
        """Create something that is not there: a file (``perform`` opens it with ``O_EXCL``), a directory, a link."""
        ...

    def link(self, step: StepId, source_fd: int, place: Place, perform: Callable[[], T]) -> T:
        """Give the object that ``source_fd`` refers to another name."""
        ...

    def unlink(
        self, step: StepId, place: Place, perform: Callable[[], None], *, own: Callable[[], None] | None = no_check
    ) -> None:
        """Remove the name of anything but a directory."""
        ...

    def rmdir(
        self, step: StepId, place: Place, perform: Callable[[], None], *, own: Callable[[], None] | None = no_check
    ) -> None:
        """Remove an empty directory."""
        ...

    def rename(
        self,
        step: StepId,
        source: Place,
        target: Place,
        flags: int,
        perform: Callable[[], None],
        *,
        own: Callable[[], None] | None = no_check,
    ) -> None:
        """Rename, with ``RENAME_NOREPLACE`` or ``RENAME_EXCHANGE`` if ``flags`` say so."""
        ...

    @property
    def is_guarded(self) -> bool:
        """Whether a person may have to be asked first: if not, nothing need be told to `before_loss`."""
        ...

    def before_loss(self, step: StepId, place: Place, fd: int, lost: int) -> None:
        """Before so many bytes of the file that ``fd`` refers to are lost by a descriptor that was opened for writing,
        and so recorded, before: it is cut short, holes are punched into it, or it is not only appended to any more.
        """
        ...

    def before_open(self, step: StepId, place: Place, fd: int, risk: Risk = NO_RISK) -> bool:
        """Before the file that the ``O_PATH`` descriptor ``fd`` refers to is opened for writing.

        The same before its content is changed by anything else than a descriptor that was opened so: ``truncate``,
        a write of a file system server, ``fallocate``, a ``copy_file_range`` into it. ``risk`` is what
        safeguards have to know; without it they are not asked. True if what the step would lose was kept for it just
        now, which `cancel_open` takes back.
        """
        ...

    def cancel_open(self, step: StepId, fd: int) -> bool:
        """After a `before_open` that has kept something: the file is left alone after all. What others did to it
        meanwhile is none of the step's, and stays when that is reversed. False if what was kept stays kept: another
        `before_open` would not keep what there is now.
        """
        ...

    def release_removed(self, step: StepId, fd: int) -> bool:
        """Before anything is done to an object that ``fd`` refers to and that has lost its name in the tree.

        If the log keeps the object itself, it keeps a copy from now on. False if the object must be left alone: it may
        have another name, by which no step has recorded anything.
        """
        ...

    @property
    def reversals(self) -> int:
        """Another number whenever steps are about to be taken back, or brought forward."""
        ...

    def was_reversed(self, fd: int, since: int) -> bool:
        """Whether the content of what ``fd`` refers to was brought back since `reversals` had that number (or may have
        been: only so many objects are remembered). What had been opened for writing before is covered by no step any
        more: who serves such a descriptor calls `before_open` anew. Waits while steps are being taken back.
        """
        ...

    def before_metadata_change(self, step: StepId, place: Place, fd: int) -> None:
        """Before mode, owner, times or extended attributes of what ``fd`` refers to change."""
        ...
