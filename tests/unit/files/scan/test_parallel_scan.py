"""The second process of a scan: what it may find unchanged, and that the scan is right whatever becomes of it."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from holdfast.files.local_tree import LocalTree
from holdfast.files.scan import parallel_scan
from holdfast.model.content import HashSink

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.files.index.stat_index import StatIndex

SCRIPT = """
import os, signal, sys
from holdfast.files.scan import scanner
from holdfast.files.scan import parallel_scan
from holdfast.files.local_tree import LocalTree
from holdfast.model.content import HashSink
from holdfast.files.scan.scanner import Scanner

root = os.fsencode(sys.argv[1])
parallel_scan.MIN_FILES = 1
tree = LocalTree(root)
tree.scan(HashSink())
while tree.scan(HashSink()).files_read:  # until nothing is racy any more
    pass

def finished(*arguments):
    "Lets the second process come to its end before the scanner begins."
    second = real_start(*arguments)
    if second is not None:
        os.waitid(os.P_PID, second._process, os.WEXITED | os.WNOWAIT)
        started.append(second)
    return second

real_start = scanner.start
scanner.start = finished
started = []
looked = []
real = Scanner._list_known
def list_known(self, fd, path, *others):
    looked.append(path)
    return real(self, fd, path, *others)
Scanner._list_known = list_known

def check(expected_looks=None):
    looked.clear()
    before = len(started)
    found = tree.scan(HashSink())
    assert len(started) > before
    if expected_looks is not None:
        assert sorted(looked) == sorted(expected_looks), looked
    assert found.changes == LocalTree(root).scan(HashSink()).changes
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "tree"
    for inner in ("a/deep/er", "b", "c/rules/below", "d"):
        (path / inner).mkdir(parents=True)
        (path / inner / "file").write_bytes(inner.encode())
    (path / "c/rules/.gitignore").write_bytes(b"ignored\n")
    return path


def run(root: Path, steps: str) -> None:
    """Run ``steps`` after `SCRIPT`, in a process without threads."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors, as a second process does")
    subprocess.run([sys.executable, "-c", SCRIPT + steps, str(root)], check=True)


def test_what_the_second_process_has_found_unchanged_is_not_scanned_again(root: Path) -> None:
    # But for the root, with which the scanner begins, and what has rules of its own.
    run(root, 'check([b"", b"c/rules"])')


def test_the_caller_works_while_the_second_process_scans(root: Path) -> None:
    run(
        root,
        """
calls = []
def meanwhile():
    assert not looked, "the scanner's own walk begins afterwards"
    calls.append(len(started))
looked.clear()
assert tree.scan(HashSink(), meanwhile=meanwhile).changes == LocalTree(root).scan(HashSink()).changes
assert calls == [1]
scanner.start = lambda *arguments: None
tree.scan(HashSink(), meanwhile=meanwhile)
assert calls == [1], "no second process scans"
""",
    )


@pytest.mark.parametrize(
    "change",
    [
        'open(root + b"/a/deep/file", "w").close()',
        'open(root + b"/b/file", "w").close()',
        'os.unlink(root + b"/b/file")',
        'os.rename(root + b"/d", root + b"/a/deep/d")',
        'open(root + b"/a/.gitignore", "w").write("file\\n")',
        'open(root + b"/c/rules/.gitignore", "w").write("file\\n")',
        'os.unlink(root + b"/c/rules/.gitignore")',
        'os.mkfifo(root + b"/d/fifo")',
        'os.rename(root + b"/a", root + b"/../away"); os.symlink("../away", root + b"/a")',
    ],
)
def test_changes_are_found(root: Path, change: str) -> None:
    run(root, f"{change}\ncheck()\ncheck()")


def test_rules_that_change_under_way_are_obeyed_below(root: Path) -> None:
    """The second process has compared the directories below under the rules before."""
    run(
        root,
        """
def changing(*arguments):
    second = finished(*arguments)
    with open(root + b"/.gitignore", "w") as file:
        file.write("file\\n")
    return second
scanner.start = changing
assert sorted(tree.scan(HashSink()).changes) == [b".gitignore", b"c/rules/.gitignore"]
scanner.start = finished
check()
""",
    )


def test_a_second_process_that_was_killed_costs_time_and_nothing_else(root: Path) -> None:
    run(
        root,
        """
def killed(*arguments):
    second = real_start(*arguments)
    if second is not None:
        os.kill(second._process, signal.SIGKILL)
        os.waitpid(second._process, 0)
        started.append(second)
    return second
scanner.start = killed
open(root + b"/b/new", "w").close()
check()
""",
    )


def test_a_process_with_threads_starts_no_second_one(root: Path) -> None:
    index = bytes(root) + b".index"
    tree = LocalTree(bytes(root), index=index)
    tree.scan(HashSink())
    tree.save_index()
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    try:
        before = parallel_scan.MIN_FILES
        parallel_scan.MIN_FILES = 1
        try:
            assert parallel_scan.start(tree.index, -1, frozenset()) is None
            parallel_scan.start_early(bytes(root), index)
            assert parallel_scan._early is None
        finally:
            parallel_scan.MIN_FILES = before
    finally:
        release.set()
        thread.join()


def test_files_of_several_names_are_found_by_either_process(root: Path) -> None:
    run(
        root,
        """
elsewhere = root + b"/../elsewhere"
check()
assert not tree.has_hard_links
os.link(root + b"/b/file", elsewhere)
check()
assert tree.has_hard_links
while tree.scan(HashSink()).files_read:
    pass
check([b"", b"c/rules"])
assert tree.has_hard_links
os.unlink(elsewhere)
check()
assert not tree.has_hard_links
""",
    )


EARLY = """
index = root + b".index"
kept = LocalTree(root, index=index)
kept.scan(HashSink())
while kept.scan(HashSink()).files_read:
    pass
kept.save_index()
scanner.start = lambda *arguments: None  # no second process but the early one
adopted = []
def adopt_early(*arguments):
    adopted.append(real_adopt(*arguments))
    return adopted[-1]
real_adopt, scanner.adopt_early = scanner.adopt_early, adopt_early

def start_early(to=root, by=index):
    "Lets it come to its end."
    parallel_scan.start_early(to, by)
    os.waitid(os.P_PID, parallel_scan._early.process, os.WEXITED | os.WNOWAIT)

def check_early(expected_looks, used=True, tree=None):
    looked.clear()
    found = (tree or LocalTree(root, index=index)).scan(HashSink())
    assert sorted(looked) == sorted(expected_looks), looked
    assert [one is not None for one in adopted] == [used]
    assert parallel_scan._early is None
    assert found.changes == LocalTree(root).scan(HashSink()).changes
def age(seconds):
    early = parallel_scan._early
    parallel_scan._early = early._replace(started_at=early.started_at - seconds)
def back():
    os.unlink(root)
    os.rename(root + b"2", root)
everything = [b"", b"a", b"a/deep", b"a/deep/er", b"b", b"c", b"c/rules", b"c/rules/below", b"d"]
"""


def test_what_an_early_scan_has_found_unchanged_is_not_scanned_again(root: Path) -> None:
    run(root, EARLY + 'start_early()\ncheck_early([b"", b"c/rules"])')


def test_what_changes_before_an_early_scan_comes_there_is_found(root: Path) -> None:
    edit = 'open(root + b"/b/file", "w").close()\n'
    run(root, EARLY + edit + 'start_early()\ncheck_early([b"", b"b", b"c/rules"])')


def test_rules_that_change_behind_an_early_scan_are_obeyed(root: Path) -> None:
    rules = 'open(root + b"/.gitignore", "w").write("file")\n'
    run(root, EARLY + "start_early()\n" + rules + "check_early(everything)")


@pytest.mark.parametrize(
    "meanwhile",
    [
        'other = LocalTree(root, index=index); other.index.label(b"x" * 16); other.save_index()',
        "os.unlink(index)",
        'open(index, "wb").write(b"damaged")',
    ],
)
def test_an_early_scan_by_another_index_is_not_adopted(root: Path, meanwhile: str) -> None:
    run(root, EARLY + f"start_early()\n{meanwhile}\ncheck_early(looked, used=False)")


@pytest.mark.parametrize(
    "early",
    [
        'os.mkdir(root + b".other"); start_early(to=root + b".other")',
        'was = root + b"2"; os.rename(root, was); os.symlink(was, root); start_early(); back()',
        "start_early(); age(2)",
        "start_early(); parallel_scan._early.marks[-32:] = bytes(32)",  # it has not begun
    ],
)
def test_an_early_scan_of_another_tree_or_time_is_not_adopted(root: Path, early: str) -> None:
    run(root, EARLY + f"{early}\ncheck_early(everything, used=False)")


def test_an_early_scan_is_not_adopted_with_an_index_that_was_changed_since(root: Path) -> None:
    run(
        root,
        EARLY
        + """
mine = LocalTree(root, index=index)
mine.index.put(b"b/file", mine.index.get(b"b/file").entry, mine.index.get(b"b/file").signature)
start_early()
check_early(everything, used=False, tree=mine)
""",
    )


def test_an_early_scan_is_adopted_with_an_index_that_was_saved_before_it(root: Path) -> None:
    run(
        root,
        EARLY
        + """
mine = LocalTree(root, index=index)
mine.index.label(b"x" * 16)
mine.save_index()
start_early()
check_early([b"", b"c/rules"], tree=mine)
""",
    )


def test_what_has_become_ours_is_not_walked_after_an_early_scan(root: Path) -> None:
    """An early scan does not know what is ours (I14)."""
    run(
        root,
        EARLY
        + """
mine = LocalTree(root, index=index, never=[root + b"/c"])
start_early()
assert not any(path.startswith(b"c/") for path in mine.scan(HashSink()).changes)
assert adopted[0] is not None
""",
    )


def test_an_early_scan_ends_before_the_tree_is_changed(root: Path) -> None:
    """Otherwise what it found before would pass for what is there now."""
    run(
        root,
        EARLY
        + """
from holdfast.model.entries import Change
mine = LocalTree(root, index=index)
before = mine.index.get(b"b/file").entry
start_early()
mine.apply([Change(b"b/file", before, None)], [], nonce="0" * 16)
assert parallel_scan._early is None
everything.remove(b"b")  # which was the last file in there
check_early(everything, used=False, tree=mine)
start_early()
mine.clean("0" * 16)
assert parallel_scan._early is None
""",
    )


def test_a_copy_of_the_process_may_run_wherever_its_parent_may(root: Path) -> None:
    run(
        root,
        """
import time
from holdfast.files.linux import forked_worker
everywhere = os.sched_getaffinity(0)
def work():
    until = time.monotonic() + 10
    while os.sched_getaffinity(0) != everywhere:
        assert time.monotonic() < until
    open(root + b".done", "w").close()
forked_worker.wait(forked_worker.start(work))
assert os.path.exists(root + b".done")
assert os.sched_getaffinity(0) == everywhere
""",
    )


def test_an_early_scan_whose_parent_dies_ends(root: Path) -> None:
    run(
        root,
        EARLY
        + """
first = os.fork()
if not first:
    parallel_scan.start_early(root, index)
    os.write(1, b"")
    open(root + b".pid", "w").write(str(parallel_scan._early.process))
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(first, 0)
process = int(open(root + b".pid").read())
try:
    while open(f"/proc/{process}/stat", "rb").read().rpartition(b")")[2].split()[0] != b"Z":
        pass
except OSError:
    pass  # and its new parent has waited for it
""",
    )


def test_there_is_one_early_scan_at_most(root: Path) -> None:
    run(
        root,
        EARLY
        + """
start_early()
first = parallel_scan._early
parallel_scan.start_early(root, index)
assert parallel_scan._early is first
check_early([b"", b"c/rules"])
""",
    )


def test_no_early_scan_is_started_where_it_saves_nothing(root: Path) -> None:
    run(
        root,
        EARLY
        + """
parallel_scan.MIN_FILES = 1000
parallel_scan.start_early(root, index)
assert parallel_scan._early is None
parallel_scan.MIN_FILES = 1
parallel_scan.start_early(root, index + b".none")
assert parallel_scan._early is None
parallel_scan.end_early()
""",
    )


UNCHANGED = (parallel_scan.UNCHANGED, parallel_scan.UNCHANGED_WITH_LINKS)


@pytest.fixture
def known(root: Path) -> StatIndex:
    """The index of the tree, with nothing racy in it."""
    tree = LocalTree(bytes(root))
    tree.scan(HashSink())
    while tree.scan(HashSink()).files_read:
        pass
    return tree.index


def walk(
    root: Path, index: StatIndex, *, claimed: bytes = b"-", parent: int | None = None, reserved: tuple[str, ...] = ()
) -> set[bytes]:
    """The directories that this process marks as the second process; the scanner has claimed ``claimed`` before."""
    numbers = parallel_scan._mark_numbers(index)
    abouts = [os.stat(root / inner) for inner in reserved]
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    with mmap.mmap(-1, len(numbers)) as marks:
        if claimed in numbers:
            marks[numbers[claimed]] = parallel_scan._CLAIMED
        parallel_scan._BackwardScan(
            index,
            numbers,
            marks,
            os.getppid() if parent is None else parent,
            frozenset((about.st_dev, about.st_ino) for about in abouts),
        ).scan(fd)
        os.close(fd)
        return {path for path, number in numbers.items() if marks[number] in UNCHANGED}


def test_the_second_process_goes_no_further_than_to_where_the_scanner_is(root: Path, known: StatIndex) -> None:
    everything = set(known.directories)
    assert walk(root, known) == everything
    for number, claimed in enumerate(order := known.directories[b""].directories()):
        left_alone = {path for path in everything if path.split(b"/")[0] in order[:number]}
        assert walk(root, known, claimed=claimed) == everything - left_alone - {claimed}


def test_a_second_process_whose_parent_has_died_ends(root: Path, known: StatIndex) -> None:
    last = known.directories[b""].directories()[-1]
    assert walk(root, known, parent=0) == {b"", *(path for path in known.directories if path.split(b"/")[0] == last)}


def test_the_second_process_leaves_reserved_directories_alone(root: Path, known: StatIndex) -> None:
    everything = set(known.directories)
    assert walk(root, known, reserved=("c", "d")) == everything - {b"c", b"c/rules", b"c/rules/below", b"d"}


def test_a_file_that_has_to_be_read_again_is_not_unchanged(root: Path, known: StatIndex) -> None:
    file = known.get(b"b/file")
    assert file is not None
    known.put(b"b/file", file.entry, file.signature, racy=True)
    known.close()
    assert walk(root, known) == {*known.directories} - {b"b"}


def test_the_second_process_goes_on_behind_what_it_does_not_know(root: Path, known: StatIndex) -> None:
    everything = set(known.directories)
    (root / "e/new").mkdir(parents=True)
    (root / "d/file").unlink()
    (root / "d").rmdir()
    (root / "d").symlink_to("b")
    assert walk(root, known) == everything - {b"", b"d"}


def test_the_second_process_goes_only_so_deep(root: Path, known: StatIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_scan, "_MAX_DEPTH", 1)
    assert walk(root, known) == {b"", b"a", b"b", b"c", b"d"}


def test_the_second_process_sees_what_the_scanner_claims(known: StatIndex) -> None:
    numbers = parallel_scan._mark_numbers(known)
    with mmap.mmap(-1, len(numbers)) as marks:
        marks[numbers[b"b"]] = parallel_scan.UNCHANGED_WITH_LINKS
        second = parallel_scan.SecondScanner(numbers, marks, 0)
        assert [second.claim(path) for path in (b"a", b"b", b"unknown")] == [0, parallel_scan.UNCHANGED_WITH_LINKS, 0]
        assert {path for path, number in numbers.items() if marks[number] == parallel_scan._CLAIMED} == {b"a"}
        assert marks[numbers[b"b"]] == parallel_scan.UNCHANGED_WITH_LINKS


@pytest.mark.parametrize("room", [0, 1])
def test_an_index_that_has_grown_since_its_size_was_read_is_not_used(
    root: Path, known: StatIndex, tmp_path: Path, room: int
) -> None:
    index = bytes(tmp_path / "index")
    known.save(index)
    with mmap.mmap(-1, len(known.directories) - 1 + room + parallel_scan._IDENTITY.size) as marks:
        parallel_scan._scan_early(bytes(root), index, marks, os.getppid())
        assert any(marks[:]) == bool(room)
        marks[:] = bytes(len(marks))
        os.unlink(index)
        parallel_scan._scan_early(bytes(root), index, marks, os.getppid())
        assert not any(marks[:])


def test_what_the_second_process_has_found_changed_is_scanned_first(root: Path) -> None:
    run(
        root,
        EARLY
        + """
for path in (b"/d/file", b"/b/file"):
    open(root + path, "w").close()
start_early()
looked.clear()
found = LocalTree(root, index=index).scan(HashSink())
assert sorted(looked[:2]) == [b"b", b"d"] and sorted(looked[2:]) == [b"", b"c/rules"], looked
assert found.changes == LocalTree(root).scan(HashSink()).changes
""",
    )


@pytest.mark.parametrize("rules", ["/b/", "file", "b/"])
def test_nothing_is_read_before_its_turn_that_new_rules_leave_out(root: Path, rules: str) -> None:
    run(
        root,
        EARLY
        + f"""
open(root + b"/b/file", "w").write("a secret")
open(root + b"/.gitignore", "w").write({rules!r})
start_early()
class Sink(HashSink):
    def add(self, data, previous=None):
        assert b"secret" not in data
        return super().add(data, previous)
found = LocalTree(root, index=index).scan(Sink())
assert b"b/file" not in found.changes
assert found.changes == LocalTree(root).scan(HashSink()).changes
""",
    )


def test_what_is_gone_when_the_walk_comes_there_is_forgotten(root: Path) -> None:
    """It was scanned before its turn, and its parent is not there any more."""
    run(
        root,
        EARLY
        + """
open(root + b"/a/deep/er/file", "w").close()
start_early()
real_changed_first = Scanner._scan_changed_first
def changed_first(self, *arguments):
    real_changed_first(self, *arguments)
    assert self._done_early
    os.rename(root + b"/a", root + b".away")
    open(root + b"/new", "w").close()
Scanner._scan_changed_first = changed_first
found = LocalTree(root, index=index).scan(HashSink())
assert found.changes == LocalTree(root).scan(HashSink()).changes
""",
    )
