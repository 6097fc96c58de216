"""Second parents in the catalog: which states hold all of another line's, and where two lines have parted.

A checkpoint's parent is the state that its changeset is against. A second parent says that it holds all that another
line had done by then, too; there may be several.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.store.catalog.row_checksums import MERGES, set_checksum
from holdfast.store.catalog_records import MergeParent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.model.ids import CheckpointId
    from holdfast.store.database.sql_database import Transaction

_STRETCH = 512
"""The number of checkpoints of a line to read at once: where it meets a known one, its rest is known."""


class LineageMember(NamedTuple):
    """One checkpoint of a lineage."""

    number: int
    """Grows in the order of recording: the parent's is below its own, a second parent's need not be."""
    parent: CheckpointId | None
    others: tuple[CheckpointId, ...] = ()
    """The states that it has merged."""

    @property
    def parents(self) -> tuple[CheckpointId, ...]:
        """Parents of both kinds."""
        return self.others if self.parent is None else (self.parent, *self.others)


Lineage = dict["CheckpointId", LineageMember]
"""A checkpoint and all that it holds the work of, by id."""


def add(transaction: Transaction, tenant: int, checkpoint: CheckpointId, taken_in: MergeParent, now: int) -> None:
    """Note that ``checkpoint`` holds what ``taken_in`` says; a second time, nothing."""
    row = f"{checkpoint} {taken_in.other}"
    added = transaction.run(
        """INSERT INTO merges (tenant, id, checkpoint, other, base, created_at, record)
        VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING""",
        (tenant, row, checkpoint, taken_in.other, taken_in.base, now, taken_in.record),
    )
    if added:
        set_checksum(transaction, MERGES, tenant, row)


def parents_of(transaction: Transaction, tenant: int, checkpoint: CheckpointId) -> list[MergeParent]:
    """The merges of other lines into a checkpoint, in order."""
    rows = transaction.all(
        "SELECT other, base, record FROM merges WHERE tenant = ? AND checkpoint = ? ORDER BY created_at, id",
        (tenant, checkpoint),
    )
    return [MergeParent(*row) for row in rows]


def lineage(transaction: Transaction, tenant: int, checkpoint: CheckpointId) -> Lineage:
    """``checkpoint``, its parents of both kinds, theirs, and so on, as far as they are kept."""
    others: dict[CheckpointId, list[CheckpointId]] = {}
    for one, other in transaction.all("SELECT checkpoint, other FROM merges WHERE tenant = ? ORDER BY id", (tenant,)):
        others.setdefault(one, []).append(other)
    found: Lineage = {}
    waiting: list[CheckpointId] = [checkpoint]
    while waiting:
        for name, parent, number in _line(transaction, tenant, waiting.pop(), found):
            seconds = others.get(name, [])
            found[name] = LineageMember(number, parent, tuple(seconds))
            waiting += seconds
    return found


def _line(
    transaction: Transaction, tenant: int, start: CheckpointId, known: Lineage
) -> Iterator[tuple[CheckpointId, CheckpointId | None, int]]:
    """``start`` and its ancestors by first parents, until one that is known."""
    at: CheckpointId | None = start
    while at is not None and at not in known:
        rows = transaction.all(
            """WITH RECURSIVE line (id, parent, number, depth) AS (
                SELECT id, parent, number, 0 FROM checkpoints WHERE tenant = ? AND id = ?
                UNION ALL
                SELECT c.id, c.parent, c.number, line.depth + 1
                FROM line JOIN checkpoints c ON c.tenant = ? AND c.id = line.parent WHERE line.depth < ?
            ) SELECT id, parent, number FROM line ORDER BY depth""",
            (tenant, at, tenant, _STRETCH),
        )
        at = None
        for name, parent, number in rows:
            if name in known:
                return
            yield name, parent, number
            at = parent


def keep_lineage(
    transaction: Transaction,
    tenant: int,
    checkpoint: CheckpointId,
    parent: CheckpointId | None,
    heirs: Sequence[CheckpointId],
) -> None:
    """Pass on the merges of, and into, a checkpoint that is about to be forgotten.

    Its children get its merged states; states that have merged it get its parents as merged.
    """
    held = transaction.all(
        "SELECT other, base, created_at FROM merges WHERE tenant = ? AND checkpoint = ?", (tenant, checkpoint)
    )
    holders = transaction.all(
        "SELECT checkpoint, base, created_at, record FROM merges WHERE tenant = ? AND other = ?", (tenant, checkpoint)
    )
    transaction.run("DELETE FROM merges WHERE tenant = ? AND checkpoint = ?", (tenant, checkpoint))
    transaction.run("DELETE FROM merges WHERE tenant = ? AND other = ?", (tenant, checkpoint))
    for heir in heirs:
        for other, base, created_at in held:
            if other != heir:
                add(transaction, tenant, heir, MergeParent(other, base), created_at)
    for holder, base, created_at, record in holders:
        if holder == checkpoint:
            continue
        if parent is not None and parent != holder:
            add(transaction, tenant, holder, MergeParent(parent, base, record), created_at)
        for other, _, _ in held:
            if other != holder:
                add(transaction, tenant, holder, MergeParent(other, base), created_at)


def newest_common(one: Lineage, other: Lineage) -> list[CheckpointId]:
    """The states that both hold and that no other such state holds, the one recorded last first.

    More than one if both lines have taken in parts of each other that neither has whole.
    """
    common = one.keys() & other.keys()
    # The ancestors of a common state are common as well, so it is enough to exclude the parents of common ones.
    held = {parent for name in common for parent in one[name].parents}
    return sorted(common - held, key=lambda name: one[name].number, reverse=True)


def descendants_in(line: Lineage, checkpoint: CheckpointId) -> set[CheckpointId]:
    """Those of a lineage that contain ``checkpoint``, including itself."""
    children: dict[CheckpointId, list[CheckpointId]] = {}
    for name, member in line.items():
        for parent in member.parents:
            children.setdefault(parent, []).append(name)
    found = {checkpoint}
    waiting = [checkpoint]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found
