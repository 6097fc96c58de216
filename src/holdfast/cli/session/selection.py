"""Which session a command is about, and who asks."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast import NotFoundError
from holdfast.cli.command import text
from holdfast.cli.console import current_directory
from holdfast.cli.terminal import show_path

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Generator, Mapping

    from holdfast.cli.console import Console
    from holdfast.engine.sessions.holder.request_client import ReachableSession
    from holdfast.engine.sessions.registry import Sessions
    from holdfast.engine.sessions.session import Session


def add_options(parser: argparse.ArgumentParser, *, session: bool = True) -> None:
    """``--agent``, and ``--session`` unless the command names it in another way."""
    if session:
        parser.add_argument(
            "-s",
            "--session",
            metavar="ID",
            type=text,
            help="the session (default: $HOLDFAST_SESSION, else your newest here)",
        )
    parser.add_argument(
        "--agent",
        metavar="NAME",
        type=text,
        help="your name, as agent or user (default: $HOLDFAST_AGENT, else the user)",
    )


def open_sessions(console: Console, agent: str | None = None, flags: Mapping[str, object] | None = None) -> Sessions:
    """The sessions of the home."""
    from holdfast.engine.sessions.registry import Sessions

    home = None if console.home is None else os.path.abspath(os.fsencode(console.home))
    return Sessions(home=home, agent=agent, flags=flags)


def choose_session(console: Console, sessions: Sessions, name: str | None) -> str:
    """The id of the session that is called ``name`` here; None: ``$HOLDFAST_SESSION``, else the newest of the workspace
    that the agent may use.

    Raises `NotFoundError` (code ``no_session``).
    """
    from holdfast.engine.sessions.identifiers import SESSION_VARIABLE

    here = os.fsencode(console.directory or current_directory())
    if name:
        return sessions.id_of(name, here)
    if chosen := os.environ.get(SESSION_VARIABLE):
        return chosen
    found = [
        one.id for one in sessions.list(here) if one.status == "live" and sessions.agent in (one.owner, *one.shared)
    ]
    if not found:
        raise NotFoundError(
            "no session of yours works in this workspace", hint="`holdfast session start` begins one", code="no_session"
        )
    return found[-1]


@contextmanager
def use_session(
    console: Console, name: str | None, agent: str | None = None, *, begins: bool = False
) -> Generator[ReachableSession]:
    """The chosen session (see `choose_session`), for requests that work even while another process has it open.
    ``begins``: see `Sessions.open`.
    """
    with (
        open_sessions(console, agent) as sessions,
        sessions.use(choose_session(console, sessions, name), begins=begins) as session,
    ):
        yield session


@contextmanager
def open_session(
    console: Console, name: str | None, agent: str | None = None, *, begins: bool = False, starts: bool = False
) -> Generator[tuple[Callable[[], Sessions], Session]]:
    """The chosen session (see `choose_session`), opened, and a function that makes `Sessions`. ``begins``: see
    `Sessions.open`. ``starts``: a missing one is started, with a note; without ``name``, a note tells which one was
    found.
    """

    def make() -> Sessions:
        return open_sessions(console, agent)

    with make() as sessions:
        try:
            chosen = choose_session(console, sessions, name)
        except NotFoundError as error:
            if not starts or error.code not in ("no_session", "no_workspace"):
                raise
            opened = sessions.start(os.fsencode(console.directory or current_directory()))
            console.say(f"No session works here yet: {opened.id} begins.")
        else:
            opened = sessions.open(chosen, begins=begins)
            if starts and not name:
                where = show_path(opened.directory())
                console.note(f"this goes from session {chosen}, in {where}; -s ID names another")
        with opened as session:
            yield make, session
