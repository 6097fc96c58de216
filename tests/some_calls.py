"""Trees, and system calls at random, by strategies of hypothesis: a program that fails shrinks to its least calls."""

from __future__ import annotations

import os
import struct
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TypeAlias

from hypothesis import strategies as st

Call: TypeAlias = tuple[str, tuple[int | bytes, ...]]
"""A call of the kind that every machine has, and its arguments."""
CWD = (1 << 64) - 100
NAMES = (
    b"x", b"a", b"b", b"c", b"d", b"y", b"new", b"other", b".", b"to-a", b"to-x", b"dangling", b"outside", b"loop",
    b"by-proc", b"made", b"fifo",
)  # fmt: skip
_MOST = 60
_UNCHANGED = 0xFFFFFFFF


def plant(top: Path) -> None:
    """A tree with every kind of thing in it, and something beside it."""
    for directory in ("ws/a/c", "ws/b/d", "out"):
        (top / directory).mkdir(parents=True)
    for size, file in enumerate(("ws/x", "ws/a/x", "ws/b/y", "ws/a/c/y", "out/x")):
        (top / file).write_bytes(b"." * size * 6000)
    for name, target in {
        "to-a": "a",
        "to-x": "x",
        "dangling": "nowhere",
        "outside": "../out",
        "loop": "loop",
        "by-proc": "/proc/self/cwd",
        "made": "a/c/../made",
    }.items():
        (top / "ws" / name).symlink_to(target)
    os.mkfifo(top / "ws" / "fifo")


def one(*values: int | bytes) -> st.SearchStrategy[int | bytes]:
    """One of these."""
    return st.sampled_from(values)


def flags(*choices: tuple[int, ...]) -> st.SearchStrategy[int]:
    """One of each of these, together."""
    return st.tuples(*map(st.sampled_from, choices)).map(lambda chosen: reduce(or_, chosen))


def call(name: str, *arguments: int | bytes | st.SearchStrategy[int | bytes]) -> st.SearchStrategy[Call]:
    """The call ``name``. An argument may be a strategy."""
    given = (each if isinstance(each, st.SearchStrategy) else st.just(each) for each in arguments)
    return st.tuples(st.just(name), st.tuples(*given))


def some_of(weights: dict[st.SearchStrategy[Call], int]) -> st.SearchStrategy[Call]:
    """One of these calls, each as often as its weight says."""
    # (`one_of` takes equal ones for one.)
    return st.sampled_from([each for each, weight in weights.items() for _ in range(weight)]).flatmap(lambda each: each)


def programs(calls: st.SearchStrategy[Call], most: int = _MOST) -> st.SearchStrategy[list[Call]]:
    """Calls one after the other: half of ``most``, on average."""
    parts = [st.lists(calls, max_size=most // 6)] * 6  # (one list would be of five)
    return st.tuples(*parts).map(lambda found: [each for part in found for each in part])


def _set_attribute(path: bytes, name: bytes, value: bytes, how: int) -> Call:
    return "setxattr", (path, name, value, len(value), how)


_PATH = st.tuples(
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(b"/".join),
    st.sampled_from((*(b"",) * 12, b"/", b"/.", b"/..")),
).map(b"".join)
_MODE = one(0o644, 0o777, 0o4755, 0o1777, 0o2755)
_FLAGS = flags(
    (os.O_WRONLY | os.O_NONBLOCK, os.O_RDWR | os.O_NONBLOCK),
    (0, os.O_CREAT),
    (0, os.O_TRUNC),
    (0, 0, os.O_EXCL),
    (0, 0, 0, os.O_NOFOLLOW, os.O_DIRECTORY, os.O_APPEND),
)
_HOW = st.builds(
    lambda asked, mode, resolve: struct.pack("QQQ", asked, mode if asked & os.O_CREAT else 0, resolve),
    _FLAGS, _MODE, one(0, 1, 2, 4, 8, 16),
)  # fmt: skip
_AT = (0, 0, 0x100, 0x1000)
_TIMES = st.builds(
    lambda accessed, modified: struct.pack("qqqq", 5, 6, accessed, modified),
    st.integers(0, 10**9 - 1), one(7, (1 << 30) - 1, (1 << 30) - 2, 10**9),
)  # fmt: skip
_ATTRIBUTE = st.sampled_from((b"user.a", b"user.b", b"", b"bad"))
CALLS = some_of(
    {
        call("openat", CWD, _PATH, _FLAGS, _MODE): 4,
        call("openat2", CWD, _PATH, _HOW, 24): 1,
        call("mkdirat", CWD, _PATH, _MODE): 2,
        call("unlinkat", CWD, _PATH, one(0, 0x200)): 2,
        call("renameat2", CWD, _PATH, CWD, _PATH, one(0, 0, 0, 1, 2, 3)): 4,
        call("linkat", CWD, _PATH, CWD, _PATH, one(0, 0x400)): 2,
        call("symlinkat", _PATH, CWD, _PATH): 1,
        call("mknodat", CWD, _PATH, one(0o100644, 0o10600, 0o140755, 0o40755), 0): 1,
        call("truncate", _PATH, one(0, 5, 30_000)): 1,
        call("fchmodat", CWD, _PATH, _MODE): 1,
        call("fchmodat2", CWD, _PATH, _MODE, one(*_AT)): 1,
        call("fchownat", CWD, _PATH, _UNCHANGED, _UNCHANGED, one(*_AT)): 1,
        call("utimensat", CWD, _PATH, _TIMES, one(0, 0, 0, 0x100)): 1,
        st.builds(_set_attribute, _PATH, _ATTRIBUTE, st.binary(max_size=50), st.sampled_from((0, 0, 1, 2, 4))): 1,
        call("removexattr", _PATH, _ATTRIBUTE): 1,
    }
)
"""Of every kind, to every kind of thing, by every way there."""
