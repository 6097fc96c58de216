"""The catalog: workspaces, checkpoints, blobs and history, for one tenant.

Tenants share a catalog but not a byte (I10). A number stands for a tenant's name in every row.
"""

from __future__ import annotations

from itertools import chain

from holdfast.model.checkpoint import Checkpoint
from holdfast.model.entries import Counts, NotCaptured
from holdfast.model.errors import IntegrityError, NotFoundError
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.store.catalog import _blob_locations as blob_locations
from holdfast.store.catalog import _checkpoint_commit as checkpoint_commit
from holdfast.store.catalog import _history_rows as history_rows
from holdfast.store.catalog import _workspace_rows as workspace_rows
from holdfast.store.catalog.reference_counts import chunks, count_root, moment, slots, uncount_root
from holdfast.store.catalog.row_checksums import CHECKPOINTS, TENANTS, WORKSPACES, changing, damaged, set_checksum
from holdfast.store.catalog.schema import SEVERAL_LABELS
from holdfast.store.catalog.text_encryption import TextCipher
from holdfast.store.catalog_records import Cursor, join_labels, split_labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.model.checkpoint import HistoryEvent, Provenance
    from holdfast.model.clock import Clock
    from holdfast.model.ids import CheckpointId, Hash, WorkspaceId
    from holdfast.store.blobs.content_writer import WrittenBlobs
    from holdfast.store.catalog.checkpoint_removal import Protection
    from holdfast.store.catalog.merge_parents import Lineage
    from holdfast.store.catalog.usage_statistics import Stats
    from holdfast.store.catalog_records import BlobLocation, CheckpointCommit, MergeParent, WorkspaceRow
    from holdfast.store.database.sql_database import Again, Database, Row, Transaction
    from holdfast.store.objects.configured_store import EncryptionKeys


def number_of(database: Database, name: str) -> int:
    """The number in every row of the tenant ``name``, which is made if it is new."""
    find = "SELECT number FROM tenants WHERE name = ?"
    with database.reading(once=True) as transaction:
        row = transaction.one(find, (name,))
    if row is None:
        with database.writing() as transaction:
            row = transaction.one(find, (name,))  # another process may have been first
            if row is None:
                _refuse_damaged_tenants(transaction)
                row = transaction.one(
                    "INSERT INTO tenants (name, swept, latest) VALUES (?, 0, 0) RETURNING number", (name,)
                )
                assert row is not None
                set_checksum(transaction, TENANTS, row[0], row[0])
    return row[0]


def _refuse_damaged_tenants(transaction: Transaction) -> None:
    """A tenant with a damaged name must not begin anew: all its objects would seem to have no owner."""
    for (number,) in transaction.all("SELECT number FROM tenants"):
        if any(damaged(transaction, TENANTS, number)):
            raise IntegrityError(
                "the catalog is damaged: the name of a tenant is not what it was",
                hint="put the catalog back from a copy; its objects are untouched",
            )


_CHECKPOINT = """id, workspace, parent, root, kind, label, created_at, added, modified, deleted, total_files,
    total_bytes, new_blobs, stored_bytes, not_captured, author, message, command"""


class Catalog:
    """The catalog of one tenant over a `Database`; other tenants' rows cannot be reached through it (I10).

    Every method is one transaction (exceptions: `commit` and `forget`) and durable when it returns. It raises errors of
    the database: `LockedError`, `StorageError`, `IntegrityError`.
    """

    def __init__(self, database: Database, tenant: str, clock: Clock, home_id: str = "") -> None:
        """``home_id`` is the home whose workspaces, sessions and pins this is about, where several share the catalog;
        all homes of the tenant share checkpoints and blobs.
        """
        self.database = database
        self.name = tenant
        self.clock = clock
        self.home_id = home_id
        self.again: Again | None = None
        """Where a connection may be lost: what lets a transaction that was cut short by that be tried again."""
        self.keys: EncryptionKeys | None = None
        """The keys for values of content (`value_encryption`), if the store is encrypted."""
        self.accepts_plain = True
        """Whether there may be such values yet that are not encrypted, though there are keys."""
        self.tenant = number_of(database, tenant)
        self._texts = TextCipher(self)
        self._committer = checkpoint_commit.Committer(database, self.tenant, tenant, clock.now, self._texts)

    # --- workspaces ---

    def add_workspace(self, workspace: WorkspaceRow) -> None:
        """Begin to remember a directory. Refused (code ``exists``) if a live workspace has this path."""
        with self.database.writing() as transaction:
            workspace_rows.add(transaction, self.tenant, self.home_id, workspace)

    def workspace(self, workspace: WorkspaceId) -> WorkspaceRow:
        """One workspace; raises `NotFoundError` if there is none with this id."""
        found = self._workspaces("AND id = ?", workspace)
        if not found:
            raise NotFoundError(f"no workspace {workspace}")
        return found[0]

    def workspaces(self, *, everywhere: bool = False) -> list[WorkspaceRow]:
        """The workspaces of this home, oldest first, including released ones; ``everywhere`` adds those of other homes
        that share the catalog, whose directories cannot be examined here.
        """
        return self._workspaces() if everywhere else self._workspaces("AND machine = ?", self.home_id)

    def find_workspace(self, path: bytes) -> WorkspaceRow | None:
        """The live workspace at exactly this path."""
        found = self._workspaces("AND machine = ? AND path = ? AND live = 1", self.home_id, path)
        return found[0] if found else None

    def find_workspace_by_identity(self, device: int, inode: int) -> WorkspaceRow | None:
        """The live workspace whose root was last seen as this directory; of several, the one made last."""
        where = "AND machine = ? AND device = ? AND inode = ? AND live = 1"
        found = self._workspaces(where, self.home_id, device, inode)
        return found[-1] if found else None

    def move_workspace(self, workspace: WorkspaceId, path: bytes, device: int, inode: int) -> WorkspaceId | None:
        """Record the present path of a workspace; returns the other live one with that path, if there was one.

        That one is set aside (see `catalog_records.displaced_path`): it keeps its identity and its checkpoints, and a
        later move gives it a path again.
        """
        with self.database.writing() as transaction:
            return workspace_rows.move(transaction, self.tenant, self.home_id, workspace, path, device, inode)

    def let_go(self, workspace: WorkspaceId) -> None:
        """Let a workspace hold nothing back from retention any more. Its checkpoints stay until they are forgotten."""
        with self.database.writing() as transaction:
            workspace_rows.set_live(transaction, self.tenant, self.home_id, workspace, live=False)

    def adopt(self, workspace: WorkspaceId) -> None:
        """Undo `let_go`. Refused (code ``exists``) if another live workspace has its path by now."""
        with self.database.writing() as transaction:
            workspace_rows.set_live(transaction, self.tenant, self.home_id, workspace, live=True)

    def cursor(self, workspace: WorkspaceId) -> Cursor:
        """The position of a workspace in its history; raises `NotFoundError` if there is no such workspace."""
        with self.database.reading(once=True) as transaction:
            return history_rows.cursor(transaction, self.tenant, workspace)

    # --- checkpoints ---

    def commit(self, commit: CheckpointCommit) -> Cursor:
        """Add a checkpoint and all that comes with it; the workspace's new cursor.

        The packs and objects must be durable already. Atomic: rows of a large checkpoint are added ahead, in
        transactions of their own, and have no effect until the last one. ``relied_on`` must hold, or ``blobs`` add,
        every child of a new page to which no page of the parent's manifest refers. With an event the cursor moves to
        it; without one only the head moves, and for an imported checkpoint nothing.

        Raises `VanishedError` if a required blob or pack has been collected, `RefusedError` with code ``moved`` if the
        cursor is not ``expected`` any more, `NotFoundError` if the parent or the workspace is gone.
        """
        return self._committer.commit(commit)

    def checkpoint(self, checkpoint: CheckpointId) -> Checkpoint:
        """One checkpoint; raises `NotFoundError` if there is none with this id."""
        found = self._checkpoints("AND id = ?", checkpoint)
        if not found:
            raise NotFoundError(f"no checkpoint {checkpoint}", hint="list them: holdfast log --all")
        return found[0]

    def checkpoints_named(self, checkpoints: Iterable[CheckpointId]) -> dict[CheckpointId, Checkpoint]:
        """Those of these checkpoints that still exist."""
        statements = [
            (
                f"SELECT {_CHECKPOINT} FROM checkpoints WHERE tenant = ? AND id IN {slots(len(part))}",
                (self.tenant, *part),
            )
            for part in chunks(checkpoints)
        ]
        with self.database.reading(once=True) as transaction:
            found = [self._checkpoint(row) for rows in transaction.together(statements) for row in rows]
        return {one.id: one for one in found}

    def checkpoints(
        self, workspace: WorkspaceId | None = None, *, limit: int | None = None, before: CheckpointId | None = None
    ) -> list[Checkpoint]:
        """Checkpoints, the last recorded first: of one workspace or all, at most ``limit``, from before ``before``."""
        clauses: list[str] = []
        values: list[object] = []
        if workspace is not None:
            clauses.append("AND workspace = ?")
            values.append(workspace)
        if before is not None:
            clauses.append("AND number < (SELECT c.number FROM checkpoints c WHERE c.tenant = ? AND c.id = ?)")
            values += [self.tenant, before]
        clauses.append("ORDER BY number DESC")
        if limit is not None:
            clauses.append("LIMIT ?")
            values.append(limit)
        return self._checkpoints(" ".join(clauses), *values)

    def checkpoints_of(
        self, workspaces: Sequence[WorkspaceId], *, limit: int, before: CheckpointId | None = None
    ) -> list[Checkpoint]:
        """The same of several workspaces together."""
        from holdfast.store.catalog.reference_counts import slots

        where, values = f"AND workspace IN {slots(len(workspaces))}", [*workspaces]
        if before is not None:
            where += " AND number < (SELECT c.number FROM checkpoints c WHERE c.tenant = ? AND c.id = ?)"
            return self._checkpoints(f"{where} ORDER BY number DESC LIMIT ?", *values, self.tenant, before, limit)
        return self._checkpoints(f"{where} ORDER BY number DESC LIMIT ?", *values, limit)

    def by_prefix(self, prefix: str, limit: int = 16) -> list[CheckpointId]:
        """Ids that begin with ``prefix`` (lower-case hex digits), the last recorded first, at most ``limit``."""
        with self.database.reading(once=True) as transaction:
            rows = transaction.all(
                "SELECT id FROM checkpoints WHERE tenant = ? AND id >= ? AND id < ? ORDER BY number DESC LIMIT ?",
                (self.tenant, prefix, prefix + "g", limit),
            )
        return [row[0] for row in rows]

    def by_label(self, label: str, workspace: WorkspaceId | None = None) -> list[Checkpoint]:
        """Checkpoints that bear exactly this label, the last recorded first: of one workspace or of all."""
        if not label:
            return []
        where = f"""AND id IN (
            SELECT id FROM checkpoints WHERE tenant = ? AND label <> '' AND label = ?
            UNION ALL SELECT id FROM checkpoints WHERE tenant = ? AND {SEVERAL_LABELS})"""
        values = [self.tenant, label, self.tenant]
        if workspace is not None:
            where, values = f"{where} AND workspace = ?", [*values, workspace]
        found = self._checkpoints(f"{where} ORDER BY number DESC", *values)
        return [one for one in found if label in one.labels]

    def children(self, checkpoint: CheckpointId) -> list[CheckpointId]:
        """The checkpoints whose parent this is, in any workspace, in the order of recording."""
        from holdfast.store.catalog import checkpoint_removal

        with self.database.reading(once=True) as transaction:
            return checkpoint_removal.children(transaction, self.tenant, checkpoint)

    def ancestors(self, checkpoint: CheckpointId) -> list[CheckpointId]:
        """The parent, its parent, and so on; empty for one without a parent."""
        from holdfast.store.catalog import checkpoint_removal

        with self.database.reading(once=True) as transaction:
            return checkpoint_removal.line(transaction, self.tenant, checkpoint)[1:]

    def lineage(self, checkpoint: CheckpointId) -> Lineage:
        """A checkpoint and all whose work it has: its parents, those that it has merged, theirs, and so on."""
        from holdfast.store.catalog import merge_parents

        with self.database.reading() as transaction:
            return merge_parents.lineage(transaction, self.tenant, checkpoint)

    def merge_parents(self, checkpoint: CheckpointId) -> list[MergeParent]:
        """The merges of other lines of work into a checkpoint."""
        from holdfast.store.catalog import merge_parents

        with self.database.reading(once=True) as transaction:
            return merge_parents.parents_of(transaction, self.tenant, checkpoint)

    def add_merge_parents(self, checkpoint: CheckpointId, taken_in: MergeParent) -> None:
        """Note that a checkpoint holds all that another line has done, as where nothing had to be changed for it.

        Harmless a second time. Raises `NotFoundError` if either is gone.
        """
        from holdfast.store.catalog import merge_parents

        with self.database.writing() as transaction:
            for name in (checkpoint, taken_in.other):
                if not transaction.one("SELECT 1 FROM checkpoints WHERE tenant = ? AND id = ?", (self.tenant, name)):
                    raise NotFoundError(f"the checkpoint {name} was forgotten meanwhile")
            merge_parents.add(transaction, self.tenant, checkpoint, taken_in, self.clock.now())

    def claim(self, checkpoint: CheckpointId, labels: Sequence[str], provenance: Provenance) -> Checkpoint:
        """Make a checkpoint manual, with a user's data; the new record. ``labels`` are all its labels then."""
        with self.database.writing() as transaction, changing(transaction, CHECKPOINTS, self.tenant, [checkpoint]):
            transaction.run(
                "UPDATE checkpoints SET kind = 'manual', label = ?, author = ?, message = ?, command = ? "
                "WHERE tenant = ? AND id = ?",
                (
                    join_labels(labels),
                    *self._texts.seal_provenance(checkpoint, provenance),
                    *(self.tenant, checkpoint),
                ),
            )
        return self.checkpoint(checkpoint)

    def changeset(self, checkpoint: CheckpointId) -> bytes | None:
        """The encoded changeset against the parent; None if everything is added."""
        with self.database.reading(once=True) as transaction:
            row = transaction.one(
                "SELECT data FROM changesets WHERE tenant = ? AND checkpoint = ?", (self.tenant, checkpoint)
            )
        return row[0] if row else None

    def changesets(self, checkpoints: Sequence[CheckpointId]) -> dict[CheckpointId, bytes]:
        """The encoded changesets of several checkpoints; those without one are left out."""
        statements = [
            (
                f"SELECT checkpoint, data FROM changesets WHERE tenant = ? AND checkpoint IN {slots(len(part))}",
                (self.tenant, *part),
            )
            for part in chunks(checkpoints)
        ]
        with self.database.reading(once=True) as transaction:
            return dict(chain.from_iterable(transaction.together(statements)))

    def not_captured(self, checkpoint: CheckpointId) -> list[NotCaptured]:
        """The paths that a checkpoint does not hold, sorted."""
        with self.database.reading(once=True) as transaction:
            rows = transaction.all(
                "SELECT path, reason FROM not_captured WHERE tenant = ? AND checkpoint = ? ORDER BY place",
                (self.tenant, checkpoint),
            )
        return [NotCaptured(*row) for row in rows]

    def forget(self, checkpoints: Sequence[CheckpointId]) -> list[Checkpoint]:
        """Remove checkpoints, each in a transaction of its own, in the given order; returns those that existed.

        The changeset of each is composed into its children's. Raises `RefusedError` (and leaves that one and those
        after it) where a `Protection` other than a chain holds one. Content that only they needed is dead from now on.
        """
        from holdfast.store.catalog import checkpoint_removal

        removed: list[Checkpoint] = []
        for checkpoint in checkpoints:
            found = self._checkpoints("AND id = ?", checkpoint)
            if found and checkpoint_removal.forget(self.database, self.tenant, found[0], self.clock.now):
                removed += found
        return removed

    def protections(self) -> dict[CheckpointId, list[Protection]]:
        """Every protected checkpoint, with its protections."""
        from holdfast.store.catalog import checkpoint_removal

        with self.database.reading() as transaction:
            return checkpoint_removal.protections(transaction, self.tenant, self.clock.now())

    def protected_by(self, checkpoint: CheckpointId) -> list[Protection]:
        """The protections of one checkpoint."""
        return self.protections().get(checkpoint, [])

    # --- blobs ---

    def known(self, hashes: Iterable[Hash], *, pages: bool = False) -> set[Hash]:
        """Those of ``hashes`` that are stored and may be relied on; with ``pages``, only those known to be pages.

        A page that is not found must be written again even if a file's content has the same bytes: committed as a page,
        it keeps its children as well.
        """
        with self.database.reading(once=True) as transaction:
            return checkpoint_commit.known(transaction, self.tenant, hashes, pages=pages)

    def locate(self, hashes: Iterable[Hash]) -> dict[Hash, BlobLocation]:
        """The places of ``hashes``; those that are not stored, or whose pack's row is lost, are left out."""
        return blob_locations.locate(self.database, self.tenant, self.name, hashes)

    def newest_pack(self) -> str | None:
        """The key of the newest object that holds packs; None if there is none."""
        with self.database.reading(once=True) as transaction:
            row = transaction.one(
                "SELECT key FROM packs WHERE tenant = ? AND spared_until = 0 ORDER BY number DESC LIMIT 1",
                (self.tenant,),
            )
        return row[0] if row else None

    def relocate(self, written: WrittenBlobs) -> int:
        """Note that blobs are where they were ``written`` anew: see `_blob_locations.relocate`."""
        from holdfast.store.catalog._blob_locations import relocate

        with self.database.writing() as transaction:
            return relocate(transaction, self.tenant, written, self.clock.now())

    def generation_of(self, hash: Hash) -> int:  # noqa: A002 - the field's own name
        """The generation for storing a blob of its own now: no process is deleting its key or has just deleted it."""
        with self.database.reading(once=True) as transaction:
            return blob_locations.generation_of(transaction, self.tenant, self.name, hash)

    def pin(
        self, root: Hash, reason: str, *, checkpoint: CheckpointId | None = None, expires_at: int | None = None
    ) -> int:
        """Protect everything below ``root`` from collection, and ``checkpoint`` from being forgotten, until `unpin` or
        ``expires_at``.

        Returns the pin's number. Raises `NotFoundError` if the checkpoint, or the page, no longer exists.
        """
        with self.database.writing() as transaction:
            return self._pin(transaction, root, reason, checkpoint, expires_at)

    def pin_all(self, checkpoints: Iterable[Checkpoint], reason: str) -> None:
        """Protect checkpoints from being forgotten, with all their content, until `unpin_all`. Atomic.

        Raises `NotFoundError` if one of them was forgotten, or is not stored any more.
        """
        with self.database.writing() as transaction:
            for one in checkpoints:
                self._pin(transaction, one.root, reason, one.id, None)

    def _pin(
        self, transaction: Transaction, root: Hash, reason: str, checkpoint: CheckpointId | None, expires_at: int | None
    ) -> int:
        if checkpoint is not None and not transaction.one(
            "SELECT 1 FROM checkpoints WHERE tenant = ? AND id = ?", (self.tenant, checkpoint)
        ):
            raise NotFoundError(
                f"the checkpoint {checkpoint} was forgotten meanwhile",
                hint="list those that are left: holdfast log --all",
            )
        if not count_root(transaction, self.tenant, root):
            raise NotFoundError("what should be kept is gone already")
        row = transaction.one(
            """INSERT INTO pins (tenant, root, checkpoint, reason, expires_at, machine)
            VALUES (?, ?, ?, ?, ?, ?) RETURNING number""",
            (self.tenant, root, checkpoint, reason, expires_at, self.home_id),
        )
        assert row is not None
        return row[0]

    def pinned_root(self, checkpoint: CheckpointId) -> Hash | None:
        """The root that was pinned for a checkpoint, even if that was forgotten; None if none is."""
        with self.database.reading(once=True) as transaction:
            row = transaction.one(
                "SELECT root FROM pins WHERE tenant = ? AND checkpoint = ? LIMIT 1", (self.tenant, checkpoint)
            )
        return row[0] if row else None

    def extend_pin(self, number: int, expires_at: int) -> bool:
        """Keep a pin until ``expires_at``; False if it no longer exists."""
        with self.database.writing() as transaction:
            return bool(
                transaction.run(
                    "UPDATE pins SET expires_at = ? WHERE tenant = ? AND number = ?", (expires_at, self.tenant, number)
                )
            )

    def unpin(self, number: int) -> None:
        """Take a pin away. Harmless a second time."""
        with self.database.writing() as transaction:
            self._unpin(transaction, "number = ?", number)

    def unpin_all(self, reason: str) -> int:
        """Take away every pin of this home with exactly this reason; how many."""
        with self.database.writing() as transaction:
            return self._unpin(transaction, "machine = ? AND reason = ?", self.home_id, reason)

    def unpin_expired(self) -> int:
        """Take away every pin whose time has passed; how many."""
        with self.database.writing() as transaction:
            return self._unpin(transaction, "expires_at <= ?", self.clock.now())

    def is_unused(self, key: str) -> bool:
        """Whether no object that is needed, or was until lately, has this key."""
        with self.database.reading(once=True) as transaction:
            return not transaction.one(
                """SELECT 1 FROM packs WHERE tenant = ? AND key = ?
                UNION ALL SELECT 1 FROM tombstones WHERE tenant = ? AND key = ?""",
                (self.tenant, key, self.tenant, key),
            )

    def has_sessions(self, workspace: WorkspaceId) -> bool:
        """Whether any session works in a workspace."""
        with self.database.reading(once=True) as transaction:
            return bool(
                transaction.one(
                    "SELECT 1 FROM sessions WHERE tenant = ? AND workspace = ? LIMIT 1", (self.tenant, workspace)
                )
            )

    def session_revisions(self, workspace: WorkspaceId) -> int:
        """A number that grows whenever a command of a session in a workspace begins or ends."""
        with self.database.reading(once=True) as transaction:
            found = transaction.one(
                """SELECT coalesce(sum(j.revision), 0) FROM session_journals j
                JOIN sessions s ON s.tenant = j.tenant AND s.id = j.session WHERE s.tenant = ? AND s.workspace = ?""",
                (self.tenant, workspace),
            )
        return 0 if found is None else int(found[0])

    # --- history ---

    def record_event(
        self,
        workspace: WorkspaceId,
        event: HistoryEvent,
        *,
        expected: Cursor,
        head: CheckpointId,
        position: int | None = None,
        redo_tip: int | None = None,
    ) -> Cursor:
        """Append ``event`` (its ``seq`` is assigned) and move the cursor; the new cursor.

        ``position`` None means the event itself, ``redo_tip`` None the new position. Raises `RefusedError` with code
        ``moved`` if the cursor is not ``expected`` any more.
        """
        with self.database.writing() as transaction:
            ours, there = transaction.together(
                [
                    WORKSPACES.question(self.tenant, workspace),
                    ("SELECT 1 FROM checkpoints WHERE tenant = ? AND id = ?", (self.tenant, head)),
                ]
            )
            found = history_rows.check_cursor(workspace, ours, expected)
            if not there:
                raise NotFoundError(f"the checkpoint {head} was forgotten meanwhile")
            row = transaction.one(*history_rows.appending(self.tenant, workspace, event, self._texts))
            assert row is not None
            at = row[0] if position is None else position
            cursor = Cursor(head, at, at if redo_tip is None else redo_tip)
            with transaction.unawaited():
                history_rows.seal_event(transaction, self.tenant, row)
                history_rows.set_cursor(transaction, self.tenant, workspace, found, cursor)
            return cursor

    def events(
        self,
        workspace: WorkspaceId,
        *,
        limit: int | None = None,
        before: int | None = None,
        checkpoint: CheckpointId | None = None,
        run: str | None = None,
    ) -> list[HistoryEvent]:
        """The events of a workspace, newest first, at most ``limit``: all, or those ``before`` an event, with a
        ``checkpoint``, or of a ``run``.
        """
        most = 1 << 62
        wanted = [(name, value) for name, value in (("checkpoint", checkpoint), ("run", run)) if value is not None]
        where, values = "".join(f"AND {name} = ? " for name, _ in wanted), [value for _, value in wanted]
        with self.database.reading(once=True) as transaction:
            return history_rows.events(
                transaction,
                self.tenant,
                self._texts,
                f"AND workspace = ? AND seq < ? {where}ORDER BY seq DESC LIMIT ?",
                *(workspace, most if before is None else before, *values, most if limit is None else limit),
            )

    def names_in_events(self, workspace: WorkspaceId, *, after: int = 0) -> list[tuple[int, CheckpointId, str]]:
        """Number, checkpoint and run of the events of a workspace that came ``after`` one, the first first: a fifth of
        what `events` costs.
        """
        with self.database.reading(once=True) as transaction:
            return transaction.all(
                "SELECT seq, checkpoint, run FROM history WHERE tenant = ? AND workspace = ? AND seq > ? ORDER BY seq",
                (self.tenant, workspace, after),
            )

    def event(self, seq: int) -> HistoryEvent:
        """One event; raises `NotFoundError` if there is none with this number."""
        with self.database.reading(once=True) as transaction:
            found = history_rows.events(transaction, self.tenant, self._texts, "AND seq = ?", seq)
        if not found:
            raise NotFoundError(f"no event {seq} in the history")
        return found[0]

    # --- all of it ---

    def stats(self) -> Stats:
        """Count everything. Settle first for exact numbers; a page that waits for it may count as dead here."""
        from holdfast.store.catalog import usage_statistics

        with self.database.reading() as transaction:
            return usage_statistics.stats(transaction, self.tenant, self.database.size())

    def used_bytes(self) -> int:
        """The size of blobs, pages and packs in the object store. Cheap: it reads packs and large blobs alone."""
        from holdfast.store.catalog import usage_statistics

        with self.database.reading(once=True) as transaction:
            return usage_statistics.used_bytes(transaction, self.tenant)

    def close(self) -> None:
        """Close the database."""
        self.database.close()

    def _workspaces(self, where: str = "", *values: object) -> list[WorkspaceRow]:
        with self.database.reading(once=True) as transaction:
            return workspace_rows.find(transaction, self.tenant, where, *values)

    def _checkpoints(self, rest: str, *values: object) -> list[Checkpoint]:
        with self.database.reading(once=True) as transaction:
            rows = transaction.all(
                f"SELECT {_CHECKPOINT} FROM checkpoints WHERE tenant = ? {rest}", (self.tenant, *values)
            )
        return [self._checkpoint(row) for row in rows]

    def _checkpoint(self, row: Row) -> Checkpoint:
        (*first, added, modified, deleted, files, size, new, stored, missed, author, message, command) = row
        name, workspace, parent, root, kind, label, at = first
        labels, changes, provenance = (
            split_labels(label),
            Counts(added, modified, deleted),
            self._texts.open_provenance(name, author, message, command),
        )
        return Checkpoint(
            name, workspace, parent, root, kind, labels, at, changes, files, size, new, stored, missed, provenance
        )

    def _unpin(self, transaction: Transaction, where: str, *values: int | str) -> int:
        rows = transaction.all(f"SELECT number, root FROM pins WHERE tenant = ? AND {where}", (self.tenant, *values))
        if rows:
            now = moment(transaction, self.tenant, self.clock.now())
            for number, root in rows:
                transaction.run("DELETE FROM pins WHERE number = ?", (number,))
                uncount_root(transaction, self.tenant, root, now)
        return len(rows)
