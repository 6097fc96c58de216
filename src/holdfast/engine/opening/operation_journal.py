"""The record that an operation writes before it changes the tree, so that a kill is noticed (I3): one file and one
format for all commands (``docs/formats/operation.md``).

Two notes of older versions are read as well, and never written: ``docs/formats/restore-journal.md`` and
``docs/formats/undo-note.md``.
"""

from __future__ import annotations

import os

from holdfast.engine.opening.home import OPERATION, RESTORE_JOURNAL, UNDO_NOTE
from holdfast.files.note_file import NoteFile
from holdfast.model.errors import HoldfastError, LockedError, RefusedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING, Literal
from holdfast.model.ids import CheckpointId
from holdfast.model.log import Log
from holdfast.model.paths import display, parse_display

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from holdfast.engine.opening.context import Context

OperationKind = Literal["restore", "undo", "redo", "fork"]

_LOG = Log(__name__)
_FILE = NoteFile(
    name=OPERATION,
    magic=b"HFOP 1 ",
    what="an operation record",
    max_bytes=64 << 20,
    advice="the tree may be incomplete; see `holdfast status` and `holdfast "
    "steps`, and restore the files that you need",
)
_RESTORE_JOURNAL = NoteFile(
    name=RESTORE_JOURNAL,
    magic=b"HFRJ 1 ",
    what="a restore journal",
    max_bytes=64 << 20,
    advice="the tree may be incomplete; see `holdfast status`, and restore the files that you need",
)
_UNDO_NOTE = NoteFile(
    name=UNDO_NOTE,
    magic=b"HFUN 1 ",
    what="an undo note",
    max_bytes=16 << 20,
    advice="an undo or a redo was cut short: see `holdfast steps` and `holdfast log`",
)


_NUMBERS = ("position", "state", "redo_tip", "undo_seq", "at", "acted")
_NOT_IN_A_JOURNAL = {
    "redo_tip": None,
    "taken_back": None,
    "undo_seq": None,
    "in_place": (),
    "opened": (),
    "steps": (),
    "acted": 0,
}
"""Defaults for fields that a restore journal may omit or does not have."""


class Operation(NamedTuple):
    """A change of a tree in progress: the state before, the target, and its progress.

    It brings the tree to ``target`` by checkpoints, or (``steps``) lets the undo log reverse steps.
    """

    kind: OperationKind
    target: CheckpointId
    """Empty for steps: their result is known only at the end."""
    rescue: CheckpointId | None = None
    """The checkpoint that holds the tree as it was; None for a fork, whose directory was empty."""
    position: int | None = None
    """The event that the tree's state was before, for `undo` to go back to."""
    state: int | None = None
    """For undo and redo: the event whose state is the target. None for undone steps, and steps redone onto the present
    tree.
    """
    paths: tuple[bytes, ...] = ()
    """Only these paths; empty for the whole tree."""
    nonce: str = ""
    """Part of the names of the temporary files."""
    at: int = 0
    """Microseconds since 1970-01-01 UTC."""
    redo_tip: int | None = None
    """The event that `redo` led to: a checkpoint that is made to finish or reverse this must not hide it."""
    taken_back: CheckpointId | None = None
    """The target of the operation that this one reverses: only files that it may have made are deleted."""
    in_place: tuple[bytes, ...] = ()
    """Paths that cannot be replaced as a whole and may be half written: mount points."""
    opened: tuple[tuple[bytes, int], ...] = ()
    """The directories that are open for now, with the permissions that they get back."""
    undo_seq: int | None = None
    """The largest sequence number that the undo log had given out when it began; None: not known."""
    steps: tuple[int, ...] = ()
    """The steps that are reversed, in this order."""
    acted: int = 0
    """The latest change that any of the steps had made; once they are reversed, that of each is later."""


def new_operation(
    context: Context,
    kind: OperationKind,
    target: CheckpointId | None = None,
    *,
    rescue: CheckpointId | None = None,
    state: int | None = None,
    paths: Sequence[bytes] = (),
    steps: Sequence[int] = (),
    acted: int = 0,
) -> Operation:
    """An operation that begins now, at the workspace's present position in its history. Writes nothing."""
    cursor = context.catalog.cursor(context.workspace.id)
    return Operation(
        kind,
        target or CheckpointId(""),
        rescue,
        cursor.position,
        state,
        tuple(paths),
        "" if steps else context.random(8).hex(),
        context.clock.now(),
        cursor.redo_tip,
        undo_seq=context.undo_seq(),
        steps=tuple(steps),
        acted=acted,
    )


class OperationNotes:
    """The notes of `Tree.apply` (see `holdfast.files.tree.ApplyNotes`), kept in the record of the operation."""

    def __init__(self, folder: bytes, operation: Operation, paths: Sequence[bytes]) -> None:
        """``operation`` is the one whose record is in place, ``paths`` as `ApplyNotes.paths`."""
        self.paths = paths
        self._folder = folder
        self._operation = operation

    @property
    def opened(self) -> Mapping[bytes, int]:
        """See `ApplyNotes.opened`."""
        return dict(self._operation.opened)

    def opening(self, modes: Mapping[bytes, int]) -> None:
        """See `ApplyNotes.opening`."""
        self._operation = self._operation._replace(opened=tuple(modes.items()))
        write_operation(self._folder, self._operation)

    def in_place(self, path: bytes) -> None:
        """See `ApplyNotes.in_place`; said to the user as well."""
        _LOG.warning("%s is a mount point: it is written in place", display(path))
        self._operation = self._operation._replace(in_place=(*self._operation.in_place, path))
        write_operation(self._folder, self._operation)


def write_operation(folder: bytes, operation: Operation) -> None:
    """Put the record in place: atomic and durable when it returns. Replaces an earlier one of the same operation, an
    older version's included. Raises `StorageError`.
    """
    import json

    fields = operation._asdict()
    fields["paths"] = [display(path) for path in operation.paths]
    fields["opened"] = [[display(path), f"{mode:o}"] for path, mode in operation.opened]
    fields["in_place"] = [display(path) for path in operation.in_place]
    _FILE.write(folder, json.dumps(fields, sort_keys=True).encode() + b"\n")
    _remove_old(folder, operation)


def read_operation(folder: bytes) -> Operation | None:
    """The operation that is in progress or was cut short; None without one.

    Raises `FormatError` if its record is damaged or of a newer version, `RefusedError` if an older version has begun
    another one since.
    """
    body = _FILE.read(folder)
    if body is None:
        return _read_restore_journal(folder) or _read_undo_note(folder)
    operation = _decode(_FILE, folder, body)
    if os.path.lexists(os.path.join(folder, RESTORE_JOURNAL)):
        other = _read_restore_journal(folder)
        if other is not None and other.nonce != operation.nonce:
            from holdfast.model.message_text import with_article

            raise RefusedError(
                f"an older version of Holdfast began {with_article(other.kind)} to {other.target[:12]} in this "
                f"workspace after {with_article(operation.kind)} was cut short; both are unfinished",
                hint="finish the one with that version, by `holdfast restore --continue`, and then the other with this",
                code="unfinished_restore",
            )
    return operation


def remove_operation(folder: bytes, operation: Operation) -> None:
    """Take the record away: the operation is at its end, and the history knows. Durable; a missing one is no error."""
    _remove_old(folder, operation)  # first, since alone it would count as unfinished
    _FILE.remove(folder)


def unfinished(context: Context) -> Operation | None:
    """The restore that was cut short, if there is one, or the undo or redo by checkpoints. One that is still at work in
    another process is not.
    """
    operation = read_operation(context.folder)
    if operation is None or operation.steps:
        return None
    try:
        with context.lock(timeout=0):
            operation = read_operation(context.folder)
    except LockedError:
        return None
    return None if operation is None or operation.steps else operation


def reverses_steps(folder: bytes) -> bool:
    """Whether steps are being reversed, or were when the process was killed; true as well if the record cannot be
    read, which finishing it tells.
    """
    try:
        operation = read_operation(folder)
    except HoldfastError:
        return True
    return operation is not None and bool(operation.steps)


def refuse_unfinished(folder: bytes) -> None:
    """Raise `RefusedError` if an unfinished operation exists in the workspace with this ``folder``: a new record must
    not overwrite its record.
    """
    operation = read_operation(folder)
    if operation is None:
        return
    from holdfast.model.message_text import named_steps, with_article

    if not operation.steps:
        raise RefusedError(
            f"{with_article(operation.kind)} to {operation.target[:12]} was cut short; the tree may be incomplete",
            hint="`holdfast restore --continue` finishes it, `holdfast restore --abort` goes back to the state before",
            code="unfinished_restore",
        )
    raise RefusedError(
        f"the {operation.kind} of {named_steps(operation.steps)} was cut short just now",
        hint="run the command again: it is finished first",
        code="unfinished_undo",
    )


def _remove_old(folder: bytes, operation: Operation) -> None:
    (_UNDO_NOTE if operation.steps else _RESTORE_JOURNAL).remove(folder)


def _read_restore_journal(folder: bytes) -> Operation | None:
    body = _RESTORE_JOURNAL.read(folder)
    return None if body is None else _decode(_RESTORE_JOURNAL, folder, body, _NOT_IN_A_JOURNAL)


def _read_undo_note(folder: bytes) -> Operation | None:
    body = _UNDO_NOTE.read(folder)
    if body is None:
        return None
    try:
        kind, *words = body.split()
        position, redo_tip, state, acted, first, *others = map(int, words)
    except ValueError as error:
        raise _UNDO_NOTE.damaged_error(folder, f"lacks a number or has a bad one: {error}") from error
    if kind not in (b"undo", b"redo"):
        raise _UNDO_NOTE.damaged_error(folder, "is of neither an undo nor a redo")
    return Operation(
        "undo" if kind == b"undo" else "redo",
        CheckpointId(""),
        position=position,
        redo_tip=redo_tip,
        state=state or None,
        acted=acted,
        steps=(first, *others),
    )


def _decode(file: NoteFile, folder: bytes, body: bytes, missing: Mapping[str, Any] | None = None) -> Operation:
    """The operation in ``body``; ``missing`` has values of optional fields."""
    import json

    try:
        fields = {**(missing or {}), **json.loads(body)}
        if missing is not None:
            fields["kind"] = fields["operation"]
        found: dict[str, Any] = {name: fields[name] for name in Operation._fields}
        if found["kind"] not in ("restore", "undo", "redo", "fork"):
            raise ValueError(f"kind is {found['kind']!r}")
        for name in _NUMBERS:
            found[name] = None if found[name] is None else int(found[name])
        for name in ("paths", "in_place"):
            found[name] = tuple(map(parse_display, found[name]))
        found["opened"] = tuple((parse_display(text), int(mode, 8)) for text, mode in found["opened"])
        found["steps"] = tuple(map(int, found["steps"]))
        return Operation(**found)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise file.damaged_error(folder, f"lacks a field or has a bad one: {error}") from error
