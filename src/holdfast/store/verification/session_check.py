"""Verification of sessions: their rows, journals and references, and the states that are saved of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from holdfast.model.errors import HoldfastError, IntegrityError, UsageError
from holdfast.store.catalog.row_checksums import COVERED_4, JOURNALS, REFS, SESSION_CHECKPOINTS, SESSIONS, damaged
from holdfast.store.catalog.value_encryption import ValueCipher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.model.session_types import SessionHash
    from holdfast.store.catalog.catalog import Catalog
    from holdfast.store.database.sql_database import Transaction
    from holdfast.store.objects.object_store import ObjectStore

    _Found = tuple[Literal["catalog", "reference", "format", "damaged", "missing"], str, str]

_WHAT = {
    SESSIONS.table: "session",
    JOURNALS.table: "journal of the session",
    SESSION_CHECKPOINTS.table: "session checkpoint",
    REFS.table: "reference",
}


def session_key(tenant: str, name: str) -> str:
    """``sessions/{tenant}/checkpoints/{hash}``: the object of a session checkpoint that is warm or cold."""
    return f"sessions/{tenant}/checkpoints/{name}"


def check_sessions(transaction: Transaction, catalog: Catalog) -> Iterator[_Found]:
    """The problems in the catalog, as kind, object and message. Exhaust it inside the transaction."""
    tenant, values = catalog.tenant, ValueCipher(catalog)
    for covered in COVERED_4:
        for key in damaged(transaction, covered, tenant):
            yield "damaged", str(key), f"the catalog's record of this {_WHAT[covered.table]} is damaged"
    yield from _check_journals(transaction, tenant, values)
    yield from _check_states(transaction, tenant, values)
    for name, checkpoint in transaction.all(
        """SELECT name, checkpoint FROM session_refs r WHERE tenant = ? AND NOT EXISTS (
            SELECT 1 FROM session_checkpoints c WHERE c.tenant = r.tenant AND c.hash = r.checkpoint)""",
        (tenant,),
    ):
        yield "reference", name, f"the session checkpoint {checkpoint} that it names does not exist"
    for (name,) in transaction.all(
        """SELECT id FROM sessions s WHERE tenant = ? AND status = 'live' AND NOT EXISTS (
            SELECT 1 FROM session_refs r WHERE r.tenant = s.tenant AND r.name = 'sessions/' || s.id || '/HEAD')""",
        (tenant,),
    ):
        yield "reference", name, "this session has no HEAD"


def _check_journals(transaction: Transaction, tenant: int, values: ValueCipher) -> Iterator[_Found]:
    from holdfast.store.codecs.session_format import decode_journal

    for name, data, entries in transaction.all(
        "SELECT session, data, entries FROM session_journals WHERE tenant = ?", (tenant,)
    ):
        try:
            content = values.open("session_journals", "data", name, data)
            if len(decode_journal(content or b"")) != entries:
                yield "catalog", name, "the session's journal has not as many entries as it is said to"
        except IntegrityError as error:
            yield "format", name, f"the session's journal cannot be read: {error.message}"


def _check_states(transaction: Transaction, tenant: int, values: ValueCipher) -> Iterator[_Found]:
    from holdfast.store.codecs.session_format import decode_checkpoint

    for name, tree, kept, tier, data, there in transaction.all(
        """SELECT hash, tree, kept, tier, data,
            EXISTS (SELECT 1 FROM checkpoints p WHERE p.tenant = c.tenant AND p.id = c.tree)
        FROM session_checkpoints c WHERE tenant = ?""",
        (tenant,),
    ):
        if kept and not there:
            yield "reference", name, f"its tree, the checkpoint {tree}, does not exist"
        if (data is None) == (tier == "hot"):
            yield "catalog", name, "its content is said to be where it is not"
        if data is not None:
            try:
                decode_checkpoint(values.open("session_checkpoints", "data", name, data) or b"", name)
            except IntegrityError as error:
                yield "format", name, f"the session checkpoint cannot be read: {error.message}"


def check_session_objects(
    catalog: Catalog, where: Callable[[str], ObjectStore | None], *, read_data: bool
) -> Iterator[_Found]:
    """The problems of warm and cold states' objects; ``where`` returns the object store of a tier (None: unknown, and
    not checked).
    """
    find = "SELECT hash, tier, stored FROM session_checkpoints WHERE tenant = ? AND tier <> 'hot'"
    with catalog.database.reading() as transaction:
        rows = transaction.all(find, (catalog.tenant,))
    for name, tier, stored in rows:
        found = _check_object(catalog.name, name, stored, where(tier), read_data=read_data)
        if found is not None:
            with catalog.database.reading() as transaction:
                now = transaction.one(f"{find} AND hash = ?", (catalog.tenant, name))
            if now == (name, tier, stored):  # else it was just moved on, or deleted
                yield found


def _check_object(
    tenant: str, name: SessionHash, stored: int, objects: ObjectStore | None, *, read_data: bool
) -> _Found | None:
    from holdfast.store.codecs.session_format import decode_checkpoint

    if objects is None:
        return None
    key = session_key(tenant, name)
    try:
        size = objects.size(key)
    except UsageError:  # no object can have that name: its row is damaged, as its checksum says
        return None
    if size is None:
        return "missing", key, f"the session checkpoint {name} is missing"
    if size != stored:
        return "damaged", key, f"the object has {size} bytes; it was written with {stored}"
    if read_data:
        try:
            decode_checkpoint(objects.get(key), name)
        except HoldfastError as error:
            return "damaged", key, error.message
    return None
