"""The bytes of a bundle: zstd, tar members and end, as ``docs/formats/bundle.md`` specifies them.

Reading treats the file as hostile: a strict reader of plain tar headers, not a general one; every size is checked
before it is used; and a wrong input raises only `FormatError` and `IntegrityError` (I12).
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, BinaryIO

from holdfast.model.checkpoint import KINDS
from holdfast.model.content import CHUNK_BYTES, SMALL_BLOB_BYTES
from holdfast.model.decoders import msgpack_decoder
from holdfast.model.errors import FormatError, HoldfastError, IntegrityError, UsageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.ids import HASH_BYTES, Hash, Hasher, hash_bytes
from holdfast.store.blobs.pack_format import encode_pack, read_sequence
from holdfast.store.codecs.compression import DELTA, RAW, Encoded, decompress

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.store.blobs.pack_format import Record as PackRecord


# The head of a bundle: the records of its checkpoints, as ``docs/formats/bundle.md`` specifies it, and the limits.

VERSION = 2
WITH_ONE_LABEL = 1
"""The version in which a checkpoint had one label, or an empty one."""
MAGIC = b"HFBUNDLE"

MAX_CHECKPOINTS = 100_000
MAX_HEAD_BYTES = 64 << 20
MAX_TEXT_BYTES = 64 << 10
_MOST_LABELS = 1000
MAX_TIME = 1 << 53

_PREAMBLE = struct.Struct(f"<8sH{HASH_BYTES}s")
MAX_ENCODED_BYTES = MAX_HEAD_BYTES + _PREAMBLE.size
_ID = re.compile(r"[0-9a-f]{24}\Z")


class CheckpointRecord(NamedTuple):
    """A bundle's record of one checkpoint."""

    id: str
    parent: str | None
    root: bytes
    kind: str
    labels: list[str] | str
    """In the version `WITH_ONE_LABEL` a text, which `decode_head` makes a list."""
    created_at: int
    """Microseconds since 1970-01-01 UTC."""
    author: str
    message: str
    command: str
    not_captured: list[tuple[bytes, str]]


class BundleHead(NamedTuple):
    """The head of a bundle: its checkpoints, parents first, and the amount of data that follows."""

    checkpoints: list[CheckpointRecord]
    wanted: list[str]
    pages: int
    page_bytes: int
    blobs: int
    blob_bytes: int


def encode_head(head: BundleHead) -> bytes:
    """The content of the member ``bundle``."""
    import msgspec

    rest = msgspec.msgpack.encode(tuple(head))
    if len(rest) > MAX_HEAD_BYTES:
        raise FormatError(f"bundle head: {len(rest)} bytes are more than {MAX_HEAD_BYTES}: export fewer checkpoints")
    return _PREAMBLE.pack(MAGIC, VERSION, hash_bytes(rest)) + rest


def decode_head(data: bytes) -> BundleHead:
    """The inverse of `encode_head`, with all that can be checked of it; raises `FormatError` or `IntegrityError`."""
    import msgspec

    if data[: len(MAGIC)] != MAGIC or len(data) < _PREAMBLE.size:
        raise FormatError("bundle head: field 'magic': this is no bundle")
    _, version, checksum = _PREAMBLE.unpack_from(data)
    if version not in (WITH_ONE_LABEL, VERSION):
        raise FormatError(f"bundle head: field 'version': {version}, and only {VERSION} and before is known here")
    rest = data[_PREAMBLE.size :]
    if hash_bytes(rest) != checksum:
        raise IntegrityError("bundle head: field 'checksum': it is not that of the head")
    try:
        head = msgpack_decoder(BundleHead).decode(rest)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise FormatError(f"bundle head: {error}") from None
    for record in head.checkpoints:
        if isinstance(record.labels, str) != (version == WITH_ONE_LABEL):
            raise FormatError(
                f"bundle head: checkpoint {record.id[:24]!r}: field 'labels': version {version} has others"
            )
    head = head._replace(checkpoints=[_with_labels(record) for record in head.checkpoints])
    _check_head(head)
    return head


def _with_labels(record: CheckpointRecord) -> CheckpointRecord:
    """The record with a list of labels."""
    if isinstance(record.labels, list):
        return record
    # A line feed inside a label would split it into two in a catalog.
    return record._replace(labels=[label for label in record.labels.split("\n") if label])


def _check_head(head: BundleHead) -> None:
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


def _check_record(record: CheckpointRecord, earlier: set[str]) -> None:
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
    elif len(record.labels) > _MOST_LABELS or len(set(record.labels)) != len(record.labels):
        problem = f"field 'labels': more than {_MOST_LABELS}, or one is there twice"
    elif not all(map(_may_be_label, record.labels)):
        problem = "field 'labels': one that no checkpoint may have"
    elif any(len(text.encode()) > MAX_TEXT_BYTES for text in (record.author, record.message, record.command)):
        problem = f"field 'author', 'message' or 'command': more than {MAX_TEXT_BYTES} bytes"
    elif any(
        not path or b"\0" in path or len(path) > 4095 or len(reason) > 4096 for path, reason in record.not_captured
    ):
        problem = "field 'not captured': a path or a reason that cannot be"
    if problem is not None:
        raise FormatError(f"bundle head: checkpoint {record.id[:24]!r}: {problem}")


def _may_be_label(label: str) -> bool:
    from holdfast.engine.history.revisions import check_label

    try:
        return bool(check_label(label))
    except UsageError:
        return False


END_MAGIC = b"HFBUNEND"

MAX_PACK_BYTES = 32 << 20
"""Of a pack in a bundle, as a reader takes it; more than what a writer makes."""

_PACK_CONTENT_BYTES = 16 << 20
_PACK_RECORDS = 1 << 16
_WINDOW_BYTES = 8 << 20
_LEVEL = 3
_BLOCK = 512
_END_BYTES = len(END_MAGIC) + HASH_BYTES
_OCTAL_LIMIT = 1 << 33
_PACK_NAME = re.compile(rb"(pages|blobs)/([0-9]{6})\.pack\Z")
_LARGE_NAME = re.compile(rb"large/([0-9a-f]{32})\Z")


class SmallItem(NamedTuple):
    """A page or a content of at most 1 MiB; its bytes have the hash."""

    kind: str
    """``pages`` or ``blobs``."""
    hash: Hash
    data: bytes


class LargeItem(NamedTuple):
    """A content of more than 1 MiB, to be read before the next item; whether it has the hash is not known before."""

    hash: Hash
    size: int
    pieces: Iterator[bytes]


class BundleWriter:
    """Writes one bundle to ``file``: `head`, then `pages`, `blobs`, `large` in this order, then `end`."""

    def __init__(self, file: BinaryIO) -> None:
        from holdfast.store.codecs.zstandard import zstandard

        self._compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
        self._out = self._compressor.stream_writer(file, closefd=False)
        self._sum = Hasher()

    def head(self, head: BundleHead) -> None:
        """Write the head."""
        self._member(b"bundle", encode_head(head))

    def packs(self, kind: str, contents: Iterable[tuple[Hash, bytes]]) -> None:
        """Write ``contents`` as the packs of ``kind`` (``pages`` or ``blobs``), in their order."""
        records: list[tuple[Hash, int, Encoded, None]] = []
        size = number = 0
        for name, data in contents:
            if records and (size + len(data) > _PACK_CONTENT_BYTES or len(records) == _PACK_RECORDS):
                self._member(b"%s/%06d.pack" % (kind.encode(), number), encode_pack(records))
                number += 1
                records, size = [], 0
            records.append((name, len(data), Encoded(RAW, data), None))
            size += len(data)
        if records:
            self._member(b"%s/%06d.pack" % (kind.encode(), number), encode_pack(records))

    def large(self, name: Hash, size: int, pieces: Iterable[bytes]) -> None:
        """Write a content of more than 1 MiB; raises `IntegrityError` if ``pieces`` are not ``size`` bytes in all."""
        self._begin(b"large/%s" % name.hex().encode(), size)
        written = 0
        for piece in pieces:
            written += len(piece)
            self._write(piece)
        if written != size:
            raise IntegrityError(f"blob {name.hex()}: {written} bytes instead of {size}")
        self._pad(size)

    def end(self) -> None:
        """Write the end; the frame is then complete, and ``file`` is flushed but neither synced nor closed."""
        from holdfast.store.codecs.zstandard import zstandard

        self._member(b"end", END_MAGIC + self._sum.hash())
        self._out.write(bytes(2 * _BLOCK))
        self._out.flush(zstandard.FLUSH_FRAME)

    def _member(self, name: bytes, data: bytes) -> None:
        self._begin(name, len(data))
        self._write(data)
        self._pad(len(data))

    def _begin(self, name: bytes, size: int) -> None:
        self._sum.update(name + b"\0" + size.to_bytes(8, "little"))
        self._out.write(encode_member(name, size))

    def _write(self, data: bytes) -> None:
        self._sum.update(data)
        self._out.write(data)

    def _pad(self, size: int) -> None:
        self._out.write(bytes(-size % _BLOCK))


def encode_member(name: bytes, size: int) -> bytes:
    """The tar header of a member."""
    digits = b"%011o\0" % size if size < _OCTAL_LIMIT else b"\x80" + size.to_bytes(11, "big")
    fields = name.ljust(100, b"\0") + b"0000600\0" + b"0000000\0" * 2 + digits + b"00000000000\0"
    rest = b"0" + bytes(100) + b"ustar\x0000" + bytes(247)
    return fields + b"%06o\0 " % sum(fields + b" " * 8 + rest) + rest


def decode_member(block: bytes) -> tuple[bytes, int]:
    """Name and size of the member whose tar header is ``block``; raises `FormatError` for all but a plain file."""
    name = block[:100].rstrip(b"\0")
    digits = block[124:136]
    if digits[:1] == b"\x80":
        size = int.from_bytes(digits[1:], "big")
    elif re.fullmatch(rb"[0-7]{11}\0", digits):
        size = int(digits[:11], 8)
    else:
        raise FormatError("bundle: field 'size' of a member is no number")
    # Each header has exactly one valid form: links, devices and extensions are refused, like anything else.
    if size >= 1 << 63 or b"\0" in name or block != encode_member(name, size):
        raise FormatError("bundle: a member is no plain file, or its header is damaged")
    return name, size


class BundleReader:
    """Reads one untrusted bundle from ``file``, in one pass.

    `head` first; then `items` to its end. Whether the bundle is whole is known only when `items` has ended.
    """

    def __init__(self, file: BinaryIO) -> None:
        from holdfast.store.codecs.zstandard import zstandard

        self._error = zstandard.ZstdError
        decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
        self._in = decompressor.stream_reader(file, read_size=1 << 16, read_across_frames=True, closefd=False)
        self._sum = Hasher()
        self._left = 0
        self._head: BundleHead | None = None

    def head(self) -> BundleHead:
        """Read the head."""
        name, size = self._next()
        if name != b"bundle" or size > MAX_ENCODED_BYTES:
            raise FormatError("bundle: it does not begin with a head of the right size")
        self._head = decode_head(b"".join(self._content(size)))
        return self._head

    def items(self) -> Iterator[SmallItem | LargeItem]:
        """Pages, then small contents, then large ones; no more of them than the head says."""
        assert self._head is not None, "the head is read first"
        left = {"pages": [self._head.pages, self._head.page_bytes], "blobs": [self._head.blobs, self._head.blob_bytes]}
        stage, number = "pages", 0
        while True:
            sum_before = self._sum.hash()
            name, size = self._next()
            if name == b"end":
                self._end(size, sum_before)
                break
            match = _PACK_NAME.match(name)
            if match is not None and stage != "large":
                kind = match[1].decode()
                if kind != stage:
                    stage, number = "blobs", 0
                if kind != stage or int(match[2]) != number or size > MAX_PACK_BYTES:
                    raise FormatError(f"bundle: member {name!r} is out of order or too large")
                number += 1
                for item in self._pack(kind, size):
                    _spend(left[kind], kind, len(item.data))
                    yield item
                continue
            match = _LARGE_NAME.match(name)
            if match is None or size <= SMALL_BLOB_BYTES:
                raise FormatError(f"bundle: member {name[:100]!r} is none that belongs there")
            stage = "large"
            _spend(left["blobs"], "blobs", size)
            pieces = self._content(size)
            yield LargeItem(Hash(bytes.fromhex(match[1].decode())), size, pieces)
            for _ in pieces:
                raise FormatError("bundle: a content was not read to its end")
        if any(number for numbers in left.values() for number in numbers):
            raise FormatError("bundle: it holds less than its head says")

    def _pack(self, kind: str, size: int) -> Iterator[SmallItem]:
        for record, stored in _records(kind, self._content(size)):
            if record.codec == DELTA or record.size > SMALL_BLOB_BYTES:
                raise FormatError(f"bundle: {kind} {record.hash.hex()}: a delta, or larger than a pack may hold here")
            data = decompress(record.codec, stored, record.size)
            if hash_bytes(data) != record.hash:
                raise IntegrityError(f"bundle: {kind} {record.hash.hex()}: the content has another hash")
            yield SmallItem(kind, record.hash, data)

    def _end(self, size: int, expected: Hash) -> None:
        if size != _END_BYTES:
            raise FormatError("bundle: field 'end' has the wrong size")
        if b"".join(self._content(size)) != END_MAGIC + expected:
            raise IntegrityError("bundle: field 'end': the checksum over all members is wrong")
        if any(self._take(2 * _BLOCK)) or self._read(1):
            raise FormatError("bundle: something follows its end")

    def _next(self) -> tuple[bytes, int]:
        name, size = decode_member(self._take(_BLOCK))
        self._sum.update(name + b"\0" + size.to_bytes(8, "little"))
        return name, size

    def _content(self, size: int) -> Iterator[bytes]:
        left = size
        while left:
            piece = self._read(min(left, CHUNK_BYTES))
            if not piece:
                raise FormatError(f"bundle: it is cut short, {left} bytes of a member are missing")
            left -= len(piece)
            self._sum.update(piece)
            yield piece
        if any(self._take(-size % _BLOCK)):
            raise FormatError("bundle: padding that is not zero")

    def _take(self, length: int) -> bytes:
        parts: list[bytes] = []
        while length:
            piece = self._read(length)
            if not piece:
                raise FormatError("bundle: it is cut short")
            parts.append(piece)
            length -= len(piece)
        return b"".join(parts)

    def _read(self, length: int) -> bytes:
        try:
            return self._in.read(length)
        except HoldfastError:
            raise
        except (self._error, MemoryError) as error:
            raise IntegrityError(f"bundle: the compressed stream is damaged: {error}") from error


def _records(kind: str, pieces: Iterator[bytes]) -> Iterator[tuple[PackRecord, bytes]]:
    """The records of a pack, its errors said to be this bundle's."""
    try:
        yield from read_sequence(pieces)
    except FormatError as error:
        raise FormatError(f"bundle: a pack of {kind}: {error.message}") from error
    except IntegrityError as error:
        raise IntegrityError(f"bundle: a pack of {kind}: {error.message}") from error


def _spend(left: list[int], kind: str, size: int) -> None:
    left[0] -= 1
    left[1] -= size
    if min(left) < 0:
        raise FormatError(f"bundle: there are more {kind} than its head says")
