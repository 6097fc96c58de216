"""The initrd, as cpio unpacks it."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.sandbox.images import cpio
from holdfast.sandbox.images.initrd import boot_key, build_initrd, first_program, init_key
from holdfast.sandbox.images.kernel_modules import Module

MODULES = [Module("virtio", b"first"), Module("virtio_blk", b"second")]


@pytest.fixture
def needs_cpio() -> None:
    if shutil.which("busybox") is None:
        pytest.skip("busybox (busybox-static) is not installed")


def unpacked(archive: bytes, target: Path) -> list[str]:
    target.mkdir()
    subprocess.run(["busybox", "cpio", "-idm"], input=archive, cwd=target, check=True, capture_output=True)
    return sorted(str(path.relative_to(target)) for path in target.rglob("*"))


@pytest.mark.usefixtures("needs_cpio")
def test_it_holds_what_the_machine_needs(tmp_path: Path) -> None:
    packed = build_initrd(b"busybox", MODULES)
    found = unpacked(gzip.decompress(packed), tmp_path / "root")
    assert {"init", "bin/busybox", "bin/sh", "modules/000-virtio.ko", "modules/001-virtio_blk.ko"} <= set(found)
    root = tmp_path / "root"
    assert (root / "init").read_bytes() == first_program()
    assert os.access(root / "init", os.X_OK)
    assert os.readlink(root / "bin/sh") == "busybox"
    assert (root / "modules/001-virtio_blk.ko").read_bytes() == b"second"


def test_another_archive_can_follow() -> None:
    for length in range(4):
        assert len(build_initrd(b"b" * length, MODULES)) % 4 == 0


def test_the_same_parts_give_the_same_bytes() -> None:
    assert build_initrd(b"b", MODULES) == build_initrd(b"b", MODULES)


@pytest.mark.usefixtures("needs_cpio")
@pytest.mark.parametrize("length", range(5))
def test_members_of_any_length(tmp_path: Path, length: int) -> None:
    members = [cpio.directory(b"d", 0o700), cpio.file(b"d/" + b"n" * (length + 1), b"x" * length, 0o600)]
    assert unpacked(cpio.encode(members), tmp_path / "root") == ["d", "d/" + "n" * (length + 1)]
    assert (tmp_path / "root/d").stat().st_mode & 0o7777 == 0o700
    assert (tmp_path / "root/d" / ("n" * (length + 1))).read_bytes() == b"x" * length


def test_another_busybox_or_kernel_is_another_key() -> None:
    assert len({boot_key(b"a", "k"), boot_key(b"b", "k"), boot_key(b"a", "l"), init_key()}) == 4


def test_the_first_program_is_a_shell_script() -> None:
    subprocess.run(["sh", "-n"], input=first_program(), check=True)
