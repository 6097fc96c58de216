"""INIT as a dialogue: what kernels of several ages offer, and what is answered."""

from __future__ import annotations

import errno
from collections.abc import Mapping

import pytest

from holdfast.model.errors import FormatError, UnsupportedError
from holdfast.wire.fuse.negotiation import WANTED, Terms, Wishes, decode_offer, encode_terms, encode_version, negotiate
from holdfast.wire.fuse.protocol_constants import Init, Opcode
from holdfast.wire.fuse.request_bodies import Offer
from holdfast.wire.fuse.request_errors import errno_of

from . import structures as c
from .structures import request

ALL = Init((1 << 43) - 1) & ~Init(1 << 31)
BEFORE_36 = Init((1 << 30) - 1)


def agreed(offer: Offer, wishes: Wishes | None = None) -> Terms:
    found = negotiate(offer, wishes or Wishes())
    assert found is not None
    return found


def answered(terms: Terms) -> Mapping[str, object]:
    message = encode_terms(7, terms)
    assert message[:16] == bytes(c.OutHeader(len(message), 0, 7))
    assert len(message) == 80
    return c.values(c.InitOut.from_buffer_copy(message, 16))


def test_a_current_kernel() -> None:
    body = bytes(c.InitIn(7, 45, 1 << 17, ALL & 0xFFFFFFFF, ALL >> 32))
    offer = decode_offer(request(Opcode.INIT, body))
    assert offer == Offer(7, 45, 1 << 17, ALL)
    terms = agreed(offer)
    assert terms.flags == WANTED | Init.INIT_EXT
    assert answered(terms) == {
        "major": 7, "minor": 45, "max_readahead": 1 << 17, "flags": terms.flags & 0xFFFFFFFF, "max_background": 64,
        "congestion_threshold": 48, "max_write": 1 << 20, "time_gran": 1, "max_pages": 256, "map_alignment": 0,
        "flags2": terms.flags >> 32, "max_stack_depth": 0, "request_timeout": 0, "unused": [0] * 11,
    }  # fmt: skip
    assert terms.frame_bytes >= terms.max_write + 80


def test_a_newer_kernel_comes_down_to_what_we_know() -> None:
    body = bytes(c.InitIn(7, 99, 1 << 17, 0xFFFFFFFF, 0xFFFFFFFF)) + bytes(64)
    terms = agreed(decode_offer(request(Opcode.INIT, body)))
    assert (terms.minor, terms.flags) == (45, WANTED | Init.INIT_EXT)


def test_the_oldest_kernel_has_no_second_flags() -> None:
    body = bytes(c.InitIn(7, 31, 4096, BEFORE_36))[:16]
    offer = decode_offer(request(Opcode.INIT, body))
    assert offer == Offer(7, 31, 4096, BEFORE_36)
    terms = agreed(offer)
    assert (terms.minor, terms.max_readahead, terms.flags) == (31, 4096, WANTED & BEFORE_36)
    assert answered(terms)["flags2"] == 0


def test_what_stands_where_flags2_would_be_is_no_flag_unless_said() -> None:
    body = bytes(c.InitIn(7, 35, 4096, 0, 0xFFFFFFFF))
    assert decode_offer(request(Opcode.INIT, body)).flags == 0


@pytest.mark.parametrize("rest", [b"", b"whatever version 8 has here"])
def test_a_newer_major_version_is_asked_again(rest: bytes) -> None:
    body = bytes(c.InitIn(8, 0, 1 << 17, 0xFFFFFFFF))[:16] + rest
    offer = decode_offer(request(Opcode.INIT, body))
    assert negotiate(offer, Wishes()) is None
    message = encode_version(7)
    assert message[:16] == bytes(c.OutHeader(len(message), 0, 7))
    said = c.values(c.InitOut.from_buffer_copy(message, 16))
    assert (said.pop("major"), said.pop("minor")) == (7, 45)
    assert not any(value for name, value in said.items() if name != "unused")
    assert agreed(Offer(7, 45, 0, ALL)).minor == 45


@pytest.mark.parametrize("version", [(7, 30), (7, 0), (6, 99), (0, 0)])
def test_what_is_too_old_is_told_so(version: tuple[int, int]) -> None:
    with pytest.raises(UnsupportedError, match=rf"FUSE {version[0]}\.{version[1]}; 7\.31 is needed") as refused:
        negotiate(Offer(*version, 0, ALL), Wishes())
    assert refused.value.code == "old_protocol"
    assert errno_of(refused.value) == errno.EPROTO


@pytest.mark.parametrize("length", [0, 15, 16, 19])
def test_an_offer_cut_off(length: int) -> None:
    body = bytes(c.InitIn(7, 45, 0, ALL & 0xFFFFFFFF, 1))[:length]
    with pytest.raises(FormatError, match=r"^INIT: "):
        decode_offer(request(Opcode.INIT, body))


def test_passthrough_excludes_the_writeback_cache() -> None:
    both = Init.PASSTHROUGH | Init.WRITEBACK_CACHE
    terms = agreed(Offer(7, 45, 0, ALL), Wishes(flags=both))
    assert terms.flags == Init.PASSTHROUGH | Init.INIT_EXT
    assert answered(terms)["max_stack_depth"] == 1
    terms = agreed(Offer(7, 39, 0, ALL & ~Init.PASSTHROUGH), Wishes(flags=both))
    assert (terms.flags, terms.stack_depth) == (Init.WRITEBACK_CACHE, 0)


@pytest.mark.parametrize(("wished", "given"), [(0, 1), (1, 1), (2, 2), (9, 2)])
def test_the_kernel_would_drop_passthrough_for_a_depth_it_does_not_have(wished: int, given: int) -> None:
    wishes = Wishes(flags=Init.PASSTHROUGH, stack_depth=wished)
    assert agreed(Offer(7, 45, 0, ALL), wishes).stack_depth == given


@pytest.mark.parametrize(
    ("wishes", "offered", "write", "read", "pages"),
    [
        (Wishes(max_write=1 << 20), ALL, 1 << 20, 1 << 20, 256),
        (Wishes(max_write=100_000), ALL, 100_000, 25 * 4096, 25),
        (Wishes(max_write=1), ALL, 4096, 4096, 1),
        (Wishes(max_write=1 << 40), ALL, 65535 * 4096, 65535 * 4096, 65535),
        (Wishes(max_write=1 << 20), ALL & ~Init.MAX_PAGES, 1 << 17, 1 << 17, 32),
        (Wishes(max_write=1 << 20, page_bytes=1 << 16), ALL, 1 << 20, 1 << 20, 16),
    ],
)
def test_how_large_requests_can_be(wishes: Wishes, offered: Init, write: int, read: int, pages: int) -> None:
    terms = agreed(Offer(7, 45, 0, offered), wishes)
    assert (terms.max_write, terms.max_read, terms.max_pages) == (write, read, pages)
    assert answered(terms)["max_pages"] == (pages if offered & Init.MAX_PAGES else 0)
    assert terms.frame_bytes >= max(write + 80, 65536 + 256 + 56, 8192)
