"""The port that every mutating operation on a workspace passes before it happens.

A server of operations (the supervisor of a process tree, a file system server) resolves the paths of an operation, and
then calls the interceptor's method for it, with a function that performs it. The interceptor journals the reversal,
keeps the preimage, and calls the function; where a cheaper way has the same effect (a removed file is renamed into the
log), it takes that. So no operation happens before it can be reversed.

Every method may raise `HeldError` before any effect: a safeguard asks a person first, or (ticket 0) another process
changes the tree. The caller delays the operation and calls again after the decision, or in a moment. It does the same
after `StepEndedError`. `OSError` is the answer to the operation.
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
    """A name in a directory, and the object there, if any; links are never followed."""

    dir_fd: int
    """The directory's descriptor, borrowed; ``O_PATH`` is enough."""
    name: bytes
    path: bytes
    """The same relative to the workspace's root."""
    moves: int = -1
    """The value of `Interceptor.moves` before the path was resolved, if mutations may have come in between; else -1."""

    @property
    def parent(self) -> bytes:
        """The path of the directory; empty for the root."""
        return self.path.rpartition(b"/")[0]


def no_check() -> None:
    """The ``own`` of those whom nothing keeps from going on."""


class Interceptor(Protocol):
    """See the module. Methods may be called from several threads; each is atomic towards the others.

    ``own``: the operation uses the keeper's own credentials, so a caller that may remove a file may also rename it into
    the log. It is called right before that, in place of ``perform``, and may raise `OSError`: then nothing happens.
    None: the credentials are another user's.
    """

    @property
    def gate(self) -> AbstractContextManager[object]:
        """For the length of a block, no other thread changes anything: a path that is found in it is right when it is
        journalled. Reentrant. Who has it must not wait for another thread.
        """
        ...

    @property
    def moves(self) -> int:
        """A number that changes with every move and every lost name. For callers that cannot hold the `gate` while a
        preimage is taken: `before_open` and `before_metadata_change` raise `HeldError` (ticket 0) for an older `Place`.
        """
        ...

    @property
    def arrangement(self) -> int:
        """A number that changes whenever a directory may have moved."""
        ...

    def create(self, step: StepId, place: Place, type_: FileType, perform: Callable[[], T]) -> T:
        """Create a new object: a file (``perform`` opens it with ``O_EXCL``), a directory, a link."""
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
        """Whether a person may have to be asked first: if not, `before_loss` need not be called."""
        ...

    def before_loss(self, step: StepId, place: Place, fd: int, lost: int) -> None:
        """Call it before ``lost`` bytes of the file of ``fd`` are lost through a descriptor that was opened for
        writing, and recorded, before: a truncation, a punched hole, or writing that no longer only appends.
        """
        ...

    def before_open(self, step: StepId, place: Place, fd: int, risk: Risk = NO_RISK) -> bool:
        """Call it before the file of the ``O_PATH`` descriptor ``fd`` is opened for writing.

        Also call it before a change of content without such a descriptor: ``truncate``, a write of a file system
        server, ``fallocate``, a ``copy_file_range`` into it. ``risk`` is the information for safeguards; without it
        they are not asked. True if a preimage was taken for the step just now, which `cancel_open` can drop.
        """
        ...

    def cancel_open(self, step: StepId, fd: int) -> bool:
        """After a `before_open` that took a preimage: the file is not changed after all. Others' changes meanwhile are
        not the step's, and stay when it is reversed. False if the preimage stays: another `before_open` would not keep
        the present content.
        """
        ...

    def release_removed(self, step: StepId, fd: int) -> bool:
        """Call it before any change of an object of ``fd`` that has lost its name in the tree.

        If the log has the object itself, it keeps a copy from now on. False if the object must not be changed: it may
        have another name, by which no step has recorded it.
        """
        ...

    @property
    def reversals(self) -> int:
        """A number that changes before steps are undone or redone."""
        ...

    def was_reversed(self, fd: int, since: int) -> bool:
        """Whether the content of the object of ``fd`` was restored since `reversals` had that number. True in case of
        doubt, since only a limited number of objects is remembered. Descriptors from before are covered by no step any
        more: their server must call `before_open` again. Waits while steps are being reversed.
        """
        ...

    def before_metadata_change(self, step: StepId, place: Place, fd: int) -> None:
        """Before mode, owner, times or extended attributes of what ``fd`` refers to change."""
        ...
