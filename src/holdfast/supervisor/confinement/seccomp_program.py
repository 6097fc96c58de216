"""The seccomp filter that sorts a process tree's system calls, as a program of the classic Berkeley packet filter.

It bisects by the number first, and reads arguments only of calls that may reach the keeper. For all other calls the
kernel found out, when the filter was installed, that it need not run the filter.

Sources: seccomp(2), ``Documentation/networking/filter.rst``, ``include/uapi/linux/seccomp.h``.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from holdfast.supervisor.syscalls.table import (
    ARCHITECTURES,
    F_SETFL,
    KEPT_IN,
    LAST_KNOWN,
    LOSING,
    LOSING_FLAGS,
    LOSING_IOCTLS,
    NOTIFIED,
    NOTIFIED_IOCTLS,
    NOTIFIED_PRCTLS,
    OPEN_FLAGS,
    PERMISSION_EVENTS,
    REFUSED,
    REFUSED_IOCTLS,
    STOLEN_TERMINAL,
    TARGETS,
    WAITED_FOR,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.supervisor.syscalls.table import TargetArgument

INSTRUCTION: Final = struct.Struct("=HBBI")
"""``struct sock_filter``: code, jump if true, jump if false, constant."""

KILL: Final = 0x80000000
ALLOW: Final = 0x7FFF0000
NOTIFY: Final = 0x7FC00000
ERRNO: Final = 0x00050000

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_ANY_OF = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K

_NUMBER_AT = 0
_AUDIT_AT = 4
_ARGUMENTS_AT = 16

_TMPFILE = 0o20000000  # without O_DIRECTORY, whose bit differs between machines
_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | _TMPFILE

_Block: TypeAlias = "list[tuple[int, int, int, int]]"

Hears: TypeAlias = Literal["changes", "targets", "nothing"]
"""The calls that a filter's listener receives: every change; only those that set attributes of other processes
(`TARGETS`) and those that wait (`WAITED_FOR`); or none, so that there is no listener.
"""


def program(machine: str, hears: Hears = "changes", *, guarded: bool = False) -> bytes:
    """The filter for processes of ``machine`` (as `os.uname` has it): an array of ``struct sock_filter``.

    Without ``changes`` it is for processes whose changes a mount records: it only refuses ways past the mount, or to
    our own processes (`KEPT_IN`). ``guarded``: the keeper receives `LOSING` calls, too. `KeyError` for an unsupported
    machine. Calls of another architecture end their process: with an errno it might continue as if they had worked.
    """
    target = ARCHITECTURES[machine]
    code: _Block = [(_LOAD, 0, 0, _AUDIT_AT), (_EQUAL, 1, 0, target.audit), (_RETURN, 0, 0, KILL)]
    code += [(_LOAD, 0, 0, _NUMBER_AT)]
    if target.foreign_bit:
        code += [(_ANY_OF, 0, 1, target.foreign_bit), (_RETURN, 0, 0, ERRNO | errno.ENOSYS)]
    blocks: dict[int, _Block] = {LAST_KNOWN + 1: [(_RETURN, 0, 0, ERRNO | errno.ENOSYS)]}
    for name, number in target.numbers.items():
        if guarded or name not in LOSING:
            blocks[number] = _block(name, guarded=guarded) if hears == "changes" else _quiet_block(name, hears)
    code += _search(_segments(blocks))
    return b"".join(INSTRUCTION.pack(*instruction) for instruction in code)


def _block(name: str, *, guarded: bool) -> _Block:
    """The answer to one call; every path through the block returns."""
    if name in REFUSED:
        return [(_RETURN, 0, 0, ERRNO | REFUSED[name])]
    if name in OPEN_FLAGS:
        return [
            (_LOAD, 0, 0, _low_half(OPEN_FLAGS[name])),
            (_ANY_OF, 1, 0, os.O_PATH),  # with it, the others mean nothing
            (_ANY_OF, 1, 0, _CHANGES),
            (_RETURN, 0, 0, ALLOW),
            (_RETURN, 0, 0, NOTIFY),
        ]
    if name == "ioctl":
        told = [*NOTIFIED_IOCTLS.values(), *(LOSING_IOCTLS if guarded else ())]
        return [*_stolen(), *_choice(1, dict.fromkeys(told, NOTIFY) | _refused_ioctls())]
    if name == "fcntl":
        return [
            (_LOAD, 0, 0, _low_half(1)),
            (_EQUAL, 0, 3, F_SETFL),
            (_LOAD, 0, 0, _low_half(2)),
            (_ANY_OF, 1, 0, os.O_APPEND),
            (_RETURN, 0, 0, NOTIFY),
            (_RETURN, 0, 0, ALLOW),
        ]
    if name in LOSING_FLAGS:
        argument, flags = LOSING_FLAGS[name]
        return [
            (_LOAD, 0, 0, _low_half(argument)),
            (_ANY_OF, 0, 1, flags),
            (_RETURN, 0, 0, NOTIFY),
            (_RETURN, 0, 0, ALLOW),
        ]
    if name == "fanotify_init":
        return _notices()
    if name == WAITED_FOR[0]:
        return [(_RETURN, 0, 0, ALLOW)]
    if name in TARGETS:
        return _aimed(TARGETS[name], NOTIFY)
    if name == "prctl":
        return _choice(0, dict.fromkeys(NOTIFIED_PRCTLS.values(), NOTIFY))
    assert name in NOTIFIED or name in LOSING
    return [(_RETURN, 0, 0, NOTIFY)]


def _quiet_block(name: str, hears: Hears) -> _Block:
    """The same where no keeper is notified of changes."""
    if name == "ioctl":
        return [*_stolen(), *_choice(1, _refused_ioctls())]
    if name == "fanotify_init":
        return _notices()
    if name == WAITED_FOR[0]:
        return _choice(WAITED_FOR[1], {WAITED_FOR[2]: NOTIFY if hears == "targets" else ALLOW})
    if name in TARGETS:
        return _aimed(TARGETS[name], NOTIFY if hears == "targets" else ERRNO | errno.EPERM)
    return [(_RETURN, 0, 0, ERRNO | KEPT_IN[name] if name in KEPT_IN else ALLOW)]


def _refused_ioctls() -> dict[int, int]:
    return {command: ERRNO | error for command, error in REFUSED_IOCTLS.items()}


def _notices() -> _Block:
    # With permission events the caller could delay every opening of a file, including the keeper's own.
    return [
        (_LOAD, 0, 0, _low_half(0)),
        (_ANY_OF, 0, 1, PERMISSION_EVENTS),
        (_RETURN, 0, 0, ERRNO | errno.EPERM),
        (_RETURN, 0, 0, ALLOW),
    ]


def _stolen() -> _Block:
    # TIOCSCTTY with this argument takes a terminal away from its session.
    command, argument = STOLEN_TERMINAL
    return [
        (_LOAD, 0, 0, _low_half(1)),
        (_EQUAL, 0, 3, command),
        (_LOAD, 0, 0, _low_half(2)),
        (_EQUAL, 0, 1, argument),
        (_RETURN, 0, 0, ERRNO | errno.EPERM),
    ]


def _aimed(target: TargetArgument, others: int) -> _Block:
    """The answer to a call that sets attributes of processes; ``others``: of any but the caller."""
    block: _Block = []
    if target.kind is not None:
        groups = (target.process + 1, target.process + 2)
        block += _when(target.kind, dict.fromkeys(groups, ERRNO | errno.EPERM))
    block += _when(target.pid, {0: ALLOW})
    if target.pointer is not None:
        low = _low_half(target.pointer)
        block += [
            (_LOAD, 0, 0, low),
            (_EQUAL, 0, 3, 0),
            (_LOAD, 0, 0, low + 4),
            (_EQUAL, 0, 1, 0),
            (_RETURN, 0, 0, ALLOW),
        ]
    return [*block, (_RETURN, 0, 0, others)]


def _choice(argument: int, answers: dict[int, int]) -> _Block:
    """The answer to a call with several operations, by the value of an argument; other values are allowed."""
    return [*_when(argument, answers), (_RETURN, 0, 0, ALLOW)]


def _when(argument: int, answers: dict[int, int]) -> _Block:
    """Returns the answer for the value of an argument; continues without one."""
    block: _Block = [(_LOAD, 0, 0, _low_half(argument))]
    for answer in dict.fromkeys(answers.values()):
        values = [value for value, its in answers.items() if its == answer]
        # Each jumps to the one return after them.
        block += [
            (_EQUAL, left, 0 if left else 1, value)
            for left, value in zip(range(len(values) - 1, -1, -1), values, strict=True)
        ]
        block += [(_RETURN, 0, 0, answer)]
    return block


def _segments(blocks: dict[int, _Block]) -> list[tuple[int, _Block]]:
    """All numbers from 0 on: where each stretch of equal treatment begins, and the treatment."""
    allow: _Block = [(_RETURN, 0, 0, ALLOW)]
    segments: list[tuple[int, _Block]] = [(0, allow)]
    for number in sorted(blocks):
        _begin(segments, number, blocks[number])
        if number <= LAST_KNOWN:
            _begin(segments, number + 1, allow)
    return segments


def _begin(segments: list[tuple[int, _Block]], number: int, block: _Block) -> None:
    if segments[-1][0] == number:
        segments.pop()
    if not segments or segments[-1][1] != block:
        segments.append((number, block))


def _search(segments: Sequence[tuple[int, _Block]]) -> _Block:
    """Find the segment of the loaded number, and run its block."""
    if len(segments) == 1:
        return segments[0][1]
    middle = len(segments) // 2
    below, above = _search(segments[:middle]), _search(segments[middle:])
    assert len(below) < 256, "a jump has eight bits"
    return [(_AT_LEAST, len(below), 0, segments[middle][0]), *below, *above]


def _low_half(argument: int) -> int:
    return _ARGUMENTS_AT + 8 * argument  # both machines are little-endian; the width of an int counts
