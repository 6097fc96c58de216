"""``steps``, ``step``, ``barriers`` and ``safeguard``: what the undo log holds, and what waits for an answer."""

from __future__ import annotations

import sys

from holdfast import UsageError
from holdfast.cli.command import Command, text, whole_number
from holdfast.cli.phrases import left_alone, reasons
from holdfast.cli.terminal import show_path, terminal_width, when
from holdfast.model.entries import NotCaptured
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.message_text import named_steps, plural, size, visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from holdfast import Workspace
    from holdfast.cli.console import Console
    from holdfast.cli.terminal import Row
    from holdfast.undo.service import BarrierInfo, ConflictInfo, PathChange, StepInfo, TicketInfo

_MOST_STEPS = 1_000_000
_LEAST_COMMAND = 16
"""So much of a command is shown in the narrowest terminal."""
_LETTERS = {"added": "A", "modified": "M", "deleted": "D", "renamed": "R", "metadata": "M"}


def step_number(argument: str) -> int:
    """A step's id: a whole number, below 0 for ambient ones."""
    import argparse

    try:
        return int(argument)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{argument!r} is not the id of a step") from None


def step_numbers(argument: str) -> Sequence[int]:
    """The id of a step, or those from one to another: ``3-400``."""
    import argparse

    first, _, last = argument[1:].partition("-")
    if not last:
        return (step_number(argument),)
    found = range(step_number(argument[:1] + first), step_number(last) + 1)
    if not 0 < len(found) <= _MOST_STEPS:
        raise argparse.ArgumentTypeError(f"{argument!r} are not the ids of steps")
    return found


# -- steps ------------------------------------------------------------------------------------------------------------


def _configure_steps(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("verb", metavar="show", nargs="?", choices=("show",), help="all about one step")
    parser.add_argument("id", metavar="ID", nargs="?", type=step_number, help="the step")
    parser.add_argument(
        "--discard", action="store_true", help="forget all steps, also those of another version of Holdfast"
    )


def _steps(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.model.answers import steps as answers

    if (arguments.verb is None) != (arguments.id is None) or (arguments.discard and arguments.verb is not None):
        raise UsageError("`steps`, `steps show ID` or `steps --discard`")
    with console.open() as workspace:
        if arguments.discard:
            number = workspace.discard_steps()
            if console.json:
                console.give(answers.DiscardedSteps, discarded=number)
            else:
                console.say("Forgot the undo log." if number is None else f"Forgot {plural(number, 'step')}.")
        elif arguments.verb is None:
            found = workspace.steps()
            if console.json:
                console.give(answers.Steps, steps=found)
            else:
                width = terminal_width(sys.stdout)
                console.table(_STEP_COLUMNS, (_step_row(step, width) for step in reversed(found)))
        else:
            show_step(console, workspace, arguments.id, pager=False)
    return 0


def show_step(console: Console, workspace: Workspace, number: int, *, pager: bool) -> None:
    """Print all about one step."""
    step, changes, left = _found(workspace, number)
    if console.json:
        from holdfast.model.answers import steps as answers

        console.give(answers.StepWithChanges, step, changes=changes, conflicts=left)
    else:
        console.answer_paged(_about(step, changes, left), pager=pager)


def step_lines(workspace: Workspace, number: int) -> Iterator[str]:
    """The same as lines."""
    return _about(*_found(workspace, number))


def _found(workspace: Workspace, number: int) -> tuple[StepInfo, Sequence[PathChange], Sequence[ConflictInfo]]:
    step, changes = workspace.step(number)
    return step, changes, workspace.conflicts(step.id) if step.state == "partly" else ()


_STEP_COLUMNS = ((">step", 5), ("began", 19), ("kind", 8), ("changed", 12), ("command", 0))


def _step_row(step: StepInfo, width: int | None) -> Row:
    """``width``: of the terminal, to which the command is cut."""
    state = "" if step.state == "done" else f"  [{step.state}]"
    code = f"  exit {step.exit_code}" if step.exit_code else ""
    bare = "  not protected" if step.unprotected else ""
    barrier = "  (other processes have changed files since)" if step.barrier_after else ""
    cells = [str(step.id), when(step.started_at // 1000), step.kind, plural(step.paths, "path")]
    taken = sum(max(len(cell), least) + 2 for cell, (_, least) in zip(cells, _STEP_COLUMNS, strict=False))
    command, after = _command(step), f"{code}{state}{bare}{barrier}"
    room = None if width is None else max(width - taken - len(after), _LEAST_COMMAND)
    if room is not None and len(command) > room:
        command = f"{command[: room - 1]}…"
    return [*cells, f"{command}{after}"]


def _command(step: StepInfo) -> str:
    return visible(" ".join(show_path(word) for word in step.command))


def _about(step: StepInfo, changes: Sequence[PathChange], left: Sequence[ConflictInfo]) -> Iterator[str]:
    facts = (
        ("step", str(step.id)),
        ("kind", step.kind),
        ("state", step.state),
        ("command", _command(step)),
        ("directory", show_path(step.directory)),
        ("run", step.run),
        ("began", when(step.started_at // 1000)),
        ("ended", "" if step.ended_at is None else when(step.ended_at // 1000)),
        ("exit code", "" if step.exit_code is None else str(step.exit_code)),
        ("copied", size(step.copied)),
        ("not protected", visible(step.unprotected)),
    )
    yield from (f"{name:<14}{value}" for name, value in facts if value)
    yield ""
    for change in changes:
        source = "" if change.source is None else f"{show_path(change.source)} -> "
        yield f"  {_LETTERS[change.change]} {source}{show_path(change.path)}"
    if left:
        yield "Left alone when it was last taken back, or brought forward:"
        yield from reasons(_items(left))


def _items(left: Sequence[ConflictInfo]) -> list[NotCaptured]:
    return [NotCaptured(one.path, one.account) for one in left]


# -- step -------------------------------------------------------------------------------------------------------------


def _configure_step(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("verb", choices=("begin", "commit", "rollback"), help="open a step, close it, or take it back")
    parser.add_argument("label", metavar="LABEL", nargs="?", type=text, default="", help="a label for the new step")


def _step(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.model.answers import steps as answers
    from holdfast.model.json_encoder import encode

    if arguments.label and arguments.verb != "begin":
        raise UsageError(f"step {arguments.verb} takes no label")
    left: Sequence[ConflictInfo] = ()
    with console.open() as workspace:
        if arguments.verb == "begin":
            number = workspace.begin_step(arguments.label)
            kind, answer = answers.BegunStep, encode(answers.BegunStep, id=number)
            line = f"Step {number} is open: all changes from now on belong to it."
        elif arguments.verb == "commit":
            step = workspace.commit_step()
            kind, answer, line = answers.Step, step, f"Closed step {step.id}: {plural(step.paths, 'path')} changed."
        else:
            report = workspace.rollback_step()
            left = report.conflicts
            kind, answer = answers.RolledBack, report
            line = f"Took {named_steps(report.steps)} back{_left_note(left)}"
    _say(console, kind, answer, line, left)
    return 0


def _left_note(left: Sequence[ConflictInfo]) -> str:
    return ", except for these paths:" if left else "."


def _say(console: Console, kind: type, answer: object, line: str, left: Sequence[ConflictInfo]) -> None:
    """Report the result; raise `left_alone` for paths that could not be changed."""
    if console.json:
        console.give(kind, answer)
    else:
        console.say(line, *reasons(_items(left)))
    if left:
        raise left_alone(_items(left))


# -- barriers ---------------------------------------------------------------------------------------------------------


def _configure_barriers(_parser: argparse.ArgumentParser) -> None:
    pass


def _barriers(console: Console, _arguments: argparse.Namespace) -> int:
    from holdfast.model.answers import steps as answers

    with console.open() as workspace:
        found = workspace.barriers()
    if console.json:
        console.give(answers.Barriers, barriers=found)
    else:
        if not found:
            console.say("No other process changed anything between two steps; `holdfast status` shows later edits.")
        console.table((("seen", 19), ("who changed what", 0)), map(_barrier_row, found))
    return 0


def _barrier_row(barrier: BarrierInfo) -> Row:
    paths = ", ".join(show_path(path) for path in barrier.paths[:3] if path) or "anything"
    more = ", …" if len(barrier.paths) > 3 else ""
    after = "" if barrier.after is None else f"after step {barrier.after}  "
    only = "" if barrier.blocks else "  (only noted)"
    return when(barrier.at // 1000), f"{after}{visible(barrier.who) or 'another process'}: {paths}{more}{only}"


# -- safeguard --------------------------------------------------------------------------------------------------------


def _configure_safeguard(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("verb", nargs="?", default="list", choices=("list", "allow", "deny"), help="default: list")
    parser.add_argument("id", metavar="ID", nargs="?", type=whole_number, help="the number of the operation")


def _safeguard(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.model.answers import steps as answers

    if (arguments.verb == "list") != (arguments.id is None):
        raise UsageError("`safeguard list`, `safeguard allow ID` or `safeguard deny ID`")
    with console.open() as workspace:
        if arguments.verb == "list":
            held = workspace.held()
            if console.json:
                console.give(answers.Tickets, held=held)
            else:
                if not held:
                    console.say("Nothing waits for an answer.")
                console.table(((">ticket", 5), ("what waits", 0)), map(_ticket_row, held))
            return 0
        ticket = workspace.answer(arguments.id, allow=arguments.verb == "allow")
    left = ticket.conflicts
    if arguments.verb == "allow":
        line = f"Allowed; step {ticket.step} goes on."
    else:
        line = f"Denied; step {ticket.step} was taken back{_left_note(left)}"
    _say(console, answers.AnsweredTicket, ticket, line, left)
    return 0


def _ticket_row(ticket: TicketInfo) -> Row:
    return str(ticket.id), f"{visible(ticket.message)}  (denied by itself at {when(ticket.denied_at // 1000)})"


_REFUSED = "refused: by a process that is supervised itself, or nothing is being recorded"
_KEEPER = (4, f"{_REFUSED}; or edits by other processes were left alone (rollback, deny)")

COMMANDS = {
    "steps": Command(
        description="List the steps in the undo log, newest first. `holdfast undo --step ID` takes one back.",
        configure=_configure_steps,
        run=_steps,
        examples=(
            ("holdfast steps", "list the steps"),
            ("holdfast steps show 7", "list the paths that step 7 changed"),
            ("holdfast steps --discard", "forget them all"),
        ),
        exits=((4, "refused: another process has the undo log"), (5, "the undo log is damaged, or of another version")),
    ),
    "step": Command(
        description="Group all changes under `holdfast run` into one step, from `begin` until `commit` or "
        "`rollback`, for all processes of the run.",
        configure=_configure_step,
        run=_step,
        examples=(
            ("holdfast step begin 'the upgrade'", "all changes from now on are one step"),
            ("holdfast step commit", "end the step here"),
            ("holdfast step rollback", "end the step here, and take it back"),
        ),
        notes=(
            (
                "`rollback` leaves edits by other processes alone and lists them (exit 4), with the place where "
                "the step's version is kept; `holdfast steps show ID` repeats this."
            ),
        ),
        exits=(_KEEPER,),
    ),
    "barriers": Command(
        description="List edits by other processes between the steps, as far as Holdfast noticed them. Undo "
        "crosses no edit of the same paths without --force.",
        configure=_configure_barriers,
        run=_barriers,
        examples=(("holdfast barriers", "list the edits"),),
    ),
    "safeguard": Command(
        description="Answer operations that wait for a person (`holdfast run --guard`): allow one, or deny it, "
        "and Holdfast takes its step back. Without an answer in time it is denied.",
        configure=_configure_safeguard,
        run=_safeguard,
        examples=(
            ("holdfast safeguard list", "list them"),
            ("holdfast safeguard allow 3", "allow it"),
            ("holdfast safeguard deny 3", "deny it, and take its step back"),
        ),
        notes=("`deny` leaves edits by other processes alone, as `step rollback` does (exit 4).",),
        exits=(_KEEPER,),
    ),
}
