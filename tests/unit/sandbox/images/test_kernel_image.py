"""Kernels that are unpacked, so that they need not unpack themselves in the guest."""

from __future__ import annotations

import bz2
import gzip
import lzma

import lz4.block
import pytest
import zstandard

from holdfast.sandbox.images.kernel_image import bootable, boots_by_pvh

from .elf import bzimage, kernel


def lz4_legacy(content: bytes) -> bytes:
    packed = b"\x02\x21\x4c\x18"
    for at in range(0, len(content), 8 << 20):
        block = lz4.block.compress(content[at : at + (8 << 20)], store_size=False)
        packed += len(block).to_bytes(4, "little") + block
    return packed + len(content).to_bytes(4, "little")


@pytest.mark.parametrize(
    "pack", [gzip.compress, lzma.compress, zstandard.compress, bz2.compress, lz4_legacy], ids=lambda one: one.__name__
)
def test_the_kernel_in_it_is_taken_out(pack) -> None:
    inner = kernel(pvh=True, filling=9 << 20)
    assert bootable(bzimage(pack(inner) + b"\0\0\0\0")) == inner


def test_a_kernel_without_pvh_stays_packed() -> None:
    packed = bzimage(gzip.compress(kernel(pvh=False)))
    assert bootable(packed) == packed


@pytest.mark.parametrize("payload", [b"", b"?" * 100, b"\x1f\x8b" + b"?" * 100, b"\x02\x21\x4c\x18\xff\xff\xff\xff"])
def test_a_payload_that_cannot_be_unpacked_stays_packed(payload: bytes) -> None:
    assert bootable(bzimage(payload)) == bzimage(payload)


@pytest.mark.parametrize("content", [b"", b"MZ" + bytes(1000), bzimage(b"x")[:700]])
def test_what_is_no_packed_kernel_stays_as_it_is(content: bytes) -> None:
    assert bootable(content) == content


def test_damage_anywhere_makes_no_trouble() -> None:
    whole = kernel(pvh=True)
    assert boots_by_pvh(whole)
    for at in range(len(whole)):
        boots_by_pvh(whole[:at])
        boots_by_pvh(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
    packed = bzimage(lz4_legacy(whole))
    for at in range(len(packed)):
        bootable(packed[:at] + bytes([packed[at] ^ 0xFF]) + packed[at + 1 :])
