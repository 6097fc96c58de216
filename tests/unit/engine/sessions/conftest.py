"""A home with a workspace in it, sessions over that, and commands that are functions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.engine.opening.opener import Opener
from holdfast.engine.sessions.registry import Sessions
from holdfast.engine.upkeep.session_checkpoint_tiers import SessionCheckpointTiers
from holdfast.model.session_types import CommandResult
from holdfast.testing.clocks import ManualClock
from holdfast.testing.crash_points import without_syncs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from holdfast.engine.sessions.session import Session
    from holdfast.model.session_types import CommandEntry, Level
    from holdfast.store.catalog.session_rows import SessionRows


class Bench:
    """A workspace whose sessions are begun and used; the clock goes only where a test moves it."""

    def __init__(self, home: Path, tree: Path) -> None:
        self.home = home
        self.tree = tree
        self.clock = ManualClock()
        self.base: dict[str, str] = {"PATH": "/bin", "LANG": "C.UTF-8", "HOME": str(home.parent)}
        self.flags: dict[str, object] = {"lock.timeout": 0}
        self._openers: list[Opener] = []
        self._opened: list[Sessions] = []

    def opener(self, **flags: object) -> Opener:
        found = Opener(
            home=os.fsencode(self.home), environ=dict(self.base), flags={**self.flags, **flags}, clock=self.clock
        )
        self._openers.append(found)
        return found

    def sessions(self, agent: str = "me", **flags: object) -> Sessions:
        """Of an agent; ``flags`` with ``__`` for a dot."""
        given = {name.replace("__", "."): value for name, value in flags.items()}
        found = Sessions(agent=agent, opener=self.opener(**given))
        self._opened.append(found)
        return found

    def start(self, name: str = "one", agent: str = "me", **flags: object) -> Session:
        return self.sessions(agent, **flags).start(os.fsencode(self.tree), name)

    def open(self, name: str = "one", agent: str = "me", **flags: object) -> Session:
        return self.sessions(agent, **flags).open(name)

    def run(
        self,
        session: Session,
        work: Callable[[], object] | None = None,
        *,
        command: str = "work",
        level: Level = "changes",
        cwd: str | None = None,
        seconds: float = 1,
        output: str = "",
        **exported: str | None,
    ) -> CommandEntry:
        """A command: ``work`` in the session; ``exported`` are variables that it sets, or (None) takes away."""
        entry = session.begin(command, level=level)
        if work is not None:
            work()
        self.clock.advance(seconds)
        env: Mapping[str, Any] = {**session.environment(), **exported}
        return session.end(
            entry,
            CommandResult(exit_code=0, stdout=output, stderr=""),
            cwd=session.state.cwd if cwd is None else cwd,
            env={name: value for name, value in env.items() if value is not None},
            duration_ms=int(seconds * 1000),
        )

    def write(self, text: str, path: str = "file") -> Callable[[], object]:
        return lambda: (self.tree / path).write_text(text)

    def read(self, path: str = "file") -> str:
        return (self.tree / path).read_text()

    def rows(self, session: Session) -> SessionRows:
        """What the catalog holds of sessions."""
        return SessionCheckpointTiers(session.context).rows

    def close(self) -> None:
        for opener in self._openers:
            opener.close()


@pytest.fixture
def bench(home: Path, tree: Path) -> Iterator[Bench]:
    found = Bench(home, tree)
    (tree / "file").write_text("0")
    opener = found.opener()
    opener.init(os.fsencode(tree))
    with without_syncs():
        yield found
        store = found.opener().store()
        assert store.verifier().verify(read_data=True).problems == []
        found.close()
