"""What trees looked like at some moments of a promotion, kept in its folder: docs/formats/promotion.md.

One that is lost or damaged makes the promotion begin anew; production does not depend on it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from holdfast.files.stamps import Stamp
from holdfast.model.errors import FormatError, StorageError, room_hint
from holdfast.model.ids import hash_bytes
from holdfast.model.paths import display

if TYPE_CHECKING:
    from holdfast.engine.promotion.work import Work
    from holdfast.files.stamps import Stamps

BEFORE_COPY = b"before-copy"
"""Production before it was copied."""
AFTER_APPLY = b"after-apply"
"""The copy before anything was built in it."""
AT_SWAP = b"at-swap"
"""The old tree when it was swapped."""

_MAGIC = b"HFPS 1\n"
_HASH_BYTES = 16
_Rows = list[tuple[bytes, int, int, int, int, int, int, int]]


def save_stamps(work: Work, name: bytes, found: Stamps) -> None:
    """Keep them: atomic. Raises `StorageError`."""
    path = os.path.join(work.folder, name)
    body = msgspec.msgpack.encode([(where, *stamp) for where, stamp in found.items()])
    try:
        with open(path + b".new", "wb") as file:
            file.write(_MAGIC + hash_bytes(body) + body)
        os.rename(path + b".new", path)
    except OSError as error:
        raise StorageError(f"cannot write {display(path)}: {error.strerror}", hint=room_hint(error)) from error


def load_stamps(work: Work, name: bytes) -> Stamps:
    """What was kept. Raises `FormatError` if that is damaged or not there."""
    path = os.path.join(work.folder, name)
    try:
        with open(path, "rb") as file:
            data = file.read()
        head, body = data[: len(_MAGIC) + _HASH_BYTES], data[len(_MAGIC) + _HASH_BYTES :]
        if head != _MAGIC + hash_bytes(body):
            raise FormatError(f"{display(path)} is damaged, or of another version", hint="promote again")
        rows = msgspec.msgpack.decode(body, type=_Rows)
    except (OSError, msgspec.MsgspecError) as error:
        raise FormatError(f"{display(path)} cannot be read: {error}", hint="promote again") from error
    return {row[0]: Stamp(*row[1:]) for row in rows}
