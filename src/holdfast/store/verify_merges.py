"""Verification of merges: the rows of second parents, and of changes that wait to be applied anew."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

from holdfast.store.checksums import COVERED_MERGES, MERGES, damaged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.store.database import Session

    _Found = tuple[Literal["catalog", "reference", "format", "damaged", "missing"], str, str]


def check_merges(session: Session, tenant: int) -> Iterator[_Found]:
    """What is wrong in the catalog, as kind, object and message. Use it up inside the transaction."""
    for covered in COVERED_MERGES:
        what = "merge" if covered is MERGES else "change to be applied anew"
        for key in damaged(session, covered, tenant):
            yield "damaged", str(key), f"the catalog's record of this {what} is damaged"
    for name, other in session.all(
        """SELECT checkpoint, other FROM merges m WHERE tenant = ? AND NOT EXISTS (
            SELECT 1 FROM checkpoints c WHERE c.tenant = m.tenant AND c.id = m.other)""",
        (tenant,),
    ):
        yield "reference", name, f"the checkpoint {other} that it is said to hold the work of does not exist"
    for name, record in session.all("SELECT id, record FROM merges WHERE tenant = ? AND record <> ''", (tenant,)):
        try:
            json.loads(record)
        except ValueError:
            yield "format", name, "the record of this merge is no JSON"
