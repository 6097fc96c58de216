"""Errors of a request: as a `FormatError` here, and as an errno for the kernel."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from holdfast.model.errors import FormatError

if TYPE_CHECKING:
    from holdfast.model.errors import HoldfastError

UNKNOWN_OPCODE: Final = "unknown_opcode"
NAME_TOO_LONG: Final = "name_too_long"
OLD_PROTOCOL: Final = "old_protocol"

_ERRNOS: Final = {
    FormatError.code: errno.EINVAL,
    UNKNOWN_OPCODE: errno.ENOSYS,
    NAME_TOO_LONG: errno.ENAMETOOLONG,
    OLD_PROTOCOL: errno.EPROTO,
}


def errno_of(error: HoldfastError) -> int:
    """The errno to answer a request with after this package has raised ``error`` for it."""
    return _ERRNOS.get(error.code, errno.EIO)
