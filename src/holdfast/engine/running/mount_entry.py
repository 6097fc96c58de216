"""What a command begins as that sees its workspace by a mount alone: it makes a mount namespace of its own, mounts over
the workspace's path, hands the device out, and becomes the command.

It is `build_arguments`, executed as `holdfast.supervisor.confinement.filter_shim` says: the device is in the place of
the listener. Who is not root does it in a user namespace of their own, in which they remain themselves; from there,
nothing can be unmounted. Holdfast's own directories cannot be changed by it, nor moved
(`holdfast.engine.running.mount_entry`). Sources: mount_namespaces(7), user_namespaces(7), mount(2).
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


# Keeps directories from all processes that share this process's mount namespace: what is in them cannot be changed, by
# any path that a mount shows them at, and they cannot be moved, nor can any directory that they lie in.
#
# For a namespace that was made just before, before any other process is in it, where none that comes later may mount or
# unmount. Sources: mount_namespaces(7), mount(2), ``is_local_mountpoint`` in ``fs/namespace.c`` of Linux.

_OUT_OF_SIGHT: Final = (errno.ENOENT, errno.ENOTDIR, errno.EACCES)
_OBJECT: Final = os.O_PATH | os.O_CLOEXEC


def protect(directories: Sequence[bytes], covered: bytes) -> None:
    """Make ``directories`` read-only, with all that is mounted in them, and have them and all above them stay where
    they are. They are real paths; something is about to be mounted over the directory ``covered``, where nothing else
    will be seen, and which may lie in one of them. Raises `OSError`.
    """
    for path in sorted(_all_paths(directories), key=len):  # (a mount that shows a part may lie in another one)
        if not under(path, covered):
            _make_read_only(path)
    for path in _movable(path for path in directories if not under(path, covered)):
        _pin(path, covered)


def _all_paths(directories: Iterable[bytes]) -> set[bytes]:
    """All paths by which they, or a part of them, are reached; and what is mounted in them, as overlays are."""
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
        if error.errno not in _OUT_OF_SIGHT:  # (else it lies under another mount, or where this user cannot look)
            raise


def _movable(directories: Iterable[bytes]) -> Iterator[bytes]:
    """They, and all above them that this user may move."""
    seen: set[bytes] = set()
    for path in directories:
        while path not in (b"/", *seen):
            seen.add(path)
            above = os.path.dirname(path)
            if os.access(above, os.W_OK):
                yield path
            path = above


def _pin(path: bytes, covered: bytes) -> None:
    """Let no process move or remove a directory: none can, in whose namespace anything is mounted on it, be it where it
    cannot be seen. (On its own path, what is moved from beside it to beneath it would come to another mount.)
    """
    above, name = os.path.split(path)
    try:
        mount(above, covered, MS_BIND)
        pinned = os.path.join(covered, name)
        mount(pinned, pinned, MS_BIND)
    except OSError as error:
        # (What a process outside has mounted below it, a user namespace may not uncover: it is pinned by that alone.)
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
    """What to execute: ``root`` is the workspace's real path, ``own`` are Holdfast's own directories, by their real
    paths, ``directory`` is where the command runs. The environment and the working directory have no say in what code
    it is.
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
            # (Of what is open from outside, nothing else leads into the workspace: the standard descriptors are no
            # directories, with which the interpreter would not have started.)
            os.chdir(directory)
        except OSError as error:
            talk.send(b"%d" % (error.errno or 0))
            os._exit(CANNOT_EXECUTE)
        become_command(talk, command)


def _filter() -> list[int]:
    """Put this process under the filter. The parent of the tree has the listener; where another supervisor's filter has
    one already, a tree can have no second, and sets nothing of other processes.
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
