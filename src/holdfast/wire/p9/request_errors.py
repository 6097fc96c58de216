"""The errors of requests: codes of `HoldfastError` here, and an errno of Linux for the client."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from holdfast.model.errors import FormatError

if TYPE_CHECKING:
    from holdfast.model.errors import HoldfastError

UNKNOWN_TYPE: Final = "unknown_type"
NAME_TOO_LONG: Final = "name_too_long"
BAD_FID: Final = "bad_fid"
BAD_TAG: Final = "bad_tag"
BAD_FRAME: Final = "bad_frame"
FID_BUSY: Final = "fid_busy"
TOO_MANY: Final = "too_many"
NO_VERSION: Final = "no_version"
SMALL_MSIZE: Final = "small_msize"

_ERRNOS: Final = {
    FormatError.code: errno.EINVAL,
    UNKNOWN_TYPE: errno.EOPNOTSUPP,
    NAME_TOO_LONG: errno.ENAMETOOLONG,
    BAD_FID: errno.EBADF,
    BAD_TAG: errno.EPROTO,
    BAD_FRAME: errno.EPROTO,
    FID_BUSY: errno.EBUSY,
    TOO_MANY: errno.ENFILE,
    NO_VERSION: errno.EPROTO,
    SMALL_MSIZE: errno.EMSGSIZE,
}


def errno_of(error: HoldfastError) -> int:
    """The errno to answer a request with after this package has raised ``error`` for it."""
    return _ERRNOS.get(error.code, errno.EIO)
