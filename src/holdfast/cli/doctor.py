"""``doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli.command import Command
from holdfast.cli.console import current_directory
from holdfast.cli.terminal import show_path, when
from holdfast.model.message_text import plural, visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from holdfast import Finding, RepairedCatalog
    from holdfast.cli.console import Console

_MARKS = {"good": ("+", "green"), "limited": ("-", "yellow"), "wrong": ("!", "red")}


def _doctor(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast import diagnose, repair_catalog
    from holdfast.model.answers import upkeep as answers
    from holdfast.model.json_encoder import encode

    repaired = repair_catalog(console.home) if arguments.repair else None
    if arguments.repair and not console.json:
        console.answer(_repair_lines(repaired))
    found = diagnose(console.directory or current_directory(), home=console.home)
    if console.json:
        console.give(
            answers.Diagnosis,
            ok=all(finding.verdict != "wrong" for finding in found),
            findings=found,
            repaired=None if repaired is None else encode(answers.RepairedCatalog, repaired),
        )
    else:
        console.answer(_lines(console, found))
    return int(any(finding.verdict == "wrong" for finding in found))


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repair",
        action="store_true",
        help="first bring back a damaged or lost catalog",
    )


def _repair_lines(repaired: RepairedCatalog | None) -> Iterator[str]:
    if repaired is None:
        yield "The catalog is whole: nothing was repaired."
        return
    yield f"The catalog was damaged: {visible(repaired.damage)}."
    source = "the saved objects alone" if repaired.spare is None else f"its spare of {when(repaired.spare)}"
    yield f"It was brought back from {source}, with {plural(repaired.checkpoints, 'checkpoint')}."
    if repaired.brought_back:
        yield (f"{plural(repaired.brought_back, 'checkpoint')} of them came back from the copies beside their files.")
    if repaired.lost:
        yield (f"{plural(repaired.lost, 'saved object')} could not be used: data that it needs is damaged or gone.")
    if repaired.kept_as is not None:
        yield (f"The damaged catalog is kept in {show_path(repaired.kept_as)}; delete it when you miss nothing.")
    if repaired.problems:
        yield f"`holdfast verify` still finds {plural(repaired.problems, 'problem')}."


def _lines(console: Console, found: Sequence[Finding]) -> Iterator[str]:
    area = ""
    for finding in found:
        if finding.area != area:
            area = finding.area
            yield console.paint(area, "bold")
        mark, colour = _MARKS[finding.verdict]
        yield f"  {console.paint(mark, colour)} {visible(finding.message)}"
        if finding.help:
            yield f"      {visible(finding.help)}"
    yield _summary(console, found)


def _summary(console: Console, found: Sequence[Finding]) -> str:
    broken, limited = (sum(one.verdict == verdict for one in found) for verdict in ("wrong", "limited"))
    if broken:
        return console.paint(
            f"{plural(broken, 'thing is', 'things are')} broken: see the lines that begin with !.", "red"
        )
    if limited:
        return f"Nothing is broken; {plural(limited, 'thing')} cannot be used, or cost more: see the lines with -."
    return "Nothing is broken, and every feature can be used."


COMMANDS = {
    "doctor": Command(
        description="Check by trying what this machine, the home and the workspace allow, and say how to allow "
        "more: + works, - is missing or costs more, ! is broken. Only --repair changes anything, and only the "
        "catalog.",
        configure=_configure,
        run=_doctor,
        examples=(
            ("holdfast doctor", "a report to read"),
            ("holdfast doctor --json", "a report for programs"),
            ("holdfast doctor --repair", "bring back a catalog that is damaged or lost"),
        ),
        notes=(
            "Inside a run it only says that it cannot look from there.",
            (
                "--repair (docs/formats/catalog.md#repair) leaves the damaged catalog in the home, in damaged-…. "
                "No other process may have the home open meanwhile (exit 4). A catalog on a server is repaired "
                "from that server's backups (docs/reference/postgresql.md)."
            ),
        ),
        exits=((1, "something is broken"), (4, "refused: something has the catalog open that is to be repaired")),
    ),
}
