"""Why the system refuses a change of the tree, for people: with the command that lifts it."""

from __future__ import annotations

import os

from holdfast.files.linux import syscalls
from holdfast.model.paths import display


def refusal_cause(root_fd: int, path: bytes) -> str | None:
    """Why ``path``, relative to the root, or its entry in its directory cannot be changed: one of them is on a
    read-only mount or protected by chattr(1), or the directory is not writable. None if unknown.
    """
    directory = path.rpartition(b"/")[0] or b"."
    return cause_at(root_fd, path) or cause_at(root_fd, directory, "its directory", has_entries=True)


def cause_at(root_fd: int, path: bytes, subject: str = "it", *, has_entries: bool = False) -> str | None:
    """The same only for the object at ``path``, named ``subject``. ``has_entries``: a directory, whose entries are to
    be changed.
    """
    at = b"/proc/self/fd/%d/%b" % (root_fd, path)
    try:
        if os.statvfs(at).f_flag & os.ST_RDONLY:
            return f"{subject} is on a read-only mount"
        if found := syscalls.protection(at):
            return f"{subject} is protected: `chattr -{found} {_word(path)}` lifts that"
        if has_entries and not os.access(at, os.W_OK | os.X_OK, effective_ids=True):
            return f"{subject} may not be written: `chmod u+w {_word(path)}`, if it is yours"
    except OSError:
        pass  # it is missing or inaccessible
    return None


def _word(path: bytes) -> str:
    import shlex  # (seldom needed, and restore is a short command)

    return shlex.quote(display(path))
