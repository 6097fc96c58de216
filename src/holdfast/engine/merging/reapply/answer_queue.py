"""The rung ``queue``: changes that wait in the catalog for an agent that takes and answers them.

The ladder uses `QueueRung`, which asks, and takes answers that have come since. `take`, `answer` and `list_waiting` are
for the agents, by MCP or REST. An agent holds a change for ``merge.lease``. A change without an answer by
``merge.deadline``, and one that finds the queue full, counts as declined and goes to the next rung.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from holdfast.engine.merging.reapply._agent_command import question, read_answer
from holdfast.engine.merging.reapply._strategy import Declined, NewContent, Pending, ReapplyTask, refusal
from holdfast.model.errors import NotFoundError, RefusedError, UsageError
from holdfast.model.ids import WorkspaceId, hash_bytes
from holdfast.model.paths import display
from holdfast.store.catalog.reapply_rows import ReapplyRow, ReapplyRows

if TYPE_CHECKING:
    from holdfast.engine.merging.reapply._strategy import RungName, RungOutcome
    from holdfast.engine.opening.context import StoreContext
    from holdfast.model.clock import Clock
    from holdfast.model.config.settings import Merge
    from holdfast.store.store import Store

_SECOND = 1_000_000
KEPT = 7 * 24 * 3600 * _SECOND
"""Microseconds for which a question and its answer are kept."""


class QueueRung:
    """See the module."""

    name: RungName = "queue"
    takes_all = False

    def __init__(self, store: Store, workspace: WorkspaceId, clock: Clock, settings: Merge) -> None:
        """Changes of merges into ``workspace``; the deadline counts from the first request for one."""
        self._reapplies = waiting_changes(store)
        self._workspace = workspace
        self._clock = clock
        self._deadline = int(settings.deadline * _SECOND)
        self._settings = settings

    def apply(self, task: ReapplyTask) -> RungOutcome:
        """See `Rung.apply`."""
        now = self._clock.now()
        about = {"why": task.why, "numbers": list(task.numbers), "about": task.about}
        name = hash_bytes(b"\0".join((self._workspace.encode(), task.version.encode(), task.path))).hex()
        found = self._reapplies.ask(
            ReapplyRow(
                name,
                self._workspace,
                task.path,
                json.dumps(about),
                task.now,
                task.before,
                task.after,
                deadline=now + self._deadline,
                created_at=now,
            ),
            now,
            most=self._settings.queue_entries,
            most_bytes=self._settings.queue_bytes,
        )
        if found is None:
            return Declined(
                f"the queue is full (merge.queue_entries, {self._settings.queue_entries:,} changes; "
                f"merge.queue_bytes, {self._settings.queue_bytes:,} bytes)"
            )
        if found.status == "answered":
            return NewContent(found.answer, found.said)
        if found.status == "declined":
            return Declined(found.said or "no agent could")
        if found.deadline <= now:
            return Declined("no agent answered in time (merge.deadline)")
        return Pending(found.id, "an agent works on it" if found.held_until > now else "waits to be taken")


def waiting_changes(store: Store) -> ReapplyRows:
    """The changes that wait in a store."""
    return ReapplyRows(store.catalog)


def sweep(store: Store, now: int) -> int:
    """Drop questions that were asked, or shown, too long ago (`KEPT`); their number."""
    return waiting_changes(store).sweep(now - KEPT)


def list_waiting(
    shared: StoreContext, now: int, *, limit: int = 100, workspace: WorkspaceId | None = None
) -> list[dict[str, Any]]:
    """The waiting changes of merges into ``workspace`` or any, without content, oldest first: ``id``, ``workspace``,
    ``path``, ``held``, ``deadline``.
    """
    return [
        {
            "id": one.id,
            "workspace": one.workspace,
            "path": display(one.path),
            "held": one.held_until > now,
            "deadline": one.deadline,
        }
        for one in waiting_changes(shared.store).open(now, limit, workspace)
    ]


def take(shared: StoreContext, clock: Clock, token: str, workspace: WorkspaceId | None = None) -> dict[str, Any] | None:
    """The change that waits longest, of merges into ``workspace`` or any, in the form of `_agent_command.question`;
    None without any.

    The caller holds it for ``merge.lease``, until ``held_until`` (microseconds since 1970-01-01 UTC). The answer needs
    ``id`` and ``token``, which no other agent knows.
    """
    now = clock.now()
    found = waiting_changes(shared.store).take(now, now + int(shared.settings.merge.lease * _SECOND), token, workspace)
    if found is None:
        return None
    return {
        "id": found.id,
        "token": token,
        "workspace": found.workspace,
        "held_until": found.held_until,
        "deadline": found.deadline,
        **question(_task(found)),
    }


def answer(
    shared: StoreContext,
    clock: Clock,
    name: str,
    token: str,
    given: dict[str, Any],
    workspace: WorkspaceId | None = None,
) -> str:
    """Answer a change that was taken: ``given`` has ``version`` and one of ``content``, ``content_base64``, ``delete``
    and ``decline``, and perhaps ``said``. Returns ``answered`` or ``declined``.

    This merges nothing: the next merge of the same fork uses the answer, if its question is still the same. Raises
    `NotFoundError` (code ``no_reapply``), `RefusedError` (``not_held``: another agent holds it, or the time is over;
    ``answered``: it has an answer), `UsageError` (code ``bad_answer``) for an unusable answer.
    """
    reapplies = waiting_changes(shared.store)
    found = reapplies.get(name)
    if found is None or found.status == "shown" or workspace not in (None, found.workspace):
        raise NotFoundError(f"no change {name!r} waits", hint="it may have been merged meanwhile", code="no_reapply")
    task = _task(found)
    if given.get("version") != task.version:
        raise UsageError("version must be that of the change that was taken", code="bad_answer")
    outcome = read_answer(given, task.version, path=display(task.path))
    if isinstance(outcome, Declined) and "decline" not in given:
        raise UsageError(outcome.reason, code="bad_answer")
    if isinstance(outcome, NewContent):
        reason = refusal(task, outcome.content, shared.settings.merge.max_bytes)
        if reason is not None:
            raise UsageError(f"the answer is not taken: {reason}", code="bad_answer")
        left = reapplies.settle(name, token, clock.now(), "answered", outcome.content, outcome.said)
    else:
        assert isinstance(outcome, Declined)
        left = reapplies.settle(name, token, clock.now(), "declined", None, outcome.reason)
    if left is None:
        return "answered" if isinstance(outcome, NewContent) else "declined"
    if left.status != "open":
        raise RefusedError(f"the change {name} has an answer already", code="answered")
    raise RefusedError(
        f"the change {name} is not yours to answer: its time is over, or another agent has taken it",
        hint="take it again",
        code="not_held",
    )


def _task(found: ReapplyRow) -> ReapplyTask:
    told: dict[str, Any] = json.loads(found.about)
    return ReapplyTask(found.path, told["why"], found.now, found.before, found.after, told["numbers"], told["about"])


# -- what a person was shown ------------------------------------------------------------------------------------------


def note_shown(store: Store, workspace: WorkspaceId, path: bytes, version: str, now: int) -> None:
    """Note which version of a file a person was shown."""
    waiting_changes(store).note_shown(
        ReapplyRow(_shown(workspace, path), workspace, path, version, None, None, None, "shown", created_at=now)
    )


def last_shown(store: Store, workspace: WorkspaceId, path: bytes) -> str | None:
    """The version that was shown last; None if none was shown, or too long ago."""
    found = waiting_changes(store).get(_shown(workspace, path))
    return None if found is None else found.about


def _shown(workspace: WorkspaceId, path: bytes) -> str:
    return hash_bytes(b"shown\0" + workspace.encode() + b"\0" + path).hex()
