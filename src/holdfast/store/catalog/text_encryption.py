"""The catalog's text columns with the words of agents and users, encrypted if the store has a key.

Specified in docs/formats/catalog.md ("Encrypted values"). The encryption is imported only if there is a key: every
short command reads these rows.
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
    """The name of an event's row: its number is assigned only when it is written, and differs in a copy."""
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
    """Encrypts texts of a catalog's rows, and decrypts them; an empty text stays empty."""

    __slots__ = ("_catalog",)

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def seal(self, table: str, column: str, row: str, text: str) -> str:
        """The stored form of a text in the row with this name."""
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
        """The argument of `seal`; `UNREADABLE` where `read` raises: a lost text must not keep a user from the
        content.
        """
        if not stored.startswith(_MAGIC):
            return stored  # `verify` reports it where all are encrypted
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
        """The argument of `seal_provenance`."""
        return Provenance(
            author,
            self.open("checkpoints", "message", checkpoint, message),
            self.open("checkpoints", "command", checkpoint, command),
        )

    def read(self, table: str, column: str, row: str, stored: str) -> str:
        """The argument of `seal`. Raises `IntegrityError` as `value_encryption.ValueCipher.open`."""
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
    """An unencrypted text in its stored form: one that only looks encrypted is returned unchanged."""
    if not stored.startswith(_MAGIC):
        return stored
    from base64 import b64decode

    from holdfast.store.objects import sealed_values

    try:
        return sealed_values.unescape(b64decode(stored, validate=True)).decode()
    except (ValueError, IntegrityError):
        return stored
