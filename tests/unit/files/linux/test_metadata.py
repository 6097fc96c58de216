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
