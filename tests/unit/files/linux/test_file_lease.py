"""Asking the kernel for writers."""

from __future__ import annotations

import mmap
import os
import signal
from typing import TYPE_CHECKING

import pytest

from holdfast.files.linux import file_lease
from holdfast.files.linux.file_lease import WriterStatus, is_written, writer_of
from holdfast.files.linux.file_writers import files_being_written

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    MapFile = Callable[[Path], AbstractContextManager[Callable[[bytes], object]]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    fd = os.open(path, os.O_RDONLY)
    try:
        if writer_of(fd) in (WriterStatus.FORBIDDEN, WriterStatus.UNSUPPORTED):
            pytest.skip("this file system or user gets no leases")
    finally:
        os.close(fd)
    return path


def asked(path: Path) -> WriterStatus:
    fd = os.open(path, os.O_RDONLY)
    try:
        return writer_of(fd)
    finally:
        os.close(fd)


def test_nobody_writes(file: Path) -> None:
    assert asked(file) is WriterStatus.NONE
    with file.open("rb"):
        assert asked(file) is WriterStatus.NONE


def test_an_open_descriptor_writes(file: Path) -> None:
    with file.open("ab"):
        assert asked(file) is WriterStatus.SOME
    assert asked(file) is WriterStatus.NONE


def test_a_mapping_writes_even_after_its_descriptor_is_closed(file: Path) -> None:
    with file.open("r+b") as opened:
        mapping = mmap.mmap(opened.fileno(), 7)
    assert asked(file) is WriterStatus.SOME
    mapping.close()
    assert asked(file) is WriterStatus.NONE


def test_the_lease_is_given_back(file: Path) -> None:
    fd = os.open(file, os.O_RDONLY)
    try:
        assert writer_of(fd) is WriterStatus.NONE
        os.close(os.open(file, os.O_WRONLY | os.O_NONBLOCK))  # would fail with EWOULDBLOCK under a lease
    finally:
        os.close(fd)


def test_whether_it_is_written_is_asked_for_less(file: Path) -> None:
    def ask() -> bool:
        fd = os.open(file, os.O_RDONLY)
        try:
            return is_written(fd)
        finally:
            os.close(fd)

    assert not ask()
    with file.open("ab"):  # would wait, if the lease had not ended with its descriptor
        assert ask()
    assert not ask()


def test_where_there_are_no_leases_nobody_is_told_apart(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert writer_of(fd) is WriterStatus.UNSUPPORTED
    finally:
        os.close(fd)


def test_what_an_overlay_says_of_a_mapping_is_not_believed(overlay: Path, map_file: MapFile) -> None:
    file = overlay / "file"
    file.write_bytes(b"content")
    with file.open("r+b"):
        assert asked(file) is WriterStatus.SOME
    with map_file(file) as store:
        assert asked(file) is WriterStatus.UNSUPPORTED
        about = file.stat()
        assert (about.st_dev, about.st_ino) in files_being_written()
        store(b"c")
    assert asked(file) is WriterStatus.UNSUPPORTED
    assert (about.st_dev, about.st_ino) not in files_being_written()


def test_the_signal_of_a_broken_lease_is_one_that_is_ignored() -> None:
    assert file_lease._ignored() == signal.SIGURG


def test_that_signal_is_asked_for_where_it_may_have_another_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_lease, "_GENERIC", frozenset[str]())
    monkeypatch.setattr(file_lease, "_SIGURG", -1)
    file_lease._ignored.cache_clear()
    try:
        assert file_lease._ignored() == signal.SIGURG
    finally:
        file_lease._ignored.cache_clear()
