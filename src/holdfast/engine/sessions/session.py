"""A session that is open: commands are journalled in it, states saved, brought back, and forked."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self

import msgspec

from holdfast.engine.sessions import _quotas as quotas
from holdfast.engine.sessions.identifiers import check_agent, check_metadata
from holdfast.engine.sessions.state import journal
from holdfast.engine.sessions.state.journal import CommandJournal
from holdfast.engine.sessions.state.state_history import StateHistory, with_hooks
from holdfast.model.errors import HoldfastError, RefusedError, UnsupportedError
from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.model.session_types import CheckoutEvent, CommandEntry, MergeEvent, MetricEvent
from holdfast.processes.child_environment import inherited_environment, without_git_repository

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager, ExitStack

    from holdfast.engine.opening.context import Context
    from holdfast.engine.running.session_tree import SessionTree
    from holdfast.engine.sessions._hooks import HookedAction
    from holdfast.engine.sessions.holder.lock import InFlight
    from holdfast.engine.sessions.holder.request_server import RequestServer
    from holdfast.engine.sessions.lifecycle.fork_creation import ForkRequest
    from holdfast.engine.sessions.state.journal import SessionLine
    from holdfast.engine.sessions.state.state_history import SessionScope
    from holdfast.engine.workspace.workspace import Workspace
    from holdfast.model.command_results import RestoreResult
    from holdfast.model.config.settings import Session as Settings
    from holdfast.model.entries import NotCaptured
    from holdfast.model.ids import CheckpointId
    from holdfast.model.session_results import CheckedOut, Deleted, ForkResult
    from holdfast.model.session_types import (
        CommandResult,
        Level,
        RefType,
        SessionCheckpoint,
        SessionConfig,
        SessionId,
        SessionKind,
        SessionRef,
        State,
    )
    from holdfast.store.catalog.session_records import SessionRecord

_LOG = Log(__name__)


class Session:
    """A shell's state over time, held by this process. Use it as a context manager, or `close` it. For one thread.

    A method's result is durable when it returns: a kill loses at most the result of the running command. Every method
    raises `StorageError` for errors of the disk, and `RefusedError` with the code ``moved`` if another process has
    changed the session in spite of the lock.
    """

    def __init__(self, scope: SessionScope, line: SessionLine, stack: ExitStack) -> None:
        """``line`` is loaded; `close` releases ``stack``, including the session's lock."""
        self._scope = scope
        self._context = scope.context
        self._line = line
        self._rows = scope.tiers.rows
        self._stack = stack
        self._states = StateHistory(scope, line, lambda: self.records_commands, self.door)
        self._door: RequestServer | None = None
        self._is_asked = False
        base = inherited_environment(scope.opener.environ)
        self._base = without_git_repository(base) if line.record.provider else base
        if self.config.isolation == "vm":
            self._base = {}  # a machine has variables of its own
        self._commands = CommandJournal(scope.context, line, self._states, self._base, stack)
        self._records: bool | None = None
        self._tree: SessionTree | None = None
        self.too_long: list[str] = []
        """Variables that its commands have exported since it was opened and that no program can be started with."""

    # -- its properties -------------------------------------------------------------------------------------------

    @property
    def id(self) -> SessionId:
        """Its name."""
        return self._line.record.id

    @property
    def root(self) -> bytes:
        """Its directory."""
        return self._context.workspace.path

    @property
    def workspace(self) -> Workspace:
        """Its directory, as a workspace. It is closed with the session."""
        return self._scope.workspace

    @property
    def context(self) -> Context:
        """The context of that workspace's use-cases."""
        return self._context

    @property
    def state(self) -> State:
        """The state now."""
        return self._line.state

    @property
    def not_captured(self) -> Sequence[NotCaptured]:
        """Paths that no checkpoint captured when its tree was last saved; empty before that."""
        return self._states.not_captured

    @property
    def config(self) -> SessionConfig:
        """The settings of its commands."""
        return self._line.state.config

    @property
    def head(self) -> SessionCheckpoint:
        """The last saved state."""
        return self._line.head

    @property
    def owner(self) -> str:
        """Its owner."""
        return self._line.record.owner

    @property
    def shared(self) -> tuple[str, ...]:
        """Other agents that may use it."""
        return self._line.record.shared

    @property
    def agent(self) -> str:
        """The agent that uses it now."""
        return self._scope.agent

    @property
    def settings(self) -> Settings:
        """The settings of sessions."""
        return self._context.settings.session

    def environment(self) -> dict[str, str]:
        """Its commands' environment: this process's, with the session's changes."""
        return journal.environment(self.state, self._base)

    def directory(self) -> bytes:
        """Where a command starts, absolute. It may have been deleted."""
        return journal.absolute(self.root, self.state.cwd)

    @property
    def records_commands(self) -> bool:
        """Whether its commands' changes are recorded as steps. A configured but impossible recording is reported."""
        if self.config.isolation == "vm":
            return True
        if self._records is None:
            self._records = self.config.supervised and self._can_record()
        return self._records

    def _can_record(self) -> bool:
        from holdfast.engine.running.recorded_command import check_can_record

        try:
            check_can_record(self._context)
        except RefusedError:
            return False  # the run that it works in records them
        except UnsupportedError as error:
            self.cannot_record(error)
            return False
        return True

    def cannot_record(self, error: UnsupportedError) -> None:
        """Continue without steps, since its commands' changes cannot be recorded here, and report it."""
        _LOG.warning(
            "%s; this session records no steps, and is saved before risky commands; `holdfast "
            "session start --unsupervised` starts one without steps",
            error.message,
        )
        self._records = False

    def configure(self, config: SessionConfig) -> None:
        """Change the settings of its commands. Saved at once."""
        self._refuse_running()
        self._records = None
        self._states.commit("auto", state=msgspec.structs.replace(self.state, config=config))

    @property
    def record(self) -> SessionRecord:
        """The catalog's record of it."""
        return self._line.record

    # -- who asks meanwhile ---------------------------------------------------------------------------------------

    def door(self) -> RequestServer | None:
        """The socket for requests to this session while it is open (call its `serve` while waiting); None if it could
        not be made, which is logged.
        """
        if self._door is None:
            from holdfast.engine.sessions.holder.lock import lock_path
            from holdfast.engine.sessions.holder.request_server import RequestServer

            try:
                self._door = RequestServer(self, lock_path(self._context.home, self._context.store.tenant, self.id))
            except HoldfastError as error:
                _LOG.info("the session cannot be asked while it is open: %s", error.message)
                return None
            # Closed before the lock is released.
            self._stack.callback(self._door.close)
        return self._door

    def tree(self) -> SessionTree | None:
        """The tree in which its commands start, if they are recorded. Starts the virtual machine, if it does not run:
        raises as `holdfast.engine.running.machine.run_in_machine`.
        """
        if self.config.isolation == "vm":
            return self._machine()
        if self._tree is None and self.records_commands:
            from holdfast.engine.running.session_tree import SessionTree
            from holdfast.engine.sessions.holder.lock import lock_path, tree_note_path

            lock = lock_path(self._context.home, self._context.store.tenant, self.id)
            self._tree = SessionTree(self._context, tree_note_path(lock))
            self._stack.callback(self._tree.close)
            # Missing kernel features show when it is tried; the caller that starts a command reports other errors.
            with suppress(HoldfastError):
                try:
                    self._tree.open()
                except UnsupportedError as error:
                    self.cannot_record(error)
        return self._tree if self.records_commands else None

    def _machine(self) -> SessionTree:
        """The virtual machine that its commands run in."""
        if self._tree is None:
            from holdfast.engine.running.session_machine import SessionMachine
            from holdfast.engine.sessions.holder.lock import lock_path, machine_note_path

            lock = lock_path(self._context.home, self._context.store.tenant, self.id)
            self._tree = SessionMachine(self._context, machine_note_path(lock))
            self._stack.callback(self._tree.close)
        self._tree.open()
        return self._tree

    def stop_machine(self) -> bool:
        """End its virtual machine, if one runs; whether one did. The next command starts another."""
        from holdfast.engine.sessions.lifecycle.deletion import end_machine

        self.refuse_running()
        return end_machine(self._scope.opener, self._line.record)

    def refuse_machine(self, what: str) -> None:
        """Raise `UnsupportedError` if its commands run in a virtual machine."""
        if self.config.isolation == "vm":
            raise UnsupportedError(
                f"{what} is not there for a session whose commands run in a virtual machine",
                hint="`holdfast session exec` runs commands in it; `holdfast run --isolation vm -- bash` is a shell",
            )

    def in_flight(self) -> AbstractContextManager[InFlight]:
        """The note of a command's processes: if this process is killed, the next holder of the session ends them."""
        from holdfast.engine.sessions.holder.lock import in_flight, lock_path, note_path

        return in_flight(note_path(lock_path(self._context.home, self._context.store.tenant, self.id)))

    @contextmanager
    def asked_by(self, agent: str) -> Generator[None]:
        """Within the block, ``agent`` is the author of operations, also while a command runs."""
        before, scope = self._is_asked, self._scope
        self._is_asked, self._scope = True, scope._replace(agent=agent)
        try:
            with self._states.asked_by(agent):
                yield
        finally:
            self._is_asked, self._scope = before, scope

    def save_resting(self) -> SessionCheckpoint:
        """See `request_client.ReachableSession`."""
        self.refuse_running()
        return self.checkpoint(kind="auto")

    def refuse_running(self) -> None:
        """Raise `RefusedError` (code ``session_running``) while a command runs in it."""
        running = journal.running(self._line.entries)
        if running is not None:
            raise RefusedError(
                f"a command is running in the session {self.id}: {running.command[:100]}",
                hint="wait until it has ended",
                code="session_running",
            )

    # -- commands -------------------------------------------------------------------------------------------------

    def look_later(self) -> None:
        """Let the next operation find out how the tree has changed since the session was last open; no command made
        these changes. For the process that has just opened it.
        """
        self._commands.look_later()

    def begin(
        self,
        command: str,
        *,
        input: str | None = None,  # noqa: A002 - the field's own name
        generated: bool = False,
        level: Level,
    ) -> CommandEntry:
        """Journal that a command begins; its entry. The state is saved first where that is all that its undo can go by.

        Only then may it be started. Raises `UsageError` for what no shell can be given.
        """
        self._refuse_running(look=False)
        asked = command if input is None else input
        return self._commands.begin(command, asked, generated, level, recorded=self.records_commands)

    def end(
        self, entry: CommandEntry, result: CommandResult, *, cwd: str, env: Mapping[str, str], duration_ms: int
    ) -> CommandEntry:
        """Journal how a command has ended; its whole entry.

        ``cwd`` is the shell's present directory (absolute, or relative to the root), ``env`` its exports. The state is
        saved if a trigger is due. If the tree cannot be saved, that is logged, and the entry has no ``after``.
        """
        return self._commands.end(entry, result, cwd, env, duration_ms)

    def due(self) -> float | None:
        """Seconds until the idle trigger wants it saved; None: nothing to save."""
        return self._commands.due()

    def history(self, limit: int | None = None) -> list[CommandEntry]:
        """The commands that led to this state, the last first. At most ``limit``."""
        return self._line.history(limit)

    # -- states ---------------------------------------------------------------------------------------------------

    def checkpoint(
        self,
        message: str = "",
        *,
        kind: SessionKind = "manual",
        metadata: Mapping[str, str] | None = None,
    ) -> SessionCheckpoint:
        """Save the state. For the kind ``auto``, returns the last state if nothing has happened since. Raises
        `RefusedError` (code ``session_limit``).
        """
        self._refuse_running()
        return self._states.checkpoint(message, kind, metadata or {})

    def branch(self, name: str, *, message: str = "", metadata: Mapping[str, str] | None = None) -> SessionRef:
        """Save the state under a name. Raises `RefusedError` (code ``branch_exists``,
        ``session_limit``).
        """
        self._refuse_running()
        return self._states.branch(name, message, metadata or {})

    def branches(self) -> list[SessionRef]:
        """Its branches, by name."""
        return self._states.branches()

    def remove_branch(self, name: str) -> SessionRef:
        """Remove a branch. Its state may be dropped then. Returns the branch. Raises `NotFoundError`."""
        return self._states.remove_branch(name)

    def find(self, name: str) -> SessionCheckpoint:
        """The state that ``name`` means: a branch, ``forks/ID`` or ``experiments/ID`` (their newest), another session's
        ``branches/ID/NAME``, or 4 or more first digits of a session checkpoint's hash.

        Raises `NotFoundError` (code ``no_state``), `UsageError` for an ambiguous prefix, and `RefusedError` (code
        ``not_owner``) for another owner's.
        """
        return self._states.find(name)

    def past(self) -> Iterator[SessionCheckpoint]:
        """The existing saved states before this one in its history, the last first."""
        return self._scope.tiers.past(self.head)

    def checkout(self, name: str) -> CheckedOut:
        """Bring tree and shell to another state (see `find`). The present state is saved first, as a branch. If
        ``name`` means the newest state of a fork, the fork's unsaved changes are saved and brought as well.

        `Workspace.restore` restores the tree, and ``undo`` can reverse that; files that changed meanwhile are skipped.
        After an interruption the next opening of the session finishes it, unless nothing had changed yet. Raises
        `NotFoundError` (code ``thinned_out``) if that state's tree is no longer kept, `RefusedError` (code
        ``session_running``) while a command runs in the fork.
        """
        self._refuse_running()
        return self._states.checkout(name)

    def arrive(self, target: SessionCheckpoint, *, recovered: bool = False) -> None:
        """Take the tree as it is now for that of ``target``, and the rest of the state as ``target`` has it: the end
        of a checkout; ``recovered``: of one that was cut short.
        """
        self._states.arrive(target, recovered=recovered)

    def bring(
        self, target: CheckpointId, *, expected: CheckpointId, message: str, metadata: Mapping[str, str] | None = None
    ) -> tuple[RestoreResult, SessionCheckpoint]:
        """Bring the tree to ``target``, a merge of ``expected``, the tree's state, with other changes, and save that as
        the session's state. The shell stays unchanged.

        After an interruption the next opening of the session finishes it, unless nothing had changed yet. Raises
        `RefusedError` (``changed_meanwhile``, ``session_limit``) before any change of the tree.
        """
        self._refuse_running()
        return self._states.bring(target, expected=expected, message=message, metadata=metadata or {})

    def arrive_merged(self, entry: MergeEvent) -> None:
        """Save what a `bring` that was cut short has come to, after all, as the session's state."""
        self._states.arrive_merged(entry)

    def fork(
        self,
        id: str | None = None,  # noqa: A002 - the field's own name
        *,
        checkpoint: str | None = None,
        with_ignored: bool = False,
        provider: str | None = None,
        on_branch: str = "",
        type: RefType = "fork",  # noqa: A002 - likewise
        metadata: Mapping[str, str] | None = None,
    ) -> ForkResult:
        """Begin a session from this state or ``checkpoint`` (see `find`), in its own directory.

        The best snapshot provider makes it, or ``provider``; if none can, its files are written out. ``with_ignored``:
        it must have the present ignored files, too. ``on_branch``: the provider ``git`` makes it, with this branch of
        Git checked out, which is new or the one that the workspace is on (else ``branch_exists``). After a kill, the
        next sweep removes all of it. Raises `RefusedError` (``session_exists``, ``session_limit``), `UnsupportedError`
        (``no_provider``), and `ConfigError` while the workspace's ``holdfast.toml`` is wrong.
        """
        self._refuse_running(look=checkpoint is not None)
        if self._context.misconfigured is not None:
            # The fork would save files that the broken settings file excludes.
            raise self._context.misconfigured
        from holdfast.engine.sessions.lifecycle.fork_creation import ForkRequest

        request = ForkRequest(id, with_ignored, provider, type, check_metadata(metadata or {}), on_branch)
        quotas.check_forks(self._rows, self.id, self.settings.max_forks)
        about = {**self._states.about(), "type": type, "fork": id}
        with with_hooks(self._context, "fork", about, records=lambda: self.records_commands, door=self.door) as told:
            made = self._fork(checkpoint, request)
            told |= {"fork": made.id, "directory": display(made.root), "fork_point": made.fork_point}
        self.count_forks(1)
        return made

    def count_forks(self, made: int) -> None:
        """Record in the journal that ``made`` forks of it were made."""
        done, counted = list(self._line.done), MetricEvent(what="forks", at=self._context.clock.now())
        self._line.write([*done, *[counted] * made, *self._line.entries[len(done) :]])
        if self._commands.journal_is_full():
            self._states.commit("auto")

    def has_hooks(self, what: HookedAction) -> bool:
        """Whether a command of the user's is run before or after ``what``."""
        from holdfast.engine.sessions._hooks import has_hooks

        return has_hooks(self._context, what)

    def _fork(self, checkpoint: str | None, request: ForkRequest) -> ForkResult:
        from holdfast.engine.sessions.lifecycle.fork_creation import fork

        if checkpoint is None:
            tree = self._commands.save_tree()
            changed = journal.has_unsaved(self._line.done) or tree != self._line.resting.tree
            point = self._states.commit("fork", tree=tree) if changed else self.head
        else:
            point = self.find(checkpoint)
            self._states.tree_of(point)
        return fork(self._scope, self._line.record, point, request, now=checkpoint is None)

    # -- who may use it -------------------------------------------------------------------------------------------

    def share(self, agent: str) -> None:
        """Let another agent use it. Only its owner may: raises `RefusedError` (code ``not_owner``)."""
        self._set_shared(sorted({*self.shared, check_agent(agent)}))

    def unshare(self, agent: str) -> None:
        """Take it away from another agent. Raises as `share`."""
        self._set_shared([name for name in self.shared if name != agent])

    def keep(self) -> None:
        """Keep an experiment's fork. It stays after the experiment."""
        from holdfast.engine.sessions.lifecycle.fork_creation import keep

        if self._line.record.purpose == "experiment":
            self._line.record = keep(self._rows, self._line.record, self._context.clock.now())

    def delete(self) -> Deleted:
        """Delete it with its states. It is closed then. A fork's directory and checkpoints are deleted permanently; a
        session in place leaves the workspace unchanged. Only its owner may delete it. Returns the deleted parts, with
        files that no checkpoint holds.
        """
        from holdfast.engine.sessions.holder.lock import lock_path, remove_lock
        from holdfast.engine.sessions.identifiers import check_is_owner
        from holdfast.engine.sessions.lifecycle.deletion import delete

        check_is_owner(self._line.record, self.agent)
        try:
            gone = delete(self._scope.opener, self._scope.tiers, self._line.record, look=True)
            remove_lock(lock_path(self._context.home, self._context.store.tenant, self.id))
            return gone
        finally:
            self.close()

    def close(self) -> None:
        """Release it unchanged. Harmless a second time."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside ---------------------------------------------------------------------------------------------------

    def save_if_idle(self) -> None:
        """Save the state if nothing was done in the session for as long as the idle trigger says."""
        if self.due() == 0:
            self._states.commit("auto")

    def _set_shared(self, names: Sequence[str]) -> None:
        from holdfast.engine.sessions.identifiers import check_is_owner

        check_is_owner(self._line.record, self.agent)
        self._line.record = self._line.record._replace(shared=tuple(names))
        self._rows.put(self._line.record)

    def _refuse_running(self, *, look: bool = True) -> None:
        if look:
            self._commands.look()
        if not self._is_asked:
            self.refuse_running()
        last = self._line.entries[-1] if self._line.entries else None
        if isinstance(last, CheckoutEvent | MergeEvent):
            what = "checkout" if isinstance(last, CheckoutEvent) else "merge"
            raise RefusedError(
                f"a {what} in the session {self.id} is under way, or was cut short",
                hint="open the session again: that finishes it, or takes it back",
                code="cut_short",
            )
