"""The catalog's table of what the store itself is: its id, which bucket it has claimed, what it was copied from."""

from __future__ import annotations

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
