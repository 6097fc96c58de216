"""The programs that virtual machines need."""

from __future__ import annotations

import os
from functools import cache

from holdfast.model.errors import UnsupportedError
from holdfast.processes.child import Limits, run
from holdfast.sandbox import namespace

_SECONDS = 20.0


def find_program(name: str, package: str) -> str:
    """Where a program is. Raises `UnsupportedError` naming the package that has it."""
    return namespace.find_program(name, package, needed_by="virtual machines need")


def find_qemu() -> str:
    """The emulator. Raises `UnsupportedError`."""
    if (machine := os.uname().machine) != "x86_64":
        raise UnsupportedError(f"virtual machines are not made on {machine} yet, but on x86_64")
    return find_program("qemu-system-x86_64", "qemu-system-x86")


def qemu_version(program: str) -> str:
    """The first line of its version output; empty without one."""
    found = os.stat(program)
    return _version(program, found.st_ino, found.st_mtime_ns)


@cache
def _version(program: str, _inode: int, _mtime_ns: int) -> str:
    ended = run([program, "--version"], Limits(_SECONDS, 1 << 16))
    return ended.output.partition(b"\n")[0].decode("utf-8", "replace")
