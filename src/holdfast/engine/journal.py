"""The note that a restore leaves in the workspace's folder before it touches the tree, so that a crash is noticed (I3).

The format is specified in ``docs/formats/restore-journal.md``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, cast

from holdfast.engine.folder import RESTORE_JOURNAL
from holdfast.files.gitconfig import read_regular
from holdfast.model.errors import FormatError, StorageError, room_hint
from holdfast.model.ids import CheckpointId, hash_bytes
from holdfast.model.named import NamedTuple
from holdfast.model.paths import display, parse_display

if TYPE_CHECKING:
    from collections.abc import Mapping

Operation = Literal["restore", "undo", "redo", "fork"]

_MAGIC = b"HFRJ 1 "
_MAX_BYTES = 64 << 20


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


def write(folder: bytes, journal: Journal) -> None:
    """Put the note in place: atomic and durable when it returns. Replaces an earlier one."""
    import json

    fields = journal._asdict()
    fields["paths"] = [display(path) for path in journal.paths]
    body = json.dumps(fields, sort_keys=True).encode() + b"\n"
    path = os.path.join(folder, RESTORE_JOURNAL)
    temporary = path + b".new"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "wb") as file:
            file.write(_MAGIC + hash_bytes(body).hex().encode() + b"\n" + body)
            file.flush()
            os.fsync(fd)
        os.rename(temporary, path)
        _sync_directory(folder)
    except OSError as error:
        message = f"cannot write {display(path)}: {error.strerror}; nothing was changed"
        raise StorageError(message, hint=room_hint(error)) from error


def read(folder: bytes) -> Journal | None:
    """The note, or None if there is none. Raises `FormatError` if it is damaged or of a newer version."""
    path = os.path.join(folder, RESTORE_JOURNAL)
    try:
        data = read_regular(path, _MAX_BYTES + 1, follow=False)
    except OSError as error:
        raise StorageError(f"cannot read {display(path)}: {error.strerror}") from error
    if data is None:
        if os.path.lexists(path):
            raise FormatError(f"{display(path)} is not a restore journal, but no file at all", hint=_remove_hint(path))
        return None
    head, _, body = data.partition(b"\n")
    if not head.startswith(_MAGIC) or len(data) > _MAX_BYTES:
        raise FormatError(f"{display(path)} is not a restore journal of this version", hint=_remove_hint(path))
    if head[len(_MAGIC) :] != hash_bytes(body).hex().encode():
        raise FormatError(f"{display(path)} is damaged: its checksum does not match", hint=_remove_hint(path))
    return _decode(path, body)


def remove(folder: bytes) -> None:
    """Take the note away: the restore is complete. Durable; a missing one is no error."""
    path = os.path.join(folder, RESTORE_JOURNAL)
    try:
        os.unlink(path)
        _sync_directory(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"cannot remove {display(path)}: {error.strerror}") from error


def _decode(path: bytes, body: bytes) -> Journal:
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
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(
            f"{display(path)} lacks a field or has a bad one: {error}", hint=_remove_hint(path)
        ) from error


def _remove_hint(path: bytes) -> str:
    return (
        f"the tree may be half restored; look at `holdfast status`, restore what you want, and remove {display(path)}"
    )


def _sync_directory(folder: bytes) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
