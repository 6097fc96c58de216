"""The users of a directory tree: processes that are in it, run a program of it, or have a file in it open
(proc_pid(5)).

Only processes that the user may inspect are found; as root, all.
"""

from __future__ import annotations

import os
from contextlib import suppress

from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.paths import display, under

_MOST_OF_COMMAND = 100


class DirectoryUser(NamedTuple):
    """A process."""

    pid: int
    command: str
    """The beginning of its command line, or its name."""


def users_of(directory: bytes) -> list[DirectoryUser]:
    """The processes that use the tree at ``directory``, a real path."""
    return sorted(
        DirectoryUser(int(name), command_of(b"/proc/" + name))
        for name in os.listdir(b"/proc")
        if name.isdigit() and _uses(b"/proc/" + name, directory)
    )


def _uses(process: bytes, directory: bytes) -> bool:
    links = [b"cwd", b"root", b"exe"]
    with suppress(OSError):
        links += [b"fd/" + fd for fd in os.listdir(process + b"/fd")]
    for link in links:
        with suppress(OSError):
            if under(os.readlink(process + b"/" + link), directory):
                return True
    return False


def command_of(process: bytes) -> str:
    """The command line of the process with this directory in ``/proc``, or its name; empty if unknown."""
    for name in (b"/cmdline", b"/comm"):
        with suppress(OSError), open(process + name, "rb") as file:
            words = file.read(4096).strip(b"\0\n").replace(b"\0", b" ")
            if words:
                return display(words)[:_MOST_OF_COMMAND]
    return ""
