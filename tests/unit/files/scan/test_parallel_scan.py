"""The second process of a scan: what it may vouch for, and that the scan is right whatever becomes of it."""

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
    "Lets the scout come to its end before the scanner begins."
    sent = real_send(*arguments)
    if sent is not None:
        os.waitid(os.P_PID, sent._process, os.WEXITED | os.WNOWAIT)
        all_sent.append(sent)
    return sent

real_send = scanner.send
scanner.send = finished
all_sent = []
looked = []
real = Scanner._list_known
def list_known(self, fd, path, *others):
    looked.append(path)
    return real(self, fd, path, *others)
Scanner._list_known = list_known

def check(expected_looks=None):
    looked.clear()
    before = len(all_sent)
    found = tree.scan(HashSink())
    assert len(all_sent) > before
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
        pytest.skip("needs two processors, as a scout does")
    subprocess.run([sys.executable, "-c", SCRIPT + steps, str(root)], check=True)


def test_what_the_scout_has_seen_unchanged_is_not_looked_at_again(root: Path) -> None:
    # But for the root, with which the scanner begins, and what has rules of its own.
    run(root, 'check([b"", b"c/rules"])')


def test_the_caller_has_its_time_while_the_scout_walks(root: Path) -> None:
    run(
        root,
        """
calls = []
def meanwhile():
    assert not looked, "the caller's own walk begins afterwards"
    calls.append(len(all_sent))
looked.clear()
assert tree.scan(HashSink(), meanwhile=meanwhile).changes == LocalTree(root).scan(HashSink()).changes
assert calls == [1]
scanner.send = lambda *arguments: None
tree.scan(HashSink(), meanwhile=meanwhile)
assert calls == [1], "nobody else looks"
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
    """The scout has seen the directories below as they were under the rules before."""
    run(
        root,
        """
def changing(*arguments):
    sent = finished(*arguments)
    with open(root + b"/.gitignore", "w") as file:
        file.write("file\\n")
    return sent
scanner.send = changing
assert sorted(tree.scan(HashSink()).changes) == [b".gitignore", b"c/rules/.gitignore"]
scanner.send = finished
check()
""",
    )


def test_a_scout_that_was_killed_costs_time_and_nothing_else(root: Path) -> None:
    run(
        root,
        """
def killed(*arguments):
    sent = real_send(*arguments)
    if sent is not None:
        os.kill(sent._process, signal.SIGKILL)
        os.waitpid(sent._process, 0)
        all_sent.append(sent)
    return sent
scanner.send = killed
open(root + b"/b/new", "w").close()
check()
""",
    )


def test_a_process_with_threads_sends_no_scout(root: Path) -> None:
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
            assert parallel_scan.send(tree.index, -1, frozenset()) is None
            parallel_scan.send_ahead(bytes(root), index)
            assert parallel_scan._ahead is None
        finally:
            parallel_scan.MIN_FILES = before
    finally:
        release.set()
        thread.join()


def test_files_of_several_names_are_told_of_whoever_has_looked(root: Path) -> None:
    run(
        root,
        """
elsewhere = root + b"/../elsewhere"
check()
assert not tree.linked
os.link(root + b"/b/file", elsewhere)
check()
assert tree.linked
while tree.scan(HashSink()).files_read:
    pass
check([b"", b"c/rules"])
assert tree.linked
os.unlink(elsewhere)
check()
assert not tree.linked
""",
    )


AHEAD = """
index = root + b".index"
kept = LocalTree(root, index=index)
kept.scan(HashSink())
while kept.scan(HashSink()).files_read:
    pass
kept.save_index()
scanner.send = lambda *arguments: None  # nobody but whoever is ahead
_, taken = scanner.take_over, []
def take_over(*arguments):
    taken.append(real_take_over(*arguments))
    return taken[-1]
real_take_over, scanner.take_over = scanner.take_over, take_over

def send_ahead(to=root, by=index):
    "Lets it come to its end."
    parallel_scan.send_ahead(to, by)
    os.waitid(os.P_PID, parallel_scan._ahead.process, os.WEXITED | os.WNOWAIT)

def check_ahead(expected_looks, used=True, tree=None):
    looked.clear()
    found = (tree or LocalTree(root, index=index)).scan(HashSink())
    assert sorted(looked) == sorted(expected_looks), looked
    assert [one is not None for one in taken] == [used]
    assert parallel_scan._ahead is None
    assert found.changes == LocalTree(root).scan(HashSink()).changes
def back():
    os.unlink(root)
    os.rename(root + b"2", root)
everything = [b"", b"a", b"a/deep", b"a/deep/er", b"b", b"c", b"c/rules", b"c/rules/below", b"d"]
"""


def test_what_a_scout_ahead_has_seen_is_not_looked_at_again(root: Path) -> None:
    run(root, AHEAD + 'send_ahead()\ncheck_ahead([b"", b"c/rules"])')


def test_what_changes_before_a_scout_ahead_comes_there_is_found(root: Path) -> None:
    edit = 'open(root + b"/b/file", "w").close()\n'
    run(root, AHEAD + edit + 'send_ahead()\ncheck_ahead([b"", b"b", b"c/rules"])')


def test_rules_that_change_behind_a_scout_ahead_are_obeyed(root: Path) -> None:
    rules = 'open(root + b"/.gitignore", "w").write("file")\n'
    run(root, AHEAD + "send_ahead()\n" + rules + "check_ahead(everything)")


@pytest.mark.parametrize(
    "meanwhile",
    [
        'other = LocalTree(root, index=index); other.index.label(b"x" * 16); other.save_index()',
        "os.unlink(index)",
        'open(index, "wb").write(b"damaged")',
    ],
)
def test_a_scout_ahead_that_went_by_another_index_is_not_believed(root: Path, meanwhile: str) -> None:
    run(root, AHEAD + f"send_ahead()\n{meanwhile}\ncheck_ahead(looked, used=False)")


@pytest.mark.parametrize(
    "ahead",
    [
        'os.mkdir(root + b".other"); send_ahead(to=root + b".other")',
        'was = root + b"2"; os.rename(root, was); os.symlink(was, root); send_ahead(); back()',
        "send_ahead(); parallel_scan._ahead = parallel_scan._ahead._replace(sent_at=parallel_scan._ahead.sent_at - 2)",
        "send_ahead(); parallel_scan._ahead.marks[-32:] = bytes(32)",  # it has not begun
    ],
)
def test_a_scout_ahead_that_says_nothing_of_this_tree_now_is_not_believed(root: Path, ahead: str) -> None:
    run(root, AHEAD + f"{ahead}\ncheck_ahead(everything, used=False)")


def test_an_index_that_this_process_has_changed_is_not_what_a_scout_ahead_went_by(root: Path) -> None:
    run(
        root,
        AHEAD
        + """
mine = LocalTree(root, index=index)
mine.index.put(b"b/file", mine.index.get(b"b/file").entry, mine.index.get(b"b/file").signature)
send_ahead()
check_ahead(everything, used=False, tree=mine)
""",
    )


def test_an_index_that_this_process_has_saved_is_what_a_scout_ahead_went_by(root: Path) -> None:
    run(
        root,
        AHEAD
        + """
mine = LocalTree(root, index=index)
mine.index.label(b"x" * 16)
mine.save_index()
send_ahead()
check_ahead([b"", b"c/rules"], tree=mine)
""",
    )


def test_what_has_become_ours_is_not_walked_whoever_has_looked(root: Path) -> None:
    """A scout ahead does not know what is ours (I14)."""
    run(
        root,
        AHEAD
        + """
mine = LocalTree(root, index=index, never=[root + b"/c"])
send_ahead()
assert not any(path.startswith(b"c/") for path in mine.scan(HashSink()).changes)
assert taken[0] is not None
""",
    )


def test_whoever_changes_the_tree_recalls_the_scout_ahead(root: Path) -> None:
    """Else what it saw before would pass for what is there now."""
    run(
        root,
        AHEAD
        + """
from holdfast.model.entries import Change
mine = LocalTree(root, index=index)
before = mine.index.get(b"b/file").entry
send_ahead()
mine.apply([Change(b"b/file", before, None)], [], nonce="0" * 16)
assert parallel_scan._ahead is None
everything.remove(b"b")  # which was the last file in there
check_ahead(everything, used=False, tree=mine)
send_ahead()
mine.clean("0" * 16)
assert parallel_scan._ahead is None
""",
    )


def test_a_copy_of_the_process_may_run_wherever_its_maker_may(root: Path) -> None:
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


def test_a_scout_ahead_whose_sender_dies_ends_too(root: Path) -> None:
    run(
        root,
        AHEAD
        + """
first = os.fork()
if not first:
    parallel_scan.send_ahead(root, index)
    os.write(1, b"")
    open(root + b".pid", "w").write(str(parallel_scan._ahead.process))
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


def test_there_is_one_scout_ahead_at_most(root: Path) -> None:
    run(
        root,
        AHEAD
        + """
send_ahead()
first = parallel_scan._ahead
parallel_scan.send_ahead(root, index)
assert parallel_scan._ahead is first
check_ahead([b"", b"c/rules"])
""",
    )


def test_nobody_is_sent_ahead_where_it_does_not_pay(root: Path) -> None:
    run(
        root,
        AHEAD
        + """
parallel_scan.MIN_FILES = 1000
parallel_scan.send_ahead(root, index)
assert parallel_scan._ahead is None
parallel_scan.MIN_FILES = 1
parallel_scan.send_ahead(root, index + b".none")
assert parallel_scan._ahead is None
parallel_scan.recall_ahead()
""",
    )


@pytest.fixture
def known(root: Path) -> StatIndex:
    """The index of the tree, with nothing racy in it."""
    tree = LocalTree(bytes(root))
    tree.scan(HashSink())
    while tree.scan(HashSink()).files_read:
        pass
    return tree.index


def walk(
    root: Path, index: StatIndex, *, met: bytes = b"-", parent: int | None = None, never: tuple[str, ...] = ()
) -> set[bytes]:
    """Which directories a scout marks, with this process as the scout; the scanner has come to ``met`` already."""
    numbers = parallel_scan._numbers(index)
    abouts = [os.stat(root / inner) for inner in never]
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    with mmap.mmap(-1, len(numbers)) as marks:
        if met in numbers:
            marks[numbers[met]] = parallel_scan._UNDER_WAY
        parallel_scan._Walk(
            index,
            numbers,
            marks,
            os.getppid() if parent is None else parent,
            frozenset((about.st_dev, about.st_ino) for about in abouts),
        ).root(fd)
        os.close(fd)
        return {path for path, number in numbers.items() if marks[number] in (parallel_scan.SEEN, parallel_scan.LINKED)}


def test_a_scout_goes_no_further_than_to_where_the_scanner_is(root: Path, known: StatIndex) -> None:
    everything = set(known.directories)
    assert walk(root, known) == everything
    for number, met in enumerate(order := known.directories[b""].directories()):
        left_alone = {path for path in everything if path.split(b"/")[0] in order[:number]}
        assert walk(root, known, met=met) == everything - left_alone - {met}


def test_a_scout_whose_sender_has_died_ends(root: Path, known: StatIndex) -> None:
    last = known.directories[b""].directories()[-1]
    assert walk(root, known, parent=0) == {b"", *(path for path in known.directories if path.split(b"/")[0] == last)}


def test_a_scout_leaves_alone_what_it_is_told_to(root: Path, known: StatIndex) -> None:
    everything = set(known.directories)
    assert walk(root, known, never=("c", "d")) == everything - {b"c", b"c/rules", b"c/rules/below", b"d"}


def test_a_scout_does_not_vouch_for_a_file_that_has_to_be_read_again(root: Path, known: StatIndex) -> None:
    file = known.get(b"b/file")
    assert file is not None
    known.put(b"b/file", file.entry, file.signature, racy=True)
    known.close()
    assert walk(root, known) == {*known.directories} - {b"b"}


def test_a_scout_goes_on_behind_what_it_does_not_know(root: Path, known: StatIndex) -> None:
    everything = set(known.directories)
    (root / "e/new").mkdir(parents=True)
    (root / "d/file").unlink()
    (root / "d").rmdir()
    (root / "d").symlink_to("b")
    assert walk(root, known) == everything - {b"", b"d"}


def test_a_scout_goes_only_so_deep(root: Path, known: StatIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_scan, "_MAX_DEPTH", 1)
    assert walk(root, known) == {b"", b"a", b"b", b"c", b"d"}


def test_what_the_scanner_comes_to_first_the_scout_is_told_of(known: StatIndex) -> None:
    numbers = parallel_scan._numbers(known)
    with mmap.mmap(-1, len(numbers)) as marks:
        marks[numbers[b"b"]] = parallel_scan.LINKED
        sent = parallel_scan.Scout(numbers, marks, 0)
        assert [sent.has_seen(path) for path in (b"a", b"b", b"unknown")] == [0, parallel_scan.LINKED, 0]
        assert {path for path, number in numbers.items() if marks[number] == parallel_scan._UNDER_WAY} == {b"a"}
        assert marks[numbers[b"b"]] == parallel_scan.LINKED


@pytest.mark.parametrize("room", [0, 1])
def test_an_index_that_has_grown_since_it_was_looked_at_is_not_gone_by(
    root: Path, known: StatIndex, tmp_path: Path, room: int
) -> None:
    index = bytes(tmp_path / "index")
    known.save(index)
    with mmap.mmap(-1, len(known.directories) - 1 + room + parallel_scan._ABOUT.size) as marks:
        parallel_scan._walk_ahead(bytes(root), index, marks, os.getppid())
        assert any(marks[:]) == bool(room)
        marks[:] = bytes(len(marks))
        os.unlink(index)
        parallel_scan._walk_ahead(bytes(root), index, marks, os.getppid())
        assert not any(marks[:])


def test_what_a_scout_has_found_changed_is_looked_at_first(root: Path) -> None:
    run(
        root,
        AHEAD
        + """
for path in (b"/d/file", b"/b/file"):
    open(root + path, "w").close()
send_ahead()
looked.clear()
found = LocalTree(root, index=index).scan(HashSink())
assert sorted(looked[:2]) == [b"b", b"d"] and sorted(looked[2:]) == [b"", b"c/rules"], looked
assert found.changes == LocalTree(root).scan(HashSink()).changes
""",
    )


@pytest.mark.parametrize("rules", ["/b/", "file", "b/"])
def test_nothing_is_read_ahead_of_the_walk_that_new_rules_leave_out(root: Path, rules: str) -> None:
    run(
        root,
        AHEAD
        + f"""
open(root + b"/b/file", "w").write("a secret")
open(root + b"/.gitignore", "w").write({rules!r})
send_ahead()
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
    """It was looked at out of turn, and its parent is not there any more."""
    run(
        root,
        AHEAD
        + """
open(root + b"/a/deep/er/file", "w").close()
send_ahead()
real_take_up = Scanner._take_up
def take_up(self, *arguments):
    real_take_up(self, *arguments)
    assert self._taken_up
    os.rename(root + b"/a", root + b".away")
    open(root + b"/new", "w").close()
Scanner._take_up = take_up
found = LocalTree(root, index=index).scan(HashSink())
assert found.changes == LocalTree(root).scan(HashSink()).changes
""",
    )
