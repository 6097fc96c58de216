"""``integrate``, which configures coding agents, and ``hook``, which their hooks call."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from holdfast import HoldfastError, NotFoundError, RefusedError, UsageError
from holdfast.cli.command import Command
from holdfast.cli.console import current_directory
from holdfast.cli.terminal import ask, show_path
from holdfast.model.log import Log
from holdfast.model.message_text import listed, visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from holdfast.cli.console import Console
    from holdfast.engine.integrations.client import ClientTarget
    from holdfast.engine.integrations.config_plan import ConfigPlan, FileChange

_LOG = Log(__name__)

_WITHOUT_RUN = (
    "The hooks save the state before each prompt. Started as `holdfast run -- {}`, they also make one step of each "
    "tool call; without `run` there are checkpoints only."
)


# -- integrate --------------------------------------------------------------------------------------------------------


def _configure(parser: argparse.ArgumentParser) -> None:
    from holdfast.engine.integrations.hook_call import CLIENTS

    parser.add_argument("client", metavar="CLIENT", choices=CLIENTS, help=f"one of {', '.join(CLIENTS)}")
    parser.add_argument("--remove", action="store_true", help="remove Holdfast's part again")
    parser.add_argument("--dry-run", action="store_true", help="show the changes, write nothing")
    parser.add_argument(
        "-y", "--yes", action="store_true", help="do not ask, show the changes or explain (-v: show and explain)"
    )
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument(
        "--project",
        dest="scope",
        action="store_const",
        const="project",
        default="project",
        help="for this workspace or directory only (the default)",
    )
    scope.add_argument(
        "--user", dest="scope", action="store_const", const="user", help="for everything that you work on"
    )


def _integrate(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.engine.integrations.config_plan import carry_out, plan

    home = None if console.home is None else os.fsencode(console.home)
    place = _place(console, arguments.scope)
    found = plan(arguments.client, place, home=home, remove=arguments.remove)
    if not console.json and (console.verbose or not arguments.yes):
        console.answer(_shown(console, found))
    if found.changes and not arguments.dry_run:
        _make_sure(console, arguments.yes)
        carry_out(found)
    if console.json:
        from holdfast.model.answers.commands import Integrated

        console.give(
            Integrated,
            client=found.client.name,
            removed=found.remove,
            written=bool(found.changes) and not arguments.dry_run,
            files=[_file_json(change) for change in found.changes],
        )
    else:
        explained = console.verbose or not arguments.yes
        user = arguments.scope == "user"
        console.say(*_told(found, user=user, dry_run=arguments.dry_run, explained=explained))
    return 0


def _place(console: Console, scope: Any) -> ClientTarget:
    from holdfast.engine.integrations.client import ClientTarget

    root = _project(console) if scope == "project" else os.environ.get("HOME", "")
    if not os.path.isabs(root):
        raise NotFoundError("no home directory is known", hint="set HOME")
    home = () if console.home is None else ("--home", os.path.abspath(console.home))
    return ClientTarget(scope, root, os.environ, (*_program(), *home))


def _project(console: Console) -> str:
    """The root of the workspace; outside of any the directory itself."""
    try:
        with console.open(offer=False) as workspace:
            return os.fsdecode(workspace.path)
    except NotFoundError as error:
        directory = os.path.abspath(console.directory or current_directory())
        if error.code not in ("no_workspace", "no_home") or not os.path.isdir(directory):
            raise
        console.warn(f"{directory} is not a workspace yet: the hooks save nothing there before `holdfast init`")
        return directory


def _program() -> Sequence[str]:
    """By which command line this Holdfast can be called from anywhere."""
    import shutil

    called = shutil.which(sys.argv[0]) if os.path.basename(sys.argv[0]) == "holdfast" else None
    return (os.path.abspath(called),) if called else (sys.executable, "-P", "-m", "holdfast")


def _shown(console: Console, plan: ConfigPlan) -> Iterator[str]:
    from holdfast.cli.colored_patch import for_terminal
    from holdfast.engine.diffs.git_patch import hunks

    for change in plan.changes:
        yield console.paint(f"{show_path(change.found.path)} ({_fate(change)})", "bold")
        yield from for_terminal(console.paint, hunks(change.found.content or b"", change.after or b""))


def _fate(change: FileChange) -> str:
    return "new" if change.found.content is None else "deleted" if change.after is None else "changed"


def _make_sure(console: Console, yes: bool) -> None:
    if yes:
        return
    if not console.interactive:
        raise RefusedError(
            "nothing was written: no terminal to ask at", hint="--yes writes it, --dry-run shows it", code="declined"
        )
    if ask("Write this? [y/n] ", "yn") == "n":
        raise RefusedError("nothing was written", code="declined")


def _told(plan: ConfigPlan, *, user: bool, dry_run: bool, explained: bool) -> Iterator[str]:
    client = plan.client
    if not plan.changes:
        yield (
            f"{client.title} is already configured so."
            if not plan.remove
            else f"{client.title} holds nothing of Holdfast."
        )
    elif dry_run:
        yield "Nothing was written."
    elif plan.remove:
        yield f"Removed from {client.title}."
        yield from _kept(plan)
    else:
        yield f"Configured {client.title} in {listed(map(_written, plan.changes))}."
        scope = " --user" if user else ""
        yield f"`holdfast integrate {client.name}{scope} --remove` removes it again."
        if explained:
            yield _WITHOUT_RUN.format(client.program)
            yield client.note


def _written(change: FileChange) -> str:
    path = show_path(change.found.path)
    return f"{path} (before: {show_path(change.kept)})" if _is_kept(change) else path


def _is_kept(change: FileChange) -> bool:
    return change.keeps and change.found.content is not None


def _kept(plan: ConfigPlan) -> Iterator[str]:
    for change in plan.changes:
        if _is_kept(change):
            yield f"  {show_path(change.kept)} holds the previous {show_path(change.found.path)}."


def _file_json(change: FileChange) -> Any:
    from holdfast.model.answers.commands import ConfigFile
    from holdfast.model.json_encoder import encode

    kept = change.kept if _is_kept(change) else None
    return encode(ConfigFile, path=change.found.path, change=_fate(change), kept=kept)


# -- hook -------------------------------------------------------------------------------------------------------------


def _configure_hook(parser: argparse.ArgumentParser) -> None:
    # `choices` would exit with code 2 for wrong usage, which clients take as the order to stop.
    parser.add_argument("client", metavar="CLIENT", nargs="?", default="", help="the client that calls")
    parser.add_argument("event", metavar="EVENT", nargs="?", default="", help="the event, by the client's name for it")


def _hook(console: Console, arguments: argparse.Namespace) -> int:
    """Never fails: the client goes on, and gets only a message about an error."""
    try:
        said = _performed(console, arguments.client, arguments.event)
    except HoldfastError as error:
        hint = f" ({error.hint})" if error.hint else ""
        _say_to_client(f"holdfast: {visible(error.message)}{visible(hint)}")
    except Exception as error:  # noqa: BLE001 - see above
        _say_to_client(f"holdfast: this is a bug: {error!r}")
    else:
        if said and not console.quiet:
            _say_to_client(f"holdfast: {visible(said)}")
    return 0


def _performed(console: Console, name: str, event: str) -> str:
    from holdfast.engine.integrations.hook_call import find_client, is_relevant, read_input

    about = find_client(name)
    if about.quiet_answer:
        sys.stdout.write(f"{about.quiet_answer}\n")
        sys.stdout.flush()
    data = read_input(0)
    action = about.events.get(event)
    if action is None:
        raise UsageError(f"{event!r} is no event of {about.title}", hint=f"one of {', '.join(about.events)}")
    if not is_relevant(action, os.environ):
        return ""
    from holdfast.engine.integrations.hook_handler import perform
    from holdfast.engine.integrations.hook_input import decode

    found = decode(data, os.fsencode(current_directory()))
    home = None if console.home is None else os.fsencode(console.home)
    return perform(name, action, found, home=home, environ=os.environ)


def _say_to_client(text: str) -> None:
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except OSError:
        return  # no process listens


COMMANDS = {
    "integrate": Command(
        description="Configure a coding agent (docs/reference/integrate.md): its MCP entry, and hooks that save "
        "the state before each prompt and, under `holdfast run`, make one step of each tool call. It shows the "
        "changes and asks before it writes.",
        configure=_configure,
        run=_integrate,
        examples=(
            ("holdfast integrate claude", "Claude Code, in this project"),
            ("holdfast integrate codex --user --dry-run", "show the changes for Codex, for all directories"),
            ("holdfast integrate claude --remove", "take it back"),
        ),
        exits=((4, ("refused: no terminal to ask at, or a file that is malformed, in the way, or has just changed")),),
    ),
    "hook": Command(
        description="The command that the hooks of an agent call, with the event on standard input. The exit code "
        "is always 0.",
        configure=_configure_hook,
        run=_hook,
        examples=(("holdfast hook claude UserPromptSubmit", "the call that Claude Code makes"),),
    ),
}
