"""The codec of session checkpoints and journals, which docs/formats/session.md specifies. Pure: values in, bytes out.

Three bytes of magic and one of version, the length of the content (8 bytes, little-endian), the hash of all that
follows it (16 bytes), then the content as MessagePack, compressed with zstd.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from struct import Struct
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from holdfast.model.decoders import converted, msgpack_decoder
from holdfast.model.errors import FormatError, IntegrityError, UsageError
from holdfast.model.ids import HASH_BYTES, hash_bytes
from holdfast.model.paths import display, parse_display
from holdfast.model.session_types import CommandEntry, CommandEvent, JournalEntry, SessionCheckpoint, SessionHash, State

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

CHECKPOINT_MAGIC = b"HFS"
JOURNAL_MAGIC = b"HFJ"
VERSION = 2
MAX_CONTENT_BYTES = 1 << 28
"""The most that a session checkpoint or a journal may take before compression."""

_HEADER = Struct(f"<3sBQ{HASH_BYTES}s")
_T = TypeVar("_T")
_LEVEL = 3


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session checkpoint without its own hash."""

    session: str
    parent: str | None
    kind: str
    message: str
    created_at: int
    state: State
    history: tuple[CommandEntry, ...]
    metadata: dict[str, str]


def encode_checkpoint(checkpoint: SessionCheckpoint) -> tuple[SessionHash, int, bytes]:
    """The hash that identifies the content of ``checkpoint`` (its own ``hash`` is ignored), its size, and its bytes.

    Equal content gives equal bytes. Raises `UsageError` for an invalid text, and for more than `MAX_CONTENT_BYTES`.
    """
    body = _Body(
        session=checkpoint.session,
        parent=checkpoint.parent,
        kind=checkpoint.kind,
        message=checkpoint.message,
        created_at=checkpoint.created_at,
        state=_state_out(checkpoint.state),
        history=tuple(_command_out(entry) for entry in checkpoint.history),
        metadata=dict(checkpoint.metadata),
    )
    content = _encoded(body)
    return SessionHash(hash_bytes(content).hex()), len(content), _pack(CHECKPOINT_MAGIC, content)


def decode_checkpoint(data: bytes, expected: SessionHash) -> SessionCheckpoint:
    """The inverse of `encode_checkpoint`, for untrusted bytes.

    Raises `IntegrityError` if they are damaged or not those of ``expected``, and `FormatError` for bytes that
    `encode_checkpoint` does not write.
    """
    what = f"session checkpoint {expected}"
    version, content = _unpack(data, CHECKPOINT_MAGIC, what)
    if hash_bytes(content).hex() != expected:
        raise IntegrityError(f"{what}: it is another one that is stored under this name")
    body = _decoded(content, _Body, what) if version == VERSION else _decoded_before_2(content, what)
    with _naming(what):
        return converted(
            {
                **{name: getattr(body, name) for name in ("session", "parent", "kind", "message", "created_at")},
                "hash": expected,
                "state": _state_in(body.state),
                "history": tuple(_command_in(entry) for entry in body.history),
                "metadata": body.metadata,
            },
            SessionCheckpoint,
        )


def encode_journal(entries: Sequence[JournalEntry]) -> bytes:
    """``entries`` as bytes. Raises as `encode_checkpoint`."""
    return _pack(JOURNAL_MAGIC, _encoded([_entry_out(entry) for entry in entries]))


def decode_journal(data: bytes) -> list[JournalEntry]:
    """The inverse of `encode_journal`, for bytes that anyone may have made; raises as `decode_checkpoint`."""
    _, content = _unpack(data, JOURNAL_MAGIC, "journal")
    entries = _decoded(content, list[JournalEntry], "journal")
    with _naming("journal"):
        return [_entry_in(entry) for entry in entries]


# --- texts: those from the system may be no UTF-8 ---


def _out(text: str) -> str:
    try:
        return display(os.fsencode(text))
    except UnicodeEncodeError:
        raise UsageError(f"{text[:80]!a} is no text that a system could have given") from None


def _in(text: str) -> str:
    return os.fsdecode(parse_display(text))


def _all_out(texts: Mapping[str, str]) -> dict[str, str]:
    return {_out(name): _out(value) for name, value in texts.items()}


def _all_in(texts: Mapping[str, str]) -> dict[str, str]:
    return {_in(name): _in(value) for name, value in texts.items()}


def _state_out(state: State) -> State:
    return msgspec.structs.replace(
        state, cwd=_out(state.cwd), env=_all_out(state.env), unset=tuple(map(_out, state.unset))
    )


def _state_in(state: State) -> State:
    return msgspec.structs.replace(
        state, cwd=_in(state.cwd), env=_all_in(state.env), unset=tuple(map(_in, state.unset))
    )


def _command_out(entry: CommandEntry) -> CommandEntry:
    return msgspec.structs.replace(entry, input=_out(entry.input), command=_out(entry.command), cwd=_out(entry.cwd))


def _command_in(entry: CommandEntry) -> CommandEntry:
    return msgspec.structs.replace(entry, input=_in(entry.input), command=_in(entry.command), cwd=_in(entry.cwd))


def _entry_out(entry: JournalEntry) -> JournalEntry:
    if not isinstance(entry, CommandEvent):
        return entry
    return CommandEvent(
        entry=_command_out(entry.entry),
        ended=entry.ended,
        cwd=_out(entry.cwd),
        exported=_all_out(entry.exported),
        dropped=tuple(map(_out, entry.dropped)),
        unset=None if entry.unset is None else tuple(map(_out, entry.unset)),
    )


def _entry_in(entry: JournalEntry) -> JournalEntry:
    if not isinstance(entry, CommandEvent):
        return entry
    return CommandEvent(
        entry=_command_in(entry.entry),
        ended=entry.ended,
        cwd=_in(entry.cwd),
        exported=_all_in(entry.exported),
        dropped=tuple(map(_in, entry.dropped)),
        unset=None if entry.unset is None else tuple(map(_in, entry.unset)),
    )


# --- bytes ---


def _encoded(value: object) -> bytes:
    try:
        content = msgspec.msgpack.encode(value, order="deterministic")
    except UnicodeEncodeError as error:
        raise UsageError(f"a text that is not UTF-8 cannot be recorded: {error.reason}") from None
    if len(content) > MAX_CONTENT_BYTES:
        raise UsageError(
            f"{len(content)} bytes are too much for one session checkpoint",
            hint="session.max_output_bytes says how much of a command's output is kept",
        )
    return content


def _pack(magic: bytes, content: bytes) -> bytes:
    from holdfast.store.codecs.zstandard import zstandard

    packed = zstandard.ZstdCompressor(level=_LEVEL).compress(content)
    return _HEADER.pack(magic, VERSION, len(content), hash_bytes(packed)) + packed


def _unpack(data: bytes, magic: bytes, what: str) -> tuple[int, bytes]:
    """The version, and the content."""
    from holdfast.store.codecs.zstandard import zstandard

    if data[:3] != magic:
        raise FormatError(f"{what}: field 'magic': it is something else")
    if len(data) < _HEADER.size:
        raise IntegrityError(f"{what}: it is cut short")
    _, version, length, checksum = cast("tuple[bytes, int, int, bytes]", _HEADER.unpack_from(data))
    if not 1 <= version <= VERSION:
        raise FormatError(f"{what}: field 'version': {version}, and none above {VERSION} is known here")
    packed = data[_HEADER.size :]
    if hash_bytes(packed) != checksum:
        raise IntegrityError(f"{what}: field 'checksum': the bytes are damaged")
    if length > MAX_CONTENT_BYTES:
        raise FormatError(f"{what}: field 'length': {length} is over {MAX_CONTENT_BYTES}")
    try:
        # The decompressor would allocate the frame's declared size, whatever limit is given.
        if zstandard.frame_content_size(packed) != length:
            raise FormatError(f"{what}: field 'length': the compressed content has another")
        content = zstandard.ZstdDecompressor().decompress(packed, max_output_size=length, allow_extra_data=False)
    except (zstandard.ZstdError, MemoryError) as error:
        raise FormatError(f"{what}: field 'content': {error}") from None
    return version, content


def _decoded_before_2(content: bytes, what: str) -> _Body:
    """A session checkpoint of version 1, whose configuration named a level instead of `SessionConfig.supervised`."""
    found = _decoded(content, dict[str, Any], what)
    match found:
        case {"state": {"config": {"demand": str(), **others} as config}} if "supervised" not in others:
            del config["demand"]
            config["supervised"] = False
        case _:
            raise FormatError(f"{what}: field 'config': it is not that of version 1")
    with _naming(what):
        return converted(found, _Body)


def _decoded(content: bytes, kind: type[_T], what: str) -> _T:
    try:
        return msgpack_decoder(kind).decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{what}: {error}") from None


@contextmanager
def _naming(what: str) -> Generator[None]:
    """Errors of decoded texts are of the format, and say of what."""
    try:
        yield
    except (msgspec.MsgspecError, UsageError, ValueError) as error:
        raise FormatError(f"{what}: {error}") from None
