"""A copy is left with what is named, and nothing outside of it is touched."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.files.directories.pruned_copy import keep_only


def lay(tree: Path, *files: str) -> None:
    for name in files:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(name)


def found(tree: Path) -> list[str]:
    return sorted(str(path.relative_to(tree)) for path in tree.rglob("*"))


def test_only_what_is_named_stays(tmp_path: Path) -> None:
    lay(tmp_path, "a/b/kept", "a/b/ignored", "deps/x/y/z", ".git/HEAD", ".git/refs/heads/main", "sub/.git", "sub/kept")
    lay(tmp_path, ".holdfast/undo/lock", "kept")
    (tmp_path / "empty/inner").mkdir(parents=True)
    (tmp_path / "deps/empty").mkdir()
    os.utime(tmp_path / "a/b", ns=(5, 7))
    keep_only(os.fsencode(tmp_path), {b"a/b/kept", b"sub/kept", b"kept", b"is/not/there"})
    assert found(tmp_path) == [
        ".holdfast", ".holdfast/undo", ".holdfast/undo/lock", "a", "a/b", "a/b/kept", "empty", "empty/inner", "kept",
        "sub", "sub/kept",
    ]  # fmt: skip
    assert (tmp_path / "a/b").stat().st_mtime_ns == 7


def test_a_file_where_a_directory_is_to_be_goes_and_the_other_way_round(tmp_path: Path) -> None:
    lay(tmp_path, "a", "b/inner")
    keep_only(os.fsencode(tmp_path), {b"a/inner", b"b"})
    assert found(tmp_path) == []


def test_no_link_is_followed(tmp_path: Path) -> None:
    """I7."""
    outside, tree = tmp_path / "outside", tmp_path / "tree"
    lay(outside, "a/mine")
    tree.mkdir()
    (tree / "kept").symlink_to(outside)
    (tree / "gone").symlink_to(outside)
    (tree / "a").symlink_to(outside / "a")
    keep_only(os.fsencode(tree), {b"kept", b"a/mine"})
    assert found(tree) == ["kept"]
    assert (outside / "a/mine").exists()


def test_permissions_are_as_they_were(tmp_path: Path) -> None:
    lay(tmp_path, "a/kept", "a/ignored", "deps/x")
    for name, mode in (("a", 0o555), ("deps", 0o000)):
        (tmp_path / name).chmod(mode)
    keep_only(os.fsencode(tmp_path), {b"a/kept"})
    assert found(tmp_path) == ["a", "a/kept"]
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o555
