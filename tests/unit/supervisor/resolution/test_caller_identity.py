"""What is known of a thread is what counts when it makes its call, whatever other threads do meanwhile."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from holdfast.supervisor.resolution.caller_identity import Callers
from holdfast.supervisor.resolution.handler_context import HandlerContext
from holdfast.supervisor.syscalls.caller_access import DirectAccess
from holdfast.supervisor.syscalls.pending_call import PendingCall

_CLONE_FS = 0x200


class _Waits:
    """A tree whose callers are this process's own threads, which all wait."""

    def is_valid(self, _call: PendingCall) -> bool:
        return True


_CONTEXT = cast("HandlerContext", _Waits())


def _call(tid: int) -> PendingCall:
    return PendingCall(1, tid, "openat", (0, 0, 0, 0, 0, 0), cast("object", DirectAccess()))  # type: ignore[arg-type]


@pytest.fixture(name="umask", autouse=True)
def _umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture(name="in_thread")
def _in_thread() -> Iterator[Callable[[Callable[[], object]], object]]:
    """Has another thread do something, always the same one."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda do: pool.submit(do).result()


def test_a_thread_first_seen_while_another_changes_the_umask_gets_the_new_one(
    in_thread: Callable[[Callable[[], object]], object],
) -> None:
    callers, me = Callers(), threading.get_native_id()
    other = cast("int", in_thread(threading.get_native_id))
    callers.note_umask(me, 0o077)
    assert callers.find(_call(other), _CONTEXT).umask == 0o022  # (the kernel has not carried it out yet)
    os.umask(0o077)
    assert callers.find(_call(other), _CONTEXT).umask == 0o077
    assert callers.find(_call(me), _CONTEXT).umask == 0o077


def test_of_two_changes_at_a_time_the_one_counts_that_the_kernel_carries_out_last(
    in_thread: Callable[[Callable[[], object]], object],
) -> None:
    callers, me = Callers(), threading.get_native_id()
    other = cast("int", in_thread(threading.get_native_id))
    callers.note_umask(me, 0o077)
    callers.note_umask(other, 0o027)
    in_thread(lambda: os.umask(0o027))
    assert callers.find(_call(other), _CONTEXT).umask == 0o027
    os.umask(0o077)
    for tid in (me, other):
        assert callers.find(_call(tid), _CONTEXT).umask == 0o077


def _settle() -> None:
    callers, me = Callers(), threading.get_native_id()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(threading.get_native_id).result()
        callers.note_umask(me, 0o077)
        os.umask(0o077)
        found = callers.find(_call(other), _CONTEXT)
        assert callers.find(_call(other), _CONTEXT) is found
        assert callers.find_usual(other) is found


def test_what_is_settled_is_not_looked_up_again() -> None:
    # (In a process of its own: where the tests run, any thread may have a umask apart.)
    alone = multiprocessing.get_context("fork").Process(target=_settle)
    alone.start()
    alone.join()
    assert alone.exitcode == 0


def test_nothing_is_known_of_a_process_one_of_whose_threads_has_a_umask_of_its_own() -> None:
    """Executing something, such a thread gets the number of the first one."""
    callers, me = Callers(), os.getpid()
    assert threading.get_native_id() == me
    callers.find(_call(me), _CONTEXT)
    assert callers.find_usual(me) is not None

    def change() -> None:
        assert ctypes.CDLL(None).unshare(_CLONE_FS) == 0
        callers.note_umask(threading.get_native_id(), 0o077)
        os.umask(0o077)

    apart = threading.Thread(target=change)
    apart.start()
    apart.join()
    assert callers.find(_call(me), _CONTEXT).umask == 0o022
    assert callers.find_usual(me) is None
