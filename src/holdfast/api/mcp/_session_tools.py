"""Tools for sessions (shells that keep their state) and experiments, in the working directory and its forks.

They reach only the sessions of the working directory and of its forks. All changes of their commands are recorded in
the workspace that they work in; a session that cannot record is refused. No tool deletes anything.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.api._request_arguments import path_in
from holdfast.api.mcp import _tool_results as tool_results
from holdfast.api.mcp._pagination import page
from holdfast.api.mcp._read_tools import ToolAnswer
from holdfast.api.mcp._resolutions import resolutions
from holdfast.api.mcp._text_content import OutputExcerpt
from holdfast.api.mcp._write_tools import require_keeper
from holdfast.engine.experiments.attempts import Attempt, Order
from holdfast.engine.experiments.experiment import experiment, experiment_object
from holdfast.engine.sessions.exchange.state_merge import merge, merge_object
from holdfast.engine.sessions.registry import Sessions
from holdfast.engine.sessions.shell.execution import Streams, execute
from holdfast.engine.sessions.shell.held_notices import HeldNotices, report_held
from holdfast.model.answers import sessions as answers
from holdfast.model.answers.faces import ListedSession
from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.model.json_encoder import encode, encode_all

if TYPE_CHECKING:
    import threading
    from collections.abc import Generator

    from holdfast.api.mcp._call_progress import CallActivity
    from holdfast.api.mcp._shared_host import SharedHost
    from holdfast.api.mcp._tool_arguments import (
        EndSession,
        ExecuteInSession,
        ForkSession,
        GetSession,
        ListSessions,
        MergeSession,
        RunExperiment,
        StartSession,
    )
    from holdfast.engine.experiments.attempts import AttemptProgress
    from holdfast.engine.hosting.working_directory import HostedDirectory
    from holdfast.engine.sessions.session import Session
    from holdfast.engine.sessions.shell.execution import StreamName
    from holdfast.model.session_results import SessionInfo
    from holdfast.undo.service import StepInfo, TicketInfo

_LAST_LINE_BYTES = 4096


def list_sessions(_host: SharedHost, hosted: HostedDirectory, request: ListSessions) -> ToolAnswer:
    """The sessions of the working directory and their forks, the newest first."""
    with _sessions(hosted) as sessions:
        found = sessions.family(hosted.path)[::-1]
    shown, following = page(found, lambda one: str(one.id), "sessions", request.cursor, str, request.limit)
    listed = encode_all(ListedSession, shown)
    return ToolAnswer(encode(tool_results.Sessions, sessions=listed, total=len(found), next_cursor=following))


def get_session(_host: SharedHost, hosted: HostedDirectory, request: GetSession) -> ToolAnswer:
    """One session, with its last commands."""
    with _sessions(hosted) as sessions:
        found = sessions.info_in_family(hosted.path, request.session)
        history = sessions.history(found.id, request.history)
    commands = tool_results.clipped(encode_all(answers.Command, history))
    return ToolAnswer(encode(tool_results.Session, found, history=commands))


def start_session(host: SharedHost, hosted: HostedDirectory, request: StartSession) -> ToolAnswer:
    """Begin a session."""
    _check(host, hosted)
    path = hosted.path + b"/" + path_in(hosted.path, request.cwd)
    with (
        _sessions(hosted) as sessions,
        sessions.start(path, request.session, env=request.environment, within=hosted.path) as session,
    ):
        return ToolAnswer(encode(answers.Started, session))


def execute_in_session(
    host: SharedHost,
    hosted: HostedDirectory,
    request: ExecuteInSession,
    stop: threading.Event,
    activity: CallActivity,
) -> ToolAnswer:
    """Run a command in a session, to its end also if the call is cancelled meanwhile."""
    with _open(host, hosted, request.session, begins=True) as (_, session), _told(host, hosted, session, activity):
        newest = OutputExcerpt(_LAST_LINE_BYTES)
        activity.tell(lambda: newest.last_line() or "running")

        def take(_stream: StreamName, data: bytes) -> None:
            newest.add(data)
            host.soon(activity.go_on)

        entry = execute(
            session, request.command, timeout=request.timeout_seconds, streams=Streams(None, take), stop=stop
        )
        value = encode(
            answers.Executed,
            entry,
            session=session.id,
            directory_after=session.state.cwd,
            not_kept=session.too_long,
        )
    notes = [f"exit code {value['exit_code']}", *(["cancelled, as its time was up"] if value["timed_out"] else [])]
    shown = [part.rstrip("\n") for part in (value["stdout"], value["stderr"]) if part]
    return ToolAnswer(value, "\n".join([*shown, f"[{'; '.join(notes)}; now in {value['directory_after']}]"]))


def fork_session(host: SharedHost, hosted: HostedDirectory, request: ForkSession) -> ToolAnswer:
    """Begin another session from the state of one."""
    with _open(host, hosted, request.session, begins=True) as (_, session):
        made = session.fork(request.fork, checkpoint=request.state, with_ignored=request.with_ignored)
    return ToolAnswer(encode(answers.SessionFork, made))


def merge_session(host: SharedHost, hosted: HostedDirectory, request: MergeSession) -> ToolAnswer:
    """Bring what another session has done into one."""
    decided = resolutions(hosted, request.resolutions)
    with _open(host, hosted, request.session) as (sessions, session):
        other = sessions.info_in_family(hosted.path, request.other).id
        done = merge(
            lambda: _sessions(hosted),
            session,
            other,
            prefer=request.prefer,
            resolutions=decided,
            dry_run=request.dry_run,
        )
        return ToolAnswer(tool_results.clipped(merge_object(tool_results.MergedSession, done)))


def end_session(host: SharedHost, hosted: HostedDirectory, request: EndSession) -> ToolAnswer:
    """End what the commands of a session have left running, and save its state."""
    _check(host, hosted)
    with _sessions(hosted) as sessions:
        found = sessions.info_in_family(hosted.path, request.session).id
        ended = sessions.end_left_running(found)
        with sessions.open(found) as session:
            saved = session.checkpoint(kind="auto")
    return ToolAnswer(encode(tool_results.EndedSession, id=found, ended=ended, checkpoint=saved.hash))


def run_experiment(
    host: SharedHost, hosted: HostedDirectory, request: RunExperiment, stop: threading.Event, activity: CallActivity
) -> ToolAnswer:
    """Try several commands side by side, each in a fork of a session."""
    attempts = [
        Attempt(number, command, command, timeout_seconds=request.timeout_seconds)
        for number, command in enumerate(request.commands, 1)
    ]
    order = Order(
        attempts,
        setup=request.setup,
        measure="score" if request.score is not None else request.compare_by,
        score=request.score,
        highest=request.highest,
        parallel=request.parallel,
        keep=request.keep,
        with_ignored=request.with_ignored,
    )

    def tell(progress: AttemptProgress) -> None:
        said = f"attempt {progress.number}: {progress.line or progress.phase}"
        activity.tell(lambda: said)

    with (
        _open(host, hosted, request.session, starts=True) as (_, session),
        experiment(lambda: _sessions(hosted), session, order, tell=tell, stop=stop) as found,
    ):
        adopted = found.adopt() if request.adopt and found.comparison.winner is not None else None
        value = experiment_object(tool_results.Experiment, found, adopted, tool_results.Adopted)
    return ToolAnswer(tool_results.clipped(value))


# Which sessions there are for a model.


def _sessions(hosted: HostedDirectory) -> Sessions:
    # A new session records its commands' changes, whatever the configuration says.
    return Sessions(home=hosted.home, flags={**hosted.flags, "session.supervised": True})


def _newest(sessions: Sessions, hosted: HostedDirectory) -> SessionInfo | None:
    mine = [one for one in sessions.list(hosted.path) if sessions.agent in (one.owner, *one.shared)]
    return next((one for one in reversed(mine) if one.status == "live" and not one.busy), None)


@contextmanager
def _open(
    host: SharedHost, hosted: HostedDirectory, name: str | None, *, begins: bool = False, starts: bool = False
) -> Generator[tuple[Sessions, Session]]:
    """Open a session that records its commands' changes. ``starts``: without a name, open the newest free session of
    the working directory, or start one. Raises `RefusedError`.
    """
    _check(host, hosted)
    require_keeper(hosted)
    with _sessions(hosted) as sessions:
        found = sessions.info_in_family(hosted.path, name) if name is not None else _newest(sessions, hosted)
        if found is None and not starts:
            raise NotFoundError("no session works here", hint="start_session begins one", code="no_session")
        opened = sessions.start(hosted.path) if found is None else sessions.open(found.id, begins=begins)
        with opened as session:
            if session.tree() is None:
                raise RefusedError(
                    f"the session {session.id} records no steps: what its commands change could not be undone",
                    hint="start_session begins one that does, where processes can be supervised",
                    code="not_recorded",
                )
            yield sessions, session


def _check(host: SharedHost, hosted: HostedDirectory) -> None:
    """Raise `RefusedError` where a session's commands would reach what others here do not."""
    if host.confines:
        raise RefusedError(
            "commands of sessions are not isolated, nor kept off other working directories: this server has none",
            hint="execute_command runs commands as this server confines them",
            code="confined",
        )
    if hosted.access == "read_only":
        raise RefusedError(f"{hosted.label} is read-only here", code="read_only")


@contextmanager
def _told(host: SharedHost, hosted: HostedDirectory, session: Session, activity: CallActivity) -> Generator[None]:
    """Have the call say what safeguards hold meanwhile."""

    def held(ticket: TicketInfo) -> None:
        host.soon(lambda: activity.wait_for_person(session.root, ticket))

    def denied(_step: StepInfo) -> None:
        host.soon(activity.go_on)

    tree, notices = session.tree(), HeldNotices(held, denied)
    guarded = hosted.thresholds.asks
    with report_held(session, b"" if tree is None else tree.undo_log, notices, guarded=guarded):
        yield
