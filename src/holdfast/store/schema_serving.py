"""The catalog's tables of what is served: exports, tokens, and the answers that are kept for who asks again.

Part of schema version 5. The comments in the SQL are the reference of the format; docs/formats/catalog.md explains it.
"""

from __future__ import annotations

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
  owner TEXT NOT NULL,              -- the process that works on it, as store/lease.py writes it;
                                    -- empty if it has given up without knowing how far it came
  at INTEGER NOT NULL,              -- when that began
  checksum BLOB,
  PRIMARY KEY (tenant, name)
)""",
    "CREATE INDEX answers_at ON answers (tenant, at)",
)
