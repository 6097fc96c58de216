"""What a command begins as that sees its workspace by a mount alone: it makes a mount namespace of its own, mounts over
the workspace's path, hands the device out, and becomes the command.

It is `arguments`, executed as `holdfast.supervisor.shim` says: the device is in the place of the listener. Who is not
root does it in a user namespace of their own, in which they remain themselves; from there, nothing can be unmounted.
Holdfast's own directories cannot be changed by it, nor moved (`holdfast.engine.running.hide_directories`).
Sources: mount_namespaces(7), user_namespaces(7), mount(2).
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from typing import TYPE_CHECKING, Final, NoReturn

from holdfast.bridge.device import mount_directly
from holdfast.bridge.namespaces import KEPT_FLAGS, MS_PRIVATE, MS_REC, mount, separate
from holdfast.engine.running.hide_directories import shut
from holdfast.model.errors import HoldfastError, UnsupportedError
from holdfast.model.paths import display
from holdfast.supervisor import bpf, landlock, notify
from holdfast.supervisor.shim import CANNOT_EXECUTE, become, hand_out, ignore, ignored

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_BYTES: Final = 1000
_NEEDED: Final = (
    "--bridge fuse needs /dev/fuse, open to you, and root or user namespaces that users may make; in a container also "
    "`--device /dev/fuse --cap-add SYS_ADMIN`"
)
_START: Final = (
    "import sys; sys.path[:0] = sys.argv.pop(1).split(':'); "
    "from holdfast.engine.running.mounted_entry import main; main(sys.argv[1:])"
)


def arguments(
    channel: int, root: bytes, own: Sequence[bytes], directory: bytes, command: Sequence[bytes]
) -> list[bytes]:
    """What to execute: ``root`` is the workspace's real path, ``own`` are Holdfast's own directories, by their real
    paths, ``directory`` is where the command runs. The environment and the working directory have no say in what code
    it is.
    """
    path = ":".join(os.path.abspath(each) for each in sys.path if each)
    start = [os.fsencode(sys.executable), b"-I", b"-B", b"-c", _START.encode(), os.fsencode(path)]
    return [*start, b"%d" % channel, ignored(), root, directory, b"%d" % len(own), *own, *command]


def main(argv: Sequence[str]) -> NoReturn:
    """See `arguments`."""
    channel, numbers, *rest = argv
    root, directory, count, *words = map(os.fsencode, rest)
    own, command = words[: int(count)], words[int(count) :]
    ignore(numbers)
    os.set_inheritable(int(channel), False)
    with socket.socket(fileno=int(channel)) as talk:
        try:
            device = _put_under(root, own)
            notify.give_up_privileges()
            landlock.keep_in()
            listeners = _filter()
        except (HoldfastError, OSError) as error:
            talk.send(_said(error))
            os._exit(CANNOT_EXECUTE)
        hand_out(talk, device, *listeners)
        try:
            # (Of what is open from outside, nothing else leads into the workspace: the standard descriptors are no
            # directories, with which the interpreter would not have started.)
            os.chdir(directory)
        except OSError as error:
            talk.send(b"%d" % (error.errno or 0))
            os._exit(CANNOT_EXECUTE)
        become(talk, command)


def _filter() -> list[int]:
    """Put this process under the filter. The parent of the tree has the listener; where another supervisor's filter has
    one already, a tree can have no second, and sets nothing of other processes.
    """
    machine = os.uname().machine
    try:
        return [notify.install(bpf.program(machine, "targets"))]
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        notify.install_unheard(bpf.program(machine, "nothing"))
        return []


def _said(error: HoldfastError | OSError) -> bytes:
    text = f"{error.message} ({error.hint})" if isinstance(error, HoldfastError) and error.hint else str(error)
    return text.encode("utf-8", "replace")[:_MOST_BYTES]


def _put_under(root: bytes, own: Sequence[bytes]) -> int:
    """Mount over the workspace, for this process and all that it starts alone; returns the device."""
    is_root = os.geteuid() == 0
    try:
        separate(user=not is_root)
    except OSError as error:
        raise UnsupportedError(f"no namespace of its own can be made: {error.strerror}", hint=_NEEDED) from error
    try:
        mount(b"none", b"/", MS_REC | MS_PRIVATE)
        flags = os.statvfs(root).f_flag & KEPT_FLAGS
        shut(own, root)
        return mount_directly(root, allow_other=is_root, flags=flags)
    except PermissionError as error:
        raise UnsupportedError(f"{display(root)} cannot be mounted on: {error.strerror}", hint=_NEEDED) from error
