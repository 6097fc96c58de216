"""The second process that writes files: each of the two makes some, and all is right whatever becomes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import errno, os, signal, sys, threading
from holdfast.files.write import _file_creator as file_creator
from holdfast.files.linux import forked_worker
from holdfast.files.write import _parallel_write as parallel_write
from holdfast.files.write.applier import Applier
from holdfast.files.index.stat_index import KnownFile, signature_of
from holdfast.files.write.rooted_access import Root
from holdfast.model.entries import Change, file_entry, symlink_entry
from holdfast.model.errors import HoldfastError, IntegrityError, StorageError
from holdfast.model.ids import hash_bytes

base = os.fsencode(sys.argv[1])
file_creator.MIN_FILES = 1
file_creator._PORTION_FILES = 2
first = os.getpid()

class Seen(dict):
    def put(self, path, entry, signature):
        self[path] = KnownFile(entry, signature)
    def drop(self, path):
        self.pop(path, None)

class Memory:
    "A supply; what is in `large` is only given by `fetch`."
    def __init__(self):
        self.large = set()
        self.located = 0
    def fetch(self, changes):
        return (contents[change.path] for change in changes)
    def locate(self, changes):
        self.located += len(changes)
        def read(chosen):
            assert os.getpid() == first or not after_fork(chosen)
            return {change.after.hash: contents[change.path] for change in chosen if change.path not in self.large}
        return read

def after_fork(chosen):
    "What happens in the second process when it reads the content of a portion."

paths = [b"%s%d" % (at, n) for at in (b"d/", b"d/e/", b"new/", b"new/f/g/") for n in range(10)]
contents = {path: path * 50 for path in paths}
entries = {path: file_entry(hash_bytes(data), len(data), 0o640) for path, data in contents.items()}
contents[b"new/link"] = b"f/g/0"
entries[b"new/link"] = symlink_entry(hash_bytes(b"f/g/0"), 5)
old = {path: file_entry(hash_bytes(b"old"), 3, 0o644) for path in entries if path.startswith(b"d/")}
seen = Seen()
for path, entry in old.items():
    at = os.path.join(base, path)
    os.makedirs(os.path.dirname(at), exist_ok=True)
    with open(at, "wb") as file:
        file.write(b"old")
    os.chmod(at, 0o644)
    os.setxattr(at, "user.kept", path)
    seen.put(path, entry, signature_of(os.lstat(at)))

supply = Memory()
started = []

def start(*arguments):
    started.append(real_start(*arguments))
    return started[-1]

real_start, parallel_write.start = parallel_write.start, start

def apply(changes=None):
    changes = changes or [Change(path, old.get(path), entry) for path, entry in entries.items()]
    with Root(base) as root:
        return Applier(root, seen).apply([], [(change, supply) for change in changes], nonce="nonce")

def tree():
    found = {}
    for parent, _, names in os.walk(base):
        for name in names:
            path = os.path.join(parent, name)
            link = os.path.islink(path)
            found[os.path.relpath(path, base)] = os.readlink(path) if link else open(path, "rb").read()
    return found

def is_done(applied):
    assert sorted(applied.written) == sorted(entries) and not applied.skipped, applied
    assert tree() == contents
    assert all(os.getxattr(os.path.join(base, path), "user.kept") == path for path in old)
    for path, entry in entries.items():
        assert seen[path] == (entry, signature_of(os.lstat(os.path.join(base, path)))), path
    assert all(one is not None for one in started)
    assert_alone()

def is_as_before():
    assert tree() == {path: b"old" for path in old}
    assert not os.path.lexists(base + b"/new")
    assert_alone()

def assert_alone():
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return
    raise AssertionError("a process was left behind")

def in_second(name, act, at=1):
    "Have `act` done before the `at`-th call of a function of os in the second process; the call only if that returns."
    real, count = getattr(os, name), [0]
    def call(*arguments, **named):
        if os.getpid() != first and (name != "open" or arguments[1] & os.O_CREAT):
            count[0] += 1
            if count[0] >= at:
                act()
        return real(*arguments, **named)
    setattr(os, name, call)

def second_goes_first():
    "Lets the second process come to its end before the first one takes a portion."
    def take_portion(self, real=parallel_write.SecondWriter.take_portion):
        if self._process:
            os.waitid(os.P_PID, self._process, os.WEXITED | os.WNOWAIT)
        return real(self)
    parallel_write.SecondWriter.take_portion = take_portion

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def no_room():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
"""


def run(base: Path, steps: str) -> None:
    """Run ``steps`` after `SCRIPT`, in a process without threads."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors, as a second process does")
    base.mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-c", SCRIPT + steps, str(base)], check=True)


def test_each_process_makes_what_the_other_does_not(tmp_path: Path) -> None:
    run(tmp_path, "is_done(apply())\nassert len(started) == 1 and supply.located == len(entries)")


def test_the_second_process_can_make_all_files(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
made = []
second_goes_first()
end = parallel_write.SecondWriter.end
parallel_write.SecondWriter.end = lambda self: (made.append(self.files_made), end(self))
is_done(apply())
assert made == [len(entries)]
""",
    )


@pytest.mark.parametrize("call", ["open", "write", "symlink", "fstat", "getppid"])
@pytest.mark.parametrize("at", [1, 2, 7])
@pytest.mark.parametrize("order", ["second_goes_first()", ""])
def test_what_a_killed_second_process_leaves_is_made_again(tmp_path: Path, call: str, at: int, order: str) -> None:
    run(tmp_path, f'{order}\nin_second("{call}", die, {at})\nis_done(apply())')


@pytest.mark.parametrize("call", ["open", "write"])
def test_a_second_process_without_room_leaves_the_rest_to_the_first(tmp_path: Path, call: str) -> None:
    run(tmp_path, f'second_goes_first()\nin_second("{call}", no_room, 3)\nis_done(apply())')


def test_without_room_for_either_all_is_as_before(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
real = os.write
def write(fd, data):
    if bytes(data) == contents[b"new/f/g/7"]:
        no_room()
    return real(fd, data)
os.write = write
try:
    apply()
except StorageError as error:
    assert "No space left" in error.message
else:
    raise AssertionError("there was room")
is_as_before()
""",
    )


@pytest.mark.parametrize("moment", ["before the second process", "after the second process"])
def test_damaged_content_leaves_all_as_before(tmp_path: Path, moment: str) -> None:
    run(
        tmp_path,
        f"""
if {moment.startswith("after")}:
    second_goes_first()
contents[b"new/f/g/7"] = b"damaged"
try:
    apply()
except IntegrityError:
    pass
else:
    raise AssertionError("it was taken")
contents[b"new/f/g/7"] = None
is_as_before()
""",
    )


def test_an_interrupted_first_process_ends_the_second(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
in_second("write", signal.pause)
def interrupted(self):
    raise KeyboardInterrupt
parallel_write.SecondWriter.wait = interrupted
try:
    apply()
except KeyboardInterrupt:
    pass
else:
    raise AssertionError("it came to its end")
is_as_before()
""",
    )


def test_the_second_process_of_a_killed_first_one_stops_and_what_both_left_is_cleaned(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
ours, theirs = os.pipe()
go, told = os.pipe()
if not os.fork():
    first = os.getpid()
    def after_fork(chosen):
        os.close(told)
        os.read(go, 1)  # until the first process is gone
    parallel_write.SecondWriter.take_portion = lambda self: die()
    apply()
os.close(theirs)
os.close(told)
os.wait()
assert os.read(ours, 1) == b"", "the second process has ended as well"
assert any(b".holdfast.tmp-" in path for path in tree()), "both had begun"
with Root(base) as root:
    Applier(root, seen).clean("nonce")
is_as_before()
is_done(apply())
""",
    )


def test_what_was_moved_or_is_large_is_fetched(tmp_path: Path) -> None:
    run(tmp_path, 'supply.large = {b"d/3", b"new/f/g/2", b"new/link"}\nis_done(apply())')


def test_names_that_are_given_twice_are_refused(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
changes = [Change(path, old.get(path), entry) for path, entry in entries.items()]
applied = apply([*changes, Change(b"new/f/g/2", None, entries[b"new/f/g/3"])])
assert [path for path, _ in applied.skipped] == [b"new/f/g/2"]
assert tree() == contents
""",
    )


@pytest.mark.parametrize(
    "reason", ["file_creator.MIN_FILES = 1000", "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})", "threaded()"]
)
def test_where_a_second_process_saves_nothing_or_is_not_possible_there_is_none(tmp_path: Path, reason: str) -> None:
    run(
        tmp_path,
        f"""
waiting = threading.Event()
def threaded():
    threading.Thread(target=waiting.wait).start()
{reason}
is_done(apply())
waiting.set()
assert not started and not supply.located
""",
    )


@pytest.mark.parametrize("call", ["os.fork", "mmap.mmap"])
def test_where_there_can_be_no_more_processes_or_memory_one_does_it_all(tmp_path: Path, call: str) -> None:
    run(
        tmp_path,
        f"""
import mmap
def refused(*_):
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
{call} = refused
descriptors = len(os.listdir("/proc/self/fd"))
applied = apply()
assert started == [None]
started.clear()
is_done(applied)
assert len(os.listdir("/proc/self/fd")) == descriptors, "nothing is left open"
""",
    )
