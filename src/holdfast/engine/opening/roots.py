"""Which directories may become a workspace: not the ones that nobody means."""

from __future__ import annotations

import os

from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.model.paths import display

_SYSTEM = frozenset(
    b"/bin /boot /dev /etc /home /lib /lib32 /lib64 /media /mnt /opt /proc /root /run /sbin /snap /srv /sys /tmp /usr "
    b"/usr/bin /usr/lib /usr/local /usr/share /var /var/lib /var/log /var/tmp /Applications /Library /System "
    b"/Users".split()
)
_NEVER = (b"/proc", b"/sys", b"/dev")


def check_root(path: bytes, *, home: bytes, user_home: bytes | None, force: bool) -> bytes:
    """Return the real path of ``path`` if it may become a workspace.

    Refused unless ``force``: ``/``, the user's home directory or what holds it, and system directories. Refused
    always: what is no directory, anything in ``/proc``, ``/sys`` or ``/dev``, and the Holdfast home or anything in it.
    """
    real = os.path.realpath(path)
    if not os.path.isdir(real):
        raise NotFoundError(f"{display(path)} is not a directory", hint="name a directory that exists")
    for kernel in _NEVER:
        if real == kernel or real.startswith(kernel + b"/"):
            raise RefusedError(f"{display(real)} belongs to the kernel; there is nothing to remember in it")
    refuse_own(real, home)
    reason = _unlikely(real, user_home)
    if reason is not None and not force:
        raise RefusedError(
            f"{display(real)} is {reason}; remembering all of it is hardly what you mean",
            hint="go to a project's directory, or repeat with --force if you do mean it",
        )
    return real


def refuse_own(real: bytes, home: bytes) -> None:
    """Raise `RefusedError` if the real path is the Holdfast home or lies in it (I14)."""
    holdfast = os.path.realpath(home)
    if real == holdfast or real.startswith(holdfast + b"/"):
        raise RefusedError(f"{display(real)} is Holdfast's own home; it never captures itself")


def _unlikely(real: bytes, user_home: bytes | None) -> str | None:
    if real == b"/":
        return "the root of the file system"
    if user_home is not None:
        mine = os.path.realpath(user_home)
        if real == mine:
            return "your home directory"
        if mine.startswith(real + b"/"):
            return "a directory that holds your home directory"
    if real in _SYSTEM:
        return "a system directory"
    return None
