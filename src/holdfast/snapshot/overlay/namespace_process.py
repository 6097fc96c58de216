"""The processes that see an overlay at the workspace's own path, in a mount namespace of their own.

One *holds* the namespace: it makes it, mounts the overlay there, and stays. A command *enters* it. So no other process
sees the mount, and it is gone when the last of these has ended, however that happens. Ordinary users do it in a user
namespace of their own, where the kernel permits that.

The holder has a lock on a file, which identifies it: the kernel releases a lock with its process, and reports its
owner. Each is a process of its own, which runs this module with the standard library and little else. Sources:
fcntl_locking(2), pidfd_open(2), namespaces(7).
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import struct
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn, cast

from holdfast.bridge.mount.mount_namespaces import KEPT_FLAGS, MS_REC, MS_SLAVE, join, mount, separate
from holdfast.bridge.mount.overlayfs import Attributes, attributes_for, mount_overlay
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError, UnsupportedError
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Sequence

FAILED: Final = 125
"""The exit code if a command could not be brought inside; the reason is on standard error."""
_CANNOT_EXECUTE: Final = 126
_NO_SUCH_COMMAND: Final = 127
_HOLDS: Final = b"it does"

_FLOCK = struct.Struct("hhqqi4x")  # type, whence, start, length, process
_START: Final = (
    "import sys; sys.path[:0] = sys.argv.pop(1).split(':'); "
    "from holdfast.snapshot.overlay.namespace_process import main; main(*sys.argv[1:])"
)
_NEEDED: Final = "it takes root, or a kernel that lets users have namespaces of their own, with overlays in them"


def arguments(verb: str, *words: bytes) -> list[bytes]:
    """The command line. Neither environment nor working directory influence which code runs."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    above = os.path.dirname(package)
    more = (os.path.abspath(each) for each in sys.path if each) if verb == "write_out" else ()
    path = ":".join((above, *more))
    start = [os.fsencode(sys.executable), b"-I", b"-S", b"-B", b"-c", _START.encode(), os.fsencode(path)]
    return [*start, verb.encode(), *words]


def holder_of(held: int) -> int | None:
    """The process that has the lock on the open file, 0 if it cannot be seen from here; None if none has. Raises
    `OSError`.
    """
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, process = _FLOCK.unpack(fcntl.fcntl(held, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else process


def main(verb: str, *texts: str) -> NoReturn:
    """See `arguments`: ``hold`` and ``write_out`` report errors, as JSON, on standard output."""
    words = [os.fsencode(text) for text in texts]
    if verb == "enter":
        _enter(*words)
    try:
        if verb == "hold":
            _hold(*words)
        elif verb == "write_out":
            _write_out(*words)
        else:
            _probe(*words)
    except (HoldfastError, OSError) as error:
        os.write(1, _said(error))
        os._exit(1)
    os._exit(0)


# -- holding ----------------------------------------------------------------------------------------------------------


def _hold(held: bytes, root: bytes, *layers: bytes) -> None:
    """Start a process that holds, which is no child of ours, and wait until it has mounted the ``layers``."""
    said, saying = os.pipe()
    if os.fork():  # a copy with all modules loaded, instead of a helper
        os.close(saying)
        with open(said, "rb") as pipe:
            found = pipe.read()
        if found != _HOLDS:
            os.write(1, found)
            os._exit(1)
        return
    os.close(said)
    os.setsid()
    try:
        _lock(held)
        _mount(root, layers)
        os.chdir(b"/")
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(nowhere, standard)
    except (HoldfastError, OSError) as error:
        os.write(saying, _said(error))
        os._exit(1)
    os.write(saying, _HOLDS)
    os.close(saying)
    while True:
        signal.pause()


def _lock(held: bytes) -> None:
    # Both stay open for this process's lifetime. It ends when the file is deleted, for example with the whole home.
    place = os.open(os.path.dirname(held), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with suppress(OSError):  # a kernel without dnotify
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(place, fcntl.F_NOTIFY, fcntl.DN_DELETE)
    fd = os.open(held, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RefusedError("it is mounted already, or about to be removed", code="in_use") from error
    if not os.fstat(fd).st_nlink:
        raise NotFoundError("it was removed meanwhile")


def _mount(directory: bytes, layers: Sequence[bytes], at: bytes | None = None) -> None:
    """Mount the layers on ``at``, else on ``directory``, with its mount flags, in a namespace of this process."""
    lower, upper, work, attributes = layers
    flags = os.statvfs(directory).f_flag & KEPT_FLAGS
    _separate()
    kind = cast("Attributes", attributes.decode())
    mount_overlay(lower, upper, work, at or directory, kind, index=True, flags=flags)


def _separate() -> None:
    try:
        try:
            separate(user=os.geteuid() != 0)
        except PermissionError:
            separate(user=True)  # the root of a container, which is not one outside
        # Unmounting outside also unmounts in here, so that this keeps no disk busy.
        mount(b"none", b"/", MS_REC | MS_SLAVE)
    except OSError as error:
        text = f"no mount namespace can be made: {error.strerror}"
        raise UnsupportedError(text, hint=_NEEDED) from error


# -- entering ---------------------------------------------------------------------------------------------------------


def _enter(held: bytes, *command: bytes) -> NoReturn:
    """Become the command, in the namespace that is held, and in the directory that has the same path there."""
    here = os.getcwdb()
    try:
        fd = os.open(held, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        process = holder_of(fd)
        if not process:
            _give_up("the prepared directory is no longer mounted: resume it")
        pidfd = os.pidfd_open(process)
        if holder_of(fd) != process:  # the number may be another one's by now
            _give_up("the prepared directory is no longer mounted: resume it")
        join(process, pidfd)
        os.close(pidfd)
        os.close(fd)
    except OSError as error:
        _give_up(f"the prepared directory cannot be entered: {error.strerror}")
    try:
        os.chdir(here)
    except OSError as error:
        _give_up(f"{display(here)} cannot be entered, in the prepared directory: {error.strerror}")
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - a list of arguments
    except FileNotFoundError:
        _give_up(f"there is no command {display(command[0])}", _NO_SUCH_COMMAND)
    except OSError as error:
        _give_up(f"{display(command[0])} cannot be executed: {error.strerror}", _CANNOT_EXECUTE)


def _give_up(why: str, code: int = FAILED) -> NoReturn:
    os.write(2, f"holdfast: {why}\n".encode("utf-8", "replace"))
    os._exit(code)


# -- the rest ---------------------------------------------------------------------------------------------------------


def _write_out(merged: bytes, target: bytes, *layers: bytes) -> None:
    """Make ``target`` a copy of what the layers are together, mounted meanwhile on ``merged``."""
    from holdfast.files.directories.replication import replicate
    from holdfast.files.protected_directories import find_protected

    _mount(merged, layers)
    replicate(merged, target, without=find_protected(()))


def _probe(directory: bytes) -> None:
    """Mount an empty overlay, where no other process sees it."""
    _separate()
    mount(b"none", directory, 0, b"tmpfs")
    paths = [os.path.join(directory, name) for name in (b"lower", b"upper", b"work", b"merged")]
    for path in paths:
        os.mkdir(path, stat.S_IRWXU)
    lower, upper, work, merged = paths
    try:
        attributes = attributes_for(upper)
    except UnsupportedError:  # an older kernel's tmpfs has none that users may set
        attributes = "user"
    mount_overlay(lower, upper, work, merged, attributes, index=True)


def _said(error: HoldfastError | OSError) -> bytes:
    if isinstance(error, HoldfastError):
        found = {"kind": type(error).__name__, "code": error.code, "message": error.message, "hint": error.hint}
    else:
        found = {"kind": "StorageError", "code": "storage", "message": str(error), "hint": None}
    return json.dumps(found).encode()
