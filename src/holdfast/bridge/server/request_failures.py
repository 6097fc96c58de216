"""The answer to a request that has failed."""

from __future__ import annotations

import errno

from holdfast.model.errors import HoldfastError, out_of_space_errno
from holdfast.model.log import Log

_LOG = Log(__name__)


def errno_of_failure(error: Exception, opcode: str) -> int:
    """The errno for what an operation has raised, from where it is handled. An error of the store, or a mistake of our
    own, is EIO for the process that asked, and logged.
    """
    if isinstance(error, OSError):
        return error.errno or errno.EIO
    if isinstance(error, HoldfastError):
        _LOG.error("a request of a mount has failed: %s", error.message, opcode=opcode)
        return out_of_space_errno(error) or errno.EIO
    _LOG.exception("a request of a mount has failed by a mistake of Holdfast's own", opcode=opcode)
    return errno.EIO
