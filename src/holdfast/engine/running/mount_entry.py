"""The start of a command that sees its workspace only by a mount: it makes a mount namespace of its own, mounts over
the workspace's path, passes the device on, and executes the command.

`build_arguments` is executed as in `holdfast.supervisor.confinement.filter_shim`, with the device in the place of the
listener. Users other than root get a user namespace with their own ids, from which nothing can be unmounted. The
command can neither change nor move Holdfast's own directories. Sources: mount_namespaces(7), user_namespaces(7),
mount(2).
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from typing import TYPE_CHECKING, Final, NoReturn

from holdfast.bridge.mount.fuse_device import mount_directly
from holdfast.bridge.mount.mount_namespaces import (
    KEPT_FLAGS,
    MS_BIND,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    mount,
    separate,
)
from holdfast.model.errors import HoldfastError, UnsupportedError
from holdfast.model.paths import display, under
from holdfast.supervisor.confinement import landlock, seccomp_notify, seccomp_program
from holdfast.supervisor.confinement.filter_shim import (
    CANNOT_EXECUTE,
    become_command,
    hand_out_listener,
    ignore_signals,
    ignored_signals,
)
from holdfast.supervisor.resolution.mount_table import mounts, other_paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


# Protects directories from all processes in this process's mount namespace: their contents cannot be changed, by any
# path to them, and neither they nor their parents can be moved.
#
# It is for a new namespace without other processes, in which no later process may mount or unmount. Sources:
# mount_namespaces(7), mount(2), ``is_local_mountpoint`` in ``fs/namespace.c`` of Linux.

_OUT_OF_SIGHT: Final = (errno.ENOENT, errno.ENOTDIR, errno.EACCES)
_OBJECT: Final = os.O_PATH | os.O_CLOEXEC


def protect(directories: Sequence[bytes], covered: bytes) -> None:
    """Make ``directories`` read-only, with all mounts in them, and keep them and their parents from being moved. They
    are real paths. A mount will be made over the directory ``covered``, which hides its contents, and which may lie in
    one of them. Raises `OSError`.
    """
    for path in sorted(_all_paths(directories), key=len):  # a bind mount of a part may be inside another
        if not under(path, covered):
            _make_read_only(path)
    for path in _movable(path for path in directories if not under(path, covered)):
        _pin(path, covered)


def _all_paths(directories: Iterable[bytes]) -> set[bytes]:
    """All paths that lead to them or to a part of them, and mounts inside them, such as overlays."""
    found: set[bytes] = set()
    shown = mounts()
    left = list(directories)
    while left:
        path = left.pop()
        if path in found:
            continue
        found.add(path)
        try:
            fd = os.open(path, _OBJECT)
        except OSError as error:
            if error.errno not in _OUT_OF_SIGHT:
                raise
            continue  # it lies under another mount, or where this user cannot look
        try:
            left += [at for at, _ in other_paths(fd, path, shown)]
        finally:
            os.close(fd)
        left += [each.point for each in shown if under(each.point, path)]
    return found


def _make_read_only(path: bytes) -> None:
    try:
        mount(path, path, MS_BIND | MS_REC)
        flags = os.statvfs(path).f_flag & KEPT_FLAGS
        mount(b"none", path, MS_BIND | MS_REMOUNT | MS_RDONLY | flags)
    except OSError as error:
        if error.errno not in _OUT_OF_SIGHT:  # else it is under another mount, or out of this user's reach
            raise


def _movable(directories: Iterable[bytes]) -> Iterator[bytes]:
    """The directories and all their parents that this user could move."""
    seen: set[bytes] = set()
    for path in directories:
        while path not in (b"/", *seen):
            seen.add(path)
            above = os.path.dirname(path)
            if os.access(above, os.W_OK):
                yield path
            path = above


def _pin(path: bytes, covered: bytes) -> None:
    """Keep a directory from being moved or removed: a mount point cannot be, in a namespace with the mount, even if the
    mount is hidden. The directory is not mounted on its own path, since a sibling moved beneath it would land on
    another mount.
    """
    above, name = os.path.split(path)
    try:
        mount(above, covered, MS_BIND)
        pinned = os.path.join(covered, name)
        mount(pinned, pinned, MS_BIND)
    except OSError as error:
        # A user namespace may not reveal mounts of an outside process below it; those already pin the directory.
        if error.errno not in (errno.EINVAL, *_OUT_OF_SIGHT):
            raise


_MOST_BYTES: Final = 1000
_NEEDED: Final = (
    "--bridge fuse needs /dev/fuse, open to you, and root or user namespaces that users may make; in a container also "
    "`--device /dev/fuse --cap-add SYS_ADMIN`"
)
_START: Final = (
    "import sys; sys.path[:0] = sys.argv.pop(1).split(':'); "
    "from holdfast.engine.running.mount_entry import main; main(sys.argv[1:])"
)


def build_arguments(
    channel: int, root: bytes, own: Sequence[bytes], directory: bytes, command: Sequence[bytes]
) -> list[bytes]:
    """The command line to execute: ``root`` is the workspace's real path, ``own`` are the real paths of Holdfast's own
    directories, ``directory`` is the working directory. Neither environment nor working directory influence which code
    runs.
    """
    path = ":".join(os.path.abspath(each) for each in sys.path if each)
    start = [os.fsencode(sys.executable), b"-I", b"-B", b"-c", _START.encode(), os.fsencode(path)]
    return [*start, b"%d" % channel, ignored_signals(), root, directory, b"%d" % len(own), *own, *command]


def main(argv: Sequence[str]) -> NoReturn:
    """See `build_arguments`."""
    channel, numbers, *rest = argv
    root, directory, count, *words = map(os.fsencode, rest)
    own, command = words[: int(count)], words[int(count) :]
    ignore_signals(numbers)
    os.set_inheritable(int(channel), False)
    with socket.socket(fileno=int(channel)) as talk:
        try:
            device = _mount_over(root, own)
            seccomp_notify.give_up_privileges()
            landlock.confine_mounts()
            listeners = _filter()
        except (HoldfastError, OSError) as error:
            talk.send(_said(error))
            os._exit(CANNOT_EXECUTE)
        hand_out_listener(talk, device, *listeners)
        try:
            # No other descriptor leads into the workspace from outside: the standard ones are no directories, or the
            # interpreter would not have started.
            os.chdir(directory)
        except OSError as error:
            talk.send(b"%d" % (error.errno or 0))
            os._exit(CANNOT_EXECUTE)
        become_command(talk, command)


def _filter() -> list[int]:
    """Put this process under the filter. The parent of the tree holds the listener. If another supervisor's filter has
    a listener, a second is impossible; the tree then cannot set attributes of other processes.
    """
    machine = os.uname().machine
    try:
        return [seccomp_notify.install(seccomp_program.program(machine, "targets"))]
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        seccomp_notify.install_unheard(seccomp_program.program(machine, "nothing"))
        return []


def _said(error: HoldfastError | OSError) -> bytes:
    text = f"{error.message} ({error.hint})" if isinstance(error, HoldfastError) and error.hint else str(error)
    return text.encode("utf-8", "replace")[:_MOST_BYTES]


def _mount_over(root: bytes, own: Sequence[bytes]) -> int:
    """Mount over the workspace, for this process and all that it starts alone; returns the device."""
    is_root = os.geteuid() == 0
    try:
        separate(user=not is_root)
    except OSError as error:
        raise UnsupportedError(f"no namespace of its own can be made: {error.strerror}", hint=_NEEDED) from error
    try:
        mount(b"none", b"/", MS_REC | MS_PRIVATE)
        flags = os.statvfs(root).f_flag & KEPT_FLAGS
        protect(own, root)
        return mount_directly(root, allow_other=is_root, flags=flags)
    except PermissionError as error:
        raise UnsupportedError(f"{display(root)} cannot be mounted on: {error.strerror}", hint=_NEEDED) from error
