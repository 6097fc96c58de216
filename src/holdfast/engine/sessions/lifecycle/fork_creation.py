"""Forks of sessions: a directory of its own, registered as a workspace, and a session that works in it.

The catalog has a record before anything is made, and the sweep removes an incomplete fork.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import msgspec

from holdfast.engine.history.tree_copy import create_first_checkpoint
from holdfast.engine.opening.home import INDEX
from holdfast.engine.sessions._quotas import free_id
from holdfast.engine.sessions.holder.lock import holding, lock_path, remove_lock
from holdfast.engine.sessions.identifiers import PROCESS, check_id, new_id
from holdfast.engine.sessions.lifecycle.deletion import delete
from holdfast.engine.sessions.state.journal import SessionLine, StateOrigin, new_ref
from holdfast.files.local_tree import LocalTree
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError, StorageError, UsageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.model.session_results import ForkResult
from holdfast.model.session_types import Metrics
from holdfast.snapshot.git.fork_objects import OBJECTS
from holdfast.snapshot.recorded_provider import LEADS_OUT
from holdfast.store.catalog.session_records import RefChange, SessionRecord, ref_name
from holdfast.store.catalog.work_lease import this_process

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.engine.opening.context import Context
    from holdfast.engine.sessions.state.state_history import SessionScope
    from holdfast.model.ids import CheckpointId, Hash
    from holdfast.model.session_types import RefType, SessionCheckpoint, SessionId, SessionMode
    from holdfast.snapshot.port import Capabilities
    from holdfast.snapshot.provider_selection import ProviderChoice
    from holdfast.store.catalog.session_rows import SessionRows


_LOG = Log(__name__)
_NOT_NOW = (
    *("git_operation", "git_unmerged", "git_filter", "git_index", "git_pipe", "git_hidden", "git_inside"),
    *("git_failed", "git_slow"),
    *(OBJECTS, LEADS_OUT),
)
"""Codes with which a provider does not capture a workspace that another one can: it refuses to, or Git fails in it."""


def paths_of(context: Context, root: Hash) -> set[bytes]:
    """The paths in the manifest ``root``. Nothing is read where the workspace's index is of this very manifest."""
    tree = context.tree
    if isinstance(tree, LocalTree) and tree.index.root == root and not tree.index.delta:
        return tree.index.paths()
    from holdfast.store.manifests import manifest

    return {path for path, _ in manifest.iterate(context.store.pages, root)}


def inherit_index(source: Context, copy: Context, root: Hash, *, begun: int) -> None:
    """Let the next scan of ``copy``, a provider's fresh copy of ``source``, read only unknown files. This requires that
    the manifest ``root`` is the last saved state of the source, and that the copy began after ``begun`` (see
    `inherit`). No process works in the copy yet. A failure is logged: the scan is slower.
    """
    from holdfast.files.scan.inherited_index import inherit

    tree = source.tree
    if not isinstance(tree, LocalTree) or tree.is_layered:
        return
    tree.save_index()
    try:
        index = inherit(os.path.join(source.folder, INDEX), tree.root, copy.workspace.path, root, begun=begun)
        if index is not None:
            index.save(os.path.join(copy.folder, INDEX))
    except (OSError, StorageError) as error:
        _LOG.info("all files of a copy are read when it is looked at: %s", error)


class _Made(NamedTuple):
    """A directory that was made for a fork."""

    context: Context
    tree: CheckpointId
    """The first checkpoint of its workspace."""
    token: str


class ForkRequest(NamedTuple):
    """The arguments of `Session.fork`."""

    name: str | None
    """None: any."""
    with_ignored: bool
    provider: str | None
    kind: RefType
    metadata: Mapping[str, str]
    on_branch: str = ""
    """A branch of Git to be checked out in it, which takes the provider ``git``."""


def fork(
    scope: SessionScope,
    parent: SessionRecord,
    point: SessionCheckpoint,
    request: ForkRequest,
    *,
    now: bool,
) -> ForkResult:
    """Make a fork of the state ``point``; ``now``: the directory of ``parent`` has that state. See `Session.fork`.

    The caller holds ``parent``.
    """
    if request.kind not in ("fork", "experiment"):
        raise UsageError(f"a fork is no {request.kind}")
    context = scope.context
    session = new_id("fork", context.random) if request.name is None else check_id(request.name)
    session = free_id(scope.tiers.rows, session, context.workspace.id)
    path = lock_path(context.home, context.store.tenant, session)
    with holding(path, session, timeout=context.settings.lock.timeout, clock=context.clock):
        try:
            _clear(scope, session)
            asked = request.provider or ("git" if request.on_branch else None)
            providers = _Providers(context, session, asked, with_ignored=request.with_ignored)
            return _make(scope, parent, point, session, providers, request, now=now)
        except (Exception, KeyboardInterrupt):
            if not scope.tiers.rows.has(session):
                remove_lock(path)
            raise


def _make(
    scope: SessionScope,
    parent: SessionRecord,
    point: SessionCheckpoint,
    session: SessionId,
    providers: _Providers,
    request: ForkRequest,
    *,
    now: bool,
) -> ForkResult:
    """Make the fork, whose name is locked and free; a failure leaves nothing."""
    context, rows = scope.context, scope.tiers.rows
    record = SessionRecord(
        id=session,
        parent=parent.id,
        owner=scope.agent,
        shared=(),
        workspace=None,
        origin=context.workspace.id,
        provider=providers.choice.provider.name,
        mode="worktree",
        token="",
        place=None,
        purpose="experiment" if request.kind == "experiment" else "fork",
        status="making",
        created_at=context.clock.now(),
    )
    rows.add(record)
    try:
        made = None
        while made is None:
            made = _provided(scope, point, providers, request.on_branch, now=now)
            record = record._replace(provider=providers.choice.provider.name)
            rows.put(record)
        for reason in providers.choice.passed_over:
            _LOG.warning("the fork %s is made by %s, as it cannot be by %s", session, record.provider, reason)
        done = _begin(scope, point, record, made, request.metadata)
        return done._replace(passed_over=providers.choice.passed_over)
    except (Exception, KeyboardInterrupt):
        try:
            delete(scope.opener, scope.tiers, rows.get(session))
        except (HoldfastError, OSError) as error:
            _LOG.warning("what failed is not cleaned up yet; the next sweep tries again: %s", error)
        raise


def _begin(
    scope: SessionScope,
    point: SessionCheckpoint,
    record: SessionRecord,
    made: _Made,
    metadata: Mapping[str, str],
) -> ForkResult:
    """Commit the session's first state; it lives from then on."""
    clock = scope.context.clock
    before = point.state
    state = msgspec.structs.replace(
        before,
        id=record.id,
        parent=record.parent,
        created_at=clock.now(),
        metrics=Metrics(commands=before.metrics.commands, total_ms=before.metrics.total_ms),
    )
    live = record._replace(workspace=made.context.workspace.id, token=made.token, status="live")
    said = {**metadata, PROCESS: this_process()} if record.purpose == "experiment" else metadata
    kind: RefType = "experiment" if record.purpose == "experiment" else "fork"
    ref = new_ref(kind, record.id, metadata=said)
    first = SessionLine(scope.tiers, live, clock).commit(
        "fork",
        state,
        made.tree,
        metadata=metadata,
        naming=[RefChange(ref, None)],
        lineage=StateOrigin(point.hash),
        record=live,
    )
    ref = msgspec.structs.replace(ref, checkpoint=first.hash, updated_at=first.created_at)
    mode: SessionMode = record.mode
    return ForkResult(record.id, made.context.workspace.path, point.hash, ref, record.provider, mode)


def keep(rows: SessionRows, record: SessionRecord, now: int) -> SessionRecord:
    """Keep a fork: an experiment's fork then outlives the experiment, and no fork expires before ``session.fork_ttl``
    has passed from ``now`` (microseconds). Returns the new record.
    """
    ref = rows.ref(ref_name("fork" if record.purpose == "fork" else "experiment", record.id))
    if ref is None:
        raise RefusedError(f"the reference to the fork {record.id} is gone", code="moved")
    if record.purpose == "fork":
        rows.set_ref(RefChange(msgspec.structs.replace(ref, updated_at=now), ref.checkpoint))
        return record
    moved = msgspec.structs.replace(ref, name=ref_name("fork", record.id), type="fork", updated_at=now)
    kept = record._replace(purpose="fork")
    rows.put(kept, naming=[RefChange(moved, None)], dropping=[ref])
    return kept


def _clear(scope: SessionScope, session: SessionId) -> None:
    """Remove what a fork of this name has left that was killed while it was made. We hold its name."""
    try:
        record = scope.tiers.rows.get(session)
    except NotFoundError:
        return
    if record.status != "live":
        delete(scope.opener, scope.tiers, record)


class _Providers:
    """Chooses the provider that makes the directory: the requested one, or the best usable one."""

    def __init__(self, context: Context, session: SessionId, asked: str | None, *, with_ignored: bool) -> None:
        """``asked`` is the provider that the agent named, if any. Raises `UnsupportedError` if there is none."""
        from holdfast.engine.forks.workspace_providers import providers_of
        from holdfast.snapshot.provider_selection import AUTOMATIC

        wanted = asked or context.settings.snapshot.provider
        self._wanted = wanted
        self._key = None if asked else "snapshot.provider"
        self.with_ignored = with_ignored
        self._all = [one for one in providers_of(context, session) if wanted in (AUTOMATIC, one.name)]
        self._detected: list[Capabilities] = [one.detect(with_git=with_ignored) for one in self._all]
        self.choice = self._chosen()

    def _chosen(self) -> ProviderChoice:
        from holdfast.snapshot.provider_selection import choose

        return choose(
            self._all,
            self._wanted,
            mode="worktree",
            ignored=self.with_ignored,
            key=self._key,
            detected=self._detected,
        )

    def pass_over(self, refusal: RefusedError | StorageError) -> None:
        """The chosen provider has refused, or failed: choose the next one. Raises the refusal if another provider would
        share it, or this one was requested; `UnsupportedError` if no other can be used.
        """
        from holdfast.snapshot.provider_selection import AUTOMATIC

        if self._wanted != AUTOMATIC or refusal.code not in _NOT_NOW:
            raise refusal
        name = self.choice.provider.name
        self._detected = [
            one._replace(not_now=refusal.message) if one.provider == name else one for one in self._detected
        ]
        self.choice = self._chosen()


def _provided(
    scope: SessionScope, point: SessionCheckpoint, providers: _Providers, on_branch: str, *, now: bool
) -> _Made | None:
    """Let a provider make the directory, and bring it to the state; None: it has refused, and another one was chosen.

    Ignored files are included if requested, whatever the provider copies by itself.
    """
    from holdfast.engine.workspace.workspace import Workspace

    source = point.state.tree
    assert source is not None, "a saved state has a tree"
    choice = providers.choice
    carries = choice.capabilities.carries_ignored
    begun = time.time_ns()
    try:
        # A provider that copies .git leaves it out before any command runs, unless ignored files were requested.
        prepared = choice.provider.prepare("worktree", with_git=providers.with_ignored, on_branch=on_branch)
    except (RefusedError, StorageError) as error:
        providers.pass_over(error)
        return None
    if carries and not providers.with_ignored:
        _remove_extra(scope.context, source, prepared.path)
    context = scope.opener.register(prepared.path, source, within=scope.context.folder)
    saved = scope.context.catalog.checkpoint(source)
    if carries:
        inherit_index(scope.context, context, saved.root, begun=begun)
    with context.lock():
        first = create_first_checkpoint(context, saved)
    # A complete copy has the state, or includes changes of this moment, which its next scan finds.
    if not (now and carries):
        catalog, workspace = context.catalog, Workspace(scope.opener, context)
        same = catalog.checkpoint(first).root == saved.root
        workspace.restore(first if same else source, exact=True)
        first = workspace.checkpoint(kind="auto").checkpoint.id
        try:
            choice.provider.settle(prepared.token)
        except StorageError as error:
            _LOG.warning("Git in the fork may call files changed that are not: %s", error.message)
    return _Made(context, first, prepared.token)


def _remove_extra(context: Context, tree: CheckpointId, directory: bytes) -> None:
    """Remove files from a complete copy that the tree lacks: ignored files, and others that no checkpoint holds."""
    from holdfast.files.directories.pruned_copy import keep_only

    root = context.catalog.checkpoint(tree).root
    try:
        keep_only(directory, paths_of(context, root))
    except OSError as error:
        raise StorageError(
            f"{display(directory)}: ignored files cannot be taken out of the copy: {error.strerror}"
        ) from error
