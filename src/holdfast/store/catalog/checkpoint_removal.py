"""Forgetting a checkpoint: its protections, and how its changes pass to its children."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from holdfast.model.entries import Counts, compose, count_changes
from holdfast.model.errors import RefusedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.paths import display
from holdfast.store.catalog.merge_parents import keep_lineage
from holdfast.store.catalog.reference_counts import moment, uncount_root
from holdfast.store.catalog.row_checksums import CHECKPOINTS, WORKSPACES, changing
from holdfast.store.catalog_records import last_seen_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.ids import CheckpointId, WorkspaceId
    from holdfast.store.database.sql_database import Database, Transaction


class Protection(NamedTuple):
    """A reason why a checkpoint should not, or (``hard``) may not, be forgotten."""

    kind: Literal["head", "fork", "chain", "pin", "session", "merged"]
    """The state of a live workspace; the origin of a live fork; between that and the fork's head; pinned; the tree of a
    kept session state, or of a command in a session's journal; the state that another live workspace merged
    last, since which its next merge looks for changes.
    """
    by: str
    """The workspace's path for people to read, the pin's reason, or the session's id."""
    workspace: WorkspaceId | None = None
    """The workspace; None for a pin or a session."""

    @property
    def hard(self) -> bool:
        """False for a chain alone: retention leaves it, but it may be forgotten and its changes are composed."""
        return self.kind != "chain"

    def __str__(self) -> str:
        """A clause that goes on from "the checkpoint is …"."""
        return {
            "head": f"the state that {self.by} stands on",
            "fork": f"the state that the fork {self.by} was made from",
            "chain": f"part of the line of the fork {self.by}",
            "pin": f"in use: {self.by}",
            "session": f"a tree that the session {self.by} keeps",
            "merged": f"the state that was merged into {self.by} last",
        }[self.kind]


def children(transaction: Transaction, tenant: int, checkpoint: CheckpointId) -> list[CheckpointId]:
    """The checkpoints whose parent this is, in the order of recording."""
    rows = transaction.all(
        "SELECT id FROM checkpoints WHERE tenant = ? AND parent = ? ORDER BY number", (tenant, checkpoint)
    )
    return [row[0] for row in rows]


def line(
    transaction: Transaction, tenant: int, checkpoint: CheckpointId, end: CheckpointId | None = None
) -> list[CheckpointId]:
    """A checkpoint, its parent, its parent's parent, … ending with ``end`` or with one that has no parent."""
    # A parent is recorded before its child, so the line has no loop; UNION would still end it if a damaged one had.
    rows = transaction.all(
        """WITH RECURSIVE line (id, parent, depth) AS (
            SELECT id, parent, 0 FROM checkpoints WHERE tenant = ? AND id = ?
            UNION ALL
            SELECT c.id, c.parent, line.depth + 1 FROM line JOIN checkpoints c ON c.tenant = ? AND c.id = line.parent
            WHERE line.id <> ?
        ) SELECT id FROM line ORDER BY depth""",
        (tenant, checkpoint, tenant, end or ""),
    )
    return [row[0] for row in rows]


def protections(transaction: Transaction, tenant: int, now: int) -> dict[CheckpointId, list[Protection]]:
    """Every protected checkpoint, with its protections: heads, fork points and chains of live workspaces, pins,
    sessions.
    """
    found: dict[CheckpointId, list[Protection]] = {}

    def protect(checkpoint: CheckpointId, reason: Protection) -> None:
        found.setdefault(checkpoint, []).append(reason)

    for workspace, path, head, source in transaction.all(
        "SELECT id, path, head, source FROM workspaces WHERE tenant = ? AND live = 1 ORDER BY created_at, id", (tenant,)
    ):
        name = display(last_seen_path(path))
        if head is not None:
            protect(head, Protection("head", name, workspace))
        if source is not None:
            protect(source, Protection("fork", name, workspace))
            if head is not None:
                for member in line(transaction, tenant, head, source)[1:]:
                    if member != source:
                        protect(member, Protection("chain", name, workspace))
    taken_in: dict[tuple[WorkspaceId, WorkspaceId], tuple[CheckpointId, bytes]] = {}
    for other, source, target, path in transaction.all(
        """SELECT m.other, s.id, t.id, t.path FROM merges m
        JOIN checkpoints o ON o.tenant = m.tenant AND o.id = m.other
        JOIN workspaces s ON s.tenant = m.tenant AND s.id = o.workspace AND s.live = 1
        JOIN checkpoints c ON c.tenant = m.tenant AND c.id = m.checkpoint
        JOIN workspaces t ON t.tenant = m.tenant AND t.id = c.workspace AND t.live = 1
        WHERE m.tenant = ? ORDER BY o.number""",
        (tenant,),
    ):
        taken_in[source, target] = other, path
    for (_, target), (other, path) in taken_in.items():
        protect(other, Protection("merged", display(last_seen_path(path)), target))
    for checkpoint, reason in transaction.all(
        """SELECT checkpoint, reason FROM pins WHERE tenant = ? AND checkpoint IS NOT NULL
        AND (expires_at IS NULL OR expires_at > ?) ORDER BY number""",
        (tenant, now),
    ):
        protect(checkpoint, Protection("pin", reason))
    for checkpoint, name in transaction.all(
        "SELECT DISTINCT tree, session FROM session_checkpoints WHERE tenant = ? AND kept = 1 ORDER BY tree, session",
        (tenant,),
    ):
        protect(checkpoint, Protection("session", name))
    for name, trees in transaction.all("SELECT session, trees FROM session_journals WHERE tenant = ?", (tenant,)):
        for checkpoint in dict.fromkeys(trees.split()):
            protect(checkpoint, Protection("session", name))
    return found


class _Heir(NamedTuple):
    id: CheckpointId
    changeset: bytes | None
    counts: Counts


def forget(database: Database, tenant: int, checkpoint: Checkpoint, now: Callable[[], int]) -> bool:
    """Remove one checkpoint; False if it is gone already. Changesets are composed before the transaction."""
    while True:
        with database.reading() as transaction:
            heirs = _heirs(transaction, tenant, checkpoint)
        with database.writing() as transaction:
            if not transaction.one("SELECT 1 FROM checkpoints WHERE tenant = ? AND id = ?", (tenant, checkpoint.id)):
                return False
            _refuse_protected(transaction, tenant, checkpoint, now())
            # A child keeps its parent, and with it its changeset, until that parent is forgotten: the same children
            # under the same parent have the changesets that were composed.
            parent = _parent(transaction, tenant, checkpoint.id)
            if parent != checkpoint.parent or children(transaction, tenant, checkpoint.id) != [
                heir.id for heir in heirs
            ]:
                checkpoint = checkpoint._replace(parent=parent)
                continue
            with changing(transaction, CHECKPOINTS, tenant, [heir.id for heir in heirs]):
                _bequeath(transaction, tenant, checkpoint, heirs)
            keep_lineage(transaction, tenant, checkpoint.id, parent, [heir.id for heir in heirs])
            _remove(transaction, tenant, checkpoint, moment(transaction, tenant, now()))
            return True


def _parent(transaction: Transaction, tenant: int, checkpoint: CheckpointId) -> CheckpointId | None:
    row = transaction.one("SELECT parent FROM checkpoints WHERE tenant = ? AND id = ?", (tenant, checkpoint))
    return row[0] if row else None


def _refuse_protected(transaction: Transaction, tenant: int, checkpoint: Checkpoint, now: int) -> None:
    hard = [reason for reason in protections(transaction, tenant, now).get(checkpoint.id, []) if reason.hard]
    if hard:
        raise RefusedError(f"checkpoint {checkpoint.id} cannot be forgotten: it is {hard[0]}", code="protected")


def _heirs(transaction: Transaction, tenant: int, checkpoint: Checkpoint) -> list[_Heir]:
    from holdfast.store.codecs.changeset import decode_changeset, encode_changeset

    def load(name: CheckpointId) -> bytes | None:
        row = transaction.one("SELECT data FROM changesets WHERE tenant = ? AND checkpoint = ?", (tenant, name))
        return row[0] if row else None

    own = load(checkpoint.id)
    heirs: list[_Heir] = []
    for child in children(transaction, tenant, checkpoint.id):
        theirs = load(child)
        if own is None or theirs is None:
            row = transaction.one("SELECT total_files FROM checkpoints WHERE tenant = ? AND id = ?", (tenant, child))
            heirs.append(_Heir(child, None, Counts(row[0] if row else 0, 0, 0)))
        else:
            changes = compose(decode_changeset(own), decode_changeset(theirs))
            heirs.append(_Heir(child, encode_changeset(changes), count_changes(changes)))
    return heirs


def _bequeath(transaction: Transaction, tenant: int, checkpoint: Checkpoint, heirs: list[_Heir]) -> None:
    transaction.many(
        "UPDATE checkpoints SET parent = ?, added = ?, modified = ?, deleted = ? WHERE tenant = ? AND id = ?",
        ((checkpoint.parent, *heir.counts, tenant, heir.id) for heir in heirs),
    )
    transaction.many(
        "DELETE FROM changesets WHERE tenant = ? AND checkpoint = ?",
        ((tenant, name) for name in (checkpoint.id, *(heir.id for heir in heirs))),
    )
    transaction.many(
        "INSERT INTO changesets VALUES (?, ?, ?)",
        ((tenant, heir.id, heir.changeset) for heir in heirs if heir.changeset is not None),
    )


def _remove(transaction: Transaction, tenant: int, checkpoint: Checkpoint, now: int) -> None:
    # A released workspace may still have this state; if it is used again, it continues from the remaining one.
    standing = transaction.all("SELECT id FROM workspaces WHERE tenant = ? AND head = ?", (tenant, checkpoint.id))
    with changing(transaction, WORKSPACES, tenant, [row[0] for row in standing]):
        transaction.run(
            "UPDATE workspaces SET head = ? WHERE tenant = ? AND head = ?", (checkpoint.parent, tenant, checkpoint.id)
        )
    transaction.run("DELETE FROM not_captured WHERE tenant = ? AND checkpoint = ?", (tenant, checkpoint.id))
    transaction.run("DELETE FROM checkpoints WHERE tenant = ? AND id = ?", (tenant, checkpoint.id))
    uncount_root(transaction, tenant, checkpoint.root, now)
