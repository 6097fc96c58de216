"""``doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli.command import Command
from holdfast.cli.console import current_directory
from holdfast.model.message_text import plural, visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from holdfast import Finding
    from holdfast.cli.console import Console

_MARKS = {"good": ("+", "green"), "limited": ("-", "yellow"), "wrong": ("!", "red")}


def _doctor(console: Console, _arguments: argparse.Namespace) -> int:
    from holdfast import diagnose
    from holdfast.model.answers import upkeep as answers

    found = diagnose(console.directory or current_directory(), home=console.home)
    if console.json:
        console.give(answers.Diagnosis, ok=all(finding.verdict != "wrong" for finding in found), findings=found)
    else:
        console.answer(_lines(console, found))
    return int(any(finding.verdict == "wrong" for finding in found))


def _configure(_parser: argparse.ArgumentParser) -> None:
    """It has no arguments of its own."""


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
        return f"Nothing is broken; {plural(limited, 'thing')} cannot be had, or cost more: see the lines with -."
    return "Nothing is broken, and all can be had."


COMMANDS = {
    "doctor": Command(
        description="What this machine, the home and the workspace allow, found out by trying, and what would change "
        "that. A line begins with + for what is as it can be, - for what cannot be had or costs more, ! for what is "
        "broken. The last line is the verdict. Nothing is mended, and nothing begun. It takes a second or two.",
        configure=_configure,
        run=_doctor,
        examples=(("holdfast doctor", "in words"), ("holdfast doctor --json", "for programs, and for a report")),
        exits=((1, "something is broken"),),
    ),
}
