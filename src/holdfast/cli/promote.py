"""``promote``."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from holdfast import UsageError
from holdfast.cli.command import Command, text
from holdfast.cli.overlaps import add_decision_options, decisions, difference_lines, how_to_decide
from holdfast.cli.phrases import foreseen, short, uncaptured
from holdfast.cli.terminal import is_terminal
from holdfast.model.message_text import plural, visible
from holdfast.model.paths import display, parse_display

if TYPE_CHECKING:
    import argparse
    from collections.abc import Generator, Sequence

    from holdfast.cli.console import Console
    from holdfast.engine.promotion.manager import Promotion, Promotions
    from holdfast.engine.promotion.spec import DecidedFile, PromotionAnswer, PromotionFacts

EXITS = {"promoted": 0, "unchanged": 0, "clean": 0, "needs_reapply": 4}
"""By result; all others are failures."""

_MOST_DECISIONS = 64 << 20
"""Bytes of a file of decisions: more than a promotion takes of content, in Base64."""

_STEPS = {
    "plan": "putting it together with production",
    "copy": "copying production",
    "setup": "setting up",
    "build": "building",
    "check": "starting it, and checking its health",
    "swap": "swapping",
    "restart": "restarting",
    "finish": "clearing away",
}


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "holdfast promote FORK [--to DIR] [--dry-run]\n"
        "       holdfast promote --resume [ID] | --sweep [--force] | --list"
    )
    parser.add_argument("fork", metavar="FORK", nargs="?", help="a fork's directory, or a checkpoint")
    parser.add_argument("--to", metavar="DIR", help="production (default: the workspace that was forked)")
    parser.add_argument(
        "--production",
        metavar="ID:DEVICE:INODE",
        type=text,
        help="for programs: production by its workspace's id; FORK is then a checkpoint's id",
    )
    add_decision_options(parser)
    parser.add_argument(
        "--decisions",
        metavar="FILE",
        help="for programs: all decisions, as a JSON list of {path, prefer, content, version}",
    )
    parser.add_argument("--dry-run", action="store_true", help="only show the plan")
    parser.add_argument("--author", metavar="NAME", default="", type=text, help="who promotes")
    parser.add_argument("--message", metavar="TEXT", default="", type=text, help="why")
    parser.add_argument(
        "--resume", metavar="ID", nargs="?", const="", type=text, help="continue a promotion that was cut short"
    )
    parser.add_argument(
        "--sweep", action="store_true", help="take back or finish interrupted promotions; remove leftovers"
    )
    parser.add_argument(
        "--force", action="store_true", help="with --sweep: also old directories still used or written to"
    )
    parser.add_argument(
        "--id", metavar="ID", dest="name", default="", type=text, help="the promotion's id (16 hex digits)"
    )
    parser.add_argument("--steps", action="store_true", help="with --json: an object at the start of each step too")
    parser.add_argument("--list", action="store_true", dest="listed", help="list the promotions, oldest first")


def _run(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.engine.promotion.manager import ProductionRef, Promotions
    from holdfast.model.answers import merges as answers

    _check(arguments)
    promotions = Promotions(home=console.home, tell=lambda step: _tell(console, step, steps=arguments.steps))
    if arguments.listed:
        return _list(console, promotions)
    if arguments.sweep:
        return _sweep(console, promotions, force=arguments.force)
    if arguments.dry_run:
        decided = _decided(arguments)
        answer = promotions.foresee(arguments.fork, to=arguments.to or console.directory, decided=decided)
        if console.json:
            console.give(answers.PromotionPlan, answer)
        else:
            console.answer(_plan(answer))
        return EXITS.get(answer.result, 1)
    with _interrupted_by_signals():
        if arguments.resume is not None:
            done = promotions.resume(arguments.resume)
        else:
            done = promotions.promote(
                arguments.fork,
                to=ProductionRef.parse(arguments.production)
                if arguments.production
                else arguments.to or console.directory,
                author=arguments.author,
                message=arguments.message,
                command=f"holdfast promote {shlex.quote(display(os.fsencode(arguments.fork)))}",
                name=arguments.name,
                decided=_decided(arguments),
            )
    if console.json:
        console.give(answers.Promoted, done)
    else:
        console.answer(_said(done))
    return EXITS.get(done.answer.result, done.answer.ends_with)


def _check(arguments: argparse.Namespace) -> None:
    given = [
        name
        for name, value in (
            ("FORK", arguments.fork is not None),
            ("--resume", arguments.resume is not None),
            ("--sweep", arguments.sweep),
            ("--list", arguments.listed),
        )
        if value
    ]
    if len(given) != 1:
        raise UsageError(
            "one of FORK, --resume, --sweep and --list is needed"
            if not given
            else f"not {' and '.join(given)} at once",
            hint="holdfast promote --help",
        )
    if given != ["FORK"] and (
        arguments.to
        or arguments.production
        or arguments.dry_run
        or arguments.author
        or arguments.message
        or arguments.name
        or arguments.keep
        or arguments.take
        or arguments.resolve
        or arguments.decisions
    ):
        raise UsageError(
            "--to, --production, --dry-run, --author, --message, --id, --keep, --take and --resolve go with FORK",
            hint="holdfast promote --help",
        )
    if arguments.production and (arguments.to or arguments.dry_run):
        raise UsageError("--production goes with neither --to nor --dry-run", hint="holdfast promote --help")
    if arguments.force and not arguments.sweep:
        raise UsageError("--force goes with --sweep", hint="holdfast promote --help")


def _decided(arguments: argparse.Namespace) -> list[DecidedFile]:
    """The decisions in the options. Raises `UsageError`."""
    from holdfast.engine.promotion.spec import DecidedFile, decode_resolutions

    # Relative to production, whose files were shown: the current directory may be anywhere.
    given = decisions(arguments, parse_display)
    found = [DecidedFile(display(path), one.prefer, one.content) for path, one in given.items()]
    if arguments.decisions is None:
        return found
    try:
        with open(arguments.decisions, "rb") as file:
            data = file.read(_MOST_DECISIONS + 1)
    except OSError as error:
        raise UsageError(f"{arguments.decisions} cannot be read: {error.strerror}") from None
    if len(data) > _MOST_DECISIONS:
        raise UsageError(f"{arguments.decisions} is larger than {_MOST_DECISIONS >> 20} MiB")
    return [*found, *decode_resolutions(data)]


@contextmanager
def _interrupted_by_signals() -> Generator[None]:
    """Treat signals to end like Ctrl-C: running commands are ended, and the build is reversed."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _tell(console: Console, step: str, *, steps: bool) -> None:
    if steps and console.json:
        with suppress(OSError):  # no process listens; it goes on
            from holdfast.model.answers.merges import PromotionStep

            console.give(PromotionStep, step=step)
            sys.stdout.flush()
    if is_terminal(sys.stderr) and not console.quiet and not console.json:
        sys.stderr.write(f"{_STEPS.get(step, step)} …\n")


def _plan(answer: PromotionAnswer, files: Sequence[dict[str, Any]] = ()) -> list[str]:
    if answer.result == "unchanged":
        return ["Nothing to promote: production has every change."]
    counts = answer.changes
    assert counts is not None, "a plan has them"
    written = f"{counts.apply_theirs} to be written, {counts.deletes} to be deleted"
    lines = [
        f"{plural(answer.changesets, 'changeset')}: {written}, {counts.keep_production} changed in production alone."
    ]
    lines += uncaptured(answer.uncaptured)
    if answer.overlapping_files:
        lines.append(f"{plural(len(answer.overlapping_files), 'file')} changed on both sides:")
        for one in answer.overlapping_files:
            lines.append(f"  {visible(one.path)}: {one.detail}")
            lines += [f"    {line}" for line in foreseen(one.foreseen)] if one.foreseen else []
            lines += [
                f"    {rung['rung']}: {visible(rung['said'])}"
                for file in files
                if file["path"] == one.path
                for rung in file["tried"]
                if rung["rung"] != "person" and rung["result"] != "answered" and "said" in rung
            ]
            differences = difference_lines(
                one.production_diff or "", one.fork_diff or "", here="in production", there="in the fork"
            )
            lines += [f"    {line}" for line in differences]
        ways = how_to_decide((one.path, one.why) for one in answer.overlapping_files)
        lines.append(
            "The promotion itself would apply all of that anew, without a question."
            if all(one.foreseen and one.foreseen["applies"] for one in answer.overlapping_files)
            else "An agent has been asked; promote again when it has answered."
            if any(file["outcome"] == "pending" for file in files)
            else f"{ways[:1].upper()}{ways[1:]}, and promote again."
        )
    return lines


def _said(done: Promotion) -> list[str]:
    from holdfast.model.answers.merges import file_records

    answer, facts = done.answer, done.facts
    if answer.result == "promoted":
        lines = [f"Promoted to {visible(done.path)}: it is now at {short(answer.checkpoint)}."]
        if not answer.atomic:
            lines.append(f"  File by file, not at once: {facts.hindrance}.")
        if facts.provider:
            what = "Built" if done.runs_commands else "Put together"
            lines.append(f"  {what} in a copy that {facts.provider} has made: {facts.provider_reason}.")
        lines += [f"  {line}" for line in _isolation(facts)]
        if not done.runs_commands:
            lines.append(
                "  Nothing was built or checked: promote.setup, promote.build, promote.start and "
                "promote.health are not set."
            )
        lines += [f"  {line}" for line in uncaptured(facts.uncaptured)]
        if facts.restart is not None and facts.restart.exit_code:
            lines.append(f"  The restart FAILED with {facts.restart.exit_code}; the old server may still run.")
            lines += [f"    {visible(line)}" for line in facts.restart.output.splitlines()[-20:]]
        if facts.late:
            lines.append("  Written to the old directory since the swap, and not in production:")
            lines += [f"    {visible(path)}" for path in facts.late[:5]]
        if facts.used_by:
            lines.append("  Still in the old directory (a shell gets into the new one by `cd .`):")
            lines += [f"    process {user.pid}: {visible(user.command)}" for user in facts.used_by[:5]]
        if facts.kept:
            lines.append(f"  {visible(facts.kept)} is kept for that; the next promotion, or --sweep, removes it")
        lines.append(f"  Take it back: {answer.undo_command}  (in {visible(done.path)})")
        return lines
    if answer.result == "unchanged":
        return _plan(answer)
    if answer.result == "needs_reapply":
        return [*_plan(answer, file_records(done)), "Production is unchanged."]
    if answer.result == "build_failed":
        lines = [f"The promotion failed at {answer.failed_step}: {visible(answer.command)}"]
        lines += [f"  {visible(line)}" for line in answer.output.splitlines()[-40:]]
        return [*lines, *_isolation(facts), f"{visible(answer.message)}. {answer.recovery}"]
    return [f"The promotion failed: {visible(answer.message)}.", visible(answer.recovery)]


def _isolation(facts: PromotionFacts) -> list[str]:
    return [f"Built WITHOUT isolation: {visible(facts.isolation_reason)}."] if facts.isolation == "none" else []


def _list(console: Console, promotions: Promotions) -> int:
    from holdfast.model.answers import merges as answers

    found = promotions.list()
    if console.json:
        console.give(answers.Promotions, promotions=found)
        return 0
    if not found:
        console.say("No promotion yet.")
    console.table(
        (("promotion", 0), ("result", 13), ("production", 0), ("failed in", 0)),
        ((one.row.id, one.row.result or one.row.phase, visible(one.path), one.answer.failed_step) for one in found),
    )
    return 0


def _sweep(console: Console, promotions: Promotions, *, force: bool) -> int:
    from holdfast.model.answers import merges as answers

    done = promotions.sweep(force=force)
    if console.json:
        console.give(answers.PromotionSweep, done)
        return 0
    console.say(
        *(f"Settled {one}, which was cut short." for one in done.settled),
        *(f"Removed {one}" for one in done.removed),
        *(
            f"Kept {one}: a process uses it, or has written to it since the swap; --force removes it."
            for one in done.kept
        ),
        *(f"Another promotion works on {one}." for one in done.busy),
    )
    if not any((done.settled, done.removed, done.kept, done.busy)):
        console.say("Nothing was left over.")
    return 0


COMMANDS = {
    "promote": Command(
        description="Bring the changes of a fork to production: the workspace that it was forked from "
        "(docs/reference/promote.md). They are merged in a copy of production, where setup, build, start and "
        "health check run as the settings promote.* say. Only if all succeed does the copy replace production, at "
        "once. `holdfast undo` in production takes the promotion back.",
        configure=_configure,
        run=_run,
        examples=(
            ("holdfast promote ../attempt-2", "promote a fork to its origin"),
            ("holdfast promote ../attempt-2 --dry-run", "show the plan"),
            (
                "holdfast promote ../attempt-2 --keep setup.cfg",
                "decide a file that both sides changed, after you have seen it",
            ),
            ("holdfast promote --resume", "go on after a crash"),
            ("holdfast promote --list", "list the promotions and their results"),
        ),
        notes=(
            (
                "--dry-run saves both sides, and builds and changes nothing. SIGINT, SIGTERM and SIGHUP end the "
                "build and take it back."
            ),
            (
                "In --decisions `prefer` is `ours` (production) or `theirs`, `content` is Base64; with neither "
                "the file is deleted. `version` is that of `overlapping_files`."
            ),
        ),
        exits=(
            (1, "a step failed; production is unchanged"),
            (4, "refused: both sides changed a file, production kept changing, or another promotion takes too long"),
        ),
    ),
}
