"""Trees and system calls at random."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

CWD = (1 << 64) - 100
NAMES = (
    b"a", b"b", b"c", b"d", b"x", b"y", b"new", b"other", b".", b"to-a", b"to-x", b"dangling", b"outside", b"loop",
    b"by-proc", b"made", b"fifo",
)  # fmt: skip


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


def some_call(chance: random.Random) -> tuple[str, tuple[int | bytes, ...]]:
    """A call of the kind that every machine has, and its arguments."""

    def path() -> bytes:
        names = chance.choices(NAMES, k=chance.choice((1, 1, 2, 2, 3)))
        return b"/".join(names) + chance.choice((b"",) * 12 + (b"/", b"/.", b"/.."))

    mode = chance.choice((0o777, 0o644, 0o4755, 0o1777, 0o2755))
    flags = os.O_NONBLOCK | chance.choice((os.O_WRONLY, os.O_RDWR))
    flags |= chance.choice((0, os.O_CREAT)) | chance.choice((0, os.O_TRUNC)) | chance.choice((0, 0, os.O_EXCL))
    flags |= chance.choice((0, 0, 0, os.O_NOFOLLOW, os.O_DIRECTORY, os.O_APPEND))
    how = struct.pack("QQQ", flags, mode if flags & os.O_CREAT else 0, chance.choice((0, 1, 2, 4, 8, 16)))
    at = chance.choice((0, 0, 0x100, 0x1000))
    times = struct.pack("qqqq", 5, 6, chance.randrange(10**9), chance.choice((7, (1 << 30) - 1, (1 << 30) - 2, 10**9)))
    value = chance.randbytes(chance.choice((0, 3, 50)))
    attribute = chance.choice((b"user.a", b"user.b", b"", b"bad"))
    calls: tuple[tuple[str, tuple[int | bytes, ...]], ...] = (
        *(("openat", (CWD, path(), flags, mode)),) * 4,
        ("openat2", (CWD, path(), how, 24)),
        *(("mkdirat", (CWD, path(), mode)),) * 2,
        *(("unlinkat", (CWD, path(), chance.choice((0, 0x200)))),) * 2,
        *(("renameat2", (CWD, path(), CWD, path(), chance.choice((0, 0, 0, 1, 2, 3)))),) * 4,
        *(("linkat", (CWD, path(), CWD, path(), chance.choice((0, 0x400)))),) * 2,
        ("symlinkat", (path(), CWD, path())),
        ("mknodat", (CWD, path(), chance.choice((0o100644, 0o10600, 0o140755, 0o40755)), 0)),
        ("truncate", (path(), chance.choice((0, 5, 30_000)))),
        ("fchmodat", (CWD, path(), mode)),
        ("fchmodat2", (CWD, path(), mode, at)),
        ("fchownat", (CWD, path(), 0xFFFFFFFF, 0xFFFFFFFF, at)),
        ("utimensat", (CWD, path(), times, at & 0x100)),
        ("setxattr", (path(), attribute, value, len(value), chance.choice((0, 0, 1, 2, 4)))),
        ("removexattr", (path(), attribute)),
    )
    return chance.choice(calls)
