"""``experiment``."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from holdfast import HoldfastError, UsageError
from holdfast.cli.command import Command, text, whole_number
from holdfast.cli.phrases import files, left_alone, reasons, short
from holdfast.cli.session.selection import add_options, open_session
from holdfast.cli.terminal import is_terminal, show_path
from holdfast.model.message_text import plural, visible

if TYPE_CHECKING:
    import argparse
    import threading
    from collections.abc import Iterator

    from holdfast.cli.console import Console
    from holdfast.engine.experiments.attempts import Comparison, Measure, Order, Outcome, Tell
    from holdfast.engine.experiments.experiment import Adoption, Experiment
    from holdfast.engine.sessions.session import Session

_MOST_NAMED = 10
"""How many of an attempt's uncaptured paths are listed."""

_MEASURES: dict[str, Measure] = {"exit-code": "exit_code", "output": "output", "duration": "duration"}


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("commands", metavar="COMMAND", nargs="*", type=text, help="what to try, each in a fork")
    add_options(parser)
    what = parser.add_argument_group("attempts")
    what.add_argument(
        "--with",
        dest="variants",
        metavar="SETTINGS",
        action="append",
        default=[],
        type=text,
        help="for each attempt of one COMMAND: shell=NAME, timeout=SECONDS, VARIABLE=VALUE",
    )
    what.add_argument(
        "--name",
        dest="names",
        metavar="NAME",
        action="append",
        default=[],
        type=text,
        help="the name of each attempt, in order",
    )
    what.add_argument("--setup", metavar="COMMAND", type=text, default="", help="run this command in every fork first")
    what.add_argument("--timeout", metavar="SECONDS", help="end an attempt that takes longer")
    what.add_argument(
        "-j",
        "--parallel",
        metavar="N",
        type=whole_number,
        default=0,
        help="how many attempts run at once (default and most: session.max_parallel)",
    )
    what.add_argument("--with-ignored", action="store_true", help="include ignored files, such as dependencies")
    what.add_argument(
        "--provider", metavar="NAME", type=text, help="the snapshot provider (docs/reference/snapshot.md)"
    )
    how = parser.add_argument_group("comparison")
    measure = how.add_mutually_exclusive_group()
    measure.add_argument(
        "--compare-by",
        metavar="WHAT",
        choices=tuple(_MEASURES),
        default="exit-code",
        help="exit-code (default), output (the shortest) or duration",
    )
    measure.add_argument(
        "--score",
        metavar="COMMAND",
        type=text,
        help="compare by the number that this command prints; the lowest wins",
    )
    measure.add_argument(
        "--score-function",
        metavar="FILE.py:NAME",
        type=text,
        help="compare by the number that a Python function returns",
    )
    how.add_argument("--highest", action="store_true", help="the highest score is the best")
    then = parser.add_argument_group("result")
    then.add_argument("--adopt", action="store_true", help="bring the session's files to the best attempt's")
    then.add_argument("--keep", action="store_true", help="keep the forks, as sessions")
    then.add_argument("--diff", action="store_true", help="show how the others differ from the best")


def _order(arguments: argparse.Namespace) -> Order:
    from holdfast.cli.experiment_attempts import attempts_of, seconds
    from holdfast.engine.experiments.attempts import Order
    from holdfast.engine.experiments.scores import load_function

    timeout = None if arguments.timeout is None else seconds(arguments.timeout)
    scored = arguments.score is not None or arguments.score_function is not None
    if arguments.highest and not scored:
        raise UsageError("--highest is for scores", hint="give --score COMMAND or --score-function FILE.py:NAME")
    return Order(
        attempts_of(arguments.commands, arguments.names, arguments.variants, timeout),
        setup=arguments.setup,
        measure="score" if scored else _MEASURES[arguments.compare_by],
        score=load_function(arguments.score_function) if arguments.score_function is not None else arguments.score,
        highest=arguments.highest,
        parallel=arguments.parallel,
        keep=arguments.keep,
        with_ignored=arguments.with_ignored,
        provider=arguments.provider,
    )


def _experiment(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.cli.experiment_attempts import cancellable
    from holdfast.engine.experiments.experiment import experiment

    order = _order(arguments)

    def attempt(stop: threading.Event) -> int:
        with ExitStack() as shown:
            tell = _board(console, order, shown)
            with experiment(make, session, order, tell=tell, stop=stop) as found:
                shown.close()
                return _answer(console, arguments, session, found)

    with open_session(console, arguments.session, arguments.agent, starts=True) as (make, session):
        return cancellable(console, attempt)


def _board(console: Console, order: Order, shown: ExitStack) -> Tell | None:
    if console.quiet or not is_terminal(sys.stderr):
        return None
    from holdfast.cli.progress_board import Board

    return shown.enter_context(Board(list(order.attempts), sys.stderr))


def _answer(console: Console, arguments: argparse.Namespace, session: Session, found: Experiment) -> int:
    """Report the outcome, and adopt the best attempt if requested; the exit code."""
    from holdfast.cli.experiment_attempts import table
    from holdfast.engine.experiments.experiment import experiment_object
    from holdfast.model.answers import experiments as answers

    winner = found.comparison.winner
    adopted: Adoption | None = None
    failed: HoldfastError | OSError | None = None
    # Adopt before printing: standard output may be closed.
    if arguments.adopt and winner is not None:
        try:
            adopted = found.adopt()
        except (HoldfastError, OSError) as error:
            failed = error
    try:
        if console.json:
            console.give(answers.Experiment, experiment_object(answers.Experiment, found, adopted, answers.Adopted))
        else:
            console.answer(table(console.paint, found.comparison, found.files))
            if arguments.diff:
                console.answer(_differences(console, session, found))
            console.say("", *_closing(session, found, adopted, arguments.adopt))
            sys.stdout.flush()
    finally:
        if failed is not None:
            raise failed
    if adopted is not None and adopted.restored.skipped:
        raise left_alone(adopted.restored.skipped)
    return 0 if winner is not None else 1


def _closing(session: Session, found: Experiment, adopted: Adoption | None, adopts: bool) -> Iterator[str]:
    comparison = found.comparison
    if comparison.winner is None:
        yield "No attempt succeeded, or none was given a score."
    elif adopted is not None:
        restored = adopted.restored
        yield (
            f"Adopted {visible(comparison.winner.attempt.name)}: {files(len(restored.written))} written, "
            f"{len(restored.deleted):,} deleted."
        )
        yield from reasons(restored.skipped)
        if restored.undo_command is not None and restored.rescue is not None:
            before, undo = short(restored.rescue), restored.undo_command
            yield f"Checkpoint {before} holds the state before; `{undo}` brings it back."
    elif adopts:
        yield f"The best is {visible(comparison.winner.attempt.name)}; it was not adopted."
    else:
        yield f"The best is {visible(comparison.winner.attempt.name)}."
    yield from _not_captured(comparison)
    winner = comparison.winner
    if winner is not None and found.is_kept(winner) and not comparison.kept:
        if not comparison.stays(winner):
            yield "Its fork is kept, as a session:"
            yield f"  {winner.fork}  {show_path(winner.root)}"
        if adopts and adopted is None:
            yield f"`holdfast session merge {winner.fork} -s {session.id}` merges its changes here."
    if comparison.kept:
        yield "Kept as sessions:"
        yield from (
            f"  {one.fork}  {show_path(one.root)}  {visible(one.attempt.name)}"
            for one in sorted(comparison.ranked, key=lambda one: one.attempt.number)
            if one.fork is not None
        )


def _not_captured(comparison: Comparison) -> Iterator[str]:
    """Files of attempts that no checkpoint holds, with the place of the best attempt's."""
    for one in comparison.ranked:
        if not one.not_captured:
            continue
        name, number = visible(one.attempt.name), plural(len(one.not_captured), "path")
        if comparison.stays(one):
            yield f"{name} has left {number} that no checkpoint holds, in its fork alone:"
        else:
            goes = "goes" if len(one.not_captured) == 1 else "go"
            yield f"{name} has left {number} that no checkpoint holds, and that {goes} with its fork:"
        yield from reasons(one.not_captured[:_MOST_NAMED])
        if len(one.not_captured) > _MOST_NAMED:
            yield f"  and {len(one.not_captured) - _MOST_NAMED:,} more"
        if comparison.stays(one) and not comparison.kept:
            yield (
                f"That fork stays, as the session {one.fork}, in {show_path(one.root)}: take from "
                f"there what you need; `holdfast session delete {one.fork}` deletes it."
            )


def _differences(console: Console, session: Session, found: Experiment) -> Iterator[str]:
    """The differences of the others from the best: first their output, then the files."""
    from holdfast.cli.colored_patch import for_terminal

    by_number: dict[int, Outcome] = {one.attempt.number: one for one in found.comparison.ranked}
    first = found.comparison.ranked[0].attempt.number
    for one in found.comparison.differences:
        if one.a != first:
            continue
        names = [visible(by_number[number].attempt.name) for number in (one.a, one.b)]
        yield ""
        yield console.paint(f"{names[0]} -> {names[1]}", "bold")
        for title, difference in (("output", one.stdout), ("errors", one.stderr)):
            if difference:
                yield console.paint(f"  {title}:", "dim")
                pieces = [difference.encode("utf-8", "surrogateescape")]
                yield from for_terminal(console.paint, pieces)
        if one.files is not None:
            yield from for_terminal(console.paint, session.workspace.patch(one.files))


COMMANDS = {
    "experiment": Command(
        description="Run several commands side by side, each in a fork of a session's present state, and compare "
        "the results (docs/reference/experiment.md). The session changes only with --adopt, which `holdfast undo` "
        "takes back. Forks and leftover processes go at the end, after Ctrl-C too.",
        configure=_configure,
        run=_experiment,
        examples=(
            ("holdfast experiment 'npm test' 'pnpm test' --compare-by duration", "find the quickest"),
            ("holdfast experiment ./fix-a.sh ./fix-b.sh --setup 'make deps' --adopt", "adopt the best"),
            ("holdfast experiment make --with CC=gcc --with 'CC=clang timeout=60'", "one command in several ways"),
            ("holdfast experiment ./a ./b --score 'wc -c < out'", "score each attempt by a number"),
        ),
        exits=(
            (1, "failed, or no attempt succeeded or has a score"),
            (
                4,
                (
                    "refused: the session is in use, belongs to another user, or changed meanwhile; or a "
                    "path could not be changed"
                ),
            ),
            (130, "cancelled and cleaned up (143: by SIGTERM)"),
        ),
    ),
}
