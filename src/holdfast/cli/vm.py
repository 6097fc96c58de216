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
        description="The virtual machines in which commands run with `--isolation vm`: how they fare, and the "
        "disk that keeps the programs installed in one. The files of the workspace are no part of it; undo reverses "
        "changes to those (docs/reference/vm.md).",
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
        description="Show the virtual machines of this workspace that run (image, accelerator, how they see the "
        "files, memory of this host in use), and how much the disk takes that stays from one to the next.",
        configure=_nothing,
        run=_status,
        examples=(("holdfast vm status", "those that run"),),
    ),
    "vm reset": Command(
        description="Remove the disk that stays: the programs installed in the virtual machine are gone, and the next "
        "one begins anew from its image. Refused while one runs. The workspace stays as it is.",
        configure=_nothing,
        run=_reset,
        examples=(("holdfast vm reset", "begin anew"),),
        exits=((4, "refused: a machine runs"),),
    ),
}
