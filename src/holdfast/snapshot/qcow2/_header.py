"""The header of a qcow2 disk image: its references, read without opening the named files.

An image may come from an untrusted source. So its header is read and checked before a program of QEMU reads the file:
QEMU would open every file that the header names. Source: QEMU, docs/interop/qcow2.txt.
"""

from __future__ import annotations

import os
import stat
import struct

from holdfast.model.errors import FormatError, NotFoundError, StorageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.paths import display

MAGIC = b"QFI\xfb"
_HEADER = struct.Struct(">4sIQIIQIIQQIIQ")
_FEATURES = struct.Struct(">QQQII")
_EXTENSION = struct.Struct(">II")
_VERSIONS = (2, 3)
_LEAST_CLUSTER_BITS, _MOST_CLUSTER_BITS = 9, 21
_MOST_BYTES = 1 << _MOST_CLUSTER_BITS
"""All of the header lies in the first cluster."""
_MOST_NAME = 1023
_MOST_EXTENSIONS = 100
_END, _FORMAT, _DATA_FILE = 0, 0xE2792ACA, 0x44415441
_CORRUPT, _EXTERNAL_DATA = 1 << 1, 1 << 2


class Header(NamedTuple):
    """The facts in an image's header."""

    version: int
    size: int
    """Bytes of the disk."""
    encrypted: bool
    corrupt: bool
    """QEMU has found out that it is damaged, and writes to it no more."""
    external_data: bool
    """Its content lies in another file."""
    snapshots: int
    """How many states are kept in it."""
    backing: bytes | None
    """The file for clusters that are not in the image; None without one."""
    backing_format: bytes | None
    """The format of that file; None: a reader would have to guess it, from data that the disk's user has written."""


def read_header(path: bytes) -> Header:
    """The header of the image at ``path``, a regular file and no link. Raises `FormatError` with the fault if it is
    invalid, `NotFoundError`, `StorageError`.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no image {display(path)}") from error
    except OSError as error:
        raise StorageError(f"cannot open the image {display(path)}: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise FormatError(f"{display(path)} is no image, but no regular file at all")
        data = os.pread(fd, _MOST_BYTES, 0)
    except OSError as error:
        raise StorageError(f"cannot read the image {display(path)}: {error.strerror}") from error
    finally:
        os.close(fd)
    try:
        return parse_header(data)
    except FormatError as error:
        raise FormatError(f"{display(path)}: {error.message}", hint=error.hint) from error


def parse_header(data: bytes) -> Header:
    """Parse the first bytes of an image; two MiB are always enough. Raises `FormatError` with the field."""
    if len(data) < _HEADER.size or not data.startswith(MAGIC):
        raise FormatError("it is no qcow2 image")
    _, version, name_at, name_size, cluster_bits, size, crypt, _, _, _, _, snapshots, _ = _HEADER.unpack_from(data)
    if version not in _VERSIONS:
        raise FormatError(f"version is {version}, and 2 and 3 are known")
    if not _LEAST_CLUSTER_BITS <= cluster_bits <= _MOST_CLUSTER_BITS:
        raise FormatError(f"cluster_bits is {cluster_bits}: a cluster has 512 bytes to 2 MiB")
    data = data[: 1 << cluster_bits]
    incompatible, length = 0, _HEADER.size
    if version > _VERSIONS[0]:
        if len(data) < _HEADER.size + _FEATURES.size:
            raise FormatError("header_length: the file ends before")
        incompatible, _, _, _, length = _FEATURES.unpack_from(data, _HEADER.size)
        if not _HEADER.size + _FEATURES.size <= length <= len(data) or length % 8:
            raise FormatError(f"header_length is {length}")
    extensions = _extensions(data, length, name_at or len(data))
    return Header(
        version=version,
        size=size,
        encrypted=crypt != 0,
        corrupt=bool(incompatible & _CORRUPT),
        external_data=bool(incompatible & _EXTERNAL_DATA) or _DATA_FILE in extensions,
        snapshots=snapshots,
        backing=_name(data, name_at, name_size, length) if name_at else None,
        backing_format=extensions.get(_FORMAT),
    )


def _name(data: bytes, at: int, size: int, least: int) -> bytes:
    if not 0 < size <= _MOST_NAME:
        raise FormatError(f"backing_file_size is {size}, and not 1 to {_MOST_NAME}")
    if at < least or at + size > len(data):
        raise FormatError(f"backing_file_offset is {at}: the name does not lie in the first cluster")
    return data[at : at + size]


def _extensions(data: bytes, at: int, end: int) -> dict[int, bytes]:
    """The header extensions, by type. Of several of one type the last counts, as for QEMU."""
    found: dict[int, bytes] = {}
    end = min(end, len(data))
    for _ in range(_MOST_EXTENSIONS):
        if at + _EXTENSION.size > end:
            return found
        kind, size = _EXTENSION.unpack_from(data, at)
        if kind == _END:
            return found
        at += _EXTENSION.size
        if size > end - at:
            raise FormatError(f"the header extension {kind:#x} has {size} bytes, and does not end in time")
        found[kind] = data[at : at + size]
        at += (size + 7) & ~7
    raise FormatError(f"there are more than {_MOST_EXTENSIONS} header extensions")
