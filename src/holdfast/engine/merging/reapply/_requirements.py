"""Merging pip's lists of dependencies (requirements.txt) by the names of requirements.

Other lines, such as comments and options, must be as in the base or the same on both sides, and in the same order; only
production may have changed them alone. A file with continuation lines after a backslash is declined.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.engine.merging.reapply._keyed_tree import Clash

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAME = re.compile(r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(\[[^\]]*\])?\s*(?=$|[<>=!~;@,# (])")
_RUNS = re.compile(r"[-_.]+")


def merge(base: str, ours: str, theirs: str) -> str:
    """``ours`` with what ``theirs`` has changed in ``base``; raises `Clash`."""
    if "\\\n" in base + ours + theirs or "\r" in base + ours + theirs:
        raise Clash("it has lines that go on, or other line ends")
    sides = [text.splitlines(keepends=True) for text in (base, ours, theirs)]
    merged = merge_lines(*sides)
    if len(merged) > 1:
        merged = [line if line.endswith("\n") else line + "\n" for line in merged[:-1]] + merged[-1:]
    return "".join(merged)


def read(text: str) -> tuple[dict[str, str], list[str]]:
    """The requirements by name, and all other lines; raises `Clash`."""
    lines = text.splitlines()
    named = {name: line.strip() for name, line in _by_name(lines).items()}
    return named, [line for line in lines if key(line) is None]


def merge_lines(base: Sequence[str], ours: Sequence[str], theirs: Sequence[str]) -> list[str]:
    """The same for lists of requirements, each a text; raises `Clash`."""
    others = [[line for line in side if key(line) is None] for side in (base, ours, theirs)]
    before, here, there = (_by_name(side) for side in (base, ours, theirs))
    if others[2] not in (others[0], others[1]):
        raise Clash("lines that are no requirements were changed as well")
    out: list[str] = []
    for line in ours:
        name = key(line)
        if name is None:
            out.append(line)
            continue
        wanted = _pick(name, before.get(name), here[name], there.get(name))
        if wanted is not None:
            out.append(wanted)
    for name, line in there.items():
        if name in here:
            continue
        if _pick(name, before.get(name), None, line) is not None:
            _insert(out, name, line, list(there))
    return out


def _pick(name: str, base: str | None, ours: str | None, theirs: str | None) -> str | None:
    one, two, three = (None if side is None else side.strip() for side in (base, ours, theirs))
    if three in (one, two):
        return ours
    if two == one:
        return theirs
    raise Clash(f"both have changed {name}")


def _insert(out: list[str], name: str, line: str, order: list[str]) -> None:
    """Insert a requirement after its predecessor on its side, if that exists; otherwise at the end."""
    for earlier in reversed(order[: order.index(name)]):
        for at, known in enumerate(out):
            if key(known) == earlier:
                out.insert(at + 1, line)
                return
    out.append(line)


def _by_name(lines: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        name = key(line)
        if name is not None:
            if name in found:
                raise Clash(f"{name} is there twice")
            found[name] = line
    return found


def key(line: str) -> str | None:
    """The key of a requirement: its name, normalised as in PEP 503; None for another line."""
    found = _NAME.match(line)
    return None if found is None else _RUNS.sub("-", found[1]).lower()
