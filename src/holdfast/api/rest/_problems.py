"""Errors as HTTP has them: a status for each code, and the object of RFC 9457."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.api._error_details import FOR_CLIENTS, hint
from holdfast.model.errors import (
    ConfigError,
    EscapeError,
    HoldfastError,
    IntegrityError,
    LockedError,
    NotFoundError,
    QuotaError,
    RefusedError,
    StorageError,
    UnsupportedError,
    UsageError,
    out_of_space_errno,
)

if TYPE_CHECKING:
    from holdfast.model.answers.faces import Problem

TYPE: Final = "urn:holdfast:error:"

STATUS: Final[dict[str, int]] = {
    "unauthorized": 401,
    "forbidden": 403,
    "foreign_origin": 403,
    "foreign_host": 403,
    "no_such_route": 404,
    "bad_method": 405,
    "too_slow": 408,
    "too_large": 413,
    "bad_media_type": 415,
    "key_reused": 422,
    "too_many": 429,
    "shutting_down": 503,
    "no_room_for_streams": 503,
    "no_resources": 503,
    "promotion_stopped": 503,
    "still_running": 504,
}
"""The codes of this face alone, and those whose class does not say enough."""

_CLASSES: Final[tuple[tuple[type[HoldfastError], int], ...]] = (
    (ConfigError, 409),
    (UsageError, 400),
    (NotFoundError, 404),
    (EscapeError, 400),
    (QuotaError, 507),
    (LockedError, 409),
    (RefusedError, 409),
    (UnsupportedError, 501),
    (IntegrityError, 500),
    (StorageError, 503),
)

TITLES: Final = {
    400: "Bad request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    408: "Request timeout",
    409: "Conflict",
    413: "Content too large",
    415: "Unsupported media type",
    422: "Unprocessable content",
    429: "Too many requests",
    500: "Internal error",
    501: "Not implemented",
    503: "Unavailable",
    504: "Still running",
    507: "Insufficient storage",
}


class WebError(HoldfastError):
    """Refused by this face; ``headers`` go with the answer."""

    def __init__(self, code: str, message: str, *, hint: str | None = None, **headers: str) -> None:
        super().__init__(message, hint=hint, code=code)
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def status_of(error: HoldfastError) -> int:
    """The status of an error."""
    known = STATUS.get(error.code)
    if known is not None:
        return known
    if out_of_space_errno(error):
        return 507
    return next((status for kind, status in _CLASSES if isinstance(error, kind)), 500)


def problem(error: HoldfastError, request_id: str) -> Problem:
    """The problem object of an error. For a fault of Holdfast it only says that the log has the details."""
    status = status_of(error)
    detail = error.message if error.code != "bug" else "this is a bug of Holdfast; its log tells more"
    return {
        "type": TYPE + error.code,
        "title": TITLES.get(status, "Error"),
        "status": status,
        "detail": detail,
        "code": error.code,
        "hint": hint(error, FOR_CLIENTS),
        "data": None if error.data is None else dict(error.data),
        "request_id": request_id,
    }
