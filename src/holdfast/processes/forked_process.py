"""Starting a process that runs a module of ours: as a fork of this one where that is safe, otherwise as a new
interpreter.

A fork is ready in a few milliseconds and has the modules of its parent; an interpreter loads all anew. Forks are only
for our own programs (`allow_forks`), and only while they have a single thread: locks of other threads would stay locked
for ever. A program that only uses the library may contain anything (threads of native code, handles of a database,
objects with finalizers).

Code in a fork finds descriptors, signals, streams, directory and log as in a new interpreter. It never returns to the
stack of its parent, and does not clean up the parent's resources. It must not use SQLite, whose data about open files
is wrong in a fork.
"""

from __future__ import annotations

import os
import sys

from holdfast.model.fast_typing import TYPE_CHECKING

# (Modules needed only for a start are loaded there: every command loads this module, for `allow_forks`.)
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from typing import NoReturn

    Streams = tuple[int, int, int]
    """Descriptors of standard input, output and error."""

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_ARGUMENTS_BEGIN, _ARGUMENTS_END = 45, 46
"""Fields of ``/proc/self/stat`` after the state (proc_pid_stat(5): 48 and 49)."""

_opened: dict[int, str] = {}
"""Directories that modules keep open from when they are loaded."""
_is_ours = False


def allow_forks() -> None:
    """Say that all of this process is a program of our own: `start` may fork it."""
    global _is_ours  # noqa: PLW0603 - a process is ours or is not
    _is_ours = True


def open_for_good(directory: str) -> int:
    """A descriptor (``O_PATH``) for a module to keep: it has the same number in forks, where it is opened anew, as
    ``/proc/self`` means them there. Raises `OSError`.
    """
    fd = os.open(directory, _DIRECTORY)
    _opened[fd] = directory
    return fd


def has_one_thread() -> bool:
    """Whether this process has a single thread, native ones included, as far as the kernel tells."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def preload(module: str) -> None:
    """Load the module, if `start` would fork now: during another wait, that costs no time."""
    if _is_ours and has_one_thread():
        from importlib import import_module

        import_module(module)


def start(
    module: str,
    channel: int,
    *,
    passed: Collection[int] = (),
    streams: Streams | None = None,
    own_session: bool = False,
) -> int:
    """Start a process in the root directory that calls ``main`` of the module with the descriptor ``channel``, and
    exits with its result. Returns its pid, which the caller gives to `wait`, or waits for otherwise.

    Of our descriptors it has only ``channel`` and ``passed``, under their numbers, and ``streams`` (default: our own)
    as its standard ones. It is in our process group, or in its own session; signals that are blocked or ignored here
    are so there. Raises `OSError`.
    """
    passed = (channel, *passed)
    if _is_ours and has_one_thread():
        from importlib import import_module

        main: Callable[[int], int] = import_module(module).main
        return fork(lambda: main(channel), passed, streams=streams, own_session=own_session, title=module)
    from subprocess import Popen  # (a run that forks does without)

    from holdfast.processes.child_environment import with_our_modules
    from holdfast.processes.helper_process import module_words

    stdin, stdout, stderr = streams or (None, None, None)
    process = Popen(
        module_words(module, str(channel)),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd="/",
        env=with_our_modules(os.environb),
        pass_fds=passed,
        start_new_session=own_session,
    )
    process.returncode = 0  # its pid is used to wait for it
    return process.pid


def wait(process: int) -> int:
    """Wait for a child to end: its exit code, or minus the number of the signal that ended it. 0 if it was waited for
    already.
    """
    try:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    except ChildProcessError:
        return 0


def fork(
    main: Callable[[], int],
    passed: Collection[int] = (),
    *,
    streams: Streams | None = None,
    own_session: bool = False,
    title: str = "",
) -> int:
    """Fork this process, which must have a single thread; the fork ends with what ``main`` returns. The rest is as
    `start` has it, and ``title`` takes the place of its command line. Raises `OSError`.
    """
    import signal
    from contextlib import suppress

    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # (unwritten data is for us to write, and only once)
            stream.flush()
    # (No exception may be raised between the fork and the `try`: it would go up the stack of our callers, in the fork.)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        process = os.fork()
        if not process:
            _become(main, passed, streams or (0, 1, 2), blocked, own_session=own_session, title=title)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return process


def _become(
    main: Callable[[], int],
    passed: Collection[int],
    streams: Streams,
    blocked: Iterable[int],
    *,
    own_session: bool,
    title: str,
) -> NoReturn:
    code = 1
    try:
        import gc
        import signal
        from contextvars import Context

        gc.freeze()  # (the parent's objects in cycles are never collected here: they would close, remove, roll back)
        _reset_signals()
        if own_session:
            os.setsid()
        _replace_descriptors(streams, passed)
        os.chdir("/")
        if title:
            _take_title(title.encode())
        _reset_log()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        code = Context().run(main)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException as error:  # noqa: BLE001 - nothing above may go on in this process
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        # (Neither the clean-up of our callers nor `atexit`: these belong to the parent.)
        os._exit(code)


def _reset_signals() -> None:
    """The state of a new interpreter: ignored signals stay ignored, and no handler is left."""
    import signal

    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if handler is signal.SIG_IGN:
            continue
        if number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
        elif handler is not signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)


def _replace_descriptors(streams: Streams, passed: Collection[int]) -> None:
    from contextlib import suppress

    for number, fd in enumerate(streams):
        if fd != number:
            os.dup2(fd, number)
    kept = {0, 1, 2, *passed}
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in kept:
            with suppress(OSError):  # it is the descriptor used for the listing
                os.close(fd)
    for number, directory in _opened.items():
        fd = os.open(directory, _DIRECTORY)
        if fd != number:
            os.dup2(fd, number, inheritable=False)
            os.close(fd)


def _take_title(title: bytes) -> None:
    """Be listed by this name: by the command line of its starter, a process would be taken for that."""
    import ctypes
    from contextlib import suppress

    with suppress(OSError), open("/proc/self/comm", "wb") as file:  # (``/proc`` may be read-only)
        file.write(title.rpartition(b".")[2])
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b") ")[2].split()
    begin, end = int(fields[_ARGUMENTS_BEGIN]), int(fields[_ARGUMENTS_END])
    if end > begin:
        ctypes.memmove(begin, title.ljust(end - begin, b"\0")[: end - begin - 1], end - begin - 1)


def _reset_log() -> None:
    """The state of a new interpreter: handlers of the parent may write to descriptors that are closed here."""
    from holdfast.model.log import forget_sender

    forget_sender()
