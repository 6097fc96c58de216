"""Looking at files for somebody who may be anybody."""

from __future__ import annotations

import os
import threading
import tracemalloc
from pathlib import Path

import pytest

from holdfast.engine.diffs.file_browser import MAX_READ_BYTES, find_directory, list_directory, read_file
from holdfast.model.errors import EscapeError, NotFoundError, RefusedError, UsageError
from holdfast.model.ids import hash_bytes


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> bytes:
    tree = tmp_path / "tree"
    (tree / "d").mkdir(parents=True)
    (tree / "d/f").write_bytes(b"0123456789")
    (tree / "link").symlink_to("d")
    (tree / "out").symlink_to(tmp_path)
    (tree / "absolute").symlink_to("/etc")
    (tree / ".holdfast/undo").mkdir(parents=True)
    (tree / ".holdfast/undo/secret").write_bytes(b"secret")
    (tree / "around").symlink_to(".holdfast/undo")
    (tmp_path / "outside").write_bytes(b"outside")
    os.mkfifo(tree / "pipe")
    return os.fsencode(tree)


def test_a_directory_is_listed(root: bytes) -> None:
    assert [(item.name, item.kind, item.size) for item in list_directory(root, b"").items] == [
        (b"absolute", "link", 0),
        (b"around", "link", 0),
        (b"d", "directory", 0),
        (b"link", "link", 0),
        (b"out", "link", 0),
        (b"pipe", "other", 0),
    ]
    for path in (b"d", b"link", b"./d/../d"):
        (item,) = list_directory(root, path).items
        assert (item.name, item.size, item.target) == (b"f", 10, None)
    assert list_directory(root, b"").items[3].target == b"d"


def test_a_file_is_read_whole_or_in_parts(root: bytes) -> None:
    whole = read_file(root, b"link/f")
    assert (whole.content, whole.size, whole.hash) == (b"0123456789", 10, hash_bytes(b"0123456789"))
    part = read_file(root, b"d/f", offset=3, limit=4)
    assert (part.content, part.offset, part.size, part.hash) == (b"3456", 3, 10, None)
    assert read_file(root, b"d/f", limit=10).hash is not None
    assert read_file(root, b"d/f", limit=9).hash is None
    assert read_file(root, b"d/f", offset=99).content == b""
    for offset, limit in ((-1, 1), (0, -1), (0, MAX_READ_BYTES + 1)):
        with pytest.raises(UsageError):
            read_file(root, b"d/f", offset=offset, limit=limit)


def test_nothing_leads_out_or_to_what_is_holdfast_s(root: bytes) -> None:
    """I7, I14."""
    for path in (b"../outside", b"out/outside", b"absolute/passwd", b"/etc/passwd", b"d/../../outside", b"a\0b"):
        with pytest.raises(EscapeError):
            read_file(root, path)
    for path in (b".holdfast/undo/secret", b"around/secret", b"./.holdfast/undo/secret", b"d/../.holdfast/undo/secret"):
        with pytest.raises(EscapeError):
            read_file(root, path)
    for path in (b"..", b"out", b".holdfast", b"around", b"/"):
        with pytest.raises(EscapeError):
            list_directory(root, path)


def test_what_is_no_file_or_not_there_is_said(root: bytes) -> None:
    for path, code in ((b"d", "not_a_file"), (b"pipe", "not_a_file"), (b"d/f/g", "not_a_directory")):
        with pytest.raises(RefusedError) as caught:
            read_file(root, path)
        assert caught.value.code == code
    with pytest.raises(NotFoundError):
        read_file(root, b"none")
    with pytest.raises(RefusedError):
        list_directory(root, b"d/f")
    with pytest.raises(UsageError):
        list_directory(root, b"x" * 5000)


def test_a_link_that_is_swapped_leads_nowhere_else(root: bytes, tmp_path: Path) -> None:
    """I7, against somebody who swaps a directory for a link all the time."""
    (tmp_path / "f").write_bytes(b"outside")
    over = threading.Event()

    def swap() -> None:
        tree = os.fsdecode(root)
        while not over.is_set():
            os.rename(f"{tree}/d", f"{tree}/kept")
            os.symlink(tmp_path, f"{tree}/d")
            os.unlink(f"{tree}/d")
            os.rename(f"{tree}/kept", f"{tree}/d")

    attacker = threading.Thread(target=swap)
    attacker.start()
    try:
        for _ in range(2000):
            try:
                assert read_file(root, b"d/f").content == b"0123456789"
            except (NotFoundError, EscapeError):
                pass
    finally:
        over.set()
        attacker.join()


@pytest.fixture(name="home")
def _home(root: bytes) -> bytes:
    """Holdfast's own home, in the tree."""
    home = os.path.join(root, b"d/home")
    os.makedirs(os.path.join(home, b"objects"))
    with open(os.path.join(home, b"catalog.db"), "wb") as file:
        file.write(b"catalog")
    os.symlink(b"d/home", os.path.join(root, b"way"))
    os.symlink(b"../d/home/catalog.db", os.path.join(root, b"d/way"))
    os.symlink(b"d/home/catalog.db", os.path.join(root, b"direct"))
    return home


def test_the_home_is_out_of_reach_wherever_it_lies(root: bytes, home: bytes) -> None:
    """I7, I14."""
    for path in (b"d/home/catalog.db", b"way/catalog.db", b"d/way", b"direct", b"d/home/objects/../catalog.db"):
        assert read_file(root, path).content == b"catalog"
        with pytest.raises(EscapeError):
            read_file(root, path, own=[home])
    for path in (b"d/home", b"way", b"d/home/objects", b"way/objects", b"way/."):
        assert list_directory(root, path)
        with pytest.raises(EscapeError):
            list_directory(root, path, own=[home])
        with pytest.raises(EscapeError):
            find_directory(root, path, own=[home])
    found = list_directory(root, b"d", own=[home])
    assert ([item.name for item in found.items], found.total) == ([b"f", b"way"], 2)
    for path in (b"", b"objects"):
        with pytest.raises(EscapeError):
            list_directory(os.path.join(home, path), b"", own=[home])


def test_the_home_is_known_by_what_it_is_and_not_by_its_name(root: bytes, home: bytes) -> None:
    """I7, I14: its path leads elsewhere than it is said to."""
    os.symlink(home, root + b"-home")
    for path in (b"d/home/catalog.db", b"way/catalog.db", b"direct"):
        with pytest.raises(EscapeError):
            read_file(root, path, own=[root + b"-home"])


def test_what_belongs_to_a_workspace_further_down_is_out_of_reach_too(root: bytes) -> None:
    """I14."""
    base = os.path.dirname(root)
    assert list_directory(base, b"tree/d").total == 1
    with pytest.raises(EscapeError):
        read_file(base, b"tree/.holdfast/undo/secret")
    assert b".holdfast" not in [item.name for item in list_directory(base, b"tree").items]


def test_a_directory_is_listed_in_parts(root: bytes) -> None:
    names = sorted(b"%d" % number for number in range(25))
    for name in names:
        os.mkdir(os.path.join(root, b"d", name))
    os.unlink(os.path.join(root, b"d/f"))
    found: list[bytes] = []
    after = b""
    while True:
        part = list_directory(root, b"d", after=after, limit=10)
        assert part.total == 25
        found += [item.name for item in part.items]
        if part.following is None:
            break
        assert part.following == found[-1]
        after = part.following
    assert found == names
    assert list_directory(root, b"d", limit=25).following is None


def test_a_part_of_a_directory_takes_no_more_memory_than_it_has_items(root: bytes) -> None:
    for number in range(20_000):
        os.link(os.path.join(root, b"d/f"), os.path.join(root, b"d/%0200d" % number))
    tracemalloc.start()
    try:
        found = list_directory(root, b"d", limit=10)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(found.items), found.total) == (10, 20_001)
    assert peak < 500_000


def test_a_directory_is_found_without_the_links_that_lead_to_it(root: bytes) -> None:
    """I7."""
    os.mkdir(os.path.join(root, b"d/e"))
    for path in (b"d/e", b"link/e", b"d/../link/e/."):
        assert find_directory(root, path) == os.path.join(os.path.realpath(root), b"d/e")
    assert find_directory(root, b"") == os.path.realpath(root)
    for path in (b"out", b"absolute", b"..", b"d/../..", b"around"):
        with pytest.raises(EscapeError):
            find_directory(root, path)
    with pytest.raises(NotFoundError):
        find_directory(root, b"none")
    with pytest.raises(RefusedError):
        find_directory(root, b"d/f")
