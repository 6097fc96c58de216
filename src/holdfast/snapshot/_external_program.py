"""Runs a program that is none of ours: no shell, nothing of ours but its input, and an end to it, come what may."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import time
from types import MappingProxyType
from typing import TYPE_CHECKING

from holdfast.model.errors import StorageError, UnsupportedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.snapshot.kill_on_exit import ends_with_us

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MAX_ERRORS = 8192
_PIECE = 1 << 16


class ProgramResult(NamedTuple):
    """How a program ended."""

    code: int
    out: bytes
    errors: str
    """The beginning of what it wrote to its standard error."""


class _Gate:
    """Holds a program back until it may begin: its limits are there by then. Closed before, it never begins."""

    def __init__(self) -> None:
        self.held, self._free = os.pipe2(os.O_CLOEXEC)
        self.words = ("/bin/sh", "-c", 'read -r word < "$0" && exec "$@"', f"/proc/self/fd/{self.held}")
        """What waits, and becomes the program whose words follow; `held` is to be passed to it."""

    def open(self) -> None:
        """Let it begin."""
        os.write(self._free, b"\n")

    def close(self) -> None:
        """Be done with it."""
        os.close(self.held)
        os.close(self._free)


class ProgramLimits(NamedTuple):
    """How much a program may take."""

    output: int
    """Bytes that it may write to its standard output."""
    seconds: float
    slow: str
    """The code of the error when it takes longer."""
    hint: str | None = None
    """And the hint."""
    resources: Mapping[int, int] = MappingProxyType({})
    """Limits of `resource`, by their numbers there."""


def execute(
    words: Sequence[str | bytes],
    environ: Mapping[str, str | bytes],
    directory: bytes,
    limits: ProgramLimits,
    *,
    stdin: bytes = b"",
) -> ProgramResult:
    """Run a program in a session of its own, with nothing of ours but its standard input; none of it is left when this
    returns or raises, nor when this process is killed.

    Raises `StorageError` if it takes too long, `UnsupportedError` if it writes too much, `OSError`.
    """
    given = os.memfd_create("stdin", os.MFD_CLOEXEC)
    gate = _Gate() if limits.resources else None
    try:
        with open(given, "wb", closefd=False) as file:
            file.write(stdin)
        os.lseek(given, 0, os.SEEK_SET)
        child = subprocess.Popen(
            words if gate is None else [*gate.words, *words],
            env=environ,
            cwd=directory,
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=() if gate is None else (gate.held,),
        )
    except BaseException:
        if gate is not None:
            gate.close()
        raise
    finally:
        os.close(given)
    name = os.path.basename(os.fsdecode(words[0]))
    with ends_with_us(child.pid):
        try:
            if gate is not None:
                try:
                    for kind, most in limits.resources.items():
                        resource.prlimit(child.pid, kind, (most, most))
                    gate.open()
                finally:
                    gate.close()
            try:
                out, errors = _read(child, time.monotonic() + limits.seconds, limits.output)
            except TimeoutError:
                raise StorageError(
                    f"{name} was stopped, as it took too long", hint=limits.hint, code=limits.slow
                ) from None
            if len(out) > limits.output:
                raise UnsupportedError(
                    f"{name} says more than {limits.output} bytes: there is too much for this provider"
                )
            return ProgramResult(child.wait(), out, errors)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            for stream in (child.stdout, child.stderr):
                assert stream is not None
                stream.close()


def error_line(errors: str, beginnings: tuple[str, ...]) -> str:
    """The line of an output that says why: the first that has one of the ``beginnings``, or the last."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    chosen = next((line for line in lines if line.startswith(beginnings)), lines[-1] if lines else "no reason")
    return "".join(char if char.isprintable() else "?" for char in chosen)[:300]


def _read(child: subprocess.Popen[bytes], until: float, limit: int) -> tuple[bytes, str]:
    """What it writes, to its end or until it is more than ``limit`` bytes. Raises `TimeoutError`."""
    assert child.stdout is not None
    assert child.stderr is not None
    out, errors = bytearray(), bytearray()
    poll = select.poll()
    streams = {child.stdout.fileno(): out, child.stderr.fileno(): errors}
    for fd in streams:
        poll.register(fd, select.POLLIN)
    while streams and len(out) <= limit:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        for fd, _ in poll.poll(left * 1000):
            piece = os.read(fd, _PIECE)
            if not piece:
                poll.unregister(fd)
                del streams[fd]
            elif fd == child.stderr.fileno():
                errors += piece[: _MAX_ERRORS - len(errors)]
            else:
                out += piece
    return bytes(out), errors.decode("utf-8", "replace")
