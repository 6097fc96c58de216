"""``session start``, ``fork``, ``delete`` and ``share``: which sessions there are, and whose they are."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast import RefusedError
from holdfast.cli.command import Command, text
from holdfast.cli.console import current_directory
from holdfast.cli.phrases import only_there
from holdfast.cli.session.checkpoint_branch_checkout import BUSY, HELD_BACK
from holdfast.cli.session.list_info_history_branches import SHORT_HASH
from holdfast.cli.session.selection import add_options, choose_session, open_session, open_sessions, use_session
from holdfast.cli.terminal import ask, show_path
from holdfast.model.config.keys import KEYS
from holdfast.model.errors import UnsupportedError, UsageError
from holdfast.model.message_text import named_processes, plural, visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from holdfast import Deleted, NotCaptured
    from holdfast.cli.console import Console
    from holdfast.model.session_results import SessionInfo
    from holdfast.model.session_types import SessionIsolation

_SETTINGS = {
    "shell": "session.shell",
    "timeout": "session.timeout",
    "max_output": "session.max_output_bytes",
}
"""The settings of the options."""


def _variable(argument: str) -> tuple[str, str]:
    name, equals, value = argument.partition("=")
    if not equals or not name.isidentifier() or "\0" in value:
        import argparse

        raise argparse.ArgumentTypeError(f"{argument!r} is not NAME=VALUE")
    return name, value


# -- start ------------------------------------------------------------------------------------------------------------


def _configure_start(parser: argparse.ArgumentParser) -> None:
    add_options(parser, session=False)
    parser.add_argument(
        "id", metavar="ID", nargs="?", type=text, help="the name of the session (default: a fresh name)"
    )
    parser.add_argument("--shell", metavar="NAME", choices=KEYS["session.shell"].choices, help="bash, sh or zsh")
    parser.add_argument("--timeout", metavar="T", type=text, help="end a command that takes longer: 90, 10m")
    parser.add_argument("--max-output", metavar="SIZE", type=text, help="how much to keep of each output")
    parser.add_argument(
        "--supervised",
        action="store_true",
        help="record its commands as steps, for `undo` (default: session.supervised)",
    )
    parser.add_argument(
        "--unsupervised",
        action="store_true",
        help="record no steps: for sudo, tracers, mounts, 32-bit programs",
    )
    parser.add_argument(
        "--isolation",
        metavar="LEVEL",
        choices=KEYS["isolation.level"].choices,
        default="none",
        help="vm: in a virtual machine, from now until `session stop`",
    )
    parser.add_argument(
        "--env", metavar="NAME=VALUE", type=_variable, action="append", default=[], help="a variable of its own"
    )


def _start(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.model.answers import sessions as answers

    flags = {key: getattr(arguments, name) for name, key in _SETTINGS.items() if getattr(arguments, name) is not None}
    if arguments.supervised and arguments.unsupervised:
        raise UsageError("a session is either --supervised or --unsupervised")
    if arguments.supervised or arguments.unsupervised:
        flags["session.supervised"] = arguments.supervised
    isolation = _isolation(console, arguments)
    with open_sessions(console, arguments.agent, flags) as sessions:
        path = os.fsencode(console.directory or current_directory())
        with sessions.start(path, arguments.id, env=dict(arguments.env), isolation=isolation) as session:
            if isolation == "vm":
                try:
                    session.tree()
                except BaseException:
                    session.delete()
                    raise
            if console.json:
                console.give(answers.Started, session)
            else:
                where = " in a virtual machine" if isolation == "vm" else ""
                console.say(
                    f"Session {session.id} works in {show_path(session.root)}, with {session.config.shell}{where}."
                )
                if console.quiet:
                    console.answer([session.id])
    return 0


def _isolation(console: Console, arguments: argparse.Namespace) -> SessionIsolation:
    """Where its commands will run; the needs of a virtual machine are ready then."""
    if arguments.isolation == "namespace":
        raise UnsupportedError(
            "commands of a session run on this host or in a virtual machine, not in namespaces",
            hint="`holdfast run --isolation namespace -- COMMAND` runs a command in them",
        )
    if arguments.isolation == "vm" and arguments.unsupervised:
        raise UsageError("what commands do in a virtual machine is recorded always", hint="leave --unsupervised out")
    if arguments.isolation == "vm":
        from holdfast.cli.image import provide_default

        with console.open(strict=True, create=True) as workspace:
            provide_default(console, workspace.vm_image)
    return arguments.isolation


# -- stop -------------------------------------------------------------------------------------------------------------


def _configure_stop(parser: argparse.ArgumentParser) -> None:
    add_options(parser, session=False)
    parser.add_argument(
        "id", metavar="ID", nargs="?", type=text, help="the session (default: $HOLDFAST_SESSION, else your newest here)"
    )


def _stop(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.model.answers import sessions as answers

    with open_session(console, arguments.id, arguments.agent, begins=True) as (_, session):
        if session.config.isolation == "none":
            raise UsageError(
                f"the session {session.id} has no virtual machine to stop",
                hint="what its commands have left running, `holdfast session info` lists",
            )
        stopped = session.stop_machine()
        if console.json:
            console.give(answers.StoppedSession, session, stopped=stopped)
        elif stopped:
            console.say(f"Stopped the virtual machine of {session.id}; the next command starts it again.")
        else:
            console.say(f"No virtual machine of {session.id} runs.")
    return 0


# -- fork -------------------------------------------------------------------------------------------------------------


def _configure_fork(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument("id", metavar="ID", nargs="?", type=text, help="the name of the fork (default: a fresh name)")
    parser.add_argument(
        "--from", dest="state", metavar="STATE", type=text, help="a branch, or a saved state's hash (default: now)"
    )
    parser.add_argument("--with-ignored", action="store_true", help="include ignored files, such as dependencies")
    parser.add_argument(
        "--provider",
        metavar="NAME",
        type=text,
        help="the snapshot provider (docs/reference/snapshot.md)",
    )
    parser.add_argument(
        "--on-branch",
        metavar="BRANCH",
        type=text,
        help="have Git make it, on this branch, new or at HEAD (else HEAD is detached)",
    )


def _fork(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.model.answers import sessions as answers

    if arguments.on_branch == "":  # an unset variable of a script: HEAD would be detached instead
        raise UsageError("'' is no name for a branch of Git", hint="leave --on-branch out for a detached HEAD")
    with use_session(console, arguments.session, arguments.agent, begins=True) as session:
        made = session.fork(
            arguments.id,
            checkpoint=arguments.state,
            with_ignored=arguments.with_ignored,
            provider=arguments.provider,
            on_branch=arguments.on_branch or "",
        )
    if console.json:
        console.give(answers.SessionFork, made)
    else:
        console.say(
            f"Forked {session.id} at {made.fork_point[:SHORT_HASH]}: session {made.id} works in "
            f"{show_path(made.root)}, made by {visible(made.provider)}.",
            f"`holdfast session exec -s {made.id} …` runs commands in it; `holdfast session checkout "
            f"forks/{made.id}` brings this session to its state.",
        )
        if console.quiet:
            console.answer([made.id])
    return 0


# -- delete -----------------------------------------------------------------------------------------------------------


def _configure_delete(parser: argparse.ArgumentParser) -> None:
    add_options(parser, session=False)
    parser.add_argument("id", metavar="ID", type=text, help="the session")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def _delete(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.model.answers import sessions as answers

    with open_sessions(console, arguments.agent) as sessions:
        found = sessions.info(choose_session(console, sessions, arguments.id))
        goes = sessions.delete(found.id, dry_run=True)
        forked, missed = found.purpose != "session", goes.not_captured
        if missed and not console.json:
            for line in only_there(missed, f"the session {found.id}"):
                console.warn(line.strip())
        if not arguments.dry_run:
            if forked and not arguments.yes and not _agrees(console, _what_goes(found, goes)):
                raise RefusedError(
                    f"nothing was deleted: {_what_goes(found, goes)}{_uncaptured_note(missed)}",
                    hint="--yes deletes it without asking",
                    code="declined",
                )
            goes = sessions.delete(found.id, look=False)
    if console.json:
        console.give(
            answers.DeletedSession,
            goes,
            deleted=not arguments.dry_run,
            with_directory=goes.directory is not None,
            not_captured=missed,
            processes=found.processes,
        )
    else:
        console.say(f"{'Would delete' if arguments.dry_run else 'Deleted'} {_what_goes(found, goes)}")
        if found.processes:
            console.say(f"Its commands have left running: {named_processes(found.processes)}.")
    return 0


def _what_goes(found: SessionInfo, goes: Deleted) -> str:
    if goes.directory is not None:
        return f"session {found.id}, {show_path(goes.directory)} with all that is in it, and its saved states."
    if goes.now_at is not None and goes.not_found is not None:
        return (
            f"session {found.id} and its saved states. Its directory is not at "
            f"{show_path(goes.not_found)}: it is at {show_path(goes.now_at)}, and stays there."
        )
    if goes.not_found is not None:
        return (
            f"session {found.id} and its saved states. Its directory is not at "
            f"{show_path(goes.not_found)}, nor near it: if it was moved, it stays in its new place."
        )
    if found.purpose != "session":
        return f"session {found.id}, its directory with all that is in it, and its saved states."
    where = "its directory" if found.root is None else show_path(found.root)
    return f"session {found.id} and its states; the files in {where} stay as they are."


def _uncaptured_note(missed: Sequence[NotCaptured]) -> str:
    """How many of the files to delete no checkpoint holds."""
    return f" No checkpoint holds {plural(len(missed), 'path')} of that." if missed else ""


def _agrees(console: Console, what: str) -> bool:
    return console.interactive and ask(f"This deletes {what} Go on? [y/n] ", "yn") == "y"


# -- share ------------------------------------------------------------------------------------------------------------


def _configure_share(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument("name", metavar="NAME", type=text, help="the agent or user")
    parser.add_argument("--remove", action="store_true", help="stop the sharing")


def _share(console: Console, arguments: argparse.Namespace) -> int:
    with use_session(console, arguments.session, arguments.agent) as session:
        if arguments.remove:
            session.unshare(arguments.name)
        else:
            session.share(arguments.name)
        shared = session.shared
    if console.json:
        from holdfast.model.answers import sessions as answers

        console.give(answers.Shared, session, shared=shared)
    else:
        names = visible(", ".join(shared)) if shared else "nobody"
        console.say(f"{session.id} is {visible(session.owner)}'s, and shared with {names}.")
    return 0


COMMANDS = {
    "session start": Command(
        description="Start a session in the current directory of this workspace. Sessions in one workspace see "
        "each other's changes.",
        configure=_configure_start,
        run=_start,
        examples=(
            ("holdfast session start", "start a session"),
            ("holdfast session start --isolation vm", "in a virtual machine that stays between the commands"),
            ("holdfast session start try --shell zsh --timeout 10m", "with a name, another shell, and a limit"),
            ("export HOLDFAST_SESSION=$(holdfast -q session start)", "use it from now on"),
        ),
        notes=("The default is none: isolation.level does not count, and `namespace` is refused.",),
        exits=((4, "refused: there is a session of that name"),),
    ),
    "session stop": Command(
        description="Shut down the virtual machine of a session. The session's next command starts it again, from "
        "its disk.",
        configure=_configure_stop,
        run=_stop,
        examples=(("holdfast session stop", "your newest session here"),),
        notes=("A session without a machine is refused (exit 2).",),
        exits=(BUSY,),
    ),
    "session fork": Command(
        description="Start another session from the state of this one, in a directory of its own. Neither sees "
        "the changes of the other.",
        configure=_configure_fork,
        run=_fork,
        examples=(
            ("holdfast session fork try-2", "from the present state"),
            ("holdfast session fork --from before-upgrade", "from a branch"),
            ("holdfast session fork --with-ignored", "with node_modules and the like"),
            ("holdfast session fork --on-branch try-2", "in a work tree of Git, on a new branch"),
            ("fork=$(holdfast -q session fork)", "in a script"),
        ),
        exits=(HELD_BACK,),
    ),
    "session delete": Command(
        description="Delete a session and its states; of a fork also the directory and its saved files, for good: "
        "at a terminal it asks, elsewhere it needs --yes (docs/reference/session.md#forks).",
        configure=_configure_delete,
        run=_delete,
        examples=(
            ("holdfast session delete try-2 --dry-run", "list what the command would delete"),
            ("holdfast session delete try-2 --yes", "a fork, without being asked"),
        ),
        exits=((4, f"{BUSY[1]}; or the session has forks, or --yes is missing"),),
    ),
    "session share": Command(
        description="Let another agent or user work in a session. Names are no protection: every process that can "
        "write Holdfast's home can take any name.",
        configure=_configure_share,
        run=_share,
        examples=(
            ("holdfast session share claude", "share from now on"),
            ("holdfast session share claude --remove", "stop the sharing"),
        ),
        exits=(BUSY,),
    ),
}
