"""``session list``, ``info``, ``history`` and ``branches``: looking, which waits for no lock."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.cli.command import Command, whole_number
from holdfast.cli.console import current_directory
from holdfast.cli.session.selection import add_options, choose_session, open_sessions
from holdfast.cli.terminal import show_path, when
from holdfast.model.message_text import described_machine, plural, size, visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from holdfast.cli.console import Console
    from holdfast.cli.terminal import Row
    from holdfast.model.machine import RunningMachine
    from holdfast.model.session_results import SessionInfo
    from holdfast.model.session_types import CommandEntry, SessionRef

SHORT_HASH = 12


# -- list -------------------------------------------------------------------------------------------------------------


def _configure_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-a", "--all", action="store_true", help="those of all workspaces of the home")


def _list(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.model.answers import sessions as answers

    with open_sessions(console) as sessions:
        found = sessions.list(None if arguments.all else os.fsencode(console.directory or current_directory()))
    if console.json:
        console.give(answers.Sessions, sessions=found)
    else:
        console.table(_COLUMNS, map(_row, reversed(found)))
    return 0


_COLUMNS = (
    *(("session", 20), ("last used", 19), ("done", 12), ("provider", 0), ("mode", 0), ("snapshot", 0)),
    *(("owner", 0), ("notes", 0), ("directory", 0)),
)


def _row(one: SessionInfo) -> Row:
    notes = (
        f"from {one.parent}" if one.parent else "",
        plural(len(one.forks), "fork") if one.forks else "",
        f"{plural(len(one.processes), 'process', 'processes')} left running" if one.processes else "",
        "its machine runs" if one.machine is not None else "",
        "in use" if one.busy else "",
        "" if one.status == "live" else f"[{one.status}]",
    )
    return [
        one.id,
        when(one.updated_at),
        plural(0 if one.state is None else one.state.seq, "command"),
        _provider(one),
        one.mode,
        (one.tree or "-")[:SHORT_HASH],
        visible(one.owner),
        "  ".join(filter(None, notes)),
        "" if one.root is None else show_path(one.root),
    ]


def _provider(one: SessionInfo) -> str:
    """The provider that made its directory."""
    return visible(one.provider) or "none"


# -- info -------------------------------------------------------------------------------------------------------------


def _configure_info(parser: argparse.ArgumentParser) -> None:
    add_options(parser)


def _info(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.model.answers import sessions as answers

    with open_sessions(console, arguments.agent) as sessions:
        found = sessions.info(choose_session(console, sessions, arguments.session))
    if console.json:
        console.give(answers.SessionInfo, found)
    else:
        console.answer(_about(found))
    return 0


def _about(one: SessionInfo) -> Iterator[str]:
    state = one.state
    facts = [
        ("session", one.id),
        ("owner", visible(one.owner) + (f", shared with {visible(', '.join(one.shared))}" if one.shared else "")),
        ("forked from", one.parent or ""),
        ("status", "" if one.status == "live" else one.status),
        ("provider", _provider(one) + ("" if one.provider else ": it works in the workspace as it is")),
        ("mode", one.mode),
        ("path", "" if one.root is None else show_path(one.root)),
        ("snapshot", f"{one.tree or 'none'}, the newest checkpoint of its files"),
        ("begun", when(one.created_at)),
        ("last used", when(one.updated_at) + (", in use now" if one.busy else "")),
    ]
    if state is not None:
        metrics, config = state.metrics, state.config
        facts += [
            ("directory", show_path(os.fsencode(state.cwd))),
            ("shell", config.shell + (" in a virtual machine" if config.isolation == "vm" else "")),
            ("machine", _machine(one.machine) if config.isolation == "vm" else ""),
            ("supervised", "" if config.supervised else "no: its commands are no steps, and undo goes by saved states"),
            ("variables", visible(", ".join([*state.env, *(f"-{name}" for name in state.unset)]))),
            ("commands", f"{metrics.commands:,}, {metrics.total_ms / 1000:,.1f} s"),
        ]
    facts += [
        ("running", "" if one.running is None else visible(_one_line(one.running))),
        ("saved as", (one.newest or "")[:SHORT_HASH]),
        (
            "states",
            f"{one.checkpoints:,}, {size(one.stored_bytes)}; since then {plural(one.journal, 'entry', 'entries')}",
        ),
        ("forks", ", ".join(one.forks) or "none"),
        ("left running", "" if one.processes else "nothing"),
    ]
    yield from (f"{name:<13}{value}" for name, value in facts if value)
    if one.processes:
        yield "left running (a process that ends does not come back):"
        for process in one.processes:
            command = visible(" ".join(show_path(word) for word in process.command))
            yield f"  {process.pid:>8}  since {when(process.since)}  {command}"


def _machine(running: RunningMachine | None) -> str:
    if running is None:
        return "none runs now; the next command starts one"
    return f"{described_machine(running)}, since {when(round(running.started_at * 1_000_000))}"


# -- history ----------------------------------------------------------------------------------------------------------


def _configure_history(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument("-n", "--limit", metavar="N", type=whole_number, help="only the last N")
    parser.add_argument("-o", "--output", action="store_true", help="with the output of each command")


def _history(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.model.answers import sessions as answers

    with open_sessions(console, arguments.agent) as sessions:
        session = choose_session(console, sessions, arguments.session)
        found = sessions.history(session, arguments.limit)
        if arguments.limit is not None and len(found) >= arguments.limit:
            dropped = None  # no sweep has looked so far
        elif found:
            dropped = found[-1].seq - 1
        else:
            state = sessions.info(session).state
            dropped = 0 if state is None else state.seq
        running = None
        if found and found[0].result is None:
            about = sessions.info(session)
            running = found[0] if about.busy and about.running is not None else None  # else its session was killed
    if console.json:
        console.give(answers.History, session=session, commands=found, dropped=dropped)
    else:
        rows = (row for entry in found for row in _command(entry, entry is running, with_output=arguments.output))
        console.table(_HISTORY_COLUMNS, rows)
        if dropped:
            console.answer([f"{plural(dropped, 'older command')} not kept any more (session.max_history_bytes)"])
    return 0


_HISTORY_COLUMNS = (
    *((">number", 5), ("began", 19), ("ended", 0), (">time", 0), ("level", 0)),
    *(("files", 0), ("command", 0)),
)


def _command(entry: CommandEntry, going_on: bool, *, with_output: bool) -> Iterator[Row]:
    result = entry.result
    if result is None:
        ended = ("running", "") if going_on else ("cut short", "red")
    else:
        late = "  timed out" if result.timed_out else ""
        ended = (f"exit {result.exit_code}{late}", "green" if result.exit_code == 0 else "red")
    changed = "" if going_on or entry.before == entry.after else "changed files"
    took = f"{entry.duration_ms / 1000:.1f} s"
    yield [
        str(entry.seq),
        *(when(entry.started_at), ended, took, entry.level, changed),
        visible(_one_line(entry)),
    ]
    if with_output and result is not None:
        for text in (result.stdout, result.stderr):
            yield from (f"        {visible(line)}" for line in text.splitlines())


def _one_line(entry: CommandEntry) -> str:
    from holdfast.model.json_encoder import plain

    first, _, more = plain(entry.command).strip().partition("\n")
    return first + (" …" if more else "")


# -- branches ---------------------------------------------------------------------------------------------------------


def _configure_branches(parser: argparse.ArgumentParser) -> None:
    add_options(parser)


def _branches(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.model.answers import sessions as answers

    with open_sessions(console, arguments.agent) as sessions:
        session = choose_session(console, sessions, arguments.session)
        found = sessions.branches(session)
    if console.json:
        console.give(answers.Branches, session=session, branches=found)
    else:
        console.table((("state", 0), ("made", 19), ("branch", 0), ("message", 0)), map(_branch, found))
    return 0


def branch_name(reference: SessionRef) -> str:
    """The branch's name within its session."""
    return reference.name.removeprefix(f"branches/{reference.session}/")


def _branch(one: SessionRef) -> Row:
    message = visible(one.metadata.get("message", ""))
    return [one.checkpoint[:SHORT_HASH], when(one.updated_at), branch_name(one), message]


COMMANDS = {
    "session list": Command(
        description="List the sessions of this workspace, newest first.",
        configure=_configure_list,
        run=_list,
        examples=(("holdfast session list", "here"), ("holdfast session list --all", "in all workspaces")),
    ),
    "session info": Command(
        description="Show one session: owner, directory, newest checkpoint, shell, running processes, "
        "newest saved state, forks.",
        configure=_configure_info,
        run=_info,
        examples=(("holdfast session info", "your newest one here"), ("holdfast session info -s try-2", "another")),
    ),
    "session history": Command(
        description="List the commands that led to a session's state, newest first: exit code, duration, safety "
        "level, and whether files changed.",
        configure=_configure_history,
        run=_history,
        examples=(
            ("holdfast session history -n 5", "the last five"),
            ("holdfast session history --output", "with the output"),
            ("holdfast session history --json", "with the checkpoints before and after each"),
        ),
    ),
    "session branches": Command(
        description="List the names of a session's states, by `session branch` and (`_auto/…`) by `session checkout`.",
        configure=_configure_branches,
        run=_branches,
        examples=(("holdfast session branches", "the targets of `session checkout`"),),
    ),
}
