"""A provider of any technique: everything is in the ledger before it is made, and until it is gone.

A technique knows how to make and remove; it need not know of crashes, other processes, names or times.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import msgspec

from holdfast.files.directories.removal_obstacles import removal_hint
from holdfast.model.errors import (
    FormatError,
    HoldfastError,
    NotFoundError,
    RefusedError,
    StorageError,
    UnsupportedError,
    room_hint,
)
from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.snapshot.copied_repositories import GitLinks, forget_linked
from holdfast.snapshot.ledger import check_label, check_name
from holdfast.snapshot.port import Capabilities, Prepared, Snapshot, Token, View

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from holdfast.snapshot.ledger import Ledger, LedgerEntry
    from holdfast.snapshot.port import Allocation, Mode

_LOG = Log(__name__)
LEADS_OUT = "git_leads_out"
"""The code with which a copy is refused that would lead to the user's repository."""


class Technique(Protocol):
    """A provider's way of making its results. Called with the session's lock held, except `detect`.

    An entry of the ledger specifies the result. Methods raise the port's errors, and `OSError`.
    """

    name: str
    modes: tuple[Mode, ...]

    def detect(self) -> Capabilities:
        """See `Provider.detect`."""
        ...

    def plan(self, entry: LedgerEntry, origin: LedgerEntry | None) -> LedgerEntry:
        """``entry`` with path and facts: the complete plan, so that `remove` finds everything at any moment.

        ``origin`` is the working copy that a snapshot is taken of, or the snapshot that the result starts from. Makes
        nothing; a state that cannot be captured is refused here.
        """
        ...

    def workspace(self, entry: LedgerEntry, base: LedgerEntry | None) -> LedgerEntry:
        """Make a working copy, and return the entry with the facts that this has shown."""
        ...

    def view(self, entry: LedgerEntry, snapshot: LedgerEntry) -> LedgerEntry:
        """Make a view."""
        ...

    def capture(self, entry: LedgerEntry, workspace: LedgerEntry, parent: LedgerEntry | None) -> LedgerEntry:
        """Capture a workspace, durably."""
        ...

    def where_to_work(self, entry: LedgerEntry) -> bytes:
        """The path in the working copy or view that corresponds to the root."""
        ...

    def enter(self, entry: LedgerEntry) -> tuple[bytes, ...]:
        """The value of `Prepared.enter` for the working copy."""
        ...

    def resume(self, entry: LedgerEntry) -> None:
        """Mount the working copy again, if it needs a mount and has none."""
        ...

    def remove(self, entry: LedgerEntry) -> None:
        """Remove the entry's result, complete or not, or gone already."""
        ...

    def remove_shared(self) -> None:
        """Remove what entries share: the last one of all sessions is about to go. The shared lock is held."""
        ...


class CopyMaker(Protocol):
    """How a provider makes a copy that can take the workspace's own place."""

    def detect_beside(self, directory: bytes) -> Capabilities:
        """See `Provider.detect_beside`. Raises `OSError`."""
        ...

    def copy_to(self, target: bytes, without: Sequence[bytes]) -> None:
        """See `Provider.copy_to`."""
        ...


class _FindGitLinks(Protocol):
    def __call__(self, source: bytes, *, anew: bool = True) -> GitLinks: ...


class RecordedProvider:
    """A `Provider` by way of a technique and a ledger."""

    def __init__(
        self,
        technique: Technique,
        ledger: Ledger,
        root: bytes,
        find_git_links: _FindGitLinks | None = None,
        copy_maker: CopyMaker | None = None,
        settle: Callable[[LedgerEntry], None] | None = None,
        *,
        has_branches: bool = False,
    ) -> None:
        """Makes nothing yet. ``find_git_links`` is for complete copies: it finds the targets of Git's files, as a copy
        must not lead to the user's repository (I15). For `detect` it need not search ``anew``. ``settle`` implements
        `Provider.settle`. ``has_branches``: the technique checks out the Git branch in the fact ``branch`` of an entry.
        """
        self._technique = technique
        self._ledger = ledger
        self._root = root
        self._find_git_links = find_git_links
        self._copy_maker = copy_maker
        self._settle = settle
        self._has_branches = has_branches

    @property
    def name(self) -> str:
        """See `Provider.name`."""
        return self._technique.name

    def detect(self, *, with_git: bool = True) -> Capabilities:
        """See `Provider.detect`."""
        found = self._technique.detect()
        if not found.score or self._find_git_links is None or not with_git:
            return found
        try:
            reason = self._find_git_links(self._root, anew=False).out
        except OSError as error:
            reason = f"the workspace cannot be looked through: {error.strerror}"
        return found._replace(score=0, notes=(reason,)) if reason else found

    def prepare(
        self, mode: Mode, *, base: Snapshot | None = None, with_git: bool = True, on_branch: str = ""
    ) -> Prepared:
        """See `Provider.prepare`."""
        if on_branch and (mode == "in-place" or not self._has_branches):
            raise UnsupportedError(
                f"the provider {self.name} checks out no branch in the mode {mode}",
                hint="git does, in a directory of its own (worktree)",
            )
        with self._changing():
            return self._prepare(mode, base, "", with_git=with_git, on_branch=on_branch)

    def branch(self, snapshot: Snapshot, name: str, mode: Mode) -> Prepared:
        """See `Provider.branch`."""
        check_name(name, "branch")
        with self._changing():
            if any(entry.label == name for entry in self._ledger.entries("workspace")):
                raise RefusedError(f"there is a branch {name} already", hint="choose another", code="branch_exists")
            return self._prepare(mode, snapshot, name, with_git=True)

    def _prepare(
        self, mode: Mode, base: Snapshot | None, name: str, *, with_git: bool, on_branch: str = ""
    ) -> Prepared:
        if mode not in self._technique.modes:
            had = ", ".join(self._technique.modes)
            raise UnsupportedError(f"the provider {self.name} has no mode {mode}", hint=f"it has {had}")
        if mode == "in-place" and base is not None:
            raise UnsupportedError(
                "in place there is only the workspace as it is: a snapshot cannot be worked in there",
                hint="the mode worktree makes a directory of its own",
            )
        origin = None if base is None else self._kept(base.id)
        with_git = with_git and mode != "in-place" and self._find_git_links is not None
        known = self._refuse_leading_out(self._root) if with_git and origin is None else None
        if known is not None and mode == "worktree":
            _refuse_known(self._root, known)
        facts = {"branch": on_branch} if on_branch else {}
        of = "" if origin is None else origin.token
        entry = self._ledger.new("workspace", mode=mode, label=name, of=of, facts=facts)
        if mode != "in-place":
            entry = self._technique.plan(entry, origin)
        with self._making(entry):
            if mode != "in-place":
                entry = self._technique.workspace(entry, origin)
            if mode == "worktree" and with_git:
                path = self._technique.where_to_work(entry)
                found = known or self._refuse_leading_out(path)
                _refuse_known(path, found)
                forget_linked(path, found.linked)
            self._complete(entry)
        return self._prepared(entry)

    def resume(self, token: Token) -> Prepared:
        """See `Provider.resume`."""
        with self._changing():
            entry = self._workspace(token)
            if entry.mode != "in-place":
                self._technique.resume(entry)
            return self._prepared(entry)

    def settle(self, token: Token) -> None:
        """See `Provider.settle`."""
        if self._settle is not None:
            with self._changing():
                self._settle(self._workspace(token))

    def _workspace(self, token: Token) -> LedgerEntry:
        entry = self._ledger.get(token)
        if entry is None or entry.kind != "workspace":
            raise NotFoundError("the prepared directory is gone", hint="prepare it again")
        return entry

    def _prepared(self, entry: LedgerEntry) -> Prepared:
        token = Token(entry.token)
        if entry.mode is None or entry.mode == "in-place":
            return Prepared(self.name, "in-place", self._root, self._root, token)
        path = self._technique.where_to_work(entry)
        return Prepared(self.name, entry.mode, self._root, path, token, self._technique.enter(entry))

    def snapshot(self, of: Prepared, label: str) -> Snapshot:
        """See `Provider.snapshot`."""
        check_label(label)
        with self._changing():
            workspace = self._ledger.get(of.token)
            if workspace is None or workspace.kind != "workspace":
                raise NotFoundError(
                    f"{display(of.path)} was cleaned up, and cannot be captured", hint="prepare it again"
                )
            if workspace.mode != "overlay":  # there, references to the workspace's own path lead to the layer
                in_place = workspace.mode == "in-place"
                self._refuse_leading_out(self._root if in_place else self._technique.where_to_work(workspace))
            before = [entry for entry in self._ledger.entries("snapshot") if entry.of == workspace.token]
            parent = before[-1] if before else self._parent(workspace.of)
            entry = self._ledger.new(
                "snapshot",
                label=label,
                of=workspace.token,
                parent=before[-1].token if before else workspace.of,
            )
            entry = self._technique.plan(entry, workspace)
            with self._making(entry):
                entry = self._technique.capture(entry, workspace, parent)
                self._complete(entry)
        return _snapshot(entry)

    def _refuse_leading_out(self, source: bytes) -> GitLinks:
        found = GitLinks("") if self._find_git_links is None else self._find_git_links(source)
        if found.out:
            raise RefusedError(
                f"{display(source)} cannot be copied whole: {found.out}",
                hint="the providers git and holdfast do not copy Git's own files",
                code=LEADS_OUT,
            )
        return found

    def mount(self, snapshot: Snapshot) -> View:
        """See `Provider.mount`."""
        with self._changing():
            origin = self._kept(snapshot.id)
            entry = self._technique.plan(self._ledger.new("view", of=origin.token), origin)
            with self._making(entry):
                entry = self._technique.view(entry, origin)
                self._complete(entry)
        return View(self._technique.where_to_work(entry), Token(entry.token))

    def snapshots(self) -> Sequence[Snapshot]:
        """See `Provider.snapshots`."""
        return [_snapshot(entry) for entry in self._ledger.entries("snapshot") if entry.complete]

    def views(self, snapshot: Snapshot) -> Sequence[View]:
        """See `Provider.views`."""
        found = (entry for entry in self._ledger.entries("view") if entry.of == snapshot.id and entry.complete)
        return [View(self._technique.where_to_work(entry), Token(entry.token)) for entry in found]

    def discard(self, snapshot: Snapshot) -> None:
        """See `Provider.discard`."""
        with self._changing():
            self._remove(self._kept(snapshot.id))

    def cleanup(self, token: Token) -> None:
        """See `Provider.cleanup`."""
        with self._changing():
            entry = self._ledger.get(token)
            if entry is not None:
                self._remove(entry)

    def tokens(self) -> Sequence[Allocation]:
        """See `Provider.tokens`."""
        found = [entry.allocation() for entry in self._ledger.entries()]
        if not found:
            self._ledger.remove_empty()
        return found

    def detect_beside(self, directory: bytes) -> Capabilities:
        """See `Provider.detect_beside`."""
        if self._copy_maker is None:
            return Capabilities(self.name, 0, notes=("its copies cannot change places with the workspace",))
        try:
            return self._copy_maker.detect_beside(directory)
        except OSError as error:
            return Capabilities(self.name, 0, notes=(f"the file system cannot be tried: {error.strerror}",))

    def copy_to(self, target: bytes, *, without: Sequence[bytes]) -> None:
        """See `Provider.copy_to`."""
        found = self.detect_beside(os.path.dirname(target))
        if self._copy_maker is None or not found.score:
            raise UnsupportedError(
                f"the provider {self.name} cannot copy {display(self._root)} to {display(target)}: "
                f"{'; '.join(found.notes)}",
                code="no_provider",
            )
        self._copy_maker.copy_to(target, without)

    def _parent(self, token: str) -> LedgerEntry | None:
        """The snapshot that a working copy started from, if it exists and is readable: captures do not depend on it."""
        try:
            return self._ledger.get(token)
        except FormatError:
            return None

    def _kept(self, token: Token) -> LedgerEntry:
        entry = self._ledger.get(token)
        if entry is None or entry.kind != "snapshot":
            raise NotFoundError(f"there is no snapshot {token}", hint="it was discarded, or is another session's")
        return entry

    def _complete(self, entry: LedgerEntry) -> None:
        self._ledger.write(msgspec.structs.replace(entry, complete=True))

    def _remove(self, entry: LedgerEntry) -> None:
        """Remove the entry's result, then the entry: never the other way round. A partly removed result is unusable."""
        if entry.complete:
            self._ledger.write(msgspec.structs.replace(entry, complete=False))
        self._technique.remove(entry)
        with self._ledger.lock_shared():
            if self._ledger.is_last(entry):
                self._technique.remove_shared()
            self._ledger.remove(entry)

    @contextmanager
    def _changing(self) -> Generator[None]:
        """Hold the session, without what others had begun in it when they were killed."""
        try:
            with self._ledger.lock():
                for entry in self._ledger.entries():
                    if not entry.complete:
                        self._remove(entry)
                for damage in self._ledger.damaged():
                    _LOG.warning("%s; it is left aside (%s)", damage.message, damage.hint)
                yield
        except OSError as error:
            full = room_hint(error)
            at = os.fsencode(error.filename) if error.filename else self._ledger.state if full else b""
            where = f": {display(at)}" if at else ""
            failed = f"the provider {self.name} has failed: {error.strerror or error}{where}"
            raise StorageError(failed, hint=removal_hint(error) or full) from error

    @contextmanager
    def _making(self, entry: LedgerEntry) -> Generator[None]:
        """Have the entry in the ledger from now on; its result is removed if the block fails."""
        self._ledger.write(entry)
        try:
            yield
        except (Exception, KeyboardInterrupt):
            try:
                self._remove(entry)
            except (HoldfastError, OSError) as error:
                _LOG.warning(
                    "a failed attempt is not cleaned up yet; the next change in the session tries again: %s", error
                )
            raise


def _refuse_known(source: bytes, found: GitLinks) -> None:
    """Refuse to copy, as a working copy, a bare repository in which Git could write to, or remove, work trees of the
    user. Such a copy cannot drop them: merging it back would drop them in the user's repository, too.
    """
    if found.bare:
        raise RefusedError(
            f"{display(source)} cannot be copied whole to be worked in: a bare repository in it knows a work tree of "
            f"yours, by {display(found.bare[0])}",
            hint="Git in the copy could change or remove that one; `git worktree list` says where it is",
            code=LEADS_OUT,
        )


def _snapshot(entry: LedgerEntry) -> Snapshot:
    return Snapshot(Token(entry.token), entry.label, entry.created_at, Token(entry.parent) if entry.parent else None)
