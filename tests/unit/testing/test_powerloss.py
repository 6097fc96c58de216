"""The simulated power loss shows every legal state, and none that is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.store.objects.disk_port import is_marked_durable
from holdfast.testing.powerloss import RecordingDisk, State

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / "real").mkdir()
    return str(tmp_path / "real")


def write(disk: RecordingDisk, path: str, *parts: bytes, sync: bool) -> None:
    fd = disk.create(path)
    for part in parts:
        assert disk.write(fd, part) == len(part)
    if sync:
        disk.sync(fd)
    disk.close(fd)


def files(disk: RecordingDisk, at: int | None = None) -> set[tuple[tuple[str, bytes], ...]]:
    return {tuple(sorted(state.files.items())) for state in disk.states(len(disk) if at is None else at)}


def test_nothing_is_durable_before_it_is_synced(root: str) -> None:
    disk = RecordingDisk(root)
    write(disk, f"{root}/a", b"12", b"34", sync=False)
    assert files(disk) == {(), (("a", b""),), (("a", b"1234"),), (("a", b"12"),), (("a", b"\0\0\0\0"),)}
    disk.sync_directory(root)
    assert () not in files(disk), "the entry is durable, its content is not"
    assert (("a", b""),) in files(disk)


def test_a_synced_file_in_an_unsynced_directory_may_be_gone_but_not_torn(root: str) -> None:
    disk = RecordingDisk(root)
    write(disk, f"{root}/a", b"1234", sync=True)
    assert files(disk) == {(), (("a", b"1234"),)}
    disk.sync_directory(root)
    assert files(disk) == {(("a", b"1234"),)}


def test_a_rename_shows_either_or_both_names_but_never_loses_what_it_replaces(root: str) -> None:
    disk = RecordingDisk(root)
    write(disk, f"{root}/a", b"old", sync=True)
    write(disk, f"{root}/t", b"new", sync=True)
    disk.sync_directory(root)
    disk.rename(f"{root}/t", f"{root}/a")
    assert files(disk) == {
        (("a", b"old"), ("t", b"new")),
        (("a", b"new"), ("t", b"new")),
        (("a", b"new"),),
        (("a", b"old"),),
    }
    disk.sync_directory(root)
    assert files(disk) == {(("a", b"new"),)}
    disk.remove(f"{root}/a")
    assert files(disk) == {(("a", b"new"),), ()}


def test_what_is_in_a_directory_needs_every_directory_above(root: str) -> None:
    disk = RecordingDisk(root)
    disk.make_directory(f"{root}/d")
    write(disk, f"{root}/d/a", b"1", sync=True)
    disk.sync_directory(f"{root}/d")
    assert files(disk) == {(), (("d/a", b"1"),)}
    disk.sync_directory(root)
    assert files(disk) == {(("d/a", b"1"),)}
    assert files(disk, 0) == {()}


def test_states_can_be_built(root: str, tmp_path: Path) -> None:
    disk = RecordingDisk(root)
    disk.make_directory(f"{root}/d")
    write(disk, f"{root}/d/a", b"1", sync=True)
    disk.mark_durable(f"{root}/d")
    for number, state in enumerate(disk.states(len(disk))):
        target = tmp_path / str(number)
        state.write_to(str(target))
        found = {str(p.relative_to(target)): p.read_bytes() for p in target.rglob("*") if p.is_file()}
        dirs = frozenset(str(p.relative_to(target)) for p in target.rglob("*") if p.is_dir())
        marked = frozenset(name for name in dirs if is_marked_durable(str(target / name)))
        assert State(found, dirs, marked) == state


def test_too_many_states_are_sampled_with_both_extremes(root: str) -> None:
    disk = RecordingDisk(root)
    for number in range(20):
        write(disk, f"{root}/{number}", b"x", sync=True)
    disk.mark("written")
    assert disk.marks == [(60, "written")]
    states = [state.files for state in disk.states(60, limit=50)]
    assert len(states) <= 50
    assert {} in states
    assert max(map(len, states)) == 20
    assert states == [state.files for state in disk.states(60, limit=50)]
