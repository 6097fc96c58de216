"""The descendants of a process, and ending them; ending and reaping children."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Collection, Iterable

GRACE_SECONDS = 5.0
"""From SIGTERM to SIGKILL."""
_LOOK_SECONDS = 0.02
_MOST_OPEN = 64
"""As many descriptors of processes at a time."""
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_OF_THIS_THREAD = 0x20000000  # __WNOTHREAD: not what another thread traces


def become_subreaper(*, wanted: bool = True) -> bool:
    """Make orphans below this process its children, or stop that; returns the previous setting."""
    import ctypes  # (most users of this module become none)

    libc = ctypes.CDLL(None)
    before = ctypes.c_int()
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)
    return bool(before.value)


def descendants(*of: int, spare: Collection[int] = ()) -> list[int]:
    """The processes below those in ``of``, parents first, without those in ``spare`` and their descendants."""
    children: dict[int, list[int]] = {}
    for pid, (parent, state) in _processes().items():
        if state != b"Z":
            children.setdefault(parent, []).append(pid)
    found: list[int] = []
    waiting = list(of)
    while waiting:
        below = [child for child in children.get(waiting.pop(), ()) if child not in spare]
        found += below
        waiting += below
    return found


def signal_all(found: Callable[[], Iterable[int]], numbers: Collection[int]) -> None:
    """Send the signals to every process that ``found`` returns, and to no other that has reused a pid since.

    It is called again when a descriptor of each is open: a process returned again existed all the time, or the
    descriptor is of a process that has ended.
    """
    named = list(found())
    for at in range(0, len(named), _MOST_OPEN):
        with ExitStack() as ends:
            pidfds: dict[int, int] = {}
            for pid in named[at : at + _MOST_OPEN]:
                with suppress(ProcessLookupError):
                    pidfds[pid] = os.pidfd_open(pid)
                    ends.callback(os.close, pidfds[pid])
            for pid in pidfds.keys() & set(found()):
                for number in numbers:
                    with suppress(ProcessLookupError, PermissionError):
                        signal.pidfd_send_signal(pidfds[pid], number)


def children() -> set[int]:
    """The processes whose parent this one is."""
    own = os.getpid()
    return {pid for pid, (parent, _) in _processes().items() if parent == own}


def end_descendants(spare: Collection[int] = ()) -> None:
    """Kill everything below this process, which must be a subreaper, so that orphans become its children.

    Returns when none is left. Reaps all that have ended, except children in ``spare``.
    """
    own = os.getpid()
    while found := descendants(own, spare=spare):
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for pid in found:
            try:
                # (Processes that are not our children yet will be when their parents have ended.)
                os.waitpid(pid, 0)
            except ChildProcessError:
                pass


def signal_group(group: int, number: int) -> None:
    """Send a signal to a process group, unless all of it has ended, or is another user's."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def kill_tree(process: int) -> None:
    """Kill a process that was not reaped yet, and its descendants."""
    signal_all(lambda: (process, *descendants(process)), (signal.SIGKILL,))


def end_child(child: subprocess.Popen[bytes], grace: float, *, patience: float = 0.0) -> int:
    """Wait until a child has ended, and end it if it takes longer than ``patience`` seconds: first by SIGTERM, and
    ``grace`` seconds later by SIGKILL. Its exit code, negative for a signal.
    """
    from subprocess import TimeoutExpired  # (a run ends no child by this)

    for seconds, end in ((patience, child.terminate), (grace, child.kill)):
        try:
            return child.wait(seconds)
        except TimeoutExpired:
            end()
    return child.wait()


def end_in_order(seconds: float, spare: Collection[int] = ()) -> None:
    """`end_descendants`, after SIGTERM and at most ``seconds`` for them to end."""
    own = os.getpid()
    for pid in descendants(own, spare=spare):
        for number in (signal.SIGTERM, signal.SIGCONT):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
    deadline = time.monotonic() + seconds
    while descendants(own, spare=spare) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    end_descendants(spare)
    reap_orphans(spare)


def reap_orphans(spare: Collection[int]) -> None:
    """Wait for children that have ended, without waiting, except for those in ``spare``."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | _OF_THIS_THREAD)
        except ChildProcessError:
            return
        if found is None:
            return
        if found.si_pid in spare:
            # It hides the children after it; these are looked for one by one.
            _reap_each(spare)
            return
        os.waitpid(found.si_pid, os.WNOHANG)  # (a child that another thread traces need not have ended)


def _reap_each(spare: Collection[int]) -> None:
    own = os.getpid()
    for pid, (parent, state) in _processes().items():
        if parent == own and state == b"Z" and pid not in spare:
            os.waitpid(pid, os.WNOHANG)


def _processes() -> dict[int, tuple[int, bytes]]:
    """Every process, with its parent and state."""
    found: dict[int, tuple[int, bytes]] = {}
    for name in os.listdir(b"/proc"):
        if name.isdigit():
            try:
                with open(b"/proc/%b/stat" % name, "rb", buffering=0) as file:
                    # The name may hold anything, the last parenthesis ends it (proc(5)).
                    state, parent, _ = file.read(4096).rpartition(b") ")[2].split(b" ", 2)
            except OSError:
                continue  # it has ended
            found[int(name)] = int(parent), state
    return found


def memory_of_tree(process: int) -> int:
    """Bytes of memory of a process and all below it; 0 if it has ended."""
    return sum(map(_resident, (process, *descendants(process))))


def hindered_seconds(process: int) -> float:
    """How long the most hindered thread of a process, or of one below it, has waited for a processor that others had;
    0 if the system does not tell (proc_pid_schedstat(5)).
    """
    found = 0
    for pid in (process, *descendants(process)):
        with suppress(OSError):  # (it has ended)
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
                    found = max(found, int(file.read().split()[1]))
    return found / 1e9


def _resident(process: int) -> int:
    try:
        with open(f"/proc/{process}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0  # it has ended
