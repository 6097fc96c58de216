"""Restores a damaged or lost catalog of a home: from its newest spare, and from the objects.

docs/formats/catalog.md ("Repair") specifies the steps. The result is a new file, from constant inputs, which replaces
the damaged one at the end: after a kill at any point, repeating it gives the same.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import struct
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final

from holdfast.model.checkpoint import Checkpoint, HistoryEvent, Provenance
from holdfast.model.entries import Counts, count_changes
from holdfast.model.errors import HoldfastError, LockedError, RefusedError, StorageError, UnsupportedError, room_hint
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.ids import new_pack_id, new_workspace_id
from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.store import catalog_spare
from holdfast.store._object_scan import ObjectScan
from holdfast.store.catalog.catalog import Catalog
from holdfast.store.catalog.reference_counts import moment
from holdfast.store.catalog.row_checksums import (
    CHECKPOINTS,
    SESSION_CHECKPOINTS,
    WORKSPACES,
    changing,
    set_checksum,
)
from holdfast.store.catalog.schema import APPLICATION_ID, BASE, BLOB, MIGRATIONS, PAGE, UNCOUNTED, UNMARKED
from holdfast.store.catalog_records import CheckpointCommit, MergeParent, WorkspaceRow, displaced_path, pages_key
from holdfast.store.codecs.changeset import encode_changeset
from holdfast.store.database.sql_database import SqliteDatabase
from holdfast.store.identity import object_store_binding
from holdfast.store.manifests import manifest
from holdfast.store.manifests.checkpoint_header import CheckpointHeader
from holdfast.store.objects.configured_store import assemble, open_objects
from holdfast.store.store import CATALOG, OBJECTS, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.model.clock import Clock
    from holdfast.model.config.settings import Settings
    from holdfast.model.ids import CheckpointId, Hash
    from holdfast.store.database.sql_database import Row, Transaction
    from holdfast.store.objects.object_store import ObjectStore

_NEW: Final = b".repaired"
_LOGS: Final = (b"-wal", b"-shm", b"-journal")
_BEFORE: Final = 600 * 1_000_000
"""Microseconds before the spare: a checkpoint that began then may not be in it."""
_RECOVERED: Final = b"recovered"
# SQLite's own locks on a database file (https://sqlite.org/src/file/src/os.h): pending, reserved, shared.
_LOCKED_AT, _LOCKED_BYTES = 0x40000000, 512
_F_OFD_SETLK: Final = 37
_FLOCK: Final = struct.Struct("@hhqqi4x")
_LOG = Log(__name__)


class RepairedCatalog(NamedTuple):
    """The result of a repair."""

    damage: str
    """The damage."""
    spare: int | None
    """The time of the spare that it began with, in microseconds since 1970-01-01 UTC."""
    checkpoints: int
    """How many there are now."""
    brought_back: int
    """How many of them came from headers, or from manifests alone."""
    lost: int
    """Headers of incomplete checkpoints, and unreadable objects."""
    kept_as: bytes | None
    """The directory with the damaged file; None if there was none."""
    problems: int
    """The number of problems that `verify` finds in the new one."""


def damage_of(home: bytes) -> str | None:
    """The damage of the home's own catalog; None if it is intact, or the home never had one."""
    path = os.path.join(home, CATALOG)
    try:
        if not os.path.getsize(path):
            raise FileNotFoundError
    except FileNotFoundError:
        lost = catalog_spare.was_there(home) or os.path.isdir(os.path.join(home, OBJECTS))
        return "it is missing or empty" if lost else None
    from urllib.parse import quote

    try:
        # Read-only: otherwise SQLite would merge the log into the file when it is closed.
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=5)) as database:
            found = [str(row[0]) for row in database.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
            found += ["rows refer to rows that are not there" for _ in database.execute("PRAGMA foreign_key_check")]
            if not found and database.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
                found.append("it is not marked as a catalog")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise LockedError(
                f"another process is holding the catalog {display(path)}", hint="try again when it has finished"
            ) from error
        found = [str(error)]
    except sqlite3.DatabaseError as error:
        found = [str(error)]
    return found[0].partition("\n")[0] if found else None


def repair(
    home: bytes, settings: Settings, *, clock: Clock, random: Callable[[int], bytes] = os.urandom
) -> RepairedCatalog | None:
    """Restore the home's catalog, if it is damaged or lost; None if it is intact.

    No process may have it open, including this one. Raises `LockedError` if one has, `UnsupportedError` for one on a
    server, and `StorageError` if there is no room. After any of these the catalog is as before.
    """
    if settings.store.catalog:
        raise UnsupportedError(
            "the catalog is on PostgreSQL, and is brought back from that server's own backups",
            hint="pg_basebackup or pg_dump make them",
        )
    path = os.path.join(home, CATALOG)
    try:
        with catalog_spare.locked(home):
            damage = damage_of(home)
            if damage is None:
                return None
            lock = _exclusive(path)
            try:
                return _Repair(home, settings, clock, random).run(damage)
            finally:
                if lock is not None:
                    os.close(lock)
    except OSError as error:
        raise StorageError(
            f"cannot repair the catalog: {error.strerror}; it is as it was", hint=room_hint(error)
        ) from error


def _exclusive(path: bytes) -> int | None:
    """Keep every other process out of a database; None if there is no file. Raises `LockedError`."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _LOCKED_AT, _LOCKED_BYTES, 0)
    try:
        # A lock of the open file: a lock of the process would be lost when any other descriptor of it is closed.
        fcntl.fcntl(fd, _F_OFD_SETLK, wanted)
    except OSError as error:
        holder = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, wanted))[4]
        os.close(fd)
        raise LockedError(
            "another process has the catalog open" + (f": {holder}" if holder > 0 else ""),
            hint="end it (a watcher, a run, a server), then try again",
        ) from error
    return fd


class _Repair:
    def __init__(self, home: bytes, settings: Settings, clock: Clock, random: Callable[[int], bytes]) -> None:
        self._home = home
        self._settings = settings
        self._clock = clock
        self._random = random
        self._path = os.path.join(home, CATALOG)
        self._new = self._path + _NEW
        self._brought_back = self._lost = self._problems = self._checkpoints = 0

    def run(self, damage: str) -> RepairedCatalog:
        store = self._settings.store
        location = store.url or os.path.join(self._home, OBJECTS)
        objects = assemble(location, store, self._home, open_it=open_objects, random=self._random).objects
        self._discard()
        try:
            spare = self._begin()
            database = SqliteDatabase(self._new, MIGRATIONS, application_id=APPLICATION_ID)
            try:
                with database.reading() as transaction:
                    names = [row[0] for row in transaction.all("SELECT name FROM tenants ORDER BY number")]
                for name in dict.fromkeys([*names, *self._own_tenants(), store.tenant]):
                    self._bring_back(Store(objects, Catalog(database, name, self._clock)), objects, spare)
                database.save_space()  # so that the log is empty
            finally:
                database.close()
            with suppress(FileNotFoundError):
                # Its record of encrypted values may be false for the spare. Without it, that is checked again.
                os.unlink(os.path.join(self._home, object_store_binding.NAME))
            for path in (self._new, self._home):
                _sync(path)
            kept = self._swap()
        except BaseException:
            self._discard()
            raise
        at = None if spare is None else spare.at
        return RepairedCatalog(damage, at, self._checkpoints, self._brought_back, self._lost, kept, self._problems)

    def _begin(self) -> catalog_spare.Spare | None:
        for spare in catalog_spare.spares(self._home):
            problems = catalog_spare.damage(spare.path)
            if not problems:
                fd = os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                with open(fd, "wb") as target, open(spare.path, "rb") as source:
                    shutil.copyfileobj(source, target, 1 << 20)
                return spare
            _LOG.warning("the spare %s is damaged as well: %s", display(spare.path), problems[0])
        return None

    def _own_tenants(self) -> Sequence[str]:
        """Tenants with objects in the home itself. (A bucket may hold those of other stores.)"""
        try:
            names = sorted(os.listdir(os.path.join(self._home, OBJECTS, b"checkpoints")))
        except OSError:
            return ()
        return [os.fsdecode(name) for name in names] if not self._settings.store.url else ()

    def _discard(self) -> None:
        for suffix in (b"", *_LOGS):
            with suppress(FileNotFoundError):
                os.unlink(self._new + suffix)

    def _swap(self) -> bytes | None:
        """Replace the damaged catalog by the new one. After a kill in between there is none, and none is begun anew."""
        there = [self._path + suffix for suffix in (b"", *_LOGS) if os.path.lexists(self._path + suffix)]
        aside = None
        if there:
            aside = os.path.join(self._home, catalog_spare.DAMAGED + b"%017d" % self._clock.now())
            os.mkdir(aside, 0o700)
            _sync(self._home)
            # The file before its log: SQLite would apply a log that it finds beside another file.
            for path in there:
                os.rename(path, os.path.join(aside, os.path.basename(path)))
            _sync(aside)
            _sync(self._home)
        os.rename(self._new, self._path)
        _sync(self._home)
        return aside

    # --- one tenant ---

    def _bring_back(self, store: Store, objects: ObjectStore, spare: catalog_spare.Spare | None) -> None:
        catalog = store.catalog
        for kind in ("packs", "checkpoints"):
            newest = next(iter(objects.list(f"{kind}/{catalog.name}/")), None)
            if newest is not None:
                object_store_binding.check_encryption(objects, newest.key)
        scan = ObjectScan(objects, catalog.name)
        self._lost += scan.damaged
        known = {point.id: point for point in catalog.checkpoints()}
        whole = {name for name, point in known.items() if scan.is_whole(point.root)}
        with catalog.database.reading() as transaction:
            pinned: list[Hash] = [
                row[0] for row in transaction.all("SELECT root FROM pins WHERE tenant = ?", (catalog.tenant,))
            ]
        since = 0 if spare is None else spare.at - _BEFORE
        found = [pack.header for pack in scan.packs.values() if pack.header is not None]
        found = [one for one in found if one.id not in known and one.created_at > since]
        if spare is None:
            found += self._headerless(scan)
        new = [one for one in found if scan.is_whole(one.root)]
        self._lost += len(found) - len(new)
        with catalog.database.writing() as transaction:
            _forget(transaction, catalog, scan, [one for one in known.values() if one.id not in whole])
            gone = [root for root in pinned if not scan.is_whole(root)]
            transaction.many("DELETE FROM pins WHERE tenant = ? AND root = ?", ((catalog.tenant, one) for one in gone))
            roots = {known[name].root for name in whole}.union(pinned, (one.root for one in new)).difference(gone)
            _rewrite_blobs(transaction, catalog, scan, roots, self._random, {*whole, *(one.id for one in new)})
        # Every attempt of a repeated commit returns: nothing shows which of them was known.
        for header in sorted(new, key=lambda one: (one.created_at, one.id)):
            self._add(catalog, scan, header)
            self._brought_back += 1
        store.collector().settle()
        proof = store.verifier().verify()
        for problem in proof.problems[:20]:
            _LOG.warning("%s: %s: %s", problem.kind, problem.object, problem.message)
        self._problems += len(proof.problems)
        self._checkpoints += proof.checkpoints

    def _headerless(self, scan: ObjectScan) -> list[CheckpointHeader]:
        """States of former versions, as one line, by the times of their objects."""
        workspace = new_workspace_id(self._random)
        path = os.path.join(self._home, _RECOVERED)
        made: list[CheckpointHeader] = []
        packs = [pack for pack in scan.packs.values() if pack.header is None and pack.checkpoint is not None]
        for pack in sorted(packs, key=lambda one: (one.info.modified_at, one.info.key)):
            root = scan.root_of(pack)
            if root is None or not scan.is_whole(root):
                self._lost += 1
                continue
            assert pack.checkpoint is not None
            parent = made[-1].id if made else None
            at = pack.info.modified_at
            made.append(
                CheckpointHeader(
                    *(pack.checkpoint, workspace, path, parent, root, "manual", (), at),
                    *("", "", "", True, None, None),
                )
            )
        return made

    def _add(self, catalog: Catalog, scan: ObjectScan, header: CheckpointHeader) -> None:
        known = {row.id: row for row in catalog.workspaces(everywhere=True)}
        if header.workspace not in known:
            path = header.path or os.path.join(self._home, _RECOVERED)
            row = WorkspaceRow(header.workspace, path, 0, 0, header.created_at, None, live=True)
            try:
                catalog.add_workspace(row)
            except RefusedError:
                catalog.add_workspace(row._replace(path=displaced_path(path, row.id)))
        above = _find(catalog, header.parent)
        files, size = manifest.totals(scan.pages, header.root)
        changes = None if above is None else manifest.diff(scan.pages, above.root, header.root)
        point = Checkpoint(
            id=header.id,
            workspace=header.workspace,
            parent=None if above is None else above.id,
            root=header.root,
            kind=header.kind,
            labels=header.labels,
            created_at=header.created_at,
            changes=Counts(added=files) if changes is None else count_changes(changes),
            total_files=files,
            total_bytes=size,
            new_blobs=0,
            stored_bytes=scan.packs[pages_key(catalog.name, header.id)].info.size,
            not_captured=0,
            provenance=Provenance(header.author, header.message, header.command),
        )
        cursor = catalog.cursor(header.workspace)
        event = HistoryEvent(0, header.created_at, "checkpoint", header.id, cursor.position)
        other = _find(catalog, header.other)
        catalog.commit(
            CheckpointCommit(
                checkpoint=point,
                changeset=None if changes is None else encode_changeset(changes),
                not_captured=(),
                packs=(),
                blobs=(),
                relied_on=frozenset(),
                expected=cursor,
                event=event if header.is_state else None,
                merge_parents=None if other is None else MergeParent(other.id, header.base or other.id),
            )
        )


def _find(catalog: Catalog, name: CheckpointId | None) -> Checkpoint | None:
    if name is None:
        return None
    try:
        return catalog.checkpoint(name)
    except HoldfastError:
        return None


def _forget(transaction: Transaction, catalog: Catalog, scan: ObjectScan, gone: Sequence[Checkpoint]) -> None:
    """Remove incomplete checkpoints: they were forgotten since the spare. Counts come later."""
    tenant = catalog.tenant
    parents = {point.id: point.parent for point in gone}

    def survivor(name: CheckpointId | None) -> CheckpointId | None:
        while name is not None and name in parents:
            name = parents[name]
        return name

    for child, parent, root in transaction.all(
        "SELECT id, parent, root FROM checkpoints WHERE tenant = ? AND parent IS NOT NULL", (tenant,)
    ):
        if parent in parents and child not in parents:
            _reparent(transaction, tenant, scan, (child, root), survivor(parent))
    for workspace, head, source in transaction.all(
        "SELECT id, head, source FROM workspaces WHERE tenant = ?", (tenant,)
    ):
        if head in parents or source in parents:
            with changing(transaction, WORKSPACES, tenant, [workspace]):
                transaction.run(
                    "UPDATE workspaces SET head = ?, source = ? WHERE tenant = ? AND id = ?",
                    (survivor(head), None if source in parents else source, tenant, workspace),
                )
    for name in parents:
        states = [
            row[0]
            for row in transaction.all(
                "SELECT hash FROM session_checkpoints WHERE tenant = ? AND tree = ? AND kept = 1", (tenant, name)
            )
        ]
        with changing(transaction, SESSION_CHECKPOINTS, tenant, states):
            transaction.many(
                "UPDATE session_checkpoints SET kept = 0 WHERE tenant = ? AND hash = ?",
                ((tenant, one) for one in states),
            )
        transaction.run("DELETE FROM merges WHERE tenant = ? AND (checkpoint = ? OR other = ?)", (tenant, name, name))
        for table in ("changesets", "not_captured"):
            transaction.run(f"DELETE FROM {table} WHERE tenant = ? AND checkpoint = ?", (tenant, name))
        transaction.run("DELETE FROM checkpoints WHERE tenant = ? AND id = ?", (tenant, name))


def _reparent(
    transaction: Transaction,
    tenant: int,
    scan: ObjectScan,
    child: tuple[CheckpointId, Hash],
    parent: CheckpointId | None,
) -> None:
    name, root = child
    above: Row | None = transaction.one("SELECT root FROM checkpoints WHERE tenant = ? AND id = ?", (tenant, parent))
    transaction.run("DELETE FROM changesets WHERE tenant = ? AND checkpoint = ?", (tenant, name))
    if above is None:
        counts = Counts(added=manifest.totals(scan.pages, root)[0])
    else:
        changes = manifest.diff(scan.pages, above[0], root)
        counts = count_changes(changes)
        transaction.run("INSERT INTO changesets VALUES (?, ?, ?)", (tenant, name, encode_changeset(changes)))
    transaction.run(
        "UPDATE checkpoints SET parent = ?, added = ?, modified = ?, deleted = ? WHERE tenant = ? AND id = ?",
        (None if above is None else parent, *counts, tenant, name),
    )
    set_checksum(transaction, CHECKPOINTS, tenant, name)


def _rewrite_blobs(
    transaction: Transaction,
    catalog: Catalog,
    scan: ObjectScan,
    roots: set[Hash],
    random: Callable[[int], bytes],
    checkpoints: set[CheckpointId],
) -> None:
    """Write down where all is that the manifests ``roots`` name, and count the roots; settling counts the rest."""
    tenant = catalog.tenant
    for table in ("blobs", "packs", "tombstones", "leases"):
        transaction.run(f"DELETE FROM {table} WHERE tenant = ?", (tenant,))
    kinds: dict[Hash, int] = {}
    todo = [*roots]
    while todo:
        name = todo.pop()
        if kinds.get(name) == PAGE:
            continue
        kinds[name] = PAGE
        for child in scan.below[name]:
            if scan.levels[name]:
                todo.append(child)
            else:
                kinds.setdefault(child, BLOB)
    places = scan.locate(list(kinds))
    for place in list(places.values()):
        if place.base is not None and place.base not in kinds:
            kinds[place.base] = BASE
            places |= scan.locate([place.base])
    own = {pages_key(catalog.name, name) for name in checkpoints}
    numbers: dict[str, int] = {}
    now = moment(transaction, tenant, catalog.clock.now())
    for key in sorted({place.key for place in places.values()} & scan.packs.keys() | own & scan.packs.keys()):
        info, tail = scan.packs[key].info, key.rpartition("/")[2]
        row = transaction.one(
            "INSERT INTO packs (tenant, id, key, size, created_at, spared_until) VALUES (?, ?, ?, ?, ?, 0) "
            "RETURNING number",
            (tenant, tail if key.startswith("packs/") else new_pack_id(random), key, info.size, info.modified_at),
        )
        assert row is not None
        numbers[key] = row[0]
    rows: list[tuple[object, ...]] = []
    for name, kind in sorted(kinds.items()):
        key, offset, length, codec, size, base = places[name]
        pack = numbers.get(key)
        generation = scan.generation(name) if pack is None else 0
        counted = UNMARKED if kind == PAGE else UNCOUNTED
        rows.append((tenant, name, kind, size, codec, base, pack, offset, length, generation, counted, now))
    transaction.many(
        """INSERT INTO blobs (tenant, hash, kind, size, codec, base, pack, place, length, generation, refs, deltas,
        counted, dead_since) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, ?, ?)""",
        rows,
    )
    transaction.run(
        """UPDATE blobs SET refs = (SELECT count(*) FROM checkpoints c WHERE c.tenant = blobs.tenant
            AND c.root = blobs.hash) + (SELECT count(*) FROM pins p WHERE p.tenant = blobs.tenant
            AND p.root = blobs.hash) WHERE tenant = ? AND kind = 1 AND hash IN
            (SELECT root FROM checkpoints WHERE tenant = ? UNION SELECT root FROM pins WHERE tenant = ?)""",
        (tenant, tenant, tenant),
    )
    bases: dict[Hash, int] = {}
    for name in kinds:
        base = places[name].base
        if base is not None:
            bases[base] = bases.get(base, 0) + 1
    transaction.many(
        "UPDATE blobs SET deltas = ? WHERE tenant = ? AND hash = ?",
        ((count, tenant, base) for base, count in bases.items()),
    )
    transaction.run("UPDATE tenants SET swept = swept + 1 WHERE number = ?", (tenant,))


def _sync(path: bytes) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
