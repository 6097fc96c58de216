"""Metadata, read and given back through a descriptor."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.files.linux.metadata import apply_metadata, read_metadata


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="nobody else may give a link attributes")
def test_a_link_has_attributes_too(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("nowhere")
    fd = os.open(link, os.O_PATH | os.O_NOFOLLOW)
    try:
        bare = read_metadata(fd)
        os.setxattr(link, "trusted.holdfast", b"value", follow_symlinks=False)
        wanted = read_metadata(fd)
        assert wanted.xattrs == (("trusted.holdfast", b"value"),)
        apply_metadata(fd, bare)
        assert os.listxattr(link, follow_symlinks=False) == []
        apply_metadata(fd, wanted)
        assert os.getxattr(link, "trusted.holdfast", follow_symlinks=False) == b"value"
    finally:
        os.close(fd)


def test_an_attribute_that_is_just_removed_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    os.setxattr(file, "user.stays", b"value")
    listed = os.listxattr
    monkeypatch.setattr(os, "listxattr", lambda *of, **how: ["user.gone", *listed(*of, **how)])
    fd = os.open(file, os.O_RDONLY)
    try:
        assert read_metadata(fd).xattrs == (("user.stays", b"value"),)
    finally:
        os.close(fd)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may give a file capabilities")
def test_an_attribute_that_can_never_be_read_is_given_and_taken(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    fd = os.open(file, os.O_RDONLY)
    try:
        bare = read_metadata(fd)
        try:
            os.setxattr(file, "security.capability", b"")
        except OSError:
            pytest.skip("this kernel takes no capabilities without a value")
        empty = read_metadata(fd)
        assert empty.xattrs == (("security.capability", b""),)
        apply_metadata(fd, bare)
        assert os.listxattr(file) == []
        apply_metadata(fd, empty)
        assert os.listxattr(file) == ["security.capability"]
    finally:
        os.close(fd)
