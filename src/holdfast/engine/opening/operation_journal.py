"""The notes that a restore, an undo or a redo leaves before it touches the tree, so that a crash is noticed (I3).

The format is specified in ``docs/formats/restore-journal.md``.
"""

from __future__ import annotations

from holdfast.engine.opening.home import RESTORE_JOURNAL, UNDO_NOTE
from holdfast.files.note_file import NoteFile
from holdfast.model.errors import RefusedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING, Literal, cast
from holdfast.model.ids import CheckpointId
from holdfast.model.log import Log
from holdfast.model.paths import display, parse_display

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Operation = Literal["restore", "undo", "redo", "fork"]

_LOG = Log(__name__)
_FILE = NoteFile(
    name=RESTORE_JOURNAL,
    magic=b"HFRJ 1 ",
    what="a restore journal",
    max_bytes=64 << 20,
    advice="the tree may be half restored; look at `holdfast status`, restore what you want",
)


class Journal(NamedTuple):
    """What a restore was about to do."""

    operation: Operation
    target: CheckpointId
    rescue: CheckpointId | None
    """The checkpoint that holds the tree as it was; None for a fork, whose directory was empty."""
    position: int | None
    """The event that the tree's state was before, for `undo` to go back to."""
    state: int | None
    """For undo and redo: the event whose state the tree is being brought to."""
    paths: tuple[bytes, ...]
    """What it is limited to; empty for the whole tree."""
    nonce: str
    """Part of the names of the temporary files."""
    at: int
    """Microseconds since 1970-01-01 UTC."""
    redo_tip: int | None = None
    """The event that `redo` led to: what is saved when the restore is finished or taken back must not hide it."""
    taken_back: CheckpointId | None = None
    """The target of the restore that this takes back: only what that may have made is deleted."""
    in_place: tuple[bytes, ...] = ()
    """What cannot be replaced as a whole and may be half written: mount points."""
    opened: tuple[tuple[bytes, int], ...] = ()
    """The directories that are open for now, with the permissions that they get back."""
    undo_seq: int | None = None
    """The largest sequence number that the undo log had given out when it began; None: not known."""


class JournalNotes:
    """What `Tree.apply` notes (see `holdfast.files.tree.ApplyNotes`), in the restore's journal."""

    def __init__(self, folder: bytes, journal: Journal, paths: Sequence[bytes]) -> None:
        """``journal`` is the one that is in place, ``paths`` as `ApplyNotes.paths`."""
        self.paths = paths
        self._folder = folder
        self._journal = journal

    @property
    def opened(self) -> Mapping[bytes, int]:
        """See `ApplyNotes.opened`."""
        return dict(self._journal.opened)

    def opening(self, modes: Mapping[bytes, int]) -> None:
        """See `ApplyNotes.opening`."""
        self._journal = self._journal._replace(opened=tuple(modes.items()))
        write_journal(self._folder, self._journal)

    def in_place(self, path: bytes) -> None:
        """See `ApplyNotes.in_place`; said to the user as well."""
        _LOG.warning("%s is a mount point: it is written in place", display(path))
        self._journal = self._journal._replace(in_place=(*self._journal.in_place, path))
        write_journal(self._folder, self._journal)


def write_journal(folder: bytes, journal: Journal) -> None:
    """Put the note in place: atomic and durable when it returns. Replaces an earlier one."""
    import json

    fields = journal._asdict()
    fields["paths"] = [display(path) for path in journal.paths]
    fields["opened"] = [[display(path), f"{mode:o}"] for path, mode in journal.opened]
    fields["in_place"] = [display(path) for path in journal.in_place]
    _FILE.write(folder, json.dumps(fields, sort_keys=True).encode() + b"\n")


def read_journal(folder: bytes) -> Journal | None:
    """The note, or None if there is none. Raises `FormatError` if it is damaged or of a newer version."""
    body = _FILE.read(folder)
    return None if body is None else _decode(folder, body)


def remove_journal(folder: bytes) -> None:
    """Take the note away: the restore is complete. Durable; a missing one is no error."""
    _FILE.remove(folder)


def refuse_unfinished(folder: bytes) -> None:
    """Raise `RefusedError` if a restore in the workspace with this ``folder`` was cut short and neither finished nor
    taken back.
    """
    journal = read_journal(folder)
    if journal is not None:
        raise RefusedError(
            f"a {journal.operation} to {journal.target[:12]} was cut short; the tree may be half way",
            hint="`holdfast restore --continue` finishes it, `holdfast restore --abort` goes back to what was before",
            code="unfinished_restore",
        )


def new_nonce(random: Callable[[int], bytes]) -> str:
    """A fresh nonce for the names of temporary files."""
    return random(8).hex()


def _decode(folder: bytes, body: bytes) -> Journal:
    import json

    try:
        fields = cast("Mapping[str, object]", json.loads(body))
        paths = cast("list[str]", fields["paths"])
        rescue = fields["rescue"]
        taken_back = fields.get("taken_back")
        return Journal(
            operation=cast("Operation", str(fields["operation"])),
            target=CheckpointId(str(fields["target"])),
            rescue=None if rescue is None else CheckpointId(str(rescue)),
            position=cast("int | None", fields["position"]),
            state=cast("int | None", fields["state"]),
            paths=tuple(parse_display(text) for text in paths),
            nonce=str(fields["nonce"]),
            at=cast("int", fields["at"]),
            redo_tip=cast("int | None", fields.get("redo_tip")),
            taken_back=None if taken_back is None else CheckpointId(str(taken_back)),
            in_place=tuple(parse_display(text) for text in cast("list[str]", fields.get("in_place", ()))),
            opened=tuple(
                (parse_display(text), int(mode, 8))
                for text, mode in cast("list[tuple[str, str]]", fields.get("opened", ()))
            ),
            undo_seq=cast("int | None", fields.get("undo_seq")),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _FILE.damaged_error(folder, f"lacks a field or has a bad one: {error}") from error


# The note that an undo or a redo by the log leaves in the workspace's folder: after a kill the history learns of it
# (I3).
#
# The undo log finishes by itself what was cut short; where in the history that belongs only the note knows. The format
# is specified in ``docs/formats/undo-note.md``.

_UNDO_NOTE = NoteFile(
    name=UNDO_NOTE,
    magic=b"HFUN 1 ",
    what="an undo note",
    max_bytes=16 << 20,
    advice="an undo or a redo was cut short: look at `holdfast steps` and `holdfast log`",
)


class UndoNote(NamedTuple):
    """What an undo or a redo was about to do."""

    operation: Literal["undo", "redo"]
    position: int
    """The event whose state the tree was in."""
    redo_tip: int
    """The event that `redo` led to."""
    target: int | None
    """For a redo along the history: the event whose state it leads to."""
    acted: int
    """The latest change that any of the steps had made; once they are reversed, that of each is later."""
    steps: tuple[int, ...]


def write_undo_note(folder: bytes, note: UndoNote) -> None:
    """Put the note in place, atomic and durable; replaces an earlier one. Raises `StorageError`."""
    numbers = (note.position, note.redo_tip, note.target or 0, note.acted, *note.steps)
    _UNDO_NOTE.write(folder, b" ".join((note.operation.encode(), *(b"%d" % number for number in numbers))) + b"\n")


def read_undo_note(folder: bytes) -> UndoNote | None:
    """The note, or None if there is none. Raises `FormatError` if it is damaged or of a newer version."""
    body = _UNDO_NOTE.read(folder)
    if body is None:
        return None
    operation, *words = body.split()
    try:
        position, redo_tip, target, acted, first, *others = map(int, words)
    except ValueError as error:
        raise _UNDO_NOTE.damaged_error(folder, f"lacks a number or has a bad one: {error}") from error
    if operation not in (b"undo", b"redo"):
        raise _UNDO_NOTE.damaged_error(folder, "is of neither an undo nor a redo")
    return UndoNote(
        operation="undo" if operation == b"undo" else "redo",
        position=position,
        redo_tip=redo_tip,
        target=target or None,
        acted=acted,
        steps=(first, *others),
    )


def remove_undo_note(folder: bytes) -> None:
    """Take the note away, if it is there: the history knows, or nothing was done. Durable. Raises `StorageError`."""
    _UNDO_NOTE.remove(folder)
