"""``session``: the family of commands about shells that remember."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli.command import Command

if TYPE_CHECKING:
    import argparse

    from holdfast.cli.console import Console

VERBS = {
    "start": ("session.start_fork_delete_share", "begin one, in this workspace"),
    "list": ("session.list_info_history_branches", "those of this workspace"),
    "info": ("session.list_info_history_branches", "all about one"),
    "exec": ("session.exec_shell_classify", "run a command in it"),
    "shell": ("session.exec_shell_classify", "work in it at the terminal"),
    "history": ("session.list_info_history_branches", "its commands, and how they ended"),
    "checkpoint": ("session.checkpoint_branch_checkout", "save its state now"),
    "branch": ("session.checkpoint_branch_checkout", "save its state under a name"),
    "branches": ("session.list_info_history_branches", "the names of its states"),
    "checkout": ("session.checkpoint_branch_checkout", "bring the files and the shell to another state"),
    "fork": ("session.start_fork_delete_share", "begin another one from its state, in a directory of its own"),
    "merge": ("session.merge_pick_bisect_replay", "bring in what another one has done, such as a fork"),
    "pick": ("session.merge_pick_bisect_replay", "bring in what one command of another one has changed"),
    "bisect": ("session.merge_pick_bisect_replay", "find the first bad state, by a command"),
    "replay": ("session.merge_pick_bisect_replay", "run another one's commands again, from this state"),
    "delete": ("session.start_fork_delete_share", "delete it, and of a fork its directory as well"),
    "share": ("session.start_fork_delete_share", "let another agent use it, or no more"),
    "classify": ("session.exec_shell_classify", "say what a command may do, without running it"),
}


def _configure(_parser: argparse.ArgumentParser) -> None:
    pass


def _run(console: Console, arguments: argparse.Namespace) -> int:
    return arguments.verb.run(console, arguments)


COMMANDS = {
    "session": Command(
        description="A shell that remembers: its directory, its exported variables and its history go on from command "
        "to command, whichever process runs them, and its files can be brought back to the state before any of them. "
        "`holdfast session COMMAND --help` tells all about one command.",
        configure=_configure,
        run=_run,
        examples=(
            ("holdfast session start", "begin one in this workspace"),
            ("holdfast session exec 'cd src; make'", "run a command in it; the next one begins in src"),
            ("holdfast session branch before-upgrade", "give its state a name"),
            ("holdfast session checkout before-upgrade", "come back to it, files and shell"),
            ("holdfast session fork", "try something beside it"),
        ),
        verbs=VERBS,
    ),
}
