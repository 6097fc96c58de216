"""A promotion in a process of its own: a long build goes on when its server is killed, a stopping server interrupts it
like Ctrl-C, and its tenant's settings are its environment.

The process is the command line's, with a list of arguments and no shell; it reports its progress on standard output.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

import msgspec

from holdfast.model.errors import (
    HoldfastError,
    IntegrityError,
    LockedError,
    NotFoundError,
    RefusedError,
    StorageError,
    UsageError,
)
from holdfast.model.log import Log
from holdfast.model.message_text import visible
from holdfast.processes.helper_process import module_words, start_in_own_session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.engine.promotion.build_isolation import BuildIsolation
    from holdfast.engine.promotion.spec import DecidedFile

_LOG = Log(__name__)
_MOST_LINE = 1 << 20
_MOST_ERRORS = 256 << 10
_KINDS: Mapping[int, type[HoldfastError]] = {2: UsageError, 3: NotFoundError, 4: RefusedError, 5: IntegrityError}
"""By the command line's exit code."""
_LOCKED = frozenset(("locked", "promotion_busy", "taken_over"))
ENDING = "shutting_down"
"""The code of a promotion that was not made because its server ends."""


class PromotionProcesses:
    """The processes that make promotions for this one. For any thread."""

    def __init__(self, home: bytes, isolation: BuildIsolation) -> None:
        """``isolation``: where their commands run, as it was found at the start."""
        self.isolation: Final = isolation
        self._home = home
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def promote(
        self,
        words: Sequence[bytes],
        settings: Mapping[str, str],
        tell: Callable[[str], None],
        decided: Sequence[DecidedFile] = (),
    ) -> HoldfastError | None:
        """Run ``holdfast promote`` with these ``words``, and wait for it; its refusal, or None.

        ``settings`` are variables of its environment; it reads the decisions ``decided`` from a file; ``tell`` is
        called with the name of each step that begins. Its result is in the catalog, even if this returns an error:
        callers look there first. The process completes even if this one is killed.
        """
        # As its standard input: such a file has no name that others could find, and needs no removal.
        read = ["--decisions=/dev/stdin"] if decided else []
        line = [*module_words("holdfast", "--home"), self._home, "--json", "promote", "--steps", *read, *words]
        with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as given:
            given.write(msgspec.json.encode(decided))
            given.flush()
            try:
                with self._lock:
                    if self._ended:
                        return _ending()
                    # In the root directory, so that a checkpoint's name cannot be a directory.
                    child = start_in_own_session(
                        line,
                        stdin=given.fileno() if decided else subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=errors.fileno(),
                        environment={**os.environ, **settings},
                    )
                    self._running.add(child)
            except OSError as error:
                return StorageError(f"no process can be started for it: {error.strerror}", code="no_resources")
            try:
                assert child.stdout is not None
                with child.stdout:
                    _follow(child.stdout, tell)
                code = child.wait()
            finally:
                with self._lock:
                    self._running.discard(child)
            return self._said(code, errors)

    def end(self) -> None:
        """Interrupt the running ones: builds that were not swapped yet are removed. No new one starts."""
        with self._lock:
            self._ended = True
            for child in self._running:
                with suppress(ProcessLookupError):
                    child.send_signal(signal.SIGTERM)

    def _said(self, code: int, errors: BinaryIO) -> HoldfastError | None:
        errors.seek(0)
        found: dict[str, Any] | None = None
        for line in errors.read(_MOST_ERRORS).splitlines():
            said = _object(line)
            if isinstance(said.get("error"), dict):
                found = said["error"]
            elif said.get("level") in ("warn", "error"):
                _LOG.warning("promotion: %s", visible(str(said.get("message", "")))[:4000])
        if code and self._ended:
            return _ending()
        if found is None:
            if code >= 0 and code < 128:
                return None
            return HoldfastError(
                "the process that made the promotion was ended",
                hint="the same request with its Idempotency-Key, or `holdfast promote --resume`, "
                "continues it; the next promotion takes it back",
                code="promotion_stopped",
            )
        name = str(found.get("code"))
        kind = LockedError if name in _LOCKED else _KINDS.get(code, HoldfastError)
        hint = found.get("hint")
        return kind(str(found.get("message")), hint=hint if isinstance(hint, str) else None, code=name)


def _ending() -> HoldfastError:
    return HoldfastError("the server is being stopped", hint="try again soon", code=ENDING)


def _follow(out: Any, tell: Callable[[str], None]) -> None:
    while line := out.readline(_MOST_LINE):
        step = _object(line).get("step")
        if isinstance(step, str):
            tell(step)


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
