"""The technique of the Git provider: commits and work trees of the shadow, and a pin in the user's repository.

Everything except the pin is in the state directory, and is found by the ledger's entry alone.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from holdfast.files.directories.replication import make_read_only, remove_whole
from holdfast.model.errors import HoldfastError, RefusedError, StorageError, UnsupportedError, UsageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log
from holdfast.model.paths import display, parse_display
from holdfast.snapshot.copied_repositories import end_keeping_apart, keep_apart
from holdfast.snapshot.git._capture import (
    Capture,
    Captured,
    CaptureRules,
    SkippedFilters,
    blobs_in,
    filter_refused,
    filters_of,
    forget_index,
    give_conflicts,
)
from holdfast.snapshot.git._command import QUICK_SECONDS, Git, find_git
from holdfast.snapshot.git._read_access import ReadAccess
from holdfast.snapshot.git._shadow_repository import ShadowRepository, same_sparsity, shadow_name
from holdfast.snapshot.git._submodules import Submodules, renew_indexes
from holdfast.snapshot.git._user_repository import (
    UserRepository,
    find_user_repository,
    head_of,
    included_for,
    pin,
    read_settings,
    refs_of,
    refuse_pipes,
    refuse_unfinished,
    unpin,
)
from holdfast.snapshot.git._work_tree_repository import git_directory, make_repository
from holdfast.snapshot.git.fork_objects import OBJECTS, WORK_TREES, ForkObjects, directory_name, lent_to
from holdfast.snapshot.port import Capabilities, Mode
from holdfast.snapshot.private_directories import make_private
from holdfast.snapshot.recorded_provider import RecordedProvider

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.snapshot.git._user_repository import RepositorySettings
    from holdfast.snapshot.ledger import Ledger, LedgerEntry
    from holdfast.snapshot.provider_context import ProviderContext

_LOG = Log(__name__)
_SCORE = 50
_WAY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OLDEST = (2, 31)
_VERSION = re.compile(rb"git version (\d+)\.(\d+)")


class GitOptions(NamedTuple):
    """The configuration for Git."""

    include_untracked: bool = False
    """Include files that are neither tracked nor ignored."""
    include_conflicts: bool = False
    """Also capture in the middle of a merge, a rebase or the like, with the conflicts of the index."""
    trust_local_filters: bool = False
    """Run the filters that the repository's own configuration defines: commands of its author's."""
    hidden: tuple[bytes, ...] = ()
    """Directories that are hidden from runs: from there nothing is borrowed."""


_DEFAULT = GitOptions()


class _Git:
    """See `Technique`."""

    name = "git"
    modes: tuple[Mode, ...] = ("worktree", "in-place")

    def __init__(self, context: ProviderContext, ledger: Ledger, options: GitOptions) -> None:
        self._context = context
        self._ledger = ledger
        self._options = options
        self._reach = ReadAccess(context, options.hidden)

    # -- what can be had ----------------------------------------------------------------------------------------------

    def detect(self) -> Capabilities:
        """See `Technique.detect`."""
        try:
            return self._detect()
        except (HoldfastError, OSError) as error:
            return Capabilities(self.name, 0, notes=(f"the repository cannot be read: {error}",))

    def _detect(self) -> Capabilities:
        if find_git() is None:
            return Capabilities(self.name, 0, notes=("there is no program git",))
        nearest = self._context.nearest()
        version = _VERSION.match(Git(nearest, seconds=QUICK_SECONDS)("version"))
        if version is None or (int(version[1]), int(version[2])) < _OLDEST:
            return Capabilities(self.name, 0, notes=(f"it takes Git {_OLDEST[0]}.{_OLDEST[1]} or later",))
        source = find_user_repository(self._context.root)
        if source is None:
            return Capabilities(self.name, 0, notes=("the workspace is in no repository of Git",))
        settings = read_settings(source, nearest, self._reach.content)
        untracked = "ignored files" if self._options.include_untracked else "untracked files, nor ignored ones"
        notes = [f"snapshots hold no {untracked}; a submodule is the commit that it is at"]
        if source.work_tree is None:
            notes = ["the repository is bare: work trees begin as its HEAD"]
        if settings.drivers and not self._options.trust_local_filters:
            named = ", ".join(settings.drivers[:5])
            notes.append(
                f"filters that only the repository's configuration defines are not run ({named}): files are captured "
                "as they are, and refused where the filter is required, unless git.trust_local_filters says yes"
            )
        if settings.partial:
            notes.append("the repository is a partial clone: what it has not fetched is in no work tree")
        not_now = ""
        if source.work_tree is not None:
            try:
                self._refuse_unfinished(source)
            except RefusedError as error:
                not_now = error.message
                notes.append(f"nothing can be captured now: {not_now}")
        modes: tuple[Mode, ...] = self.modes if source.work_tree is not None else ("worktree",)
        return Capabilities(self.name, _SCORE, modes, not_now=not_now, notes=tuple(notes))

    # -- planning -----------------------------------------------------------------------------------------------------

    def plan(self, entry: LedgerEntry, origin: LedgerEntry | None) -> LedgerEntry:
        """See `Technique.plan`."""
        path = "" if entry.kind == "snapshot" else display(self._work_tree(entry))
        if origin is not None and origin.facts:
            facts = entry.facts | {name: origin.facts[name] for name in ("repository", "base", "shadow", "inside")}
        else:
            # Before the entry refers to anything that would be removed with it.
            _, settings = self._look(source := self._source())
            facts = entry.facts | {
                "repository": display(source.common),
                "base": head_of(source),
                "shadow": shadow_name(settings.object_format),
                "inside": display(source.inside),
            }
        if "branch" in facts:
            self._check_branch(facts["branch"])
        if entry.kind == "snapshot" or origin is None:
            self._refuse_unfinished(self._captured(origin))
        return msgspec.structs.replace(entry, path=path, facts=facts)

    def _check_branch(self, name: str) -> None:
        git = Git(self._context.nearest(), seconds=QUICK_SECONDS)
        try:
            if name.startswith("-") or name in ("HEAD", "@"):
                raise StorageError("it would be taken for something else")
            git("check-ref-format", f"refs/heads/{name}")
        except (StorageError, ValueError) as error:  # NUL cannot be an argument
            raise UsageError(
                f"{name[:100]!r} is no name for a branch of Git", hint="git-check-ref-format(1) has the rules"
            ) from error

    def _refuse_unfinished(self, source: UserRepository) -> None:
        if not self._options.include_conflicts:
            refuse_unfinished(source)

    def _source(self) -> UserRepository:
        source = find_user_repository(self._context.root)
        if source is None:
            raise UnsupportedError(
                f"{display(self._context.root)} is in no repository of Git",
                hint="`holdfast doctor` says which providers of snapshots can be used",
            )
        return source

    def _captured(self, workspace: LedgerEntry | None) -> UserRepository:
        """The work tree that a workspace is; None, and in place: the user's."""
        if workspace is None or workspace.place is None:
            return self._source()
        own, common = git_directory(workspace.place), git_directory(workspace.place)
        if not os.path.isdir(own):  # made by an earlier version: a work tree of the shadow's
            common = self._shadow(workspace).path
            own = os.path.join(common, b"worktrees", workspace.token.encode())
        return UserRepository(workspace.place, own, common, parse_display(workspace.facts["inside"]))

    def _work_tree(self, entry: LedgerEntry) -> bytes:
        return os.path.join(self._work_trees(), entry.token.encode())

    def _work_trees(self) -> bytes:
        return os.path.join(self._context.state, WORK_TREES)

    def _kept(self, entry: LedgerEntry) -> ForkObjects:
        return ForkObjects(os.path.join(os.path.realpath(self._context.state), directory_name(entry.facts["shadow"])))

    def _index(self, token: str) -> bytes:
        return os.path.join(self._context.state, b"indexes", token.encode())

    def _shadow(self, entry: LedgerEntry) -> ShadowRepository:
        return ShadowRepository(os.path.join(self._context.state, entry.facts["shadow"].encode()))

    # -- making -------------------------------------------------------------------------------------------------------

    def workspace(self, entry: LedgerEntry, base: LedgerEntry | None) -> LedgerEntry:
        """See `Technique.workspace`."""
        shadow, settings = self._ready(entry, pinned=base is None)
        if base is not None:
            captured = Captured(base.facts["commit"], base.facts.get("conflicts", ""))
        elif (source := self._source()).work_tree is None:
            captured = Captured(entry.facts["base"])
            if not captured.commit:
                raise RefusedError(f"{display(self._context.root)} has no commit yet", hint="commit something first")
        else:
            # Before the shadow reads any of it: files that are not the repository's are refused here.
            self._keep(self._kept(entry), self._stores(shadow, source, settings), self._context.most_bytes)
            try:
                captured = self._commit(entry, shadow, settings, None, parent=entry.facts["base"])
            except RefusedError as error:
                if error.code != OBJECTS:
                    raise
                # Another process may have committed since. All objects that are not from files come from the kept ones.
                self._keep(self._kept(entry), self._stores(shadow, source, settings), self._context.most_bytes)
                captured = self._commit(entry, shadow, settings, None, parent=entry.facts["base"])
            forget_index(self._index(entry.token))
        self._check_out(shadow, settings, entry, captured)
        try:
            self._let_go(entry)
        except StorageError as error:  # a lock that a process has left; the result is correct
            _LOG.warning("the commit of the fork stays referenced until the fork is removed: %s", error)
        name = entry.label or entry.token
        self._set_ref(shadow, entry, f"refs/holdfast/branches/{self._context.session}/{name}", captured.commit)
        return _with_facts(entry, captured)

    def view(self, entry: LedgerEntry, snapshot: LedgerEntry) -> LedgerEntry:
        """See `Technique.view`."""
        shadow, settings = self._ready(entry, pinned=False)
        captured = Captured(snapshot.facts["commit"], snapshot.facts.get("conflicts", ""))
        self._check_out(shadow, settings, entry, captured)
        make_read_only(self._work_tree(entry))
        return _with_facts(entry, captured)

    def capture(self, entry: LedgerEntry, workspace: LedgerEntry, parent: LedgerEntry | None) -> LedgerEntry:
        """See `Technique.capture`."""
        shadow, settings = self._ready(entry, pinned=workspace.place is None)
        base = entry.facts["base"]
        # A chain of snapshots has one commit of the user as its base; another base starts a new chain. So the pin of
        # any snapshot keeps all that the chain needs, whichever of them are discarded.
        follows = parent is not None and parent.facts["base"] == base
        before = parent.facts["commit"] if parent is not None and follows else base
        captured = self._commit(entry, shadow, settings, workspace, parent=before)
        self._set_ref(shadow, entry, self._snapshot_ref(entry), captured.commit)
        return _with_facts(entry, captured)

    def _set_ref(self, shadow: ShadowRepository, entry: LedgerEntry, ref: str, commit: str) -> None:
        """Have a ref of the shadow name a commit, with a line in its log, which goes with the ref."""
        words = ("update-ref", "--create-reflog", "-m", self._message(entry), ref, commit)
        shadow.git()(*words, at=entry.created_at)

    def _message(self, entry: LedgerEntry) -> str:
        label = f" {entry.label}" if entry.label else ""
        return f"holdfast: {entry.kind} {self._context.session}/{entry.token}{label}"

    def _ready(self, entry: LedgerEntry, *, pinned: bool) -> tuple[ShadowRepository, RepositorySettings]:
        """The shadow, updated for the user's repository. ``pinned``: the entry's base is only in that repository, and
        must be kept there. (A snapshot that another starts from has its pin; and a fork's base is kept for it, even if
        undo removes the commit, for which a pin would be a dangling ref.)
        """
        source = self._source()
        stores, settings = self._look(source)
        settings = self._with_included(source, settings)
        shadow = self._shadow(entry)
        with self._ledger.lock_shared():
            kept = self._kept(entry).path
            trusted = self._options.trust_local_filters
            shadow.prepare(settings, stores, kept=kept, trust_filters=trusted)
        base = entry.facts["base"]
        if base:
            shadow.git(seconds=QUICK_SECONDS)("cat-file", "-e", f"{base}^{{tree}}")
            if pinned:
                pin(parse_display(entry.facts["repository"]), self._context.session, base)
        return shadow, settings

    def _look(self, source: UserRepository) -> tuple[list[bytes], RepositorySettings]:
        """The directories of objects of a repository, and its settings for content, before Git reads anything there:
        refused if Git must not, or would block.
        """
        stores, nearest = self._reach.refuse_hidden(source), self._context.nearest()
        refuse_pipes(source, stores, nearest)
        return stores, read_settings(source, nearest, self._reach.content)

    def _with_included(self, source: UserRepository, settings: RepositorySettings) -> RepositorySettings:
        return settings._replace(included=tuple(included_for(source, self._context.nearest())))

    def _commit(
        self,
        entry: LedgerEntry,
        shadow: ShadowRepository,
        settings: RepositorySettings,
        workspace: LedgerEntry | None,
        *,
        parent: str,
    ) -> Captured:
        source, reach = self._captured(workspace), self._reach
        if workspace is not None and workspace.place is not None:
            reach = ReadAccess(self._context, self._options.hidden, workspace.place)
            reach.refuse_hidden(source)
        capture = Capture(
            shadow,
            source,
            self._index(entry.token if workspace is None else workspace.token),
            reach,
            CaptureRules(
                self._options.include_untracked,
                self._options.include_conflicts,
                settings.partial,
                self._unrun(shadow, settings),
                settings.object_format,
            ),
            only=self._kept(entry).path if workspace is None else None,
            borrows=None if workspace is None or workspace.place is None else os.path.join(source.common, b"objects"),
        )
        message = self._message(entry) + "\n"
        return capture.run(base=entry.facts["base"], parent=parent, message=message, at=entry.created_at)

    def _unrun(self, shadow: ShadowRepository, settings: RepositorySettings) -> SkippedFilters:
        if self._options.trust_local_filters or not settings.drivers:
            return SkippedFilters()
        names = frozenset(settings.drivers) - shadow.filters()
        return SkippedFilters(names, names & frozenset(settings.required))

    def _refuse_required(
        self, shadow: ShadowRepository, settings: RepositorySettings, entry: LedgerEntry, commit: str
    ) -> None:
        """Refuse a commit with files that take a required filter which is not run: Git writes those out as they are."""
        required = self._unrun(shadow, settings).required
        if not required:
            return
        index = self._index(entry.token)
        make_private(os.path.dirname(index))
        git = shadow.git(index=index)
        git("read-tree", commit)
        for path, name in filters_of(git, git.fields("ls-files", "-z"), "--cached"):
            if name in required:
                raise filter_refused(name, path)
        forget_index(self._index(entry.token))

    def _check_out(
        self, shadow: ShadowRepository, settings: RepositorySettings, entry: LedgerEntry, captured: Captured
    ) -> None:
        path, (commit, conflicts) = self._work_tree(entry), captured
        listed = shadow.git()("cat-file", "blob", conflicts, limit=1 << 30) if conflicts else b""
        self._make_room()
        self._refuse_required(shadow, settings, entry, commit)
        if entry.kind == "view":  # no process writes to a view's repository
            own = os.path.join(shadow.path, b"worktrees", entry.token.encode())
            words = ("--detach", "--no-checkout", "--lock", "--reason", "shown by Holdfast")
            with self._ledger.lock_shared():  # Git looks at the others, and fails if one of them goes as it does
                shadow.git()("worktree", "add", "--quiet", *words, path, commit)
            same_sparsity(own, settings)
        else:
            own, trusted = git_directory(path), self._options.trust_local_filters
            base = entry.facts["base"]
            source, kept = self._source(), self._kept(entry)
            stores = self._stores(shadow, source, settings)
            make_repository(
                path,
                shadow,
                settings,
                commit=commit,
                base=base,
                more=blobs_in(listed),
                kept=kept.path,
                refs=self._keep_all(kept, stores, source, self._context.most_bytes)[0],
                branch=entry.facts.get("branch", ""),
                trust_filters=trusted,
            )
            self._refuse_without(Git(path, git_dir=own, seconds=QUICK_SECONDS), base)
            with self._ledger.lock_shared():
                kept.take_graphs(stores, Git(path, git_dir=own))
        git = Git(path, git_dir=own, work_tree=path)
        git("read-tree", "-m", "-u", "HEAD")
        if listed:
            give_conflicts(git, listed)
        if entry.kind != "view":
            self._make_submodules(entry, settings)
        _make_inside(path, parse_display(entry.facts["inside"]))

    def _make_room(self) -> None:
        """Make the directory of the work trees, above which Git finds nothing: one of them may lose its repository."""
        with self._ledger.lock_shared():
            make_private(self._work_trees())
            keep_apart(self._work_trees())

    def _make_submodules(self, entry: LedgerEntry, settings: RepositorySettings) -> None:
        kept, around = self._kept(entry), self._source()
        if around.work_tree is None:
            return

        def lend(source: UserRepository, most_bytes: int) -> tuple[Mapping[str, str], int]:
            return self._keep_all(kept, self._reach.refuse_hidden(source), source, most_bytes)

        Submodules(
            lambda source: self._with_included(source, self._look(source)[1]),
            lend,
            kept=kept.path,
            object_format=settings.object_format,
            most_bytes=self._context.most_bytes,
            trust_filters=self._options.trust_local_filters,
        ).make(self._work_tree(entry), around, now=not entry.of)

    def _stores(self, shadow: ShadowRepository, source: UserRepository, settings: RepositorySettings) -> list[bytes]:
        """The directories of objects that a fork may need: the user's, last, with those that it borrows from."""
        return [
            *((os.path.realpath(shadow.objects),) if settings.partial else ()),
            *self._reach.stores(source),
        ]

    def _keep_all(
        self, kept: ForkObjects, stores: Sequence[bytes], source: UserRepository, most_bytes: int
    ) -> tuple[Mapping[str, str], int]:
        """Add all objects that a fork may borrow to the permanent store, and return the user's refs whose objects it
        has completely: those that were the same before and after, so that the user's gc removed none of theirs
        meanwhile; and the number of copied bytes.
        """
        before = refs_of(source.common)
        copied = self._keep(kept, stores, most_bytes)
        after = refs_of(source.common)
        return {name: value for name, value in before.items() if after.get(name) == value}, copied

    def _keep(self, kept: ForkObjects, stores: Sequence[bytes], most_bytes: int) -> int:
        with self._ledger.lock_shared():
            return kept.take(stores, own=lent_to(self._context.root)[1:], most_bytes=most_bytes)

    def _refuse_without(self, git: Git, base: str) -> None:
        """Refuse a fork whose base cannot be found: every operation on its history would fail."""
        try:
            if base:
                git("cat-file", "-e", f"{base}^{{tree}}")
        except StorageError as error:
            raise RefusedError(
                f"the commit {base[:12]}, which HEAD is, is not in what a fork may borrow",
                hint="`git fsck` lists missing objects; or use another provider of snapshots",
                code=OBJECTS,
            ) from error

    def settle(self, entry: LedgerEntry) -> None:
        """See `Provider.settle`."""
        if entry.facts:
            renew_indexes(self._work_tree(entry))

    def where_to_work(self, entry: LedgerEntry) -> bytes:
        """See `Technique.where_to_work`."""
        inside = parse_display(entry.facts["inside"])
        return os.path.join(self._work_tree(entry), inside) if inside else self._work_tree(entry)

    def enter(self, entry: LedgerEntry) -> tuple[bytes, ...]:
        """See `Technique.enter`."""
        del entry
        return ()

    def resume(self, entry: LedgerEntry) -> None:
        """See `Technique.resume`: a directory stays. (Earlier versions have not kept it apart.)"""
        del entry
        self._make_room()

    # -- removing -----------------------------------------------------------------------------------------------------

    def remove(self, entry: LedgerEntry) -> None:
        """See `Technique.remove`."""
        forget_index(self._index(entry.token))
        if not entry.facts:
            return  # in place
        shadow = self._shadow(entry)
        remove_whole(self._work_tree(entry))
        if os.path.lexists(known := os.path.join(shadow.path, b"worktrees", entry.token.encode())):
            with self._ledger.lock_shared():
                remove_whole(known)
        if shadow.exists():
            if entry.kind == "snapshot":
                shadow.git()("update-ref", "-d", self._snapshot_ref(entry))
            elif entry.kind == "workspace":
                name = entry.label or entry.token
                shadow.git()("update-ref", "-d", f"refs/holdfast/branches/{self._context.session}/{name}")
        self._let_go(entry)

    def _let_go(self, entry: LedgerEntry) -> None:
        """Remove the pin of the entry's base, unless a snapshot or a view needs it."""
        needed = {
            (other.facts["repository"], other.facts["base"])
            for other in self._ledger.entries()
            if other.facts and other.token != entry.token and other.kind != "workspace"
        }
        stands_on = (entry.facts["repository"], entry.facts["base"])
        if stands_on not in needed and not self._ledger.damaged():  # the base of a damaged one is unknown
            unpin(parse_display(stands_on[0]), self._context.session, stands_on[1])

    def remove_shared(self) -> None:
        """See `Technique.remove_shared`."""
        end_keeping_apart(self._work_trees())
        for object_format in ("sha1", "sha256"):
            path = os.path.join(self._context.state, shadow_name(object_format).encode())
            for left in (path + b".new", path + b".gone"):
                remove_whole(left)
            if os.path.lexists(path):
                os.rename(path, path + b".gone")  # a kill must leave none rather than a part
                remove_whole(path + b".gone")
            remove_whole(os.path.join(self._context.state, directory_name(shadow_name(object_format))))

    def _snapshot_ref(self, entry: LedgerEntry) -> str:
        return f"refs/holdfast/sessions/{self._context.session}/snapshots/{entry.token}"


def _make_inside(work_tree: bytes, inside: bytes) -> None:
    """Make the directory ``inside`` of a work tree (empty: itself) that comes from a commit, if it is missing.

    A process in the repository decides what a commit has there: behind a link, the fork's files would be those of the
    link's target (I7). Raises `RefusedError` for a link or a file, `OSError`.
    """
    at = os.open(work_tree, _WAY)
    try:
        for name in inside.split(b"/") if inside else ():
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=at)
            try:
                inner = os.open(name, _WAY, dir_fd=at)
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
                raise RefusedError(
                    f"{display(inside)}, which the workspace is in its repository, is not a directory in the commit",
                    hint="was it replaced by a link or a file meanwhile? Try again, or use another provider",
                    code="git_inside",
                ) from error
            os.close(at)
            at = inner
    finally:
        os.close(at)


def _with_facts(entry: LedgerEntry, captured: Captured) -> LedgerEntry:
    conflicts = {"conflicts": captured.conflicts} if captured.conflicts else {}
    return msgspec.structs.replace(entry, facts={**entry.facts, "commit": captured.commit, **conflicts})


def git_provider(context: ProviderContext, options: GitOptions = _DEFAULT) -> RecordedProvider:
    """The provider ``git``. Raises `UsageError` for a session that cannot be called so."""
    ledger = context.ledger()
    technique = _Git(context, ledger, options)
    return RecordedProvider(technique, ledger, context.root, settle=technique.settle, has_branches=True)
