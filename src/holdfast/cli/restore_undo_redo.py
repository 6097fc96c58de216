"""``restore``, ``undo`` and ``redo``."""

from __future__ import annotations

import os
from contextlib import contextmanager

from holdfast import NotFoundError, RefusedError, UsageError
from holdfast.cli.command import Command, text
from holdfast.cli.diff import show_patch
from holdfast.cli.phrases import MOST_NAMED, files, left_alone, reasons, short, status_line
from holdfast.cli.steps_barriers_safeguard import step_numbers
from holdfast.cli.terminal import ask, show_path
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.message_text import listed, named_steps, plural, visible
from holdfast.model.timeline import PROMPT

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Generator, Iterator, Sequence

    from holdfast import RestoreResult, Workspace
    from holdfast.cli.console import Console
    from holdfast.model.content import Progress

    Work = Callable[[Workspace, Progress | None], RestoreResult]


FORWARD = "Went forward"


def _configure_restore(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="ID", nargs="?", type=text, help="the checkpoint to go back to")
    parser.add_argument(
        "paths", metavar="PATH", nargs="*", help="only these files and directories (default: everything)"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be written and deleted")
    parser.add_argument(
        "--patch",
        action="store_true",
        help="ask for each hunk (ID is then @ by default); with --dry-run: show the patch, and name the paths "
        "that no checkpoint holds",
    )
    unfinished = parser.add_mutually_exclusive_group()
    unfinished.add_argument(
        "--continue", dest="finish", action="store_true", help="finish a restore that was interrupted"
    )
    unfinished.add_argument("--abort", action="store_true", help="go back to the state before an interrupted restore")


def _restore(console: Console, arguments: argparse.Namespace) -> int:
    if arguments.finish or arguments.abort:
        if arguments.name is not None or arguments.dry_run or arguments.patch:
            raise UsageError(
                "--continue and --abort stand alone", hint="`holdfast restore --help` shows how they are used"
            )
        step = _finish if arguments.finish else _abort
        with console.open(offer=False) as workspace:
            return _carry_out(console, workspace, step, "Restored")
    _check_patch(console, arguments)
    name = arguments.name or ("@" if arguments.patch else None)
    if name is None:
        raise UsageError(
            "restore needs the name of a checkpoint",
            hint="`holdfast log` lists them, and marks with @ where the tree stands",
        )

    def work(workspace: Workspace, progress: Progress | None) -> RestoreResult:
        def restore(paths: list[bytes]) -> RestoreResult:
            return workspace.restore(name, paths, dry_run=arguments.dry_run, progress=progress)

        with _may_be_path(name, arguments.paths):
            return console.with_paths(workspace, arguments.paths, restore)

    if arguments.patch and not arguments.dry_run:
        return _restore_parts(console, name, arguments.paths)
    return _go(console, work, "Restored", asks=not arguments.dry_run, patch=arguments.patch)


@contextmanager
def _may_be_path(name: str, paths: Sequence[str], options: str = "") -> Generator[None]:
    """Where there is no checkpoint ``name`` but a file of this name, the error's hint has the command for the file."""
    try:
        yield
    except NotFoundError as error:
        if not paths and os.path.lexists(name):
            error.hint = f"a path follows a checkpoint: `holdfast restore{options} @ {visible(name)}`"
        raise


def _check_patch(console: Console, arguments: argparse.Namespace) -> None:
    if not arguments.patch:
        return
    if console.json:
        raise UsageError(
            "--patch cannot stand beside --json", hint="`holdfast diff --json` gives the difference of two states"
        )


def _restore_parts(console: Console, name: str, given: Sequence[str]) -> int:
    """``restore --patch``: write what a person takes of the differences."""
    if not console.interactive:
        raise RefusedError(
            "restore --patch asks about each hunk, and there is no terminal to ask at",
            hint="--dry-run --patch shows the hunks; without --patch the PATHs are restored as a whole",
            code="no_terminal",
        )
    from holdfast.cli.hunk_questions import choose

    with console.open(scan=True) as workspace:
        settle_unfinished(console, workspace)
        with _may_be_path(name, given, " --patch"):
            found = console.with_paths(workspace, given, lambda paths: workspace.restore_differences(name, paths))
        chosen = choose(console, found.files())
        result = workspace.restore_parts(found.target, chosen) if chosen else None
        if result is None:
            console.say("Nothing was changed.")
            return 0
        return _report(console, result._replace(checkpoint=found.target), "Restored in part")


def _configure_steps(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "count",
        metavar="N",
        nargs="?",
        type=number_of_changes,
        help="how many changes (default: 1); if there are fewer, nothing changes (exit 3)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="only say what would be written and deleted, or why not",
    )
    parser.add_argument(
        "--patch",
        action="store_true",
        help="with --dry-run: show the patch, and name the paths that no checkpoint holds",
    )


def _configure_undo(parser: argparse.ArgumentParser) -> None:
    _configure_steps(parser)
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--run", metavar="ID", nargs="?", const="", type=text, help="all changes of a run (default: the newest)"
    )
    chosen.add_argument(
        "--step",
        metavar="ID",
        type=step_numbers,
        action="append",
        help="only this step (several, or of 3-9 all there are: together)",
    )
    chosen.add_argument(
        "--to",
        metavar="PROMPT",
        type=prompt_number,
        help="all changes since before this prompt (`holdfast log` lists them)",
    )
    parser.add_argument(
        "--stop",
        action="store_true",
        help="with --run: first end the processes that it left running",
    )
    parser.add_argument("--force", action="store_true", help="overwrite files that another process has changed since")


def _configure_redo(parser: argparse.ArgumentParser) -> None:
    _configure_steps(parser)
    parser.add_argument(
        "--step",
        metavar="ID",
        type=step_numbers,
        action="append",
        help="this step, even if others came later (several, or all undone ones of 3-9: together)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite files that another process has changed since")


def number_of_changes(argument: str) -> int:
    """How many changes go back or forward: a whole number from 1."""
    if argument.isascii() and argument.isdigit() and argument.strip("0"):
        return int(argument)
    import argparse

    raise argparse.ArgumentTypeError(
        f"{argument!r} is no number of changes; `holdfast restore @- PATH` brings single files back"
    )


def prompt_number(argument: str) -> int:
    """The number of a prompt, by itself or as `log` shows it: ``prompt:41``."""
    digits = argument.removeprefix(f"{PROMPT}:")
    if not digits.isascii() or not digits.isdigit():
        import argparse

        raise argparse.ArgumentTypeError(f"{argument!r} is no prompt; `holdfast log` shows them as prompt:41")
    return int(digits)


def _steps(workspace: Workspace, given: Sequence[Sequence[int]] | None, states: Sequence[str]) -> list[int] | None:
    """The ``given`` steps, as ids and ranges. A range means its steps in one of ``states``; if it has none, all its
    steps, so that the engine's refusal explains why.
    """
    if not given:
        return None
    known = {step.id: step.state for step in workspace.steps()} if any(len(steps) > 1 for steps in given) else {}
    chosen: list[int] = []
    for steps in given:
        there = [step for step in steps if step in known]
        fit = [step for step in there if known[step] in states]
        chosen += fit or there or steps
    return chosen


def _count(arguments: argparse.Namespace, *, alone: bool) -> int:
    if alone and arguments.count is not None:
        raise UsageError("N counts changes: it cannot stand beside --run, --step or --to")
    return 1 if arguments.count is None else arguments.count


def _undo(console: Console, arguments: argparse.Namespace) -> int:
    count = _count(arguments, alone=bool(arguments.step) or arguments.run is not None or arguments.to is not None)
    if arguments.stop and (arguments.run is None or arguments.dry_run):
        raise UsageError("--stop ends a run: it stands beside --run, and not beside --dry-run")

    _check_step_patch(console, arguments)

    def work(workspace: Workspace, progress: Progress | None) -> RestoreResult:
        return workspace.undo(
            count,
            to=arguments.to,
            step=_steps(workspace, arguments.step, ("done", "open")),
            run=arguments.run,
            stop=arguments.stop,
            force=arguments.force,
            dry_run=arguments.dry_run,
            progress=progress,
        )

    return _go(console, work, "Went back", asks=not arguments.dry_run, patch=arguments.patch)


def _check_step_patch(console: Console, arguments: argparse.Namespace) -> None:
    if arguments.patch and not arguments.dry_run:
        raise UsageError("--patch shows what would be changed: it stands beside --dry-run")
    _check_patch(console, arguments)


def _redo(console: Console, arguments: argparse.Namespace) -> int:
    count = _count(arguments, alone=bool(arguments.step))
    _check_step_patch(console, arguments)

    def work(workspace: Workspace, progress: Progress | None) -> RestoreResult:
        return workspace.redo(
            count,
            step=_steps(workspace, arguments.step, ("undone",)),
            force=arguments.force,
            dry_run=arguments.dry_run,
            progress=progress,
        )

    return _go(console, work, FORWARD, asks=not arguments.dry_run, patch=arguments.patch)


def _finish(workspace: Workspace, progress: Progress | None) -> RestoreResult:
    return workspace.restore_continue(progress=progress)


def _abort(workspace: Workspace, progress: Progress | None) -> RestoreResult:
    return workspace.restore_abort(progress=progress)


def _go(console: Console, work: Work, verb: str, *, asks: bool, patch: bool) -> int:
    """Do ``work``; at a terminal, ask first what to do about an interrupted restore. ``patch``: it is a dry run, and
    shown as a patch.
    """
    with console.open(scan=True) as workspace:
        if asks:
            settle_unfinished(console, workspace)
        if not patch:
            return _carry_out(console, workspace, work, verb)
        result = work(workspace, None)
        planned = workspace.planned_diff(result)
        show_patch(console, workspace.planned_patch(planned))
        if planned.unknown:
            most = len(planned.unknown) if console.verbose else MOST_NAMED
            named = ", ".join(map(show_path, planned.unknown[:most])) + (", …" if len(planned.unknown) > most else "")
            console.warn(
                f"no checkpoint holds what would be changed in {plural(len(planned.unknown), 'more path')}: {named}"
            )
        _refuse_left_alone(result, verb)
        return 0


def settle_unfinished(console: Console, workspace: Workspace) -> None:
    """At a terminal, ask what to do about an interrupted restore."""
    if console.interactive and workspace.unfinished() is not None:
        choice = ask("[f]inish it, go [b]ack to the state before it, or [q]uit? ", "fbq")
        if choice == "q":
            raise RefusedError("nothing was done", code="declined")
        _carry_out(console, workspace, _finish if choice == "f" else _abort, "Restored")


def _carry_out(console: Console, workspace: Workspace, work: Work, verb: str) -> int:
    """Do ``work``, and report the result."""
    with console.progress() as progress:
        result = work(workspace, progress)
    return _report(console, result, verb)


def _report(console: Console, result: RestoreResult, verb: str) -> int:
    """Report the result; raise `left_alone` for paths that could not be changed."""
    if console.json:
        from holdfast.model.answers import workspace as answers
        from holdfast.model.message_text import process_details

        console.give(answers.RestoredByCommand, result, stopped=process_details(result.stopped))
    else:
        console.say(*result_lines(console, result, verb))
    _refuse_left_alone(result, verb)
    return 0


def _refuse_left_alone(result: RestoreResult, verb: str) -> None:
    if result.skipped:
        from holdfast.model.message_text import step_options

        again = f"holdfast {'redo' if verb == FORWARD else 'undo'}{step_options(result.refused)}"
        raise left_alone(
            result.skipped, f"once they can be changed, `{again}` does the rest" if result.refused else None
        )


def result_lines(console: Console, result: RestoreResult, verb: str) -> Iterator[str]:
    """The lines of a result; ``verb`` begins the first: ``Restored``, ``Went back``, `FORWARD`."""
    done = f"{files(len(result.written))} written, {len(result.deleted):,} deleted"
    by = f" by {named_steps(result.steps)}" if result.steps else ""
    together = f"{'brought forward' if verb == FORWARD else 'undone'} together."
    groups = [f"Steps {listed(group)} depend on each other, and " for group in result.together]
    if result.dry_run:
        where = f"go{by}" if result.steps else f"bring the tree to {short(result.checkpoint)}"
        yield f"Would {where}: {done}."
        yield from (f"{group}would be {together}" for group in groups)
        yield from (f"  would write   {show_path(path)}" for path in result.written)
        yield from (f"  would delete  {show_path(path)}" for path in result.deleted)
        if result.skipped:
            yield "Would leave alone:"
            yield from reasons(result.skipped)
        return
    if result.stopped:
        from holdfast.model.message_text import named_processes

        yield visible(f"Ended {named_processes(result.stopped)}.")
    is_saved = result.rescue != result.checkpoint
    if result.written or result.deleted or (result.steps and not result.skipped):  # steps may have changed only times
        to = f" to {short(result.checkpoint)}" if is_saved or not by else ""
        yield f"{verb}{by}{to}: {done}."
    elif result.skipped:
        yield f"Nothing was changed: {short(result.checkpoint)} was not reached."
    else:
        yield f"Nothing was changed: the tree is as {short(result.checkpoint)} has it."
    yield from _changed(console, result)
    yield from (f"{group}were {together}" for group in groups)
    if result.skipped:
        yield "Left alone:"
        yield from reasons(result.skipped)
    if result.undo_command is None:
        return
    if is_saved:
        saved = f"Checkpoint {short(result.rescue)} holds the state before; " if result.rescue else ""
    else:
        saved = f"No checkpoint holds those changes, and {short(result.checkpoint)} is still the newest; "
    yield f"{saved}`{result.undo_command}` brings it back."


def _changed(console: Console, result: RestoreResult) -> Iterator[str]:
    """The written and deleted paths: the first of them, with ``-v`` all."""
    rows = [(path, result.letters.get(path, "M")) for path in result.written]
    rows = sorted([*rows, *((path, "D") for path in result.deleted)])
    most = len(rows) if console.verbose else MOST_NAMED
    yield from (f"  {status_line(console.paint, letter, path)}" for path, letter in rows[:most])
    if len(rows) > most:
        yield f"  and {len(rows) - most:,} more"


_EXITS = (
    (4, "refused, or some paths stay as another process left them"),
    (5, "needed content is damaged; nothing was changed"),
)

COMMANDS = {
    "restore": Command(
        description="Bring the tree, or some paths of it, to a checkpoint. Holdfast saves the present state "
        "first, so that `holdfast undo` returns to it, and changes only files that differ. It deletes only files "
        "that it has just saved, never ignored ones.",
        configure=_configure_restore,
        run=_restore,
        examples=(
            ("holdfast restore before-upgrade --dry-run", "see the plan"),
            ("holdfast restore before-upgrade", "go back to it"),
            ("holdfast restore @ src/main.py", "one file, as it was last saved"),
            ("holdfast restore @ src/main.py --patch", "only the hunks of it that you take"),
            ("holdfast restore --continue", "finish a restore that was cut short"),
        ),
        notes=(
            (
                "A file that changes during the restore, or that a program has open for writing, stays and is "
                "listed (exit 4): close it and restore again. If no path can be changed, the command is refused, "
                "and the history gets no row. "
                "`undo`, `redo` and `merge` do the same."
            ),
            "Where the file system cannot tell who writes, concurrent writes are kept beside the file, as NAME.kept-1.",
            "Long runs of zeros come back as holes.",
            (
                "--patch asks about each hunk; ? explains the answers. A file without hunks (added, deleted, "
                "binary, a link) and a change of permissions are one question; a database goes with its log. "
                "Nothing is written before the last answer, nor if a file with a taken hunk has changed since "
                "(exit 4). It needs a terminal, and excludes --json, -q, --continue and --abort."
            ),
            (
                "--continue and --abort leave alone paths that another process has changed since, and list them "
                "with the command that brings the other version (exit 4)."
            ),
            (
                "The target cannot be forgotten. If it is lost before a file has changed, or before --continue, "
                "nothing changes (exit 3); --abort works without it."
            ),
        ),
        exits=_EXITS,
    ),
    "undo": Command(
        description="Take back the newest change to the tree. Unsaved changes are saved, and taken back first. "
        "Steps of `holdfast run` are reversed exactly, ignored files included; all other changes go by "
        "checkpoints.",
        configure=_configure_undo,
        run=_undo,
        examples=(
            ("holdfast undo", "one state back"),
            ("holdfast undo 3", "three"),
            ("holdfast undo --run", "take back the last run"),
            ("holdfast undo --run --stop", "end its server first"),
            ("holdfast undo --step 7", "one step alone"),
            ("holdfast undo --to prompt:41", "take back all changes since that prompt"),
            ("holdfast undo --dry-run", "look first"),
            ("holdfast undo --dry-run --patch", "look at the lines that would change"),
        ),
        notes=(
            (
                "--to changes nothing if the state before the prompt was forgotten (exit 3) or undone since (exit "
                "4: redo leads to it). The changes of a step that still runs stay, which is said."
            ),
            (
                "Without --force undo is refused (exit 4) if another process has changed the same files since, or "
                "if the log does not hold all of the change (docs/reference/run.md#when-it-refuses). --force "
                "leaves replaced files; redo brings overwritten content back."
            ),
            (
                "--dry-run ends with the exit code of the real command, as far as it is known before. Damage in "
                "the undo log, leases, and obstacles behind earlier changes or past --force show only in the real one. "
                "An interrupted undo or redo is announced, not finished."
            ),
        ),
        exits=_EXITS,
    ),
    "redo": Command(
        description="Bring back the change that `holdfast undo` took back, one state at a time.",
        configure=_configure_redo,
        run=_redo,
        examples=(("holdfast redo", "one state forward"), ("holdfast redo 3", "three")),
        notes=("--step excludes N; --patch then only names the paths.",),
        exits=_EXITS,
    ),
}
