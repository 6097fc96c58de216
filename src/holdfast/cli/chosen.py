"""Which session a command is about, opened."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast import NotFoundError
from holdfast.cli.console import here

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from holdfast.cli.console import Console
    from holdfast.engine.sessions.session import Session
    from holdfast.engine.sessions.sessions import Sessions


@contextmanager
def opened(console: Console, name: str | None) -> Generator[tuple[Callable[[], Sessions], Session]]:
    """What makes `Sessions`, and the session ``name`` (None: ``$HOLDFAST_SESSION``, else the newest of the workspace
    that is ours).
    """
    from holdfast.engine.sessions.naming import SESSION_VARIABLE
    from holdfast.engine.sessions.sessions import Sessions

    home = None if console.home is None else os.path.abspath(os.fsencode(console.home))

    def make() -> Sessions:
        return Sessions(home=home)

    with make() as sessions:
        chosen = name or os.environ.get(SESSION_VARIABLE)
        if chosen is None:
            found = [
                one.id
                for one in sessions.list(os.fsencode(console.directory or here()))
                if one.status == "live" and sessions.agent in (one.owner, *one.shared)
            ]
            if not found:
                raise NotFoundError(
                    "no session of yours works in this workspace",
                    hint="`holdfast session start` begins one",
                    code="no_session",
                )
            chosen = found[-1]
        with sessions.open(chosen) as session:
            yield make, session
