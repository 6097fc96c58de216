"""Of which files of credentials the user was told that they are not captured: said once, not with every status.

The file is specified in ``docs/formats/told.md``.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.engine.opening.folder import TOLD
from holdfast.files.notes import NoteFile
from holdfast.files.secret_files import CREDENTIALS
from holdfast.model.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.model.entries import NotCaptured

_FILE = NoteFile(
    name=TOLD, magic=b"HFTD 1 ", what="a note of what was told", max_bytes=1 << 20, advice="it is not needed"
)


def without_told(folder: bytes, missed: Sequence[NotCaptured]) -> list[NotCaptured]:
    """Those of ``missed``, which are about to be told, that were not told before; only files of credentials are told
    once. Losing the note does no harm: they are told again.
    """
    credentials = {path for path, reason in missed if reason == CREDENTIALS}
    if not credentials:
        return list(missed)
    told: set[bytes] = set()
    with suppress(HoldfastError):
        told.update((_FILE.read(folder) or b"").split(b"\0"))
    if not credentials <= told:
        with suppress(HoldfastError):
            _FILE.write(folder, b"\0".join(sorted(credentials)))
    return [one for one in missed if one.path not in credentials & told]
