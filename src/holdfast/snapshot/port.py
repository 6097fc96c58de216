"""The port of snapshot providers: they make writable copies of a workspace's tree, and capture them.

A provider is made for one workspace, with a directory of its own in the home and the id of a session, which scopes its
names. It never changes the workspace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NewType, Protocol

from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

Mode = Literal["worktree", "overlay", "in-place"]
"""A directory of its own; a layer over the workspace, at the workspace's path; the workspace itself."""

Token = NewType("Token", str)
"""16 lower-case hex digits, random: identifies a provider's result in every process."""

ASKED_FOR = "_snapshots"
"""The session of the snapshots that a user asks for by name. No session of the engine's is called so."""

Kind = Literal["workspace", "view", "snapshot"]
"""The kinds of results: a working copy, a read-only view, a captured state."""


class Capabilities(NamedTuple):
    """The abilities of a provider for a workspace, here and now."""

    provider: str
    score: int
    """0: unusable here; 100: ideal. The highest is chosen."""
    modes: tuple[Mode, ...] = ()
    carries_ignored: bool = False
    """Whether copies and snapshots hold everything, files that ignore rules name included."""
    keeps_path: bool = False
    """Whether a working copy appears at the workspace's own path, apart from the workspace."""
    not_now: str = ""
    """Why nothing can be captured at this moment, in a state that passes; empty: it can. For people, a clause."""
    notes: tuple[str, ...] = ()
    """For people: why it is unusable, or which files it leaves out. Each a sentence without its full stop."""


class Snapshot(NamedTuple):
    """A captured state."""

    id: Token
    label: str
    created_at: int
    """Microseconds since 1970-01-01 UTC; later snapshots of a session have later times."""
    parent: Token | None
    """The previous snapshot of this working copy, or its origin. It may have been discarded since."""


class Prepared(NamedTuple):
    """A working copy."""

    provider: str
    mode: Mode
    root: bytes
    """The workspace that it was made for."""
    path: bytes
    """Where to work: what corresponds to ``root``."""
    token: Token
    enter: tuple[bytes, ...] = ()
    """The prefix of a command's arguments that shows the working copy at ``path``. Empty if every process sees it;
    otherwise only commands with the prefix and their children do. The command runs in the directory of the same path
    that it was started in, with its own exit code; 125 if it could not be run.
    """


class View(NamedTuple):
    """A snapshot, to look at."""

    path: bytes
    """A directory that is read-only, or in which nothing has a permission to write, which stops all users but root."""
    token: Token


class Allocation(NamedTuple):
    """A provider's result, which exists until its cleanup."""

    token: Token
    kind: Kind
    path: bytes | None
    """Where it lies, if it is a directory."""
    created_at: int
    complete: bool
    """False if its maker was cut short: it is of no use."""


class Provider(Protocol):
    """One way to make writable copies of a workspace, and to capture them.

    Methods with changes wait for other processes' changes in the same session, and raise `LockedError` after too long a
    wait. Unfinished work of killed processes is then removed first. All methods raise `StorageError` for errors of the
    system, and leave nothing behind when they fail.
    """

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        ...

    def detect(self, *, with_git: bool = True) -> Capabilities:
        """Its abilities here, found by trying; not ``with_git``: for `prepare` without it. Changes nothing, makes no
        directory, and takes no lock.
        """
        ...

    def prepare(
        self, mode: Mode, *, base: Snapshot | None = None, with_git: bool = True, on_branch: str = ""
    ) -> Prepared:
        """Make a working copy of ``base``, or (None) of the present workspace. Not ``with_git``: the caller removes
        every ``.git`` from it before any command runs there, so it may lead anywhere, and is not searched.
        ``on_branch`` is the Git branch to check out in it, which is new, or the workspace's own; empty: HEAD is
        detached. `UnsupportedError` if the provider makes no repository there, `RefusedError` (``branch_exists``) for
        any other existing branch.

        The mode ``in-place`` makes nothing: its path is the workspace. Raises `UnsupportedError` for a mode that it
        does not have, `RefusedError` where the workspace is in a state that cannot be captured.
        """
        ...

    def resume(self, token: Token) -> Prepared:
        """A working copy, to use again, from any process: also after a restart of the machine, which ends mounts.
        Changes nothing in it. Raises `NotFoundError` after its cleanup.
        """
        ...

    def settle(self, token: Token) -> None:
        """Call it after files of a working copy were rewritten with the workspace's contents: it updates Git's index
        there. Changes no file. Raises `NotFoundError` after its cleanup.
        """
        ...

    def snapshot(self, of: Prepared, label: str) -> Snapshot:
        """Capture the present contents of ``of``. Durable when it returns. Raises `NotFoundError` after the cleanup of
        ``of``, and as `prepare`.
        """
        ...

    def mount(self, snapshot: Snapshot) -> View:
        """Show a copy of a snapshot: changes of the view do not affect the snapshot. Raises `NotFoundError` for a
        discarded one.
        """
        ...

    def branch(self, snapshot: Snapshot, name: str, mode: Mode) -> Prepared:
        """`prepare` from a snapshot, under a name. Raises `RefusedError` with the code ``branch_exists`` if the name is
        in use, `UsageError` for an invalid branch name.
        """
        ...

    def snapshots(self) -> Sequence[Snapshot]:
        """The snapshots of the session, oldest first."""
        ...

    def views(self, snapshot: Snapshot) -> Sequence[View]:
        """The views of the snapshot, oldest first. A restart of the machine unmounts mounted ones."""
        ...

    def discard(self, snapshot: Snapshot) -> None:
        """Forget a snapshot; copies made from it stay. Raises `NotFoundError` if it does not exist."""
        ...

    def cleanup(self, token: Token) -> None:
        """Remove the token's result, with all its files. Does nothing if it is gone already.

        Works from any process, also after its maker was killed, and without the workspace.
        """
        ...

    def tokens(self) -> Sequence[Allocation]:
        """Everything of the session that `cleanup` would remove, snapshots included, oldest first."""
        ...

    def detect_beside(self, directory: bytes) -> Capabilities:
        """Its abilities for a copy in the existing ``directory`` that will replace the workspace: see `copy_to`. A
        score of 0: none, and the notes tell why. Otherwise as `detect`.
        """
        ...

    def copy_to(self, target: bytes, *, without: Sequence[bytes]) -> None:
        """Copy all present files of the workspace, ignored ones included, to the new directory ``target``, so that a
        rename can swap the two if they are in one file system. Durable when it returns.

        The copy is the caller's, who has recorded it before and removes it: it has no token, and an incomplete one
        stays. ``without`` are directories that are not part of the workspace. A repository in it leads to the same
        places as the workspace's, which it will replace. Raises `OSError`, including `FileExistsError`;
        `UnsupportedError` where `detect_beside` scores 0.
        """
        ...
