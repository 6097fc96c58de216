"""The catalog's tables. The comments in the SQL are the reference of the format; `docs/formats/catalog.md` explains it.

Every row belongs to a tenant and every query names one (I10). Times are microseconds since 1970-01-01 UTC.
"""

from __future__ import annotations

from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.store.catalog.row_checksums import COVERED, HISTORY, WORKSPACES, damaged, set_checksum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.store.catalog.row_checksums import ChecksummedTable
    from holdfast.store.database.sql_database import Transaction

APPLICATION_ID = 0x48464354
"""``HFCT``: marks the SQLite file as a catalog of Holdfast."""

BLOB, PAGE, BASE = 0, 1, 2
"""``blobs.kind``: content; a page of a manifest; a former page, kept only as the base of a delta."""

UNCOUNTED, COUNTED, UNMARKED = 0, 1, 2
"""``blobs.counted``: whether a page's children hold its count; UNMARKED: not even its time of death."""

PENDING = "kind = 1 AND ((refs > 0 AND counted <> 1) OR (refs = 0 AND counted <> 0))"
"""Pages whose children's counts lag behind. Word for word the condition of the index ``blobs_pending``."""

DEAD_PAGE = "kind = 1 AND refs = 0"
"""Pages that nothing counts. Word for word the condition of the index ``pages_dead``."""

SEVERAL_LABELS = "label LIKE '%\n%'"
"""Checkpoints with more than one label. Word for word the condition of the index ``checkpoints_labels``."""

_VERSION_1 = (
    """
-- Those who share a catalog but not a byte. Its number stands in every other table.
CREATE TABLE tenants (
  number INTEGER PRIMARY KEY,       -- small, to keep rows small
  name TEXT NOT NULL UNIQUE,        -- as in object keys
  swept INTEGER NOT NULL,           -- grows with every transaction of collection that takes a blob away
  latest INTEGER NOT NULL           -- the latest time in blobs.dead_since
)""",
    """
-- The directory trees that Holdfast remembers, and where each stands in its own history.
CREATE TABLE workspaces (
  tenant INTEGER NOT NULL REFERENCES tenants (number),
  id TEXT NOT NULL,                 -- 16 hex digits
  path BLOB NOT NULL,               -- the real path when last seen, in the file system's encoding; then, if another
                                    -- live workspace is there now, a zero byte and the id
  device INTEGER NOT NULL,          -- of the root directory when last seen
  inode INTEGER NOT NULL,           -- likewise
  created_at INTEGER NOT NULL,
  source TEXT,                      -- the checkpoint that it was forked from
  live INTEGER NOT NULL,            -- 1, or 0 once the user has let it go
  head TEXT,                        -- the checkpoint that the tree was last known to be
  position INTEGER,                 -- the event whose state the tree is in
  redo_tip INTEGER,                 -- the event that repeated redo leads to
  PRIMARY KEY (tenant, id)
)""",
    # One live workspace per path; one that was let go may have been there before it.
    "CREATE UNIQUE INDEX workspaces_path ON workspaces (tenant, path) WHERE live = 1",
    """
-- The states that are kept. Numbers grow in the order of recording: newest first is by number, whatever the clock did.
CREATE TABLE checkpoints (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  tenant INTEGER NOT NULL REFERENCES tenants (number),
  id TEXT NOT NULL,                 -- 24 hex digits
  workspace TEXT NOT NULL,          -- workspaces.id
  parent TEXT,                      -- the one that the changeset is against; of a fork's first, another workspace's
  root BLOB NOT NULL,               -- hash of the root page; counted in blobs.refs
  kind TEXT NOT NULL,               -- manual, auto, rescue, run, fork, import
  label TEXT NOT NULL,              -- empty for none
  created_at INTEGER NOT NULL,
  added INTEGER NOT NULL,           -- paths that the changeset adds
  modified INTEGER NOT NULL,
  deleted INTEGER NOT NULL,
  total_files INTEGER NOT NULL,     -- entries of the manifest
  total_bytes INTEGER NOT NULL,     -- sum of their sizes
  new_blobs INTEGER NOT NULL,       -- blobs that this checkpoint was the first to store
  stored_bytes INTEGER NOT NULL,    -- bytes that it added to the object store
  not_captured INTEGER NOT NULL,    -- how many rows in not_captured
  author TEXT NOT NULL,             -- who
  message TEXT NOT NULL,            -- why
  command TEXT NOT NULL,            -- what was about to run or had run
  UNIQUE (tenant, id),
  FOREIGN KEY (tenant, workspace) REFERENCES workspaces (tenant, id)
)""",
    "CREATE INDEX checkpoints_workspace ON checkpoints (tenant, workspace, number)",
    "CREATE INDEX checkpoints_parent ON checkpoints (tenant, parent)",
    "CREATE INDEX checkpoints_label ON checkpoints (tenant, label) WHERE label <> ''",
    """
-- What a checkpoint changed against its parent. No row: no parent, everything is added.
CREATE TABLE changesets (
  tenant INTEGER NOT NULL,
  checkpoint TEXT NOT NULL,
  data BLOB NOT NULL,               -- as docs/formats/changeset.md says
  PRIMARY KEY (tenant, checkpoint),
  FOREIGN KEY (tenant, checkpoint) REFERENCES checkpoints (tenant, id)
)""",
    """
-- Paths that a checkpoint does not hold, sorted by path.
CREATE TABLE not_captured (
  tenant INTEGER NOT NULL,
  checkpoint TEXT NOT NULL,
  place INTEGER NOT NULL,           -- 0, 1, 2, ... in the order of the paths
  path BLOB NOT NULL,
  reason TEXT NOT NULL,
  PRIMARY KEY (tenant, checkpoint, place),
  FOREIGN KEY (tenant, checkpoint) REFERENCES checkpoints (tenant, id)
)""",
    """
-- Immutable objects that hold many blobs. A row is here while its object may be read.
CREATE TABLE packs (
  number INTEGER PRIMARY KEY AUTOINCREMENT,  -- what blobs.pack says; never used again
  tenant INTEGER NOT NULL REFERENCES tenants (number),
  id TEXT NOT NULL,                 -- 32 hex digits
  key TEXT NOT NULL,                -- the object's key
  size INTEGER NOT NULL,            -- of the object
  created_at INTEGER NOT NULL,
  spared_until INTEGER NOT NULL,    -- 0: sealed, no blob will be added any more. Else: rows are added ahead of the
                                    -- commit that seals it; until then collection leaves it and them alone
  UNIQUE (tenant, id),
  UNIQUE (tenant, key)
)""",
    """
-- Every blob and page that is stored, and how many things stand on it. A row says: the object can be read.
CREATE TABLE blobs (
  tenant INTEGER NOT NULL,
  hash BLOB NOT NULL,               -- 16 bytes
  kind INTEGER NOT NULL,            -- 0 content, 1 page, 2 former page that only deltas need
  size INTEGER NOT NULL,            -- bytes of content
  codec INTEGER NOT NULL,           -- as docs/formats/pack.md says
  base BLOB,                        -- for a delta: the hash of the blob it stands on, never itself a delta
  pack INTEGER,                     -- packs.number; NULL for an object of its own
  place INTEGER NOT NULL,           -- offset of the stored bytes in the pack; 0 for an object of its own
  length INTEGER NOT NULL,          -- stored bytes
  generation INTEGER NOT NULL,      -- of an object of its own: which of its keys holds it
  refs INTEGER NOT NULL,            -- checkpoints and pins with this root, plus counted pages that name it
  deltas INTEGER NOT NULL,          -- rows whose base this is
  counted INTEGER NOT NULL,         -- of a page: 1 its children hold its count; 0 they do not; 2 they do not, and their
                                    -- dead_since may be before its own. A new page has 2
  dead_since INTEGER NOT NULL,      -- with refs 0: since when. Never before that of a dead page that names it
  PRIMARY KEY (tenant, hash)
) WITHOUT ROWID""",
    "CREATE INDEX blobs_alone ON blobs (tenant, length) WHERE pack IS NULL",
    f"CREATE INDEX blobs_pending ON blobs (tenant, refs) WHERE {PENDING}",
    f"CREATE INDEX pages_dead ON blobs (tenant, dead_since) WHERE {DEAD_PAGE}",
    """
-- Object keys that collection has condemned. A commit that would use one is refused, so that a key that is being
-- deleted is never in use. Kept for a week after the deletion, in case a stalled process still has it before it.
CREATE TABLE tombstones (
  tenant INTEGER NOT NULL REFERENCES tenants (number),
  key TEXT NOT NULL,
  size INTEGER NOT NULL,            -- of the object, to say what was freed
  deleted_at INTEGER,               -- NULL: the object may still be there
  PRIMARY KEY (tenant, key)
)""",
    "CREATE INDEX tombstones_open ON tombstones (tenant, key) WHERE deleted_at IS NULL",
    """
-- What happened to the workspaces' trees; appended to, never changed (I6).
CREATE TABLE history (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  tenant INTEGER NOT NULL,
  workspace TEXT NOT NULL,
  at INTEGER NOT NULL,
  operation TEXT NOT NULL,          -- checkpoint, restore, undo, redo, fork
  checkpoint TEXT NOT NULL,         -- the state that the tree was in afterwards; it may be forgotten since
  previous INTEGER,                 -- the event whose state this one replaced; NULL on undo and redo
  FOREIGN KEY (tenant, workspace) REFERENCES workspaces (tenant, id)
)""",
    "CREATE INDEX history_workspace ON history (tenant, workspace, seq)",
    """
-- What running work stands on: restores, mounts, exports. A pin counts its root.
CREATE TABLE pins (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  tenant INTEGER NOT NULL REFERENCES tenants (number),
  root BLOB NOT NULL,               -- a root page
  checkpoint TEXT,                  -- the checkpoint that must not be forgotten either
  reason TEXT NOT NULL,             -- for people
  expires_at INTEGER                -- NULL: until it is taken away
)""",
    "CREATE INDEX pins_root ON pins (tenant, root)",
    """
-- Work that only one process may do at a time.
CREATE TABLE leases (
  tenant INTEGER NOT NULL REFERENCES tenants (number),
  name TEXT NOT NULL,               -- collection
  owner TEXT NOT NULL,              -- the process, as store/catalog/work_lease.py writes it
  expires_at INTEGER NOT NULL,
  PRIMARY KEY (tenant, name)
)""",
)

_VERSION_4 = (
    """
-- Shells that remember, and where each works.
CREATE TABLE sessions (
  tenant INTEGER NOT NULL REFERENCES tenants (number),
  id TEXT NOT NULL,                 -- 1 to 64 letters, digits, _, -, and . between others
  parent TEXT,                      -- the session that it was forked from; it may be deleted since
  owner TEXT NOT NULL,              -- the agent or user whose it is
  shared TEXT NOT NULL,             -- the names of others who may use it, each with a line feed behind it
  workspace TEXT,                   -- workspaces.id; NULL while its directory is being made
  origin TEXT,                      -- of a fork: the workspace that it was forked from, at which the provider is asked
  provider TEXT NOT NULL,           -- what made its directory: a snapshot provider, plain, or empty for nobody
  mode TEXT NOT NULL,               -- in-place, worktree, overlay
  token TEXT NOT NULL,              -- what the provider calls the directory; empty for none
  place BLOB,                       -- with provider plain: the directory that is made, or is to be
  purpose TEXT NOT NULL,            -- session, fork, experiment
  status TEXT NOT NULL,             -- making; live; going: it is being deleted
  created_at INTEGER NOT NULL,
  checksum BLOB,
  PRIMARY KEY (tenant, id)
)""",
    "CREATE INDEX sessions_workspace ON sessions (tenant, workspace)",
    """
-- What has happened in each session since the session checkpoint that its HEAD names.
CREATE TABLE session_journals (
  tenant INTEGER NOT NULL,
  session TEXT NOT NULL,
  data BLOB NOT NULL,               -- as docs/formats/session.md says
  entries INTEGER NOT NULL,         -- how many are in it
  through INTEGER NOT NULL,         -- the number of the last command that HEAD's checkpoint holds
  last_seq INTEGER NOT NULL,        -- that of the last command
  trees TEXT NOT NULL,              -- checkpoints.id of the trees that the entries name, with spaces between them
  revision INTEGER NOT NULL,        -- grows with every change
  updated_at INTEGER NOT NULL,
  checksum BLOB,
  PRIMARY KEY (tenant, session),
  FOREIGN KEY (tenant, session) REFERENCES sessions (tenant, id)
)""",
    """
-- States of sessions that are kept. A row never changes, but for where the content is and whether the tree is held.
CREATE TABLE session_checkpoints (
  tenant INTEGER NOT NULL,
  hash TEXT NOT NULL,               -- 32 hex digits: of the content
  session TEXT NOT NULL,
  parent TEXT,                      -- the one before it; it may be deleted since
  kind TEXT NOT NULL,               -- auto, manual, fork, branch
  message TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  seq INTEGER NOT NULL,             -- the number of the last command in it
  tree TEXT NOT NULL,               -- checkpoints.id
  kept INTEGER NOT NULL,            -- 1: the tree is held back from retention; 0: it may be gone
  tier TEXT NOT NULL,               -- hot: in data; warm: in the object store; cold: in the cold one
  size INTEGER NOT NULL,            -- bytes of the content
  stored INTEGER NOT NULL,          -- bytes as they are stored
  data BLOB,                        -- while it is hot: as docs/formats/session.md says
  checksum BLOB,
  PRIMARY KEY (tenant, hash),
  FOREIGN KEY (tenant, session) REFERENCES sessions (tenant, id)
)""",
    "CREATE INDEX session_checkpoints_session ON session_checkpoints (tenant, session, created_at)",
    "CREATE INDEX session_checkpoints_tier ON session_checkpoints (tenant, tier, created_at)",
    """
-- Names for them, changed by compare and swap.
CREATE TABLE session_refs (
  tenant INTEGER NOT NULL,
  name TEXT NOT NULL,               -- sessions/ID/HEAD, branches/ID/NAME, forks/ID, experiments/ID
  type TEXT NOT NULL,               -- head, branch, fork, experiment
  session TEXT NOT NULL,
  checkpoint TEXT NOT NULL,         -- session_checkpoints.hash
  updated_at INTEGER NOT NULL,
  metadata TEXT NOT NULL,           -- texts by name, as a JSON object
  checksum BLOB,
  PRIMARY KEY (tenant, name),
  FOREIGN KEY (tenant, session) REFERENCES sessions (tenant, id),
  FOREIGN KEY (tenant, checkpoint) REFERENCES session_checkpoints (tenant, hash)
)""",
    "CREATE INDEX session_refs_session ON session_refs (tenant, session)",
    "CREATE INDEX session_refs_checkpoint ON session_refs (tenant, checkpoint)",
)


_HISTORY_2 = HISTORY._replace(columns="seq, tenant, workspace, at, operation, checkpoint, previous")
"""As version 2 covers it."""
_HISTORY_3 = HISTORY._replace(columns=f"{_HISTORY_2.columns}, ahead, steps, run")
"""As versions 3 to 5 cover it."""
_HISTORY_6 = HISTORY._replace(columns=f"{_HISTORY_3.columns}, undo_seq")


def _create(transaction: Transaction) -> None:
    for statement in _VERSION_1:
        transaction.run(statement)


def _add_checksums(transaction: Transaction) -> None:
    """To version 2. The present values are taken as correct: nothing can contradict them."""
    from holdfast.store.catalog._version_5_tables import WORKSPACES_1

    for covered in (_HISTORY_2 if one is HISTORY else WORKSPACES_1 if one is WORKSPACES else one for one in COVERED):
        transaction.run(
            f"ALTER TABLE {covered.table} ADD COLUMN "
            "checksum BLOB                   /* of the row's other columns, as docs/formats/catalog.md says */"
        )
        for tenant, key in transaction.all(f"SELECT {covered.tenant}, {covered.key} FROM {covered.table}"):
            set_checksum(transaction, covered, tenant, key)


def _add_steps(transaction: Transaction) -> None:
    """To version 3."""
    columns = (
        "ahead INTEGER                   /* of a state that an undo made: the event that it was undone from */",
        "steps TEXT NOT NULL DEFAULT ''  /* steps of the undo log, in decimal, with spaces between them */",
        "run TEXT NOT NULL DEFAULT ''    /* of operation run: which one begins or ends */",
    )
    _extend_history(transaction, columns, _HISTORY_2, _HISTORY_3)


def _add_undo_seq(transaction: Transaction) -> None:
    """To version 6."""
    columns = ("undo_seq INTEGER                /* the undo log had given out this number by then; NULL: not known */",)
    _extend_history(transaction, columns, _HISTORY_3, _HISTORY_6)


def _add_prompts_and_labels(transaction: Transaction) -> None:
    """To version 7, in which ``checkpoints.label`` may hold several labels, with line feeds between them."""
    transaction.run(f"CREATE INDEX checkpoints_labels ON checkpoints (tenant, number) WHERE {SEVERAL_LABELS}")
    columns = (
        "author TEXT NOT NULL DEFAULT '' /* of operation prompt: the agent that was asked */",
        "text TEXT NOT NULL DEFAULT ''   /* of prompt: what was asked for; of run: the command line */",
    )
    _extend_history(transaction, columns, _HISTORY_6, HISTORY)


def _extend_history(
    transaction: Transaction, columns: Sequence[str], before: ChecksummedTable, after: ChecksummedTable
) -> None:
    """Add columns to the history, whose checksums cover them from then on. Rows that are damaged stay so."""
    rows = transaction.all("SELECT tenant, seq FROM history")
    wrong = {(tenant, seq) for tenant in {tenant for tenant, _ in rows} for seq in damaged(transaction, before, tenant)}
    for column in columns:
        transaction.run(f"ALTER TABLE history ADD COLUMN {column}")
    for tenant, seq in rows:
        if (tenant, seq) not in wrong:
            set_checksum(transaction, after, tenant, seq)


def _add_sessions(transaction: Transaction) -> None:
    """To version 4."""
    for statement in _VERSION_4:
        transaction.run(statement)


def _version_5(transaction: Transaction) -> None:
    """To version 5."""
    from holdfast.store.catalog._version_5_tables import MERGES, PROMOTIONS, SERVING, STORES, add_homes

    add_homes(transaction)
    for statement in (*STORES, *MERGES, *PROMOTIONS, *SERVING):
        transaction.run(statement)


def _encrypt_texts(transaction: Transaction) -> None:
    """To version 8, in which texts may be encrypted (`text_encryption`). A process of an earlier version, which would
    go on to write them as they are, is refused its next write.
    """


MIGRATIONS = (
    *(_create, _add_checksums, _add_steps, _add_sessions, _version_5, _add_undo_seq, _add_prompts_and_labels),
    _encrypt_texts,
)
"""Step n leads from schema version n to n + 1."""

OWN_OBJECT = """packs.key IN (SELECT 'checkpoints/' || tenants.name || '/' || checkpoints.id || '.manifest.lz4'
    FROM checkpoints JOIN tenants ON tenants.number = checkpoints.tenant WHERE checkpoints.tenant = ?)"""
"""Objects of checkpoints that are there: their headers are needed, though no row names them (see `pages_key`).
Takes the tenant.
"""
