"""Encrypted objects: what may be swapped, cut or damaged, and what is said of it; keys and their rotation."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.errors import ConfigError, FormatError, HoldfastError, IntegrityError
from holdfast.store.objects import _encryption_format as encryption_format
from holdfast.store.objects import _encryption_keys as encryption_keys
from holdfast.store.objects._encrypted_store import EncryptedObjects
from holdfast.store.objects._encryption_format import (
    CHUNK_BYTES,
    HEADER_BYTES,
    STORED_CHUNK,
    decrypted,
    plain_size,
    stored_size,
    tenant_key,
)
from holdfast.store.objects._encryption_keys import EncryptionKeys
from holdfast.store.objects.remote_store import open_bucket

pytest.importorskip("cryptography")

KEY, OTHER = tenant_key(b"k" * 32), tenant_key(b"o" * 32)
KEYS = EncryptionKeys(KEY, {KEY.id: KEY})
SIZES = st.one_of(
    st.integers(0, 300),
    st.sampled_from([CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES, 3 * CHUNK_BYTES + 7]),
)


def sealed(data: bytes, name: str = "packs/t/a", key: encryption_format.TenantKey = KEY, cuts: int = 1) -> bytes:
    sealer = encryption_format.Sealer(os.urandom)
    step = max(1, -(-len(data) // cuts))
    body = b"".join(sealer.write(data[at : at + step]) for at in range(0, len(data), step))
    end = sealer.end()
    return sealer.header(name, key) + body + end


def opened(stored: bytes, name: str = "packs/t/a", step: int = 10_000) -> bytes:
    pieces = (stored[at : at + step] for at in range(0, len(stored), step))
    return b"".join(decrypted(pieces, name, KEYS.known))


@settings(max_examples=60, deadline=None)
@given(size=SIZES, cuts=st.integers(1, 5), step=st.integers(1, 200_000))
def test_what_is_sealed_in_any_pieces_is_opened_in_any(size: int, cuts: int, step: int) -> None:
    data = os.urandom(size)
    stored = sealed(data, cuts=cuts)
    assert len(stored) == stored_size(size)
    assert plain_size(len(stored)) == size
    assert opened(stored, step=max(step, len(stored) // 500 + 1)) == data


@settings(max_examples=60, deadline=None)
@given(size=SIZES, data=st.data())
def test_any_range_is_what_it_was(size: int, data: st.DataObject) -> None:
    content = os.urandom(size)
    objects = EncryptedObjects(open_bucket("memory://"), KEYS)
    objects.put("packs/t/a", [content])
    offset = data.draw(st.integers(0, size))
    length = data.draw(st.one_of(st.none(), st.integers(0, size - offset)))
    assert objects.get("packs/t/a", offset, length) == content[offset : None if length is None else offset + length]


@settings(max_examples=150, deadline=None)
@given(size=SIZES, data=st.data())
def test_no_change_of_any_byte_goes_unnoticed(size: int, data: st.DataObject) -> None:
    stored = bytearray(sealed(os.urandom(size)))
    stored[data.draw(st.integers(0, len(stored) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(IntegrityError):
        opened(bytes(stored))


@settings(max_examples=100, deadline=None)
@given(size=SIZES, data=st.data())
def test_nothing_can_be_cut_off_or_added(size: int, data: st.DataObject) -> None:
    stored = sealed(os.urandom(size))
    with pytest.raises(IntegrityError):
        opened(stored[: data.draw(st.integers(0, len(stored) - 1))])
    with pytest.raises(IntegrityError):
        opened(stored + bytes(data.draw(st.integers(1, 2 * STORED_CHUNK))))


@pytest.mark.parametrize("chunks", [2, 3, 5])
def test_chunks_can_be_neither_swapped_nor_left_out_nor_put_into_another_object(chunks: int) -> None:
    content = os.urandom(chunks * CHUNK_BYTES)
    stored, other = sealed(content), sealed(content)
    parts = [stored[at : at + STORED_CHUNK] for at in range(HEADER_BYTES, len(stored), STORED_CHUNK)]
    theirs = [other[at : at + STORED_CHUNK] for at in range(HEADER_BYTES, len(other), STORED_CHUNK)]
    head = stored[:HEADER_BYTES]
    assert opened(head + b"".join(parts)) == content
    for wrong in (
        [parts[1], parts[0], *parts[2:]],
        parts[1:],
        parts[:-1],
        [parts[-1]],
        [*parts, parts[-1]],
        [theirs[0], *parts[1:]],
        theirs,
    ):
        with pytest.raises(IntegrityError):
            opened(head + b"".join(wrong))


def test_an_object_is_bound_to_its_name() -> None:
    stored = sealed(b"content", "packs/t/a")
    assert opened(stored, "packs/t/a") == b"content"
    with pytest.raises(IntegrityError, match="another one's"):
        opened(stored, "packs/t/b")


@settings(max_examples=300, deadline=None)
@given(
    noise=st.one_of(st.binary(max_size=400), st.binary(max_size=300).map(lambda b: b"HFCRYP\1\0\0\0\1\0" + KEY.id + b))
)
def test_i12_noise_is_refused_with_a_typed_error(noise: bytes) -> None:
    with pytest.raises(IntegrityError):
        opened(noise)
    bucket = open_bucket("memory://")
    bucket.put("packs/t/a", [noise])
    objects = EncryptedObjects(bucket, KEYS)
    assert (objects.size("packs/t/a") or 0) >= 0
    for offset, length in ((0, 1), (0, None), (5, 10)):
        with pytest.raises(IntegrityError):
            objects.get("packs/t/a", offset, length)


def test_nothing_of_the_content_is_in_the_bucket_and_names_are() -> None:
    bucket = open_bucket("memory://")
    EncryptedObjects(bucket, KEYS).put("packs/t/a", [b"a secret word " * 10_000])
    assert [info.key for info in bucket.list("")] == ["packs/t/a"]
    stored = bucket.get("packs/t/a")
    assert b"secret" not in stored
    assert stored[:6] == b"HFCRYP"
    assert stored[12:28] == KEY.id


def test_a_shortened_object_is_noticed_by_a_range_at_its_end() -> None:
    bucket = open_bucket("memory://")
    EncryptedObjects(bucket, KEYS).put("packs/t/a", [os.urandom(3 * CHUNK_BYTES)])
    stored = bucket.get("packs/t/a")
    bucket.put("packs/t/a", [stored[: HEADER_BYTES + 2 * STORED_CHUNK]])
    objects = EncryptedObjects(bucket, KEYS)
    assert objects.size("packs/t/a") == 2 * CHUNK_BYTES
    with pytest.raises(IntegrityError):
        objects.get("packs/t/a", 2 * CHUNK_BYTES - 10, 10)
    with pytest.raises(IntegrityError):
        list(objects.stream("packs/t/a"))


def test_an_object_that_is_written_anew_is_read_as_it_is_now() -> None:
    bucket = open_bucket("memory://")
    one, two = EncryptedObjects(bucket, KEYS), EncryptedObjects(bucket, KEYS)
    one.put("blobs/t/a", [b"same"])
    assert one.get("blobs/t/a", 0, 2) == b"sa"
    two.put("blobs/t/a", [b"same"])
    assert one.get("blobs/t/a", 2, 2) == b"me"


def test_keys_are_rotated() -> None:
    bucket = open_bucket("memory://")
    EncryptedObjects(bucket, KEYS).put("packs/t/old", [b"old"])
    now = EncryptedObjects(bucket, EncryptionKeys(OTHER, {OTHER.id: OTHER, KEY.id: KEY}))
    now.put("packs/t/new", [b"new"])
    assert now.get("packs/t/old") + now.get("packs/t/new") == b"oldnew"
    for objects, key in (
        (EncryptedObjects(bucket, KEYS), "new"),
        (EncryptedObjects(bucket, EncryptionKeys(OTHER, {OTHER.id: OTHER})), "old"),
    ):
        with pytest.raises(IntegrityError) as refused:
            objects.get(f"packs/t/{key}")
        assert refused.value.code == "unknown_key"


def test_what_was_stored_before_encryption_is_told() -> None:
    bucket = open_bucket("memory://")
    bucket.put("packs/t/a", [b"HFPACK" + bytes(200)])
    with pytest.raises(FormatError, match="not encrypted"):
        EncryptedObjects(bucket, KEYS).get("packs/t/a", 0, 4)


SECRET = bytes(range(32))


@pytest.mark.parametrize(
    "written", [SECRET.hex(), SECRET.hex().upper() + "\n", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="]
)
def test_a_key_is_read_from_where_it_is(tmp_path, written: str) -> None:
    file = tmp_path / "key"
    file.write_text(written)
    file.chmod(0o600)
    expected = tenant_key(SECRET)
    for place in (f"file:{file}", "env:HERE", f"command:cat {file}"):
        assert encryption_keys.load(place, environ={"HERE": written}).current == expected
    file.write_bytes(SECRET)
    assert encryption_keys.load(f"file:{file}").current == expected


def test_a_key_that_cannot_be_had_is_named_and_never_shown(tmp_path, monkeypatch) -> None:
    secret = "0" * 60
    file = tmp_path / "key"
    file.write_text(secret)
    file.chmod(0o644)
    places = (
        "env:NOT_THERE",
        "env:SHORT",
        f"file:{file}",
        "file:/nowhere",
        "command:false",
        "command:/nowhere",
        f"command:cat {file}",
        "command:'",
        f"file:{tmp_path}",
        "x:y",
        secret,
        f"key:{secret}",
        "file:relative",
    )
    for place in places:
        with pytest.raises(ConfigError) as refused:
            encryption_keys.load(place, environ={"SHORT": secret})
        assert secret not in str(refused.value)


def test_a_key_id_tells_nothing_of_the_key() -> None:
    assert len(KEY.id) == 16
    assert KEY.id not in KEY.wrapping
    assert KEY.id != OTHER.id
    with pytest.raises(ValueError, match="32"):
        tenant_key(b"short")


def test_every_failure_is_one_of_ours() -> None:
    with pytest.raises(HoldfastError):
        opened(b"")
