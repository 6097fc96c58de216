"""A manifest as one sorted list: by position, by path, from several threads, and what is no such list."""

from __future__ import annotations

from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.entries import Entry, file_entry
from holdfast.model.errors import FormatError
from holdfast.model.ids import Hash, hash_bytes
from holdfast.store.manifests import manifest
from holdfast.store.manifests.ordered_manifest import OrderedManifest
from holdfast.store.manifests.page_codec import Child, encode_inner, encode_leaf

if TYPE_CHECKING:
    from collections.abc import Sequence


class MemoryPages(dict[Hash, bytes]):
    """Pages in a dictionary, counting what is read."""

    read_pages = 0

    def read(self, hashes: Sequence[Hash], /) -> list[bytes]:
        self.read_pages += len(hashes)
        return [self[name] for name in hashes]

    def add(self, data: bytes) -> Hash:
        name = hash_bytes(data)
        self[name] = data
        return name


def entry(path: bytes) -> Entry:
    return file_entry(hash_bytes(path), len(path), 0o644)


def ordered(paths: Sequence[bytes]) -> tuple[OrderedManifest, MemoryPages]:
    built = manifest.build([(path, entry(path)) for path in paths])
    pages = MemoryPages(built.new_pages)
    return OrderedManifest(pages, built.root), pages


MANY = sorted(b"d%02d/f%04d" % (number % 37, number) for number in range(9_000))


@settings(deadline=None)
@given(st.sets(st.binary(min_size=1, max_size=4).filter(lambda path: not set(path) & set(b"/\0."))), st.binary())
def test_any_path_is_found_where_it_would_stand(some: set[bytes], path: bytes) -> None:
    paths = sorted(some)
    found, _ = ordered(paths)
    assert found.count == len(paths)
    assert found.find(path) == bisect_left(paths, path)


def test_every_position_has_its_entry_and_each_page_is_read_once() -> None:
    found, pages = ordered(MANY)
    assert (found.count, found.size) == (len(MANY), sum(map(len, MANY)))
    for position, path in enumerate(MANY):
        stretch = found.run_at(position)
        at = position - stretch.first
        assert (stretch.paths[at], stretch.entries[at]) == (path, entry(path))
    assert pages.read_pages == len(pages)
    for position in (-1, len(MANY)):
        with pytest.raises(IndexError):
            found.run_at(position)


def test_one_path_costs_one_page_of_each_level() -> None:
    found, pages = ordered(MANY)
    before = pages.read_pages
    assert found.find(MANY[5000]) == 5000
    assert pages.read_pages - before <= 3


def test_threads_may_share_it() -> None:
    found, _ = ordered(MANY)

    def look(start: int) -> bool:
        return all(found.find(path) == at for at, path in enumerate(MANY) if at % 8 == start)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(look, range(8)))


@pytest.mark.parametrize("wrong", ["files", "key", "beyond"])
def test_a_page_that_is_not_what_is_said_of_it_is_refused(wrong: str) -> None:
    pages = MemoryPages()
    left, right = [b"a", b"b"], [b"m", b"n"]
    children = [
        Child(pages.add(encode_leaf(paths, [entry(path) for path in paths])), 2, 2)
        for paths in ([b"a", b"x"] if wrong == "beyond" else left, right)
    ]
    keys = [b"a", b"l" if wrong == "key" else b"m"]
    if wrong == "files":
        children[1] = children[1]._replace(files=3)
    root = pages.add(encode_inner(1, keys, children))
    found = OrderedManifest(pages, root)
    with pytest.raises(FormatError):
        [found.run_at(position) for position in range(found.count)]
