"""``snapshot``: the family of commands about what snapshot providers capture."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from holdfast.cli.command import Command, text
from holdfast.cli.plain_parser import REST
from holdfast.cli.terminal import show_path
from holdfast.engine.opening.current_run import OVERLAID_VARIABLE
from holdfast.model.answers import commands as answers
from holdfast.model.clock import isoformat
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.message_text import visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from types import FrameType

    from holdfast.cli.console import Console
    from holdfast.engine.forks.snapshots import SnapshotInfo

VERBS = {
    "take": ("snapshot", "capture the workspace as it is now"),
    "list": ("snapshot", "those of this workspace"),
    "show": ("snapshot", "all about one"),
    "mount": ("snapshot", "look at one, in a directory that is made for it"),
    "unmount": ("snapshot", "remove the directories that show one"),
    "run": ("snapshot", "run a command at the workspace's own path, apart from it"),
    "discard": ("snapshot", "remove one"),
}


def _nothing(_parser: argparse.ArgumentParser) -> None:
    pass


def _family(console: Console, arguments: argparse.Namespace) -> int:
    return arguments.verb.run(console, arguments)


def _configure_one(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="ID", type=text, help="id, its beginning (4 digits or more), or label")


def _configure_take(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", "--label", metavar="LABEL", type=text, default="", help="a name to find it by")
    parser.add_argument("--with-ignored", action="store_true", help="include ignored files, such as dependencies")
    parser.add_argument(
        "--provider", metavar="NAME", type=text, help="the snapshot provider (docs/reference/snapshot.md)"
    )


def _take(console: Console, arguments: argparse.Namespace) -> int:
    with console.open() as workspace:
        done = workspace.snapshots.take(
            arguments.label, provider=arguments.provider, with_ignored=arguments.with_ignored
        )
    taken = done.snapshot
    if console.json:
        console.give(answers.TakenSnapshot, taken, notes=done.notes, passed_over=done.passed_over)
        return 0
    for reason in done.passed_over:
        console.warn(f"not taken by {reason}")
    about = ["it holds everything, ignored files too"] if done.everything else done.notes
    console.say(f"Took the snapshot {taken.id}, by {taken.provider}.", *(f"  {visible(note)}" for note in about))
    if console.quiet:
        console.answer([taken.id])
    return 0


def _list(console: Console, arguments: argparse.Namespace) -> int:
    del arguments
    with console.open() as workspace:
        found = workspace.snapshots.list()
    if console.json:
        console.give(answers.Snapshots, snapshots=found)
        return 0
    if not found:
        console.say("No snapshots; `holdfast snapshot take` takes one.")
    console.table(
        (("snapshot", 0), ("taken", 0), ("provider", 8), ("label", 0)),
        ((one.id, isoformat(one.created_at)[:19], one.provider, visible(one.label)) for one in found),
    )
    return 0


def _show(console: Console, arguments: argparse.Namespace) -> int:
    with console.open() as workspace:
        found = workspace.snapshots.show(arguments.name)
    if console.json:
        console.give(answers.Snapshot, found)
        return 0
    facts = [("snapshot", found.id), ("provider", found.provider), ("taken", isoformat(found.created_at))]
    facts += [("label", visible(found.label))] if found.label else []
    facts += [("after", found.parent)] if found.parent else []
    facts += [("shown in", show_path(path)) for path in found.views]
    console.answer(f"{name:<8}  {value}" for name, value in facts)
    return 0


def _mount(console: Console, arguments: argparse.Namespace) -> int:
    with console.open() as workspace:
        path = workspace.snapshots.mount(arguments.name)
    if console.json:
        console.give(answers.SnapshotView, path=path)
    else:
        console.answer([show_path(path)])
    return 0


def _unmount(console: Console, arguments: argparse.Namespace) -> int:
    with console.open() as workspace:
        paths = workspace.snapshots.unmount(arguments.name)
    if console.json:
        console.give(answers.UnmountedSnapshot, unmounted=paths)
    else:
        console.say(*(f"Removed {show_path(path)}." for path in paths) if paths else ("It was not shown anywhere.",))
    return 0


def _discard(console: Console, arguments: argparse.Namespace) -> int:
    with console.open() as workspace:
        discarded = workspace.snapshots.discard(arguments.name)
    if console.json:
        console.give(answers.DiscardedSnapshot, discarded=discarded)
    else:
        console.say(f"Discarded the snapshot {discarded}.")
    return 0


def _configure_run(parser: argparse.ArgumentParser) -> None:
    parser.usage = "holdfast snapshot run [--from ID] [-m LABEL] [--provider NAME] [--] COMMAND ..."
    parser.add_argument("--from", dest="name", metavar="ID", type=text, help="begin as this snapshot is (default: now)")
    parser.add_argument(
        "-m", "--label", metavar="LABEL", type=text, help="keep the result as a snapshot with this label"
    )
    parser.add_argument(
        "--provider", metavar="NAME", type=text, help="the snapshot provider (docs/reference/snapshot.md)"
    )
    parser.add_argument("words", metavar="COMMAND", nargs=REST, help="what to run")


def _run(console: Console, arguments: argparse.Namespace) -> int:
    words: list[str] = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    if not words:
        raise UsageError("there is no command to run", hint="holdfast snapshot run -- make test")
    with console.open() as workspace:
        snapshots = workspace.snapshots
        with snapshots.overlay(arguments.name, provider=arguments.provider) as overlaid:
            code = _run_in(overlaid.prepared.enter, words, workspace.path)
            kept = None if arguments.label is None else snapshots.keep(overlaid, arguments.label)
    _tell_of_run(console, code, kept)
    return code


def _run_in(enter: Sequence[bytes], words: Sequence[str], root: bytes) -> int:
    """Run a command, which has the terminal, to its end; its exit code."""
    process: subprocess.Popen[bytes] | None = None
    noted: list[int] = []

    def forward(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT:  # the terminal sends it to the command as well
            return
        if process is None:
            noted.append(number)
        else:
            process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        # The command is the user's, at the terminal, and its background processes go on: no `processes.child`.
        process = subprocess.Popen(
            [*enter, *map(os.fsencode, words)], env=dict(os.environb) | {os.fsencode(OVERLAID_VARIABLE): root}
        )
        for number in noted:
            process.send_signal(number)
        code = process.wait()
    except OSError as error:
        raise StorageError(f"cannot run a command: {error.strerror}") from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _tell_of_run(console: Console, code: int, kept: SnapshotInfo | None) -> None:
    if console.json:
        # Standard output belongs to the command.
        from holdfast.model.json_encoder import encode

        sys.stderr.write(json.dumps(encode(answers.SnapshotCommand, exit_code=code, snapshot=kept)) + "\n")
        sys.stderr.flush()
    elif kept is not None and not console.quiet:
        sys.stderr.write(f"What it has made is the snapshot {kept.id}.\n")


COMMANDS = {
    "snapshot": Command(
        description="Take, show and remove snapshots by a provider (docs/reference/snapshot.md): a file system, "
        "an overlay, Git, Holdfast itself, or a plain copy. ID is an id or its beginning (4 digits or more), or a "
        "label. `holdfast snapshot COMMAND --help` tells all about one command.",
        configure=_nothing,
        run=_family,
        examples=(
            ("holdfast snapshot take -m built --with-ignored", "with all that was built"),
            ("holdfast snapshot list", "every snapshot"),
            ("ls $(holdfast snapshot mount built)", "look at it"),
            ("holdfast snapshot unmount built", "and no more"),
            ("holdfast snapshot run -- make clean all", "at the workspace's own path, which stays as it is"),
            ("holdfast snapshot discard built", "remove it"),
        ),
        verbs=VERBS,
    ),
    "snapshot take": Command(
        description="Capture the workspace as it is now, by the best provider (`holdfast doctor` names it). The "
        "output lists the files left out.",
        configure=_configure_take,
        run=_take,
        examples=(
            ("holdfast snapshot take", "by the best provider"),
            ("holdfast snapshot take -m built --with-ignored", "with a label, and all that was built"),
            ("holdfast snapshot take --provider git", "by Git: tracked files"),
        ),
    ),
    "snapshot list": Command(
        description="List the snapshots of this workspace, oldest first.",
        configure=_nothing,
        run=_list,
        examples=(("holdfast snapshot list", "every snapshot"),),
    ),
    "snapshot show": Command(
        description="Show a snapshot's provider, its time, and the directories that show it.",
        configure=_configure_one,
        run=_show,
        examples=(("holdfast snapshot show built", "the one of this label"),),
    ),
    "snapshot mount": Command(
        description="Show a snapshot in a read-only directory of the home, and print its path, until `holdfast "
        "snapshot unmount`. After a restart unmount it, and mount it again.",
        configure=_configure_one,
        run=_mount,
        examples=(("diff -r $(holdfast snapshot mount built)/out out", "compare something in it"),),
    ),
    "snapshot unmount": Command(
        description="Remove the directories that show a snapshot. The snapshot stays.",
        configure=_configure_one,
        run=_unmount,
        examples=(("holdfast snapshot unmount built", "look at it no more"),),
    ),
    "snapshot run": Command(
        description="Run a command in an overlay at the workspace's own path, with the files as they are now, or "
        "as a snapshot has them. Its changes there are gone at the end unless -m keeps them; elsewhere it changes "
        "the machine as any command does. The exit code is the command's.",
        configure=_configure_run,
        run=_run,
        examples=(
            ("holdfast snapshot run -- make clean all", "from the present state"),
            ("holdfast snapshot run -m upgraded -- npm update", "and keep what it makes"),
            ("holdfast snapshot run --from upgraded -- npm test", "go on from that"),
        ),
        exits=((1, "no provider makes overlays here"), (125, "the command could not be run there")),
    ),
    "snapshot discard": Command(
        description="Remove a snapshot, for good. Copies and forks made from it, and the checkpoint of the provider "
        "holdfast, stay.",
        configure=_configure_one,
        run=_discard,
        examples=(("holdfast snapshot discard built", "remove it"),),
        exits=((4, "refused: it is shown in a directory"),),
    ),
}
