"""The level of a shell command: a guess from its words, which protects nothing (docs/reference/classify.md)."""

from __future__ import annotations

import posixpath
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from holdfast.model.errors import UsageError
from holdfast.model.session_types import LEVELS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from holdfast.engine.safety._bash_parser import Command
    from holdfast.engine.safety._program_table import Row
    from holdfast.model.session_types import Level

_NO_PROGRAMS: Mapping[str, Level] = {}
_RANK: Mapping[str, int] = {level: rank for rank, level in enumerate(LEVELS)}
_MAX_NESTED = 8
"""How many programs that run another, and texts after ``sh -c``, are examined."""
_MAX_DIRECTORIES = 8
_BINARIES = frozenset(("/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin"))
_HARMLESS = frozenset(("/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/zero", "/dev/full"))


def levels_of(programs: Iterable[str]) -> dict[str, Level]:
    """The levels of programs by name, from entries such as ``terraform=risky`` (the key `safety.programs`).

    A later entry for a program overrides earlier ones. Raises `UsageError` for an invalid entry.
    """
    found: dict[str, Level] = {}
    for entry in programs:
        name, _, level = entry.rpartition("=")
        if not name or level not in _RANK:
            raise UsageError(
                f"{entry!r} gives no level to a program",
                hint=f"write name=level, where the level is one of {', '.join(LEVELS)}",
            )
        found[name] = LEVELS[_RANK[level]]
    return found


def classify(
    command: str, *, cwd: bytes, root: bytes, env: Mapping[str, str], programs: Mapping[str, Level] = _NO_PROGRAMS
) -> Level:
    """The level of ``command`` for a shell in the directory ``cwd`` of the workspace ``root``.

    ``env`` is the shell's initial environment. ``programs`` maps names to levels, and overrides the table
    (`levels_of`). Both paths are absolute. Runs nothing, and reads no file. Never raises.
    """
    try:
        return examine(command, cwd=cwd, root=root, env=env, programs=programs)
    except Exception:  # noqa: BLE001 - the caller is about to run it, and needs an answer also if this fails
        return "unknown"


def examine(
    command: str, *, cwd: bytes, root: bytes, env: Mapping[str, str], programs: Mapping[str, Level] = _NO_PROGRAMS
) -> Level:
    """The same as `classify`, except that a fault in it is raised."""
    return _Classifier(_path(root), env, programs).text(command, [_path(cwd)], 0)


def _path(path: bytes) -> str:
    return posixpath.normpath(path).decode("utf-8", "surrogateescape")


def _highest(levels: Iterable[Level]) -> Level:
    return LEVELS[max((_RANK[level] for level in levels), default=0)]


class _Classifier:
    """Judges the parts of one command."""

    def __init__(self, root: str, env: Mapping[str, str], programs: Mapping[str, Level]) -> None:
        self._root = root
        self._env = env
        self._programs = programs
        # A relative directory in PATH is one of the workspace, where a program can have any name.
        self._shadowed = any(not part.startswith("/") for part in env["PATH"].split(":")) if "PATH" in env else False
        self._cwds: list[str] = []
        """Where the shell may be; empty: anywhere."""

    def text(self, text: str, cwds: Sequence[str], depth: int) -> Level:
        """The level of a command line, or of a script in one."""
        from holdfast.engine.safety._bash_parser import CannotParseError, commands

        before, self._cwds = self._cwds, list(cwds)
        try:
            return _highest([self._part(part, depth) for part in commands(text)])
        except CannotParseError:
            return "unknown"
        finally:
            self._cwds = before

    def _part(self, part: Command | None, depth: int) -> Level:
        if part is None:
            return "unknown"
        levels: list[Level] = [self._assigned(name, value) for name, value in part.assigned]
        if part.redirected is not None:
            levels.append(self._redirected(*part.redirected))
        if part.words:
            levels.append(self._run(part.words, depth, more=False))
        return _highest(levels)

    def _assigned(self, name: str, value: str) -> Level:
        from holdfast.engine.safety._program_table import VALUE, VARIABLES

        return "safe" if name in VARIABLES and VALUE.fullmatch(value) else "unknown"

    def _redirected(self, operator: str, target: str) -> Level:
        if operator in (">&", "<&") and (target.isdigit() or target == "-"):
            return "safe"
        if operator in ("<", "<&"):
            # `/dev/tcp/HOST/PORT` is a connection.
            return "unknown" if self._written(target) == "dangerous" else "safe"
        return self._written(target)

    def _run(self, words: Sequence[str], depth: int, *, more: bool) -> Level:
        """The level of a program with its arguments; with ``more``, further ones that are not known follow."""
        from holdfast.engine.safety._program_table import SHELLS, rows, wrappers

        name, arguments = words[0], words[1:]
        if name in self._programs:
            return self._programs[name]
        if self._shadowed or depth > _MAX_NESTED:
            return "unknown"
        if posixpath.dirname(name) in _BINARIES:
            name = posixpath.basename(name)
        if name == "cd" and not more:
            return self._go(arguments)
        if name in SHELLS and len(arguments) >= 2 and re.fullmatch(r"-[elux]*c", arguments[0]) and not more:
            return self.text(arguments[1], self._cwds, depth + 1)
        if name in wrappers() and not (name == "command" and arguments[:1] in (("-v",), ("-V",))):
            return self._wrapped(name, arguments, depth, more=more)
        key, operands = _named(name, arguments)
        row = next((row for row in rows().get(key, ()) if _holds(row, key[0], operands)), None)
        if row is None:
            return "unknown"
        if more and row.conditions and _RANK[row.level] < _RANK["risky"]:
            return "unknown"
        return _highest([row.level, *self._operands(row, operands)])

    def _go(self, arguments: Sequence[str]) -> Level:
        """``cd``: the shell is there afterwards, or stays if that fails."""
        if len(arguments) != 1 or arguments[0].startswith("-") or "CDPATH" in self._env:
            self._cwds = []
        there = [posixpath.normpath(posixpath.join(cwd, arguments[0])) for cwd in self._cwds]
        places = list(dict.fromkeys([*self._cwds, *there]))
        self._cwds = places if len(places) <= _MAX_DIRECTORIES else []
        return "safe"

    def _wrapped(self, name: str, arguments: Sequence[str], depth: int, *, more: bool) -> Level:
        from holdfast.engine.safety._program_table import wrappers

        wrapper = wrappers()[name]
        levels: list[Level] = [wrapper.level]
        rest = _after_options(arguments, wrapper.options)
        if rest is None or len(rest) < wrapper.operands:
            return "unknown"
        rest = rest[wrapper.operands :]
        while "assigns" in wrapper.marks and rest and "=" in rest[0]:
            variable, _, value = rest[0].partition("=")
            levels.append(self._assigned(variable, value))
            rest = rest[1:]
        if rest:
            levels.append(self._run(rest, depth + 1, more=more or "appends" in wrapper.marks))
        elif more:
            levels.append("unknown")
        return _highest(levels)

    def _operands(self, row: Row, arguments: Sequence[str]) -> list[Level]:
        """The levels of the files that a program writes or removes."""
        if not row.conditions.keys() & {"paths", "last", "erase"}:
            return []
        operands = _operands_of(arguments)
        values = [word.partition("=")[2] for word in arguments if "=" in word]
        values += [word[2:] for word in arguments if len(word) > 2 and word.startswith("-") and word[1] != "-"]
        # A script is no file operand.
        operands = operands[-1:] if "last" in row.conditions else operands["script" in row.conditions :]
        levels: list[Level] = [self._written(path) for path in (".", *operands, *values)]
        if "erase" in row.conditions and any(self._is_lost(path) for path in operands):
            levels.append("dangerous")
        return levels

    def _written(self, path: str) -> Level:
        """The level of writing to ``path``: in the workspace, to its repository, outside of it, to a device."""
        if path in _HARMLESS:
            return "safe"
        return _highest([self._place(place) for place in self._places(path)] or ["unknown"])

    def _places(self, path: str) -> list[str]:
        bases = ["/"] if path.startswith("/") else self._cwds
        return ["/" + posixpath.normpath(posixpath.join(base, path)).lstrip("/") for base in bases]

    def _place(self, path: str) -> Level:
        if path == self._root or path.startswith(self._root.rstrip("/") + "/"):
            names = path[len(self._root) :].strip("/").split("/")
            return "risky" if ".git" in names or ".holdfast" in names else "changes"
        return "dangerous" if path.startswith("/dev/") else "risky"

    def _is_lost(self, path: str) -> bool:
        """Whether ``path`` is above the workspace, of a repository, or outside of both the workspace and `/tmp`."""
        for place in self._places(path):
            above = place != self._root and f"{self._root}/".startswith(f"{place.rstrip('/')}/")
            temporary = place.startswith("/tmp/") and not place.startswith(f"{self._root}/")  # noqa: S108 - to know it
            if above or (self._place(place) == "risky" and not temporary):
                return True
        return False


def _named(program: str, arguments: Sequence[str]) -> tuple[tuple[str, ...], Sequence[str]]:
    """The longest name in the table that the words begin with, and what follows it."""
    from holdfast.engine.safety._program_table import GLOBALS, rows

    after = _after_options(arguments, GLOBALS[program]) if program in GLOBALS else arguments
    for rest in (after, arguments):
        for length in (2, 1):
            key = (program, *(rest or ())[:length])
            if len(key) == length + 1 and key in rows():
                return key, (rest or ())[length:]
    return (program,), arguments


def _after_options(words: Sequence[str], options: Sequence[str]) -> Sequence[str] | None:
    """The words after the leading options; None if there are others than ``options``."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        at += 1
        if word == "--":
            break
        if f"{word}=" in options:
            at += 1
        elif word not in options and not _has_value(word, options):
            return None
    return words[at:]


def _has_value(word: str, options: Sequence[str]) -> bool:
    """Whether ``word`` is one of ``options`` with its value attached."""
    starts = [one if one.startswith("--") else one[:-1] for one in options if one.endswith("=")]
    return word.startswith(tuple(starts))


def _operands_of(words: Sequence[str]) -> list[str]:
    end = words.index("--") if "--" in words else len(words)
    return [word for word in words[:end] if not word.startswith("-") or word == "-"] + list(words[end + 1 :])


def _holds(row: Row, program: str, words: Sequence[str]) -> bool:
    """Whether all conditions of ``row`` hold for the arguments ``words``."""
    from holdfast.engine.safety._program_table import SCRIPTS

    of = row.conditions
    operands = _operands_of(words)
    end = words.index("--") if "--" in words else len(words)
    options = [word for word in words[:end] if word.startswith("-") and word != "-"]
    if "alone" in of and (len(words) != 1 or words[0] not in of["alone"]):
        return False
    if "bare" in of and operands:
        return False
    if "only" in of and not all(_is_among(word, of["only"]) for word in options):
        return False
    if "with" in of and not any(_may_be(word, one) for word in words for one in of["with"]):
        return False
    if "not" in of and any(_may_be(word, one) for word in words for one in of["not"]):
        return False
    if "script" in of:
        pattern, each = SCRIPTS["sed" if program == "sed" else "awk"]
        scripts = operands if each else operands[:1]
        return bool(scripts) and all(pattern.fullmatch(one) for one in scripts)
    return True


def _is_among(word: str, options: Sequence[str]) -> bool:
    """Whether ``word`` is surely one of ``options``, or letters of several."""
    if word in options or f"{word}=" in options or _has_value(word, options):
        return True
    letters = {letter for one in options if not one.startswith("--") for letter in one[1:].rstrip("=")}
    return not word.startswith("--") and all(one in letters or one.isdigit() for one in word[1:])


def _may_be(word: str, option: str) -> bool:
    """Whether ``word`` may be, or hold, ``option``."""
    if not option.startswith("-") or "*" in option:
        return fnmatchcase(word, option)
    name = word.partition("=")[0]
    if option.startswith("--"):
        return len(name) > 2 and option.startswith(name)
    if len(option) > 2:
        return word == option
    return word.startswith("-") and not word.startswith("--") and option[1] in word
