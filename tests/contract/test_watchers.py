"""The contract of `holdfast.files.watch.Watcher`, over every implementation: no change is missing from the answers."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import threading
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.files.tree import DirtyPaths
from holdfast.files.watch import Backend, Watcher, open_watcher
from holdfast.model.errors import NotFoundError, UnsupportedError, UsageError

from ..disks import mounted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KERNEL: tuple[Backend, ...] = ("fanotify", "inotify")
Snapshot = dict[bytes, tuple[int, bytes]]


def open_or_skip(root: Path, backend: Backend, excluded: Callable[[bytes], bool] | None = None) -> Watcher:
    try:
        return open_watcher(os.fsencode(root), backend, excluded, poll_interval=0.01)
    except UnsupportedError as error:
        pytest.skip(str(error))


@pytest.fixture(params=["fanotify", "inotify", "polling"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return request.param


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "src/deep/er").mkdir(parents=True)
    (root / "src/deep/er/x.py").write_text("x")
    (root / "src/main.py").write_text("main")
    (root / "readme").write_text("readme")
    (root / "empty").mkdir()
    return root


@pytest.fixture
def watcher(root: Path, backend: Backend) -> Iterator[Watcher]:
    watcher = open_or_skip(root, backend)
    assert watcher.drain().everything  # nobody knows yet what was there before
    yield watcher
    watcher.close()


def snapshot(root: Path) -> Snapshot:
    """Every file and link below ``root``: type and permissions, and content."""
    found: Snapshot = {}
    top = os.fsencode(root)
    for at, dirs, files in os.walk(top):
        for name in [*files, *dirs]:
            path = at + b"/" + name
            about = os.lstat(path)
            if os.path.islink(path):
                found[os.path.relpath(path, top)] = (about.st_mode, os.readlink(path))
            elif os.path.isfile(path):
                with open(path, "rb") as file:
                    found[os.path.relpath(path, top)] = (about.st_mode, file.read())
    return found


def changed(before: Snapshot, after: Snapshot) -> set[bytes]:
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def missing(dirty: DirtyPaths, paths: set[bytes]) -> set[bytes]:
    """Those of ``paths`` that the answer does not cover."""
    if dirty.everything:
        return set()
    left: set[bytes] = set()
    for path in paths:
        parts = path.split(b"/")
        if not any(b"/".join(parts[:n]) in dirty.paths for n in range(1, len(parts) + 1)):
            left.add(path)
    return left


def edit_write(root: Path) -> None:
    (root / "src/main.py").write_text("other")


def edit_append(root: Path) -> None:
    with (root / "readme").open("a") as file:
        file.write("more")


def edit_truncate(root: Path) -> None:
    os.truncate(root / "readme", 2)


def edit_create(root: Path) -> None:
    (root / "src/new.py").touch()


def edit_write_through_open_file(root: Path) -> None:
    with (root / "src/main.py").open("r+b", buffering=0) as file:
        file.write(b"MA")


def edit_make_directories_with_files(root: Path) -> None:
    (root / "a/b/c/d").mkdir(parents=True)
    (root / "a/b/c/d/file").write_text("1")
    (root / "a/b/file").write_text("2")


def edit_replace(root: Path) -> None:
    (root / "src/.tmp").write_text("new")
    (root / "src/.tmp").rename(root / "src/main.py")


def edit_rename_file(root: Path) -> None:
    (root / "readme").rename(root / "empty/README")


def edit_rename_directory(root: Path) -> None:
    (root / "src").rename(root / "lib")
    (root / "lib/deep/er/x.py").write_text("after the move")


def edit_rename_directory_twice_and_write(root: Path) -> None:
    (root / "src/deep/er/x.py").write_text("before")
    (root / "src/deep").rename(root / "empty/deep")
    (root / "empty/deep/er/y.py").write_text("between")
    (root / "empty").rename(root / "full")
    (root / "full/deep/er/x.py").write_text("after")


def edit_swap_directories(root: Path) -> None:
    (root / "empty/main.py").write_text("from empty")
    (root / "src").rename(root / "t")
    (root / "empty").rename(root / "src")
    (root / "t").rename(root / "empty")
    (root / "src/main.py").write_text("swapped")
    (root / "empty/deep/er/x.py").write_text("swapped")


def edit_turn_directories_inside_out(root: Path) -> None:
    (root / "src/deep").rename(root / "t")
    (root / "src").rename(root / "t/src")
    (root / "t").rename(root / "src")
    (root / "src/er/x.py").write_text("inside out")
    (root / "src/src/main.py").write_text("inside out")


def edit_move_out_and_in(root: Path) -> None:
    (root / "src").rename(root.parent / "away")
    (root.parent / "away/main.py").write_text("changed outside")
    (root.parent / "away").rename(root / "back")
    (root / "back/deep/er/x.py").write_text("changed inside")


def edit_move_in(root: Path) -> None:
    (root.parent / "other/sub").mkdir(parents=True)
    (root.parent / "other/sub/file").write_text("file")
    (root.parent / "other").rename(root / "src/other")
    (root / "src/other/sub/two").write_text("two")


def edit_delete(root: Path) -> None:
    (root / "readme").unlink()


def edit_delete_tree(root: Path) -> None:
    shutil.rmtree(root / "src")


def edit_delete_and_recreate_tree(root: Path) -> None:
    shutil.rmtree(root / "src")
    (root / "src/deep").mkdir(parents=True)
    (root / "src/deep/main.py").write_text("again")


def edit_chmod(root: Path) -> None:
    (root / "src/main.py").chmod(0o755)


def edit_symlink(root: Path) -> None:
    (root / "link").symlink_to("src/main.py")
    (root / "dirlink").symlink_to("src")


def edit_write_through_link(root: Path) -> None:
    (root / "way").symlink_to("src")
    (root / "way/deep/er/x.py").write_text("by the link")


def edit_hard_link(root: Path) -> None:
    os.link(root / "readme", root / "src/readme")


def edit_write_hard_link(root: Path) -> None:
    os.link(root / "readme", root / "src/readme")
    (root / "src/readme").write_text("both names have this")


def edit_file_becomes_directory(root: Path) -> None:
    (root / "readme").unlink()
    (root / "readme").mkdir()
    (root / "readme/file").write_text("inside")


def edit_unusual_names(root: Path) -> None:
    odd = os.fsencode(root) + b"/a\xff\n (deleted)"
    os.mkdir(odd)
    with open(odd + b"/\xfe (deleted)", "wb") as file:
        file.write(b"1")


def edit_thousands_of_files(root: Path) -> None:
    for directory in range(20):
        (root / f"many/{directory}").mkdir(parents=True)
        for number in range(100):
            (root / f"many/{directory}/{number}").write_text("x")


def edit_rename_over(root: Path) -> None:
    (root / "empty/src").mkdir()
    (root / "src/deep").rename(root / "empty/src")  # over an empty directory
    (root / "readme").rename(root / "src/main.py")


EDITS = [edit for name, edit in sorted(globals().items()) if name.startswith("edit_")]


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__.removeprefix("edit_"))
def test_every_edit_is_in_the_answer(root: Path, watcher: Watcher, edit: Callable[[Path], None]) -> None:
    append_to_all(root)  # so that there is something to remember that the edit makes wrong
    watcher.drain()
    before = snapshot(root)
    edit(root)
    after = snapshot(root)
    assert changed(before, after)
    assert missing(watcher.drain(), changed(before, after)) == set()
    # What was learnt on the way holds for what happens next.
    append_to_all(root)
    assert missing(watcher.drain(), changed(after, snapshot(root))) == set()


def append_to_all(root: Path) -> None:
    """Write to every file, by each of its names."""
    for path in snapshot(root):
        name = os.fsencode(root) + b"/" + path
        if os.path.isfile(name) and not os.path.islink(name):
            with open(name, "ab") as file:
                file.write(b"+")


@pytest.mark.parametrize("backend", KERNEL)
def test_what_left_the_tree_is_heard_of_no_more(root: Path, watcher: Watcher) -> None:
    away = root.parent / "away"
    append_to_all(root)
    watcher.drain()
    (root / "src").rename(away)
    assert missing(watcher.drain(), {b"src/main.py"}) == set()
    append_to_all(away)
    (away / "new").mkdir()
    assert watcher.drain() == DirtyPaths(everything=False, paths=frozenset())
    away.rename(root / "lib")
    append_to_all(root)
    assert missing(watcher.drain(), {b"lib/main.py", b"lib/deep/er/x.py"}) == set()
    append_to_all(root)
    assert missing(watcher.drain(), {b"lib/main.py", b"lib/deep/er/x.py"}) == set()


def test_a_directory_above_moved_while_it_is_between_two_answers(root: Path, watcher: Watcher) -> None:
    append_to_all(root)
    watcher.drain()
    away = root.parent.with_name(root.parent.name + "-away")
    root.parent.rename(away)
    (away / "root/src/main.py").write_text("away")
    away.rename(root.parent)
    assert missing(watcher.drain(), {b"src/main.py"}) == set()


def test_a_change_before_the_drain_is_in_it_at_once(root: Path, watcher: Watcher) -> None:
    for number in range(200):
        (root / "src/main.py").write_text(str(number))
        assert missing(watcher.drain(), {b"src/main.py"}) == set()


def sure(watcher: Watcher, change: Callable[[], object]) -> DirtyPaths:
    """What a watcher says of a change when it is sure. Others on the same file system may make it doubt, by mounting or
    by writing faster than it reads; not again and again.
    """
    for _ in range(50):
        change()
        dirty = watcher.drain()
        if not dirty.everything:
            return dirty
    raise AssertionError("it never is")


@pytest.mark.parametrize("backend", KERNEL)
def test_a_drain_ends_though_there_is_news_after_each_read(
    tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would otherwise read one event at a time from whoever makes them, and keep him from making more."""
    read, reads = os.read, 0
    # (fanotify tells of a whole file system: here of one that nobody else writes to.)
    with mounted("tmpfs", tmp_path) if backend == "fanotify" else nullcontext(tmp_path) as place:
        root = place / "root"
        (root / "src").mkdir(parents=True)
        with closing(open_or_skip(root, backend)) as watcher:

            def read_and_change(fd: int, size: int) -> bytes:
                nonlocal reads
                found = read(fd, size)
                if fd == watcher.fileno():
                    reads += 1
                    (root / f"src/{reads}").touch()
                return found

            watcher.drain()
            (root / "src/main.py").write_text("changed")
            with monkeypatch.context() as patch:
                patch.setattr(os, "read", read_and_change)
                assert missing(watcher.drain(), {b"src/main.py"}) == set()
            assert reads < 4, "a read, and another for a directory that is new to it"


@pytest.mark.parametrize("backend", KERNEL)
def test_more_news_than_one_read_can_take(root: Path, watcher: Watcher) -> None:
    names = [f"src/{number:04}{'n' * 200}" for number in range(2500)]
    for name in names:
        (root / name).touch()
    assert missing(watcher.drain(), {os.fsencode(name) for name in names}) == set()


@pytest.mark.parametrize("backend", KERNEL)
def test_nothing_is_said_of_what_did_not_change(root: Path, watcher: Watcher) -> None:
    def change_nothing() -> None:
        (root.parent / "beside").write_text("not in the tree")
        (root / "readme").read_text()

    assert sure(watcher, lambda: None).paths == frozenset()
    assert sure(watcher, change_nothing).paths == frozenset()
    assert sure(watcher, lambda: (root / "src/main.py").write_text("changed")).paths == frozenset([b"src/main.py"])


@pytest.mark.parametrize("backend", KERNEL)
def test_an_ordinary_save_is_not_everything(root: Path, watcher: Watcher) -> None:
    """Editors and build tools write, rename over and delete temporary files all the time: that must stay cheap."""

    def save() -> None:
        (root / "src/.main.py.swp").write_text("swap")
        (root / "src/main.py").rename(root / "src/main.py~")
        (root / "src/main.py").write_text("saved")
        (root / "src/main.py~").unlink()
        (root / "src/.main.py.swp").unlink()
        (root / "build").mkdir()
        (root / "build/o").write_text("o")
        shutil.rmtree(root / "build")

    assert missing(sure(watcher, save), {b"src/main.py"}) == set()


def test_what_was_skimmed_is_in_the_next_answer(root: Path, watcher: Watcher) -> None:
    watcher.drain()
    (root / "src/deep/er/x.py").write_text("skimmed")
    watcher.skim()
    (root / "src/deep/er/y.py").write_text("not skimmed")
    assert missing(watcher.drain(), {b"src/deep/er/x.py", b"src/deep/er/y.py"}) == set()


def test_readable_when_something_happened(root: Path, watcher: Watcher) -> None:
    fd = watcher.fileno()
    (root / "src/deep/er/x.py").write_text("wake up")
    assert select.select([fd], [], [], 10)[0]
    assert missing(watcher.drain(), {b"src/deep/er/x.py"}) == set()
    assert watcher.fileno() == fd


@pytest.mark.parametrize("backend", KERNEL)
def test_readable_when_the_root_is_made_again(root: Path, watcher: Watcher) -> None:
    shutil.rmtree(root)
    assert select.select([watcher.fileno()], [], [], 10)[0]
    assert watcher.drain().everything
    root.mkdir()
    assert select.select([watcher.fileno()], [], [], 10)[0]
    assert watcher.drain().everything


def test_the_root_deleted_and_made_again(root: Path, watcher: Watcher) -> None:
    shutil.rmtree(root)
    assert watcher.drain().everything
    assert watcher.drain().everything
    (root / "src").mkdir(parents=True)
    (root / "src/new").write_text("1")
    assert watcher.drain().everything
    (root / "src/new").write_text("2")
    assert missing(watcher.drain(), {b"src/new"}) == set()
    shutil.rmtree(root)
    (root / "src").mkdir(parents=True)  # between two drains; the inode number may be the same
    assert watcher.drain().everything
    (root / "src/new").write_text("3")
    assert missing(watcher.drain(), {b"src/new"}) == set()


def test_the_root_moved_away_and_back(root: Path, watcher: Watcher) -> None:
    away = root.parent / "away"
    root.rename(away)
    (away / "src/main.py").write_text("away")
    assert watcher.drain().everything
    (away / "readme").write_text("away too")
    away.rename(root)
    assert watcher.drain().everything
    (root / "src/deep/er/x.py").write_text("home")
    assert missing(watcher.drain(), {b"src/deep/er/x.py"}) == set()


def test_a_directory_above_the_root_moved_and_back(root: Path, watcher: Watcher) -> None:
    above = root.parent
    away = above.with_name(above.name + "-away")
    above.rename(away)
    (away / "root/src/main.py").write_text("away")
    assert watcher.drain().everything
    away.rename(above)
    assert watcher.drain().everything
    (root / "src/main.py").write_text("back")
    assert missing(watcher.drain(), {b"src/main.py"}) == set()


def test_excluded_directories_and_their_return(root: Path, backend: Backend) -> None:
    ignored = {b"node_modules", b"src/deep"}
    (root / "node_modules/pkg").mkdir(parents=True)
    watcher = open_or_skip(root, backend, lambda path: path in ignored)
    watcher.drain()
    (root / "node_modules/pkg/index.js").write_text("1")
    (root / "src/deep/er/x.py").write_text("1")
    first = watcher.drain()
    if backend != "polling":
        assert first == DirtyPaths(everything=False, paths=frozenset())
    # The rules change: everything is dirty; whoever reads them anew then says so.
    (root / ".gitignore").write_text("")
    assert watcher.drain().everything
    ignored.clear()
    watcher.refresh()
    (root / "node_modules/pkg/index.js").write_text("2")
    (root / "src/deep/er/x.py").write_text("2")
    assert missing(watcher.drain(), {b"node_modules/pkg/index.js", b"src/deep/er/x.py"}) == set()
    (root / "node_modules/pkg/index.js").write_text("3")
    assert missing(watcher.drain(), {b"node_modules/pkg/index.js"}) == set()
    # And the other way round.
    ignored.add(b"src")
    watcher.refresh()
    watcher.drain()
    (root / "src/main.py").write_text("4")
    if backend != "polling":
        assert watcher.drain() == DirtyPaths(everything=False, paths=frozenset())
    # A directory that leaves an excluded place is seen.
    (root / "src/deep").rename(root / "shallow")
    (root / "shallow/er/x.py").write_text("5")
    assert missing(watcher.drain(), {b"shallow/er/x.py"}) == set()
    (root / "shallow/er/x.py").write_text("6")
    assert missing(watcher.drain(), {b"shallow/er/x.py"}) == set()
    watcher.close()


@pytest.mark.parametrize("name", [".gitignore", "src/.gitignore", "src/deep/.checkpointignore"])
def test_a_changed_rule_file_makes_everything_dirty(root: Path, watcher: Watcher, name: str) -> None:
    (root / name).write_text("*.o\n")
    assert watcher.drain().everything
    (root / name).unlink()
    assert watcher.drain().everything


def test_writers_at_the_same_time(root: Path, watcher: Watcher) -> None:
    """Drained while others write: the union of the answers covers all that they did."""
    before = snapshot(root)
    done = threading.Event()

    def write(number: int) -> None:
        for turn in range(60):
            place = root / f"w{number}/{turn % 7}"
            place.mkdir(parents=True, exist_ok=True)
            (place / f"f{turn}").write_text("x")
            if turn % 7 == 6:
                place.rename(root / f"w{number}/moved{turn}")
                (root / f"w{number}/moved{turn}/late").write_text("y")

    writers = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    answers: list[DirtyPaths] = []
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        answers.append(watcher.drain())
    done.set()
    for writer in writers:
        writer.join()
    answers.append(watcher.drain())
    total = DirtyPaths(any(a.everything for a in answers), frozenset().union(*(a.paths for a in answers)))
    after = snapshot(root)
    assert missing(total, changed(before, after)) == set()
    for path in after:
        (root / os.fsdecode(path)).write_text("last")
    assert missing(watcher.drain(), changed(after, snapshot(root))) == set()


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_checkout_of_another_branch(tmp_path: Path, backend: Backend) -> None:
    root = tmp_path / "repo"
    root.mkdir()
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}

    def git(*args: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.hooksPath=/dev/null")
        subprocess.run(["git", *who, *args], cwd=root, check=True, capture_output=True, env=environment)

    git("init", "-b", "main")
    for number in range(60):
        (root / f"d{number % 6}/e{number % 4}").mkdir(parents=True, exist_ok=True)
        (root / f"d{number % 6}/e{number % 4}/f{number}").write_text("main")
    git("add", "-A")
    git("commit", "-m", "main")
    git("checkout", "-b", "other")
    shutil.rmtree(root / "d1")
    for number in range(0, 60, 2):
        (root / f"n{number % 5}/e").mkdir(parents=True, exist_ok=True)
        (root / f"n{number % 5}/e/f{number}").write_text("other")
    git("add", "-A")
    git("commit", "-m", "other")
    watcher = open_or_skip(root, backend, lambda path: path == b".git")
    watcher.drain()
    for branch in ("main", "other", "main"):
        before = snapshot(root)
        git("checkout", branch)
        paths = {path for path in changed(before, snapshot(root)) if not path.startswith(b".git/")}
        assert paths
        assert missing(watcher.drain(), paths) == set()
    watcher.close()


def test_a_root_that_is_not_there(tmp_path: Path, backend: Backend) -> None:
    with pytest.raises(NotFoundError):
        open_watcher(os.fsencode(tmp_path / "nowhere"), backend)


def test_an_unknown_backend(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        open_watcher(os.fsencode(tmp_path), "kqueue")  # pyright: ignore[reportArgumentType]


def test_says_what_it_is_and_closes_twice(root: Path, watcher: Watcher, backend: Backend) -> None:
    assert watcher.backend == backend
    assert watcher.limits
    watcher.close()
    watcher.close()


NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
OPERATIONS = st.one_of(
    st.tuples(st.just("write"), PATHS, st.text("xyz", max_size=3)),
    st.tuples(st.just("append"), PATHS, st.just("+")),
    st.tuples(st.just("mkdir"), PATHS, st.just("")),
    st.tuples(st.just("rename"), PATHS, PATHS),
    st.tuples(st.just("delete"), PATHS, st.just("")),
    st.tuples(st.just("chmod"), PATHS, st.sampled_from(["644", "755"])),
    st.tuples(st.just("link"), PATHS, PATHS),
    st.tuples(st.just("symlink"), PATHS, PATHS),
    st.tuples(st.just("out"), PATHS, NAMES),
    st.tuples(st.just("in"), PATHS, NAMES),
    st.tuples(st.just("drain"), st.just("a"), st.just("")),
)


def perform(root: Path, outside: Path, what: str, path: str, other: str) -> None:
    """Do one operation, or nothing where it makes no sense."""
    at = root / path
    try:
        match what:
            case "write":
                at.parent.mkdir(parents=True, exist_ok=True)
                at.write_text(other)
            case "append":
                with at.open("r+") as file:
                    file.seek(0, 2)
                    file.write(other)
            case "mkdir":
                at.mkdir(parents=True)
            case "rename":
                at.rename(root / other)
            case "delete":
                shutil.rmtree(at) if at.is_dir() and not at.is_symlink() else at.unlink()
            case "chmod":
                at.chmod(int(other, 8), follow_symlinks=not at.is_symlink())
            case "link":
                os.link(at, root / other, follow_symlinks=False)
            case "symlink":
                (root / other).symlink_to(path)
            case "out":
                at.rename(outside / other)
            case _:
                (outside / other).rename(at)
    except (OSError, NotImplementedError):
        pass


@pytest.mark.parametrize("backend", KERNEL)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=st.lists(OPERATIONS, min_size=1, max_size=25))
def test_no_change_is_missing_whatever_is_done(
    tmp_path_factory: pytest.TempPathFactory, backend: Backend, operations: list[tuple[str, str, str]]
) -> None:
    """Random edits, drained now and then: each answer covers what changed since the one before."""
    base = tmp_path_factory.mktemp("random")
    root, outside = base / "root", base / "outside"
    root.mkdir()
    outside.mkdir()
    watcher = open_or_skip(root, backend)
    try:
        watcher.drain()
        state = snapshot(root)
        for what, path, other in [*operations, ("drain", "a", "")]:
            if what != "drain":
                perform(root, outside, what, path, other)
                continue
            dirty, now = watcher.drain(), snapshot(root)
            assert missing(dirty, changed(state, now)) == set()
            state = now
    finally:
        watcher.close()
        shutil.rmtree(base)
