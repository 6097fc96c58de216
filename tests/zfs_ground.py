"""A workspace that is a dataset of ZFS, of a real pool or of the program that stands in for one."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from holdfast.snapshot.provider_context import ProviderContext
from holdfast.snapshot.zfs._command import Zfs
from holdfast.snapshot.zfs.provider import zfs_provider
from holdfast.testing.provider_contract import Ground, lay

from .waiting import wait_until
from .zfs_program import install

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


def simulated_pool(base: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace on the program's dataset."""
    root = base / "tree"
    install(base / "bin", base / "store", "tank/tree", root)
    monkeypatch.setenv("PATH", f"{base / 'bin'}:{os.environ['PATH']}")
    lay(root)
    return root


@contextmanager
def daemon() -> Generator[None]:
    """Where ZFS is that of zfs-fuse, a process of our own that serves it, and mounts where we see it."""
    program = shutil.which("zfs-fuse")
    if program is None:
        yield
        return
    socket = "/run/zfs"
    os.makedirs(socket, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", socket], check=True)
    words = [program, "-n", "--no-kstat-mount", "--enable-xattr"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: not subprocess.run(["zfs", "list"], capture_output=True, check=False).returncode)
            yield
        finally:
            process.terminate()
            process.wait(60)
            subprocess.run(["umount", "-l", socket], check=True)


@contextmanager
def real_pool(base: Path) -> Generator[Path]:
    """A workspace on a dataset of a pool in a file. Skips where there can be none."""
    zpool = shutil.which("zpool")
    if os.geteuid() != 0 or zpool is None:
        pytest.skip("needs root and ZFS")
    pool, image = f"holdfast{os.urandom(4).hex()}", base / "image"
    with image.open("wb") as file:
        file.truncate(256 << 20)
    words = [zpool, "create", "-m", str(base / "pool"), "-o", "cachefile=none", pool, str(image)]
    with daemon():
        made = subprocess.run(words, capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"no pool can be made: {made.stderr.strip()}")
        try:
            Zfs(bytes(base))("create", "-o", f"mountpoint={base / 'tree'}", f"{pool}/tree")
            lay(base / "tree")
            yield base / "tree"
        finally:
            for path in (base / "tree", base / "pool"):
                subprocess.run(["umount", str(path)], check=False, capture_output=True)
            destroy = [zpool, "destroy", "-f", pool]
            wait_until(lambda: not subprocess.run(destroy, capture_output=True, check=False).returncode)


def zfs_ground(root: Path, state: Path) -> Ground:
    """A ground on a workspace that is a dataset."""

    def left() -> list[str]:
        files = [str(path) for path in state.rglob("*") if path.is_file() and path.suffix not in (".lock", ".new")]
        files += [str(path) for path in (state / "clones",) if path.exists()]
        zfs = Zfs(bytes(root.parent))
        found = zfs.at(bytes(root))
        assert found is not None
        listed = zfs("list", "-H", "-r", "-t", "all", "-o", "name", found.name).split()
        return files + [name for name in listed if name != found.name]

    script = f"""
from holdfast.snapshot.provider_context import ProviderContext
from holdfast.snapshot.zfs.provider import zfs_provider
def make(session):
    return zfs_provider(ProviderContext({bytes(root)!r}, {bytes(state)!r}, session))
"""
    return Ground(root, lambda session: zfs_provider(ProviderContext(bytes(root), bytes(state), session)), left, script)


def clean_up(ground: Ground, mounted: Path | None) -> None:
    """Leave nothing; unmount what the program has mounted."""
    for session in ("one", "two"):
        provider = ground.make(session)
        for allocation in provider.tokens():
            provider.cleanup(allocation.token)
    left = ground.left()
    if mounted is not None:
        subprocess.run(["umount", str(mounted)], check=True)
    assert left == [] or any("/ledger/" in name for name in left), "only of a damaged entry something is left"
