"""Runs an external program for a provider, with limits whose violations are distinct errors."""

from __future__ import annotations

import os
import resource
from types import MappingProxyType
from typing import TYPE_CHECKING

from holdfast.model.errors import StorageError, UnsupportedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.processes.child import Limits, run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ULIMITS: Mapping[int, tuple[str, int]] = {
    resource.RLIMIT_AS: ("-v", 1024),
    resource.RLIMIT_FSIZE: ("-f", 512),
    resource.RLIMIT_CORE: ("-c", 512),
    resource.RLIMIT_NOFILE: ("-n", 1),
}
"""A shell's option for a limit, and its unit in bytes."""


class ProgramResult(NamedTuple):
    """How a program ended."""

    code: int
    out: bytes
    errors: str
    """The beginning and the end of its standard error."""


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
    """Limits of `resource`, by their numbers there, rounded up to what a shell counts."""


def execute(
    words: Sequence[str | bytes],
    environ: Mapping[str, str | bytes],
    directory: bytes,
    limits: ProgramLimits,
    *,
    stdin: bytes = b"",
) -> ProgramResult:
    """Run a program in a session of its own, with nothing of ours but its standard input; its process group has ended
    when this returns or raises, and also when this process is killed.

    Raises `StorageError` if it takes too long, `UnsupportedError` if it writes too much, `OSError`.
    """
    ended = run(
        [*_limited(limits.resources), *words],
        Limits(limits.seconds, limits.output),
        stdin=stdin,
        cwd=directory,
        environment=environ,
    )
    name = os.path.basename(os.fsdecode(words[0]))
    if ended.why == "time":
        raise StorageError(f"{name} was stopped, as it took too long", hint=limits.hint, code=limits.slow)
    if ended.why == "output":
        raise UnsupportedError(f"{name} says more than {limits.output} bytes: there is too much for this provider")
    return ProgramResult(ended.code, ended.output, ended.errors.decode("utf-8", "replace"))


def _limited(resources: Mapping[int, int]) -> Sequence[str]:
    """The words before a program that set these limits, or else do not start it."""
    if not resources:
        return ()
    set_all = "".join(
        f"ulimit {name} {-(-most // unit)} && " for kind, most in resources.items() for name, unit in (_ULIMITS[kind],)
    )
    return ("/bin/sh", "-c", f'{set_all}exec "$@"', "sh")


def error_line(errors: str, beginnings: tuple[str, ...]) -> str:
    """The line of an output that says why: the first that has one of the ``beginnings``, or the last."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    chosen = next((line for line in lines if line.startswith(beginnings)), lines[-1] if lines else "no reason")
    return "".join(char if char.isprintable() else "?" for char in chosen)[:300]
