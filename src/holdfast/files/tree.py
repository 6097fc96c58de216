"""The port through which a workspace's tree is reached, wherever it lives.

`holdfast.files.local_tree.LocalTree` implements it for a directory of this machine and
`holdfast.testing.memory_tree.MemoryTree` without any file system; the contract suite in
`holdfast.testing.tree_contract` holds for both.
"""

from __future__ import annotations

from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from holdfast.model.content import BlobSink, Content, Progress, Supply
    from holdfast.model.entries import Change, Entry, NotCaptured
    from holdfast.model.ids import Hash

ROOT_GONE = "workspace_gone"
"""The code of the `NotFoundError` for a tree whose root is gone."""


class ScanResult(NamedTuple):
    """What a tree held at the time of a scan.

    Either the whole tree (``base`` is None and ``changes`` maps every path to its entry) or how it differs from the
    manifest ``base`` (then ``changes`` holds just the paths that differ, None for a deleted one). Paths that were not
    captured are in ``not_captured``, always in full, sorted by path.
    """

    base: Hash | None
    changes: dict[bytes, Entry | None]
    not_captured: list[NotCaptured]
    files_read: int
    """How many files were read and hashed."""


class ApplyResult(NamedTuple):
    """What `Tree.apply` did; the three lists together name every change that was asked for."""

    written: list[bytes]
    deleted: list[bytes]
    skipped: list[NotCaptured]
    """Paths that were left alone, or whose last writes had to be kept under another name; each with the reason."""


class CleanResult(NamedTuple):
    """What `Tree.clean` did."""

    removed: int
    """How many files and links were removed."""
    kept: list[NotCaptured]
    """What was not ours to remove, under its new name, each with the reason."""


class ApplyNotes(Protocol):
    """What `Tree.apply` says before it does something that a kill may leave half done. When a call returns, it is noted
    durably.
    """

    @property
    def paths(self) -> Iterable[bytes]:
        """What is going to be written."""
        ...

    @property
    def opened(self) -> Mapping[bytes, int]:
        """The directories that an earlier `apply`, which was killed, may have left open, with the permissions that they
        get back.
        """
        ...

    def opening(self, modes: Mapping[bytes, int]) -> None:
        """Directories are about to be opened to their owner, or made open to be closed later; as `opened`."""
        ...

    def in_place(self, path: bytes) -> None:
        """A file is about to be written in place: it may hold bytes of both versions then."""
        ...


class Tree(Protocol):
    """A directory tree. One user at a time; the engine holds the workspace's lock around each call."""

    def scan(
        self,
        sink: BlobSink,
        *,
        base: Hash | None = None,
        lookup: EntryLookup | None = None,
        saved: SavedManifest | None = None,
        full_hash: bool = False,
        progress: Progress | None = None,
        meanwhile: Callable[[], None] | None = None,
        also: Container[bytes] = (),
    ) -> ScanResult:
        """Find out what the tree holds; content that is not known to be unchanged goes to ``sink``.

        ``base`` is the manifest that the caller would like to hear the differences from. The tree may answer in full
        instead; it answers relative to ``base`` only if it is sure. ``lookup`` gives the base manifest's entry of a
        path, for the tree to name the earlier version to the sink. ``full_hash`` distrusts every remembered hash.
        ``meanwhile`` is what the caller has to do in any case: called once, or not at all, where the tree is being
        looked at by others at that time.

        ``also`` are files of credentials that are captured whatever the settings say.

        A file that vanishes, cannot be read or does not hold still is in ``not_captured``; the scan goes on. What could
        not be looked at, a directory with all below it included, is held to be what ``saved`` gives for it: that it
        cannot be read does not mean that it was deleted.
        Raises `NotFoundError` if the root itself is gone. Nothing in the tree is changed.
        """
        ...

    def make_root(self) -> None:
        """Make the tree again, empty, if its root is gone, so that a restore has something to write into. Idempotent.

        Raises `StorageError` if that is not possible.
        """
        ...

    def settle(self, root: Hash) -> None:
        """Remember that the state found by the last `scan`, or made by the last `apply`, is the manifest ``root``.

        Makes the next scan cheap. Losing it is harmless: the next scan is slower, never wrong.
        """
        ...

    def read(self, path: bytes) -> Content:
        """The present content of the file or link at ``path``; raises `NotFoundError` if there is none, `EscapeError`
        as I7.
        """
        ...

    def is_there(self, path: bytes, *, directories: bool = False) -> bool:
        """Whether there is anything but a directory (``directories``: anything) at ``path``, captured or not. False
        where a link leads to it.
        """
        ...

    def share(self, path: bytes, entry: Entry) -> int | None:
        """An open file of this tree that seems to hold the content of ``entry``, for a tree beside it to share its
        blocks.

        The caller closes the descriptor and verifies what it takes. None where there is no such file, or no
        descriptors.
        """
        ...

    def apply(
        self,
        deletes: Sequence[Change],
        writes: Iterable[tuple[Change, Content | Supply | None]],
        *,
        nonce: str,
        progress: Progress | None = None,
        notes: ApplyNotes | None = None,
    ) -> ApplyResult:
        """Make the tree go from each change's ``before`` to its ``after``, touching nothing else.

        ``deletes`` come first, deepest directories last emptied; directories that become empty are removed.
        ``writes`` come with their content, with the one `Supply` that all of them are fetched from, or with None where
        only permissions differ. Each path is replaced atomically,
        and only if it is still what the last `scan` saw there; otherwise it is skipped and reported, as is anything
        in the way that no checkpoint holds. When the call returns, all of it is durable. ``nonce`` is part of the
        names of temporary files, so that `clean` finds them after a crash. Repeating a call that was cut short
        finishes it.

        With ``notes``, which are told of it before, a file that is a mount point is written in place, not atomically,
        and a directory of this user's that is read-only is opened meanwhile. Without them, such a file and what is in
        such a directory is left alone and reported.
        """
        ...

    def clean(self, nonce: str) -> CleanResult:
        """Remove what a killed `apply` with this nonce left lying. Idempotent.

        What another process wrote where the call was at work is never removed: it gets a name ending in ``.kept-1`` or
        so, and is reported.
        """
        ...


class EntryLookup(Protocol):
    """Gives the entry of a path in some manifest, or None."""

    def __call__(self, path: bytes) -> Entry | None:
        """The entry at ``path``."""
        ...


class SavedManifest(Protocol):
    """Gives what the manifest that was saved last holds."""

    def entries(self, path: bytes) -> Iterable[tuple[bytes, Entry]]:
        """Every entry that is at ``path`` or below it, with its own path."""
        ...

    def read(self, path: bytes, limit: int) -> bytes | None:
        """At most ``limit`` bytes of the file at ``path``; None if there is none, or no such content."""
        ...


# The port through which a tree is told what may have changed since it was last asked.


class DirtyPaths(NamedTuple):
    """What may have changed: everything, or just some paths.

    Each of ``paths`` is relative to the root and names a file, or a directory that stands for all below it; what was
    there may be gone by now. With ``everything`` the paths say nothing more. A path too many costs time; none may be
    missing.
    """

    everything: bool
    paths: frozenset[bytes]
    news: bool = True
    """False if nothing was found to have changed since the last answer: ``everything`` says only that it may have."""


class DirtySource(Protocol):
    """Knows what has changed, usually by watching. Each change is told at least once, never before it has happened."""

    def drain(self) -> DirtyPaths:
        """What may have changed since the last call; all that had happened when this call began is in the answer.

        The caller now owns the answer: what it does not make use of (a scan that fails) it must remember itself.
        """
        ...
