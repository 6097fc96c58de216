"""What one shell hands on to the next."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.sessions.shell import _shell_programs as shell_programs
from holdfast.engine.sessions.shell._shell_programs import nearest_existing, parse_state, relative


def said(logical: bytes, physical: bytes, *variables: bytes) -> bytes:
    return b"\0".join([b"holdfast-shell-1", logical, physical, *variables, b"end", b""])


def test_variables_are_taken_as_they_are() -> None:
    found = parse_state(
        said(b"/", b"/\n", b"A=1\n2", b"B=", b"C=a=b", b"D=\xff", b"_=/usr/bin/env", b"SHLVL=2", b"PWD=/")
    )
    assert found is not None
    assert found.env == {"A": "1\n2", "B": "", "C": "a=b", "D": "\udcff"}


def test_what_is_cut_short_says_nothing() -> None:
    whole = said(b"/", b"/\n", b"A=1")
    assert parse_state(whole) is not None
    assert [parse_state(whole[:length]) for length in range(len(whole))] == [None] * len(whole)


@given(st.binary(max_size=200))
def test_any_bytes_can_be_read(data: bytes) -> None:
    parse_state(data)
    parse_state(said(data, data, data))


def test_links_are_shown_as_the_shell_does_unless_they_lie(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    real, link = bytes(tmp_path / "real"), bytes(tmp_path / "link")
    for logical, physical, directory in (
        (link, real + b"\n", link),
        (bytes(tmp_path), real + b"\n", real),
        (b"", real + b"\n", real),
        (b"/is/gone", b"", b"/is/gone"),
    ):
        found = parse_state(said(logical, physical))
        assert found is not None
        assert found.cwd == directory


def test_a_directory_is_told_from_the_root_on(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to("root")
    for directory, shown in (
        (root, "."),
        (root / "sub", "sub"),
        (root / "sub/..", "."),
        (tmp_path / "link/sub", "sub"),
        (tmp_path, str(tmp_path)),
        (Path(str(root) + "2"), str(root) + "2"),
    ):
        assert relative(bytes(directory), bytes(root)) == shown
    assert relative(b"/elsewhere", b"/") == "elsewhere"


def test_a_command_begins_above_a_directory_that_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a").mkdir()
    root = bytes(tmp_path)
    assert nearest_existing(root + b"/a", root) == root + b"/a"
    assert nearest_existing(root + b"/a/b/c", root) == root + b"/a"
    assert nearest_existing(b"/nowhere/at/all", root) == root
    assert "/a/b/c is gone: the command begins in" in caplog.text


def test_what_was_never_said_is_no_error(tmp_path: Path) -> None:
    assert shell_programs.read_state(bytes(tmp_path / "none")) is None
