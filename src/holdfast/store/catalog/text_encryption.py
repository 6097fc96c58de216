"""The catalog's columns of text that say what agents and users wrote, encrypted where the store has a key.

Specified in docs/formats/catalog.md ("Encrypted values"). What encrypts is loaded only where there is a key: the rows
are read by every short command.
"""

from __future__ import annotations

from holdfast.model.checkpoint import Provenance
from holdfast.model.errors import IntegrityError
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.store.catalog.row_checksums import CHECKPOINTS, HISTORY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.model.ids import CheckpointId
    from holdfast.store.catalog.catalog import Catalog
    from holdfast.store.catalog.row_checksums import ChecksummedTable

TEXTS = {HISTORY: ("text",), CHECKPOINTS: ("message", "command")}
"""By table: the columns whose texts are encrypted."""
UNREADABLE = "(this cannot be decrypted)"
"""Read in place of a text that is damaged, another row's, or of a key that is not known."""
_MAGIC = "SEZST1c"
"""With what the base64 of a value with the magic begins."""


def event_name(workspace: str, at: int) -> str:
    """What the row of an event is called: its number is given only when it is written, and is another in a copy."""
    return f"{workspace}/{at}"


def name_of(covered: ChecksummedTable) -> str:
    """The expression in SQL that names a row of one of `TEXTS`."""
    return "workspace || '/' || at" if covered is HISTORY else covered.key


def row_name(covered: ChecksummedTable, columns: Sequence[str], values: Sequence[object]) -> str:
    """The same, of values that were read."""
    if covered is HISTORY:
        return f"{values[columns.index('workspace')]}/{values[columns.index('at')]}"
    return str(values[columns.index(covered.key)])


class TextCipher:
    """Turns texts of a catalog's rows into what is stored, and back; an empty text stays empty."""

    __slots__ = ("_catalog",)

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def seal(self, table: str, column: str, row: str, text: str) -> str:
        """What is to be stored in a row of this name."""
        if not text:
            return text
        if self._catalog.keys is None and not text.startswith(_MAGIC):
            return text
        from base64 import b64encode

        from holdfast.store.objects import sealed_values

        value = text.encode()
        if self._catalog.keys is None:
            return b64encode(sealed_values.MAGIC + sealed_values.PLAIN + value).decode()
        return b64encode(sealed_values.seal(value, f"{table} {column} {row}", self._catalog.keys.current)).decode()

    def open(self, table: str, column: str, row: str, stored: str) -> str:
        """What was given to `seal`; `UNREADABLE` where `read` raises: a text that is lost must not stand between a user
        and the content.
        """
        if not stored.startswith(_MAGIC):
            return stored  # (`verify` names it where all are encrypted)
        try:
            return self.read(table, column, row, stored)
        except IntegrityError:
            return UNREADABLE

    def seal_provenance(self, checkpoint: CheckpointId, provenance: Provenance) -> tuple[str, str, str]:
        """The author, message and command of a checkpoint as they are stored."""
        author, message, command = provenance
        return (
            author,
            self.seal("checkpoints", "message", checkpoint, message),
            self.seal("checkpoints", "command", checkpoint, command),
        )

    def open_provenance(self, checkpoint: CheckpointId, author: str, message: str, command: str) -> Provenance:
        """What was given to `seal_provenance`."""
        return Provenance(
            author,
            self.open("checkpoints", "message", checkpoint, message),
            self.open("checkpoints", "command", checkpoint, command),
        )

    def read(self, table: str, column: str, row: str, stored: str) -> str:
        """What was given to `seal`. Raises `IntegrityError` as `value_encryption.ValueCipher.open` does."""
        keys = self._catalog.keys
        place = f"{table} {column} {row}"
        if is_encrypted(stored):
            from base64 import b64decode

            from holdfast.store.objects import sealed_values

            try:
                value = b64decode(stored, validate=True)
                return sealed_values.unseal(value, place, {} if keys is None else keys.known).decode()
            except ValueError:
                raise IntegrityError(f"the catalog's {place} is damaged") from None
        if stored and keys is not None and not self._catalog.accepts_plain:
            raise IntegrityError(f"the catalog's {place} is not encrypted, though all such values are")
        return plain_text(stored)


def is_encrypted(stored: str) -> bool:
    """Whether a stored text is encrypted."""
    return stored.startswith(_MAGIC + "B")


def plain_text(stored: str) -> str:
    """A text that is not encrypted, of what is stored: one that only looks like a value with the magic is itself."""
    if not stored.startswith(_MAGIC):
        return stored
    from base64 import b64decode

    from holdfast.store.objects import sealed_values

    try:
        return sealed_values.unescape(b64decode(stored, validate=True)).decode()
    except (ValueError, IntegrityError):
        return stored
