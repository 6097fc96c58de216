"""The options of programs, read as getopt does, by a table for each program.

A table is a text such as ``r R recursive; f force; t= target-directory=``: options apart by ``;``, of each its names,
the first of which is what it is called here, with ``=`` where a value belongs to it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from holdfast.model.named import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.engine.safety.words import Word


class Table(NamedTuple):
    """The options of a program: names → what it is called here, and whether a value belongs to it."""

    names: Mapping[str, tuple[str, bool]]

    def find(self, name: str) -> tuple[str, bool] | None:
        """The option ``name``, or that one long one whose name begins so."""
        found = self.names.get(name)
        if found is None and len(name) > 1:
            begin = {of for known, of in self.names.items() if len(known) > 1 and known.startswith(name)}
            found = begin.pop() if len(begin) == 1 else None
        return found


class Options(NamedTuple):
    """What a program was given."""

    given: Mapping[str, list[Word | None]]
    operands: tuple[Word, ...]
    strange: tuple[str, ...]
    """Options that the table does not have."""
    uncertain: bool
    """True if something in it may or may not be an option."""

    def has(self, *names: str) -> bool:
        """True if one of these is given."""
        return any(name in self.given for name in names)

    def value(self, name: str) -> Word | None:
        """The last value of an option, if there is one."""
        values = [value for value in self.given.get(name, ()) if value is not None]
        return values[-1] if values else None

    def values(self, name: str) -> list[Word]:
        """All values of an option."""
        return [value for value in self.given.get(name, ()) if value is not None]


@cache
def table(text: str) -> Table:
    """The table that ``text`` writes."""
    names: dict[str, tuple[str, bool]] = {}
    for group in filter(None, (part.split() for part in text.split(";"))):
        first = group[0].rstrip("=")
        for name in group:
            names[name.rstrip("=")] = (first, name.endswith("="))
    return Table(names)


def read(words: Sequence[Word], spec: str = "", *, first: bool = False, single: bool = False) -> Options:
    """The options and operands in ``words``.

    ``first``: operands end the options, as for a program that runs another. ``single``: long options may have one dash.
    """
    options = table(spec)
    given: dict[str, list[Word | None]] = {}
    operands: list[Word] = []
    strange: list[str] = []
    uncertain = False
    waiting = list(reversed(words))
    while waiting:
        word = waiting.pop()
        lead = word.lead
        if lead == "--" and word.text is not None:
            operands += reversed(waiting)
            break
        if not lead.startswith("-") or lead == "-":
            # A variable without quotes may be anything, options too.
            uncertain = uncertain or (not lead and word.many)
            operands.append(word)
            if first:
                operands += reversed(waiting)
                break
            continue
        uncertain = uncertain or (word.text is None and "=" not in lead)
        dashes = 2 if lead.startswith("--") else 1
        name, equals, _ = lead[dashes:].partition("=")
        if dashes == 2 or (single and options.find(name) is not None):
            found = options.find(name)
            if found is None:
                strange.append(name)
                continue
            called, takes = found
            value = word.after(dashes + len(name) + 1) if equals else waiting.pop() if takes and waiting else None
            given.setdefault(called, []).append(value)
            continue
        at = 1
        while at < len(lead):
            found = options.names.get(lead[at])
            at += 1
            if found is None:
                strange.append(lead[at - 1])
                continue
            called, takes = found
            rest = word.after(at) if takes and at < len(word.shape) else None
            given.setdefault(called, []).append(rest or (waiting.pop() if takes and waiting else None))
            if takes:
                break
    return Options(given, tuple(operands), tuple(strange), uncertain)
