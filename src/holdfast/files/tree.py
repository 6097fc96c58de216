"""The port for access to a workspace's tree, wherever it is.

`holdfast.files.local_tree.LocalTree` implements it for a directory of this machine and
`holdfast.testing.memory_tree.MemoryTree` without any file system; the contract suite in
`holdfast.testing.tree_contract` checks both.
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
    """The content of a tree at the time of a scan.

    Either the whole tree (``base`` is None and ``changes`` maps every path to its entry) or its differences from the
    manifest ``base`` (then ``changes`` contains only the changed paths, None for a deleted one). ``not_captured``
    contains the paths that were not captured, always in full, sorted by path.
    """

    base: Hash | None
    changes: dict[bytes, Entry | None]
    not_captured: list[NotCaptured]
    files_read: int
    """How many files were read and hashed."""


class ApplyResult(NamedTuple):
    """The result of `Tree.apply`; the three lists together contain every requested change."""

    written: list[bytes]
    deleted: list[bytes]
    skipped: list[NotCaptured]
    """Paths that were left alone, or whose last writes were kept under another name; each with the reason."""


class CleanResult(NamedTuple):
    """The result of `Tree.clean`."""

    removed: int
    """How many files and links were removed."""
    kept: list[NotCaptured]
    """Files that are not ours, under their new names, each with the reason."""


class ApplyNotes(Protocol):
    """Notes by `Tree.apply` before an action that a kill may leave half done. Durable when a call returns."""

    @property
    def paths(self) -> Iterable[bytes]:
        """The paths to be written."""
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
        """Find out the content of the tree; content not known to be unchanged goes to ``sink``.

        ``base`` is the manifest to compare with. The tree may answer in full instead; it answers relative to ``base``
        only if it is sure. ``lookup`` gives the base manifest's entry of a path, so that the tree can name the earlier
        version to the sink. ``full_hash`` distrusts every remembered hash. ``meanwhile`` is work that the
        caller must do in any case: called once while another process looks at the tree, or not at all.

        ``also`` are files of credentials that are captured whatever the settings are.

        A file that vanishes, is unreadable or keeps changing is in ``not_captured``; the scan goes on. Unreadable
        paths, including a directory with all below it, are taken to be as in ``saved``: that they cannot be read does
        not mean that they were deleted. Raises `NotFoundError` if the root itself is gone. Nothing in the tree is
        changed.
        """
        ...

    def make_root(self) -> None:
        """Make the tree again, empty, if its root is gone, so that a restore can write into it. Idempotent.

        Raises `StorageError` if that is impossible.
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
        """An open file of this tree that seems to have the content of ``entry``, so that a tree beside it can share its
        blocks.

        The caller closes the descriptor and verifies the content. None where there is no such file, or no descriptors.
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
        """Change the tree from each change's ``before`` to its ``after``, and nothing else.

        ``deletes`` come first, deepest directories last emptied; directories that become empty are removed. ``writes``
        come with their content, with the one `Supply` that all of them are fetched from, or with None where only
        permissions differ. Each path is replaced atomically, and only if it is unchanged since the last `scan`;
        otherwise it is skipped and reported, as is any obstacle that is in no checkpoint. When the call returns,
        everything is durable. ``nonce`` is part of the names of temporary files, so that `clean` finds them after a
        crash. A repeated call completes an interrupted one.

        With ``notes``, which are told before, a file that is a mount point is written in place, not atomically, and a
        read-only directory of this user is made writable meanwhile. Without them, such a file and the entries of such a
        directory are left alone and reported.
        """
        ...

    def clean(self, nonce: str) -> CleanResult:
        """Remove the leftovers of a killed `apply` with this nonce. Idempotent.

        Files that another process wrote there meanwhile are never removed: they get names ending in ``.kept-1`` or the
        like, and are reported.
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


# The port that reports to a tree the possible changes since the last report.


class DirtyPaths(NamedTuple):
    """The possible changes: everything, or only some paths.

    Each of ``paths`` is relative to the root and names a file, or a directory with all below it; either may be gone by
    now. With ``everything`` the paths mean nothing more. An extra path costs time; none may be missing.
    """

    everything: bool
    paths: frozenset[bytes]
    news: bool = True
    """False if nothing was found to have changed since the last answer: ``everything`` says only that it may have."""


class DirtySource(Protocol):
    """Finds changes, usually by watching. Each change is reported at least once, never before it has happened."""

    def drain(self) -> DirtyPaths:
        """The possible changes since the last call, including all that had happened when this call began.

        The caller now owns the answer: it must remember unused parts itself (after a failed scan).
        """
        ...
