"""Every snapshot provider keeps the contract, on the file systems that it is made for."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.files.directories.directory_exchange import directory_identity
from holdfast.snapshot.btrfs import btrfs_provider
from holdfast.snapshot.full_copy import copy_provider, reflink_provider
from holdfast.snapshot.git.provider import GitOptions, git_provider
from holdfast.snapshot.overlay.provider import overlay_provider
from holdfast.snapshot.provider_context import ProviderContext
from holdfast.testing.provider_contract import Ground, ProviderContract, lay

from ..disks import mounted
from ..overlays import holders
from ..own_snapshots import own_ground
from ..zfs_ground import clean_up, real_pool, simulated_pool, zfs_ground

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.snapshot.port import Provider


@pytest.fixture(scope="module", params=["btrfs", "xfs"])
def disk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system that can share blocks."""
    with mounted(request.param, tmp_path_factory.mktemp("disk")) as place:
        yield place


@pytest.fixture(scope="module")
def btrfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One that has subvolumes."""
    with mounted("btrfs", tmp_path_factory.mktemp("disk")) as place:
        yield place


def left_in(state: Path) -> list[str]:
    """What is in a state directory, but for locks and directories without anything in them."""
    found = [os.path.join(at, name) for at, _, names in os.walk(state) for name in names]
    return [path for path in found if not path.endswith(".lock")]


def copying_ground(make_provider: Callable[[ProviderContext], Provider], root: Path, state: Path) -> Ground:
    """For what makes whole copies, in the state directory or in the tree."""

    def make(session: str) -> Provider:
        return make_provider(ProviderContext(os.fsencode(root), os.fsencode(state), session))

    def left() -> list[str]:
        inside = [str(root / ".holdfast")] if (root / ".holdfast").exists() else []
        return left_in(state) + inside

    script = f"""
from {make_provider.__module__} import {make_provider.__name__}
from holdfast.snapshot.provider_context import ProviderContext
def make(session):
    return {make_provider.__name__}(ProviderContext({os.fsencode(root)!r}, {os.fsencode(state)!r}, session))
"""
    return Ground(root, make, left, script)


def fresh(disk: Path, number: list[int] = [0]) -> Path:  # noqa: B006 - counts
    number[0] += 1
    root = disk / f"w{number[0]}"
    root.mkdir()
    lay(root)
    return root


def subvolume(disk: Path, number: list[int] = [0]) -> Path:  # noqa: B006 - counts
    """A workspace that is the root of a subvolume, with another one in it."""
    number[0] += 1
    root = disk / f"s{number[0]}"
    for path in (root, root / "inner"):
        subprocess.run(["btrfs", "subvolume", "create", path], check=True, capture_output=True)
    (root / "inner/kept").write_text("in a subvolume of its own\n")
    lay(root)
    return root


@pytest.mark.root
class TestReflinkBesideTheHome(ProviderContract):
    """The home is on the workspace's file system."""

    @pytest.fixture
    def ground(self, disk: Path) -> Ground:
        root = fresh(disk)
        return copying_ground(reflink_provider, root, root.with_name(f"{root.name} state"))


@pytest.mark.root
class TestReflinkInTheTree(ProviderContract):
    """The home is on another one."""

    @pytest.fixture
    def ground(self, disk: Path, tmp_path: Path) -> Ground:
        return copying_ground(reflink_provider, fresh(disk), tmp_path / "state")


class TestCopy(ProviderContract):
    """Whatever file system the tests lie on."""

    @pytest.fixture
    def ground(self, tmp_path: Path) -> Ground:
        root = fresh(tmp_path)
        return copying_ground(copy_provider, root, root.with_name(f"{root.name} state"))


@pytest.mark.root
class TestCopyElsewhere(ProviderContract):
    """From each kind of file system to one that is another."""

    @pytest.fixture
    def ground(self, any_disk: Path, tmp_path: Path) -> Ground:
        return copying_ground(copy_provider, fresh(any_disk), tmp_path / "state")


@pytest.mark.root
class TestBtrfsBesideTheHome(ProviderContract):
    """The home is on the workspace's file system."""

    @pytest.fixture
    def ground(self, btrfs: Path) -> Ground:
        root = subvolume(btrfs)
        return copying_ground(btrfs_provider, root, root.with_name(f"{root.name} state"))


@pytest.mark.root
class TestBtrfsInTheTree(ProviderContract):
    """The home is on another one."""

    @pytest.fixture
    def ground(self, btrfs: Path, tmp_path: Path) -> Ground:
        return copying_ground(btrfs_provider, subvolume(btrfs), tmp_path / "state")


@pytest.mark.root
class TestBtrfsWithoutAnother(ProviderContract):
    """No other subvolume lies in the workspace: a snapshot of it can take its place."""

    @pytest.fixture
    def ground(self, btrfs: Path) -> Ground:
        root = btrfs / f"alone{len(list(btrfs.iterdir()))}"
        subprocess.run(["btrfs", "subvolume", "create", root], check=True, capture_output=True)
        lay(root)
        return copying_ground(btrfs_provider, root, root.with_name(f"{root.name} state"))

    def test_it_can(self, ground: Ground) -> None:
        provider, root = ground.make("one"), os.fsencode(ground.root)
        assert provider.detect_beside(os.fsencode(ground.root.parent)).score == 90
        provider.copy_to(root + b" copy", without=())
        one, other = directory_identity(root), directory_identity(root + b" copy")
        assert one is not None
        assert other is not None
        assert (one.inode, one.born != other.born) == (other.inode, True), "told apart also by another device number"


def git_ground(root: Path, state: Path, **options: Any) -> Ground:
    def make(session: str) -> Provider:
        return git_provider(ProviderContext(os.fsencode(root), os.fsencode(state), session), GitOptions(**options))

    def left() -> list[str]:
        refs = subprocess.run(["git", "-C", root, "for-each-ref", "refs/holdfast"], check=True, capture_output=True)
        return left_in(state) + refs.stdout.decode().splitlines()

    def takes(path: Path) -> object:
        return subprocess.run(["git", "-C", root, "add", "--intent-to-add", "--", path], check=True)

    script = f"""
import os
from holdfast.snapshot.git.provider import GitOptions, git_provider
from holdfast.snapshot.provider_context import ProviderContext
from holdfast.snapshot.git.provider import GitOptions, git_provider
def make(session):
    place = ProviderContext({os.fsencode(root)!r}, {os.fsencode(state)!r}, session)
    return git_provider(place, GitOptions(**{options!r}))
"""
    return Ground(root, make, left, script, os.fspath if options.get("include_untracked") else takes)


def committed(root: Path, *words: str) -> None:
    root.mkdir()
    lay(root)
    run = ["git", "-C", root, "-c", "user.name=U", "-c", "user.email=u@example.org"]
    for more in (["init", "--quiet", *words], ["add", "--all"], ["commit", "--quiet", "-m", "first"]):
        subprocess.run([*run, *more], check=True, capture_output=True)


class TestGit(ProviderContract):
    """A repository with everything committed."""

    @pytest.fixture
    def ground(self, tmp_path: Path) -> Ground:
        committed(tmp_path / "tree")
        return git_ground(tmp_path / "tree", tmp_path / "state")


class TestGitWithUntrackedFiles(ProviderContract):
    """A repository without a commit, with names of objects of 256 bits; what nobody has added is captured as well."""

    @pytest.fixture
    def ground(self, tmp_path: Path) -> Ground:
        root = tmp_path / "tree"
        root.mkdir()
        lay(root)
        subprocess.run(["git", "init", "--quiet", "--object-format=sha256", root], check=True)
        return git_ground(root, tmp_path / "state", include_untracked=True)


@pytest.mark.root
class TestOwnCheckpointsMounted(ProviderContract):
    """Checkpoints, with forks and views that are mounted."""

    @pytest.fixture
    def ground(self, tmp_path: Path) -> Ground:
        if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
            pytest.skip("needs root and /dev/fuse, to mount an overlay")
        return own_ground(tmp_path, mounts=True)


class TestOwnCheckpointsWrittenOut(ProviderContract):
    """Checkpoints, with forks and views that are written out."""

    @pytest.fixture
    def ground(self, tmp_path: Path) -> Ground:
        return own_ground(tmp_path, mounts=False)


@pytest.mark.root
class TestZfsSimulated(ProviderContract):
    """A program that does what ``zfs`` does, over directories."""

    @pytest.fixture
    def ground(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
        if os.geteuid() != 0:
            pytest.skip("needs root, to mount")
        root = simulated_pool(tmp_path, monkeypatch)
        ground = zfs_ground(root, tmp_path / "state")
        yield ground
        clean_up(ground, root)


@pytest.mark.root
class TestZfs(ProviderContract):
    """A real pool in a file, where there is a program ``zpool`` that can make one."""

    @pytest.fixture
    def ground(self, tmp_path: Path) -> Iterator[Ground]:
        with real_pool(tmp_path) as root:
            ground = zfs_ground(root, tmp_path / "state")
            yield ground
            clean_up(ground, None)


@pytest.fixture(scope="module", params=["btrfs", "ext4", "tmpfs", "xfs"])
def any_disk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system that can hold the layers of overlays."""
    with mounted(request.param, tmp_path_factory.mktemp("disk")) as place:
        yield place


def overlay_ground(root: Path, state: Path) -> Iterator[Ground]:
    """Afterwards nothing is mounted, whatever the test has left."""

    def left() -> list[str]:
        with open("/proc/self/mountinfo") as file:
            mounts = [line for line in file if str(state) in line]
        return ground.left() + mounts + holders(state)

    ground = copying_ground(overlay_provider, root, state)
    yield ground._replace(left=left)
    for session in ("one", "two"):
        provider = ground.make(session)
        for allocation in provider.tokens():
            provider.cleanup(allocation.token)
    found = left()
    assert found == [] or any("/ledger/" in name for name in found), "only of a damaged entry something is left"


@pytest.mark.root
class TestOverlayBesideTheHome(ProviderContract):
    """The home is on the workspace's file system."""

    @pytest.fixture
    def ground(self, any_disk: Path) -> Iterator[Ground]:
        root = fresh(any_disk)
        yield from overlay_ground(root, root.with_name(f"{root.name} state"))


@pytest.mark.root
class TestOverlayOverASubvolume(ProviderContract):
    """The workspace is a subvolume of btrfs, with another one in it."""

    @pytest.fixture
    def ground(self, btrfs: Path) -> Iterator[Ground]:
        root = subvolume(btrfs)
        yield from overlay_ground(root, root.with_name(f"{root.name}:a,b\\ state"))


@pytest.mark.root
class TestOverlayElsewhere(ProviderContract):
    """The home is on another file system than the workspace."""

    @pytest.fixture
    def ground(self, btrfs: Path, tmp_path: Path) -> Iterator[Ground]:
        yield from overlay_ground(fresh(btrfs), tmp_path / "state")
