"""The header of a checkpoint: what was said comes back, and nothing else is taken for one (I12)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import FormatError
from holdfast.model.ids import CheckpointId, Hash, WorkspaceId
from holdfast.store.manifests.checkpoint_header import MAGIC, CheckpointHeader, decode_header, encode_header

ONE = CheckpointHeader(
    id=CheckpointId("a1" * 12),
    workspace=WorkspaceId("b2" * 8),
    path=b"/home/me/n\xe9",
    parent=CheckpointId("c3" * 12),
    root=Hash(b"\x07" * 16),
    kind="run",
    labels=("für später", "two"),
    created_at=1_790_000_000_000_000,
    author="me",
    message="why",
    command="make all",
    is_state=True,
    other=None,
    base=None,
)
ENCODED = encode_header(ONE)


@pytest.mark.parametrize(
    "header",
    [
        ONE,
        ONE._replace(parent=None, path=b"", labels=(), author="", message="m" * 70_000, command="", is_state=False),
        ONE._replace(other=CheckpointId("d4" * 12), base=CheckpointId("e5" * 12), created_at=0, kind="merge"),
    ],
)
def test_what_was_said_comes_back(header):
    assert decode_header(encode_header(header)) == header


def test_the_bytes_are_those_of_the_specification():
    assert ENCODED.startswith(b"HFH\x01\x9e\xc4\x18" + b"a1" * 12 + b"\xc4\x10" + b"b2" * 8)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        (ENCODED.replace(b"HFH\x01", b"HFH\x02"), "magic"),
        (ENCODED.replace(b"a1", b"A1"), "id"),
        (ENCODED.replace(b"\xc4\x03run", b"\xc4\x03ran"), "kind"),
        (ENCODED.replace(b"/home", b"xhome"), "path"),
        (ENCODED.replace(b"\xc4\x02me", b"\xc4\x02\xff\xff"), "author"),
        (encode_header(ONE._replace(root=Hash(b"short"))), "root"),
        (encode_header(ONE._replace(labels=("one", "", "two"))), "labels"),
        (encode_header(ONE._replace(created_at=1 << 63)), "created_at"),
        (ENCODED + b"\0", "too many"),
        (ENCODED[:-1], "cut short"),
    ],
)
def test_what_is_none_is_refused_and_the_field_named(changed, field):
    assert changed != ENCODED
    with pytest.raises(FormatError, match=field):
        decode_header(changed)


@given(st.binary(max_size=200), st.integers(0, len(ENCODED)), st.integers(0, 40))
def test_whatever_the_bytes_only_a_format_error_comes_out(noise, at, gone):
    for data in (MAGIC + noise, ENCODED[:at] + noise + ENCODED[at + gone :]):
        try:
            header = decode_header(data)
        except FormatError:
            continue
        assert encode_header(header) == data
