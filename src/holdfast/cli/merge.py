"""``merge``: what a fork has done comes into this workspace."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from holdfast import RefusedError, UsageError
from holdfast.cli.command import Command, text
from holdfast.cli.phrases import changed, files, foreseen, left_alone, only_there, reasons, short, uncaptured
from holdfast.cli.terminal import show_path
from holdfast.model.message_text import plural, visible
from holdfast.model.paths import display, parse_display

if TYPE_CHECKING:
    import argparse

    from holdfast import Workspace
    from holdfast.cli.console import Console
    from holdfast.engine.merging.fork_merge import ForkMerge
    from holdfast.engine.merging.stacked_plan import MergePlan, Resolution


_MOST = 16 << 20
"""Bytes of a resolution: what merge.max_bytes can be. A device may have no end."""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "fork", metavar="FORK", type=text, help="the fork: its directory, the id of its workspace, or a checkpoint"
    )
    parser.add_argument("-m", "--message", type=text, default="", help="why, for the log")
    parser.add_argument(
        "--resolve",
        metavar="PATH=FILE",
        action="append",
        default=[],
        help="the content of FILE is what becomes of PATH, which overlaps; may be repeated",
    )
    parser.add_argument(
        "--keep", metavar="PATH", action="append", default=[], help="PATH, which overlaps, stays as it is here"
    )
    parser.add_argument(
        "--take", metavar="PATH", action="append", default=[], help="PATH, which overlaps, becomes what the fork has"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done; nobody is asked anything")


def _run(console: Console, arguments: argparse.Namespace) -> int:
    with console.open() as workspace, console.progress() as progress:
        found = workspace.merge(
            arguments.fork,
            resolutions=_resolutions(console, workspace, arguments),
            message=arguments.message,
            dry_run=arguments.dry_run,
            progress=progress,
        )
    if console.json:
        from holdfast.model.answers import merges as answers

        console.give(answers.Merged, found.plan, **_answer(found))
    else:
        _say(console, found)
    return _ended(found)


def _resolutions(
    console: Console, workspace: Workspace, arguments: argparse.Namespace
) -> dict[str | bytes, Resolution]:
    from holdfast.engine.merging.stacked_plan import Resolution

    found: dict[str | bytes, Resolution] = {}

    def add(path: str, resolution: Resolution) -> None:
        (name,) = console.paths(workspace, [path])
        if "\\" in path and not os.path.lexists(os.path.join(workspace.path, name)):
            (name,) = console.paths(workspace, [parse_display(path)])  # as it was printed
        if name in found:
            raise UsageError(f"{path} is decided twice")
        found[name] = resolution

    for given in arguments.resolve:
        path, sign, file = given.partition("=")
        if not sign or not path:
            raise UsageError(f"{given!r} is no PATH=FILE", hint="--resolve src/app.py=/tmp/app.py")
        try:
            with open(file, "rb") as opened:
                content = opened.read(_MOST + 1)
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}") from None
        if len(content) > _MOST:
            raise UsageError(f"{file} is larger than a resolution may be, {_MOST >> 20} MiB")
        add(path, Resolution(content=content))
    for path in arguments.keep:
        add(path, Resolution(prefer="ours"))
    for path in arguments.take:
        add(path, Resolution(prefer="theirs"))
    return found


def _say(console: Console, found: ForkMerge) -> None:
    plan = found.plan
    if found.restored is not None:
        restored = found.restored
        console.say(
            f"Merged {short(plan.fork)}: {files(len(restored.written))} written, {len(restored.deleted):,} deleted.",
            *_reapplied(found),
        )
        if restored.rescue is not None and restored.undo_command is not None:
            before, undo = short(restored.rescue), restored.undo_command
            console.say(f"What was there before is checkpoint {before}; `{undo}` brings it back.")
        if restored.skipped:
            console.say(*reasons(restored.skipped))
    elif found.prepared.merged is not None:
        saved = "saved " if found.not_captured else ""
        console.say(f"There is nothing {saved}in {short(plan.fork)} that is not here.")
    elif found.dry_run:
        console.say(_would(plan), *changed(console.paint, plan.stacked.plan.changes))
    console.say(*uncaptured([display(path) for path in plan.uncaptured]))
    console.say(*only_there(found.not_captured, "the fork"))
    if plan.overlapping:
        console.say(f"{files(len(plan.overlapping))} changed on both sides:")
        for one in plan.overlapping:
            console.say(f"  {show_path(one.path)}: {one.detail}")
            console.say(*(f"    {line}" for line in (*_declined(found, one.path), *_foreseen(found, one.path))))
            differences = found.prepared.differences.get(one.path, ("", ""))
            for what, hunks in zip(("here", "in the fork"), differences, strict=True):
                if hunks:
                    console.say(f"    {what}:", *(f"      {visible(line)}" for line in hunks.splitlines()))


def _answer(found: ForkMerge) -> dict[str, Any]:
    """What a merge answers beside its plan."""
    from holdfast.model.answers.merges import OpenOverlap
    from holdfast.model.json_encoder import encode

    prepared = found.prepared
    overlapping: list[OpenOverlap] = []
    for one in found.plan.overlapping:
        ours, theirs = prepared.differences.get(one.path, (None, None))
        foreseen = prepared.foreseen.get(one.path)
        overlapping.append(encode(OpenOverlap, one, production_diff=ours, fork_diff=theirs, foreseen=foreseen))
    return {
        "overlapping_files": overlapping or None,
        "dry_run": found.dry_run,
        "files": prepared.records,
        "merged": prepared.merged,
        "restored": found.restored,
        "not_captured": found.not_captured,
    }


def _declined(found: ForkMerge, path: bytes) -> list[str]:
    """Why no rung has applied it."""
    return [
        f"{tried.rung}: {visible(tried.said)}"
        for one in found.prepared.records
        if one.path == path
        for tried in one.tried
        if tried.rung != "person" and tried.result != "answered" and tried.said
    ]


def _foreseen(found: ForkMerge, path: bytes) -> list[str]:
    """What each rung would do about it."""
    expected = found.prepared.foreseen.get(path)
    if expected is None:
        return []
    from holdfast.model.answers.merges import Foreseen
    from holdfast.model.json_encoder import encode

    return foreseen(encode(Foreseen, expected))


def _would(plan: MergePlan) -> str:
    counts = plan.counts
    straight = ", straight, as nothing else has happened here" if plan.is_straight else ""
    return (
        f"Would merge {plural(plan.changesets, 'changeset')} since {short(plan.base)}{straight}: "
        f"{files(counts.apply_theirs)} written, {counts.deletes:,} deleted, "
        f"{counts.keep_production:,} kept as here, {counts.overlapping:,} to be applied anew."
    )


def _reapplied(found: ForkMerge) -> list[str]:
    lines: list[str] = []
    for one in found.prepared.records:
        by = dict.fromkeys(tried.rung for tried in one.tried if tried.result == "answered")
        how = "decided by a person" if one.outcome == "decided" else f"applied anew by {', '.join(by) or 'nobody'}"
        lines.append(f"  {show_path(one.path)}: {how}")
    return lines


def _ended(found: ForkMerge) -> int:
    if found.plan.overlapping and not found.dry_run:
        waiting = [one for one in found.prepared.records if one.outcome == "pending"]
        raise RefusedError(
            f"{plural(len(found.plan.overlapping), 'file')} could not be applied anew; nothing was changed",
            hint="an agent has been asked; run the same again when it has answered"
            if waiting
            else "decide each with --resolve PATH=FILE, --keep PATH or --take PATH, and run the same again",
            code="needs_reapply",
        )
    if found.restored is not None and found.restored.skipped:
        raise left_alone(found.restored.skipped)
    return 0


COMMANDS = {
    "merge": Command(
        description="Bring what a fork has done into this workspace, without losing what was done here since they "
        "parted. A file that one side alone has changed is as that side has it; the fork's changes to a file that both "
        "have changed are applied anew, one after the other, by the ladder of merge.ladder "
        "(docs/guide/merge.md). What no rung can apply is listed, and nothing is changed until it is decided. "
        "What is in both trees is saved first.",
        configure=_configure,
        run=_run,
        examples=(
            ("holdfast merge ../fork --dry-run", "what would be merged, and what overlaps"),
            ("holdfast merge ../fork", "merge all that the fork has done"),
            ("holdfast merge ../fork --resolve app.py=/tmp/app.py", "with what becomes of a file that overlaps"),
            ("holdfast undo", "take the merge back"),
        ),
        exits=((4, "something overlaps that no rung could apply; or locked, or changed meanwhile"),),
    )
}
