"""What a shell hands on to the next one: the directory that it was in, and the variables that it exported.

The shell itself says it, when it ends, into a file: a magic, ``$PWD``, the physical directory with a line break behind
it (nothing where it is gone), the environment that a child of it gets, and a word that shows that nothing is missing,
each ended by a NUL. What is too long for the environment of a program it says by name.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.model.log import Log
from holdfast.model.named import NamedTuple
from holdfast.model.paths import display, under

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOG = Log(__name__)

MAGIC = "holdfast-shell-1"
END = "end"
TOO_LONG = "__holdfast_too_long"
"""A variable that the shell makes up: its value names one that can be handed on to nobody."""

OWN = frozenset(
    (
        "_",
        "PWD",
        "SHLVL",
        "HOLDFAST_SESSION",
        "HOLDFAST_AGENT",
        "PS0",
        "PS1",
        "PS2",
        "PROMPT_COMMAND",
        "HISTCONTROL",
        "HISTIGNORE",
    )
)
"""Variables that are a shell's own: they say where it is and who asks, are taken away by one that is not interactive,
or belong to the hooks of one that is. They are never taken over.
"""

_MOST_BYTES = 16 << 20


class Carried(NamedTuple):
    """What one shell leaves for the next."""

    cwd: bytes
    """An absolute path, as the shell shows it (links in it are not resolved). It may be gone."""
    env: Mapping[str, str]
    """All that is exported, but for `OWN`; what is not UTF-8 as in `os.fsdecode`."""
    too_long: tuple[str, ...] = ()
    """What is exported besides, and longer than what a program can be started with."""


def read(path: bytes) -> Carried | None:
    """What a shell has written to the file ``path``; None if it has not, or not to the end. Where that is for all that
    it exports, it is logged.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES)
    except FileNotFoundError:
        return None
    carried = parse(data)
    if carried is None and f"\0{TOO_LONG}=".encode() in data:
        _LOG.warning(
            "more is exported than a program can be started with: the session keeps the directory and the variables "
            "that it had"
        )
    return carried


def parse(data: bytes) -> Carried | None:
    """See `read`. Any bytes may be given."""
    fields = data.split(b"\0")
    if len(fields) < 5 or fields[0] != MAGIC.encode() or fields[-2:] != [END.encode(), b""]:
        return None
    logical, physical, variables = fields[1], fields[2].removesuffix(b"\n"), fields[3:-2]
    directory = _directory(logical, physical)
    if directory is None:
        return None
    env: dict[str, str] = {}
    too_long: list[str] = []
    for variable in variables:
        name, equals, value = variable.partition(b"=")
        if name == TOO_LONG.encode():
            too_long += [os.fsdecode(value)] if value else []
        elif name and equals and os.fsdecode(name) not in OWN and not name.startswith(b"__holdfast"):
            env[os.fsdecode(name)] = os.fsdecode(value)
    return Carried(directory, env, tuple(too_long))


def _directory(logical: bytes, physical: bytes) -> bytes | None:
    """The path as the shell shows it, unless that leads elsewhere than where it is."""
    if not logical.startswith(b"/"):
        return physical or None
    if not physical:
        return logical  # it is gone
    try:
        same = os.path.samestat(os.stat(logical), os.stat(physical))
    except OSError:
        same = False
    return logical if same else physical


def relative(directory: bytes, root: bytes) -> str:
    """``directory`` as a session's state has it: from ``root`` on (``.`` is the root), or absolute if it lies outside.

    Links that lead to ``root`` from elsewhere do not make it another directory.
    """
    normal, root = os.path.normpath(directory), root.rstrip(b"/")
    if not under(normal, root):
        real = os.path.realpath(normal)
        if under(real, os.path.realpath(root)):
            normal, root = real, os.path.realpath(root)
        else:
            return os.fsdecode(normal)
    return os.fsdecode(normal[len(root) :].lstrip(b"/")) or "."


def existing(directory: bytes, root: bytes) -> bytes:
    """``directory``, or if it is gone, or nobody may enter it, the nearest above it; ``root``, if even that lies
    outside of it.
    """
    at = directory
    while not (os.path.isdir(at) and os.access(at, os.X_OK)):
        at = os.path.dirname(at) if under(at, root) and at != root else root
        if at == root:
            break
    if at != directory:
        _LOG.warning("%s is gone: the command begins in %s", display(directory), display(at))
    return at
