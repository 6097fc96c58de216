"""The head of a bundle: what it says of its checkpoints, as ``docs/formats/bundle.md`` specifies it, and the limits."""

from __future__ import annotations

import re
import struct

from holdfast.model.checkpoint import KINDS
from holdfast.model.errors import FormatError, IntegrityError
from holdfast.model.ids import HASH_BYTES, hash_bytes
from holdfast.model.named import NamedTuple

VERSION = 1
MAGIC = b"HFBUNDLE"

MAX_CHECKPOINTS = 100_000
MAX_HEAD_BYTES = 64 << 20
MAX_TEXT_BYTES = 64 << 10
MAX_LABEL_CHARACTERS = 200
MAX_TIME = 1 << 53

_PREAMBLE = struct.Struct(f"<8sH{HASH_BYTES}s")
MAX_ENCODED_BYTES = MAX_HEAD_BYTES + _PREAMBLE.size
_ID = re.compile(r"[0-9a-f]{24}\Z")


class Record(NamedTuple):
    """What a bundle says of one checkpoint."""

    id: str
    parent: str | None
    root: bytes
    kind: str
    label: str
    created_at: int
    """Microseconds since 1970-01-01 UTC."""
    author: str
    message: str
    command: str
    not_captured: list[tuple[bytes, str]]


class Head(NamedTuple):
    """The head of a bundle: its checkpoints, parents first, and how much is to come."""

    checkpoints: list[Record]
    wanted: list[str]
    pages: int
    page_bytes: int
    blobs: int
    blob_bytes: int


def encode_head(head: Head) -> bytes:
    """The content of the member ``bundle``."""
    import msgspec

    rest = msgspec.msgpack.encode(tuple(head))
    if len(rest) > MAX_HEAD_BYTES:
        raise FormatError(f"bundle head: {len(rest)} bytes are more than {MAX_HEAD_BYTES}: export fewer checkpoints")
    return _PREAMBLE.pack(MAGIC, VERSION, hash_bytes(rest)) + rest


def decode_head(data: bytes) -> Head:
    """The inverse of `encode_head`, with all that can be checked of it; raises `FormatError` or `IntegrityError`."""
    import msgspec

    if data[: len(MAGIC)] != MAGIC or len(data) < _PREAMBLE.size:
        raise FormatError("bundle head: field 'magic': this is no bundle")
    _, version, checksum = _PREAMBLE.unpack_from(data)
    if version != VERSION:
        raise FormatError(f"bundle head: field 'version': {version}, and only {VERSION} is known here")
    rest = data[_PREAMBLE.size :]
    if hash_bytes(rest) != checksum:
        raise IntegrityError("bundle head: field 'checksum': it is not that of the head")
    try:
        head = msgspec.msgpack.decode(rest, type=Head)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise FormatError(f"bundle head: {error}") from None
    _check_head(head)
    return head


def _check_head(head: Head) -> None:
    if not 0 < len(head.checkpoints) <= MAX_CHECKPOINTS:
        raise FormatError(f"bundle head: field 'checkpoints': {len(head.checkpoints)} are none or too many")
    seen: set[str] = set()
    for record in head.checkpoints:
        _check_record(record, seen)
        seen.add(record.id)
    if not head.wanted or not seen.issuperset(head.wanted) or len(set(head.wanted)) != len(head.wanted):
        raise FormatError("bundle head: field 'wanted': it names no checkpoint, an unknown one, or one twice")
    if min(head[2:]) < 0 or not head.pages:
        raise FormatError("bundle head: a number is negative, or there are no pages")


def _check_record(record: Record, earlier: set[str]) -> None:
    problem = None
    if not _ID.match(record.id) or record.id in earlier:
        problem = "field 'id': it is no id, or is there twice"
    elif record.parent is not None and record.parent not in earlier:
        problem = "field 'parent': it does not stand before this checkpoint"
    elif len(record.root) != HASH_BYTES:
        problem = f"field 'root': {len(record.root)} bytes are no hash"
    elif record.kind not in KINDS:
        problem = "field 'kind': there is no such kind"
    elif not 0 <= record.created_at < MAX_TIME:
        problem = f"field 'created at': {record.created_at} is out of range"
    elif len(record.label) > MAX_LABEL_CHARACTERS:
        problem = f"field 'label': more than {MAX_LABEL_CHARACTERS} characters"
    elif any(len(text.encode()) > MAX_TEXT_BYTES for text in (record.author, record.message, record.command)):
        problem = f"field 'author', 'message' or 'command': more than {MAX_TEXT_BYTES} bytes"
    elif any(
        not path or b"\0" in path or len(path) > 4095 or len(reason) > 4096 for path, reason in record.not_captured
    ):
        problem = "field 'not captured': a path or a reason that cannot be"
    if problem is not None:
        raise FormatError(f"bundle head: checkpoint {record.id[:24]!r}: {problem}")
