"""The catalog's rows of machines, which came with version 5: whose a workspace is where several homes share a catalog.

Two machines may have the same path, and even the same device and inode, for directories that have nothing in common.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.store.checksums import SESSIONS, WORKSPACES, damaged, set_checksum

if TYPE_CHECKING:
    from holdfast.store.checksums import Covered
    from holdfast.store.database import Session

_MACHINES = tuple(
    f"ALTER TABLE {table} ADD COLUMN machine TEXT NOT NULL DEFAULT '' "
    f"/* {meaning}: 32 hex digits; empty in a catalog that one home has for itself */"
    for table, meaning in (
        ("workspaces", "the home, on its machine, that it belongs to"),
        ("sessions", "likewise"),
        ("pins", "the home that has the work"),
    )
)

VERSION_5 = (
    *_MACHINES,
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


def add_machines(session: Session) -> None:
    """Part of the step to version 5. Rows that are damaged stay so."""
    sound = [
        (now, tenant, key)
        for before, now in ((WORKSPACES_1, WORKSPACES), (SESSIONS_4, SESSIONS))
        for tenant, keys in _sound(session, before).items()
        for key in keys
    ]
    for statement in VERSION_5:
        session.run(statement)
    for covered, tenant, key in sound:
        set_checksum(session, covered, tenant, key)


def _sound(session: Session, covered: Covered) -> dict[int, list[str]]:
    """By tenant, the keys of the rows of a table whose checksums match."""
    found: dict[int, list[str]] = {}
    for tenant, name in session.all(f"SELECT tenant, {covered.key} FROM {covered.table}"):
        found.setdefault(tenant, []).append(name)
    for tenant, names in found.items():
        wrong = set(damaged(session, covered, tenant))
        found[tenant] = [name for name in names if name not in wrong]
    return found
