"""``forget``, ``gc``, ``verify`` and ``stats``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import IntegrityError, UsageError
from holdfast.cli.command import Command, text, whole_number
from holdfast.cli.phrases import checkpoint_title, short
from holdfast.cli.terminal import show_path, when
from holdfast.model.ids import format_hash
from holdfast.model.message_text import plural, size, visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from holdfast import Collected, Forgotten, Policy, Stats
    from holdfast.cli.console import Console


_COUNTS_HINT = "nothing is missing; `holdfast gc --recount` corrects the counts"
_SHOWN = 10
"""Corrected counts that are named without ``-v``."""


def duration(argument: str) -> float:
    """An argument that is a time: seconds, or a number with a unit, as in ``90m`` or ``7d``."""
    from holdfast.model.config.values import parse_duration

    return _parsed(parse_duration, argument)


def age(argument: str) -> float:
    """An argument that is an age: as a `duration`, except ``m``, or as in restic, such as ``1y5m7d2h``."""
    from holdfast.model.config.values import parse_age

    return _parsed(parse_age, argument)


def _parsed(parse: Callable[[object], float], argument: str) -> float:
    try:
        return parse(argument)
    except ValueError as error:
        import argparse

        raise argparse.ArgumentTypeError(str(error)) from None


def _configure_forget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", metavar="ID", nargs="*", type=text, help="the checkpoints to drop")
    rules = parser.add_argument_group("what to keep (without any, the retention rules of the configuration apply)")
    rules.add_argument("--keep-last", metavar="N", type=whole_number, default=0, help="the newest N")
    for span in ("hourly", "daily", "weekly", "monthly"):
        rules.add_argument(f"--keep-{span}", metavar="N", type=whole_number, default=0, help=f"{span}, the last N")
    rules.add_argument(
        "--keep-within",
        metavar="T",
        type=age,
        default=0.0,
        help="all younger than T before the newest: 90min, 7d, 6mo, or 1y5m7d2h (m: months)",
    )
    rules.add_argument(
        "--keep-label",
        metavar="LABEL",
        type=text,
        action="append",
        default=[],
        help="those with this label (or pattern)",
    )
    parser.add_argument("--gone", action="store_true", help="drop all workspaces whose directories are gone")
    parser.add_argument(
        "--dry-run", action="store_true", help="only list the checkpoints to drop, and why the others stay"
    )


def _forget(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.model.answers import upkeep as answers
    from holdfast.model.json_encoder import encode

    policy = _policy(arguments)
    if policy is not None and arguments.names:
        raise UsageError("either name checkpoints, or say what to keep", hint="`holdfast forget --help` shows both")
    if arguments.gone and (policy is not None or arguments.names):
        raise UsageError("--gone stands alone", hint="`holdfast forget --help` shows what goes together")
    if arguments.gone:
        with console.open_home(freeing=True) as home:
            result = home.forget_gone(dry_run=arguments.dry_run)
    else:
        with console.open(freeing=True) as workspace:
            result = workspace.forget(arguments.names, policy=policy, dry_run=arguments.dry_run)
    if console.json:
        console.give(
            answers.Forgotten,
            result,
            removed=[
                encode(answers.ForgottenCheckpoint, one, composed_into=result.composed_into.get(one.id, ()))
                for one in result.removed
            ],
            kept=[encode(answers.KeptCheckpoint, one, reasons=reasons) for one, reasons in result.kept],
        )
    else:
        console.say(*_forgotten_lines(result, verbose=console.verbose))
    return 0


def _policy(arguments: argparse.Namespace) -> Policy | None:
    """The policy of the ``--keep-…`` flags; None without any."""
    from holdfast import Policy

    policy = Policy(
        keep_last=arguments.keep_last,
        keep_hourly=arguments.keep_hourly,
        keep_daily=arguments.keep_daily,
        keep_weekly=arguments.keep_weekly,
        keep_monthly=arguments.keep_monthly,
        keep_within=arguments.keep_within,
        keep_label=tuple(arguments.keep_label),
    )
    return None if policy == Policy() else policy


def _forgotten_lines(result: Forgotten, *, verbose: bool) -> Iterator[str]:
    verb = "Would forget" if result.dry_run else "Forgot"
    kept = f", kept {len(result.kept):,}" if result.kept else ""
    yield f"{verb} {plural(len(result.removed), 'checkpoint')}{kept}."
    for item in result.removed:
        heirs = ", ".join(short(heir) for heir in result.composed_into.get(item.id, ()))
        part = f"; its changes {'would be' if result.dry_run else 'are now'} part of {heirs}" if heirs else ""
        yield f"  - {checkpoint_title(item)}  {when(item.created_at)}  {item.kind}{part}"
    if result.dry_run or verbose:
        for item, why in result.kept:
            yield f"  = {checkpoint_title(item)}  {when(item.created_at)}  {item.kind}: {visible(', '.join(why))}"
    if result.removed and not result.dry_run:
        yield "`holdfast gc` frees what nothing needs any more, after the grace time."


def _configure_gc(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--grace",
        metavar="T",
        type=duration,
        help="the grace time: 0, 90m, 24h (default: gc.grace)",
    )
    parser.add_argument(
        "--recount",
        action="store_true",
        help="first correct wrong counts of uses (else every 30 days)",
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be deleted and rewritten")


def _gc(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.model.answers import upkeep as answers

    with console.open_either(freeing=True) as opened, console.progress() as progress:
        result = opened.gc(
            grace=arguments.grace, recount=arguments.recount, dry_run=arguments.dry_run, progress=progress
        )
    if console.json:
        console.give(answers.Collected, result)
    else:
        delete, free, rewrite = (
            ("Would delete", "free", "rewrite") if result.dry_run else ("Deleted", "freed", "rewrote")
        )
        console.say(
            f"{delete} {plural(result.blobs_deleted, 'blob')} and {plural(result.packs_deleted, 'pack')}, "
            f"{rewrite} {plural(result.packs_rewritten, 'pack')}, {free} {size(result.bytes_freed)}.",
            *_correction_lines(result, wanted=arguments.recount, verbose=console.verbose),
        )
    return 0


def _correction_lines(result: Collected, *, wanted: bool, verbose: bool) -> Iterator[str]:
    drifts = result.corrected
    if drifts:
        verb = "Would correct" if result.dry_run else "Corrected"
        yield f"{verb} {plural(len(drifts), 'count')} that a full mark contradicts:"
        shown = drifts if verbose else drifts[:_SHOWN]
        yield from (f"  {format_hash(one.hash)}: {one.counted} {one.was}, now {one.now}" for one in shown)
        if len(shown) < len(drifts):
            yield f"  and {len(drifts) - len(shown):,} more; -v names all"
    elif wanted:
        yield "No count is wrong that could be corrected."


def _configure_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--read-data", action="store_true", help="read and hash every stored byte as well")


def _verify(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.model.answers import upkeep as answers

    with console.open_either() as opened, console.progress() as progress:
        result = opened.verify(read_data=arguments.read_data, progress=progress)
    looked_at = f"{plural(result.checkpoints, 'checkpoint')}, {plural(result.blobs, 'blob')}"
    if console.json:
        console.give(answers.Verified, result)
    elif result.ok:
        console.say(f"No problem found: {looked_at}.")
    else:
        console.answer(
            f"{problem.kind}: {visible(problem.object)}: {visible(problem.message)}" for problem in result.problems
        )
    if not result.ok:
        raise IntegrityError(
            f"{plural(len(result.problems), 'problem')} found in {looked_at}",
            hint=_COUNTS_HINT
            if all(problem.kind == "count" for problem in result.problems)
            else (
                "`holdfast checkpoint --full-hash` stores again all content that the tree still holds; "
                "an exported bundle can be imported"
            ),
        )
    return 0


def _configure_stats(parser: argparse.ArgumentParser) -> None:
    del parser


def _stats(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.model.answers import upkeep as answers

    del arguments
    with console.open_either() as opened:
        result = opened.stats()
    if console.json:
        console.give(answers.Stats, result)
    else:
        console.answer(_stats_lines(result))
    return 0


def _stats_lines(result: Stats) -> Iterator[str]:
    facts = (
        ("workspaces", f"{result.workspaces:,}"),
        ("checkpoints", f"{result.checkpoints:,}"),
        ("blobs", f"{result.blobs:,}, {size(result.content_bytes)} of content"),
        ("pages", f"{result.pages:,}"),
        ("packs", f"{result.packs:,}"),
        ("stored", f"{size(result.stored_bytes)}, {size(result.dead_bytes)} of it unused"),
        ("catalog", size(result.catalog_bytes)),
    )
    yield from (f"{name:<11}  {value}" for name, value in facts)
    if result.largest:
        yield "largest in the newest checkpoint:"
        yield from (f"  {size(total):>8}  {show_path(path)}" for path, total in result.largest)


COMMANDS = {
    "forget": Command(
        description="Drop the named checkpoints, or those that a policy (by default the settings) does not keep. The "
        "newest checkpoint and those that a fork needs stay. `holdfast gc` frees the content later.",
        configure=_configure_forget,
        run=_forget,
        examples=(
            ("holdfast forget --dry-run", "list what the configured rules would drop"),
            ("holdfast forget --keep-last 10 --keep-daily 7", "drop by another policy"),
            ("holdfast forget 3f2a9c", "drop one checkpoint"),
        ),
        notes=(
            (
                "A checkpoint stays if any option keeps it. Options drop labelled ones too, unless --keep-label names "
                "them ('*': the watcher's too)."
            ),
            "Until --gone, `restore` at its path brings a deleted workspace back.",
            (
                "--gone keeps a workspace whose disk may be unmounted or replaced. It finds moved directories "
                "only among the file system's nearest 500,000 entries: use --dry-run first."
            ),
        ),
        exits=((4, "refused: a checkpoint that was named is in use"),),
    ),
    "gc": Command(
        description="Delete content that no checkpoint has needed for the grace time (default: 24 h). It runs "
        "beside all other commands and can be interrupted at any point.",
        configure=_configure_gc,
        run=_gc,
        examples=(
            ("holdfast gc", "free unused content"),
            ("holdfast gc --dry-run", "only say how much"),
            ("holdfast gc --grace 0", "at once, without a grace time"),
            ("holdfast gc --recount", "correct counts that `verify` finds wrong"),
        ),
        notes=(
            (
                "On a full disk `restore`, `undo`, `redo`, `fork`, `mount`, `forget` and `gc` use 4 MiB in "
                "reserve; `status`, `log`, `show`, `cat`, `diff`, `stats` and --dry-run need no space."
            ),
            (
                "Without space for all unsaved changes, `restore`, `undo` and `redo` save only those that they "
                "overwrite or delete, and say so. Without space even for these, nothing changes and the message "
                "names what helps."
            ),
        ),
        exits=((4, "refused: another collection is running"),),
    ),
    "verify": Command(
        description="Check the store: every reference, every count, and every checksum of the metadata. It lists "
        "all damage.",
        configure=_configure_verify,
        run=_verify,
        examples=(("holdfast verify", "quickly"), ("holdfast verify --read-data", "thoroughly")),
        notes=(
            (
                "On a full disk a collection may run meanwhile, which is said: free space and verify again before "
                "you believe that something is missing."
            ),
        ),
    ),
    "stats": Command(
        description="Show how much space the store takes, and the checkpoint that this workspace stands on.",
        configure=_configure_stats,
        run=_stats,
        examples=(("holdfast stats", "a report to read"), ("holdfast stats --json", "for programs")),
    ),
}
