"""Running a child to its end: with input, and limits of time and output; none of its processes is left.

| | ends with it, and if this process is killed | for |
| --- | --- | --- |
| `run` | its process group | programs that we know, such as Git |
| `run_contained`, `run_contained_to_file` | all its descendants, daemons too | commands of the user's |
| `run_at_terminal` | at its time: itself, and its descendants | programs that may ask the user questions |
| `run_with_input_at_terminal` | nothing: the user ends it | a pager |

A contained one has a process of ours as its parent (`holdfast.processes.reaper`), which takes some hundredths of a
second to start, and supervises it as long as the command does not kill it. No shell is involved.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal, cast

from holdfast.model.errors import StorageError, room_hint
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.paths import display
from holdfast.processes.helper_process import program_words, start_in_own_session
from holdfast.processes.kill_on_exit import ends_with_us
from holdfast.processes.process_tree import end_child, kill_tree

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from holdfast.processes.helper_process import Environment, Words

    Take = Callable[[bytes], bool]
    """Gets what was written; False if that is too much."""

Why = Literal["", "time", "memory", "output", "start", "stopped"]
"""Why a child was ended, or could not begin; empty: it ended by itself."""

_PIECE = 1 << 16
_PIPE_PIECES = 16
"""No more can be in a pipe (``/proc/sys/fs/pipe-max-size``)."""
_LOOK_SECONDS = 0.1
_REAPER_GRACE = 10.0
"""Seconds in which the supervisor of a command ends all of its processes, once it was asked to."""


class Limits(NamedTuple):
    """The limits of a child."""

    seconds: float | None
    """None: any time."""
    output: int = 0
    """Bytes of standard output; a child that writes more is ended. 0: its output is discarded."""
    errors: int = 8192
    """Bytes of standard error that are kept: the first half and the last."""


class FileLimits(NamedTuple):
    """The limits of a child whose output is kept in a file."""

    seconds: float
    memory: int
    """Bytes, of all its processes together; 0: any amount."""
    output: int
    """Bytes of output that are kept: the first half and the last."""
    grace: float = 5.0
    """Seconds from SIGTERM to SIGKILL."""


class Ended(NamedTuple):
    """How a child ended."""

    code: int
    """Its exit code, or minus the number of the signal that ended it. Contained: 124 for its time, 137 for its memory,
    127 if there is no such program.
    """
    why: Why = ""
    output: bytes = b""
    errors: bytes = b""

    @property
    def exit_code(self) -> int:
        """As a shell says it: 128 and the signal's number where one ended it."""
        return self.code if self.code >= 0 else 128 - self.code


def run(
    words: Words,
    limits: Limits,
    *,
    stdin: bytes | int = b"",
    cwd: bytes | None = None,
    environment: Environment | None = None,
    pass_fds: Sequence[int] = (),
    stop: threading.Event | None = None,
) -> Ended:
    """Run a program in a session of its own, by default with this process's directory and environment. ``stdin`` is its
    input, or the descriptor of its input file.

    When it has ended, or when ``stop`` is set, its process group is killed, without waiting for later output. Raises
    `OSError` if it cannot be started.
    """
    output, errors = _Output(limits.output), Excerpt(limits.errors)
    child = _start(words, limits, stdin, cwd, environment, pass_fds)

    def kill() -> None:
        # (It was not waited for yet, so the number of the group is still its own.)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)

    with ends_with_us(child.pid), _waited_for(child, kill):
        given = b"" if isinstance(stdin, int) else stdin
        why = _follow(child, given, output.add, errors.add, end=kill, until=_deadline(limits.seconds), stop=stop)
    return Ended(child.returncode, why, bytes(output.data), errors.kept())


def run_contained(
    words: Words,
    limits: Limits,
    *,
    stdin: bytes = b"",
    cwd: bytes,
    environment: Environment,
    pass_fds: Sequence[int] = (),
    stop: threading.Event | None = None,
    grace: float = 0.0,
    follow_errors: Callable[[bytes], object] | None = None,
) -> Ended:
    """Run a command of the user's; none of its processes survives. Setting ``stop`` ends it, and so does an exception
    here: it has ``grace`` seconds from SIGTERM to SIGKILL. ``follow_errors`` gets its standard error at once.

    Raises `OSError` if the directory cannot be entered; for a missing program, the last line of ``errors`` is
    ``holdfast: cannot run NAME: REASON``.
    """
    output, errors = _Output(limits.output), Excerpt(limits.errors)

    def take_error(data: bytes) -> bool:
        if follow_errors is not None:
            follow_errors(data)
        return errors.add(data)

    with _watched(words, seconds=limits.seconds or 0, memory=0, grace=grace) as (watched, said):
        child = _start(watched, limits, stdin, cwd, environment, (said, *pass_fds))
        why = _follow_watched(child, stdin, output.add, take_error, seconds=limits.seconds, grace=grace, stop=stop)
        ended = _read_end(said)
    return Ended(ended.code, "output" if why == "output" else ended.why, bytes(output.data), errors.kept())


def run_contained_to_file(
    words: Sequence[bytes],
    limits: FileLimits,
    path: bytes,
    *,
    cwd: bytes,
    environment: Mapping[bytes, bytes],
    pass_fds: Sequence[int] = (),
    stop: threading.Event | None = None,
) -> Ended:
    """The same for a command without input: the beginning and the end of its output go to the new file ``path`` (mode
    0600).

    Raises `StorageError`.
    """
    with (
        _written(path) as write,
        _watched(words, seconds=limits.seconds, memory=limits.memory, grace=limits.grace) as (watched, said),
    ):
        try:
            child = start_in_own_session(
                watched,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                environment=environment,
                pass_fds=(said, *pass_fds),
            )
        except OSError as error:
            raise StorageError(
                f"{display(words[0])} cannot be started: {error.strerror}", hint=room_hint(error), code="cannot_start"
            ) from error
        kept = Excerpt(limits.output, write)
        try:
            _follow_watched(child, b"", kept.add, seconds=limits.seconds, grace=limits.grace, stop=stop)
        finally:
            kept.finish()
        return _read_end(said)


def run_at_terminal(words: Words, limits: Limits) -> Ended:
    """Run a program that may ask the user questions: it stays in our session, and its standard error is ours.

    Its child processes continue when it ends by itself, or when this process is killed: one may be an agent that keeps
    a passphrase. Raises `OSError`.
    """
    output = _Output(limits.output)
    child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)

    def kill() -> None:
        if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            kill_tree(child.pid)

    with _waited_for(child, kill):
        why = _follow(child, b"", output.add, end=kill, until=_deadline(limits.seconds))
    return Ended(child.returncode, why, bytes(output.data))


def run_with_input_at_terminal(words: Words, pieces: Iterable[bytes], *, environment: Environment) -> None:
    """Run a program of the user's at our terminal, in our session, until the user leaves it; ``pieces`` are its
    standard input, made only as it reads them. The program handles an interrupt from the keyboard.

    Raises `OSError` if it cannot be started; then none of ``pieces`` was taken.
    """
    child = subprocess.Popen(words, stdin=subprocess.PIPE, env=environment)
    assert child.stdin is not None
    try:
        # (Pieces are passed on at once: a user who has seen enough leaves before the last is made.)
        with suppress(BrokenPipeError, KeyboardInterrupt), child.stdin:
            for piece in pieces:
                child.stdin.write(piece)
    finally:
        while child.returncode is None:
            with suppress(KeyboardInterrupt):
                child.wait()


# -- the output -------------------------------------------------------------------------------------------------------


class Excerpt:
    """The beginning and the end of some output, in bounded memory, with a mark at the omission."""

    def __init__(self, most: int, write: Callable[[bytes], object] | None = None) -> None:
        """Of all that comes ``most`` bytes are given to ``write``: the beginning at once, the end by `finish`. Without
        it, they are `kept`.
        """
        self._half = max(1, most // 2)
        self._left = self._half
        self._kept = bytearray()
        self._write = self._kept.extend if write is None else write
        self._tail = bytearray()
        self._taken = 0

    def add(self, data: bytes) -> bool:
        """Add the next output, of any size."""
        self._taken += len(data)
        if self._left:
            head, data = data[: self._left], data[self._left :]
            self._left -= len(head)
            self._write(head)
        self._tail += data
        if len(self._tail) > 4 * self._half:
            # (Not at every piece: each time costs as much as all the kept output.)
            del self._tail[: -self._half]
        return True

    def finish(self) -> None:
        """Nothing more comes. To be called once."""
        left_out = self._taken - self._half - min(len(self._tail), self._half)
        if left_out > 0:
            self._write(b"\n[... %d bytes left out ...]\n" % left_out)
        self._write(bytes(self._tail[-self._half :]))

    def kept(self) -> bytes:
        """`finish`, and the output that was not written elsewhere."""
        self.finish()
        return bytes(self._kept)


class _Output:
    """All of it, if that is not too much."""

    def __init__(self, most: int) -> None:
        self.data = bytearray()
        self._most = most

    def add(self, data: bytes) -> bool:
        if len(self.data) <= self._most:
            self.data += data
        return len(self.data) <= self._most


@contextmanager
def _written(path: bytes) -> Generator[Callable[[bytes], None]]:
    """A function that writes to a new file."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(path, flags, 0o600)
    except OSError as error:
        raise StorageError(f"cannot write {display(path)}: {error.strerror}", hint=room_hint(error)) from error

    def write(data: bytes) -> None:
        try:
            while data:
                data = data[os.write(fd, data) :]
        except OSError:
            return  # a full disk fails the command, and need not fail what watches it as well

    try:
        yield write
    finally:
        os.close(fd)


# -- how it is followed -----------------------------------------------------------------------------------------------


def _start(
    words: Words,
    limits: Limits,
    stdin: bytes | int,
    cwd: bytes | None,
    environment: Environment | None,
    pass_fds: Sequence[int],
) -> subprocess.Popen[bytes]:
    return start_in_own_session(
        words,
        stdin=stdin if isinstance(stdin, int) else subprocess.PIPE if stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE if limits.output else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=cwd,
        environment=environment,
        pass_fds=pass_fds,
    )


def _follow(
    child: subprocess.Popen[bytes],
    given: bytes,
    output: Take,
    errors: Take | None = None,
    *,
    end: Callable[[], None],
    until: float | None = None,
    stop: threading.Event | None = None,
    patience: float = 0.0,
) -> Why:
    """Give a child its input and take its output, until it has ended; returns why, unless it ended by itself.

    ``end`` is called to end it, and again when it has ended: for its remaining processes. If it has not ended
    ``patience`` seconds after the first call, it is killed.
    """
    streams = ((child.stdout, output), (child.stderr, errors))
    takes = {stream.fileno(): take for stream, take in streams if stream is not None and take is not None}
    pidfd = os.pidfd_open(child.pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        for fd in takes:
            os.set_blocking(fd, False)
            poll.register(fd, select.POLLIN)
        if child.stdin is not None:
            os.set_blocking(child.stdin.fileno(), False)
            poll.register(child.stdin, select.POLLOUT)
        rest = memoryview(given)
        why: Why = ""
        while True:
            ready = {fd for fd, _ in poll.poll(_milliseconds(until, stop))}
            if child.stdin is not None and not child.stdin.closed and child.stdin.fileno() in ready:
                rest = _give(child.stdin.fileno(), rest)
                if not rest:
                    poll.unregister(child.stdin)
                    child.stdin.close()
            found: Why = ""
            for fd in takes.keys() & ready:
                piece = _read(fd)
                if piece == b"":
                    poll.unregister(fd)
                    del takes[fd]
                elif piece and not takes[fd](piece):
                    found = "output"
            if pidfd in ready:
                end()
                return why or found or _drain(takes)
            if until is not None and time.monotonic() >= until:
                found, until = "time", None
                if why:
                    child.kill()
            if stop is not None and stop.is_set():
                found, stop = "stopped", None
            if found and not why:
                why, until = found, time.monotonic() + patience
                end()
    finally:
        os.close(pidfd)


def _milliseconds(until: float | None, stop: threading.Event | None) -> float | None:
    seconds = None if until is None else max(0.0, until - time.monotonic())
    if stop is not None:
        seconds = _LOOK_SECONDS if seconds is None else min(seconds, _LOOK_SECONDS)
    return None if seconds is None else seconds * 1000


def _give(fd: int, rest: memoryview) -> memoryview:
    """Give the child some input; returns the rest."""
    try:
        return rest[os.write(fd, rest[:_PIECE]) :]
    except BlockingIOError:
        return rest
    except BrokenPipeError:
        return rest[:0]  # it wants no more of it


def _read(fd: int) -> bytes | None:
    try:
        return os.read(fd, _PIECE)
    except BlockingIOError:
        return None


def _drain(takes: Mapping[int, Take]) -> Why:
    """Take the contents of the pipes after the child's end. (Later output of other processes is endless.)"""
    for fd, take in takes.items():
        for _ in range(_PIPE_PIECES):
            piece = _read(fd)
            if not piece:
                break
            if not take(piece):
                return "output"
    return ""


@contextmanager
def _waited_for(child: subprocess.Popen[bytes], end: Callable[[], object]) -> Generator[None]:
    """At the end, neither the child nor its pipes remain."""
    try:
        yield
    except BaseException:
        end()
        raise
    finally:
        child.wait()
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                stream.close()


def _deadline(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


# -- what watches over a command --------------------------------------------------------------------------------------


@contextmanager
def _watched(words: Words, *, seconds: float, memory: int, grace: float) -> Generator[tuple[Words, int]]:
    """The words to execute so that no process of a command survives, neither after its end nor after that of this
    process; its result is written to the descriptor, which must be passed on, for `_read_end`.
    """
    reaper = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reaper.py")
    said = os.memfd_create("holdfast")
    try:
        yield [*program_words(reaper, *map(str, (said, os.getpid(), seconds, memory, grace))), *words], said
    finally:
        os.close(said)


def _follow_watched(
    child: subprocess.Popen[bytes],
    given: bytes,
    output: Take,
    errors: Take | None = None,
    *,
    seconds: float | None,
    grace: float,
    stop: threading.Event | None,
) -> Why:
    """`_follow` what watches over a command, which itself sees to the time: asked to end, it ends all of it."""
    patience = grace + _REAPER_GRACE
    until = _deadline(seconds + patience if seconds else None)
    with _waited_for(child, lambda: end_child(child, patience)):
        return _follow(child, given, output, errors, end=child.terminate, until=until, stop=stop, patience=patience)


def _read_end(said: int) -> Ended:
    code, _, why = os.pread(said, 100, 0).decode().partition(" ")
    if not code:
        return Ended(-signal.SIGKILL, "stopped")  # what watched over it was killed
    return Ended(int(code), cast("Why", why))
