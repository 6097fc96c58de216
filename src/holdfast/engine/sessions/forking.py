"""Forks of sessions: a directory of its own, registered as a workspace, and a session that works in it.

What is about to be made is in the catalog before it is, and is the sweep's to remove until all of it is there.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from holdfast.engine.fork_history import first_checkpoint
from holdfast.engine.home import make_private
from holdfast.engine.sessions.deleting import PLAIN, delete
from holdfast.engine.sessions.holding import holding, lock_path
from holdfast.engine.sessions.line import Line, new_ref
from holdfast.engine.sessions.naming import check_id, new_id
from holdfast.engine.sessions.results import ForkResult
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError, UnsupportedError, UsageError
from holdfast.model.log import Log
from holdfast.model.named import NamedTuple
from holdfast.model.paths import display, under
from holdfast.model.session import Metrics
from holdfast.store.lease import this_process
from holdfast.store.session_records import RefChange, SessionRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.engine.context import Context
    from holdfast.engine.sessions.states import Surroundings
    from holdfast.model.ids import CheckpointId
    from holdfast.model.session import RefType, SessionCheckpoint, SessionId, SessionMode
    from holdfast.snapshot.choosing import Choice
    from holdfast.snapshot.port import Capabilities

_LOG = Log(__name__)
PROCESS = "process"
"""In the metadata of an experiment's reference: who makes it, as `store.lease` names a process."""


class _Made(NamedTuple):
    """A directory that was made for a fork."""

    context: Context
    tree: CheckpointId
    """The first checkpoint of its workspace."""
    token: str


def fork(
    around: Surroundings,
    parent: SessionRecord,
    point: SessionCheckpoint,
    *,
    name: str | None,
    now: bool,
    with_ignored: bool,
    provider: str | None,
    kind: RefType,
    metadata: Mapping[str, str],
) -> ForkResult:
    """Make a fork of the state ``point``; ``now``: that is what the directory of ``parent`` holds. See `Session.fork`.

    Whoever calls it holds ``parent``.
    """
    if kind not in ("fork", "experiment"):
        raise UsageError(f"a fork is no {kind}")
    context, rows = around.context, around.shelf.rows
    session = new_id("fork", context.random) if name is None else check_id(name)
    path = lock_path(context.home, context.store.tenant, session)
    with holding(path, session, timeout=context.settings.lock.timeout, clock=context.clock):
        _clear(around, session)
        choice = _choose(context, session, provider, with_ignored=with_ignored)
        record = SessionRecord(
            id=session,
            parent=parent.id,
            owner=around.agent,
            shared=(),
            workspace=None,
            origin=context.workspace.id,
            provider=PLAIN if choice is None else choice.provider.name,
            mode="worktree",
            token="",
            place=_place(context, session) if choice is None else None,
            purpose=kind,
            status="making",
            created_at=context.clock.now(),
        )
        rows.add(record)
        try:
            made = _written(around, point, record) if choice is None else _provided(around, point, choice, now=now)
            return _begin(around, point, record, made, metadata)
        except Exception:
            try:
                delete(around.opener, around.shelf, record)
            except (HoldfastError, OSError) as error:
                _LOG.warning("what failed is not cleaned up yet; the next sweep tries again: %s", error)
            raise


def _begin(
    around: Surroundings,
    point: SessionCheckpoint,
    record: SessionRecord,
    made: _Made,
    metadata: Mapping[str, str],
) -> ForkResult:
    """Commit the session's first state; it lives from then on."""
    clock = around.context.clock
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
    first = Line(around.shelf, live, clock).commit(
        "fork", state, made.tree, parent=point.hash, metadata=metadata, naming=[RefChange(ref, None)], record=live
    )
    ref = msgspec.structs.replace(ref, checkpoint=first.hash, updated_at=first.created_at)
    mode: SessionMode = record.mode
    return ForkResult(record.id, made.context.workspace.path, point.hash, ref, record.provider, mode)


def _clear(around: Surroundings, session: SessionId) -> None:
    """Remove what a fork of this name has left that was killed while it was made: we hold it, so nobody is at it."""
    try:
        record = around.shelf.rows.get(session)
    except NotFoundError:
        return
    if record.status != "live":
        delete(around.opener, around.shelf, record)


def qualified(root: bytes, detected: Sequence[Capabilities]) -> list[Capabilities]:
    """What providers can do for a fork. Where ``.git`` is a file, as in a linked work tree, none that copies it can be
    used: whoever commits in the copy would commit to the user's repository (I15).
    """
    git = os.path.join(root, b".git")
    if not os.path.lexists(git) or (os.path.isdir(git) and not os.path.islink(git)):
        return list(detected)
    reason = "a copy would hold `.git`, which leads to your repository"
    return [one._replace(score=0, notes=(reason,)) if one.carries_ignored else one for one in detected]


def _choose(context: Context, session: SessionId, wanted: str | None, *, with_ignored: bool) -> Choice | None:
    """The provider that makes the directory; None: it is written out. Raises `UnsupportedError`."""
    from holdfast.engine.providers import providers_of
    from holdfast.snapshot.choosing import AUTOMATIC, choose

    name = wanted or context.settings.snapshot.provider
    if name == PLAIN:
        if with_ignored:
            raise UnsupportedError(
                "a fork that is written out holds no ignored files",
                hint="a provider that carries them can: docs/snapshots.md; or make them anew in the fork",
                code="no_provider",
            )
        return None
    try:
        providers = providers_of(context, session)
        detected = qualified(context.workspace.path, [one.detect() for one in providers])
        return choose(providers, name, mode="worktree", ignored=with_ignored, detected=detected)
    except UnsupportedError:
        if name != AUTOMATIC or with_ignored:
            raise
        return None


def _provided(around: Surroundings, point: SessionCheckpoint, choice: Choice, *, now: bool) -> _Made:
    """Have a provider make the directory, and bring it to the state."""
    from holdfast.engine.workspace import Workspace

    source = point.state.tree
    assert source is not None, "a saved state has a tree"
    prepared = choice.provider.prepare("worktree")
    context = around.opener.register(prepared.path, source)
    with context.lock():
        first = first_checkpoint(context, around.context.catalog.checkpoint(source))
    # What carries everything holds the state as it is, or is changed at this moment: the next look at it tells.
    if not (now and choice.capabilities.carries_ignored):
        catalog, workspace = context.catalog, Workspace(around.opener, context)
        same = catalog.checkpoint(first).root == catalog.checkpoint(source).root
        workspace.restore(first if same else source)
        first = workspace.checkpoint(kind="auto").checkpoint.id
    return _Made(context, first, prepared.token)


def _written(around: Surroundings, point: SessionCheckpoint, record: SessionRecord) -> _Made:
    """Write the state's tree out."""
    from holdfast.engine.fork import fork as write_fork

    source, place = point.state.tree, record.place
    assert source is not None, "a saved state has a tree"
    assert place is not None, "it was chosen before"
    make_private(os.path.dirname(place))
    context = around.context
    opened: list[Context] = []

    def open_fork() -> Context:
        opened.append(around.opener.make_fork(place, source, context.workspace))
        return opened[-1]

    done = write_fork(context, source, open_fork)
    return _Made(opened[-1], done.checkpoint, "")


def _place(context: Context, session: SessionId) -> bytes:
    """Where a fork is written. Raises `RefusedError` if that lies in the workspace, which would capture it."""
    named = os.path.expanduser(os.fsencode(context.settings.session.directory))
    directory = os.path.realpath(named or context.home.rstrip(b"/") + b"-forks")
    if under(directory, context.workspace.path):
        raise RefusedError(
            f"{display(directory)}, where forks are written, lies in the workspace, which would capture them",
            hint="set session.directory in config.toml to a directory outside of it",
            code="inside_workspace",
        )
    return os.path.join(directory, session.encode())
