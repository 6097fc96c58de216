"""What is known of a shell while a command runs in it: where it is, its variables, its functions, its input.

Where the ways through a command part (a branch, a loop), `Shell.join` keeps what holds on all of them.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from holdfast.engine.safety.words import ANY, SET, STAR, UNKNOWN
from holdfast.model.named import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tree_sitter import Node

    from holdfast.engine.safety.parse import Source

MAX_PLACES = 4
MAX_VALUE = 2048
"""A variable that is longer than this has a value that nobody knows."""


class Function(NamedTuple):
    """A function that the command itself defines."""

    bodies: tuple[tuple[Node, Source], ...]
    """Its definitions. More than one where it depends on the way which one it is."""
    certain: bool
    """False if the name may also still mean a program."""


class Input(NamedTuple):
    """Where standard input comes from."""

    kind: str
    """``pipe``, ``text`` (written in the command itself), ``file`` or ``inherited``."""
    text: str = ""
    start: int = 0
    end: int = 0


INHERITED = Input("inherited")


class Shell:
    """The state of one shell. Values of variables are shapes, as in `words`."""

    def __init__(self, cwd: str, root: str, env: Mapping[str, str]) -> None:
        self.root = root
        self.env = env
        self.cwds: tuple[str, ...] = (cwd,)
        """Where it may be; empty: anywhere."""
        self.cwd_if_well: tuple[str, ...] = self.cwds
        """Where it is if the last command did what it should."""
        self.variables: dict[str, str] = {}
        self.functions: dict[str, Function] = {}
        self.positional: tuple[str, ...] | None = None
        self.input = INHERITED
        self.forgetful = False
        """True if any variable may have any value."""
        self.shadowed = False
        """True if the names of programs may mean others."""
        self.apart = 0
        """How many pipelines, background jobs and the like it runs in."""

    def copy(self) -> Shell:
        """Another shell that goes on from here by itself."""
        other = Shell.__new__(Shell)
        other.__dict__.update(self.__dict__)
        other.variables = dict(self.variables)
        other.functions = dict(self.functions)
        return other

    def become(self, ways: Sequence[Shell]) -> None:
        """Go on with what holds after each of ``ways``."""
        first = ways[0]
        places = {place for way in ways for place in way.cwds}
        anywhere = len(places) > MAX_PLACES or not all(way.cwds for way in ways)
        self.cwds = self.cwd_if_well = () if anywhere else tuple(sorted(places))
        names = {name for way in ways for name in way.variables}
        values = {name: {way.value(name) for way in ways} for name in names}
        self.variables = {name: all_.pop() if len(all_) == 1 else UNKNOWN for name, all_ in values.items()}
        known = {name for way in ways for name in way.functions}
        self.functions = {name: _either([way.functions.get(name) for way in ways]) for name in known}
        self.positional = first.positional if all(way.positional == first.positional for way in ways) else None
        self.forgetful = any(way.forgetful for way in ways)
        self.shadowed = any(way.shadowed for way in ways)

    def value(self, name: str) -> str:
        """The value of a variable, as a shape."""
        if name in self.variables:
            return self.variables[name]
        if self.forgetful:
            return UNKNOWN
        if name == "PWD":
            return self.cwds[0] if len(self.cwds) == 1 else UNKNOWN
        value = self.env.get(name, UNKNOWN)
        return UNKNOWN if len(value) > MAX_VALUE or any(one <= SET for one in value) else value

    def home(self) -> str | None:
        """The user's directory, as ``~`` has it."""
        value = self.value("HOME")
        return value if value.startswith("/") and not any(mark in value for mark in (UNKNOWN, STAR, ANY, SET)) else None

    def forget(self) -> None:
        """Nothing is known any more of what a command may have changed."""
        self.variables.clear()
        self.functions = {name: of._replace(certain=False) for name, of in self.functions.items()}
        self.forgetful = True
        self.cwds = self.cwd_if_well = ()
        self.positional = None

    def go(self, shape: str | None) -> None:
        """Change the directory to ``shape``, or to where nobody knows. It may also stay, if that fails."""
        if shape is None or not self.cwds or any(one <= SET for one in shape):
            self.cwds = self.cwd_if_well = ()
            return
        there = tuple(dict.fromkeys(posixpath.normpath(posixpath.join(cwd, shape)) for cwd in self.cwds))
        self.cwd_if_well = there
        places = tuple(dict.fromkeys((*there, *self.cwds)))
        self.cwds = places if len(places) <= MAX_PLACES else ()


def _either(ways: Sequence[Function | None]) -> Function:
    bodies = tuple(dict.fromkeys(body for way in ways if way is not None for body in way.bodies))
    return Function(bodies, all(way is not None and way.certain for way in ways))
