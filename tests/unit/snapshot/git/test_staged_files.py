"""Copies of changed files: they are made in their place and nowhere else, whatever is swapped meanwhile (I7)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.snapshot.git._staged_files import staged


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree").mkdir()
    return tmp_path / "tree"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    return tmp_path / "outside"


def copied(place: Path) -> dict[str, str]:
    """What was copied: content of files, and where links lead."""
    found: dict[str, str] = {}
    for path in sorted(place.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(place))] = f"-> {path.readlink()}"
        elif path.is_file():
            found[str(path.relative_to(place))] = path.read_text()
    return found


def test_files_and_links_are_copied_with_the_attributes_above_them(tree: Path, tmp_path: Path) -> None:
    (tree / "sub/deep").mkdir(parents=True)
    (tree / "sub/deep/file").write_text("text")
    (tree / "sub/deep/file").chmod(0o755)
    (tree / "sub/.gitattributes").write_text("* text\n")
    (tree / "link").symlink_to("sub/deep")
    place = tmp_path / "place"
    with staged(bytes(tree), [b"link", b"sub/deep/file", b"gone", b"sub"], bytes(place)) as directories:
        assert directories == {b"sub"}
        assert copied(place) == {"link": "-> sub/deep", "sub/.gitattributes": "* text\n", "sub/deep/file": "text"}
        assert (place / "sub/deep/file").stat().st_mode & 0o777 == 0o700
    assert not place.exists()


def test_a_link_that_becomes_a_directory_leads_no_copy_elsewhere(tree: Path, outside: Path, tmp_path: Path) -> None:
    """An index can name both ``a`` and ``a/b``, and whoever works there have ``a`` be one and the other."""
    (tree / "later").mkdir()
    for name in ("b", ".gitattributes", "run"):
        (tree / "later" / name).write_text("theirs")
    (tree / "later/on").symlink_to(outside)
    (tree / "a").symlink_to(outside)

    def paths() -> Iterator[bytes]:
        yield b"a"
        (tree / "a").rename(tree / "former")
        (tree / "later").rename(tree / "a")
        yield from (b"a/b", b"a/on", b"a/sub/c", b"a/run")

    place = tmp_path / "place"
    with staged(bytes(tree), paths(), bytes(place)):
        assert os.listdir(outside) == []
        assert copied(place) == {
            "a/.gitattributes": "theirs",
            "a/b": "theirs",
            "a/on": f"-> {outside}",
            "a/run": "theirs",
        }
    assert os.listdir(outside) == []


def test_a_directory_that_becomes_a_link_leads_no_copy_elsewhere(tree: Path, outside: Path, tmp_path: Path) -> None:
    (tree / "a").mkdir()
    (tree / "a/b").write_text("theirs")

    def paths() -> Iterator[bytes]:
        yield b"a/b"
        (tree / "a").rename(tree / "former")
        (tree / "a").symlink_to(outside)
        yield from (b"a", b"a/c", b"a/d/e")

    place = tmp_path / "place"
    with staged(bytes(tree), paths(), bytes(place)):
        assert copied(place) == {"a/b": "theirs"}
    assert os.listdir(outside) == []


def test_a_file_that_becomes_a_directory_is_taken_as_it_was(tree: Path, tmp_path: Path) -> None:
    (tree / "a").write_text("a file")
    (tree / "other").mkdir()
    (tree / "other/b").write_text("below")
    (tree / "other/on").symlink_to("b")

    def paths() -> Iterator[bytes]:
        yield b"a"
        (tree / "a").unlink()
        (tree / "other").rename(tree / "a")
        yield from (b"a/b", b"a/on", b"a/c/d")

    place = tmp_path / "place"
    with staged(bytes(tree), paths(), bytes(place)):
        assert copied(place) == {"a": "a file"}
