"""``mount``: a checkpoint as a directory, until it is unmounted or a command has ended."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from holdfast import UsageError
from holdfast.cli.command import Command, text
from holdfast.cli.phrases import short
from holdfast.cli.plain_parser import REST
from holdfast.cli.terminal import show_path
from holdfast.model.errors import NotFoundError, StorageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from types import FrameType

    from holdfast.cli.console import Console
    from holdfast.engine.forks.checkpoint_mount import Mounted

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK = 600.0
"""Seconds between two times that a mount is looked after while a command uses it."""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "holdfast mount [ID | --at TIME] DIR [--allow-other] [--detach | --exec -- COMMAND ...]"
    parser.add_argument("name", metavar="ID", nargs="?", type=text, help="the checkpoint (default: @)")
    parser.add_argument("directory", metavar="DIR", help="an empty directory, or a new one")
    parser.add_argument(
        "--at", metavar="TIME", type=text, help="the newest checkpoint then: 2026-02-11T15:04 (local time), or 2h ago"
    )
    parser.add_argument("--allow-other", action="store_true", help="let other users read it")
    parser.add_argument("--detach", action="store_true", help="stay in the background, until `holdfast unmount DIR`")
    parser.add_argument(
        "--exec", metavar="COMMAND", nargs=REST, help="run this command, then unmount and return its exit code"
    )


def _mount(console: Console, arguments: argparse.Namespace) -> int:
    if arguments.name is not None and arguments.at is not None:
        raise UsageError("give a checkpoint or --at TIME, not both")
    words: list[str] = [*(arguments.exec or ()), *arguments.paths]
    if bool(words) != (arguments.exec is not None):
        raise UsageError("--exec and a command go together", hint="holdfast mount @- DIR --exec -- COMMAND")
    if words and arguments.detach:
        raise UsageError("--detach goes on for good, and --exec until a command has ended, not both")
    if arguments.name is None and arguments.at is None and not words and _mount_fork(console, arguments.directory):
        return 0
    if arguments.detach:
        return _detach(console, arguments)
    with (
        console.open() as workspace,
        _Signals() as signals,
        workspace.mount(
            arguments.name or "@", arguments.directory, at=arguments.at, allow_other=arguments.allow_other
        ) as mounted,
    ):
        if words:
            return _run(console, mounted, words, signals)
        _stay(console, mounted, signals)
    if console.json:
        from holdfast.model.answers import commands

        console.give(commands.MountEvent, event="unmounted")
    return 0


def _detach(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.engine.forks.mount_server_client import MountServer

    with MountServer() as server, console.open() as workspace:
        checkpoint, pid = workspace.mount_detached(
            arguments.name or "@",
            arguments.directory,
            at=arguments.at,
            allow_other=arguments.allow_other,
            server=server,
        )
    path = os.path.realpath(os.fsencode(arguments.directory))
    if console.json:
        from holdfast.model.answers import commands

        console.give(commands.MountEvent, event="mounted", checkpoint=checkpoint, directory=path, pid=pid)
    else:
        console.say(
            f"Mounted {short(checkpoint)} on {show_path(path)}; `holdfast unmount` with that directory ends it."
        )
    return 0


def _mount_fork(console: Console, directory: str) -> bool:
    """Mount a fork again; False if the directory belongs to no fork."""
    from holdfast.engine.forks.mount_server_client import MountServer

    try:
        with MountServer() as server, console.open_home() as home:
            path = home.mount_fork(directory, server=server)
    except NotFoundError as error:
        if error.code in ("no_fork", "no_home"):
            return False
        raise
    if console.json:
        from holdfast.model.answers import commands

        console.give(commands.MountEvent, event="mounted", directory=path)
    else:
        console.say(f"Mounted the fork {show_path(path)}, with all its changes.")
    return True


def _configure_unmount(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="the mount point")


def _unmount(console: Console, arguments: argparse.Namespace) -> int:
    with console.open_home() as home:
        path = home.unmount(arguments.directory)
    if console.json:
        from holdfast.model.answers import commands

        console.give(commands.UnmountEvent, event="unmounted", directory=path)
    else:
        console.say(f"Unmounted {show_path(path)}.")
    return 0


def _stay(console: Console, mounted: Mounted, signals: _Signals) -> None:
    if console.json:
        from holdfast.model.answers import commands

        console.give(commands.MountEvent, event="mounted", checkpoint=mounted.checkpoint, directory=mounted.path)
    else:
        console.say(
            f"Mounted {short(mounted.checkpoint)} on {show_path(mounted.path)}; Ctrl-C or `umount` ends it.",
        )
    sys.stdout.flush()
    signals.send_to(lambda _: mounted.end())
    mounted.wait()


def _run(console: Console, mounted: Mounted, words: list[str], signals: _Signals) -> int:
    """Run a command; its exit code."""
    try:
        # The shell replaces itself with the command. Without it, starting a program that lies in the mount would block
        # this process, which answers the mount's requests. The command is the user's, at the terminal, and its
        # background processes go on: no `processes.child`.
        process = subprocess.Popen(["/bin/sh", "-c", 'exec "$@"', "sh", *words])
    except OSError as error:
        raise StorageError(f"cannot run a command: {error.strerror}") from error
    # The terminal sends the SIGINT of Ctrl-C to the command as well.
    signals.send_to(lambda number: None if number == signal.SIGINT else process.send_signal(number))
    ended = os.pidfd_open(process.pid)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    while not poll.poll(_LOOK * 1000):
        mounted.wait(0)
    os.close(ended)
    code = process.wait()
    code = code if code >= 0 else 128 - code
    if console.json:
        # Standard output belongs to the command.
        from holdfast.model.answers import commands
        from holdfast.model.json_encoder import encode

        done = encode(commands.MountedCommand, checkpoint=mounted.checkpoint, directory=mounted.path, exit_code=code)
        sys.stderr.write(json.dumps(done) + "\n")
        sys.stderr.flush()
    return code


class _Signals:
    """Within the block, signals to end are only noted, until `send_to` says how to react.

    An exception at an arbitrary place, such as inside a transaction, could leave locks held for ever.
    """

    def __init__(self) -> None:
        self._noted: list[int] = []
        self._send: Callable[[int], None] = self._noted.append
        self._before: dict[int, Any] = {}

    def send_to(self, end: Callable[[int], None]) -> None:
        """Call ``end`` with each later signal, and with those noted so far."""
        self._send = end
        while self._noted:
            end(self._noted.pop())

    def __enter__(self) -> _Signals:
        self._before = {number: signal.signal(number, self._take) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, _: FrameType | None) -> None:
        self._send(number)


COMMANDS = {
    "mount": Command(
        description="Show a checkpoint as a read-only directory, without writing it out, until Ctrl-C or an "
        "unmount (docs/reference/mount.md). Meanwhile it cannot be forgotten. If DIR is a fork by mount, "
        "that is mounted again.",
        configure=_configure,
        run=_mount,
        examples=(
            ("holdfast mount @- /tmp/before", "the state before this one, until Ctrl-C"),
            ("holdfast mount --at 2h /tmp/then", "as it was two hours ago"),
            ("holdfast mount @- /tmp/before --detach", "until `holdfast unmount /tmp/before`"),
            ("holdfast mount @- /tmp/before --exec -- diff -r /tmp/before .", "just for one command"),
        ),
        exits=((4, "refused: the directory is not empty, or lies in a workspace"),),
        paths_after_dashes=True,
    ),
    "unmount": Command(
        description="Unmount a directory that `mount` or `fork --mount` has mounted. A fork keeps its changes; "
        "`holdfast mount DIR` mounts it again.",
        configure=_configure_unmount,
        run=_unmount,
        examples=(("holdfast unmount ../attempt", "a fork"), ("holdfast unmount /tmp/before", "a checkpoint")),
        exits=((4, "refused: a process uses it"),),
    ),
}
