"""A finished step as a file: its head, its results, and the records that reverse it.

docs/formats/undo-log.md specifies the bytes. A step is written completely and renamed into place; undo and redo replace
it in the same way.
"""

from __future__ import annotations

import os
import struct
from typing import Literal

import msgspec

from holdfast.files.linux.file_handle import Identity
from holdfast.model.decoders import msgpack_decoder
from holdfast.model.errors import FormatError, IntegrityError, StorageError, room_hint
from holdfast.model.ids import HASH_BYTES, hash_bytes
from holdfast.model.paths import display
from holdfast.undo.journal.records import Mutation, Signature, StepId, StepKind

State = Literal["done", "undone"]

_MAGIC = b"HFUS\x00\x00\x00\x01"
_LENGTH = struct.Struct("<Q")
_HEAD_AT = len(_MAGIC) + HASH_BYTES
_MAX_FILE = 1 << 30
_MAX_RECORDS = 1 << 30
_LEVEL = 1


class Preimage(msgspec.Struct, array_like=True, frozen=True):
    """A preimage that the step's records need."""

    number: int
    size: int
    check: bytes | None
    """The truncated BLAKE3 of its content if it was copied; None where the object itself is kept."""


class StepConflict(msgspec.Struct, array_like=True, frozen=True):
    """A part of a step that could not be reversed."""

    path: bytes
    reason: str
    aside: int | None
    """The number in `Quarantine` of what belongs there; None if nothing was lost."""


class StepHead(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a finished step. Times are nanoseconds since 1970-01-01 UTC."""

    id: StepId
    kind: StepKind
    state: State
    first: int
    last: int
    """The sequence numbers between which it acted, when it was first done."""
    looked_at: int = 0
    """The sequence number at which the step's results were looked at; 0 if no other step acted until then."""
    acted: int
    """The last sequence number of the records that it has now."""
    run: str
    command: tuple[bytes, ...]
    directory: bytes
    started_at: int
    ended_at: int
    exit_code: int | None
    protected: str
    """Empty, or why it cannot be reversed whole."""
    copied: int
    paths: int
    """How many paths it touched."""
    left: tuple[tuple[bytes, Signature | None], ...]
    preimages: tuple[Preimage, ...]
    conflicts: tuple[StepConflict, ...] = ()
    """Records that could not be reversed when it came to its state."""
    rolled_back: bool = False
    """It came to its state by a denial, a rollback or an interruption, regardless of other steps since."""
    aliases: tuple[tuple[Identity, Identity], ...] = ()
    """Objects that its reversals so far had to make anew: the old identity and the new one."""
    contents: tuple[tuple[bytes, bytes], ...] = ()
    """The hashes of files and links that it left, as far as they were noted: see
    `holdfast.undo.local_service._content_match`.
    """
    noted: bool = False
    """These hashes were computed since it came to its state."""
    brought: tuple[tuple[bytes, Signature | None], ...] = ()
    """Objects that Holdfast has restored since from checkpoints, at paths in ``left``."""
    parent: StepId | None = None
    """The explicit step that it is a part of."""
    others: tuple[Signature, ...] = ()
    """Objects that lost a name and have more, as it left them."""
    edited: tuple[Identity, ...] = ()
    """Objects that others edited during the step, by any name, after the step had changed them: the done step's content
    includes these edits.
    """
    spared: tuple[tuple[bytes, Signature], ...] = ()
    """Others' changes that a forced reversal moved or described without reversing them, as it left them: they stay
    others', but do not block the step's return.
    """
    crossed: tuple[tuple[State, bytes], ...] = ()
    """Others' changes that were overwritten when the step left a state by force: they return with that state."""
    late: tuple[tuple[bytes, int], ...] = ()
    """Paths that were written to through its descriptors after its end, and the sequence number at which that ended."""
    kept_open: tuple[tuple[bytes, int], ...] = ()
    """Paths that could be written to through its descriptors after its end, and the number at which that ended, in
    records of earlier versions; 0: not yet.
    """
    begun: int = 0
    """The sequence number with which it began; 0 in what earlier versions have written."""
    open_until: tuple[tuple[bytes, int], ...] = ()
    """The same, with the sequence number at which that was over; 0: not yet."""
    absences: tuple[tuple[int, int], ...] = ()
    """When it was undone, and when it was brought forward again, where other steps began in between: without it."""
    refused: tuple[Mutation, ...] = ()
    """Records of its former state that are not reversed, since the system refused to change their objects, or those of
    later records that concern the same. They wait until the same reversal is requested again, or the opposite one,
    which returns them to the step's records.
    """

    def was_undone_at(self, seq: int) -> bool:
        """Whether what began then began without the step, though it is later."""
        return any(undone < seq < redone for undone, redone in self.absences)

    @property
    def left_at(self) -> int:
        """The number at which it left its results: of two steps' results, the later counts. A step that had a file open
        from before another one acted, and wrote to it after that, has no record of it.
        """
        return max(self.acted, self.looked_at)


class SealedStep(msgspec.Struct, frozen=True):
    """A finished step."""

    head: StepHead
    records: tuple[Mutation, ...]

    def leaving(self, state: State) -> SealedStep:
        """The part of the step that leaves a state: itself, or `StepHead.refused` alone if it has left that already."""
        if self.head.state == state:
            return self
        return SealedStep(msgspec.structs.replace(self.head, state=state), self.head.refused)


_encoder = msgspec.msgpack.Encoder()
_head_decoder = msgpack_decoder(StepHead)
_records_decoder = msgpack_decoder(tuple[Mutation, ...])


def write_step(directory: bytes, name: bytes, sealed: SealedStep, *, sync: bool = False) -> None:
    """Put the step in place. Atomic; durable when it returns if ``sync``. Raises `StorageError`."""
    from holdfast.store.codecs.zstandard import zstandard

    head = _encoder.encode(sealed.head)
    records = _encoder.encode(sealed.records)
    packed = zstandard.ZstdCompressor(level=_LEVEL).compress(records)
    body = _LENGTH.pack(len(head)) + head + _LENGTH.pack(len(records)) + packed
    path = os.path.join(directory, name)
    temporary = path + b".new"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "wb") as file:
            file.write(_MAGIC + hash_bytes(body) + body)
            file.flush()
            if sync:
                os.fsync(fd)
        os.rename(temporary, path)
    except OSError as error:
        raise StorageError(f"cannot write {display(path)}: {error.strerror}", hint=room_hint(error)) from error


def read_head(path: bytes) -> StepHead:
    """The head of the step in the file. Raises `FormatError` and `IntegrityError`, with the file's name."""
    return _decode_head(path, _read(path))[0]


def read_step(path: bytes) -> SealedStep:
    """The step in the file, whole. Raises as `read_head` does."""
    from holdfast.store.codecs.zstandard import zstandard

    data = _read(path)
    head, at = _decode_head(path, data)
    (size,) = _LENGTH.unpack_from(data, at)
    if size > _MAX_RECORDS:
        raise FormatError(f"{display(path)}: its records would take {size} bytes")
    packed = memoryview(data)[at + _LENGTH.size :]
    try:
        if zstandard.get_frame_parameters(packed).content_size != size:
            raise FormatError(f"{display(path)}: its records are not {size} bytes long")
        raw = zstandard.ZstdDecompressor().decompress(packed, max_output_size=size)
        return SealedStep(head, _records_decoder.decode(raw))
    except (zstandard.ZstdError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"{display(path)}: its records cannot be read: {error}") from error


def _read(path: bytes) -> bytes:
    with open(path, "rb", buffering=0) as file:
        # By size, since reading with the limit would allocate that much memory for every step.
        data = file.read(min(os.fstat(file.fileno()).st_size, _MAX_FILE) + 1)
    if data[: len(_MAGIC)] != _MAGIC or len(data) > _MAX_FILE:
        raise FormatError(f"{display(path)} is not a step of this version")
    if hash_bytes(memoryview(data)[_HEAD_AT:]) != data[len(_MAGIC) : _HEAD_AT]:
        raise IntegrityError(f"{display(path)} is damaged: its checksum does not match")
    return data


def _decode_head(path: bytes, data: bytes) -> tuple[StepHead, int]:
    at = _HEAD_AT + _LENGTH.size
    try:
        (size,) = _LENGTH.unpack_from(data, _HEAD_AT)
        end = at + size
        if end + _LENGTH.size > len(data):
            raise FormatError(f"{display(path)}: its head is longer than the file")
        return _head_decoder.decode(memoryview(data)[at:end]), end
    except (struct.error, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"{display(path)}: its head cannot be read: {error}") from error
