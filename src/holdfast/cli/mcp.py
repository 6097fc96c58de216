"""``mcp``: the workspace as tools for a model."""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

from holdfast import UsageError
from holdfast.cli.command import Command
from holdfast.cli.console import current_directory
from holdfast.cli.terminal import is_terminal
from holdfast.model.config.keys import KEYS
from holdfast.model.message_text import visible
from holdfast.model.paths import display

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from holdfast.cli.console import Console
    from holdfast.engine.hosting.host import Host
    from holdfast.engine.hosting.monitor import HostEvent
    from holdfast.engine.hosting.working_directory import HostedDirectory


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--add", metavar="DIR", action="append", default=[], help="a further working directory")
    parser.add_argument(
        "--add-read-only", metavar="DIR", action="append", default=[], help="a directory that the tools may only read"
    )
    parser.add_argument(
        "--isolation", metavar="LEVEL", choices=KEYS["isolation.level"].choices, help="as in `holdfast run`"
    )
    parser.add_argument("--guard", action="store_true", help="as in `holdfast run`")
    parser.add_argument("--forks", metavar="DIR", help="where forks are written (default: beside, in NAME.forks)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--socket", metavar="PATH", help="listen on a Unix socket, for up to 16 clients")
    form.add_argument("--connect", metavar="PATH", help="pass standard input and output on to such a socket")


def _run(console: Console, arguments: argparse.Namespace) -> int:
    if arguments.connect is not None:
        from holdfast.api.mcp.authenticated_socket import relay

        relay(os.fsencode(arguments.connect))
        return 0
    console.prepare_log(for_programs=True)
    if arguments.socket is None and is_terminal(sys.stdin):
        raise UsageError(
            "a program starts this command, and speaks the Model Context Protocol with it",
            hint="docs/reference/mcp.md shows how to configure clients; --socket PATH listens for them",
        )
    # Imported objects stay until the end: garbage collection meanwhile takes a fifth of the start.
    gc.disable()
    from holdfast.api.mcp.server import ServeOptions, serve

    gc.freeze()
    gc.enable()

    def listening(path: bytes) -> None:
        line = f"holdfast: listening at {visible(display(path))}; the token is in {visible(display(path))}.token\n"
        if console.json:
            import json

            from holdfast.model.answers.commands import SocketListening
            from holdfast.model.json_encoder import encode

            line = json.dumps(encode(SocketListening, listening=path, token_file=path + b".token")) + "\n"
        sys.stderr.write(line)
        sys.stderr.flush()

    serve(
        ServeOptions(
            open_host=_opener(console, arguments),
            forks=None if arguments.forks is None else os.path.abspath(os.fsencode(arguments.forks)),
            socket=None if arguments.socket is None else os.fsencode(arguments.socket),
            listening=listening,
        )
    )
    return 0


def _opener(
    console: Console, arguments: argparse.Namespace
) -> Callable[[Callable[[HostedDirectory, HostEvent], object]], Host]:
    from holdfast.engine.hosting.host import Host
    from holdfast.engine.hosting.working_directory import DirectorySpec

    first = console.directory or current_directory()
    given = [DirectorySpec(os.fsencode(path)) for path in (first, *arguments.add)]
    given += [DirectorySpec(os.fsencode(path), access="read_only") for path in arguments.add_read_only]
    flags = {} if arguments.isolation is None else {"isolation.level": arguments.isolation}

    def open_host(notify: Callable[[HostedDirectory, HostEvent], object]) -> Host:
        home = None if console.home is None else os.fsencode(console.home)
        return Host(given, home=home, flags=flags, guard=arguments.guard, face="mcp", notify=notify)

    return open_host


COMMANDS = {
    "mcp": Command(
        description="Give the workspace to a model as tools, by the Model Context Protocol "
        "(docs/reference/mcp.md). Changes by the tools are steps, as under `holdfast run`. No "
        "tool answers a safeguard, forgets anything, or overwrites the changes of other "
        "processes.",
        configure=_configure,
        run=_run,
        examples=(
            ("holdfast mcp -w ~/shop", "the command line for a client"),
            ("holdfast mcp --guard --isolation namespace", "ask before mass deletion; isolated from the machine"),
            ("holdfast mcp --socket ~/.cache/shop/mcp.sock", "for several clients"),
            ("holdfast mcp --connect ~/.cache/shop/mcp.sock", "the command line for such a client"),
        ),
        exits=((4, "refused: the directory, or that of the socket"),),
    ),
}
