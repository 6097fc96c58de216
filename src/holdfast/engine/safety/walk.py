"""Goes through the tree of a command as a shell would, on every way at once, and asks of each program what it does."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from holdfast.engine.safety.call import Call
from holdfast.engine.safety.classes import Reason
from holdfast.engine.safety.commands import RESERVED, redirected
from holdfast.engine.safety.expand import SUBSTITUTIONS, Expansion
from holdfast.engine.safety.network import FETCHING
from holdfast.engine.safety.parse import CannotParseError, encode, errors_in, joined_in, parse
from holdfast.engine.safety.programs import BUILTINS, PROGRAMS, STANDARD_PLACES
from holdfast.engine.safety.structures import VISITORS, parts
from holdfast.engine.safety.words import Word
from holdfast.model.named import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tree_sitter import Node

    from holdfast.engine.safety.classes import Level
    from holdfast.engine.safety.parse import Source, Texts
    from holdfast.engine.safety.shell import Function, Shell

MAX_VISITS = 20_000
"""Nodes that are looked at in all, scripts within scripts and loops gone through again included."""
MAX_SCRIPTS = 1 << 20
"""Bytes of scripts within scripts, each as often as it is gone through."""
MAX_DEPTH = 120
"""How deep nodes, functions and scripts may lie in each other when they are run."""
MAX_RECURSION = 3
"""How often a function is gone through again from within itself, where it finds another state."""


class _Running(NamedTuple):
    """A function that is being gone through."""

    bodies: tuple[tuple[int, int], ...]
    apart: int
    state: object
    """What it may depend on."""


class TooMuchError(Exception):
    """More than is looked at."""


class Walker:
    """One command that is gone through; a `call.Walk`."""

    def __init__(self, texts: Texts, programs: Mapping[str, Level]) -> None:
        self.reasons: list[Reason] = []
        self.behind: dict[tuple[int, int], list[Node]] = {}
        """Further arguments of commands, which stand behind a redirection of something that they are a part of."""
        self._texts = texts
        self._programs = programs
        self._fetches: list[tuple[int, int]] = []
        self._visits = 0
        self._scripts = 0
        self._depth = 0
        self._running: list[_Running] = []

    def add(self, reason: Reason) -> None:
        """Keep a reason; its positions are bytes still."""
        self.reasons.append(reason)

    def fetched(self, start: int, end: int) -> bool:
        """True if between these bytes something is taken from the network."""
        return any(start <= one and other <= end for one, other in self._fetches)

    def script(self, text: str, shell: Shell, span: tuple[int, int]) -> None:
        """Look into a text that a shell runs."""
        data = encode(text)
        self._scripts += len(data)
        if self._scripts > MAX_SCRIPTS:
            raise TooMuchError
        try:
            self.tree(self._texts.add(data, span), shell)
        except CannotParseError as error:
            self.add(Reason(f"a script is not looked into: {error}", "", *span, "unknown", reversible=False))
            shell.forget()

    def invoke(self, words: Sequence[Word], shell: Shell, span: tuple[int, int]) -> None:
        """Look into a command that consists of ``words``."""
        name = words[0].text
        if not name:
            text = "which program that is, is known only then"
            self.add(Reason(text, words[0].shown, words[0].start, words[0].end, "unknown", reversible=False))
            if len(words) > 1 and words[0].many and words[1].text in PROGRAMS:
                # A variable that is empty leaves what follows as the command.
                self.invoke(words[1:], shell, span)
            shell.forget()
            return
        self._deeper()
        fetches = len(self._fetches)
        try:
            self._named(name, Call(posixpath.basename(name), tuple(words[1:]), span, shell, self))
        finally:
            self._depth -= 1
        if len(self._fetches) > fetches:
            # What it runs may stand elsewhere, as a function does.
            self._fetches.append(span)

    def _named(self, name: str, call: Call) -> None:
        function = call.shell.functions.get(name)
        if function is not None:
            self._function(name, function, call)
            if function.certain:
                return
        if call.program in FETCHING:
            self._fetches.append(call.span)
        place = posixpath.dirname(name)
        rule = PROGRAMS.get(call.program) if place in ("", *STANDARD_PLACES) else None
        level = self._programs.get(name)
        if level is not None:
            call.note(level, f"{call.program} is {level} by configuration")
        elif name in RESERVED:
            # The grammar takes a "{" in some places for a program, and what follows for its arguments.
            call.note("unknown", f"{name} does not stand where it has a meaning")
            call.run(call.arguments)
        elif rule is None:
            what = "a program that is not known here" if not place else "a program that is named by its path"
            call.note("unknown", f"{Word(name, 0, 0).shown}: {what}")
        elif call.shell.shadowed and name not in BUILTINS:
            call.note("unknown", f"{name} may be another program than its name says")
            rule(call)
        else:
            rule(call)

    def _function(self, name: str, function: Function, call: Call) -> None:
        shell, outer = call.shell, call.shell.positional
        many = any(word.many for word in call.arguments)
        positional = None if many else tuple(word.shape for word in call.arguments)
        running = _Running(
            tuple((source.base, node.start_byte) for node, source in function.bodies),
            shell.apart,
            (positional, dict(shell.variables), shell.cwds, shell.forgetful),
        )
        before = [one for one in self._running if one.bodies == running.bodies]
        if before and running.apart > before[-1].apart:
            call.note("dangerous", f"the function {name} starts itself again and again, which exhausts the machine")
            return
        if any(one.state == running.state for one in before):
            # The same once more, one at a time: what it does has been seen.
            return
        if len(before) > MAX_RECURSION:
            call.note("unknown", f"what the function {name} does in the end cannot be told")
            return
        self._running.append(running)
        ways: list[Shell] = []
        for body, source in function.bodies:
            way = shell.copy()
            way.positional = positional
            # What its definition redirects is redirected for each call.
            redirected(self, body, way, source)
            way.positional = outer
            ways.append(way)
        shell.become(ways)
        self._running.pop()

    def tree(self, source: Source, shell: Shell) -> None:
        """Look into all of a text; raises `CannotParseError`."""
        root = parse(source.data)
        for node in errors_in(root, source.data):
            start, end = source.place(node)
            self.add(Reason("no shell syntax that is understood", "", start, end, "unknown", reversible=False))
        for at in joined_in(root, source.data):
            start = source.base + at
            text = "a line is continued in the middle of a word, which is not followed"
            self.add(Reason(text, "", start, start + 2, "unknown", reversible=False))
        self.visit(root, shell, source)

    def visit(self, node: Node, shell: Shell, source: Source) -> None:
        """Look into ``node``, and leave ``shell`` as it may be afterwards."""
        self._visits += 1
        if self._visits > MAX_VISITS:
            raise TooMuchError
        if not node.child_count:
            return
        self._deeper()
        try:
            visitor = VISITORS.get(node.type)
            if visitor is None:
                self.each(node, shell, source)
            else:
                visitor(self, node, shell, source)
        finally:
            self._depth -= 1

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TooMuchError

    def each(self, node: Node, shell: Shell, source: Source) -> None:
        """Look into what ``node`` consists of, one after the other."""
        for child, beside in parts(node):
            self.statement(child, shell, source, beside=beside)

    def statement(self, node: Node, shell: Shell, source: Source, *, beside: bool) -> None:
        """Look into one of `parts`."""
        if beside:
            shell = shell.copy()
            shell.apart += 1
        self.visit(node, shell, source)

    def expand(self, nodes: Sequence[Node], shell: Shell, source: Source) -> list[Word]:
        """The words that ``nodes``, which have no space between them, become."""
        if not nodes:
            return []
        return Expansion(source, shell, lambda inner: self.inside(inner, shell, source)).words(nodes)

    def inside(self, node: Node, shell: Shell, source: Source) -> None:
        """What runs while a word is expanded."""
        if node.type in SUBSTITUTIONS:
            self.visit(node, shell, source)
        else:
            self.each(node, shell, source)
