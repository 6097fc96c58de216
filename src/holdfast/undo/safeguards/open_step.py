"""The steps that are open: what each has recorded, what it need not record again, and what others edit meanwhile."""

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
    """What a loss adds to what its step has lost."""

    files: int
    bytes: int
    is_kept: bool = False
    """Git holds what is deleted: made anew at its path, the file is not lost."""


class Rule(Enum):
    """By what it is asked."""

    LOSS = "loss"
    """The step would have lost so many files or bytes (`holdfast.undo.safeguards.losses`)."""
    RENAME_OVER = "rename_over"
    """Each rename that replaces a file is asked about."""
    LIMIT = "limit"


_log = Log(__name__)


class EditsInStep:
    """What others edit while a step goes on. Kept until the step ends, and then compared with its records, which may be
    taken back until then.

    Sequence numbers say when an edit was known. For one thread at a time.
    """

    __slots__ = ("_objects", "_paths", "is_bounded")

    def __init__(self) -> None:
        self._paths: dict[bytes, list[int]] = {}
        self._objects: dict[Identity, list[int]] = {}
        self.is_bounded = False
        """There were more than are kept: then the root's path stands for anything."""

    def add(self, edit: ForeignEdit, acted: int) -> None:
        """One more edit; the step has recorded nothing after the sequence number ``acted`` yet."""
        if self.is_bounded or _ANYTHING in edit.paths:
            self._bound(edit.seq)
            return
        _note(self._paths, edit.paths, edit.seq, acted)
        _note(self._objects, edit.objects, edit.seq, acted)
        # (What is noted anew for the same is no more than the step itself has recorded.)
        if len(self._paths) + len(self._objects) > MOST_EDITS:
            self.is_bounded = True
            self._bound(edit.seq)

    def _bound(self, seq: int) -> None:
        # (The last such edit says as much as all before it.)
        if self.is_bounded:
            self._paths.clear()
            self._objects.clear()
        self._paths[_ANYTHING] = [seq]

    def paths(self) -> Iterator[tuple[int, bytes]]:
        """What was edited by its path, the root's: anything; with the sequence numbers."""
        return _numbered(self._paths)

    def objects(self) -> Iterator[tuple[int, Identity]]:
        """What was edited by whatever name, as `paths`."""
        return _numbered(self._objects)


def _note(known: dict[T, list[int]], found: Iterable[T], seq: int, acted: int) -> None:
    for one in found:
        numbers = known.setdefault(one, [])
        # (Between two edits the step may have come to it, or moved it; else one says as much as both.)
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
    """What is known of it where calls are carried out natively."""
    taken: list[Mutation] = msgspec.field(default_factory=list["Mutation"])
    """`records`, without those that were written natively since."""
    touched: Paths = msgspec.field(default_factory=set[bytes])
    """Directories whose mtime is recorded."""
    created: Objects = msgspec.field(default_factory=set["Identity"])
    """What the step itself made: what becomes of it needs no preimage."""
    captured: Objects = msgspec.field(default_factory=set["Identity"])
    """Files whose content is recorded."""
    described: Objects = msgspec.field(default_factory=set["Identity"])
    """Objects whose metadata is recorded."""
    contacts: Contacts = msgspec.field(default_factory=set["ObjectKey"])
    """What it has come upon."""
    removed: set[Signature] = msgspec.field(default_factory=set["Signature"])
    """What it has removed of its own, as another step that ended meanwhile found it."""
    shared: list[int] = msgspec.field(default_factory=list[int])
    """The numbers of preimages that have other names, as far as is known."""
    seen_before: dict[Identity, tuple[int, int, int] | None] = msgspec.field(
        default_factory=dict["Identity", "tuple[int, int, int] | None"]
    )
    """`stats_before`, without what was noted natively since."""
    renamed: list[Link | Move] = msgspec.field(default_factory=list["Link | Move"])
    """`renames`, without those that were written natively since."""
    renames_by_others: list[Link | Move] = msgspec.field(default_factory=list["Link | Move"])
    """Those of other steps, from its beginning until it was looked at what it left."""
    detached: set[ObjectKey] = msgspec.field(default_factory=set["ObjectKey"])
    """What has lost a name and has others, and of which nothing is in the log."""
    copied_here: int = 0
    """`copied`, where nothing is copied natively."""
    inline: int = 0
    """Bytes of preimages that are in records."""
    partly_lost: dict[Identity, int] = msgspec.field(default_factory=dict["Identity", int])
    """Of each file that counts as lost, the bytes that do not yet (`holdfast.undo.safeguards.losses`)."""
    opened_first: set[Identity] = msgspec.field(default_factory=set["Identity"])
    """What it was the first of its run to open for writing, and counted."""
    lost_files: int = 0
    lost_bytes: int = 0
    replaceable: dict[bytes, Weight] = msgspec.field(default_factory=dict[bytes, "Weight"])
    """Of files that it has deleted and Git holds, by their paths: what no longer counts when it makes them anew."""
    aliases: list[tuple[Identity, Identity]] = msgspec.field(default_factory=list[tuple["Identity", "Identity"]])
    """The old and the new object for each that had to be made anew."""
    held: int = 0
    """The ticket that it waits for; 0 if none."""
    allowed: set[Rule] = msgspec.field(default_factory=set["Rule"])
    """What a person was asked about, and let happen."""
    reverses: bool = False
    """It records a reversal: no person is asked, and no limit holds, so that everything can be had back."""
    unprotected: Unprotected | None = None
    """From when on it is not protected, and why."""
    busy: int = 0
    """Operations in flight outside of the gate."""
    looked_at: int = 0
    """The sequence number up to which others had changed the tree when it was looked at what it left; 0 if never."""
    span: tuple[int, int] | None = None
    """The sequence numbers of its first record and its last, if some were taken out."""
    transient: frozenset[bytes] = frozenset()
    """The paths at which it made and removed something that is in no record any more."""
    edits: EditsInStep = msgspec.field(default_factory=EditsInStep)
    """What others have changed while it went on, whether it had to do with that or not."""
    last: float = 0.0
    """`last_active`, but for what was done natively."""

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
        """Those of its records by which something has got another path."""
        self._take()
        return self.renamed

    def _take(self) -> None:
        if self.native is not None and (found := self.native.take_records()) is not None:
            records = _decode_records(found)
            self.taken += records
            self.renamed += [record for record in records if isinstance(record, (Link, Move))]

    @property
    def stats_before(self) -> dict[Identity, tuple[int, int, int] | None]:
        """Size, mtime and ctime of what is captured or described, from before; None where they could not tell a change
        that followed at once.
        """
        if self.native is not None and (found := self.native.take_before()) is not None:
            for object_, before in _decode_before(found):
                self.seen_before.setdefault(object_, before)
        return self.seen_before

    @property
    def last_active(self) -> float:
        """When it last did something, on the monotonic clock."""
        return self.last if self.native is None else max(self.last, self.native.last)

    @property
    def copied(self) -> int:
        """Bytes of preimages that were copied."""
        return self.copied_here if self.native is None else self.native.copied

    def note_copied(self, size: int) -> None:
        """So many more bytes of preimages were copied."""
        if self.native is None:
            self.copied_here += size
        else:
            self.native.copied += size

    def add_edit(self, edit: ForeignEdit) -> None:
        """Others have changed something, which is known by the number of the record."""
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
        """What the journal says of it besides."""
        return (self.unprotected,) if self.unprotected else ()

    @property
    def unprotected_reason(self) -> str:
        """Why it is not protected; empty if it is."""
        return self.unprotected.reason if self.unprotected else ""

    @property
    def id(self) -> StepId:
        """The step's id."""
        return self.begin.step
