"""Verification of what is served: the rows of exports, tokens and kept answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from holdfast.store.checksums import ANSWERS, COVERED_SERVING, EXPORTS, TOKENS, damaged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.store.database import Session

_WHAT = {EXPORTS.table: "export", TOKENS.table: "token", ANSWERS.table: "kept answer"}


def check_serving(session: Session, tenant: int) -> Iterator[tuple[Literal["damaged"], str, str]]:
    """What is wrong in the catalog, as kind, object and message. Use it up inside the transaction."""
    for covered in COVERED_SERVING:
        for key in damaged(session, covered, tenant):
            yield "damaged", str(key), f"the catalog's record of this {_WHAT[covered.table]} is damaged"
