"""The open steps: the records of each, objects that need no further record, and others' edits meanwhile."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec

from holdfast.files.linux.file_handle import Identity
from holdfast.model.decoders import msgpack_decoder
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log
from holdfast.undo.journal.records import (
    Begin,
    Link,
    Move,
    Mutation,
    ObjectKey,
    Signature,
    Unprotected,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from holdfast._hot import Keys, Step
    from holdfast.undo.journal.records import (
        ForeignEdit,
        StepId,
    )

MOST_EDITS = 10_000
"""With more of them, all that the step has touched by then counts as edited."""
_ANYTHING = b""
T = TypeVar("T", bytes, "Identity")


Paths: TypeAlias = "set[bytes] | Keys"
Objects: TypeAlias = "set[Identity] | Keys"
Contacts: TypeAlias = "set[ObjectKey] | Keys"
Natively: TypeAlias = "Step | None"


class Weight(NamedTuple):
    """The addition to the losses of a step."""

    files: int
    bytes: int
    is_kept: bool = False
    """Git has the deleted content: a new file at its path revokes the loss."""


class Rule(Enum):
    """The reason of a question."""

    LOSS = "loss"
    """The step would have lost this many files or bytes (`holdfast.undo.safeguards.losses`)."""
    RENAME_OVER = "rename_over"
    """Each rename that replaces a file is asked about."""
    LIMIT = "limit"


_log = Log(__name__)


class EditsInStep:
    """Others' edits during a step. Kept until the step ends, and then compared with its records, which may be retracted
    until then.

    Sequence numbers tell when an edit became known. For one thread at a time.
    """

    __slots__ = ("_objects", "_paths", "is_bounded")

    def __init__(self) -> None:
        self._paths: dict[bytes, list[int]] = {}
        self._objects: dict[Identity, list[int]] = {}
        self.is_bounded = False
        """There were more than the limit: then the root's path stands for any path."""

    def add(self, edit: ForeignEdit, acted: int) -> None:
        """One more edit; the step has recorded nothing after the sequence number ``acted`` yet."""
        if self.is_bounded or _ANYTHING in edit.paths:
            self._bound(edit.seq)
            return
        _note(self._paths, edit.paths, edit.seq, acted)
        _note(self._objects, edit.objects, edit.seq, acted)
        # Repeated edits of the same take no more space than the step's own records.
        if len(self._paths) + len(self._objects) > MOST_EDITS:
            self.is_bounded = True
            self._bound(edit.seq)

    def _bound(self, seq: int) -> None:
        # The last such edit includes all before it.
        if self.is_bounded:
            self._paths.clear()
            self._objects.clear()
        self._paths[_ANYTHING] = [seq]

    def paths(self) -> Iterator[tuple[int, bytes]]:
        """Edited paths, the root's for any path; with the sequence numbers."""
        return _numbered(self._paths)

    def objects(self) -> Iterator[tuple[int, Identity]]:
        """Edited objects, by any name, as `paths`."""
        return _numbered(self._objects)


def _note(known: dict[T, list[int]], found: Iterable[T], seq: int, acted: int) -> None:
    for one in found:
        numbers = known.setdefault(one, [])
        # Between two edits the step may have touched or moved it; otherwise one number is enough.
        if not numbers or numbers[-1] <= acted:
            numbers.append(seq)


def _numbered(known: Mapping[T, Iterable[int]]) -> Iterator[tuple[int, T]]:
    return ((seq, one) for one, numbers in known.items() for seq in numbers)


_decode_records = msgpack_decoder(list[Mutation]).decode
_decode_before = msgpack_decoder(list[tuple[Identity, tuple[int, int, int] | None]]).decode


class OpenStep(msgspec.Struct):
    """One step, until it is sealed. Changed only by the recorder, under its gate."""

    begin: Begin
    native: Natively = None
    """Its state in the native recorder."""
    taken: list[Mutation] = msgspec.field(default_factory=list["Mutation"])
    """`records`, without native ones since."""
    touched: Paths = msgspec.field(default_factory=set[bytes])
    """Directories whose mtime is recorded."""
    created: Objects = msgspec.field(default_factory=set["Identity"])
    """Objects that the step itself made: their changes need no preimage."""
    captured: Objects = msgspec.field(default_factory=set["Identity"])
    """Files whose content is recorded."""
    described: Objects = msgspec.field(default_factory=set["Identity"])
    """Objects whose metadata is recorded."""
    contacts: Contacts = msgspec.field(default_factory=set["ObjectKey"])
    """Objects that it has touched."""
    removed: set[Signature] = msgspec.field(default_factory=set["Signature"])
    """Its own objects that it has removed, as another step that ended meanwhile recorded them."""
    shared: list[int] = msgspec.field(default_factory=list[int])
    """The numbers of preimages that have other names, as far as known."""
    seen_before: dict[Identity, tuple[int, int, int] | None] = msgspec.field(
        default_factory=dict["Identity", "tuple[int, int, int] | None"]
    )
    """`stats_before`, without native ones since."""
    renamed: list[Link | Move] = msgspec.field(default_factory=list["Link | Move"])
    """`renames`, without native ones since."""
    renames_by_others: list[Link | Move] = msgspec.field(default_factory=list["Link | Move"])
    """Other steps' renames, from its beginning until its results were examined."""
    detached: set[ObjectKey] = msgspec.field(default_factory=set["ObjectKey"])
    """Objects that lost a name, have others, and have nothing in the log."""
    copied_here: int = 0
    """`copied`, where nothing is copied natively."""
    inline: int = 0
    """Bytes of preimages that are in records."""
    partly_lost: dict[Identity, int] = msgspec.field(default_factory=dict["Identity", int])
    """Of each file that counts as lost, the bytes that do not yet (`holdfast.undo.safeguards.losses`)."""
    opened_first: set[Identity] = msgspec.field(default_factory=set["Identity"])
    """Files that it was the first of its run to open for writing, and that counted."""
    lost_files: int = 0
    lost_bytes: int = 0
    replaceable: dict[bytes, Weight] = msgspec.field(default_factory=dict[bytes, "Weight"])
    """Of files that it has deleted and Git holds, by their paths: what no longer counts when it makes them anew."""
    aliases: list[tuple[Identity, Identity]] = msgspec.field(default_factory=list[tuple["Identity", "Identity"]])
    """The old and the new object for each that had to be made anew."""
    held: int = 0
    """The ticket that it waits for; 0 if none."""
    allowed: set[Rule] = msgspec.field(default_factory=set["Rule"])
    """Questions that a person has allowed."""
    reverses: bool = False
    """It records a reversal: no questions and no limits, so that everything can be restored."""
    unprotected: Unprotected | None = None
    """From when on it is not protected, and why."""
    busy: int = 0
    """Operations in flight outside of the gate."""
    looked_at: int = 0
    """The sequence number, up to which others had changed the tree, when its results were examined; 0 before."""
    span: tuple[int, int] | None = None
    """The sequence numbers of its first record and its last, if some were taken out."""
    transient: frozenset[bytes] = frozenset()
    """The paths of objects that it made and removed, and that are in no record any more."""
    edits: EditsInStep = msgspec.field(default_factory=EditsInStep)
    """Others' changes during the step, related to it or not."""
    last: float = 0.0
    """`last_active`, without native operations."""

    @classmethod
    def opened(cls, begin: Begin, native: Step | None, *, reverses: bool = False, last: float = 0.0) -> OpenStep:
        """One that begins; ``native`` is given if its calls may be carried out natively."""
        step = cls(begin, native, reverses=reverses, last=last)
        if native is not None:
            step.created, step.captured, step.described = native.created, native.captured, native.described
            step.touched, step.contacts = native.touched, native.contacts
        return step

    @property
    def records(self) -> list[Mutation]:
        """In the order of the journal."""
        self._take()
        return self.taken

    @records.setter
    def records(self, records: list[Mutation]) -> None:
        self.taken = records

    @property
    def renames(self) -> list[Link | Move]:
        """Its records that give objects another path."""
        self._take()
        return self.renamed

    def _take(self) -> None:
        if self.native is not None and (found := self.native.take_records()) is not None:
            records = _decode_records(found)
            self.taken += records
            self.renamed += [record for record in records if isinstance(record, (Link, Move))]

    @property
    def stats_before(self) -> dict[Identity, tuple[int, int, int] | None]:
        """Size, mtime and ctime of captured or described objects, from before; None where these could not show an
        immediate change.
        """
        if self.native is not None and (found := self.native.take_before()) is not None:
            for object_, before in _decode_before(found):
                self.seen_before.setdefault(object_, before)
        return self.seen_before

    @property
    def last_active(self) -> float:
        """The time of its last operation, on the monotonic clock."""
        return self.last if self.native is None else max(self.last, self.native.last)

    @property
    def copied(self) -> int:
        """Bytes of preimages that were copied."""
        return self.copied_here if self.native is None else self.native.copied

    def note_copied(self, size: int) -> None:
        """Count ``size`` more bytes of copied preimages."""
        if self.native is None:
            self.copied_here += size
        else:
            self.native.copied += size

    def add_edit(self, edit: ForeignEdit) -> None:
        """Add others' edit, which is identified by the number of its record."""
        was_bounded = self.edits.is_bounded
        self.edits.add(edit, self.records[-1].seq if self.records else 0)
        if self.edits.is_bounded and not was_bounded:
            _log.warning(
                "other processes edited so much while step %d is running that all its changes count as edited",
                self.id,
                step_id=self.id,
            )

    @property
    def journal_note(self) -> tuple[Unprotected, ...]:
        """Its additional records in the journal."""
        return (self.unprotected,) if self.unprotected else ()

    @property
    def unprotected_reason(self) -> str:
        """Why it is not protected; empty if it is."""
        return self.unprotected.reason if self.unprotected else ""

    @property
    def id(self) -> StepId:
        """The step's id."""
        return self.begin.step
