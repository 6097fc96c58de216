"""``session checkpoint``, ``branch`` and ``checkout``: a session's states."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast import UsageError
from holdfast.cli.command import Command, text
from holdfast.cli.phrases import files, left_alone, only_there, reasons
from holdfast.cli.session.list_info_history_branches import SHORT_HASH, branch_name
from holdfast.cli.session.selection import add_options, open_session, use_session
from holdfast.cli.terminal import show_path
from holdfast.model.message_text import visible

if TYPE_CHECKING:
    import argparse

    from holdfast.cli.console import Console


def _configure_checkpoint(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument("-m", "--message", metavar="TEXT", type=text, default="", help="why")


def _checkpoint(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.model.answers import sessions as answers

    with use_session(console, arguments.session, arguments.agent) as session:
        point = session.checkpoint(arguments.message)
    if console.json:
        console.give(answers.SessionCheckpoint, point)
    else:
        tree = (point.state.tree or "")[:SHORT_HASH]
        console.say(f"Saved {session.id} as {point.hash[:SHORT_HASH]}, with checkpoint {tree}.")
    return 0


def _configure_branch(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument("name", metavar="NAME", type=text, help="the name of the state")
    parser.add_argument("-m", "--message", metavar="TEXT", type=text, default="", help="why")
    parser.add_argument("--remove", action="store_true", help="remove the name; its state may then go")


def _branch(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.model.answers import sessions as answers

    if arguments.remove and arguments.message:
        raise UsageError("--remove takes no --message")
    with use_session(console, arguments.session, arguments.agent) as session:
        if arguments.remove:
            reference = session.remove_branch(arguments.name)
        else:
            reference = session.branch(arguments.name, message=arguments.message)
    if console.json:
        console.give(answers.Branch, reference, removed=arguments.remove)
    elif arguments.remove:
        console.say(f"Removed the branch {branch_name(reference)}, which was {reference.checkpoint[:SHORT_HASH]}.")
    else:
        console.say(
            f"Saved {session.id} as {branch_name(reference)} ({reference.checkpoint[:SHORT_HASH]}); "
            f"`holdfast session checkout {branch_name(reference)}` returns to it."
        )
    return 0


def _configure_checkout(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument(
        "name", metavar="STATE", type=text, help="a branch, forks/ID, or the beginning of a saved state's hash"
    )


def _checkout(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.model.answers import sessions as answers

    with open_session(console, arguments.session, arguments.agent) as (_, session):
        found = session.checkout(arguments.name)
    restored = found.restored
    if console.json:
        console.give(answers.CheckedOut, found)
    else:
        where = show_path(os.fsencode(found.state.cwd))
        console.say(
            f"{session.id} is at {visible(arguments.name)} ({found.checkpoint.hash[:SHORT_HASH]}), in {where}: "
            f"{files(len(restored.written))} written, {len(restored.deleted):,} deleted."
        )
        if restored.skipped:
            console.say("Left alone:", *reasons(restored.skipped))
        console.say(*only_there(found.not_captured, visible(arguments.name)))
        console.say(
            f"The state before is {branch_name(found.saved)}; "
            f"`holdfast session checkout {branch_name(found.saved)}` brings it back."
        )
    if restored.skipped:
        raise left_alone(restored.skipped)
    return 0


BUSY = (4, "refused: another user owns the session, or another process has it open")
HELD_BACK = (4, "refused: a limit or a hook (docs/reference/experiment.md) forbids it, or the session is in use")

COMMANDS = {
    "session checkpoint": Command(
        description="Save a session's state now: directory, variables, history, files. Holdfast also does so by "
        "itself (docs/reference/session.md#when-it-is-saved).",
        configure=_configure_checkpoint,
        run=_checkpoint,
        examples=(("holdfast session checkpoint -m 'tests pass'", "save, with the reason"),),
        exits=(HELD_BACK,),
    ),
    "session branch": Command(
        description="Save a session's state under a name, for `holdfast session checkout`.",
        configure=_configure_branch,
        run=_branch,
        examples=(
            ("holdfast session branch before-upgrade", "a name for the present state"),
            ("holdfast session checkout before-upgrade", "return to it"),
            ("holdfast session branch --remove before-upgrade", "remove the name"),
        ),
        exits=(HELD_BACK,),
    ),
    "session checkout": Command(
        description="Bring a session to another state: files, directory, variables, history "
        "(docs/reference/session.md#going-back). The present state is saved first, as the branch "
        "`_auto/before-checkout-…`.",
        configure=_configure_checkout,
        run=_checkout,
        examples=(
            ("holdfast session checkout before-upgrade", "back to a branch"),
            ("holdfast session checkout forks/try-2", "to the newest state of a fork"),
            ("holdfast session checkout 3f2a9c", "to any state that is kept"),
        ),
        exits=(BUSY,),
    ),
}
