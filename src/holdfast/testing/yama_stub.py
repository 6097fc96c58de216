"""Simulates Yama where the kernel has none: a keeper that may not inspect processes, whatever their parents are.

A filter fails the calls that Yama fails with ``kernel.yama.ptrace_scope`` of 1; in the keeper alone, so that the
parents of its trees keep their abilities.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from typing import TYPE_CHECKING

from holdfast.processes import forked_process

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

_NUMBERS = {"x86_64": (101, 310, 438), "aarch64": (117, 270, 438)}
"""Of ``ptrace``, ``process_vm_readv`` and ``pidfd_getfd``."""
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2

_KEEPER = "holdfast.supervisor.keeper.keeper"
_AS_PYTHON_STARTS = """
from holdfast.testing.yama_stub import start_blind_keepers
start_blind_keepers()
"""


def keepers_that_see_nothing(folder: Path) -> str:
    """A directory, made in ``folder``: keepers of programs that are started with it in ``PYTHONPATH`` do
    `see_nothing`.
    """
    place = folder / "blind"
    place.mkdir()
    (place / "sitecustomize.py").write_text(_AS_PYTHON_STARTS)
    return str(place)


def start_blind_keepers() -> None:
    """From now on this process starts `main` where it would start a keeper."""
    start = forked_process.start

    def start_blind(
        module: str,
        channel: int,
        *,
        passed: Collection[int] = (),
        streams: tuple[int, int, int] | None = None,
        own_session: bool = False,
    ) -> int:
        module = __name__ if module == _KEEPER else module
        return start(module, channel, passed=passed, streams=streams, own_session=own_session)

    forked_process.start = start_blind


def main(fd: int) -> int:
    """Be a keeper that sees nothing."""
    from holdfast.supervisor.keeper import keeper

    see_nothing()
    return keeper.main(fd)


def see_nothing() -> None:
    """From now on this process neither traces others, nor reads their memory, nor takes their descriptors: EPERM."""
    refuse_calls(_NUMBERS[os.uname().machine])


def refuse_calls(numbers: Iterable[int]) -> None:
    """From now on these system calls of this process fail with EPERM."""
    # (Python programs in the run load this module, too.)
    from holdfast.supervisor.confinement.seccomp_notify import give_up_privileges
    from holdfast.supervisor.confinement.seccomp_program import ALLOW, ERRNO, INSTRUCTION

    refused = [(_EQUAL, 0, 1, number) for number in numbers]
    code = [(_LOAD, 0, 0, 0)]
    for comparison in refused:
        code += [comparison, (_RETURN, 0, 0, ERRNO | errno.EPERM)]
    code.append((_RETURN, 0, 0, ALLOW))
    text = b"".join(INSTRUCTION.pack(*instruction) for instruction in code)

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    give_up_privileges()
    if ctypes.CDLL(None).prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(Program(len(code), text))):
        raise OSError("there is no seccomp here")


if __name__ == "__main__":
    forked_process.allow_forks()
    sys.exit(main(int(sys.argv[1])))
