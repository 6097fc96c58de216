"""Unix sockets that processes listen at: mode 0600, in a directory that no other user can enter."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from holdfast.ipc.private_socket import address
from holdfast.model.errors import LockedError, RefusedError, StorageError
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


def bind(folder: bytes, name: bytes) -> socket.socket:
    """A non-blocking socket with a name, which does not listen yet. Raises `OSError`."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        os.fchmod(bound.fileno(), 0o600)  # before it has a name: it never exists with another mode
        with address(folder, name) as path:
            bound.bind(path)
    except BaseException:
        bound.close()
        raise
    return bound


@contextmanager
def listen(
    path: bytes, backlog: int, before: Callable[[ExitStack], object] = lambda _: None
) -> Generator[socket.socket]:
    """A socket that listens at ``path``, which a person chose, during the block; then its name is removed.

    ``before`` is called when it has its name and no client can connect yet; its callbacks on the stack run first at the
    end. The directory is made if it is missing. Raises `RefusedError` for one that others can enter, or where another
    file has the name, `LockedError` if another process listens there, `StorageError`.
    """
    path = os.path.abspath(path)
    folder, name = os.path.split(path)
    _prepare(folder)
    with ExitStack() as context:
        with _said(path), _alone_in(folder):
            _remove_dead(path)
            listener = context.enter_context(bind(folder, name))
            context.callback(remove_socket, path, os.lstat(path))
            before(context)
            listener.listen(backlog)
        yield listener


@contextmanager
def _alone_in(folder: bytes) -> Generator[None]:
    """Wait for other servers that begin or end in the directory: a socket that does not listen yet looks like that of
    a dead one.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def remove_socket(path: bytes, own: os.stat_result) -> None:
    """Remove the name of our own socket, unless another server has it by now."""
    with suppress(FileNotFoundError), _alone_in(os.path.dirname(path)):
        if os.path.samestat(os.lstat(path), own):
            os.unlink(path)


@contextmanager
def _said(path: bytes) -> Generator[None]:
    """Raise the system's errors in the block as errors about the socket."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot open the socket {display(path)}: {error.strerror or error}") from error


def _prepare(folder: bytes) -> None:
    """Make the directory of a socket, mode 0700, or see that no other user can enter it; raises `RefusedError`."""
    try:
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found = os.stat(folder)
    except OSError as error:
        raise StorageError(f"cannot use {display(folder)} for a socket: {error.strerror}") from error
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise RefusedError(
            f"others can enter {display(folder)}: a socket needs a directory of your own, with mode 0700",
            hint=f"chmod 700 {display(folder)}, or name one that is not there yet",
            code="open_directory",
        )


def _remove_dead(path: bytes) -> None:
    """Remove the socket that a dead process has left."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise RefusedError(f"{display(path)} is there already, and no socket", code="exists")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            with address(*os.path.split(path)) as where:
                probe.connect(where)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass  # so many clients connect that there is a queue
    raise LockedError(f"another process listens at {display(path)}", hint="name another path")
