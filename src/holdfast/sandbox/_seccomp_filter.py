"""The system calls that a box refuses because no namespace isolates their objects. Pure.

Sources: seccomp(2), tty_ioctl(4), keyrings(7), vsock(7); for the numbers, those of
`holdfast.supervisor.syscalls.table`.
"""

from __future__ import annotations

import errno
from typing import Final

from holdfast.supervisor.confinement.seccomp_program import ALLOW, ERRNO, INSTRUCTION, KILL
from holdfast.supervisor.syscalls.table import ARCHITECTURES

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _AUDIT_AT, _ARGUMENTS_AT = 0, 4, 16

_TIOCSTI = 0x5412
"""Types into the terminal that the box shares with the process that started it."""
_TIOCLINUX = 0x541C
"""Pastes into a virtual console."""
_AF_VSOCK = 40
"""Sockets to the machine below this one, or to those on it."""

_NUMBERS: Final = {
    "x86_64": {"ioctl": 16, "socket": 41, "add_key": 248, "request_key": 249, "keyctl": 250},
    "aarch64": {"ioctl": 29, "socket": 198, "add_key": 217, "request_key": 218, "keyctl": 219},
}
_KEYRINGS: Final = ("add_key", "request_key", "keyctl")
"""The session's keyring would be that of the process that started the box."""


def program(machine: str) -> bytes:
    """The filter for processes of ``machine``: an array of ``struct sock_filter``. `KeyError` for another machine."""
    numbers = _NUMBERS[machine]
    target = ARCHITECTURES[machine]
    code = [
        (_LOAD, 0, 0, _AUDIT_AT),
        (_EQUAL, 1, 0, target.audit),
        (_RETURN, 0, 0, KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    if target.foreign_bit:
        code += [(_AT_LEAST, 0, 1, target.foreign_bit), (_RETURN, 0, 0, ERRNO | errno.ENOSYS)]
    for name in _KEYRINGS:
        code += [(_EQUAL, 0, 1, numbers[name]), (_RETURN, 0, 0, ERRNO | errno.ENOSYS)]
    code += _refuse(numbers["ioctl"], 1, (_TIOCSTI, _TIOCLINUX), errno.EPERM)
    code += _refuse(numbers["socket"], 0, (_AF_VSOCK,), errno.EAFNOSUPPORT)
    code += [(_RETURN, 0, 0, ALLOW)]
    return b"".join(INSTRUCTION.pack(*instruction) for instruction in code)


def _refuse(number: int, argument: int, values: tuple[int, ...], error: int) -> list[tuple[int, int, int, int]]:
    """For one call: fail if an argument is one of ``values``, else allow; leaves the number loaded for other calls."""
    checks: list[tuple[int, int, int, int]] = [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument)]
    for value in values:
        checks += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, ERRNO | error)]
    checks += [(_RETURN, 0, 0, ALLOW)]
    return [(_EQUAL, 0, len(checks), number), *checks]
