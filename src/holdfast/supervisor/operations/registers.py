"""The arguments of system calls as they lie in registers."""

from __future__ import annotations

import errno
import os


def integer(register: int) -> int:
    """A C ``int``."""
    return (register & 0xFFFFFFFF ^ 0x80000000) - 0x80000000


def unsigned(register: int) -> int:
    """A C ``unsigned int``."""
    return register & 0xFFFFFFFF


def os_error(number: int) -> OSError:
    """The error with a number, to be raised."""
    return OSError(number, os.strerror(number))


def check_flags(flags: int, known: int) -> None:
    """Raise EINVAL if ``flags`` hold anything that is not ``known``."""
    if flags & ~known:
        raise os_error(errno.EINVAL)
