"""Who owns what is created."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.files.write.ownership import Owner, owner_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def root_fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_the_roots_owner_unless_configured(root_fd: int):
    info = os.fstat(root_fd)
    assert owner_for(root_fd, privileged=True) == Owner(info.st_uid, info.st_gid)
    assert owner_for(root_fd, uid=7, privileged=True) == Owner(7, info.st_gid)
    assert owner_for(root_fd, gid=8, privileged=True) == Owner(info.st_uid, 8)
    assert owner_for(root_fd, uid=0, gid=0, privileged=True) == Owner(0, 0)


def test_without_privilege_nothing_is_given_away(root_fd: int):
    assert owner_for(root_fd, uid=7, gid=8, privileged=False) is None
    assert (owner_for(root_fd) is None) == (os.geteuid() != 0)


def test_what_is_owned_already_is_left_alone(root_fd: int, monkeypatch: pytest.MonkeyPatch):
    info = os.fstat(root_fd)
    monkeypatch.setattr(os, "fchown", lambda *_: pytest.fail("there was nothing to change"))
    assert Owner(info.st_uid, info.st_gid).take_fd(root_fd, info) is False


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root to give files away")
def test_a_link_itself_is_given_away(root_fd: int, tmp_path: Path):
    (tmp_path / "target").write_bytes(b"")
    (tmp_path / "link").symlink_to("target")
    Owner(1234, 2345).take_link(root_fd, b"link", b"target")
    assert (tmp_path / "link").lstat().st_uid == 1234
    assert (tmp_path / "target").stat().st_uid == os.geteuid()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root to give files away")
def test_i7_what_was_put_in_the_place_of_a_new_link_is_not_given_away(root_fd: int, tmp_path: Path):
    (tmp_path / "root's").write_bytes(b"secret")
    os.link(tmp_path / "root's", tmp_path / "hard")
    (tmp_path / "other").symlink_to("elsewhere")
    for name in (b"root's", b"hard", b"other"):
        with pytest.raises(PermissionError):
            Owner(1234, 2345).take_link(root_fd, name, b"target")
        assert os.lstat(bytes(tmp_path) + b"/" + name).st_uid == 0
    (tmp_path / "full").mkdir()
    (tmp_path / "full/f").write_bytes(b"")
    fd = os.open(tmp_path / "full", os.O_RDONLY)
    with pytest.raises(PermissionError):
        Owner(1234, 2345).take_directory(fd)
    os.close(fd)
    assert (tmp_path / "full").stat().st_uid == 0
