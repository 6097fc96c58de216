"""The catalog's table of promotions, which came with schema version 5. The comments in the SQL are the reference."""

from __future__ import annotations

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
