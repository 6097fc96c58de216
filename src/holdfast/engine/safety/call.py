"""A program that a command runs, as the rules in `programs` and beside it see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from holdfast.engine.safety.classes import Reason
from holdfast.engine.safety.options import read
from holdfast.engine.safety.places import verdict
from holdfast.model.named import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.engine.safety.options import Options
    from holdfast.engine.safety.places import Deed
    from holdfast.engine.safety.shell import Shell
    from holdfast.engine.safety.words import Word
    from holdfast.model.session import Level


class Walk(Protocol):
    """What goes through a command; see `classify`."""

    def add(self, reason: Reason) -> None:
        """Keep a reason; its positions are bytes still."""
        ...

    def invoke(self, words: Sequence[Word], shell: Shell, span: tuple[int, int]) -> None:
        """Look into a command that consists of ``words``."""
        ...

    def script(self, text: str, shell: Shell, span: tuple[int, int]) -> None:
        """Look into a text that a shell runs."""
        ...

    def fetched(self, start: int, end: int) -> bool:
        """True if between these bytes something is taken from the network."""
        ...


class Call(NamedTuple):
    """A program with its arguments."""

    program: str
    arguments: tuple[Word, ...]
    span: tuple[int, int]
    shell: Shell
    walk: Walk

    def note(self, level: Level, text: str, *, at: Word | None = None, reversible: bool | None = None) -> None:
        """Say something that it does, ``at`` an argument or as a whole. What is safe is not worth a word."""
        if level == "safe":
            return
        start, end = (at.start, at.end) if at is not None else self.span
        comes_back = level in ("safe", "changes") if reversible is None else reversible
        self.walk.add(Reason(text, self.program, start, end, level, comes_back))

    def change(self, words: Iterable[Word], deed: Deed, does: str) -> None:
        """Say that it ``does`` (such as "removes") something to the files that ``words`` name."""
        for word in words:
            found = verdict(word, deed, self.shell)
            note = f": {found.note}" if found.note else ""
            self.note(found.level, f"{does} {word.shown}{note}", at=word, reversible=found.reversible)

    def options(self, spec: str = "", *, first: bool = False, single: bool = False) -> Options:
        """The arguments, read by a table of options."""
        return read(self.arguments, spec, first=first, single=single)

    def named(self, *options: str) -> Word | None:
        """The first argument that may be one of these long options, also one that is cut short; else none.

        For options that name a program: what stands behind ``--``, or is the value of another, is not told apart.
        """
        for word in self.arguments:
            name = word.lead[2:].partition("=")[0]
            if name and word.lead.startswith("--") and any(option.startswith(name) for option in options):
                return word
        return None

    def run(self, words: Sequence[Word], shell: Shell | None = None) -> None:
        """Look into the command that it runs."""
        if words:
            self.walk.invoke(words, self.shell if shell is None else shell, self.span)

    def script(self, word: Word, shell: Shell, what: str) -> None:
        """Look into the text of a script, given as an argument."""
        text = word.text
        if self.walk.fetched(word.start, word.end):
            self.note("dangerous", f"runs what comes from the network as {what}", at=word)
        elif text is None:
            self.note("unknown", f"runs {what} that is put together only then", at=word)
        else:
            self.walk.script(text, shell, (word.start, word.end))
