"""``mount``: a checkpoint as a directory, until somebody unmounts it or a command has ended."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from holdfast import UsageError
from holdfast.cli.command import Command, text
from holdfast.cli.terminal import show_path
from holdfast.cli.wording import short
from holdfast.model.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import FrameType

    from holdfast.cli.console import Console
    from holdfast.engine.mount import Mounted

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK = 600.0
"""Seconds between two times that a mount is looked after while a command uses it."""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "holdfast mount [ID | --at TIME] DIR [--allow-other] [--exec -- COMMAND ...]"
    parser.add_argument("name", metavar="ID", nargs="?", type=text, help="the checkpoint (default: @)")
    parser.add_argument("directory", metavar="DIR", help="where; it must be empty, or is made and removed again")
    parser.add_argument(
        "--at", metavar="TIME", type=text, help="the newest checkpoint then: 2026-02-11T15:04 (local time), or 2h ago"
    )
    parser.add_argument("--allow-other", action="store_true", help="other users may look at it, too")
    parser.add_argument(
        "--exec", metavar="COMMAND", nargs=argparse.REMAINDER, help="run this, and unmount when it has ended"
    )


def _mount(console: Console, arguments: argparse.Namespace) -> int:
    if arguments.name is not None and arguments.at is not None:
        raise UsageError("a checkpoint is named, or the newest at a time is wanted, not both")
    words: list[str] = [*(arguments.exec or ()), *arguments.paths]
    if bool(words) != (arguments.exec is not None):
        raise UsageError("--exec and a command go together", hint="holdfast mount @- DIR --exec -- COMMAND")
    with console.open() as workspace, _ended_by_signals() as calm:
        try:
            mounted = workspace.mount(
                arguments.name or "@", arguments.directory, at=arguments.at, allow_other=arguments.allow_other
            )
            with mounted:
                return _run(console, mounted, words, calm) if words else _stay(console, mounted)
        except _Ended:
            if not words and console.json:
                console.give({"event": "unmounted"})
            return 0


def _stay(console: Console, mounted: Mounted) -> int:
    if console.json:
        from holdfast.model.paths import display

        console.give({"event": "mounted", "checkpoint": mounted.checkpoint, "directory": display(mounted.path)})
    else:
        console.say(
            f"Mounted {short(mounted.checkpoint)} on {show_path(mounted.path)}; Ctrl-C or `umount` ends it.",
        )
    sys.stdout.flush()
    mounted.wait()
    if console.json:
        console.give({"event": "unmounted"})
    return 0


def _run(console: Console, mounted: Mounted, words: list[str], calm: Callable[[subprocess.Popen[bytes]], None]) -> int:
    """Run a command; its exit code."""
    try:
        # The shell replaces itself by the command: this process, which has to answer whoever looks at the mount, would
        # stand still until a program that lies in there has been started.
        process = subprocess.Popen(["/bin/sh", "-c", 'exec "$@"', "sh", *words])
    except OSError as error:
        raise StorageError(f"cannot run a command: {error.strerror}") from error
    calm(process)
    while True:
        try:
            process.wait(_LOOK)
            break
        except subprocess.TimeoutExpired:
            mounted.wait(0)
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    if console.json:
        from holdfast.model.paths import display

        # (Standard output is the command's.)
        done = {"checkpoint": mounted.checkpoint, "directory": display(mounted.path), "exit_code": code}
        sys.stderr.write(json.dumps(done) + "\n")
        sys.stderr.flush()
    return code


class _Ended(BaseException):
    """A signal has asked for the end."""


@contextmanager
def _ended_by_signals() -> Generator[Callable[[subprocess.Popen[bytes]], None]]:
    """For the length of the block, a signal ends it by `_Ended`, once: what takes the mount away is not interrupted.

    Once the function that this gives has been called with a process, signals are that process's instead.
    """
    others: list[subprocess.Popen[bytes]] = []
    ended = False

    def end(number: int, _: FrameType | None) -> None:
        nonlocal ended
        if others:
            if number != signal.SIGINT:  # which the terminal has sent to the command as well
                others[0].send_signal(number)
        elif not ended:
            ended = True
            _end()

    before = {number: signal.signal(number, end) for number in _SIGNALS}
    try:
        yield others.append
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end() -> NoReturn:
    raise _Ended


COMMANDS = {
    "mount": Command(
        description="Show a checkpoint as a directory that nobody can change. Nothing is written out: what is looked "
        "at is read from the store then. It lasts until Ctrl-C, or until somebody unmounts it (umount DIR, fusermount3 "
        "-u DIR); with --exec until the command has ended, whose exit code it has. The checkpoint is neither forgotten "
        "nor collected meanwhile.",
        configure=_configure,
        run=_mount,
        examples=(
            ("holdfast mount @- /tmp/before", "the state before this one, until Ctrl-C"),
            ("holdfast mount --at 2h /tmp/then", "as it was two hours ago"),
            ("holdfast mount @- /tmp/before --exec -- diff -r /tmp/before .", "just for one command"),
        ),
        exits=(
            (1, "nothing can be mounted here: it needs /dev/fuse, and root or fusermount3"),
            (4, "refused: the directory is not empty, or lies in a workspace"),
        ),
        paths_after_dashes=True,
    ),
}
