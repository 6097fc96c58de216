"""Processes of ours that run a module independently, and report their outcome: one JSON object."""

from __future__ import annotations

import json
from typing import Any

from holdfast.model.errors import FormatError, HoldfastError, rebuilt
from holdfast.model.fast_namedtuple import NamedTuple


class ProcessOutcome(NamedTuple):
    """Its outcome."""

    exit_code: int = 0
    kind: str = ""
    """The class of the error, if there was one."""
    code: str = ""
    message: str = ""
    hint: str | None = None

    @property
    def error(self) -> HoldfastError | None:
        """The error, if there was one."""
        return rebuilt(self.kind, self.message, hint=self.hint, code=self.code) if self.kind else None

    def encode(self) -> bytes:
        """The outcome as bytes."""
        return json.dumps(self._asdict()).encode()


def decode_outcome(said: bytes) -> ProcessOutcome:
    """Decode an outcome. Raises `FormatError` if the process was ended before it reported one."""
    try:
        fields: dict[str, Any] = json.loads(said)
        return ProcessOutcome(**fields)
    except (ValueError, TypeError) as error:
        raise FormatError("a process of ours has said something else than how it fared") from error


def failed_outcome(error: HoldfastError) -> ProcessOutcome:
    """The outcome of a failure."""
    return ProcessOutcome(kind=type(error).__name__, code=error.code, message=error.message, hint=error.hint)
