"""A session that is open: commands are journalled in it, states saved, brought back, and forked."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self

import msgspec

from holdfast.engine.sessions import limits, replaying
from holdfast.engine.sessions.line import new_ref
from holdfast.engine.sessions.naming import check_agent, check_branch, check_message, check_metadata
from holdfast.engine.sessions.results import CheckedOut
from holdfast.model.clock import isoformat
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError, UsageError
from holdfast.model.log import Log
from holdfast.model.named import NamedTuple
from holdfast.model.paths import display
from holdfast.model.session import LEVELS, CommandEntry, Counted, Leaving, Ran
from holdfast.store.session_rows import RefChange, ref_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import ExitStack

    from holdfast.engine.context import Context
    from holdfast.engine.opening import Opener
    from holdfast.engine.sessions.keeping import Shelf
    from holdfast.engine.sessions.line import Line
    from holdfast.engine.sessions.results import ForkResult
    from holdfast.engine.workspace import Workspace
    from holdfast.model.config import Session as Settings
    from holdfast.model.ids import CheckpointId
    from holdfast.model.session import (
        CommandResult,
        Level,
        RefType,
        SessionCheckpoint,
        SessionConfig,
        SessionHash,
        SessionId,
        SessionKind,
        SessionRef,
        State,
    )

_LOG = Log(__name__)
_SECOND = 1_000_000
_BEFORE_CHECKOUT = "_auto/before-checkout"
_AUTOMATIC_BRANCHES = 10
"""So many of those that a checkout makes are kept."""
_TRIES = 3


class Surroundings(NamedTuple):
    """What a session works with."""

    opener: Opener
    context: Context
    workspace: Workspace
    shelf: Shelf
    agent: str
    """Who uses it."""


class Session:
    """A shell's state over time, held by this process. Use it as a context manager, or `close` it. For one thread.

    What a method has returned is durable: killed at any moment, a session loses at most the result of the command that
    was running. Every method raises `StorageError` for what the disk refuses, and `RefusedError` with the code
    ``moved`` if somebody has got past the lock.
    """

    def __init__(self, around: Surroundings, line: Line, stack: ExitStack) -> None:
        """``line`` is loaded; ``stack`` is what `close` lets go of."""
        self._around = around
        self._context = around.context
        self._line = line
        self._rows = around.shelf.rows
        self._stack = stack
        self._base = around.opener.environ

    # -- what it is -----------------------------------------------------------------------------------------------

    @property
    def id(self) -> SessionId:
        """Its name."""
        return self._line.record.id

    @property
    def root(self) -> bytes:
        """The directory that it works in."""
        return self._context.workspace.path

    @property
    def workspace(self) -> Workspace:
        """That directory, as a workspace. It is closed with the session."""
        return self._around.workspace

    @property
    def state(self) -> State:
        """The state now."""
        return self._line.state

    @property
    def config(self) -> SessionConfig:
        """What holds for its commands."""
        return self._line.state.config

    @property
    def head(self) -> SessionCheckpoint:
        """The state that was saved last."""
        return self._line.head

    @property
    def owner(self) -> str:
        """Whose it is."""
        return self._line.record.owner

    @property
    def shared(self) -> tuple[str, ...]:
        """Who else may use it."""
        return self._line.record.shared

    @property
    def agent(self) -> str:
        """Who uses it now."""
        return self._around.agent

    @property
    def settings(self) -> Settings:
        """The settings of sessions."""
        return self._context.settings.session

    def environment(self) -> dict[str, str]:
        """What a command in it is started with: this process's environment, and what the session has made of it."""
        return replaying.environment(self.state, self._base)

    def directory(self) -> bytes:
        """The absolute path of the directory that a command in it is started in; it may be gone."""
        return replaying.absolute(self.root, self.state.cwd)

    def configure(self, config: SessionConfig) -> None:
        """Have other settings hold for its commands: saved at once."""
        self._refuse_running()
        self._commit("auto", state=msgspec.structs.replace(self.state, config=config))

    # -- commands -------------------------------------------------------------------------------------------------

    def begin(
        self,
        command: str,
        *,
        input: str | None = None,  # noqa: A002 - the field's own name
        generated: bool = False,
        level: Level,
        reasons: Sequence[str] = (),
    ) -> CommandEntry:
        """Journal that a command begins now, and take the checkpoint that `SessionConfig.demand` wants; its entry.

        Only then may it be started. Raises `UsageError` for what no shell can be given.
        """
        self._refuse_running()
        _check_command(command)
        if input is not None:
            _check_command(input)
        if self.due() == 0:
            self._commit("auto")
        before = self._save_tree()
        state = self.state
        if demands(state.config, level) and (self._line.entries or before != state.tree):
            self._commit("auto", tree=before)
        entry = CommandEntry(
            id=self._context.random(8).hex(),
            seq=self.state.seq + 1,
            input=command if input is None else input,
            command=command,
            generated=generated,
            level=level,
            reasons=tuple(reasons),
            started_at=self._context.clock.now(),
            before=before,
            cwd=self.state.cwd,
        )
        self._line.write([*self._line.entries, Ran(entry=entry)])
        return entry

    def end(
        self, entry: CommandEntry, result: CommandResult, *, cwd: str, env: Mapping[str, str], duration_ms: int
    ) -> CommandEntry:
        """Journal how a command has ended; its entry, whole.

        ``cwd`` is where the shell is now (absolute, or relative to the root), ``env`` all that it exports. The state is
        saved if a trigger says so. If the tree cannot be saved, that is logged, and the entry has no ``after``.
        """
        running = replaying.running(self._line.entries)
        if running is None or running.id != entry.id:
            raise UsageError(f"the command {entry.id} is not running in the session {self.id}")
        after = None
        try:
            after = self._save_tree(entry.command)
        except HoldfastError as error:
            _LOG.warning("the tree that a command has left could not be saved: %s", error.message)
        ended = msgspec.structs.replace(running, duration_ms=duration_ms, result=_clean(result), after=after)
        changes = replaying.exported(self.state, self._base, env)
        ran = Ran(
            entry=ended,
            ended=True,
            cwd=replaying.relative(self.root, cwd),
            exported=changes.changed,
            dropped=changes.dropped,
            unset=changes.unset,
        )
        self._line.write([*self._line.entries[:-1], ran])
        if after is not None:
            self._save_if_wanted(after)
        return ended

    def due(self) -> float | None:
        """Seconds until the idle trigger wants the state saved (0: now); None if there is nothing to save."""
        if not self._line.entries or replaying.running(self._line.entries) is not None:
            return None
        triggers = self.config.triggers
        idle = max(0.0, (self._context.clock.now() - self.state.updated_at) / _SECOND)
        return max(0.0, triggers.idle_seconds - idle, self._too_soon())

    def history(self, limit: int | None = None) -> list[CommandEntry]:
        """The commands that have led to this state, the last first, at most ``limit``."""
        return self._line.history(limit)

    # -- states ---------------------------------------------------------------------------------------------------

    def checkpoint(
        self,
        message: str = "",
        *,
        kind: SessionKind = "manual",
        metadata: Mapping[str, str] | None = None,
    ) -> SessionCheckpoint:
        """Save the state. One of kind ``auto`` is not taken if nothing has happened since the last one, which it is
        then. Raises `RefusedError` (code ``session_limit``).
        """
        self._refuse_running()
        check_message(message)
        tree = self._save_tree()
        if kind == "auto" and not self._line.entries and tree == self.state.tree:
            return self.head
        if kind == "manual":
            limits.check_room(self._rows, self.id, self.settings.max_checkpoints)
        return self._commit(kind, tree=tree, message=message, metadata=check_metadata(metadata or {}))

    def branch(self, name: str, *, message: str = "", metadata: Mapping[str, str] | None = None) -> SessionRef:
        """Save the state, and give it a name to come back to. Raises `RefusedError` (code ``branch_exists``,
        ``session_limit``).
        """
        self._refuse_running()
        check_message(message)
        said = check_metadata(metadata or {})
        if self._rows.ref(ref_name("branch", self.id, check_branch(name))) is not None:
            raise RefusedError(
                f"the session {self.id} has a branch {name} already",
                hint="choose another name, or remove that branch first",
                code="branch_exists",
            )
        limits.check_room(self._rows, self.id, self.settings.max_checkpoints)
        return self._branch(name, message, said)

    def branches(self) -> list[SessionRef]:
        """Its branches, by name."""
        return [ref for ref in self._rows.refs(self.id) if ref.type == "branch"]

    def remove_branch(self, name: str) -> SessionRef:
        """Take a branch away; the state may be let go of then. What it was. Raises `NotFoundError`."""
        ref = self._rows.ref(ref_name("branch", self.id, check_branch(name)))
        if ref is None or not self._rows.remove_ref(ref.name, ref.checkpoint):
            raise _no_such_state(name)
        if ref.checkpoint != self.head.hash:
            self._rows.release([ref.checkpoint])
        return ref

    def find(self, name: str) -> SessionCheckpoint:
        """The state that ``name`` means: a branch, ``forks/ID`` or ``experiments/ID`` (the newest of that fork),
        another session's ``branches/ID/NAME``, or the beginning of a session checkpoint's hash (4 digits at least).

        Raises `NotFoundError` (code ``no_state``), `UsageError` if several begin so, and `RefusedError` (code
        ``not_owner``) for another's.
        """
        ref = self._rows.ref(ref_name("branch", self.id, name)) or self._rows.ref(name)
        point = self._around.shelf.load(self._by_prefix(name) if ref is None else ref.checkpoint)
        if point.session != self.id:
            from holdfast.engine.sessions.owning import check_owner

            check_owner(self._rows.get(point.session), self.agent)
        return point

    def _by_prefix(self, prefix: str) -> SessionHash:
        digits = prefix.lower()
        found = self._rows.by_prefix(digits) if len(digits) >= 4 and _is_hex(digits) else []
        if not found:
            raise _no_such_state(prefix)
        if len(found) > 1:
            raise UsageError(f"several session checkpoints begin with {prefix}", hint="give more digits")
        return found[0]

    def checkout(self, name: str) -> CheckedOut:
        """Bring the tree and the shell to another state (see `find`); the present one is saved first, as a branch.

        The tree by `Workspace.restore`, which a later ``undo`` takes back; files that changed meanwhile are left alone.
        Cut short, it is finished when the session is opened next, unless nothing had been changed yet. Raises
        `NotFoundError` (code ``thinned_out``) if that state's tree is not kept any more.
        """
        self._refuse_running()
        target = self.find(name)
        tree = self._tree_of(target)
        saved = self._branch(self._free_branch(_BEFORE_CHECKOUT), f"before checkout of {name}", {})
        leaving = Leaving(target=target.hash, at=self._context.clock.now())
        self._line.write([*self._line.entries, leaving])
        try:
            restored = self.workspace.restore(tree)
        except HoldfastError:
            if self.workspace.unfinished() is None:
                self._line.write(self._line.entries[:-1])
            raise
        self.arrive(target)
        self._drop_old_branches(_BEFORE_CHECKOUT)
        return CheckedOut(self.state, target, saved, restored)

    def arrive(self, target: SessionCheckpoint, *, recovered: bool = False) -> None:
        """Take the tree as it is now for that of ``target``, and the rest of the state as ``target`` has it: the end
        of a checkout; ``recovered``: of one that was cut short.
        """
        history: list[CommandEntry] = []
        parent: SessionHash | None = None
        for point in self._around.shelf.past(target):
            # Another session's states go with it: what they say is carried over.
            if point.session == self.id:
                parent = point.hash
                break
            history = [*point.history, *history]
        now = self.state
        metrics = msgspec.structs.replace(now.metrics, recoveries=now.metrics.recoveries + int(recovered))
        state = msgspec.structs.replace(
            target.state, id=now.id, parent=now.parent, created_at=now.created_at, metrics=metrics
        )
        self._commit("auto", state=state, parent=parent, history=history)

    def fork(
        self,
        id: str | None = None,  # noqa: A002 - the field's own name
        *,
        checkpoint: str | None = None,
        with_ignored: bool = False,
        provider: str | None = None,
        type: RefType = "fork",  # noqa: A002 - likewise
        metadata: Mapping[str, str] | None = None,
    ) -> ForkResult:
        """Begin another session from this state, or from ``checkpoint`` (see `find`), in a directory of its own.

        The best snapshot provider makes it, or ``provider``, else it is written out. ``with_ignored``: it has to hold
        what ignore rules leave out, too, as that is now. Killed meanwhile, nothing of it is left after the next sweep.
        Raises `RefusedError` (``session_exists``, ``session_limit``), `UnsupportedError` (``no_provider``).
        """
        from holdfast.engine.sessions.forking import fork

        self._refuse_running()
        said = check_metadata(metadata or {})
        limits.check_forks(self._rows, self.id, self.settings.max_forks)
        if checkpoint is None:
            tree = self._save_tree()
            changed = self._line.entries or tree != self.state.tree
            point = self._commit("fork", tree=tree) if changed else self.head
        else:
            point = self.find(checkpoint)
            self._tree_of(point)
        made = fork(
            self._around,
            self._line.record,
            point,
            name=id,
            now=checkpoint is None,
            with_ignored=with_ignored,
            provider=provider,
            kind=type,
            metadata=said,
        )
        self._line.write([*self._line.entries, Counted(what="forks", at=self._context.clock.now())])
        if self._journal_is_full():
            self._commit("auto")
        return made

    # -- who may use it -------------------------------------------------------------------------------------------

    def share(self, agent: str) -> None:
        """Let another agent use it, too. Only its owner may: raises `RefusedError` (code ``not_owner``)."""
        self._set_shared(sorted({*self.shared, check_agent(agent)}))

    def unshare(self, agent: str) -> None:
        """Let an agent use it no more. Raises as `share`."""
        self._set_shared([name for name in self.shared if name != agent])

    def keep(self) -> None:
        """Make an experiment's fork one that stays when the experiment is over."""
        record = self._line.record
        if record.purpose != "experiment":
            return
        ref = self._rows.ref(ref_name("experiment", self.id))
        self._line.record = record._replace(purpose="fork")
        self._rows.put(self._line.record)
        if ref is not None:
            moved = msgspec.structs.replace(ref, name=ref_name("fork", self.id), type="fork")
            self._rows.set_ref(RefChange(moved, None))
            self._rows.remove_ref(ref.name, ref.checkpoint)

    def delete(self) -> None:
        """Delete it and its states, and close it. Of a fork, its directory and what is saved of it as well, for good;
        in place, the workspace stays as it is. Only its owner may.
        """
        from holdfast.engine.sessions.deleting import delete
        from holdfast.engine.sessions.owning import check_owned

        check_owned(self._line.record, self.agent)
        try:
            delete(self._around.opener, self._around.shelf, self._line.record)
        finally:
            self.close()

    def close(self) -> None:
        """Let go of it, as it is. Harmless a second time."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside ---------------------------------------------------------------------------------------------------

    def save_if_idle(self) -> None:
        """Save the state if nothing was done in the session for as long as the idle trigger says."""
        if self.due() == 0:
            self._commit("auto")

    def _save_tree(self, command: str = "") -> CheckpointId:
        """Save the tree, if it has changed; the checkpoint that holds it."""
        said = display(os.fsencode(command))
        return self.workspace.checkpoint(kind="auto", author=self.agent, command=said).checkpoint.id

    def _tree_of(self, point: SessionCheckpoint) -> CheckpointId:
        """The tree of a state; raises `NotFoundError` if it is not kept any more."""
        tree = point.state.tree
        try:
            if tree is not None:
                return self._context.catalog.checkpoint(tree).id
        except NotFoundError:
            pass
        raise NotFoundError(
            f"the tree of the session checkpoint {point.hash[:12]} was thinned out; what the shell was then is kept",
            hint="branches and checkpoints that somebody asked for are held back from that",
            code="thinned_out",
        )

    def _commit(
        self,
        kind: SessionKind,
        *,
        state: State | None = None,
        tree: CheckpointId | None = None,
        message: str = "",
        metadata: Mapping[str, str] | None = None,
        branch: SessionRef | None = None,
        parent: SessionHash | None = None,
        history: Sequence[CommandEntry] | None = None,
    ) -> SessionCheckpoint:
        """Save a state, the present one unless it is given, and let go of old ones beyond the limit."""
        for left in reversed(range(_TRIES)):
            try:
                point = self._line.commit(
                    kind,
                    self.state if state is None else state,
                    self._save_tree() if tree is None else tree,
                    message=message,
                    metadata=metadata,
                    naming=[*self._own_names(), *(() if branch is None else (RefChange(branch, None),))],
                    parent=self.head.hash if history is None else parent,
                    history=replaying.commands(self._line.entries) if history is None else history,
                )
                break
            except RefusedError as error:
                # Somebody forgets checkpoints at this moment: save the tree again.
                if error.code != "tree_gone" or not left:
                    raise
                tree = None
        else:
            raise AssertionError("unreachable")
        limits.thin_out(self._rows, self.id, self.settings.max_checkpoints)
        return point

    def _branch(self, name: str, message: str, metadata: Mapping[str, str]) -> SessionRef:
        ref = new_ref("branch", self.id, name, metadata)
        point = self._commit("branch", message=message, metadata=metadata, branch=ref)
        return msgspec.structs.replace(ref, checkpoint=point.hash, updated_at=point.created_at)

    def _own_names(self) -> list[RefChange]:
        """What names the newest state of a fork, beside its HEAD."""
        purpose = self._line.record.purpose
        ref = None if purpose == "session" else self._rows.ref(ref_name(purpose, self.id))
        return [] if ref is None else [RefChange(ref, ref.checkpoint)]

    def _free_branch(self, stem: str) -> str:
        at = "".join(digit for digit in isoformat(self._context.clock.now()) if digit.isalnum())
        name, number = f"{stem}-{at}", 1
        while self._rows.ref(ref_name("branch", self.id, name)) is not None:
            number += 1
            name = f"{stem}-{at}-{number}"
        return name

    def _drop_old_branches(self, stem: str) -> None:
        prefix = ref_name("branch", self.id, stem)
        mine = [ref for ref in self.branches() if ref.name.startswith(prefix)]
        for ref in sorted(mine, key=lambda ref: ref.updated_at)[:-_AUTOMATIC_BRANCHES]:
            self.remove_branch(ref.name[len(ref_name("branch", self.id)) :])

    def _save_if_wanted(self, tree: CheckpointId) -> None:
        """Save the state after a command, if a trigger says so."""
        ran = len(replaying.commands(self._line.entries))
        wanted = ran >= self.config.triggers.commands and not self._too_soon()
        if wanted or self._journal_is_full():
            self._commit("auto", tree=tree)

    def _journal_is_full(self) -> bool:
        most = min(self.config.triggers.max_journal, self.settings.max_journal)
        return len(self._line.entries) >= most or len(self._line.journal.data) >= self.settings.max_journal_bytes

    def _too_soon(self) -> float:
        """Seconds until the state may be saved by itself."""
        since = (self._context.clock.now() - self.state.metrics.last_checkpoint_at) / _SECOND
        return 0.0 if since < 0 else max(0.0, self.config.triggers.min_seconds - since)

    def _set_shared(self, names: Sequence[str]) -> None:
        from holdfast.engine.sessions.owning import check_owned

        check_owned(self._line.record, self.agent)
        self._line.record = self._line.record._replace(shared=tuple(names))
        self._rows.put(self._line.record)

    def _refuse_running(self) -> None:
        running = replaying.running(self._line.entries)
        if running is not None:
            raise RefusedError(
                f"a command is running in the session {self.id}: {running.command[:100]}",
                hint="wait until it has ended",
                code="session_running",
            )


def demands(config: SessionConfig, level: Level) -> bool:
    """Whether the state is to be saved before a command of this level."""
    return config.demand != "never" and LEVELS.index(level) >= LEVELS.index(config.demand)


def _check_command(text: str) -> None:
    try:
        good = bool(text.strip()) and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        good = False
    if not good:
        raise UsageError("a command is a text that is not empty, without NUL")


def _clean(result: CommandResult) -> CommandResult:
    """``result`` with what is no text in its output escaped, so that it can be recorded."""
    return msgspec.structs.replace(result, stdout=_escaped(result.stdout), stderr=_escaped(result.stderr))


def _escaped(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _is_hex(text: str) -> bool:
    return all(digit in "0123456789abcdef" for digit in text)


def _no_such_state(name: str) -> NotFoundError:
    return NotFoundError(
        f"no branch, fork or session checkpoint {name[:100]!r}",
        hint="`holdfast session branches` lists branches; a fork is forks/ID",
        code="no_state",
    )
