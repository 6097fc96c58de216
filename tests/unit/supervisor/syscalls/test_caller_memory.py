"""Reading what a caller's arguments point to."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Generator

import pytest

from holdfast.supervisor.launch._caller_access_server import begin_serving
from holdfast.supervisor.syscalls.caller_access import CallerAccess, DirectAccess
from holdfast.supervisor.syscalls.caller_memory import (
    PATH_MAX,
    read,
    read_path,
    read_paths,
    read_string,
    read_structure,
)
from holdfast.supervisor.syscalls.pending_call import PendingCall

PAGE = mmap.PAGESIZE

libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Pages:
    """A few pages, of which the last is not readable."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 4 * PAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        assert libc.mprotect(self.address + 3 * PAGE, PAGE, 0) == 0

    def put(self, at: int, content: bytes) -> int:
        self.memory[at : at + len(content)] = content
        return self.address + at


@pytest.fixture(name="call", params=["itself", "by its parent"])
def _call(request: pytest.FixtureRequest) -> Generator[PendingCall]:
    """A call of this process, whose memory is read by itself, or by what the parent of a tree runs."""
    permission = DirectAccess()
    permission.is_own = request.param == "itself"
    reach = CallerAccess(begin_serving(), permission)
    yield PendingCall(1, os.getpid(), "open", (0, 0, 0, 0, 0, 0), reach, patient=True)
    assert permission.is_own == (request.param == "itself")
    reach.close()


def fails(number: int) -> pytest.RaisesExc[OSError]:
    return pytest.raises(OSError, match=rf"\[Errno {number}\]")


@pytest.mark.parametrize("length", [0, 1, 254, 255, 256, 257, 4000, PATH_MAX - 1])
@pytest.mark.parametrize("start", [0, 1, PAGE - 1, PAGE - 256])
def test_a_path_is_read_up_to_its_end(call: PendingCall, length: int, start: int) -> None:
    pages = Pages()
    path = b"x" * length
    assert read_path(call, pages.put(start, path + b"\0y")) == path


def test_a_structure_is_as_long_as_its_caller_says_up_to_a_page(call: PendingCall) -> None:
    pages = Pages()
    address = pages.put(0, b"x" * PAGE)
    for size in (16, 24, PAGE):
        assert read_structure(call, address, size, 16) == b"x" * size
    with fails(errno.EINVAL):
        read_structure(call, address, 15, 16)
    with fails(errno.E2BIG):
        read_structure(call, address, PAGE + 1, 16)


def test_a_path_may_end_where_memory_ends(call: PendingCall) -> None:
    pages = Pages()
    assert read_path(call, pages.put(3 * PAGE - 5, b"path\0")) == b"path"


def test_what_is_too_long_or_not_readable_is_refused(call: PendingCall) -> None:
    pages = Pages()
    with fails(errno.ENAMETOOLONG):
        read_path(call, pages.put(0, b"x" * PATH_MAX + b"\0"))
    with fails(errno.ERANGE):
        read_string(call, pages.put(0, b"x" * 300 + b"\0"), 256, errno.ERANGE)
    for address in (0, pages.address + 3 * PAGE, pages.put(3 * PAGE - 4, b"path")):
        with fails(errno.EFAULT):
            read_path(call, address)


def test_a_structure_is_read_whole_or_not_at_all(call: PendingCall) -> None:
    pages = Pages()
    content = os.urandom(2 * PAGE + 7)
    assert read(call, pages.put(3, content), len(content)) == content
    assert read(call, 0, 0) == b""
    with fails(errno.EFAULT):
        read(call, pages.put(3 * PAGE - 4, b"path"), 5)


@pytest.mark.parametrize("length", [0, 1, 255, 256, 4000])
@pytest.mark.parametrize("start", [0, PAGE - 3])
def test_two_paths_are_read_as_each_of_them_is(call: PendingCall, length: int, start: int) -> None:
    pages, others = Pages(), Pages()
    path, other = b"x" * length, b"y" * (length // 2)
    first, second = pages.put(start, path + b"\0z"), others.put(3 * PAGE - len(other) - 1, other + b"\0")
    assert read_paths(call, first, second) == (path, other)
    assert read_paths(call, second, first) == (other, path)


def test_of_two_paths_each_is_refused_for_itself(call: PendingCall) -> None:
    pages = Pages()
    good, long = pages.put(0, b"path\0"), pages.put(100, b"x" * PATH_MAX + b"\0")
    for wrong in (0, pages.address + 3 * PAGE):
        for paths in ((good, wrong), (wrong, good)):
            with fails(errno.EFAULT):
                read_paths(call, *paths)
    with fails(errno.ENAMETOOLONG):
        read_paths(call, good, long)
