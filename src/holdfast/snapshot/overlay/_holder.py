"""The process that holds an overlay: starting it, finding it, ending it. See
`holdfast.snapshot.overlay.namespace_process`.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from holdfast.model.errors import RefusedError, StorageError, rebuilt
from holdfast.processes.child import Limits, run
from holdfast.snapshot.overlay.namespace_process import arguments, holder_of

if TYPE_CHECKING:
    from collections.abc import Generator

_SECONDS: Final = 60.0
_HALF_HOUR: Final = 1800.0
_MOST_SAID: Final = 64 << 10


def start(held: bytes, root: bytes, layers: tuple[bytes, ...]) -> None:
    """Start a process that holds the layers, mounted on ``root``; ``held`` is its identifying file. It outlives this
    process. Raises as `mount_overlay`, and `OSError`.
    """
    _run(_SECONDS, "hold", held, root, *layers)


def write_out(merged: bytes, target: bytes, layers: tuple[bytes, ...]) -> None:
    """Make the new directory ``target`` a copy of what the layers are together. Raises as `start`."""
    _run(_HALF_HOUR, "write_out", merged, target, *layers)


def probe(directory: bytes) -> None:
    """Raise `HoldfastError` where no overlay can be mounted in a namespace. Changes nothing in the directory."""
    _run(_SECONDS, "probe", directory)


def enter(held: bytes) -> tuple[bytes, ...]:
    """The prefix of a command that makes it run where the overlay is mounted."""
    return tuple(arguments("enter", held))


def is_held(held: bytes) -> bool:
    """Whether a process holds it. Raises `OSError`."""
    fd = os.open(held, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return holder_of(fd) is not None
    finally:
        os.close(fd)


@contextmanager
def without_holder(held: bytes) -> Generator[None]:
    """For the length of the block no process holds it: one that does is killed. Nothing there is no error. Raises
    `OSError`; `RefusedError` where that cannot be done.
    """
    try:
        fd = os.open(held, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield
        return
    try:
        while not _taken(fd):
            process = holder_of(fd)
            if process == 0:
                raise RefusedError(
                    "an overlay is held by a process that cannot be seen from here",
                    hint="clean up where it was prepared, such as outside of the container",
                    code="in_use",
                )
            if process is not None:
                _end(fd, process)
        yield
    finally:
        os.close(fd)


def _taken(fd: int) -> bool:
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _end(fd: int, process: int) -> None:
    with suppress(ProcessLookupError), open(os.pidfd_open(process), "rb", buffering=0) as pidfd:
        if holder_of(fd) != process:  # the number may be another one's by now
            return
        signal.pidfd_send_signal(pidfd.fileno(), signal.SIGKILL)
        if not select.select([pidfd], [], [], _SECONDS)[0]:
            raise StorageError(f"the process {process}, which holds an overlay, does not end")


def _run(seconds: float, verb: str, *words: bytes) -> None:
    done = run(arguments(verb, *words), Limits(seconds, _MOST_SAID), cwd=b"/", environment={})
    if done.why == "time":
        raise StorageError(f"an overlay could not be mounted in {seconds:.0f} s")
    if done.code == 0:
        return
    try:
        said: dict[str, Any] = json.loads(done.output)
        found = rebuilt(said["kind"], said["message"], hint=said["hint"], code=said["code"])
    except (ValueError, TypeError, KeyError) as error:
        why = done.errors.decode("utf-8", "replace").strip()[-500:]
        raise StorageError(f"the process that was to mount an overlay was ended: {why or done.code}") from error
    raise found
