"""Renames: equal content first, then similar content, files only with files, the same answer every time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.diffs import renames
from holdfast.engine.diffs.renames import detect, similarity
from holdfast.model.entries import Change, Entry, file_entry, symlink_entry
from holdfast.model.ids import hash_bytes

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

TEXT = b"".join(b"line number %d\n" % n for n in range(40))


class Files:
    """Changes made of content, and what of it was read."""

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}
        self.changes: list[Change] = []
        self.read_count = 0
        self.unreadable: set[bytes] = set()

    def _entry(self, data: bytes) -> Entry:
        self._known[hash_bytes(data)] = data
        return file_entry(hash_bytes(data), len(data), 0o644)

    def gone(self, path: bytes, data: bytes) -> None:
        self.changes.append(Change(path, self._entry(data), None))

    def came(self, path: bytes, data: bytes) -> None:
        self.changes.append(Change(path, None, self._entry(data)))

    def read(self, entries: Sequence[Entry]) -> list[bytes | None]:
        self.read_count += len(entries)
        return [None if entry.hash in self.unreadable else self._known[entry.hash] for entry in entries]

    def detected(self, limit: int = 400) -> list[tuple[bytes, bytes, int]]:
        self.changes.sort()
        _, renamed = detect(self.changes, self.read, limit=limit)
        return [(r.before_path, r.path, r.similarity) for r in renamed]


@pytest.fixture
def files() -> Files:
    return Files()


def test_equal_content_is_a_rename_and_is_not_read(files: Files) -> None:
    files.gone(b"a/x", TEXT)
    files.came(b"b/y", TEXT)
    files.came(b"other", b"new\n")
    rest, renamed = detect(files.changes, files.read)
    assert [change.path for change in rest] == [b"other"]
    assert [(r.before_path, r.path, r.similarity) for r in renamed] == [(b"a/x", b"b/y", 100)]
    assert files.read_count == 0


def test_of_equal_files_those_with_similar_names_pair(files: Files) -> None:
    for name in (b"one/a.txt", b"one/b.txt", b"one/deep/c.txt"):
        files.gone(name, TEXT)
    for name in (b"two/b.txt", b"two/a.txt", b"one/deep/d.txt"):
        files.came(name, TEXT)
    assert files.detected() == [
        (b"one/deep/c.txt", b"one/deep/d.txt", 100),
        (b"one/a.txt", b"two/a.txt", 100),
        (b"one/b.txt", b"two/b.txt", 100),
    ]


def test_many_equal_files_pair_without_looking_at_every_pair(files: Files) -> None:
    for n in range(400):
        files.gone(b"old/%03d" % n, TEXT)
        files.came(b"new/%03d" % n, TEXT)
    assert files.detected() == [(b"old/%03d" % n, b"new/%03d" % n, 100) for n in range(400)]
    files.changes = [change for change in files.changes if change.path not in (b"old/007", b"new/009")]
    assert (b"old/009", b"new/007", 100) in files.detected()


def test_similar_content_is_a_rename_with_its_percentage(files: Files) -> None:
    files.gone(b"src/a.py", TEXT)
    files.came(b"lib/z.py", TEXT.replace(b"line number 7\n", b"something else\n"))
    (found,) = files.detected()
    assert found[:2] == (b"src/a.py", b"lib/z.py")
    assert 90 <= found[2] < 100


def test_less_than_half_alike_is_none(files: Files) -> None:
    files.gone(b"a", TEXT)
    files.came(b"b", TEXT[: len(TEXT) // 3] + b"".join(b"wholly different %d\n" % n for n in range(30)))
    assert files.detected() == []


def test_a_unique_name_wins_over_a_closer_content(files: Files) -> None:
    files.gone(b"old/settings.py", TEXT)
    files.came(b"new/settings.py", TEXT.replace(b"line number 1", b"LINE NUMBER 1"))
    files.came(b"new/copy.py", TEXT + b"one more line\n")
    assert [pair[:2] for pair in files.detected()] == [(b"old/settings.py", b"new/settings.py")]


def test_without_names_the_closest_contents_pair(files: Files) -> None:
    files.gone(b"a1", TEXT)
    files.gone(b"a2", TEXT + b"".join(b"extra %d\n" % n for n in range(10)))
    files.came(b"b1", TEXT + b"".join(b"extra %d\n" % n for n in range(11)))
    files.came(b"b2", TEXT + b"tail\n")
    assert [pair[:2] for pair in files.detected()] == [(b"a2", b"b1"), (b"a1", b"b2")]


@pytest.mark.parametrize("steps", [1_000_000, 60_000])
def test_among_many_files_of_the_same_lines_names_and_rare_lines_decide(
    files: Files, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Whether all that files share is looked at or, in bounded time, only the rarest of it."""
    monkeypatch.setattr(renames, "_MAX_STEPS", steps)
    for n in range(30):
        files.gone(b"old/%02d/index" % n, TEXT + b"id %d\n" % n)
        files.came(b"new/%02d/index" % n, TEXT + b"id %d changed\n" % n)
        files.gone(b"p%02d" % n, TEXT + b"rare %d\n" % n)
        files.came(b"q%02d" % (29 - n), TEXT + b"rare %d\nmore\n" % n)
    found = {target: source for source, target, _ in files.detected()}
    assert all(found[b"new/%02d/index" % n] == b"old/%02d/index" % n for n in range(30))
    assert all(found[b"q%02d" % (29 - n)] == b"p%02d" % n for n in range(30))


def test_empty_files_pair_only_under_their_own_name(files: Files) -> None:
    files.gone(b"a/__init__.py", b"")
    files.gone(b"a/empty", b"")
    files.came(b"b/__init__.py", b"")
    files.came(b"b/other", b"")
    assert files.detected() == [(b"a/__init__.py", b"b/__init__.py", 100)]


def test_links_and_modified_files_never_pair(files: Files) -> None:
    target = hash_bytes(b"there")
    files.changes = [
        Change(b"a", symlink_entry(target, 5), None),
        Change(b"b", None, symlink_entry(target, 5)),
        Change(b"c", None, file_entry(target, 5, 0o644)),
        Change(b"d", file_entry(target, 5, 0o644), symlink_entry(target, 5)),
    ]
    assert detect(files.changes, files.read) == (files.changes, [])


def test_nothing_is_read_beyond_the_limit_of_files(files: Files) -> None:
    for n in range(5):
        files.gone(b"a%d" % n, TEXT + b"%d" % n)
        files.came(b"b%d" % n, TEXT + b"x%d" % n)
    assert files.detected(limit=4) == []
    assert files.read_count == 0
    assert len(files.detected(limit=5)) == 5


def test_no_more_is_read_than_the_limit_of_bytes(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(5):
        files.gone(b"a%d" % n, TEXT + b"%d" % n)
        files.came(b"b%d" % n, TEXT + b"x%d" % n)
    monkeypatch.setattr(renames, "MAX_READ_BYTES", 3 * len(TEXT) + 100)
    files.detected()
    assert files.read_count == 3


def test_large_and_unreadable_files_pair_by_hash_alone(files: Files) -> None:
    large = b"x" * (2 << 20)
    files.gone(b"l1", large)
    files.came(b"l2", large + b"y")
    files.gone(b"m1", large + b"z")
    files.came(b"m2", large + b"z")
    files.gone(b"u1", TEXT)
    files.came(b"u2", TEXT + b"more\n")
    files.unreadable.add(hash_bytes(TEXT))
    assert files.detected() == [(b"m1", b"m2", 100)]


def test_line_ends_do_not_count() -> None:
    assert similarity(TEXT, TEXT.replace(b"\n", b"\r\n")) > 85
    assert similarity(b"", b"") == 100
    assert similarity(b"a", b"") == 0


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.binary(min_size=1, max_size=3), st.integers(0, 6), max_size=8),
    st.dictionaries(st.binary(min_size=1, max_size=3), st.integers(0, 6), max_size=8),
    st.randoms(use_true_random=False),
)
def test_every_change_is_in_exactly_one_list_whatever_the_order(
    before: dict[bytes, int], after: dict[bytes, int], shuffle: random.Random
) -> None:
    files = Files()
    for path, version in before.items():
        files.gone(path + b"-old", TEXT[: 100 * version])
    for path, version in after.items():
        files.came(path + b"-new", TEXT[: 90 * version])
    changes = sorted(files.changes)
    rest, renamed = detect(changes, files.read)
    assert sorted([c.path for c in rest] + [p for r in renamed for p in (r.before_path, r.path)]) == [
        c.path for c in changes
    ]
    assert rest == sorted(rest)
    shuffle.shuffle(files.changes)
    again, also = detect(files.changes, files.read)
    assert (sorted(again), also) == (rest, renamed)
