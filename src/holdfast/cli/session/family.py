"""``session``: the family of commands about shells that remember."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli.command import Command

if TYPE_CHECKING:
    import argparse

    from holdfast.cli.console import Console

VERBS = {
    "start": ("session.start_fork_delete_share", "start a session in this workspace"),
    "stop": ("session.start_fork_delete_share", "shut down the virtual machine of a session"),
    "list": ("session.list_info_history_branches", "list the sessions of this workspace"),
    "info": ("session.list_info_history_branches", "show one session"),
    "exec": ("session.exec_shell_classify", "run a command in a session"),
    "shell": ("session.exec_shell_classify", "work in a session at the terminal"),
    "history": ("session.list_info_history_branches", "list the commands of a session, and their exit codes"),
    "checkpoint": ("session.checkpoint_branch_checkout", "save the state of a session now"),
    "branch": ("session.checkpoint_branch_checkout", "save the state of a session under a name"),
    "branches": ("session.list_info_history_branches", "list the names of a session's states"),
    "checkout": ("session.checkpoint_branch_checkout", "bring the files and the shell to another state"),
    "fork": ("session.start_fork_delete_share", "start another session from this state, in a new directory"),
    "merge": ("session.merge_pick_bisect_replay", "merge the changes of another session, such as a fork"),
    "pick": ("session.merge_pick_bisect_replay", "apply the changes of one command of another session"),
    "bisect": ("session.merge_pick_bisect_replay", "find the first bad state with a command that tests it"),
    "replay": ("session.merge_pick_bisect_replay", "run another session's commands again, from this state"),
    "delete": ("session.start_fork_delete_share", "delete a session, and the directory of a fork"),
    "share": ("session.start_fork_delete_share", "let another agent use the session, or stop that"),
    "classify": ("session.exec_shell_classify", "say what a command may do, without running it"),
}


def _configure(_parser: argparse.ArgumentParser) -> None:
    pass


def _run(console: Console, arguments: argparse.Namespace) -> int:
    return arguments.verb.run(console, arguments)


COMMANDS = {
    "session": Command(
        description="A shell that remembers: directory, exported variables and history continue from "
        "command to command, in any process, and the files can go back to the state before "
        "any command. `holdfast session COMMAND --help` tells all about one command.",
        configure=_configure,
        run=_run,
        examples=(
            ("holdfast session start", "start one in this workspace"),
            ("holdfast session exec 'cd src; make'", "run a command in it; the next one begins in src"),
            ("holdfast session branch before-upgrade", "give its state a name"),
            ("holdfast session checkout before-upgrade", "return to it, files and shell"),
            ("holdfast session fork", "try an idea beside it"),
        ),
        verbs=VERBS,
    ),
}
