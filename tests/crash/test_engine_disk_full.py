"""Case 4: a disk is full or broken; the operation fails with a clear error, nothing is lost, and with room it works.

Real small file systems where that is allowed (root), injected errors everywhere.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.model.errors import HoldfastError, StorageError
from holdfast.store.objects._local_store import LocalObjects
from holdfast.testing.faulty_disk import FaultyDisk

from ..sampling import moments, some

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from crash.conftest import Place, State
    from holdfast.engine.workspace.workspace import Workspace

KIB = 1024


class SmallDisk:
    """A file system of a few MiB with a file that fills it up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def leave(self, free: int) -> None:
        """Fill it up, but for about ``free`` bytes."""
        self.empty()
        about = os.statvfs(self.path)
        size = about.f_bavail * about.f_frsize - free
        with self._filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(size - (64 << 10), 1))
            # How many blocks it takes to name blocks is not known before.
            while self.free() > free + about.f_frsize:
                file.write(bytes(max(about.f_frsize, (self.free() - free) // 2)))
                file.flush()

    def free(self) -> int:
        """Bytes that are free."""
        about = os.statvfs(self.path)
        return about.f_bavail * about.f_frsize

    def empty(self) -> None:
        """Free it again."""
        self._filler.unlink(missing_ok=True)


@pytest.fixture(params=some(["tmpfs", "ext4", "ext4 in small blocks"], 2))
def small(request: pytest.FixtureRequest, place: Place) -> Iterator[SmallDisk]:
    """A small disk, not mounted yet anywhere: `mount_at` does that."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small file system")
    target = place.base / "small"
    target.mkdir()
    if request.param == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", "size=12m", "none", str(target)]
    else:
        image = place.base / "image"
        with image.open("wb") as file:
            file.truncate(15 << 20)
        block = "4096" if request.param == "ext4" else "1024"
        command = ["mkfs.ext4", "-q", "-b", block, "-m", "0", "-O", "^has_journal", str(image)]
        made = subprocess.run(command, capture_output=True, check=False)
        if made.returncode:
            pytest.skip("needs mkfs.ext4")
        command = ["mount", "-o", "loop", str(image), str(target)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip(f"may not mount {request.param}")
    try:
        yield SmallDisk(target)
    finally:
        subprocess.run(["umount", "-l", target], check=True)


ROOMS = (0, 4 * KIB, 12 * KIB, 40 * KIB, 100 * KIB, 300 * KIB, 900 * KIB, 1500 * KIB)
"""How much is left for an operation that needs about two MiB in the store or in the tree."""

OPERATIONS: dict[str, Callable[[Workspace], object]] = {
    "checkpoint": lambda workspace: workspace.checkpoint("it"),
    "restore": lambda workspace: workspace.restore("first"),
    "undo": lambda workspace: workspace.undo(),
    "fork": lambda workspace: workspace.fork("first", workspace.path + b"/../fork"),
    "gc": lambda workspace: workspace.gc(grace=0),
    "forget": lambda workspace: workspace.forget(["first"]),
}


def fails_clearly(work: Callable[[], object], errors: list[HoldfastError]) -> None:
    try:
        work()
    except StorageError as error:
        assert "Traceback" not in error.message
        assert error.exit_code == 1
        errors.append(error)


def mended(place: Place, before: State) -> None:
    """With room again: what was cut short is taken back, and all is as it was."""
    with place.open() as workspace:
        if workspace.unfinished() is not None:
            workspace.restore_abort()
    assert place.saved(place.look()) == place.saved(before)
    assert place.ignored(place.look()) == place.ignored(before)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_i4_a_full_store_loses_nothing(lived: Place, small: SmallDisk, operation: str) -> None:
    home = small.path / "home"
    lived.home.rename(lived.base / "moved")
    subprocess.run(["cp", "-a", lived.base / "moved", home], check=True)
    lived.home = home
    known = dict(lived.known)
    before = lived.look()
    errors: list[HoldfastError] = []

    def work() -> None:
        with lived.open() as workspace:
            OPERATIONS[operation](workspace)

    done = 0
    for room in ROOMS:
        small.leave(room)
        count = len(errors)
        fails_clearly(work, errors)
        small.empty()
        if len(errors) == count:
            done += 1
            break
        fork = lived.root / "fork"
        if operation == "fork" and fork.exists():
            fork.rename(lived.base / f"fork-{room}")
        mended(lived, before)
        lived.known = dict(known)
        lived.sound()
    if not done:
        work()
    if operation == "forget":
        lived.known = {one: state for one, state in known.items() if one != next(iter(known))}
    # (What goes back, and what frees space, may have enough in what the home keeps back for them.)
    assert errors or operation != "checkpoint"
    assert all(error.hint for error in errors), [(error.message, error.hint) for error in errors]
    lived.sound()


@pytest.mark.parametrize("provider", ["copy", "holdfast"])
def test_on_a_full_disk_a_snapshot_can_be_discarded(lived: Place, small: SmallDisk, provider: str) -> None:
    home = small.path / "home"
    lived.home.rename(lived.base / "moved")
    subprocess.run(["cp", "-a", lived.base / "moved", home], check=True)
    lived.home = home
    with lived.open() as workspace:
        workspace.snapshots.take("it", provider=provider)
    small.leave(0)
    before = small.free()
    with lived.open() as workspace:
        workspace.snapshots.discard("it")
        assert workspace.snapshots.list() == []
    assert provider != "copy" or small.free() > before, "what the snapshot took is free"
    assert (home / "ballast").exists()
    small.empty()
    lived.sound()


@pytest.mark.parametrize("operation", ["restore", "undo", "fork"])
def test_i3_a_full_tree_is_mended_when_there_is_room(lived: Place, small: SmallDisk, operation: str) -> None:
    tree = small.path / "tree"
    lived.tree.rename(lived.base / "moved")
    subprocess.run(["cp", "-a", lived.base / "moved", tree], check=True)
    with lived.init(lived.base / "moved") as workspace:
        workspace.let_go()
    lived.known.clear()
    lived.tree = tree
    with lived.init() as workspace:
        state = lived.saved(lived.look())
        lived.known[workspace.checkpoint("one").checkpoint.id] = state
        lived.path(b"big").unlink()
        lived.path(b"a").unlink()
        for number in range(40):
            lived.path(b"d/%d" % number).write_bytes(b"%d" % number * 3000)
        lived.known[workspace.checkpoint("two").checkpoint.id] = lived.saved(lived.look())
    before = lived.look()
    errors: list[HoldfastError] = []
    for room in ROOMS[:6]:
        small.leave(room)

        def work() -> None:
            with lived.open() as workspace:
                if operation == "fork":
                    workspace.fork("one", small.path / "fork")
                elif operation == "undo":
                    workspace.undo()
                else:
                    workspace.restore("one")

        fails_clearly(work, errors)
        small.empty()
        if operation == "fork":
            if (small.path / "fork").exists():
                work()
                assert lived.saved(lived.look(small.path / "fork")) == state
                break
            continue
        with lived.open() as workspace:
            if workspace.unfinished() is None:
                continue
            found = lived.look()
            assert not any(b".holdfast.tmp-" in path for path in found)
            lived.nothing_torn(found, before, {**before, **state}, room)
            if room == 4 * KIB:
                workspace.restore_continue()
                assert lived.saved(lived.look()) == state
                if operation == "undo":
                    workspace.redo()
                else:
                    workspace.undo()
                assert lived.saved(lived.look()) == lived.saved(before)
        mended(lived, before)
        lived.sound()
    assert errors
    assert all(error.hint for error in errors), [(error.message, error.hint) for error in errors]
    lived.sound()


@pytest.mark.parametrize("operation", ["restore", "undo"])
def test_going_back_removes_what_has_filled_the_disk(lived: Place, small: SmallDisk, operation: str) -> None:
    with lived.open() as workspace:
        workspace.let_go()
    lived.known.clear()
    lived.tree = small.path / "tree"
    (lived.tree / "d").mkdir(parents=True)
    lived.path(b"edited").write_bytes(b"one")
    lived.path(b"d/kept").write_bytes(b"kept")
    with lived.init() as workspace:
        state = lived.saved(lived.look())
        lived.known[workspace.checkpoint("one").checkpoint.id] = state
        lived.path(b"edited").write_bytes(b"two")
        with lived.path(b"fill").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(os.urandom(KIB))
        with suppress(OSError):
            for number in range(5000):  # until there is no room for a name, or no inode
                lived.path(b"d/%d" % number).touch()
                os.mkdir(lived.path(b"m%d" % number))
        lived.known[workspace.checkpoint("full").checkpoint.id] = lived.saved(lived.look())
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            lived.path(b"more").write_bytes(b"x" * KIB)
        lived.path(b"more").unlink(missing_ok=True)
        if operation == "undo":
            workspace.undo()
        else:
            workspace.restore("one")
        assert lived.saved(lived.look()) == state
    lived.sound()


def on(small: SmallDisk, lived: Place, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the home on the small disk; a signal that kills it is a failure of the test."""
    home = small.path / "home"
    command = [sys.executable, "-m", "holdfast", "--home", str(home), "-w", str(lived.tree), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode >= 0, done
    assert "Traceback" not in done.stderr, done
    return done


@pytest.mark.parametrize("room", some([0, 3 * KIB, 9 * KIB, 20 * KIB, 60 * KIB, 200 * KIB], 3))
def test_forget_and_gc_free_a_disk_that_is_full(lived: Place, small: SmallDisk, room: int) -> None:
    home = small.path / "home"
    subprocess.run(["cp", "-a", lived.home, home], check=True)
    assert on(small, lived, "log").returncode == 0
    ballast = home / "ballast"
    about = ballast.stat()
    assert about.st_blocks * 512 >= about.st_size >= 256 * KIB
    assert about.st_mode & 0o777 == 0o600
    small.leave(room)
    for words in (["forget", "first"], ["gc", "--grace", "0"]):
        done = on(small, lived, *words)
        assert done.returncode == 0, done
    assert small.free() > 512 * KIB
    small.empty()
    assert on(small, lived, "verify", "--read-data").returncode == 0
    assert "first" not in on(small, lived, "log").stdout
    assert ballast.exists(), "it is laid again where there is room"


@pytest.mark.parametrize("room", [0, 9 * KIB, 60 * KIB])
def test_a_fork_of_a_session_can_be_deleted_on_a_disk_that_is_full(lived: Place, small: SmallDisk, room: int) -> None:
    """Also where it is mounted, and its server has the catalog open."""
    subprocess.run(["cp", "-a", lived.home, small.path / "home"], check=True)
    for words in ("start main", "fork other --provider holdfast", "exec -s other echo more > more"):
        assert on(small, lived, "session", *words.split(" ", 4)).returncode == 0
    small.leave(room)
    assert on(small, lived, "session", "list").returncode == 0
    done = on(small, lived, "session", "delete", "other", "--yes")
    assert done.returncode == 0, done
    small.empty()
    assert on(small, lived, "verify", "--read-data").returncode == 0
    assert not list((small.path / "home-forks").glob("*/*"))
    assert json.loads(on(small, lived, "--json", "session", "info", "-s", "main").stdout)["forks"] == []


@pytest.mark.parametrize("words", ["log", "checkpoint", "verify", "stats", "undo", "restore first"])
def test_a_full_disk_kills_no_command(lived: Place, small: SmallDisk, words: str) -> None:
    subprocess.run(["cp", "-a", lived.home, small.path / "home"], check=True)
    for room in moments(range(0, 72 * KIB, 5 * KIB), 5):
        small.leave(room)
        done = on(small, lived, *words.split())
        # (Once `undo` has gone back, there is nothing more to take back.)
        assert done.returncode in ((0, 1, 3) if words == "undo" else (0, 1)), done
        assert done.returncode == 0 or "hint:" in done.stderr, done
        small.empty()
    assert on(small, lived, "verify", "--read-data").returncode == 0


def test_the_command_line_says_what_to_do_about_a_full_disk(lived: Place, small: SmallDisk) -> None:
    home = small.path / "home"
    subprocess.run(["cp", "-a", lived.home, home], check=True)
    small.leave(8 * KIB)
    command = [sys.executable, "-m", "holdfast", "--home", str(home), "-w", str(lived.tree)]
    lived.path(b"unsaved").write_bytes(os.urandom(5 << 20))
    for words in (["checkpoint"], ["restore", "first"], ["undo"]):
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 1, done
        assert "hint:" in done.stderr, done
        assert "Traceback" not in done.stderr, done
        helps = ["holdfast gc", "holdfast cat", "holdfast fork"] if words != ["checkpoint"] else []
        assert all(command in done.stderr for command in helps), done
    assert lived.path(b"unsaved").stat().st_size == 5 << 20
    lived.path(b"unsaved").unlink()
    small.empty()
    assert subprocess.run([*command, "checkpoint", "-q"], capture_output=True, check=False).returncode == 0
    assert subprocess.run([*command, "verify", "--read-data", "-q"], capture_output=True, check=False).returncode == 0


WAYS_BACK = {
    "restore": ["restore", "@"],
    "restore of a path": ["restore", "@", "d"],
    "undo": ["undo"],
    "fork": ["fork", "@", "FORK"],
}


@pytest.mark.parametrize("room", some([0, 9 * KIB, 60 * KIB], 2))
@pytest.mark.parametrize("way", WAYS_BACK)
def test_a_full_disk_stops_no_way_back(lived: Place, small: SmallDisk, way: str, room: int) -> None:
    """What was removed comes back though the home's disk is full, again and again."""
    subprocess.run(["cp", "-a", lived.home, small.path / "home"], check=True)
    lived.path(b"d").mkdir(exist_ok=True)
    for number in range(20):
        lived.path(b"d/%d" % number).write_bytes(b"%d" % number)
    assert on(small, lived, "checkpoint").returncode == 0
    before = lived.saved(lived.look())
    small.leave(room)
    words = [str(lived.root / "fork") if word == "FORK" else word for word in WAYS_BACK[way]]
    for _ in range(3):
        for number in range(20):
            lived.path(b"d/%d" % number).unlink()
        done = on(small, lived, *words)
        assert done.returncode == 0, done
        if way == "fork":
            assert lived.saved(lived.look(lived.root / "fork")) == before
            break
        assert lived.saved(lived.look()) == before
        for again in (["redo"], ["undo"]) if way == "undo" else ():
            assert on(small, lived, *again).returncode == 0, again
        assert lived.saved(lived.look()) == before
        small.leave(room)
    small.empty()
    assert on(small, lived, "verify", "--read-data").returncode == 0


def test_what_a_restore_does_not_touch_needs_no_room(lived: Place, small: SmallDisk) -> None:
    """Only what is at the paths that are restored is saved first; all else stays unsaved, as it was."""
    subprocess.run(["cp", "-a", lived.home, small.path / "home"], check=True)
    edited = lived.path(b"edited")
    edited.write_bytes(b"one")
    assert on(small, lived, "checkpoint").returncode == 0
    large = lived.path(b"large")
    large.write_bytes(os.urandom(5 << 20))
    edited.write_bytes(b"two")
    small.leave(0)
    done = on(small, lived, "restore", "@", "edited")
    assert done.returncode == 0, done
    assert "other changes stay unsaved" in done.stderr
    assert edited.read_bytes() == b"one"
    assert large.stat().st_size == 5 << 20
    shown = json.loads(on(small, lived, "--json", "status").stdout)
    assert (shown["added"], shown["modified"]) == (["large"], ["edited"])
    assert on(small, lived, "cat", "@:edited").stdout == "two"
    small.empty()
    # What was unsaved is the newest change, with what the restore did, and can be taken back and brought forward.
    for words, content, is_there in ((["undo"], b"two", False), (["redo"], b"one", True)):
        assert on(small, lived, *words).returncode == 0
        assert (edited.read_bytes(), large.exists()) == (content, is_there)
    assert on(small, lived, "verify", "--read-data").returncode == 0


def test_a_database_and_its_log_are_saved_together_where_there_is_room_for_little(
    lived: Place, small: SmallDisk
) -> None:
    subprocess.run(["cp", "-a", lived.home, small.path / "home"], check=True)
    lived.path(b".gitignore").write_text("*-wal\n*-shm\n")

    def insert(*values: int) -> None:
        rows = "".join(f"c.execute('insert into t values ({value})');" for value in values)
        script = f"""import os, sqlite3; c = sqlite3.connect("app.db")
c.execute("pragma journal_mode=wal"); c.execute("pragma wal_autocheckpoint=0")
c.execute("create table if not exists t(x)")
{rows} c.commit(); os._exit(0)"""
        subprocess.run([sys.executable, "-c", script], cwd=lived.tree, check=True)

    def rows() -> list[int]:
        with closing(sqlite3.connect(lived.tree / "app.db")) as opened:
            assert opened.execute("pragma integrity_check").fetchall() == [("ok",)]
            return [row for (row,) in opened.execute("select x from t order by x")]

    insert(1)
    assert on(small, lived, "checkpoint", "-m", "one row").returncode == 0
    insert(2)
    lived.path(b"large").write_bytes(os.urandom(5 << 20))
    small.leave(0)
    done = on(small, lived, "restore", "one row", "app.db")
    assert done.returncode == 0, done
    small.empty()
    (back,) = re.findall(r"`holdfast (restore \S+ app\.db)` brings it back", done.stdout)
    lived.path(b"large").unlink()
    assert on(small, lived, *back.split()).returncode == 0
    assert rows() == [1, 2]
    assert on(small, lived, "restore", "one row", "app.db").returncode == 0
    assert rows() == [1]


def test_a_step_is_taken_back_beside_what_there_is_no_room_to_save(lived: Place, small: SmallDisk) -> None:
    subprocess.run(["cp", "-a", lived.home, small.path / "home"], check=True)
    lived.path(b"f").write_bytes(b"one")
    assert on(small, lived, "checkpoint").returncode == 0
    assert on(small, lived, "run", "--", "sh", "-c", f"cd {lived.tree}; echo two > f; echo > made").returncode == 0
    lived.path(b"large").write_bytes(os.urandom(5 << 20))
    small.leave(0)
    done = on(small, lived, "undo", "--run")
    assert done.returncode == 0, done
    assert lived.path(b"f").read_bytes() == b"one"
    assert not lived.path(b"made").exists()
    assert lived.path(b"large").stat().st_size == 5 << 20
    small.empty()
    lived.path(b"large").unlink()
    assert on(small, lived, "redo").returncode == 0
    assert lived.path(b"f").read_bytes() == b"two\n"
    assert on(small, lived, "verify", "--read-data").returncode == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT], ids=["ENOSPC", "EIO", "EDQUOT"])
def test_i4_an_error_at_any_step_of_the_object_store(lived: Place, number: int) -> None:
    lived.keep("start")
    known = dict(lived.known)
    before = lived.look()
    for fatal in range(0, 200, 2 if number == errno.ENOSPC else 5):
        lived.put_back("start")
        lived.known = dict(known)
        with lived.open() as workspace:
            objects = workspace._context.store.objects
            assert isinstance(objects, LocalObjects)

            def fault(name: str, at: int, fatal: int = fatal) -> OSError | None:
                return OSError(number, os.strerror(number)) if at == fatal else None

            objects.disk = faulty = FaultyDisk(fault)
            try:
                made = workspace.checkpoint("it")
            except StorageError as error:
                assert error.exit_code == 1
                assert error.hint or number == errno.EIO, error.message
                assert [one.label for one in workspace.log().checkpoints] == ["second", "first"]
            else:
                lived.known[made.checkpoint.id] = lived.saved(before)
                if len(faulty.steps) <= fatal:
                    break
            # The same process goes on, with a disk that works again.
            lived.known[workspace.checkpoint("it").checkpoint.id] = lived.saved(before)
            assert workspace.verify(read_data=True).ok
        lived.sound(collect=fatal % 4 == 0)
    else:
        pytest.fail("it never comes to its end")
    assert fatal > 6
    lived.sound()


def test_what_was_saved_can_be_looked_at_on_a_disk_that_is_full(lived: Place, small: SmallDisk) -> None:
    home = small.path / "home"
    lived.home.rename(lived.base / "moved")
    subprocess.run(["cp", "-a", lived.base / "moved", home], check=True)
    lived.home = home
    with lived.open() as workspace:
        names = [checkpoint.id for checkpoint in workspace.log().checkpoints]
    small.leave(0)
    for words in ("log", "log --all", "show", "status", "diff", "diff @- @", "stats", "verify"):
        done = on(small, lived, *words.split())
        assert done.returncode == 0, (words, done)
    assert [item["id"] for item in json.loads(on(small, lived, "log", "--json").stdout)["checkpoints"]] == names
    assert on(small, lived, "restore", "first", "--dry-run").returncode == 0
    with lived.open() as workspace:
        assert [checkpoint.id for checkpoint in workspace.log().checkpoints] == names
        with lived.open() as beside:
            assert beside.show(names[0]).checkpoint.id == names[0], "nobody is kept out between two looks"
        with pytest.raises(StorageError, match="no space left"):
            workspace.let_go()
        small.empty()
        workspace.let_go()
        assert [checkpoint.id for checkpoint in workspace.log().checkpoints] == names
    lived.known.clear()
