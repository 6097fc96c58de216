"""The port of snapshot providers: what makes writable copies of a workspace's tree, and captures them.

A provider is made for one workspace, with a directory of its own in the home and the id of a session, which scopes
every name that it gives. It never changes the workspace itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NewType, Protocol

from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

Mode = Literal["worktree", "overlay", "in-place"]
"""A directory of its own; a layer over the workspace, seen at its own path; the workspace as it is."""

Token = NewType("Token", str)
"""16 lower-case hex digits, random: names something that a provider has made, also to another process."""

ASKED_FOR = "_snapshots"
"""The session of the snapshots that a user asks for by name. No session of the engine's is called so."""

Kind = Literal["workspace", "view", "snapshot"]
"""What a token stands for: something to work in, something to look at, a captured state."""


class Capabilities(NamedTuple):
    """What a provider can do for a workspace, here and now."""

    provider: str
    score: int
    """0: it cannot be used here; 100: nothing could be better. The highest is chosen."""
    modes: tuple[Mode, ...] = ()
    carries_ignored: bool = False
    """Whether copies and snapshots hold everything, files that ignore rules name included."""
    keeps_path: bool = False
    """Whether what is prepared can be worked in at the workspace's own path, apart from it."""
    not_now: str = ""
    """Why nothing can be captured at this moment, in a state that passes; empty: it can. For people, a clause."""
    notes: tuple[str, ...] = ()
    """For people: why it cannot be used, or what it leaves out. Each a sentence without its full stop."""


class Snapshot(NamedTuple):
    """A captured state."""

    id: Token
    label: str
    created_at: int
    """Microseconds since 1970-01-01 UTC; later snapshots of a session have later times."""
    parent: Token | None
    """The snapshot before it of what it was taken of, or that this began as. It may have been discarded since."""


class Prepared(NamedTuple):
    """Something to work in."""

    provider: str
    mode: Mode
    root: bytes
    """The workspace that it was made for."""
    path: bytes
    """Where to work: what corresponds to ``root``."""
    token: Token
    enter: tuple[bytes, ...] = ()
    """What to put before the arguments of a command so that it finds at ``path`` what was prepared. Empty where that is
    there for every process; else it is there for those alone that are run so, and what they run. The command is in the
    directory of the same path that it was started in, and the exit code is its own; 125 if it could not be run.
    """


class View(NamedTuple):
    """A snapshot, to look at."""

    path: bytes
    """A directory that is read-only, or in which nothing has a permission to write, which stops all users but root."""
    token: Token


class Allocation(NamedTuple):
    """Something that a provider has made, and that is there until it is cleaned up."""

    token: Token
    kind: Kind
    path: bytes | None
    """Where it lies, if it is a directory."""
    created_at: int
    complete: bool
    """False if its maker was cut short: it is of no use."""


class Provider(Protocol):
    """One way to make writable copies of a workspace, and to capture them.

    What changes anything waits for other processes that do so in the same session, and raises `LockedError` where that
    takes too long. What they had begun when they were killed is then taken back first. All methods raise `StorageError`
    for what the system refuses, and leave nothing behind when they fail.
    """

    @property
    def name(self) -> str:
        """What it is called in the configuration."""
        ...

    def detect(self, *, with_git: bool = True) -> Capabilities:
        """What it can do here, found out by trying; not ``with_git``: for `prepare` without it. Changes nothing, makes
        no directory, and takes no lock.
        """
        ...

    def prepare(
        self, mode: Mode, *, base: Snapshot | None = None, with_git: bool = True, on_branch: str = ""
    ) -> Prepared:
        """Make something to work in: as ``base`` has it, or (None) as the workspace is now. Not ``with_git``: the
        caller removes all that is called ``.git`` from it before anything runs there. So it does not matter where that
        leads, and nothing is searched for it. ``on_branch`` is a branch of Git to be checked out in it, which is new,
        or the one that the workspace is on; empty: HEAD is detached. `UnsupportedError` where the provider has no
        repository of its own there, `RefusedError` (``branch_exists``) where the branch is another one.

        The mode ``in-place`` makes nothing: its path is the workspace. Raises `UnsupportedError` for a mode that it
        does not have, `RefusedError` where the workspace is in a state that cannot be captured.
        """
        ...

    def resume(self, token: Token) -> Prepared:
        """What was prepared, to work in again, from any process: after a restart of the machine, which ends what was
        mounted, too. Changes nothing in it. Raises `NotFoundError` if it was cleaned up.
        """
        ...

    def settle(self, token: Token) -> None:
        """To be called after files of what was prepared were written anew, as the workspace has them: what Git in it
        believes of its files is brought up to date. Changes no file. Raises `NotFoundError` if it was cleaned up.
        """
        ...

    def snapshot(self, of: Prepared, label: str) -> Snapshot:
        """Capture what is in ``of`` now. Durable when it returns. Raises `NotFoundError` if ``of`` was cleaned up, and
        as `prepare`.
        """
        ...

    def mount(self, snapshot: Snapshot) -> View:
        """Show a snapshot, apart from itself: whatever is done to the view, the snapshot stays. Raises `NotFoundError`
        for one that was discarded.
        """
        ...

    def branch(self, snapshot: Snapshot, name: str, mode: Mode) -> Prepared:
        """`prepare` from a snapshot, under a name. Raises `RefusedError` with the code ``branch_exists`` if something
        of that name is there, `UsageError` for a name that no branch can have.
        """
        ...

    def snapshots(self) -> Sequence[Snapshot]:
        """The snapshots of the session, oldest first."""
        ...

    def views(self, snapshot: Snapshot) -> Sequence[View]:
        """What shows the snapshot, oldest first. After a restart of the machine what was mounted is mounted no more."""
        ...

    def discard(self, snapshot: Snapshot) -> None:
        """Forget a snapshot; what was made from it stays. Raises `NotFoundError` if it is not there."""
        ...

    def cleanup(self, token: Token) -> None:
        """Remove what the token stands for, and all that was allocated for it. Does nothing if nothing is left.

        Works from any process, also after its maker was killed, and where the workspace is gone.
        """
        ...

    def tokens(self) -> Sequence[Allocation]:
        """Everything of the session that `cleanup` would remove, snapshots included, oldest first."""
        ...

    def detect_beside(self, directory: bytes) -> Capabilities:
        """What it can do about a copy in ``directory``, which is there, that is to take the workspace's own place: see
        `copy_to`. A score of 0: nothing, and the notes say why. As `detect` otherwise.
        """
        ...

    def copy_to(self, target: bytes, *, without: Sequence[bytes]) -> None:
        """Make the new directory ``target`` hold all that the workspace holds now, ignored files included, so that the
        two can change places by a rename if they lie in one file system. Durable when it returns.

        It is the caller's, who has noted it before and removes it: no token stands for it, and what was made until it
        fails stays. ``without`` are directories that are no part of the workspace. A repository in it leads to where
        that of the workspace does, whose place it is to take. Raises `OSError`, `FileExistsError` among them;
        `UnsupportedError` where `detect_beside` says 0.
        """
        ...
