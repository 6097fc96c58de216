"""Files that both sides of a merge have changed: the options that decide them, and how they are shown."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from holdfast import UsageError
from holdfast.cli.phrases import foreseen
from holdfast.model.message_text import listed, visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable

    from holdfast import Workspace
    from holdfast.cli.console import Console
    from holdfast.engine.merging.fork_merge import ForkMerge
    from holdfast.engine.merging.reapply.resolver import FileRecord
    from holdfast.engine.merging.stacked_plan import Resolution

DECIDE = "--resolve PATH=FILE, --keep PATH or --take PATH"

_MOST = 16 << 20
"""Bytes of a resolution: what merge.max_bytes can be. A device may have no end."""


def how_to_decide(overlaps: Iterable[tuple[str, str]]) -> str:
    """The decisions that can settle these files, given as path and ``why``. A file that a directory shall replace can
    only go, or be renamed.
    """
    whys = dict(overlaps)
    blocked = [path for path, why in whys.items() if why == "in_the_way"]
    above = [{path[:at] for at, letter in enumerate(path) if letter == "/"} for path in blocked]
    free = whys.keys() - blocked
    places = free & set[str]().union(*above)
    ways: list[str] = []
    if free - places:
        ways.append(f"decide each with {DECIDE}")
    if places:
        ways.append(f"give way to the directory with {listed(f'--take {visible(path)}' for path in sorted(places))}")
    if any(places.isdisjoint(found) for found in above):
        ways.append("rename the file or the directory where both have one name")
    return "; ".join(ways)


def add_decision_options(parser: argparse.ArgumentParser) -> None:
    """``--resolve``, ``--keep`` and ``--take``."""
    parser.add_argument(
        "--resolve",
        metavar="PATH=FILE",
        action="append",
        default=[],
        help="PATH, which overlaps, gets the content of FILE; may be repeated",
    )
    parser.add_argument(
        "--keep", metavar="PATH", action="append", default=[], help="PATH, which overlaps, stays as it is"
    )
    parser.add_argument(
        "--take",
        metavar="PATH",
        action="append",
        default=[],
        help="PATH, which overlaps, becomes as the other side has it",
    )


def decisions_in(console: Console, workspace: Workspace, arguments: argparse.Namespace) -> dict[bytes, Resolution]:
    """The decisions in the options, by path in the workspace. Raises `UsageError`."""

    def named(path: str) -> bytes:
        (name,) = console.paths(workspace, [path])
        readings = [name, *(name for (name,) in console.printed_paths(workspace, [path]))]
        return next((one for one in readings if os.path.lexists(os.path.join(workspace.path, one))), name)

    return decisions(arguments, named)


def decisions(arguments: argparse.Namespace, named: Callable[[str], bytes]) -> dict[bytes, Resolution]:
    """The decisions in the options; ``named`` converts an argument to a path in the workspace.

    Raises `UsageError`.
    """
    from holdfast.engine.merging.stacked_plan import Resolution

    found: dict[bytes, Resolution] = {}

    def add(path: str, resolution: Resolution) -> None:
        name = named(path)
        if name in found:
            raise UsageError(f"{path} is decided twice")
        found[name] = resolution

    for given in arguments.resolve:
        path, sign, file = given.partition("=")
        if not sign or not path:
            raise UsageError(f"{given!r} is no PATH=FILE", hint="--resolve src/app.py=/tmp/app.py")
        try:
            with open(file, "rb") as opened:
                content = opened.read(_MOST + 1)
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}") from None
        if len(content) > _MOST:
            raise UsageError(f"{file} is larger than {_MOST >> 20} MiB, the limit of a resolution")
        add(path, Resolution(content=content))
    for path in arguments.keep:
        add(path, Resolution(prefer="ours"))
    for path in arguments.take:
        add(path, Resolution(prefer="theirs"))
    return found


def overlap_lines(found: ForkMerge, path: bytes, *, there: str = "in the fork") -> list[str]:
    """About one file that is open: why no rung has applied it, or what each would do, and the differences."""
    prepared = found.prepared
    lines = declined(tried for one in prepared.records if one.path == path for tried in one.tried)
    expected = prepared.foreseen.get(path)
    if expected is not None:
        from holdfast.model.answers.merges import Foreseen
        from holdfast.model.json_encoder import encode

        lines += foreseen(encode(Foreseen, expected))
    return [*lines, *difference_lines(*prepared.differences.get(path, ("", "")), there=there)]


def declined(tried: Iterable[Any]) -> list[str]:
    """Why each rung has not applied a file."""
    return [
        f"{one.rung}: {visible(one.said)}"
        for one in tried
        if one.rung != "person" and one.result != "answered" and one.said
    ]


def rungs_of(record: FileRecord) -> list[str]:
    """The rungs that have applied a file, each once."""
    return list(dict.fromkeys(one.rung for one in record.tried if one.result == "answered"))


def difference_lines(ours: str, theirs: str, *, here: str = "here", there: str) -> list[str]:
    """The changes of both sides in a file, each as hunks under the title ``here`` or ``there``."""
    lines: list[str] = []
    for what, hunks in ((here, ours), (there, theirs)):
        if hunks:
            lines += [f"{what}:", *(f"  {visible(line)}" for line in hunks.splitlines())]
    return lines
