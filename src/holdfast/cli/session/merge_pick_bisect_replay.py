"""``session merge``, ``pick``, ``bisect`` and ``replay``: commands between sessions, and through their states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import RefusedError, UsageError
from holdfast.cli.command import Command, text, whole_number
from holdfast.cli.overlaps import DECIDE, add_decision_options, decisions_in, overlap_lines, rungs_of
from holdfast.cli.phrases import changed, checkpoint_title, files, left_alone, only_there, reasons, short, uncaptured
from holdfast.cli.session.selection import add_options, open_session
from holdfast.cli.terminal import show_path
from holdfast.model.message_text import plural, visible
from holdfast.model.paths import display

if TYPE_CHECKING:
    import argparse
    import threading
    from collections.abc import Sequence

    from holdfast.cli.console import Console
    from holdfast.engine.merging.three_way import MergeConflict, Prefer
    from holdfast.engine.sessions.exchange.bisection import BisectResult, TriedState
    from holdfast.engine.sessions.exchange.command_replay import RepeatedCommand, ReplayResult
    from holdfast.engine.sessions.exchange.state_merge import SessionMerge

_SHOWN = 20
_PLACED: dict[Prefer, str] = {"ours": "this session's", "theirs": "the other's"}


# -- merge and pick ---------------------------------------------------------------------------------------------------


def _configure_merge(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument("other", metavar="OTHER", type=text, help="the session to merge, such as a fork")
    _configure_conflicts(parser)


def _configure_pick(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument("other", metavar="OTHER", type=text, help="the session that ran the command")
    parser.add_argument("which", metavar="COMMAND", type=text, help="its number in that history, or its id")
    _configure_conflicts(parser)


def _configure_conflicts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prefer",
        metavar="SIDE",
        choices=("ours", "theirs"),
        help="ours or theirs wins in a conflict, without asking an agent (default: refuse)",
    )
    add_decision_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="only show the plan")


def _merge(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.engine.sessions.exchange.state_merge import merge

    with open_session(console, arguments.session, arguments.agent) as (make, session):
        decided = decisions_in(console, session.workspace, arguments)
        found = merge(
            make,
            session,
            arguments.other,
            prefer=arguments.prefer,
            resolutions=decided,
            dry_run=arguments.dry_run,
        )
    return _merged(console, arguments, found, f"the session {visible(found.source)}")


def _pick(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.engine.sessions.exchange.state_merge import find_command, history_of, pick

    with open_session(console, arguments.session, arguments.agent) as (make, session):
        with make() as sessions:
            source, history = history_of(sessions, arguments.other)
            entry = find_command(history, arguments.which)
        decided = decisions_in(console, session.workspace, arguments)
        found = pick(session, source, entry, prefer=arguments.prefer, resolutions=decided, dry_run=arguments.dry_run)
    return _merged(console, arguments, found, f"the command {entry.seq} of {visible(source)}")


def _merged(console: Console, arguments: argparse.Namespace, found: SessionMerge, what: str) -> int:
    from holdfast.model.answers import experiments as answers

    conflicts, restored = found.conflicts, found.merged.restored
    if console.json:
        from holdfast.engine.sessions.exchange.state_merge import merge_object

        console.give(answers.SessionMerge, merge_object(answers.SessionMerge, found))
    elif restored is not None:
        console.say(
            f"Merged {what}: {files(len(restored.written))} written, {len(restored.deleted):,} deleted.",
            *_decided(arguments, found),
        )
        if restored.rescue is not None and restored.undo_command is not None:
            before, undo = short(restored.rescue), restored.undo_command
            console.say(f"Checkpoint {before} holds the state before; `{undo}` brings it back.")
        if restored.skipped:
            console.say(*reasons(restored.skipped))
    elif not conflicts:
        _say_of_none(console, arguments, found, what)
    if not console.json:
        console.say(*uncaptured([display(path) for path in found.merged.plan.uncaptured]))
        console.say(*only_there(found.not_captured, what))
    if conflicts:
        if not console.json:
            console.say(f"In conflict with {what}:")
            for one in found.merged.waiting:
                more = overlap_lines(found.merged, one.path, there="there")
                console.say(_conflict_line(one.conflict), *(f"    {line}" for line in more))
        raise RefusedError(
            f"{plural(len(conflicts), 'file is', 'files are')} in conflict; nothing was changed",
            hint=_what_settles(conflicts),
            code="conflicts",
        )
    if restored is not None and restored.skipped:
        raise left_alone(restored.skipped)
    return 0


def _say_of_none(console: Console, arguments: argparse.Namespace, found: SessionMerge, what: str) -> None:
    """Report a merge that changes nothing, or the plan of a dry run."""
    changes, together = found.merged.plan.stacked.plan.changes, found.put_together
    if changes or together:
        console.say(
            f"Would merge {what}: {files(len(changes) + len(together))} changed.",
            *changed(console.paint, changes),
            *(f"  {show_path(path)}: the changes of both sides would be merged" for path in together),
        )
    elif found.settled:
        console.say(
            f"This session has changed everything in {what} itself, and stays as it is:", *_decided(arguments, found)
        )
    else:
        saved = "saved " if found.not_captured else ""
        console.say(f"This session has everything {saved}in {what} already.")


def _what_settles(conflicts: Sequence[MergeConflict]) -> str:
    in_the_way = sum(one.why == "in_the_way" for one in conflicts)
    if not in_the_way:
        return f"decide each with {DECIDE}, or settle it with --prefer ours or --prefer theirs"
    hint = "if a file and a directory have one name, rename or remove the one here, and run the same command again"
    return hint if in_the_way == len(conflicts) else f"{hint}; --prefer ours or --prefer theirs settles the rest"


def _decided(arguments: argparse.Namespace, found: SessionMerge) -> list[str]:
    """The files whose changes were merged, and those that a person decided."""
    lines = [
        f"  {show_path(one.path)}: applied anew by {', '.join(rungs_of(one))}"
        for one in found.merged.prepared.records
        if one.outcome == "reapplied"
    ]
    more = f", {_PLACED[arguments.prefer]} taken" if arguments.prefer else ", decided"
    return lines + [_conflict_line(one, more) for one in found.settled]


def _conflict_line(conflict: MergeConflict, more: str = "") -> str:
    from holdfast.engine.merging.three_way import CONFLICT_TEXTS

    there = "" if conflict.there == conflict.path else f" (there {show_path(conflict.there)})"
    return f"  {show_path(conflict.path)}{there}: {CONFLICT_TEXTS[conflict.why]}{more}"


# -- bisect -----------------------------------------------------------------------------------------------------------


def _configure_bisect(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument(
        "command",
        metavar="COMMAND",
        type=text,
        help="the command that tests a state",
    )
    parser.add_argument("--good", metavar="STATE", type=text, required=True, help="a checkpoint or branch that is good")
    parser.add_argument("--bad", metavar="STATE", type=text, default="@", help="one that is bad (default: @)")
    parser.add_argument("--timeout", metavar="SECONDS", help="end a test that takes longer; it counts as bad")
    parser.add_argument("--with-ignored", action="store_true", help="include ignored files, such as dependencies")


def _bisect(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.cli.experiment_attempts import cancellable, seconds
    from holdfast.engine.sessions.exchange import bisection
    from holdfast.model.answers import experiments as answers

    timeout = None if arguments.timeout is None else seconds(arguments.timeout)

    def tell(tried: TriedState) -> None:
        if not console.json:
            left = f", about {plural(tried.left, 'step')} left" if tried.left else ""
            console.say(f"  {checkpoint_title(tried.checkpoint)}: {tried.verdict} (exit {tried.exit_code}){left}")

    def search(stop: threading.Event) -> int:
        ends = (bisection.resolve_state(session, name) for name in (arguments.good, arguments.bad))
        found = bisection.bisect(
            make,
            session,
            arguments.command,
            bisection.Bounds(*ends),
            timeout=timeout,
            with_ignored=arguments.with_ignored,
            tell=tell,
            stop=stop,
        )
        if console.json:
            console.give(answers.Bisected, found)
        else:
            console.answer(_bisected(found))
        return 0

    with open_session(console, arguments.session, arguments.agent) as (make, session):
        return cancellable(console, search)


def _bisected(found: BisectResult) -> Sequence[str]:
    if len(found.candidates) > 1:
        return [
            "The first bad state is one of these; the command could not test any but the last:",
            *(f"  {checkpoint_title(one)}" for one in found.candidates),
        ]
    first = found.candidates[0]
    lines = [
        (f"The first bad state is {checkpoint_title(first)}; `holdfast show {short(first.id)}` shows its changes.")
    ]
    if found.command is not None:
        lines.append(f"The command {found.command.seq} made it: {visible(found.command.command)}")
    return lines


# -- replay -----------------------------------------------------------------------------------------------------------


def _configure_replay(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument("other", metavar="OTHER", type=text, help="the session whose commands run again")
    parser.add_argument("--from", dest="first", metavar="N", type=whole_number, required=True, help="the first command")
    parser.add_argument(
        "--to", dest="last", metavar="N", type=whole_number, help="the last command (default: the newest)"
    )
    parser.add_argument("--keep-going", action="store_true", help="continue after another exit code")
    parser.add_argument("--timeout", metavar="SECONDS", help="end a command that takes longer")


def _replay(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.cli.experiment_attempts import cancellable, seconds
    from holdfast.engine.sessions.exchange import command_replay
    from holdfast.engine.sessions.exchange.state_merge import history_of
    from holdfast.model.answers import experiments as answers

    if arguments.last is not None and arguments.last < arguments.first:
        raise UsageError(f"{arguments.last} is before {arguments.first}")
    timeout = None if arguments.timeout is None else seconds(arguments.timeout)

    def tell(repeated: RepeatedCommand) -> None:
        if not console.json:
            console.say(_repeated_line(repeated))

    def again(stop: threading.Event) -> int:
        with make() as sessions:
            source, history = history_of(sessions, arguments.other)
            commands = command_replay.commands_between(history, arguments.first, arguments.last)
        done = command_replay.replay(
            session, commands, keep_going=arguments.keep_going, timeout=timeout, tell=tell, stop=stop
        )
        if console.json:
            console.give(answers.Replayed, done, source=source)
        if done.stopped:
            raise _stopped(done)
        return 0

    with open_session(console, arguments.session, arguments.agent) as (make, session):
        return cancellable(console, again)


def _stopped(done: ReplayResult) -> RefusedError:
    number, last = len(done.left), done.repeated[-1].before.seq
    return RefusedError(
        f"the command {last} ended with another exit code than before; "
        f"{plural(number, 'command was', 'commands were')} not run",
        hint=f"--keep-going goes on; --from {done.left[0].seq} runs the rest" if done.left else None,
        code="ended_differently",
    )


def _repeated_line(repeated: RepeatedCommand) -> str:
    first, second = repeated.before.result, repeated.now.result
    code = "?" if second is None else str(second.exit_code)
    was = "" if repeated.same_end or first is None else f", was {first.exit_code}"
    output = "" if repeated.same_output else "  other output"
    return f"  {repeated.before.seq:>4}  exit {code}{was}{output}  {visible(repeated.before.command)[:100]}"


_REFUSED = "refused: files are in conflict, or the session is in use, belongs to another user, or changed meanwhile"

COMMANDS = {
    "session merge": Command(
        description="Merge the changes of another session, such as a fork, into this one: files, and nothing of "
        "its shell (docs/reference/merge.md). If it cannot combine both changes of a file, it lists the conflicts "
        "and changes nothing (exit 4). `holdfast undo` takes the merge back.",
        configure=_configure_merge,
        run=_merge,
        examples=(
            ("holdfast session merge fork-3f2a91c0be", "merge a fork's work"),
            ("holdfast session merge fork-3f2a91c0be --dry-run", "show the plan and the conflicts"),
            ("holdfast session merge first -s second", "merge one fork into another"),
        ),
        exits=((4, _REFUSED),),
    ),
    "session pick": Command(
        description="Apply the changes of one command, of this or another session, to this session. If "
        "this session has changed the same files, nothing happens. `holdfast undo` takes it "
        "back.",
        configure=_configure_pick,
        run=_pick,
        examples=(("holdfast session pick fork-3f2a91c0be 12", "the changes of its command number 12"),),
        exits=((4, _REFUSED),),
    ),
    "session bisect": Command(
        description="Find the first bad state between a good and a bad one. Holdfast runs COMMAND in a fork at "
        "one state after another: 0 means good, 125 unknown, other codes up to 124 bad. The session does not "
        "change (docs/reference/experiment.md#bisect).",
        configure=_configure_bisect,
        run=_bisect,
        examples=(
            ("holdfast session bisect --good v1 'make test'", "find the state that broke the tests"),
            ("holdfast session bisect --good @-20 --bad @-2 ./check.sh", "between these two"),
        ),
        exits=((4, "refused: an end fails its own test, or the command gives no verdict"),),
    ),
    "session replay": Command(
        description="Run the commands of another session again, in this one, from its present state. It stops at "
        "the first that ends with another exit code than before.",
        configure=_configure_replay,
        run=_replay,
        examples=(
            ("holdfast session replay main --from 4 -s rebased", "from its fourth command on"),
            ("holdfast session replay main --from 4 --to 9 --keep-going", "these, with any exit code"),
        ),
        exits=((4, ("refused: a command ended with another exit code than before, and the later ones were not run")),),
    ),
}
