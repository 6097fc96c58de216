"""Calls of which each can be seen to have been carried out or not: made under signals, by a caller that is killed, or
until the keeper is.

``python checked_calls.py plant ROUNDS`` makes what they need, in the working directory. ``python checked_calls.py HOW
ROUNDS`` makes them; it says as JSON what was not as it should be.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import random
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

NAMES = ("cut", "appended", "mode", "times", "moved", "over", "by", "gone", "emptied", "linked", "large")
"""What is there before the first call."""
_HERE = -100
_NUMBERS = {
    "x86_64": {"openat": 257, "mkdirat": 258, "unlinkat": 263, "renameat2": 316, "linkat": 265, "symlinkat": 266,
               "fchmodat": 268, "utimensat": 280},
    "aarch64": {"openat": 56, "mkdirat": 34, "unlinkat": 35, "renameat2": 276, "linkat": 37, "symlinkat": 36,
                "fchmodat": 53, "utimensat": 88},
}[os.uname().machine]  # fmt: skip
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_TIMES = (ctypes.c_long * 4)(1, 0, 2, 0)


class Checked(NamedTuple):
    """A call, and whether it has been carried out, as the tree tells."""

    make: Callable[[], int]
    """Returns what the call does, or its error number as a negative one. It is the bare call: nothing tries again."""
    is_done: Callable[[], bool]


def _call(name: str, *arguments: object) -> int:
    given = [each.encode() if isinstance(each, str) else each for each in arguments]
    result = _libc.syscall(_NUMBERS[name], *given)
    return -ctypes.get_errno() if result < 0 else result


def _open(name: str, flags: int) -> int:
    fd = _call("openat", _HERE, name, flags, 0o600)
    if fd >= 0:
        os.close(fd)
    return min(fd, 0)


def _mode(name: str) -> int:
    return stat.S_IMODE(os.lstat(name).st_mode)


def checked_calls(n: int) -> list[Checked]:
    """Those of one round, in their order."""
    there = os.path.lexists
    return [
        Checked(lambda: _open(f"made{n}", os.O_CREAT | os.O_EXCL | os.O_WRONLY), lambda: there(f"made{n}")),
        Checked(lambda: _call("mkdirat", _HERE, f"dir{n}", 0o700), lambda: there(f"dir{n}")),
        Checked(lambda: _call("symlinkat", "target", _HERE, f"sym{n}"), lambda: there(f"sym{n}")),
        Checked(lambda: _open(f"cut{n}", os.O_WRONLY | os.O_TRUNC), lambda: not os.stat(f"cut{n}").st_size),
        Checked(lambda: _open(f"large{n}", os.O_WRONLY | os.O_TRUNC), lambda: not os.stat(f"large{n}").st_size),
        Checked(lambda: _call("fchmodat", _HERE, f"mode{n}", 0o640), lambda: _mode(f"mode{n}") == 0o640),
        Checked(lambda: _call("utimensat", _HERE, f"times{n}", _TIMES, 0), lambda: os.stat(f"times{n}").st_mtime == 2),
        Checked(lambda: _call("renameat2", _HERE, f"moved{n}", _HERE, f"to{n}", 1), lambda: there(f"to{n}")),
        Checked(lambda: _call("renameat2", _HERE, f"over{n}", _HERE, f"by{n}", 0), lambda: not there(f"over{n}")),
        Checked(lambda: _call("linkat", _HERE, f"linked{n}", _HERE, f"more{n}", 0), lambda: there(f"more{n}")),
        Checked(lambda: _call("unlinkat", _HERE, f"gone{n}", 0), lambda: not there(f"gone{n}")),
        Checked(lambda: _call("unlinkat", _HERE, f"emptied{n}", 0x200), lambda: not there(f"emptied{n}")),
    ]


def plant(rounds: int) -> None:
    """Make what `checked_calls` need."""
    for n in range(rounds):
        for name in NAMES:
            if name == "emptied":
                os.mkdir(f"{name}{n}")
            else:
                with open(f"{name}{n}", "wb") as file:
                    file.write(random.Random(n).randbytes(40_000) if name == "large" else name.encode())


def _under_signals(rounds: int, *, restarts: bool) -> dict[str, object]:
    """Make each call until it is carried out, while signals come. What was interrupted must not have been done, and
    what is restarted must not be done twice.
    """
    came = 0

    def note(_number: int, _frame: object) -> None:
        nonlocal came
        came += 1

    for number in (signal.SIGUSR1, signal.SIGALRM):
        signal.signal(number, note)
        signal.siginterrupt(number, not restarts)
    main, is_over = threading.main_thread().ident or 0, threading.Event()

    def send() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGALRM,))
        chance = random.Random(0)
        while not is_over.wait(chance.random() * 0.0003):
            signal.pthread_kill(main, signal.SIGUSR1)

    sender = threading.Thread(target=send)
    sender.start()
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0003)
    wrong: list[object] = []
    interrupted = 0
    for n in range(rounds):
        for at, each in enumerate(checked_calls(n)):
            while (answer := each.make()) == -errno.EINTR and not restarts:
                interrupted += 1
                if each.is_done():
                    wrong.append(("done, and interrupted", n, at))
                    break
            else:
                if answer or not each.is_done():
                    wrong.append((answer, n, at))
    signal.setitimer(signal.ITIMER_REAL, 0)
    is_over.set()
    sender.join()
    return {"wrong": wrong, "signals": came, "interrupted": interrupted}


def _killed(rounds: int) -> dict[str, object]:
    """A child makes the calls of a round, and is killed at one of them, or soon after it has begun: all before it must
    have been carried out, and none behind it.
    """
    reached = mmap.mmap(-1, 1)
    wrong: list[object] = []
    at_calls: set[int] = set()
    chance = random.Random(0)
    for n in range(rounds):
        calls = checked_calls(n)
        fatal = n % len(calls) + 1
        reached[0] = 0
        child = os.fork()
        if not child:
            for at, each in enumerate(calls):
                reached[0] = at + 1
                if each.make():
                    os._exit(1)
            os._exit(0)
        while reached[0] < fatal and not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            pass
        end = time.perf_counter() + chance.random() * chance.choice((0, 0.00003, 0.0002))
        while time.perf_counter() < end:
            pass
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        # (A call of ours comes after what it had begun.)
        os.close(os.open(f"after{n}", os.O_CREAT | os.O_WRONLY))
        last = reached[0] - 1
        at_calls.add(last)
        done = [each.is_done() for each in calls]
        if os.WIFEXITED(status):
            if status or not all(done):
                wrong.append((n, "ended", status, done))
        elif not all(done[:last]) or any(done[last + 1 :]):
            wrong.append((n, last, done))
    return {"wrong": wrong, "at": len(at_calls)}


def _once(rounds: int) -> dict[str, object]:
    """Make them, one after the other, when a line has come."""
    print("ready", flush=True)
    sys.stdin.readline()
    answers = [each.make() for n in range(rounds) for each in checked_calls(n)]
    return {"wrong": [answer for answer in answers if answer]}


def _rounds(rounds: int) -> dict[str, object]:
    """Make those of a round whenever a line comes; the answers, and what has been carried out."""
    for n, _line in zip(range(rounds), sys.stdin, strict=False):
        answers = [each.make() for each in checked_calls(n)]
        print(json.dumps([answers, [each.is_done() for each in checked_calls(n)]]), flush=True)
    return {}  # (no more was asked for)


if __name__ == "__main__":
    how, count = sys.argv[1], int(sys.argv[2])
    if how == "plant":
        plant(count)
    else:
        open("first", "w").close()
        ways: dict[str, Callable[[], dict[str, object]]] = {
            "interrupts": lambda: _under_signals(count, restarts=False),
            "restarts": lambda: _under_signals(count, restarts=True),
            "killed": lambda: _killed(count),
            "once": lambda: _once(count),
            "rounds": lambda: _rounds(count),
        }
        print(json.dumps(ways[how]()), flush=True)
