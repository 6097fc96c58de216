"""The tables and columns that the migration to version 5 makes: homes, merges, promotions, exports, stores.

Part of schema version 5. The comments in the SQL are the reference of the format; docs/formats/catalog.md explains it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.store.catalog.row_checksums import SESSIONS, WORKSPACES, damaged, set_checksum

if TYPE_CHECKING:
    from holdfast.store.catalog.row_checksums import ChecksummedTable
    from holdfast.store.database.sql_database import Transaction

SERVING = (
    """
-- Workspaces that are served, each under a name.
CREATE TABLE exports (
  tenant INTEGER NOT NULL REFERENCES tenants (number),
  name TEXT NOT NULL,               -- 1 to 64 letters, digits, _, -, and . between others
  kind TEXT NOT NULL,               -- how its tree is reached: directory
  workspace TEXT NOT NULL,          -- workspaces.id
  project TEXT NOT NULL,            -- what it belongs to, with others; empty for nothing
  auto INTEGER NOT NULL,            -- 1: it is saved by itself
  mode TEXT NOT NULL,               -- development; production: saved only when somebody asks for it
  created_at INTEGER NOT NULL,
  revision INTEGER NOT NULL,        -- grows with every change
  checksum BLOB,
  PRIMARY KEY (tenant, name),
  FOREIGN KEY (tenant, workspace) REFERENCES workspaces (tenant, id)
)""",
    "CREATE UNIQUE INDEX exports_workspace ON exports (tenant, workspace)",
    "CREATE INDEX exports_project ON exports (tenant, project, name)",
    """
-- Who may ask for what. A token is hft_, id, _ and a secret of 64 hex digits, which is nowhere.
CREATE TABLE tokens (
  tenant INTEGER NOT NULL REFERENCES tenants (number),
  id TEXT NOT NULL,                 -- 16 hex digits, random
  digest BLOB NOT NULL,             -- BLAKE3 of the secret's text: 32 bytes
  rights TEXT NOT NULL,             -- read; write: and read; admin: and write
  exports TEXT NOT NULL,            -- the names of those it is for, each with a line feed behind it; empty: all
  roots BLOB NOT NULL,              -- directories below which it may make exports, each with a zero byte behind it
  label TEXT NOT NULL,              -- for people
  created_at INTEGER NOT NULL,
  expires_at INTEGER,               -- NULL: never
  checksum BLOB,
  PRIMARY KEY (tenant, id)
)""",
    "CREATE UNIQUE INDEX tokens_id ON tokens (id)",
    """
-- What was answered to a request that had a key, for whoever asks the same again.
CREATE TABLE answers (
  tenant INTEGER NOT NULL REFERENCES tenants (number),
  name TEXT NOT NULL,               -- the token's id, a slash, the key
  request BLOB NOT NULL,            -- hash of method, path and body
  status INTEGER,                   -- of HTTP; NULL while it is being worked on
  body BLOB NOT NULL,               -- JSON; empty while it is being worked on
  owner TEXT NOT NULL,              -- the process that works on it, as store/catalog/work_lease.py writes it;
                                    -- empty if it has given up without knowing how far it came
  at INTEGER NOT NULL,              -- when that began
  checksum BLOB,
  PRIMARY KEY (tenant, name)
)""",
    "CREATE INDEX answers_at ON answers (tenant, at)",
)


# Homes: the column `machine` says which home a row belongs to, where several homes share a catalog. Two machines may
# have the same path, and even the same device and inode, for directories that have nothing in common.

_HOMES = tuple(
    f"ALTER TABLE {table} ADD COLUMN machine TEXT NOT NULL DEFAULT '' "
    f"/* {meaning}: 32 hex digits; empty in a catalog that one home has for itself */"
    for table, meaning in (
        ("workspaces", "the home, on its machine, that it belongs to"),
        ("sessions", "likewise"),
        ("pins", "the home that has the work"),
    )
)

VERSION_5 = (
    *_HOMES,
    "DROP INDEX workspaces_path",
    # One live workspace per path of a machine; one that was let go may have been there before it.
    "CREATE UNIQUE INDEX workspaces_path ON workspaces (tenant, machine, path) WHERE live = 1",
    """
-- Where the objects of a tenant are, in a catalog that several homes share. (Beside its own a home has objects.url.)
CREATE TABLE object_places (
  tenant INTEGER NOT NULL REFERENCES tenants (number),
  url BLOB NOT NULL,                -- as in store.url; of a directory, the machine, a space and the path
  token TEXT NOT NULL,              -- 32 hex digits: the object store holds catalogs/{tenant's name}/{token}
  PRIMARY KEY (tenant)
)""",
)

WORKSPACES_1 = WORKSPACES._replace(columns=WORKSPACES.columns.removesuffix(", machine"))
SESSIONS_4 = SESSIONS._replace(columns=SESSIONS.columns.removesuffix(", machine"))
"""As versions 2 to 4 cover them."""


def add_homes(transaction: Transaction) -> None:
    """Part of the step to version 5. Rows that are damaged stay so."""
    sound = [
        (now, tenant, key)
        for before, now in ((WORKSPACES_1, WORKSPACES), (SESSIONS_4, SESSIONS))
        for tenant, keys in _sound(transaction, before).items()
        for key in keys
    ]
    for statement in VERSION_5:
        transaction.run(statement)
    for covered, tenant, key in sound:
        set_checksum(transaction, covered, tenant, key)


def _sound(transaction: Transaction, covered: ChecksummedTable) -> dict[int, list[str]]:
    """By tenant, the keys of the rows of a table whose checksums match."""
    found: dict[int, list[str]] = {}
    for tenant, name in transaction.all(f"SELECT tenant, {covered.key} FROM {covered.table}"):
        found.setdefault(tenant, []).append(name)
    for tenant, names in found.items():
        wrong = set(damaged(transaction, covered, tenant))
        found[tenant] = [name for name in names if name not in wrong]
    return found


# Merges: what states have taken in of other lines of work, and changes to be applied anew.

MERGES = (
    """
-- Second parents: what checkpoints hold of other lines of work.
CREATE TABLE merges (
  tenant INTEGER NOT NULL,
  id TEXT NOT NULL,                 -- checkpoint and other, with a space between them
  checkpoint TEXT NOT NULL,         -- checkpoints.id: the state that holds all of both
  other TEXT NOT NULL,              -- checkpoints.id: the state of the other line that was taken in
  base TEXT NOT NULL,               -- checkpoints.id: since when changes were looked at; it may be forgotten since
  created_at INTEGER NOT NULL,
  record TEXT NOT NULL,             -- how each file that both have changed came to be, as docs/merge.md says; empty
                                    -- for nothing, or if the row was inherited from a checkpoint that is forgotten
  checksum BLOB,
  PRIMARY KEY (tenant, id),
  FOREIGN KEY (tenant, checkpoint) REFERENCES checkpoints (tenant, id)
)""",
    "CREATE INDEX merges_checkpoint ON merges (tenant, checkpoint)",
    "CREATE INDEX merges_other ON merges (tenant, other)",
    """
-- Small changes that wait for an agent or a person to apply them to content that another line has changed as well.
CREATE TABLE reapplies (
  tenant INTEGER NOT NULL REFERENCES tenants (number),
  id TEXT NOT NULL,                 -- 32 hex digits: the hash of what is asked, so that the same is asked once
  workspace TEXT NOT NULL,          -- workspaces.id: where it is to be merged into
  path BLOB NOT NULL,               -- of the file, in there
  about TEXT NOT NULL,              -- what surrounds the change, as a JSON object (docs/merge.md)
  now BLOB,                         -- content to apply it to; NULL: no file
  before BLOB,                      -- content that the change found; NULL: no file
  after BLOB,                       -- content that it left; NULL: no file
  status TEXT NOT NULL,             -- open, answered, declined
  holder TEXT NOT NULL,             -- the token of whoever works on it; empty for nobody
  held_until INTEGER NOT NULL,      -- while it is open: when somebody else may take it
  deadline INTEGER NOT NULL,        -- an open one that is older counts as declined
  answer BLOB,                      -- once answered: the new content; NULL: no file
  said TEXT NOT NULL,               -- why it was declined, or by whom it was answered
  created_at INTEGER NOT NULL,
  checksum BLOB,
  PRIMARY KEY (tenant, id)
)""",
    "CREATE INDEX reapplies_open ON reapplies (tenant, status, created_at)",
)
"""The additions of version 5 of the schema for merges."""


# Promotions.

PROMOTIONS = (
    """
-- Promotions, under way and done: what each is to do, and how far it is. A row is written before what it speaks of.
CREATE TABLE promotions (
  tenant INTEGER NOT NULL REFERENCES tenants (number),
  id TEXT NOT NULL,                 -- 16 hex digits
  workspace TEXT NOT NULL,          -- workspaces.id of production
  phase TEXT NOT NULL,              -- building: production is untouched; swapping, swapped, ended
  result TEXT NOT NULL,             -- once it has ended: promoted, unchanged, needs_reapply, build_failed, failed
  source TEXT NOT NULL,             -- workspaces.id of the fork; empty where a checkpoint was named
  theirs TEXT NOT NULL,             -- checkpoints.id: what is promoted
  spec TEXT NOT NULL,               -- what was asked for, as a JSON object; never changes
  facts TEXT NOT NULL,              -- what is known by now, as a JSON object
  revision INTEGER NOT NULL,        -- grows with every change
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  checksum BLOB,
  PRIMARY KEY (tenant, id)
)""",
    "CREATE INDEX promotions_workspace ON promotions (tenant, workspace, created_at)",
)


# Stores: the id of each, its claimed bucket, and its origin if it is a copy.

STORES = (
    """
-- What a tenant's store is called where its objects are, once it has had to do with a bucket or a copy.
CREATE TABLE stores (
  tenant INTEGER PRIMARY KEY REFERENCES tenants (number),
  id TEXT NOT NULL,                 -- 32 hex digits; what the claim in a bucket says
  claimed TEXT NOT NULL,            -- the URL of the bucket that is claimed; empty for none
  conditional TEXT NOT NULL,        -- whether its server has conditional writes: yes, no, wrong; empty: not tried
  origin TEXT NOT NULL,             -- the id of the store that this one is a copy of; empty for none
  copied INTEGER NOT NULL,          -- of a copy: 1 once it is whole; else 0
  checksum BLOB
)""",
)
