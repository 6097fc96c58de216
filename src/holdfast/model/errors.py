"""Every error that Holdfast raises on purpose: one flat hierarchy with stable codes.

An error says what happened, on which path or id, and (``hint``) what to do next. ``code`` is part of the contract
and never changes its meaning; ``exit_code`` is what the command line ends with. Each edge translates once.
"""

from __future__ import annotations

import errno
import os

from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final


class HoldfastError(Exception):
    """An operation failed (exit 1). Raised itself only where no subclass fits."""

    code: str = "failed"
    exit_code: int = 1

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        code: str | None = None,
        data: Mapping[str, object] | None = None,
    ) -> None:
        """``hint`` is for the command line; ``data``, as JSON has it, for who goes by ids, and not by words."""
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.data = data
        if code is not None:
            self.code = code


class UsageError(HoldfastError):
    """The request is wrong: a bad argument, a name that means two things (exit 2)."""

    code = "usage"
    exit_code = 2


class ConfigError(UsageError):
    """The configuration has an unknown key or a bad value. The message names the file, variable or flag, the
    key and the reason.
    """

    code = "bad_config"


class NotFoundError(HoldfastError):
    """No such workspace, checkpoint or path (exit 3)."""

    code = "not_found"
    exit_code = 3


class RefusedError(HoldfastError):
    """Refused for protection: a conflict, a lock, a dangerous root, a live fork (exit 4). The hint tells how to force
    it.
    """

    code = "refused"
    exit_code = 4


class LockedError(RefusedError):
    """Another process has held a required lock for too long (exit 4)."""

    code = "locked"


class QuotaError(RefusedError):
    """The store is at its quota and retention could not make room; nothing was lost (exit 4)."""

    code = "quota"


class HeldError(RefusedError):
    """A safeguard holds an operation until a person decides; none of it has happened."""

    code = "held"

    def __init__(self, ticket: int, message: str, step: int = 0) -> None:
        """``ticket`` is the number for the answer; 0 if no person is asked. ``step`` is the step of the operation."""
        super().__init__(message, hint=f"holdfast safeguard allow {ticket} lets it happen")
        self.ticket = ticket
        self.step = step


class IntegrityError(HoldfastError):
    """Stored bytes are damaged or missing (exit 5)."""

    code = "integrity"
    exit_code = 5


class FormatError(IntegrityError):
    """Input is not in the format it claims, or in a newer version (exit 5). The message names the field."""

    code = "bad_format"


class EscapeError(RefusedError):
    """A path leads outside the workspace, through a link, or is never allowed (exit 4)."""

    code = "escape"


class StorageError(HoldfastError):
    """The operating system refused a write or a sync: disk full, I/O error, no permission. The store stays sound
    (exit 1).
    """

    code = "storage"


_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


def out_of_space_errno(error: HoldfastError) -> int:
    """The errno, if it was raised because a disk is full or a quota is reached; else 0."""
    cause = error.__cause__
    return cause.errno if isinstance(cause, OSError) and cause.errno in _NO_ROOM else 0


def room_hint(error: OSError) -> str | None:
    """The hint for a full disk or a reached quota; None if ``error`` is neither."""
    return "free some space and try again; saved data is not affected" if error.errno in _NO_ROOM else None


class ConnectionLostError(StorageError):
    """The connection to a remote catalog broke, or the database aborted a transaction. Another transaction was in its
    way. Nothing of the transaction was kept, so it may be repeated (exit 1).
    """

    code = "connection_lost"


class UnsupportedError(HoldfastError):
    """The platform, kernel or file system cannot do it (exit 1)."""

    code = "unsupported"


class ChannelError(HoldfastError):
    """The remote executor of commands is gone, silent, or violates the protocol (exit 1). Its channel is of no further
    use.
    """

    code = "channel"


class MachineError(HoldfastError):
    """A virtual machine has ended, or does not answer (exit 1). The code says which: ``vm_not_started``, ``vm_hung``,
    ``vm_crashed`` or ``vm_killed``; the message has the last lines of its console.
    """

    code = "vm_crashed"


def unexpected(error: Exception) -> HoldfastError:
    """The message for an error that Holdfast did not raise on purpose: an error of the system, a lack of memory or
    threads, or a fault of its own (code ``bug``).
    """
    if isinstance(error, OSError):
        where = f": {os.fsdecode(error.filename)}" if error.filename else ""
        return StorageError(f"{error.strerror or error}{where}")
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "start new thread" in str(error)):
        return StorageError(
            "this process may not have more memory" if isinstance(error, MemoryError) else "no thread can be started",
            hint="raise its limits (ulimit -v, ulimit -u, those of its container); saved data is not affected",
            code="no_resources",
        )
    return HoldfastError(f"this is a bug: {type(error).__name__}: {error}", code="bug")


def rebuilt(
    kind: str, message: str, *, hint: str | None, code: str, data: Mapping[str, object] | None = None
) -> HoldfastError:
    """The error that another of our processes raised, from the name of its class and its fields."""
    found = globals().get(kind)
    if not (isinstance(found, type) and issubclass(found, HoldfastError)) or found is HeldError:
        found = HoldfastError
    return found(message, hint=hint, code=code, data=data)
