"""``merge``: what a fork has done comes into this workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import RefusedError
from holdfast.cli.command import Command, text
from holdfast.cli.overlaps import add_decision_options, decisions_in, how_to_decide, overlap_lines, rungs_of
from holdfast.cli.phrases import changed, files, left_alone, only_there, reasons, short, uncaptured
from holdfast.cli.terminal import show_path
from holdfast.model.message_text import plural
from holdfast.model.paths import display

if TYPE_CHECKING:
    import argparse

    from holdfast.cli.console import Console
    from holdfast.engine.merging.fork_merge import ForkMerge
    from holdfast.engine.merging.stacked_plan import MergePlan


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("fork", metavar="FORK", type=text, help="its directory, its workspace's id, or a checkpoint")
    parser.add_argument("-m", "--message", type=text, default="", help="why, for the log")
    add_decision_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="only show the plan; ask no agent and no person")


def _run(console: Console, arguments: argparse.Namespace) -> int:
    with console.open() as workspace, console.progress() as progress:
        found = workspace.merge(
            arguments.fork,
            resolutions={**decisions_in(console, workspace, arguments)},
            message=arguments.message,
            dry_run=arguments.dry_run,
            progress=progress,
        )
    if console.json:
        from holdfast.engine.merging.fork_merge import merge_object
        from holdfast.model.answers import merges as answers

        console.give(answers.Merged, merge_object(answers.Merged, found))
    else:
        _say(console, found)
    return _ended(found)


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
            console.say(f"Checkpoint {before} holds the state before; `{undo}` brings it back.")
        if restored.skipped:
            console.say(*reasons(restored.skipped))
    elif found.prepared.merged is not None:
        saved = "saved " if found.not_captured else ""
        console.say(f"This workspace has everything {saved}in {short(plan.fork)} already.")
    elif found.dry_run:
        console.say(_would(plan), *changed(console.paint, plan.stacked.plan.changes))
    console.say(*uncaptured([display(path) for path in plan.uncaptured]))
    console.say(*only_there(found.not_captured, "the fork"))
    if plan.overlapping:
        console.say(f"{files(len(plan.overlapping))} changed on both sides:")
        for one in plan.overlapping:
            console.say(f"  {show_path(one.path)}: {one.detail}")
            console.say(*(f"    {line}" for line in overlap_lines(found, one.path)))


def _would(plan: MergePlan) -> str:
    counts = plan.counts
    straight = ", directly, because nothing else has happened here" if plan.is_straight else ""
    return (
        f"Would merge {plural(plan.changesets, 'changeset')} since {short(plan.base)}{straight}: "
        f"{files(counts.apply_theirs)} written, {counts.deletes:,} deleted, "
        f"{counts.keep_production:,} kept as here, {counts.overlapping:,} to be applied anew."
    )


def _reapplied(found: ForkMerge) -> list[str]:
    lines: list[str] = []
    for one in found.prepared.records:
        by = ", ".join(rungs_of(one)) or "nobody"
        how = "decided by a person" if one.outcome == "decided" else f"applied anew by {by}"
        lines.append(f"  {show_path(one.path)}: {how}")
    return lines


def _ended(found: ForkMerge) -> int:
    if found.waiting and found.dry_run:
        raise RefusedError(
            f"{plural(len(found.waiting), 'file waits', 'files wait')} for an agent or a person; nothing was changed",
            hint="the same without --dry-run asks the agent, if one is configured, and shows the changes of both sides",
            code="needs_reapply",
        )
    if found.waiting:
        ways = how_to_decide((display(one.path), one.why) for one in found.plan.overlapping)
        waiting = [one for one in found.prepared.records if one.outcome == "pending"]
        raise RefusedError(
            f"{plural(len(found.plan.overlapping), 'file')} could not be applied anew; nothing was changed",
            hint="an agent was asked; run the same command again when it has answered"
            if waiting
            else f"{ways}, and run the same command again",
            code="needs_reapply",
        )
    if found.restored is not None and found.restored.skipped:
        raise left_alone(found.restored.skipped)
    return 0


COMMANDS = {
    "merge": Command(
        description="Merge the changes of a fork into this workspace, and keep those made here "
        "(docs/reference/merge.md). A file that both sides changed is merged by the first way of merge.ladder "
        "that can (docs/reference/ladder.md). The command lists the files that none can merge, and changes "
        "nothing until you decide them.",
        configure=_configure,
        run=_run,
        examples=(
            ("holdfast merge ../fork --dry-run", "show the plan and the overlaps"),
            ("holdfast merge ../fork", "merge all changes of the fork"),
            ("holdfast merge ../fork --resolve app.py=/tmp/app.py", "give the content of an overlapping file"),
            ("holdfast undo", "take the merge back"),
        ),
        exits=(
            (
                4,
                "refused: a file waits for a person or an agent (--dry-run too), or the workspace is in use",
            ),
        ),
    )
}
