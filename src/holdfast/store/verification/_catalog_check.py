"""Verification of what the catalog alone can tell: checkpoints, changesets, histories, merges, exports."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

from holdfast.model.checkpoint import KINDS
from holdfast.model.entries import count_changes
from holdfast.model.errors import IntegrityError
from holdfast.store.catalog.row_checksums import (
    ANSWERS,
    CHECKPOINTS,
    COVERED_MERGES,
    COVERED_SERVING,
    EXPORTS,
    HISTORY,
    MERGES,
    PROMOTIONS,
    TENANTS,
    TOKENS,
    WORKSPACES,
    damaged,
)
from holdfast.store.catalog.text_encryption import TEXTS, TextCipher, name_of
from holdfast.store.codecs.changeset import decode_changeset
from holdfast.store.identity.store_identity import STORES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.store.catalog.catalog import Catalog
    from holdfast.store.database.sql_database import Transaction

    _Found = tuple[Literal["catalog", "reference", "format", "damaged", "missing"], str, str]


def check_history(transaction: Transaction, tenant: int) -> Iterator[_Found]:
    """The problems, as kind, object and message. Exhaust it inside the transaction."""
    yield from _check_checkpoints(transaction, tenant)
    yield from _check_changesets(transaction, tenant)
    yield from _check_cursors(transaction, tenant)
    yield from _check_checksums(transaction, tenant)


def _check_checkpoints(transaction: Transaction, tenant: int) -> Iterator[_Found]:
    rows = transaction.all(
        """SELECT number, id, parent, kind, not_captured,
            (SELECT count(*) FROM not_captured n WHERE n.tenant = c.tenant AND n.checkpoint = c.id),
            (SELECT p.number FROM checkpoints p WHERE p.tenant = c.tenant AND p.id = c.parent)
        FROM checkpoints c WHERE tenant = ?""",
        (tenant,),
    )
    for number, name, parent, kind, said, there, parent_number in rows:
        if kind not in KINDS:
            yield "catalog", name, f"the kind {kind!r} is unknown"
        if parent is not None and parent_number is None:
            yield "reference", name, f"the parent {parent} does not exist"
        elif parent is not None and parent_number >= number:
            yield "catalog", name, f"the parent {parent} was recorded later"
        if said != there:
            yield "catalog", name, f"{said} paths are said not to be captured, {there} are listed"


def _check_changesets(transaction: Transaction, tenant: int) -> Iterator[_Found]:
    rows = transaction.all(
        "SELECT id, parent, added, modified, deleted, total_files FROM checkpoints WHERE tenant = ?", (tenant,)
    )
    for name, parent, added, modified, deleted, files in rows:
        row = transaction.one("SELECT data FROM changesets WHERE tenant = ? AND checkpoint = ?", (tenant, name))
        if row is None:
            if parent is None and (added, modified, deleted) != (files, 0, 0):
                yield "catalog", name, "it has no parent, but not all of its files count as added"
            continue
        try:
            counts = count_changes(decode_changeset(row[0]))
        except IntegrityError as error:
            yield "format", name, f"the changeset cannot be read: {error.message}"
            continue
        if counts != (added, modified, deleted):
            yield "catalog", name, "the changeset does not have as many changes as it is said to"


def _check_cursors(transaction: Transaction, tenant: int) -> Iterator[_Found]:
    rows = transaction.all(
        """SELECT id, live, head, position, redo_tip,
            head IS NULL OR EXISTS (SELECT 1 FROM checkpoints c WHERE c.tenant = w.tenant AND c.id = w.head),
            position IS NULL OR EXISTS (SELECT 1 FROM history h
                WHERE h.tenant = w.tenant AND h.workspace = w.id AND h.seq = w.position),
            redo_tip IS NULL OR EXISTS (SELECT 1 FROM history h
                WHERE h.tenant = w.tenant AND h.workspace = w.id AND h.seq = w.redo_tip),
            source IS NULL OR live = 0 OR EXISTS (SELECT 1 FROM checkpoints c
                WHERE c.tenant = w.tenant AND c.id = w.source)
        FROM workspaces w WHERE tenant = ?""",
        (tenant,),
    )
    for name, _, head, position, redo_tip, head_there, position_there, tip_there, source_there in rows:
        if not head_there:
            yield "reference", name, f"the head {head} does not exist"
        if not position_there:
            yield "reference", name, f"the position {position} is no event of this workspace"
        if not tip_there:
            yield "reference", name, f"the redo tip {redo_tip} is no event of this workspace"
        if not source_there:
            yield "reference", name, "the checkpoint that it was forked from does not exist"
    for (seq,) in transaction.all(
        """SELECT seq FROM history e WHERE tenant = ? AND previous IS NOT NULL AND NOT EXISTS (SELECT 1 FROM history p
            WHERE p.tenant = e.tenant AND p.workspace = e.workspace AND p.seq = e.previous AND p.seq < e.seq)""",
        (tenant,),
    ):
        yield "reference", f"event {seq}", "the event whose state it replaced is not in the history before it"
    for (seq,) in transaction.all(
        """SELECT seq FROM history e WHERE tenant = ? AND ahead IS NOT NULL AND NOT EXISTS (SELECT 1 FROM history p
            WHERE p.tenant = e.tenant AND p.workspace = e.workspace AND p.seq = e.ahead AND p.seq < e.seq)""",
        (tenant,),
    ):
        yield "reference", f"event {seq}", "the event that it was undone from is not in the history before it"


def _check_checksums(transaction: Transaction, tenant: int) -> Iterator[_Found]:
    for _ in damaged(transaction, TENANTS, tenant):
        yield "damaged", "catalog", "the record of the tenant itself is damaged"
    for name in damaged(transaction, CHECKPOINTS, tenant):
        yield "damaged", str(name), "the catalog's record of this checkpoint, or what belongs to it, is damaged"
    for name in damaged(transaction, WORKSPACES, tenant):
        yield "damaged", str(name), "the catalog's record of this workspace is damaged"
    for seq in damaged(transaction, HISTORY, tenant):
        yield "damaged", f"event {seq}", "the catalog's record of this event is damaged"
    for _ in damaged(transaction, STORES, tenant):
        yield "damaged", "catalog", "the record of which store this is is damaged"
    for name in damaged(transaction, PROMOTIONS, tenant):
        yield "damaged", str(name), "the catalog's record of this promotion is damaged"


def check_texts(transaction: Transaction, catalog: Catalog) -> Iterator[_Found]:
    """The problems of encrypted texts. Exhaust it inside the transaction."""
    cipher = TextCipher(catalog)
    for covered, columns in TEXTS.items():
        for key, name, *texts in transaction.stream(
            f"SELECT {covered.key}, {name_of(covered)}, {', '.join(columns)} FROM {covered.table} WHERE tenant = ?",
            (catalog.tenant,),
        ):
            for column, text in zip(columns, texts, strict=True):
                try:
                    cipher.read(covered.table, column, name, text)
                except IntegrityError as error:
                    yield "format", f"event {key}" if covered is HISTORY else key, error.message


# Merges: the rows of second parents, and of changes that wait to be applied anew --------------------------------------


def check_merges(transaction: Transaction, tenant: int) -> Iterator[_Found]:
    """The problems in the catalog, as kind, object and message. Exhaust it inside the transaction."""
    for covered in COVERED_MERGES:
        what = "merge" if covered is MERGES else "change to be applied anew"
        for key in damaged(transaction, covered, tenant):
            yield "damaged", str(key), f"the catalog's record of this {what} is damaged"
    for name, other in transaction.all(
        """SELECT checkpoint, other FROM merges m WHERE tenant = ? AND NOT EXISTS (
            SELECT 1 FROM checkpoints c WHERE c.tenant = m.tenant AND c.id = m.other)""",
        (tenant,),
    ):
        yield "reference", name, f"the checkpoint {other} that it is said to hold the work of does not exist"
    for name, record in transaction.all("SELECT id, record FROM merges WHERE tenant = ? AND record <> ''", (tenant,)):
        try:
            json.loads(record)
        except ValueError:
            yield "format", name, "the record of this merge is no JSON"


# Serving: the rows of exports, tokens and kept answers ----------------------------------------------------------------

_WHAT = {EXPORTS.table: "export", TOKENS.table: "token", ANSWERS.table: "kept answer"}


def check_serving(transaction: Transaction, tenant: int) -> Iterator[tuple[Literal["damaged"], str, str]]:
    """The problems in the catalog, as kind, object and message. Exhaust it inside the transaction."""
    for covered in COVERED_SERVING:
        for key in damaged(transaction, covered, tenant):
            yield "damaged", str(key), f"the catalog's record of this {_WHAT[covered.table]} is damaged"
