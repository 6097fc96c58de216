"""The catalog's tables of merges: what states have taken in of other lines of work, and changes to be applied anew.

As in `holdfast.store.schema`, the comments in the SQL are the reference of the format.
"""

from __future__ import annotations

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
"""What version 5 of the schema adds for merges."""
