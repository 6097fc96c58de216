"""Asking the kernel for writers."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

import pytest

from holdfast.files.lease import has_writer

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    fd = os.open(path, os.O_RDONLY)
    try:
        if has_writer(fd) is None:
            pytest.skip("this file system or user gets no leases")
    finally:
        os.close(fd)
    return path


def asked(path: Path) -> bool | None:
    fd = os.open(path, os.O_RDONLY)
    try:
        return has_writer(fd)
    finally:
        os.close(fd)


def test_nobody_writes(file: Path) -> None:
    assert asked(file) is False
    with file.open("rb"):
        assert asked(file) is False


def test_an_open_descriptor_writes(file: Path) -> None:
    with file.open("ab"):
        assert asked(file) is True
    assert asked(file) is False


def test_a_mapping_writes_even_after_its_descriptor_is_closed(file: Path) -> None:
    with file.open("r+b") as opened:
        mapping = mmap.mmap(opened.fileno(), 7)
    assert asked(file) is True
    mapping.close()
    assert asked(file) is False


def test_the_lease_is_given_back(file: Path) -> None:
    fd = os.open(file, os.O_RDONLY)
    try:
        assert has_writer(fd) is False
        os.close(os.open(file, os.O_WRONLY | os.O_NONBLOCK))  # would fail with EWOULDBLOCK under a lease
    finally:
        os.close(fd)


def test_where_there_are_no_leases_nobody_is_told_apart(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert has_writer(fd) is False
    finally:
        os.close(fd)
