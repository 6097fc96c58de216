"""The stat index: what goes in comes out, also through a file; a damaged file is an empty index."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.files.index.stat_index import (
    FAILED,
    NOT_CAPTURED,
    DirectoryColumns,
    KnownFile,
    Signature,
    StatIndex,
    load,
)
from holdfast.model.entries import Entry, file_entry, symlink_entry
from holdfast.model.errors import StorageError
from holdfast.model.ids import Hash, hash_bytes

if TYPE_CHECKING:
    from pathlib import Path

ROOT = Hash(b"0123456789abcdef")
FILE = file_entry(hash_bytes(b"content"), 7, 0o644)
SIGNATURE = Signature(1_700_000_000_123_456_789, 1_700_000_000_987_654_321, 7, 42, stat.S_IFREG | 0o644)


def filled() -> StatIndex:
    index = StatIndex()
    for path in (b"a", b"sub/b", b"sub/deep/\xff\n", b"other/c"):
        index.put(path, FILE, SIGNATURE)
    link = symlink_entry(hash_bytes(b"target"), 6)
    index.put(b"link", link, SIGNATURE._replace(size=6, mode=stat.S_IFLNK | 0o777))
    index.label(ROOT)
    index.put(b"sub/b", FILE._replace(hash=hash_bytes(b"other")), SIGNATURE)
    index.put(b"new", FILE, SIGNATURE)
    index.drop(b"other/c")
    return index


def test_what_is_put_is_got() -> None:
    index = filled()
    assert index.get(b"a") == KnownFile(FILE, SIGNATURE)
    assert index.get(b"sub/deep/\xff\n") == KnownFile(FILE, SIGNATURE)
    assert index.get(b"other/c") is None
    assert index.get(b"sub") is None
    assert index.get(b"nowhere/at/all") is None
    assert dict(index.entries())[b"link"].is_symlink
    assert (
        index.paths() == {path for path, _ in index.entries()} == {b"a", b"sub/b", b"sub/deep/\xff\n", b"link", b"new"}
    )


def test_what_differs_from_the_label_is_remembered() -> None:
    index = filled()
    changed = FILE._replace(hash=hash_bytes(b"other"))
    assert index.delta == {b"sub/b": (FILE, changed), b"new": (None, FILE), b"other/c": (FILE, None)}
    index.put(b"sub/b", FILE, SIGNATURE)
    index.drop(b"new")
    index.put(b"other/c", FILE, SIGNATURE)
    assert index.delta == {}


def test_racy_entries_are_not_certain() -> None:
    index = StatIndex()
    index.put(b"a", FILE, SIGNATURE, racy=True)
    assert index.get(b"a") is None
    assert dict(index.entries()) == {b"a": FILE}
    columns = DirectoryColumns(index.directories[b""])
    for name, flag in ((b"socket", NOT_CAPTURED), (b"secret", FAILED)):
        columns.append(name, SIGNATURE, flag, bytes(16))
    index.directories[b""] = columns.record()
    assert index.paths() == {b"a"} == set(dict(index.entries()))


def test_a_directory_is_forgotten_with_all_below() -> None:
    index = filled()
    index.label(ROOT)
    index.forget(b"sub")
    assert set(dict(index.entries())) == {b"a", b"link", b"new"}
    assert {path: after for path, (_, after) in index.delta.items()} == {b"sub/b": None, b"sub/deep/\xff\n": None}


def test_a_saved_index_is_the_same(tmp_path: Path) -> None:
    path = bytes(tmp_path / "index")
    index = filled()
    index.save(path)
    again = load(path)
    assert again.root == ROOT
    assert again.delta == index.delta
    assert dict(again.entries()) == dict(index.entries())
    assert again.get(b"a") == KnownFile(FILE, SIGNATURE)
    assert not again.changed
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert os.listdir(tmp_path) == ["index"]


def test_numbers_that_do_not_fit_are_wrapped() -> None:
    index = StatIndex()
    index.put(b"a", FILE, SIGNATURE._replace(inode=2**64 - 1, mtime_ns=2**63))
    known = index.get(b"a")
    assert known is not None
    assert known.signature[:4] == (-(2**63), SIGNATURE.ctime_ns, 7, -1)


def test_a_damaged_file_is_an_empty_index(tmp_path: Path) -> None:
    """I12: any single flipped byte and any truncation is noticed, none raises."""
    path = tmp_path / "index"
    filled().save(bytes(path))
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes((whole[at] ^ 0x41,)) + whole[at + 1 :])
        assert not load(bytes(path)).directories
        path.write_bytes(whole[:at])
        assert not load(bytes(path)).directories
    path.write_bytes(whole + b"x")
    assert not load(bytes(path)).directories


@given(data=st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_lengths_under_a_right_checksum_are_not_trusted(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    """I12: the decoder stands hostile content, not only accidents."""
    path = tmp_path_factory.getbasetemp() / "hostile-index"
    filled().save(bytes(path))
    magic = path.read_bytes()[:8]
    path.write_bytes(magic + hash_bytes(data) + data)
    assert isinstance(load(bytes(path)), StatIndex)


def test_a_missing_file_is_an_empty_index(tmp_path: Path) -> None:
    assert not load(bytes(tmp_path / "none")).directories
    assert not load(bytes(tmp_path)).directories


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot write the index"):
        filled().save(bytes(tmp_path / "none" / "index"))


PATHS = st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), min_size=1, max_size=3).map(b"/".join)


@given(st.lists(st.tuples(PATHS, st.one_of(st.none(), st.integers(0, 5)))))
@settings(max_examples=150, deadline=None)
def test_it_is_a_dictionary_of_paths(operations: list[tuple[bytes, int | None]]) -> None:
    index = StatIndex()
    model: dict[bytes, Entry] = {}
    before: dict[bytes, Entry] = {}
    for number, (path, value) in enumerate(operations):
        if number == len(operations) // 2:
            before = dict(model)
            index.label(ROOT)
        if value is None:
            index.drop(path)
            model.pop(path, None)
        else:
            model[path] = file_entry(hash_bytes(bytes((value,))), value, 0o600)
            index.put(path, model[path], SIGNATURE._replace(size=value, mode=stat.S_IFREG | 0o600))
        known = index.get(path)
        assert (None if known is None else known.entry) == model.get(path)
    assert dict(index.entries()) == model
    if operations:
        differing = {path for path in before.keys() | model.keys() if before.get(path) != model.get(path)}
        assert index.delta == {path: (before.get(path), model.get(path)) for path in differing}
