"""Tokens: who may ask for what over the network. The secret is shown once, and its hash alone is kept."""

from __future__ import annotations

import hmac
import re
from typing import TYPE_CHECKING

from blake3 import blake3

from holdfast.engine.exports.named_workspaces import check_name
from holdfast.model.errors import UsageError
from holdfast.store.catalog.token_rows import TokenRow, TokenRows, find_token

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.model.clock import Clock
    from holdfast.store.catalog.catalog import Catalog
    from holdfast.store.catalog.token_rows import Rights
    from holdfast.store.database.sql_database import Database

RIGHTS: tuple[Rights, ...] = ("read", "write", "admin")
"""Each has those before it."""

_TOKEN = re.compile(r"hft_([0-9a-f]{16})_([0-9a-f]{64})")
_MOST_LABEL = 200
_NOBODY = bytes(32)


def create_token(
    catalog: Catalog,
    clock: Clock,
    random: Callable[[int], bytes],
    *,
    rights: Rights,
    exports: Sequence[str] = (),
    roots: Sequence[bytes] = (),
    label: str = "",
    lasts: float | None = None,
) -> tuple[str, TokenRow]:
    """Make a token of the catalog's tenant, valid for ``lasts`` seconds (None: for ever): its text, and its row.

    ``exports``: the only ones that it is for (empty: all). ``roots``: absolute paths of directories below which it may
    make exports. Raises `UsageError`.
    """
    if rights not in RIGHTS:
        raise UsageError(f"there are no rights {rights!r}", hint=f"one of {', '.join(RIGHTS)}")
    for name in exports:
        check_name(name)
    if roots and exports:
        raise UsageError(
            "a token that is for some exports alone makes no others", hint="leave out either --export or --root"
        )
    if len(label) > _MOST_LABEL or not label.isprintable():
        raise UsageError(f"a label has at most {_MOST_LABEL} characters that can be printed")
    now, name, secret = clock.now(), random(8).hex(), random(32).hex()
    row = TokenRow(
        id=name,
        digest=_digest(secret),
        rights=rights,
        exports=tuple(dict.fromkeys(exports)),
        roots=tuple(dict.fromkeys(roots)),
        label=label,
        created_at=now,
        expires_at=None if lasts is None else now + int(lasts * 1_000_000),
    )
    TokenRows(catalog).add(row)
    return f"hft_{name}_{secret}", row


def authenticate(database: Database, text: str, now: int) -> tuple[str, TokenRow] | None:
    """The tenant and the token of ``text``; None if it is invalid or expired.

    Takes the same time for wrong secrets as for right ones.
    """
    match = _TOKEN.fullmatch(text)
    if match is None:
        return None
    found = find_token(database, match[1])
    right = hmac.compare_digest(_digest(match[2]), _NOBODY if found is None else found[1].digest)
    if found is None or not right:
        return None
    expires_at = found[1].expires_at
    return None if expires_at is not None and expires_at <= now else found


def _digest(secret: str) -> bytes:
    return blake3(secret.encode()).digest()
