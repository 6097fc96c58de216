"""What node numbers stand for, with and without the privilege of opening file handles."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.vfs.file_system import ROOT
from holdfast.vfs.recorded import _node_access
from holdfast.vfs.recorded.node_registry import NodeRegistry


@pytest.fixture(name="objects", params=[True, False], ids=["handles", "names"])
def _objects(request: pytest.FixtureRequest, tree: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeRegistry]:
    if not request.param:
        monkeypatch.setattr(_node_access, "_opens", lambda *_: False)
    root_fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    made = NodeRegistry(root_fd)
    if request.param and not made.opens_handles:
        pytest.skip("needs root, and a file system that opens file handles")
    yield made
    made.close()
    os.close(root_fd)


def enter(objects: NodeRegistry, path: str) -> int:
    node = ROOT
    for name in os.fsencode(path).split(b"/"):
        with objects.directory(node) as dir_fd:
            node, _ = objects.enter(node, dir_fd, name)
    return node


def test_one_object_is_one_node_whatever_its_names(objects: NodeRegistry, tree: Path) -> None:
    (tree / "a").touch()
    os.link(tree / "a", tree / "b")
    node = enter(objects, "a")
    assert enter(objects, "b") == node
    objects.forget(node, 1)
    with objects.located(node) as thing:
        assert thing.path == b"b"
    objects.forget(node, 1)
    with pytest.raises(OSError, match=rf"\[Errno {errno.ESTALE}\]"), objects.located(node):
        pass


def test_what_took_an_objects_name_is_another(objects: NodeRegistry, tree: Path) -> None:
    (tree / "a").write_text("first")
    node = enter(objects, "a")
    (tree / "a").unlink()
    (tree / "a").write_text("second")
    with pytest.raises(OSError, match=rf"\[Errno {errno.ESTALE}\]"), objects.descriptor(node):
        pass
    assert enter(objects, "a") != node


def test_each_look_up_of_what_is_known_counts(objects: NodeRegistry, tree: Path) -> None:
    (tree / "a").write_text("first")
    os.link(tree / "a", tree / "b")
    node, found = objects.enter_from(ROOT, b"a")
    (tree / "a").write_text("longer than before")
    again = objects.enter_from(ROOT, b"b")
    assert (again.node, again.status.st_size) == (node, 18) != (node, found.st_size)
    objects.forget(node, 1)
    with objects.located(node) as thing:
        assert thing.path == b"b"
    objects.forget(node, 1)
    with pytest.raises(OSError, match=rf"\[Errno {errno.ESTALE}\]"):
        objects.status(node)
    with pytest.raises(FileNotFoundError):
        objects.enter_from(ROOT, b"c")


def test_what_an_object_is_like_is_not_told_of_what_took_its_name(objects: NodeRegistry, tree: Path) -> None:
    (tree / "a").write_text("first")
    node, _ = objects.enter_from(ROOT, b"a")
    assert objects.status(node).st_size == 5
    (tree / "a").rename(tree / "b")
    (tree / "a").write_text("another")
    other, _ = objects.enter_from(ROOT, b"a")
    assert other != node
    try:
        assert objects.status(node).st_size == 5
    except OSError as error:
        assert error.errno == errno.ESTALE  # it has to be looked up by its new name
    assert objects.enter_from(ROOT, b"b").node == node
    assert objects.status(node).st_size == 5
    assert objects.status(other).st_size == 7


def test_no_link_is_followed(objects: NodeRegistry, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_text("secret")
    (tree / "d").mkdir()
    (tree / "d" / "file").touch()
    directory, file = enter(objects, "d"), enter(objects, "d/file")
    (tree / "d").rename(tmp_path / "away")
    (tree / "d").symlink_to(tmp_path / "out")
    objects.close()  # what was open is not needed
    link = enter(objects, "d")
    assert link != directory
    with pytest.raises(NotADirectoryError), objects.directory(link):
        pass
    try:
        with objects.located(file) as thing:
            assert thing.path is None  # it is not in the tree any more
            assert os.fstat(thing.fd).st_size == 0
    except OSError as error:
        assert error.errno == errno.ESTALE  # nor can it be found


def test_what_was_moved_is_where_it_is_now(objects: NodeRegistry, tree: Path) -> None:
    (tree / "d").mkdir()
    (tree / "d" / "file").touch()
    node = enter(objects, "d/file")
    (tree / "d").rename(tree / "e")
    enter(objects, "e")
    with objects.located(node) as thing:
        assert thing.path == b"e/file"


def test_paths_longer_than_the_kernel_says_them(objects: NodeRegistry, tree: Path) -> None:
    fd = os.open(tree, os.O_RDONLY)
    node, names = ROOT, [b"%d" % number * 200 for number in range(1, 10)] * 3
    for name in names:
        os.mkdir(name, dir_fd=fd)
        with objects.directory(node) as dir_fd:
            node, _ = objects.enter(node, dir_fd, name)
        inner = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    path = b"/".join(names)
    assert len(path) > 4096
    with objects.directory(node) as dir_fd:
        assert objects.place(node, dir_fd, b"x").path == path + b"/x"


def test_few_directories_stay_open(objects: NodeRegistry, tree: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    nodes: list[int] = []
    for number in range(600):
        (tree / f"{number}").mkdir()
        nodes.append(enter(objects, f"{number}"))
    for node in nodes:
        with objects.directory(node) as fd:
            assert os.fstat(fd).st_nlink
    assert len(os.listdir("/proc/self/fd")) < before + 300
    for node in nodes:
        objects.forget(node, 1)
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_what_is_hidden_is_not_there(tree: Path) -> None:
    (tree / "own" / "log").mkdir(parents=True)
    root_fd, hidden = (os.open(path, os.O_RDONLY) for path in (tree, tree / "own" / "log"))
    objects = NodeRegistry(root_fd, (hidden,))
    try:
        enter(objects, "own")
        with pytest.raises(FileNotFoundError):
            enter(objects, "own/log")
        with pytest.raises(PermissionError):
            objects.place(ROOT, root_fd, b"own")  # nor can it be moved with what is above it
    finally:
        objects.close()
        os.close(hidden)
        os.close(root_fd)


def test_an_entry_is_hidden_by_what_it_is(tree: Path) -> None:
    (tree / "hidden").mkdir()
    (tree / "shown").mkdir()
    root_fd, hidden = os.open(tree, os.O_RDONLY), os.open(tree / "hidden", os.O_PATH)
    objects = NodeRegistry(root_fd, (hidden,))
    assert objects.hidden_inodes == {(tree / "hidden").stat().st_ino}
    assert objects.hides(root_fd, b"hidden")
    assert not objects.hides(root_fd, b"shown"), "only the number may be the same"
    (tree / "hidden").rename(tree / "moved")
    assert objects.hides(root_fd, b"moved")
    assert objects.hides(root_fd, b"hidden"), "it was taken away while the directory was listed"
    objects.close()
    for fd in (root_fd, hidden):
        os.close(fd)


def test_a_mapping_that_outlives_its_descriptor_is_a_writer(objects: NodeRegistry, tree: Path) -> None:
    (tree / "a").write_bytes(b"content")
    node = enter(objects, "a")
    fd = os.open(tree / "a", os.O_RDWR)
    objects.note_opened(objects[node], fd, writes=True)
    # (It has a descriptor of its own, as one that the kernel has mapped by itself.)
    memory = mmap.mmap(fd, 7)
    objects.note_mapped(node, fd)
    objects.close_opened(objects[node], fd, writes=True)
    assert objects.is_written(node)
    assert objects.held_for_writing(False) == {(tree / "a").stat().st_ino}
    memory.close()
    assert not objects.is_written(node)
    assert objects.held_for_writing(False) == frozenset()


def test_a_mapping_is_a_writer_whose_descriptor_is_closed_as_it_is_asked(
    objects: NodeRegistry, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "a").write_bytes(b"content")
    node = enter(objects, "a")
    fd = os.open(tree / "a", os.O_RDWR)
    objects.note_opened(objects[node], fd, writes=True)
    memory = mmap.mmap(fd, 7)
    lock = objects._lock

    class ClosesFirst:
        def __enter__(self) -> None:
            monkeypatch.setattr(objects, "_lock", lock)
            objects.note_mapped(node, fd)
            objects.close_opened(objects[node], fd, writes=True)
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    monkeypatch.setattr(objects, "_lock", ClosesFirst())
    assert objects.held_for_writing(False) == {(tree / "a").stat().st_ino}
    memory.close()


def test_a_long_path_is_told_by_a_name_that_is_left(objects: NodeRegistry, tree: Path) -> None:
    node, levels = ROOT, [b"d" * 200] * 30
    at = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    for name in levels:
        os.mkdir(name, dir_fd=at)
        node, _ = objects.enter(node, at, name)
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(os.open(b"a", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=at))
    os.link(b"a", b"b", src_dir_fd=at, dst_dir_fd=at)
    file, _ = objects.enter(node, at, b"a")
    assert objects.enter(node, at, b"b")[0] == file
    os.unlink(b"b", dir_fd=at)
    os.close(at)
    with objects.located(file) as thing:
        assert thing.path == b"/".join([*levels, b"a"])
    shutil.rmtree(tree / os.fsdecode(levels[0]))
