"""The sessions of a home: begun, opened, inspected, swept."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from holdfast.engine.opening.current_run import forbid_inside_run
from holdfast.engine.opening.opener import Opener
from holdfast.engine.running.session_tree import noted_run
from holdfast.engine.sessions import identifiers
from holdfast.engine.sessions._quotas import free_id
from holdfast.engine.sessions.holder.background_processes import left_by, running_processes
from holdfast.engine.sessions.holder.lock import holding, is_held, lock_path, machine_note_path, remove_lock
from holdfast.engine.sessions.identifiers import check_may_use
from holdfast.engine.sessions.session import Session
from holdfast.engine.sessions.state import journal
from holdfast.engine.sessions.state.journal import SessionLine
from holdfast.engine.sessions.state.repair import (
    open_mounted,
    opening_message,
    recreate_directory,
    repair_journal,
    resume,
    warn_unfinished,
    was_cut_short,
)
from holdfast.engine.sessions.state.state_history import SessionScope
from holdfast.engine.upkeep.session_checkpoint_tiers import SessionCheckpointTiers
from holdfast.engine.workspace.workspace import Workspace
from holdfast.model.errors import ConfigError, EscapeError, HoldfastError, LockedError, NotFoundError
from holdfast.model.log import Log
from holdfast.model.paths import display, under
from holdfast.model.session_results import SessionInfo
from holdfast.model.session_types import CheckoutEvent, MergeEvent, SessionConfig, SessionId, State, Triggers
from holdfast.store.catalog.session_records import SessionRecord
from holdfast.store.catalog_records import last_seen_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from holdfast.engine.opening.context import Context, HomeContext
    from holdfast.engine.sessions.holder.background_processes import Running
    from holdfast.engine.sessions.holder.request_client import ReachableSession, RemoteSession
    from holdfast.model.config.settings import Session as Settings
    from holdfast.model.entries import NotCaptured
    from holdfast.model.ids import CheckpointId, WorkspaceId
    from holdfast.model.machine import RunningMachine
    from holdfast.model.session_results import Deleted, ForkResult, Swept
    from holdfast.model.session_types import (
        CommandEntry,
        Level,
        RefType,
        SessionCheckpoint,
        SessionIsolation,
        SessionRef,
    )

_LOG = Log(__name__)
_PAUSE_SECONDS = 0.05
_LEAST_SECONDS = 1.0
"""For an answer of the process that has a session open, also where nothing is waited for."""


def session_config(settings: Settings, isolation: SessionIsolation = "none") -> SessionConfig:
    """The settings of a new session's commands."""
    return SessionConfig(
        shell=settings.shell,
        timeout_seconds=settings.timeout,
        max_output_bytes=settings.max_output_bytes,
        triggers=Triggers(
            commands=settings.commands,
            idle_seconds=settings.idle,
            min_seconds=settings.min_interval,
            max_journal=settings.max_journal,
        ),
        supervised=settings.supervised,
        isolation=isolation,
    )


class Sessions:
    """All sessions of a home. For one thread; any number of processes may have the same home."""

    def __init__(
        self,
        *,
        home: str | bytes | os.PathLike[str] | None = None,
        agent: str | None = None,
        flags: Mapping[str, object] | None = None,
        opener: Opener | None = None,
    ) -> None:
        """``home`` as in `holdfast.open`. ``agent`` is the caller's name (None: HOLDFAST_AGENT, else
        ``identity.author``, else the user's name). ``opener`` is for tests: it replaces home, flags, environment and
        clock.
        """
        place = None if home is None else os.fsencode(home)
        self._make = (
            (lambda: opener)
            if opener is not None
            # A broken settings file of a workspace must not lock its users out.
            else (lambda: Opener(home=place, flags=flags, lenient=True))
        )
        self._opener = self._make()
        self._agent = identifiers.agent_of(agent, self._opener.environ, self._opener.settings(None))
        self._home: HomeContext | None = None
        self._tiers: SessionCheckpointTiers | None = None
        self._warned: set[WorkspaceId] = set()
        """Workspaces whose broken settings file was reported."""

    @property
    def agent(self) -> str:
        """Who asks."""
        return self._agent

    @property
    def programs(self) -> Mapping[str, Level]:
        """The configured levels of programs (docs/reference/classify.md)."""
        from holdfast.engine.safety.classify import levels_of

        return levels_of(self._opener.settings(None).safety.programs)

    def start(
        self,
        path: str | bytes | os.PathLike[str],
        id: str | None = None,  # noqa: A002 - the field's own name
        *,
        config: SessionConfig | None = None,
        env: Mapping[str, str] | None = None,
        within: bytes | None = None,
        isolation: SessionIsolation = "none",
    ) -> Session:
        """Begin a session in the workspace at ``path`` or above, in place, and hold it.
        Where there is none, ``path`` becomes one, which is logged.

        It begins in the directory ``path``, with this process's environment and ``env``. If a session of another
        workspace is called ``id``, a prefix of this workspace's id is appended. ``within`` is the required root of the
        workspace: no link may lead out of it. ``isolation`` is the isolation of its commands, without ``config``: the
        first command, or `Session.tree`, starts a virtual machine.

        Raises `RefusedError` (``session_exists``), `NotFoundError` (``no_such_path``), `EscapeError`, and the errors of
        `holdfast.init`.
        """
        variables = identifiers.check_variables(env or {})
        directory: bytes = os.path.realpath(os.fsencode(path))
        if not os.path.isdir(directory):
            raise NotFoundError(f"there is no directory {display(directory)}", code="no_such_path")
        with ExitStack() as stack:
            opener = self._opened(stack)
            if within is not None and not under(directory, within):
                raise EscapeError(f"{display(directory)} is outside of {display(within)}")
            context, _ = opener.open_or_init(directory)
            if within is not None and context.workspace.path != within:
                raise EscapeError(f"{display(directory)} is in the workspace {display(context.workspace.path)}")
            forbid_inside_run(context, "a session")
            self._warn(context.workspace.id, context.misconfigured)
            workspace = Workspace(opener, context)
            session = identifiers.new_id("session", context.random) if id is None else identifiers.check_id(id)
            tiers = SessionCheckpointTiers(context)
            session = free_id(tiers.rows, session, context.workspace.id)
            stack.enter_context(self._held(context, session))
            self._clear(tiers, session, opener)
            record = SessionRecord(
                id=session,
                parent=None,
                owner=self._agent,
                shared=(),
                workspace=context.workspace.id,
                origin=None,
                provider="",
                mode="in-place",
                token="",
                place=None,
                purpose="session",
                status="making",
                created_at=context.clock.now(),
            )
            tiers.rows.add(record)
            tree = workspace.checkpoint(kind="auto", author=self._agent).checkpoint.id
            line = SessionLine(tiers, record, context.clock)
            state = State(
                id=session,
                parent=None,
                created_at=record.created_at,
                updated_at=record.created_at,
                cwd=journal.relative(context.workspace.path, os.fsdecode(directory)),
                env=variables,
                unset=(),
                tree=tree,
                seq=0,
                config=session_config(context.settings.session, isolation) if config is None else config,
            )
            line.commit("auto", state, tree, record=record._replace(status="live"))
            self.sweep_if_due()  # only now is it known that an agent works there
            return Session(self.surroundings(opener, context, workspace, tiers), line, stack.pop_all())

    def open(
        self,
        id: str,  # noqa: A002 - the field's own name
        *,
        timeout: float | None = None,
        begins: bool = False,
    ) -> Session:
        """Hold a session. Waits ``timeout`` seconds for it (None: the settings'). ``begins``: a command or a fork
        follows at once, and its scan of the tree replaces the one here.

        Recovers from a killed process: replays the journal, saves an unrecorded tree, makes a missing directory anew.
        Raises `NotFoundError` (``no_session``, ``no_workspace``), `RefusedError` (``not_owner``), `LockedError`
        (``session_busy``; ``own_session``, at once, inside of a command of it).
        """
        with ExitStack() as stack:
            opener = self._opened(stack)
            home = opener.open_home()
            forbid_inside_run(home, "a session")
            record = SessionCheckpointTiers(home).rows.get(SessionId(id))
            check_may_use(record, self._agent)
            path = lock_path(home.home, home.store.tenant, record.id)
            wait = home.settings.lock.timeout if timeout is None else timeout
            stack.enter_context(holding(path, record.id, timeout=wait, clock=home.store.catalog.clock))
            self.sweep_if_due()
            record = SessionCheckpointTiers(home).rows.get(record.id)  # as it is now that no other process has it
            check_may_use(record, self._agent)
            if record.status != "live" or record.workspace is None:
                what = "made" if record.status == "making" else "deleted"
                raise NotFoundError(
                    f"the session {record.id} was cut short while it was {what}",
                    hint="the next sweep removes its remains",
                    code="no_session",
                )
            resume(opener, record)
            context = open_mounted(opener, record.workspace)
            self._warn(record.workspace, context.misconfigured)
            workspace = Workspace(opener, context)
            tiers = SessionCheckpointTiers(context)
            line = SessionLine(tiers, record, context.clock).load()
            scope = self.surroundings(opener, context, workspace, tiers)
            kept = ExitStack()
            session = Session(scope, line, kept)
            _recover(scope, line, session, begins=begins)
            kept.enter_context(stack.pop_all())
            return session

    def fork_beside(
        self,
        parent: SessionRecord,
        point: SessionCheckpoint,
        id: str,  # noqa: A002 - the field's own name
        *,
        with_ignored: bool = False,
        provider: str | None = None,
        type: RefType = "fork",  # noqa: A002 - likewise
        metadata: Mapping[str, str] | None = None,
    ) -> ForkResult:
        """`Session.fork` of a session that another thread holds, from ``point``, its just saved state: several at once,
        each by another object of this class.

        It runs no hook, and writes no journal: see `Session.count_forks`. Raises as `Session.fork`.
        """
        from holdfast.engine.sessions import _quotas as quotas
        from holdfast.engine.sessions.lifecycle.fork_creation import ForkRequest, fork

        assert parent.workspace is not None, "it is live"
        with ExitStack() as stack:
            opener = self._opened(stack)
            context = open_mounted(opener, parent.workspace)
            if context.misconfigured is not None:
                raise context.misconfigured
            tiers = SessionCheckpointTiers(context)
            quotas.check_forks(tiers.rows, parent.id, context.settings.session.max_forks)
            return fork(
                self.surroundings(opener, context, Workspace(opener, context), tiers),
                parent,
                point,
                ForkRequest(id, with_ignored, provider, type, identifiers.check_metadata(metadata or {})),
                now=True,
            )

    def use(self, id: str, *, begins: bool = False) -> ReachableSession:  # noqa: A002 - the field's own name
        """A session for requests that are possible while another process has it open: that process then does the work.
        ``begins`` and errors as in `open`. Inside a run it must be open, by a command of its own.
        """
        from holdfast.engine.sessions.holder.request_client import ReachableSession

        home, _ = self._open_read_only()
        return ReachableSession(lambda until: self._reach(id, until, begins=begins), home.settings.lock.timeout)

    def _reach(self, id: str, until: float, *, begins: bool) -> Session | RemoteSession:  # noqa: A002 - the field's own name
        """A session, held, or the process that has it open."""
        from holdfast.engine.sessions.holder.request_client import connect

        home, tiers = self._open_read_only()
        record = tiers.rows.get(SessionId(id))
        check_may_use(record, self._agent)
        lock = lock_path(home.home, home.store.tenant, record.id)
        while True:
            left = max(_LEAST_SECONDS, until - time.monotonic())
            asking = connect(lock, record, tiers, self._agent, left)
            if asking is not None:
                return asking
            try:
                return self.open(id, timeout=0, begins=begins)
            except LockedError as error:
                if error.code not in ("session_busy", "own_session") or time.monotonic() >= until:
                    raise
            time.sleep(_PAUSE_SECONDS)

    def list(self, path: str | bytes | os.PathLike[str] | None = None) -> list[SessionInfo]:
        """All sessions, or those in the workspace at ``path``, oldest first. Takes no lock."""
        home, tiers = self._open_read_only()
        if path is None:
            records = tiers.rows.list()
        else:
            context = self._opener.open(os.fsencode(path))
            self._warn(context.workspace.id, context.misconfigured)
            records = tiers.rows.list(context.workspace.id)
        running = running_processes()
        return [self._info(home, tiers, record, running) for record in records]

    def family(self, root: bytes) -> list[SessionInfo]:
        """The sessions that work in the workspace whose root is ``root``, and all that were forked from those, over
        however many; oldest first. Takes no lock.
        """
        every = {one.id: one for one in self.list()}
        return [one for one in every.values() if _is_of_family(root, one, every)]

    def info_in_family(self, root: bytes, name: str) -> SessionInfo:
        """The one of `family` that is called ``name``, see `id_of`. Raises `NotFoundError` (``no_session``), for all
        others, too.
        """
        found = one = self.info(self.id_of(name, root))
        every = {one.id: one}
        while one.parent is not None:
            one = self.info(one.parent)
            every[one.id] = one
        if not _is_of_family(root, found, every):
            raise NotFoundError(f"there is no session {name!r:.100} here", code="no_session")
        return found

    def id_of(self, name: str, path: str | bytes | os.PathLike[str]) -> str:
        """The id of the session ``name`` in the workspace at ``path``: with or without the suffix of its workspace's
        id; ``name`` if that workspace has no such session. Takes no lock.
        """
        _, tiers = self._open_read_only()
        try:
            workspace = self._opener.open(os.fsencode(path)).workspace.id
        except HoldfastError:
            return name
        own = identifiers.own_id(name, workspace)
        return own if tiers.rows.has(own) else name

    def info(self, id: str) -> SessionInfo:  # noqa: A002 - the field's own name
        """One session. Takes no lock. Raises `NotFoundError` (``no_session``)."""
        home, tiers = self._open_read_only()
        return self._info(home, tiers, self._get(tiers, id), running_processes())

    def history(self, id: str, limit: int | None = None) -> list[CommandEntry]:  # noqa: A002
        """A session's commands, the last first. At most ``limit``. Takes no lock."""
        home, tiers = self._open_read_only()
        record = self._get(tiers, id)
        return SessionLine(tiers, record, home.store.catalog.clock).load().history(limit)

    def branches(self, id: str) -> list[SessionRef]:  # noqa: A002
        """A session's branches, by name. Takes no lock."""
        _, tiers = self._open_read_only()
        return [ref for ref in tiers.rows.refs(self._get(tiers, id).id) if ref.type == "branch"]

    def only_in(self, id: str, here: bytes | None = None) -> Sequence[NotCaptured]:  # noqa: A002
        """Files in the directory of a session that no checkpoint holds, and that ``here`` (None: the directory of the
        session that it was forked from) does not have. Takes no lock of the session.
        """
        from holdfast.engine.sessions.lifecycle.deletion import only_in

        _, tiers = self._open_read_only()
        with ExitStack() as stack:
            return only_in(self._opened(stack), tiers.rows.get(SessionId(id)), here)

    def delete(self, id: str, *, dry_run: bool = False, look: bool = True) -> Deleted:  # noqa: A002
        """Delete a session without opening it. On a full disk the disk reserve is used. ``dry_run`` returns the plan,
        deletes nothing, and takes no lock of the session. Without ``look`` a fork's directory is not scanned for files
        that no checkpoint holds.

        Raises `NotFoundError` (``no_session``), `RefusedError` (``not_owner``, ``has_forks``, ``mounted_over``,
        ``left_running``), `LockedError` (``session_busy``).
        """
        from holdfast.engine.opening.context import retry_with_reserve
        from holdfast.engine.sessions.identifiers import check_is_owner
        from holdfast.engine.sessions.lifecycle.deletion import delete, preview_deletion

        home, tiers = self._open_read_only()
        forbid_inside_run(home, "deleting a session")
        check_is_owner(record := self._get(tiers, id), self._agent)
        if dry_run:
            with ExitStack() as stack:
                return preview_deletion(self._opened(stack), record, look=look)
        path = lock_path(home.home, home.store.tenant, SessionId(id))
        timeout, clock = home.settings.lock.timeout, home.store.catalog.clock

        def held() -> Deleted:
            with holding(path, SessionId(id), timeout=timeout, clock=clock):
                record = tiers.rows.get(SessionId(id))
                check_is_owner(record, self._agent)
                gone = delete(self._opener, tiers, record, look=look)
                remove_lock(path)
                return gone

        return retry_with_reserve(home, held)

    def end_left_running(self, id: str) -> int:  # noqa: A002 - the field's own name
        """End what commands of a session have left running (SIGTERM, after two seconds SIGKILL), as far as it is
        recorded; how many processes that were. The session stays as it is.

        Raises `NotFoundError` (``no_session``), `RefusedError` (``not_owner``), `LockedError` (``session_busy``).
        """
        import signal

        from holdfast.engine.sessions.holder.lock import end_all

        home, tiers = self._open_read_only()
        forbid_inside_run(home, "ending what a session has left running")
        record = self._get(tiers, id)
        check_may_use(record, self._agent)
        if record.workspace is None:
            return 0
        workspace = home.store.catalog.workspace(record.workspace)
        path = lock_path(home.home, home.store.tenant, record.id)
        with holding(path, record.id, timeout=home.settings.lock.timeout, clock=home.store.catalog.clock):
            # A process is not ended because of variables in its environment alone.
            left = partial(left_by, record.id, path, home, workspace, running=())
            return end_all(lambda: [one.pid for one in left()], (signal.SIGTERM,))

    def sweep(self) -> Swept:
        """Move old states to their tiers, and remove interrupted work and expired forks. Idempotent."""
        from holdfast.engine.sessions.lifecycle.sweep import sweep

        home, tiers = self._open_read_only()
        return sweep(self._opener, home, tiers)

    def sweep_if_due(self) -> None:
        """`sweep` if it is due; errors are logged."""
        from holdfast.engine.sessions.lifecycle.sweep import sweep_if_due

        sweep_if_due(self._opener)

    def close(self) -> None:
        """Release the home. Sessions that are open stay so. Harmless a second time."""
        self._opener.close()
        self._home = self._tiers = None

    def __enter__(self) -> Sessions:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self, stack: ExitStack) -> Opener:
        """An opener for one session, with a store of its own: the session may outlive this object."""
        opener = self._make()
        if opener is not self._opener:
            stack.callback(opener.close)
        return opener

    def _get(self, tiers: SessionCheckpointTiers, id: str) -> SessionRecord:  # noqa: A002 - the field's own name
        """A session; a broken settings file of its workspace is reported."""
        record = tiers.rows.get(SessionId(id))
        if record.workspace is not None and record.workspace not in self._warned:
            try:
                self._opener.settings(last_seen_path(self._opener.store().catalog.workspace(record.workspace).path))
            except ConfigError as error:
                self._warn(record.workspace, error)
        return record

    def _warn(self, workspace: WorkspaceId, error: ConfigError | None) -> None:
        if error is not None and workspace not in self._warned:
            self._warned.add(workspace)
            _LOG.warning("%s", error.message)

    def surroundings(
        self, opener: Opener, context: Context, workspace: Workspace, tiers: SessionCheckpointTiers
    ) -> SessionScope:
        """The context of a session in that workspace, in the name of the calling agent."""
        agent = self._agent

        def save(name: SessionId) -> tuple[SessionCheckpoint, Sequence[NotCaptured]]:
            # Not closed, since that would close the session's own store.
            others = Sessions(agent=agent, opener=opener)
            with others.use(name) as other:
                return other.save_resting(), others.only_in(name, context.workspace.path)

        return SessionScope(opener, context, workspace, tiers, agent, save)

    def _open_read_only(self) -> tuple[HomeContext, SessionCheckpointTiers]:
        if self._home is None or self._tiers is None:
            self._home = self._opener.open_home()
            self._tiers = SessionCheckpointTiers(self._home)
        return self._home, self._tiers

    def _held(self, context: Context, session: SessionId) -> AbstractContextManager[None]:
        path = lock_path(context.home, context.store.tenant, session)
        return holding(path, session, timeout=context.settings.lock.timeout, clock=context.clock)

    def _clear(self, tiers: SessionCheckpointTiers, session: SessionId, opener: Opener) -> None:
        """Remove the rest of an interrupted creation or deletion of a session of this name, which the caller holds."""
        from holdfast.engine.sessions.lifecycle.deletion import delete

        try:
            record = tiers.rows.get(session)
        except NotFoundError:
            return
        if record.status != "live":
            delete(opener, tiers, record)

    def _info(
        self, home: HomeContext, tiers: SessionCheckpointTiers, record: SessionRecord, running: Sequence[Running]
    ) -> SessionInfo:
        catalog, rows = home.store.catalog, tiers.rows
        stored = rows.checkpoints(record.id)
        line: SessionLine | None = None
        if record.status == "live":
            line = SessionLine(tiers, record, catalog.clock).load()
        path = lock_path(home.home, home.store.tenant, record.id)
        workspace = None if record.workspace is None else catalog.workspace(record.workspace)
        root = None if workspace is None else last_seen_path(workspace.path)
        return SessionInfo(
            id=record.id,
            parent=record.parent,
            owner=record.owner,
            shared=record.shared,
            purpose=record.purpose,
            status=record.status,
            root=root,
            workspace=record.workspace,
            provider=record.provider,
            mode=record.mode,
            created_at=record.created_at,
            updated_at=record.created_at if line is None else line.journal.updated_at,
            newest=None if line is None else line.head.hash,
            tree=None if line is None else line.state.tree,
            state=None if line is None else line.state,
            running=None if line is None else journal.running(line.entries),
            busy=is_held(path),
            checkpoints=len(stored),
            stored_bytes=sum(one.stored for one in stored),
            journal=0 if line is None else line.journal.entries,
            journal_bytes=0 if line is None else len(line.journal.data),
            forks=tuple(one.id for one in rows.forks_of(record.id)),
            processes=() if workspace is None else left_by(record.id, path, home, workspace, running),
            machine=None if workspace is None or line is None else _machine(line, path, home.folder_of(workspace)),
        )


def _machine(line: SessionLine, lock: bytes, folder: bytes) -> RunningMachine | None:
    """The virtual machine of a session with this ``lock``, in the workspace with this ``folder``."""
    if line.state.config.isolation != "vm":
        return None
    from holdfast.engine.running.machine_state import machine_of_run

    run = noted_run(machine_note_path(lock))
    return machine_of_run(folder, run) if run else None


def _is_of_family(root: bytes, one: SessionInfo, every: Mapping[SessionId, SessionInfo]) -> bool:
    while one.root != root:
        above = None if one.parent is None else every.get(one.parent)
        if above is None:
            return False
        one = above
    return True


def _recover(scope: SessionScope, line: SessionLine, session: Session, *, begins: bool) -> None:
    """Bring a session up to date with the events since it was last held."""
    context, workspace = scope.context, scope.workspace
    remade = recreate_directory(context, workspace, line.record, line.state)
    if begins and not remade and not was_cut_short(line.entries):
        session.look_later()
        warn_unfinished(workspace)
        return
    targets = {
        entry.target: scope.tiers.load(entry.target) for entry in line.entries if isinstance(entry, CheckoutEvent)
    }

    def save() -> CheckpointId:
        why = opening_message(line.record.id)
        return workspace.checkpoint(kind="auto", author=scope.agent, message=why).checkpoint.id

    def tree_of(leaving: CheckoutEvent) -> CheckpointId:
        tree = targets[leaving.target].state.tree
        assert tree is not None, "a saved state has a tree"
        return tree

    mended = repair_journal(context, workspace, line.entries, line.state, remade=remade, target_tree=tree_of, save=save)
    last = line.entries[-1] if line.entries else None
    if mended.moved == "done" and isinstance(last, CheckoutEvent):
        session.arrive(targets[last.target], recovered=True)
    elif mended.moved == "done" and isinstance(last, MergeEvent):
        session.arrive_merged(last)
    elif mended.entries is not line.entries:
        line.write(mended.entries)
    warn_unfinished(workspace)
    session.save_if_idle()
