"""Archives in the format of tar: members read from a file one by one, and headers written; both bounded.

Read are ustar, pax, and GNU's long names: what container tools write. Sparse members are refused. `tarfile` reads
extended headers of any length into memory, and loses what in an extended attribute is not UTF-8.
Source: POSIX.1-2017, pax; GNU tar's manual, "Basic Tar Format".
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Final, Literal

from holdfast.model.errors import FormatError
from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BLOCK: Final = 512
MAX_NAME: Final = 4096
"""Bytes of a path, and of a link's target."""
_MAX_EXTENDED: Final = 1 << 20
"""Bytes of the extended headers before a member, and of those for all that follow."""
_MAX_NUMBER: Final = 1 << 62
_XATTR: Final = b"SCHILY.xattr."

Kind = Literal["file", "directory", "link", "hard link", "character device", "block device", "fifo"]

_KINDS: Final[dict[bytes, Kind]] = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"1": "hard link",
    b"2": "link",
    b"3": "character device",
    b"4": "block device",
    b"5": "directory",
    b"6": "fifo",
}
_FLAGS: Final = {kind: flag for flag, kind in reversed(_KINDS.items()) if flag.isdigit() and flag != b"7"}


class TarMember(NamedTuple):
    """One member of an archive."""

    name: bytes
    """As it is there: nothing is known about where it leads."""
    kind: Kind
    mode: int
    """The 12 permission bits."""
    uid: int
    gid: int
    mtime: int
    """Seconds since 1970."""
    size: int
    """Bytes of content; 0 for a type without content."""
    offset: int
    """Where the content begins in the archive's file."""
    target: bytes
    """Of a link or a hard link."""
    device: tuple[int, int]
    xattrs: Mapping[bytes, bytes]


def read_members(stream: IO[bytes], what: str) -> Iterator[TarMember]:
    """The members of the archive in the seekable file ``stream``; their content is not read.

    Messages call it ``what``. Raises `FormatError` for damage, truncation, or a type that no file system has.
    """
    length = stream.seek(0, 2)
    at = 0
    shared: dict[bytes, bytes] = {}
    extended: dict[bytes, bytes] = {}
    shared_bytes = extended_bytes = 0
    while True:
        if at + BLOCK > length:
            if at == length:
                return  # some writers leave out the end
            raise FormatError(f"{what} is cut short at byte {at}")
        stream.seek(at)
        header = stream.read(BLOCK)
        if not any(header):
            return
        _check_sum(header, what, at)
        flag = header[156:157]
        size = _number(header[124:136], "size", what, at)
        content = at + BLOCK
        if flag in b"xgLK" and flag:
            if flag == b"g":
                shared_bytes += size
            else:
                extended_bytes += size
            if max(size, shared_bytes, extended_bytes) > _MAX_EXTENDED:
                raise FormatError(f"{what} has too long a header at byte {at}: at most {_MAX_EXTENDED} bytes are read")
            data = stream.read(size)
            if len(data) != size:
                raise FormatError(f"{what} is cut short at byte {at}")
            if flag == b"x":
                extended |= _records(data, what, at)
            elif flag == b"g":
                # Attributes belong to one file. In a shared header, each of many members would have all of them.
                records = _records(data, what, at)
                shared |= {key: value for key, value in records.items() if not key.startswith(_XATTR)}
            else:
                extended[b"path" if flag == b"L" else b"linkpath"] = data.rstrip(b"\0")
            at = content + size + -size % BLOCK
            continue
        member = _member(header, {**shared, **extended}, size, content, what, at)
        extended, extended_bytes = {}, 0
        if member.offset + member.size > length:
            raise FormatError(f"{what} is cut short: its member at byte {at} has {member.size} bytes")
        yield member
        at = content + member.size + -member.size % BLOCK


def _member(header: bytes, extended: Mapping[bytes, bytes], size: int, content: int, what: str, at: int) -> TarMember:
    kind = _KINDS.get(header[156:157])
    if kind is None or any(name.startswith(b"GNU.sparse") for name in extended):
        raise FormatError(f"{what} has a member of a kind that is not read, at byte {at}")
    name = _text(header[0:100])
    if header[257:262] == b"ustar" and header[262:263] == b"\0" and (prefix := _text(header[345:500])):
        name = prefix + b"/" + name
    name = extended.get(b"path", name)
    target = extended.get(b"linkpath", _text(header[157:257]))
    if len(name) > MAX_NAME or len(target) > MAX_NAME:
        raise FormatError(f"{what} has a name of more than {MAX_NAME} bytes, at byte {at}")
    if b"size" in extended:
        size = _decimal(extended[b"size"], "size", what, at)
    has_device = kind in ("character device", "block device")
    return TarMember(
        name,
        kind,
        _number(header[100:108], "mode", what, at) & 0o7777,
        _decimal(extended[b"uid"], "uid", what, at)
        if b"uid" in extended
        else _number(header[108:116], "uid", what, at),
        _decimal(extended[b"gid"], "gid", what, at)
        if b"gid" in extended
        else _number(header[116:124], "gid", what, at),
        _decimal(extended[b"mtime"], "mtime", what, at)
        if b"mtime" in extended
        else _number(header[136:148], "mtime", what, at),
        size if kind == "file" else 0,
        content,
        target if kind in ("link", "hard link") else b"",
        (_number(header[329:337], "device", what, at), _number(header[337:345], "device", what, at))
        if has_device
        else (0, 0),
        {key.removeprefix(_XATTR): value for key, value in extended.items() if key.startswith(_XATTR)},
    )


def _check_sum(header: bytes, what: str, at: int) -> None:
    said = _number(header[148:156], "checksum", what, at)
    plain = sum(header[:148]) + 8 * 0x20 + sum(header[156:])
    # Some old writers treated bytes as signed.
    signed = plain - 256 * sum(byte > 127 for byte in header[:148] + header[156:])
    if said not in (plain, signed):
        raise FormatError(f"{what} is damaged, or no archive (tar): a checksum does not match, at byte {at}")


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes, name: str, what: str, at: int) -> int:
    """Octal digits, or, with the highest bit set, base 256 (GNU)."""
    if field[0] & 0x80:
        number = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        if field[0] == 0xFF:
            return 0  # a time before 1970
    else:
        digits = field.strip(b" \0")
        if any(byte not in b"01234567" for byte in digits):
            raise FormatError(f"{what} is damaged: its {name} is no number, at byte {at}")
        number = int(digits or b"0", 8)
    if number > _MAX_NUMBER:
        raise FormatError(f"{what} is damaged: its {name} is {number}, at byte {at}")
    return number


def _decimal(value: bytes, name: str, what: str, at: int) -> int:
    """Digits of an extended header; for a time without the fraction."""
    digits = value.partition(b".")[0]
    if digits.startswith(b"-") and name == "mtime":
        return 0
    if not digits.isdigit() or len(digits) > 18:
        raise FormatError(f"{what} is damaged: its {name} is no number, at byte {at}")
    return int(digits)


def _records(data: bytes, what: str, at: int) -> dict[bytes, bytes]:
    """``LENGTH KEY=VALUE`` and a line feed, each; the length is that of the whole record."""
    found: dict[bytes, bytes] = {}
    while data.strip(b"\0"):
        digits, space, _ = data[:20].partition(b" ")
        length = int(digits) if space and digits.isdigit() else 0
        record = data[len(digits) + 1 : length]
        key, equals, value = record.partition(b"=")
        if not len(digits) + 1 < length <= len(data) or record[-1:] != b"\n" or not equals:
            raise FormatError(f"{what} has a damaged extended header, at byte {at}")
        found[key] = value[:-1]
        data = data[length:]
    return found


# -- writing ----------------------------------------------------------------------------------------------------------


def header_of(member: TarMember) -> bytes:
    """The bytes before the content of ``member``: its header, and an extended one if needed.

    The content must be followed by zeros up to a multiple of 512, and the archive by 1,024 zeros.
    """
    records: dict[bytes, bytes] = {_XATTR + name: value for name, value in member.xattrs.items()}
    if len(member.name) > 100:
        records[b"path"] = member.name
    if len(member.target) > 100:
        records[b"linkpath"] = member.target
    for name, number, most in (
        (b"uid", member.uid, 0o7777777),
        (b"gid", member.gid, 0o7777777),
        (b"size", member.size, 0o77777777777),
    ):
        if number > most:
            records[name] = b"%d" % number
    header = _plain_header(member)
    if not records:
        return header
    data = b"".join(_record(key, value) for key, value in records.items())
    about = member._replace(name=b"pax", size=len(data), target=b"", device=(0, 0))
    return _plain_header(about, b"x") + data + bytes(-len(data) % BLOCK) + header


def _plain_header(member: TarMember, flag: bytes | None = None) -> bytes:
    def octal(number: int, digits: int) -> bytes:
        return b"%0*o\0" % (digits, min(number, 8**digits - 1))

    header = bytearray(BLOCK)
    header[0:100] = member.name[:100].ljust(100, b"\0")
    header[100:108] = octal(member.mode, 7)
    header[108:116] = octal(member.uid, 7)
    header[116:124] = octal(member.gid, 7)
    header[124:136] = octal(member.size, 11)
    header[136:148] = octal(member.mtime, 11)
    header[148:156] = b" " * 8
    header[156:157] = _FLAGS[member.kind] if flag is None else flag
    header[157:257] = member.target[:100].ljust(100, b"\0")
    header[257:265] = b"ustar\x0000"
    header[329:337] = octal(member.device[0], 7)
    header[337:345] = octal(member.device[1], 7)
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def _record(key: bytes, value: bytes) -> bytes:
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest)
    while length != len(rest) + len(str(length)):
        length = len(rest) + len(str(length))
    return b"%d" % length + rest
