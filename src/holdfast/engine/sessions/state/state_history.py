"""Saving a session's states, and returning to them: checkpoints, branches, checkout."""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine.sessions import _quotas as quotas
from holdfast.engine.sessions.identifiers import (
    BEFORE_CHECKOUT,
    check_branch,
    check_message,
    check_metadata,
    check_new_branch,
)
from holdfast.engine.sessions.state import journal
from holdfast.engine.sessions.state.journal import StateOrigin, new_ref
from holdfast.model.clock import isoformat
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError, UsageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.model.session_results import CheckedOut
from holdfast.model.session_types import CheckoutEvent, MergeEvent, SessionId
from holdfast.store.catalog.session_records import RefChange, ref_name

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from holdfast.engine.opening.context import Context
    from holdfast.engine.opening.opener import Opener
    from holdfast.engine.sessions._hooks import HookedAction
    from holdfast.engine.sessions.holder.request_server import RequestServer
    from holdfast.engine.sessions.state._change_notice import ChangeNotice
    from holdfast.engine.sessions.state.journal import SessionLine
    from holdfast.engine.upkeep.session_checkpoint_tiers import SessionCheckpointTiers
    from holdfast.engine.workspace.workspace import Workspace
    from holdfast.model.command_results import RestoreResult
    from holdfast.model.entries import NotCaptured
    from holdfast.model.ids import CheckpointId
    from holdfast.model.session_types import (
        CommandEntry,
        SessionCheckpoint,
        SessionHash,
        SessionKind,
        SessionRef,
        State,
    )

_LOG = Log(__name__)
_TRIES = 3


class SessionScope(NamedTuple):
    """The context of a session."""

    opener: Opener
    context: Context
    workspace: Workspace
    tiers: SessionCheckpointTiers
    agent: str
    """Who uses it."""
    save: Callable[[SessionId], tuple[SessionCheckpoint, Sequence[NotCaptured]]]
    """Saves another session, if anything has happened in it since the last time, and gives its newest state, and what
    its directory alone holds.
    """


def with_hooks(
    context: Context,
    what: HookedAction,
    about: Mapping[str, object],
    *,
    may_refuse: bool = True,
    records: Callable[[], bool],
    door: Callable[[], RequestServer | None],
) -> AbstractContextManager[dict[str, Any]]:
    """`holdfast.engine.sessions._hooks.with_hooks`, which is loaded only where a hook is configured: hardly any home
    has one.
    """
    if not context.settings.hooks.configured:
        return nullcontext({})
    from holdfast.engine.sessions import _hooks

    return _hooks.with_hooks(context, what, about, may_refuse=may_refuse, records=records, door=door)


class StateHistory:
    """The states of a held session. `Session` documents the methods."""

    def __init__(
        self,
        scope: SessionScope,
        line: SessionLine,
        records: Callable[[], bool],
        door: Callable[[], RequestServer | None],
    ) -> None:
        """``records`` tells whether hooks' changes are recorded; ``door`` answers their requests."""
        self._scope = scope
        self._records = records
        self._door = door
        self._context = scope.context
        self._rows = scope.tiers.rows
        self._line = line
        self._noticing: ChangeNotice | None = None
        self.not_captured: Sequence[NotCaptured] = ()
        """Paths that no checkpoint captured when the tree was last saved."""

    @property
    def id(self) -> SessionId:
        """The session's."""
        return self._line.record.id

    @contextmanager
    def asked_by(self, agent: str) -> Generator[None]:
        """Within the block, ``agent`` is the author of operations."""
        before = self._scope
        self._scope = before._replace(agent=agent)
        try:
            yield
        finally:
            self._scope = before

    def checkpoint(self, message: str, kind: SessionKind, metadata: Mapping[str, str]) -> SessionCheckpoint:
        """See `Session.checkpoint`."""
        check_message(message)
        tree = self.save_tree()
        if kind == "auto" and not journal.has_unsaved(self._line.done) and tree == self._line.resting.tree:
            return self._line.head
        said = check_metadata(metadata)
        with self._asked_for() if kind == "manual" else nullcontext():
            return self.commit(kind, tree=tree, message=message, metadata=said)

    def branch(self, name: str, message: str, metadata: Mapping[str, str]) -> SessionRef:
        """See `Session.branch`."""
        check_message(message)
        said = check_metadata(metadata)
        if self._rows.ref(ref_name("branch", self.id, check_new_branch(name))) is not None:
            raise RefusedError(
                f"the session {self.id} has a branch {name} already",
                hint="choose another name, or remove that branch first",
                code="branch_exists",
            )
        if "/" not in name and self._rows.has(SessionId(name)):
            raise UsageError(f"{name!r} is no name for a branch: a session is called so", hint="choose another name")
        about = {**self.about(), "branch": name, "message": message}
        with (
            self._asked_for(),
            with_hooks(self._context, "branch", about, records=self._records, door=self._door) as told,
        ):
            ref = self._branch(name, message, said)
            told["checkpoint"] = ref.checkpoint
        return ref

    def branches(self) -> list[SessionRef]:
        """See `Session.branches`."""
        return [ref for ref in self._rows.refs(self.id) if ref.type == "branch"]

    def remove_branch(self, name: str) -> SessionRef:
        """See `Session.remove_branch`."""
        ref = self._rows.ref(ref_name("branch", self.id, check_branch(name)))
        if ref is None or not self._rows.remove_ref(ref.name, ref.checkpoint):
            raise _no_such_state(name)
        if ref.checkpoint != self._line.head.hash:
            self._rows.release([ref.checkpoint])
        return ref

    def find(self, name: str) -> SessionCheckpoint:
        """See `Session.find`."""
        ref = self._rows.ref(ref_name("branch", self.id, name)) or self._rows.ref(name)
        found = self._by_prefix(name) if ref is None else ref.checkpoint
        # Its present owner: a fork of a deleted session has taken over the states that it began with.
        whose = self._rows.stored(found).session
        if whose != self.id:
            from holdfast.engine.sessions.identifiers import check_may_use

            check_may_use(self._rows.get(whose), self._scope.agent)
        return self._scope.tiers.load(found)

    def checkout(self, name: str) -> CheckedOut:
        """See `Session.checkout`."""
        target, missed = self._save_fork(name) or (self.find(name), ())
        tree = self.tree_of(target)
        saved = self._branch(self._free_branch(BEFORE_CHECKOUT), f"before checkout of {name}", {})
        leaving = CheckoutEvent(target=target.hash, at=self._context.clock.now(), event=self._newest_event())
        with self._moving(leaving):
            restored = self._scope.workspace.restore(tree)
        self.arrive(target)
        quotas.drop_ways_back(self._rows, self.id, self._most)
        return CheckedOut(self._line.state, target, saved, restored, missed)

    def arrive(self, target: SessionCheckpoint, *, recovered: bool = False) -> None:
        """See `Session.arrive`."""
        history: list[CommandEntry] = []
        parent: SessionHash | None = None
        for point in self._scope.tiers.past(target):
            # Another session's states are deleted with it, so their history is copied.
            if point.session == self.id:
                parent = point.hash
                break
            history = [*point.history, *history]
        now = self._line.state
        metrics = msgspec.structs.replace(now.metrics, recoveries=now.metrics.recoveries + int(recovered))
        state = msgspec.structs.replace(
            target.state,
            id=now.id,
            parent=now.parent,
            created_at=now.created_at,
            metrics=metrics,
            # The shells' settings are the other state's; the isolation of commands stays.
            config=msgspec.structs.replace(target.state.config, isolation=now.config.isolation),
        )
        self.commit("auto", state=state, lineage=StateOrigin(parent, history))

    def bring(
        self, target: CheckpointId, *, expected: CheckpointId, message: str, metadata: Mapping[str, str]
    ) -> tuple[RestoreResult, SessionCheckpoint]:
        """See `Session.bring`."""
        check_message(message)
        said = check_metadata(metadata)
        with self._asked_for():
            at = self._context.clock.now()
            entry = MergeEvent(target=target, message=message, at=at, event=self._newest_event(), metadata=said)
            with self._moving(entry):
                restored = self._scope.workspace.restore(target, expected=expected)
            return restored, self._commit_merged(entry, self._line.state)

    def arrive_merged(self, entry: MergeEvent) -> None:
        """See `Session.arrive_merged`."""
        now = self._line.state
        metrics = msgspec.structs.replace(now.metrics, recoveries=now.metrics.recoveries + 1)
        self._commit_merged(entry, msgspec.structs.replace(now, metrics=metrics))

    # -- inside ---------------------------------------------------------------------------------------------------

    def _save_fork(self, name: str) -> tuple[SessionCheckpoint, Sequence[NotCaptured]] | None:
        """The state of the fork that ``name`` means, saved as it is now, and what no checkpoint holds of it; None if it
        means no other session's newest.
        """
        ref = None if self._rows.ref(ref_name("branch", self.id, name)) is not None else self._rows.ref(name)
        if ref is None or ref.type == "branch" or ref.session == self.id:
            return None
        return self._scope.save(ref.session)

    def _commit_merged(self, entry: MergeEvent, state: State) -> SessionCheckpoint:
        # Its subject has happened: no hook may prevent the record.
        return self.commit("manual", state=state, message=entry.message, metadata=entry.metadata, may_refuse=False)

    @property
    def _most(self) -> int:
        """The most trees that the session may hold."""
        return self._context.settings.session.max_checkpoints

    @contextmanager
    def _asked_for(self) -> Generator[None]:
        """Around the saving of a state that an agent asks for: refused where it could not be held."""
        quotas.check_room(self._rows, self.id, self._most)
        yield
        quotas.drop_ways_back(self._rows, self.id, self._most)

    def _newest_event(self) -> int:
        newest = self._context.catalog.events(self._context.workspace.id, limit=1)
        return newest[0].seq if newest else 0

    @contextmanager
    def _moving(self, entry: CheckoutEvent | MergeEvent) -> Generator[None]:
        """Note in the journal the target of the tree within the block; after a failure without changes, remove the
        note.
        """
        self.stop_noticing()
        self._line.write([*self._line.entries, entry])
        try:
            yield
        except HoldfastError:
            if self._scope.workspace.unfinished() is None:
                self._line.write(self._line.entries[:-1])
            raise

    def save_tree(self, command: str = "", message: str = "", *, whole: bool = True) -> CheckpointId:
        """Save the tree's changes; the checkpoint that holds it. Unless ``whole``, noticed changes are enough, where
        they are noticed.
        """
        if whole and self._noticing is not None:
            self._noticing.doubt()
        said = display(os.fsencode(command))
        made = self._scope.workspace.checkpoint(kind="auto", author=self._scope.agent, message=message, command=said)
        self.not_captured = made.not_captured
        if self._noticing is not None and self._noticing.useless:
            self.stop_noticing()
        return made.checkpoint.id

    @property
    def is_noticing(self) -> bool:
        """Whether changes of the tree are noticed as they happen."""
        return self._noticing is not None

    def start_noticing(self) -> None:
        """Notice changes of the tree from now on, where that can be had; see `_change_notice`."""
        from holdfast.engine.sessions.state._change_notice import start_notice

        self._noticing = start_notice(self._context)

    def stop_noticing(self) -> None:
        """The opposite. Harmless where nothing was."""
        if self._noticing is not None:
            self._noticing.end()
            self._noticing = None

    def tree_of(self, point: SessionCheckpoint) -> CheckpointId:
        """The tree of a state; raises `NotFoundError` if it is not kept any more."""
        tree = point.state.tree
        try:
            if tree is not None:
                return self._context.catalog.checkpoint(tree).id
        except NotFoundError:
            pass
        raise NotFoundError(
            f"the tree of the session checkpoint {point.hash[:12]} was dropped by "
            "retention; the state of its shell is kept",
            hint="retention keeps branches, and checkpoints that a user or an agent asked for",
            code="thinned_out",
        )

    def commit(
        self,
        kind: SessionKind,
        *,
        state: State | None = None,
        tree: CheckpointId | None = None,
        message: str = "",
        metadata: Mapping[str, str] | None = None,
        branch: SessionRef | None = None,
        lineage: StateOrigin | None = None,
        may_refuse: bool = True,
    ) -> SessionCheckpoint:
        """Save a state, by default the present one, and drop old ones beyond the limit. It follows HEAD by the
        journal's events, unless ``lineage`` gives another origin. ``may_refuse``: a hook can prevent it.
        """
        about = {**self.about(), "kind": kind, "message": message}
        # Automatic states protect work: no hook may prevent them.
        may_refuse = may_refuse and kind != "auto"
        hooks = with_hooks(
            self._context, "checkpoint", about, may_refuse=may_refuse, records=self._records, door=self._door
        )
        with hooks as told:
            point = self._commit(kind, state, tree, message, metadata, branch, lineage)
            told |= {"checkpoint": point.hash, "tree": point.state.tree}
        quotas.thin_out(self._rows, self.id, self._most)
        dropped = quotas.drop_oldest(self._rows, self.id, self._context.settings.session.max_history_bytes)
        try:
            self._scope.tiers.discard(dropped)
        except (HoldfastError, OSError) as error:  # nothing names it any more: collection removes it
            _LOG.debug("states that were dropped are still stored: %s", error)
        return point

    def about(self) -> dict[str, object]:
        """The values for every hook."""
        return {
            "session": self.id,
            "agent": self._scope.agent,
            "workspace": self._context.workspace.id,
            "root": display(self._context.workspace.path),
        }

    def _commit(
        self,
        kind: SessionKind,
        state: State | None,
        tree: CheckpointId | None,
        message: str,
        metadata: Mapping[str, str] | None,
        branch: SessionRef | None,
        lineage: StateOrigin | None,
    ) -> SessionCheckpoint:
        for left in reversed(range(_TRIES)):
            try:
                return self._line.commit(
                    kind,
                    self._line.resting if state is None else state,
                    self.save_tree() if tree is None else tree,
                    message=message,
                    metadata=metadata,
                    naming=[*self._own_names(), *(() if branch is None else (RefChange(branch, None),))],
                    lineage=lineage or StateOrigin(self._line.head.hash, journal.commands(self._line.done)),
                )
            except RefusedError as error:
                # Another process forgets checkpoints at this moment: save the tree again.
                if error.code != "tree_gone" or not left:
                    raise
                tree = None
        raise AssertionError("unreachable")

    def _branch(self, name: str, message: str, metadata: Mapping[str, str]) -> SessionRef:
        ref = new_ref("branch", self.id, name, {**metadata, **({"message": message} if message else {})})
        point = self.commit("branch", message=message, metadata=metadata, branch=ref)
        return msgspec.structs.replace(ref, checkpoint=point.hash, updated_at=point.created_at)

    def _own_names(self) -> list[RefChange]:
        """References to the newest state of a fork, besides its HEAD."""
        purpose = self._line.record.purpose
        ref = None if purpose == "session" else self._rows.ref(ref_name(purpose, self.id))
        return [] if ref is None else [RefChange(ref, ref.checkpoint)]

    def _by_prefix(self, prefix: str) -> SessionHash:
        digits = prefix.lower()
        found = self._rows.by_prefix(digits) if len(digits) >= 4 and _is_hex(digits) else []
        if not found:
            raise _no_such_state(prefix)
        if len(found) > 1:
            raise UsageError(f"several session checkpoints begin with {prefix}", hint="give more digits")
        return found[0]

    def _free_branch(self, stem: str) -> str:
        at = "".join(digit for digit in isoformat(self._context.clock.now()) if digit.isalnum())
        name, number = f"{stem}-{at}", 1
        while self._rows.ref(ref_name("branch", self.id, name)) is not None:
            number += 1
            name = f"{stem}-{at}-{number}"
        return name


def _is_hex(text: str) -> bool:
    return all(digit in "0123456789abcdef" for digit in text)


def _no_such_state(name: str) -> NotFoundError:
    return NotFoundError(
        f"no branch, fork or session checkpoint {name[:100]!r}",
        hint="`holdfast session branches` lists branches; a fork is forks/ID",
        code="no_state",
    )
