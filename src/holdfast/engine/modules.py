"""Modules of ours that run as processes of their own, and say on a socket how they fared: one MessagePack object."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec

from holdfast.model.errors import HoldfastError, rebuilt

if TYPE_CHECKING:
    import socket


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How it fared."""

    exit_code: int = 0
    kind: str = ""
    """The class of the error, if there was one."""
    code: str = ""
    message: str = ""
    hint: str | None = None

    @property
    def error(self) -> HoldfastError | None:
        """What went wrong, if anything did."""
        return rebuilt(self.kind, self.message, hint=self.hint, code=self.code) if self.kind else None


def failure(error: HoldfastError) -> Outcome:
    """That it has failed."""
    return Outcome(kind=type(error).__name__, code=error.code, message=error.message, hint=error.hint)


def start(module: str, its: socket.socket, *, stdin: int, stdout: int) -> subprocess.Popen[bytes]:
    """Run a module, which inherits its end of a pair of sockets and is told that number. Raises `OSError`.

    What lies in the current directory is none of its modules; the signals of our terminal are not for it; and it is in
    the root directory, so that it keeps no other busy.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, str(its.fileno())],
        stdin=stdin,
        stdout=stdout,
        pass_fds=[its.fileno()],
        start_new_session=True,
        cwd="/",
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
