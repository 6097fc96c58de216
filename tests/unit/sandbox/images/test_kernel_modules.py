"""Which modules are loaded, and in which order, by what they say of themselves."""

from __future__ import annotations

import gzip
import lzma
import os
from pathlib import Path

import pytest
import zstandard

from holdfast.model.errors import FormatError, UnsupportedError
from holdfast.sandbox.images.kernel_modules import choose_modules, module_facts, read_module

from .elf import module

MODULES = {
    "kernel/drivers/virtio/virtio.ko": module(b"name=virtio", b"depends=virtio_ring"),
    "kernel/drivers/virtio/virtio_ring.ko": module(b"depends="),
    "kernel/drivers/block/virtio_blk.ko": module(b"alias=virtio:d00000002v*", b"depends=virtio_ring,virtio"),
    "kernel/fs/btrfs.ko": module(b"depends=libcrc32c"),
    "kernel/lib/libcrc32c.ko": module(b"depends=", b"softdep=pre: crc32c post: later"),
    "kernel/crypto/crc32c-intel.ko": module(b"alias=crc32c", b"depends="),
    "kernel/crypto/crc32c_generic.ko": module(b"alias=crc32c", b"depends="),
    "kernel/fs/later.ko": module(b"depends="),
    "kernel/fs/one.ko": module(b"depends=other"),
    "kernel/fs/other.ko": module(b"depends=one"),
    "kernel/fs/broken.ko": module(b"depends=nowhere"),
}


@pytest.fixture
def tree(tmp_path: Path) -> bytes:
    for name, content in MODULES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "modules.builtin").write_text("kernel/fs/ext4/ext4.ko\nkernel/drivers/9p-net.ko\n")
    return os.fsencode(tmp_path)


def chosen(tree: bytes, *needed: str, wanted: tuple[str, ...] = ()) -> list[str]:
    return [one.name for one in choose_modules(tree, needed, wanted)]


def test_before_a_module_comes_what_it_depends_on(tree: bytes) -> None:
    assert chosen(tree, "virtio_blk") == ["virtio_ring", "virtio", "virtio_blk"]


def test_each_is_loaded_once(tree: bytes) -> None:
    assert chosen(tree, "virtio", "virtio_blk", "virtio") == ["virtio_ring", "virtio", "virtio_blk"]


def test_names_may_have_hyphens(tree: bytes) -> None:
    assert chosen(tree, "crc32c_intel") == ["crc32c_intel"]
    assert chosen(tree, "crc32c-intel") == ["crc32c_intel"]


def test_a_module_that_asks_for_an_alias_gets_the_generic_one(tree: bytes) -> None:
    assert chosen(tree, "btrfs") == ["crc32c_generic", "libcrc32c", "btrfs"]


def test_what_is_built_in_is_left_out(tree: bytes) -> None:
    assert chosen(tree, "ext4", "9p_net") == []


def test_the_kernel_may_lack_what_is_only_wanted(tree: bytes) -> None:
    assert chosen(tree, "virtio_ring", wanted=("9p", "later")) == ["virtio_ring", "later"]


def test_a_needed_module_that_is_missing_is_an_error(tree: bytes) -> None:
    with pytest.raises(UnsupportedError, match="no module squashfs"):
        chosen(tree, "squashfs")
    with pytest.raises(UnsupportedError, match="broken depends on nowhere"):
        chosen(tree, "broken")


def test_a_circle_ends(tree: bytes) -> None:
    assert sorted(chosen(tree, "one")) == ["one", "other"]


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [(".ko", bytes), (".ko.xz", lzma.compress), (".ko.zst", zstandard.compress), (".ko.gz", gzip.compress)],
)
def test_compressed_modules_are_unpacked(tmp_path: Path, suffix: str, pack) -> None:
    content = module(b"depends=")
    (tmp_path / f"m{suffix}").write_bytes(pack(content))
    (found,) = choose_modules(os.fsencode(tmp_path), ["m"])
    assert found == ("m", content)


def test_a_compressed_module_that_is_damaged_is_named(tmp_path: Path) -> None:
    for suffix, pack in ((".ko.xz", lzma.compress), (".ko.zst", zstandard.compress), (".ko.gz", gzip.compress)):
        path = tmp_path / f"m{suffix}"
        path.write_bytes(b"\xff" + pack(module(b"depends="))[1:])
        with pytest.raises(FormatError, match=rf"m{suffix}: it cannot be unpacked"):
            read_module(os.fsencode(path))


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.ko.zst"
    path.write_bytes(zstandard.compress(bytes(65 << 20)))
    with pytest.raises(FormatError, match="no kernel module"):
        read_module(os.fsencode(path))


def test_damage_anywhere_is_an_error_or_no_matter() -> None:
    content = module(b"depends=a,b", b"softdep=pre: c")
    assert module_facts(content).depends == ("a", "b")
    for length in range(len(content)):
        with pytest.raises(FormatError):
            module_facts(content[:length])
    for at in range(len(content)):
        try:
            module_facts(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
        except FormatError:
            pass
