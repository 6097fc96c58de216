"""Runs one command. None of its processes survives its end, nor the end of the process that started this program.

A separate program that uses only a little of the standard library: it starts before each hook. It adopts the orphans of
the command's processes (PR_SET_CHILD_SUBREAPER, prctl(2)), so that it finds daemons too. It ends with 0 when all is
done, and has written to the given descriptor: the command's exit code, or minus the number of the signal that ended it;
a space; and nothing, or the reason: the command was ended for its ``time`` or its ``memory``, on request (``stopped``),
or could not be started (``start``).
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
import time

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LOOK_SECONDS = 0.05
_PAGE = os.sysconf("SC_PAGE_SIZE")
_ROUNDS = 200
"""Number of rounds of killing, as processes may fork faster than they are killed."""


class Stop(Exception):
    """The process that started this wants it to end, or is gone."""


def main(fd: int, parent: int, seconds: float, memory: int, grace: float, command: list[str]) -> None:
    """``parent`` is the process that starts this; ``seconds`` are 0 for any time, ``memory`` in bytes is 0 for any
    amount, ``grace`` is in seconds from SIGTERM to SIGKILL.
    """
    os.set_inheritable(fd, False)  # the command has no say in how it ended
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, _stop)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        return
    code, ended = 125, "start"
    try:
        try:
            code, ended = _run(command, seconds, memory)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except Stop:
        ended = "stopped"
    finally:
        polite = ended in ("time", "stopped") and os.getppid() == parent
        _end_all(grace if polite else 0.0)
        os.pwrite(fd, f"{code} {ended}".encode(), 0)


def _stop(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # (a second one must not interrupt the clean-up)
    raise Stop


def _run(command: list[str], seconds: float, memory: int) -> tuple[int, str]:
    """Run it to its end; its exit code, and why it was ended, if it was."""
    process = os.fork()
    if not process:
        _exec_limited(command, memory)
    deadline = time.monotonic() + seconds if seconds else None
    fd = os.pidfd_open(process)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while not poll.poll(_LOOK_SECONDS * 1000):
        _reap_orphans(process)
        if deadline is not None and time.monotonic() >= deadline:
            return 124, "time"
        if memory and sum(map(_resident, _descendants(os.getpid()))) > memory:
            return 137, "memory"
    status = os.waitid(os.P_PID, process, os.WEXITED)
    assert status is not None
    code = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
    return code, ""


def _exec_limited(command: list[str], memory: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if memory:
            resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
        os.execvp(command[0], command)  # noqa: S606 - no shell is meant
    except OSError as error:
        sys.stderr.write(f"holdfast: cannot run {command[0]}: {error.strerror}\n")
        sys.stderr.flush()
    finally:
        os._exit(127)


def _reap_orphans(command: int) -> None:
    """Reap orphans that have ended, but not the command itself, whose end is handled elsewhere."""
    for process in _children(os.getpid()):
        if process != command:
            try:
                os.waitpid(process, os.WNOHANG)
            except ChildProcessError:
                continue


def _end_all(grace: float) -> None:
    """End all processes below this one: first by SIGTERM, if there is any ``grace``, and then by SIGKILL."""
    if grace:
        for process in _descendants(os.getpid()):
            _signal(process, signal.SIGTERM)
        until = time.monotonic() + grace
        while time.monotonic() < until and _alive():
            time.sleep(_LOOK_SECONDS)
    for _ in range(_ROUNDS):
        # Stopped first: otherwise they could fork while others are killed.
        found = _descendants(os.getpid())
        for process in found:
            _signal(process, signal.SIGSTOP)
        for process in found:
            _signal(process, signal.SIGKILL)
        if not _alive():
            return
        time.sleep(_LOOK_SECONDS / 10)


def _alive() -> bool:
    """Whether any process is left; reaps those that have ended."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return True
        except ChildProcessError:
            return False


def _signal(process: int, number: int) -> None:
    try:
        os.kill(process, number)
    except (ProcessLookupError, PermissionError):
        return


def _descendants(process: int) -> list[int]:
    """All processes that come from this one, those further up first."""
    found = [process]
    for one in found:  # grows while it is walked
        found += _children(one)
    return found[1:]


def _children(process: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{process}/task"):
            found += map(int, _text(f"/proc/{process}/task/{thread}/children").split())
    except OSError:
        pass
    return found


def _resident(process: int) -> int:
    """Bytes of its own memory: resident, without pages shared with files."""
    try:
        fields = _text(f"/proc/{process}/statm").split()
        return (int(fields[1]) - int(fields[2])) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def _text(path: str) -> str:
    with open(path) as file:
        return file.read()


if __name__ == "__main__":
    _fd, _parent, _seconds, _memory, _grace = sys.argv[1:6]
    main(int(_fd), int(_parent), float(_seconds), int(_memory), float(_grace), sys.argv[6:])
