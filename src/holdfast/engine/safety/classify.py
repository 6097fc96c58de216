"""What a shell command may do: the whole of it, for whoever asks before it is run."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from holdfast.engine.safety.classes import Reason, combine
from holdfast.engine.safety.parse import CannotParseError, Characters, Texts, encode
from holdfast.engine.safety.shell import Shell
from holdfast.engine.safety.walk import TooMuchError, Walker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.engine.safety.classes import Level, Safety

_NO_PROGRAMS: Mapping[str, Level] = {}


def classify(
    command: str, *, cwd: bytes, root: bytes, env: Mapping[str, str], programs: Mapping[str, Level] = _NO_PROGRAMS
) -> Safety:
    """What ``command`` may do if a shell runs it in the directory ``cwd`` of the workspace ``root``.

    ``env`` are the variables that the shell begins with. ``programs`` says of programs, by name, what they may do, and
    goes before what is known of them here (`classes.levels_of`). Both paths are absolute. Nothing is run, and no file
    looked at, so links may lead elsewhere than their names say. Never raises; what is too long, too deep or not
    understood is "unknown".
    """
    try:
        return examine(command, cwd=cwd, root=root, env=env, programs=programs)
    except Exception as error:  # noqa: BLE001 - whoever asks is about to run it, and needs an answer also if we fail
        text = f"it could not be looked into ({type(error).__name__}), which is a fault of Holdfast"
        return combine([Reason(text, "", 0, len(command), "unknown", reversible=False)])


def examine(
    command: str, *, cwd: bytes, root: bytes, env: Mapping[str, str], programs: Mapping[str, Level] = _NO_PROGRAMS
) -> Safety:
    """The same as `classify`, except that a fault in it is raised."""
    shell = Shell(_path(cwd), _path(root), env)
    # A relative directory is searched wherever the shell is, and so in the workspace.
    shell.shadowed = any(not part.startswith("/") for part in env["PATH"].split(":")) if "PATH" in env else False
    data = encode(command)
    texts = Texts(data)
    walk = Walker(texts, programs)
    try:
        walk.tree(texts.first, shell)
    except CannotParseError as error:
        walk.add(Reason(f"it is not looked into: {error}", "", 0, len(data), "unknown", reversible=False))
    except (TooMuchError, RecursionError):
        text = "not all of it is looked into: it does too much"
        walk.add(Reason(text, "", 0, len(data), "unknown", reversible=False))
    characters = Characters(command)
    return combine(_in_characters(reason, texts, characters) for reason in walk.reasons)


def _path(path: bytes) -> str:
    return posixpath.normpath(path).decode("utf-8", "surrogateescape")


def _in_characters(reason: Reason, texts: Texts, characters: Characters) -> Reason:
    start, end = texts.outermost(reason.start, reason.end)
    return reason._replace(start=characters.at(start), end=characters.at(end))
