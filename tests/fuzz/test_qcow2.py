"""Headers of disk images that nobody should have written (I12): an error that names the field, or an answer."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import FormatError
from holdfast.snapshot.qcow2._header import parse_header

PLAIN: dict[str, Any] = {
    "version": 3,
    "name": b"",
    "extensions": b"",
    "incompatible": 0,
    "length": 104,
    "cluster_bits": 16,
    "crypt": 0,
    "size": 1 << 20,
}


def header(**changes: Any) -> bytes:
    """An image's beginning."""
    told = PLAIN | changes
    name_at = told.get("name_at", (112 + len(told["extensions"]) + 8) if told["name"] else 0)
    fixed = struct.pack(
        ">4sIQIIQIIQQIIQ",
        b"QFI\xfb",
        told["version"],
        name_at,
        told.get("name_size", len(told["name"])),
        told["cluster_bits"],
        told["size"],
        told["crypt"],
        *(0,) * 6,
    )
    if told["version"] > 2:
        fixed += struct.pack(">QQQII", told["incompatible"], 0, 0, 4, told["length"])
    data = fixed + told["extensions"] + bytes(8)
    return data.ljust(name_at, b"\0") + told["name"] + bytes(4096)


def extension(kind: int, data: bytes, size: int | None = None) -> bytes:
    return struct.pack(">II", kind, len(data) if size is None else size) + data.ljust(-(-len(data) // 8) * 8, b"\0")


def test_what_is_said() -> None:
    found = parse_header(header(name=b"base", extensions=extension(0xE2792ACA, b"qcow2"), size=512))
    assert (found.size, found.backing, found.backing_format) == (512, b"base", b"qcow2")
    assert (found.encrypted, found.corrupt, found.external_data) == (False, False, False)
    assert parse_header(header(version=2)).backing is None
    assert parse_header(header(crypt=2)).encrypted
    assert parse_header(header(incompatible=2)).corrupt
    assert parse_header(header(incompatible=4)).external_data
    assert parse_header(header(extensions=extension(0x44415441, b"/etc/passwd"))).external_data


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"version": 4}, "version"),
        ({"cluster_bits": 8}, "cluster_bits"),
        ({"cluster_bits": 22}, "cluster_bits"),
        ({"length": 8}, "header_length"),
        ({"length": 105}, "header_length"),
        ({"length": 1 << 31}, "header_length"),
        ({"name": b"x", "name_size": 1024}, "backing_file_size"),
        ({"name": b"x", "name_size": 0}, "backing_file_size"),
        ({"name": b"x", "name_at": 8}, "backing_file_offset"),
        ({"name_at": 1 << 63, "name_size": 5}, "backing_file_offset"),
        ({"extensions": extension(1, b"", 1 << 31)}, "extension 0x1"),
        ({"extensions": extension(1, b"") * 200}, "more than"),
    ],
)
def test_what_cannot_be_names_the_field(changes: dict[str, Any], field: str) -> None:
    if changes.get("name_at") == 1 << 63:
        data = bytearray(header(name_size=5))
        data[8:16] = struct.pack(">Q", 1 << 63)
    else:
        data = bytearray(header(**changes))
    with pytest.raises(FormatError, match=field):
        parse_header(bytes(data))


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse_header(data)
    parsed_or_refused(b"QFI\xfb" + data)


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=12), st.integers(0, 4000))
def test_a_header_with_bytes_changed_and_cut(changes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(header(name=b"base", extensions=extension(0xE2792ACA, b"qcow2")))
    for at, value in changes:
        data[at % len(data)] = value
    parsed_or_refused(bytes(data))
    parsed_or_refused(bytes(data[:cut]))


def parsed_or_refused(data: bytes) -> None:
    try:
        found = parse_header(data)
    except FormatError:
        return
    assert found.backing is None or found.backing in data
