"""``vm``: the family of commands about the virtual machines that commands of the workspace run in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli.command import Command
from holdfast.model.answers import commands as answers
from holdfast.model.message_text import described_machine, size

if TYPE_CHECKING:
    import argparse

    from holdfast.cli.console import Console

VERBS = {
    "status": ("vm", "show those that run, and the disk that stays"),
    "reset": ("vm", "remove that disk: the next machine begins anew from its image"),
}


def _nothing(_parser: argparse.ArgumentParser) -> None:
    pass


def _family(console: Console, arguments: argparse.Namespace) -> int:
    return arguments.verb.run(console, arguments)


def _status(console: Console, arguments: argparse.Namespace) -> int:
    del arguments
    with console.open() as workspace:
        found = workspace.vm_status()
    if console.json:
        console.give(answers.VmStatus, found)
        return 0
    for one in found.running:
        kept = "its disk stays" if one.persistent else "its disk goes with it"
        console.answer([f"run {one.run}: {described_machine(one)}, {kept}"])
    if not found.running:
        console.say("No virtual machine of this workspace runs.")
    if found.disk_bytes is not None:
        console.say(f"The disk that stays takes {size(found.disk_bytes)}; `holdfast vm reset` removes it.")
    return 0


def _reset(console: Console, arguments: argparse.Namespace) -> int:
    del arguments
    with console.open() as workspace:
        was_there = workspace.vm_reset()
    if console.json:
        console.give(answers.VmReset, reset=was_there)
    elif was_there:
        console.say("Removed the virtual machine's disk. The files of the workspace stay as they are.")
    else:
        console.say("There is no virtual machine's disk to remove.")
    return 0


COMMANDS = {
    "vm": Command(
        description="The virtual machines of `--isolation vm`, and the disk that keeps the programs installed in "
        "them (docs/reference/vm.md).",
        configure=_nothing,
        run=_family,
        examples=(
            ("holdfast run --isolation vm -- make", "in a machine of its own"),
            ("holdfast vm status", "those that run, and the size of the disk"),
            ("holdfast vm reset", "begin anew from the image"),
        ),
        verbs=VERBS,
    ),
    "vm status": Command(
        description="Show the running virtual machines of this workspace, and the size of the disk that stays "
        "between runs.",
        configure=_nothing,
        run=_status,
        examples=(("holdfast vm status", "those that run"),),
    ),
    "vm reset": Command(
        description="Remove the disk that stays between runs, with the programs on it: the next machine starts "
        "from its image. Refused while a machine runs.",
        configure=_nothing,
        run=_reset,
        examples=(("holdfast vm reset", "begin anew"),),
        exits=((4, "refused: a machine runs"),),
    ),
}
