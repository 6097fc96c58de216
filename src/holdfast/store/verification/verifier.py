"""Verification: checks the catalog against the objects, down to the bytes on request, and reports damage.

No collection can begin meanwhile, unless the disk is too full to record that; checkpoints, restores and forgets go on.
The whole catalog is read in one transaction and checked as of then.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

from holdfast.model.errors import HoldfastError, IntegrityError, NotFoundError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.ids import format_hash
from holdfast.store.blobs.damage_check import check_large, check_pack
from holdfast.store.blobs.pack_format import read_index
from holdfast.store.catalog.schema import BASE, BLOB, COUNTED, PAGE, UNCOUNTED
from holdfast.store.catalog.work_lease import Lease
from holdfast.store.catalog_records import large_blob_key, pages_key
from holdfast.store.codecs.compression import DELTA, LARGE
from holdfast.store.collection.collector import LEASE
from holdfast.store.collection.count_correction import CountDrift, CountMark
from holdfast.store.objects.object_keys import is_key
from holdfast.store.verification._catalog_check import check_history, check_merges, check_serving, check_texts
from holdfast.store.verification.session_check import check_session_objects, check_sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from holdfast.model.content import Progress
    from holdfast.model.ids import CheckpointId, Hash
    from holdfast.store.catalog.catalog import Catalog
    from holdfast.store.collection.deferred_counts import Children
    from holdfast.store.database.sql_database import Transaction
    from holdfast.store.objects.object_store import ObjectStore

_PAGES_PER_READ = 64


_Kind = Literal["missing", "damaged", "count", "reference", "catalog", "format"]


class Problem(NamedTuple):
    """One thing that is wrong."""

    kind: _Kind
    object: str
    """A hash, an object's key, a checkpoint's or a workspace's id."""
    message: str


class Verified(NamedTuple):
    """The result of a verification."""

    checkpoints: int
    blobs: int
    problems: Sequence[Problem]

    @property
    def ok(self) -> bool:
        """True if nothing is wrong."""
        return not self.problems


class _Row(NamedTuple):
    """A row of ``blobs``."""

    kind: int
    size: int
    codec: int
    base: Hash | None
    pack: int | None
    place: int
    length: int
    generation: int
    refs: int
    deltas: int
    counted: int
    dead_since: int


class _Pack(NamedTuple):
    key: str
    size: int


class Verifier:
    """Verifies the store of one tenant. ``children`` reads pages, ``read`` the base of a delta; ``states_in`` returns
    the object store of a tier of session checkpoints.
    """

    def __init__(
        self,
        catalog: Catalog,
        objects: ObjectStore,
        children: Children,
        read: Callable[[Hash], bytes],
        states_in: Callable[[str], ObjectStore | None] = lambda _: None,
    ) -> None:
        self._catalog = catalog
        self._objects = objects
        self._children = children
        self._read = read
        self._states_in = states_in
        self._lease = Lease(catalog.database, catalog.tenant, LEASE, catalog.clock, is_optional=True)
        self._problems: list[Problem] = []
        self._rows: dict[Hash, _Row] = {}
        self._packs: dict[int, _Pack] = {}
        self._below: dict[Hash, list[Hash]] = {}
        self._roots: list[tuple[CheckpointId, Hash]] = []
        self._pinned: list[Hash] = []
        self._bad: set[Hash] = set()
        """Blobs and pages that cannot be read."""
        self._progress: Progress | None = None

    def verify(self, *, read_data: bool = False, progress: Progress | None = None) -> Verified:
        """Check every row, reference, count and object; with ``read_data`` also read and hash every stored byte.

        Nothing is changed. Raises `LockedError` while a collection runs. Memory: some 400 bytes for each blob.
        """
        self._progress = progress
        self._problems.clear()
        self._packs.clear()
        self._bad.clear()
        self._lease.acquire()
        try:
            for text in self._catalog.database.check():
                self._add("catalog", "catalog", text)
            with self._catalog.database.reading() as transaction:
                self._load(transaction)
                self._problems += [Problem(*found) for found in check_history(transaction, self._catalog.tenant)]
                self._problems += [Problem(*found) for found in check_texts(transaction, self._catalog)]
                self._problems += [Problem(*found) for found in check_sessions(transaction, self._catalog)]
                self._problems += [Problem(*found) for found in check_merges(transaction, self._catalog.tenant)]
                self._problems += [Problem(*found) for found in check_serving(transaction, self._catalog.tenant)]
            self._check_rows()
            self._check_objects()
            self._read_pages()
            self._check_counts()
            if read_data:
                self._read_content()
            self._name_checkpoints()
            states = check_session_objects(self._catalog, self._states_in, read_data=read_data)
            self._problems += [Problem(*found) for found in states]
        finally:
            self._lease.release()
        return Verified(len(self._roots), len(self._rows), list(self._problems))

    def mark_counts(self, *, progress: Progress | None = None) -> CountMark:
        """The wrong counts, as of one moment. Takes no lease, and changes nothing.

        Objects are read as far as they have pages. Memory as for `verify`.
        """
        self._progress = progress
        self._problems.clear()
        self._packs.clear()
        self._bad.clear()
        with self._catalog.database.reading() as transaction:
            self._load(transaction)
            row = transaction.one("SELECT swept FROM tenants WHERE number = ?", (self._catalog.tenant,))
        self._check_rows()
        self._read_pages()
        drifts = list(self._drifts())
        is_whole = (
            row is not None
            and not self._problems
            and all(name in self._below for name in self._pinned)
            and not any(self._is_counted_wrongly(found) for found in self._rows.values())
            # It takes a while, and matters only for counts that would be lowered.
            and (all(drift.was < drift.now for drift in drifts) or not self._catalog.database.check())
        )
        return CountMark(drifts, row[0] if row else 0, is_whole)

    def _add(self, kind: _Kind, name: str, message: str) -> None:
        self._problems.append(Problem(kind, name, message))

    def _load(self, transaction: Transaction) -> None:
        tenant = (self._catalog.tenant,)
        self._rows = {
            row[0]: _Row(*row[1:])
            for row in transaction.stream(
                """SELECT hash, kind, size, codec, base, pack, place, length, generation, refs, deltas, counted,
                dead_since FROM blobs WHERE tenant = ?""",
                tenant,
            )
        }
        packs = transaction.all("SELECT number, key, size FROM packs WHERE tenant = ?", tenant)
        for number, key, size in packs:
            if is_key(key):
                self._packs[number] = _Pack(key, size)
            else:
                self._add("damaged", f"pack {number}", f"no object can be called {key!r}")
        self._roots = [
            (row[0], row[1]) for row in transaction.all("SELECT id, root FROM checkpoints WHERE tenant = ?", tenant)
        ]
        self._pinned = [row[0] for row in transaction.all("SELECT root FROM pins WHERE tenant = ?", tenant)]

    # --- rows ---

    def _check_rows(self) -> None:
        for name, row in self._rows.items():
            if row.pack is not None and row.pack not in self._packs:
                self._add("reference", format_hash(name), f"is said to be in pack {row.pack}, which does not exist")
                self._bad.add(name)
            if row.base is not None:
                base = self._rows.get(row.base)
                if base is None:
                    self._add("missing", format_hash(row.base), f"the base of the delta {format_hash(name)} is missing")
                    self._bad.add(name)
                elif base.base is not None:
                    self._add("catalog", format_hash(name), "is a delta against a delta")
            alone = row.pack is None
            if row.kind not in (BLOB, PAGE, BASE) or alone != (row.codec == LARGE):
                self._add("catalog", format_hash(name), "is said to be stored as no blob is")
                self._bad.add(name)
            elif (row.codec == DELTA) != (row.base is not None):
                self._add("catalog", format_hash(name), "is a delta without a base, or the other way round")
                self._bad.add(name)
            elif row.place if alone else row.generation:
                self._add("catalog", format_hash(name), "has a number that a blob of its kind does not have")

    def _check_counts(self) -> None:
        """Compare every count with what a full mark finds (I11)."""
        for page, below in self._below.items():
            row = self._rows[page]
            if row.refs == 0 and row.counted == UNCOUNTED:
                self._check_order(page, below)
        for drift in self._drifts():
            text = f"{drift.was} {drift.counted} are counted, {drift.now} are there"
            self._add("count", format_hash(drift.hash), text)
        for name, row in self._rows.items():
            if self._is_counted_wrongly(row):
                self._add("count", format_hash(name), "is counted by its children but is no page")

    def _is_counted_wrongly(self, row: _Row) -> bool:
        return row.counted != UNCOUNTED and row.kind != PAGE

    def _drifts(self) -> Iterator[CountDrift]:
        """The counts that a full mark contradicts."""
        refs: Counter[Hash] = Counter(root for _, root in self._roots)
        refs.update(self._pinned)
        for page, below in self._below.items():
            if self._rows[page].counted == COUNTED:
                refs.update(below)
        deltas = Counter(row.base for row in self._rows.values() if row.base is not None)
        # The references of an unreadable page are unknown.
        unread = any(self._rows[name].counted == COUNTED for name in self._bad)
        for name, row in self._rows.items():
            if row.refs != refs[name] and not (unread and row.refs > refs[name]):
                yield CountDrift(name, "references", row.refs, refs[name])
            if row.deltas != deltas[name]:
                yield CountDrift(name, "deltas", row.deltas, deltas[name])

    def _check_order(self, page: Hash, below: list[Hash]) -> None:
        """A dead page must not outlive its children: sweeping goes by the time of death."""
        for child in below:
            row = self._rows.get(child)
            if row is not None and row.dead_since < self._rows[page].dead_since:
                self._add("catalog", format_hash(child), f"is dead for longer than the page {format_hash(page)}")

    # --- objects ---

    def _check_objects(self) -> None:
        members: dict[int, list[Hash]] = {}
        for name, row in self._rows.items():
            if row.pack is not None:
                members.setdefault(row.pack, []).append(name)
            else:
                self._check_large(name, row)
        for done, (number, pack) in enumerate(self._packs.items()):
            self._lease.renew()
            self._check_pack(pack, members.get(number, []))
            self._report("objects", done + 1, len(self._packs))

    def _check_large(self, name: Hash, row: _Row) -> None:
        self._check_size(self._large_key(name, row), row.length, [name])

    def _large_key(self, name: Hash, row: _Row) -> str:
        return large_blob_key(self._catalog.name, name, row.generation)

    def _check_size(self, key: str, expected: int, members: Iterable[Hash]) -> bool:
        size = self._objects.size(key)
        if size == expected:
            return True
        if size is None:
            self._add("missing", key, "the object is missing")
        else:
            self._add("damaged", key, f"the object has {size} bytes; it was written with {expected}")
        self._bad.update(members)
        return False

    def _check_pack(self, pack: _Pack, members: list[Hash]) -> None:
        if not self._check_size(pack.key, pack.size, members):
            return
        try:
            records = {record.hash: record for record in read_index(self._objects, pack.key)}
        except HoldfastError as error:
            self._add("damaged", pack.key, error.message)
            return
        for name in members:
            row, record = self._rows[name], records.get(name)
            if record is None:
                self._add("reference", format_hash(name), f"is not in the pack {pack.key}")
                self._bad.add(name)
            elif record[1:] != (row.codec, row.size, row.place, row.length, row.base):
                self._add("reference", format_hash(name), f"is not in the pack {pack.key} as the catalog says")
                self._bad.add(name)

    # --- content ---

    def _read_pages(self) -> None:
        names: dict[Hash, Hash] = {name: name for name in self._rows}
        pages = [name for name, row in self._rows.items() if row.kind == PAGE and name not in self._bad]
        self._below = {}
        for at in range(0, len(pages), _PAGES_PER_READ):
            self._lease.renew()
            for page, below in self._read_some(pages[at : at + _PAGES_PER_READ]):
                # One object for each hash, however many pages name it.
                self._below[page] = [names.get(child, child) for child in below]
                for child in below:
                    if child not in self._rows:
                        self._add("missing", format_hash(child), f"the page {format_hash(page)} names it")
            self._report("pages", min(at + _PAGES_PER_READ, len(pages)), len(pages))
        for checkpoint, root in self._roots:
            row = self._rows.get(root)
            if row is None:
                self._add("missing", format_hash(root), f"the root page of checkpoint {checkpoint} is missing")
            elif row.kind != PAGE:
                self._add("reference", format_hash(root), f"the root of checkpoint {checkpoint} is not known as a page")

    def _read_some(self, pages: Sequence[Hash]) -> Iterator[tuple[Hash, Sequence[Hash]]]:
        try:
            yield from self._children(pages).items()
        except (IntegrityError, NotFoundError) as error:
            if len(pages) == 1:
                self._add("damaged", format_hash(pages[0]), f"the page cannot be read: {error.message}")
                self._bad.add(pages[0])
                return
            for page in pages:
                yield from self._read_some([page])

    def _read_content(self) -> None:
        # No row refers to the header of a checkpoint, which is in its own object.
        own = {pages_key(self._catalog.name, name) for name, _ in self._roots}
        for done, (number, pack) in enumerate(self._packs.items()):
            self._lease.renew()
            for damage in check_pack(self._objects, pack.key, self._read):
                if damage.hash is not None:
                    row = self._rows.get(damage.hash)
                    if row is not None and row.pack == number:
                        self._bad.add(damage.hash)
                    elif damage.is_delta or pack.key not in own:
                        continue  # dead bytes, which are never read: their base may be collected already
                self._add("damaged", pack.key, damage.message)
            self._report("content", done + 1, len(self._packs))
        for name, row in self._rows.items():
            if row.pack is None and name not in self._bad:
                self._lease.renew()
                damage = check_large(self._objects, self._large_key(name, row), name, row.size)
                if damage is not None:
                    self._add("damaged", damage.key, damage.message)
                    self._bad.add(name)

    # --- dependents of damage ---

    def _name_checkpoints(self) -> None:
        bad = set(self._bad)
        bad.update(name for name, row in self._rows.items() if row.base is not None and row.base in self._bad)
        hit = self._needing(bad)
        for checkpoint, root in self._roots:
            if root in hit or root not in self._rows:
                self._add("damaged", checkpoint, "this checkpoint needs missing or damaged content")

    def _needing(self, bad: set[Hash]) -> set[Hash]:
        """``bad``, and every page above a bad or missing one."""
        above: dict[Hash, list[Hash]] = {}
        for page, below in self._below.items():
            for child in below:
                if child in bad or child not in self._rows or child in self._below:
                    above.setdefault(child, []).append(page)
        hit: set[Hash] = set()
        todo = [*bad, *(child for child in above if child not in self._rows)]
        while todo:
            name = todo.pop()
            if name not in hit:
                hit.add(name)
                todo += above.get(name, [])
        return hit

    def _report(self, phase: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(phase, done, total)
