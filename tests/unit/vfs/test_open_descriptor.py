"""A descriptor that is closed while it is used."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from holdfast.vfs.recorded._open_descriptor import OpenDescriptor

if TYPE_CHECKING:
    from pathlib import Path


def test_it_is_closed_when_no_thread_uses_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    closed: list[int] = []
    opened = OpenDescriptor(os.open(tmp_path / "file", os.O_RDONLY), lambda one: closed.append(one.fd))
    with opened:
        with opened:
            opened.close()
            assert os.pread(opened.fd, 100, 0) == b"content"
        assert not closed
        with pytest.raises(OSError, match=rf"\[Errno {errno.EBADF}\]"), opened:
            pass
    assert closed == [opened.fd]
    opened.close()
    assert closed == [opened.fd]
    os.close(opened.fd)
