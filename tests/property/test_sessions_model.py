"""Sessions, against dictionaries: whatever is done in them, and whoever is killed, each is what it should be.

Names I3 and I11: nothing that a session holds is lost by a kill, by retention or by collection.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.engine.history.retention import Policy
from holdfast.engine.opening.opener import Opener
from holdfast.engine.sessions.registry import Sessions
from holdfast.engine.sessions.session import Session
from holdfast.model.errors import LockedError, RefusedError
from holdfast.model.session_types import CommandResult
from holdfast.testing.clocks import ManualClock
from holdfast.testing.crash_points import without_syncs

NAMES = st.sampled_from(["a", "b", "c"])
TEXTS = st.sampled_from(["1", "2", "3", "\udcff", "two\nlines"])
FILES = st.sampled_from(["f", "d/g", "d/e/h"])
DIRECTORIES = st.sampled_from([".", "d", "/"])
LEVELS = st.sampled_from(["safe", "changes", "unknown", "risky", "dangerous"])
DONE = CommandResult(exit_code=0, stdout="", stderr="")


@dataclass(frozen=True)
class Known:
    """What a state holds."""

    files: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = "."
    commands: tuple[str, ...] = ()
    """Those that nobody knows the end of have a mark in front."""


@dataclass
class Line:
    """A session as it should be."""

    root: Path
    now: Known
    branches: dict[str, Known] = field(default_factory=dict)
    parent: str | None = None


class Model(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="sessions-"))
        self.syncs = without_syncs()
        self.syncs.__enter__()
        self.clock = ManualClock()
        self.opened: dict[str, Session] = {}
        self.lines: dict[str, Line] = {}
        self.count = 0
        self.openers: list[Opener] = []

    def teardown(self) -> None:
        for session in self.opened.values():
            session.close()
        for opener in self.openers:
            opener.close()
        with self.opener() as opener:
            problems = opener.store().verifier().verify(read_data=True).problems
            assert problems == []
        self.syncs.__exit__(None, None, None)
        shutil.rmtree(self.base)

    def opener(self):
        return _Closing(
            Opener(
                home=os.fsencode(self.base / "home"),
                environ={"HOME": str(self.base), "LANG": "C"},
                flags={
                    "lock.timeout": 0,
                    "session.commands": 4,
                    "session.min_interval": 0,
                    "session.max_checkpoints": 1000,
                    "session.cold_url": str(self.base / "cold"),
                    "snapshot.directory": str(self.base / "forks"),
                },
                clock=self.clock,
            )
        )

    def sessions(self) -> Sessions:
        self.openers.append(self.opener().opener)
        return Sessions(agent="me", opener=self.openers[-1])

    @initialize()
    def begin(self) -> None:
        tree = self.base / "tree"
        (tree / "d/e").mkdir(parents=True)
        (tree / "keep").write_text("kept")
        (tree / "d/keep").write_text("kept")
        with self.opener() as opener:
            opener.init(os.fsencode(tree))
        self.opened["one"] = self.sessions().start(os.fsencode(tree), "one")
        self.lines["one"] = Line(tree, Known({"keep": "kept", "d/keep": "kept"}))

    def one(self, data: st.DataObject) -> tuple[str, Line, Session]:
        name = data.draw(st.sampled_from(sorted(self.lines)))
        if name not in self.opened:
            self.opened[name] = self.sessions().open(name)
        return name, self.lines[name], self.opened[name]

    @rule(data=st.data(), file=FILES, text=TEXTS, variable=NAMES, value=TEXTS, cwd=DIRECTORIES, level=LEVELS)
    def command(self, data, file, text, variable, value, cwd, level) -> None:
        _, line, session = self.one(data)
        self.count += 1
        entry = session.begin(f"command {self.count}", level=level)
        write(line.root, file, text)
        env = {**session.environment(), variable: value}
        dropped = data.draw(st.none() | NAMES)
        if dropped:
            env.pop(dropped, None)
        self.clock.advance(1)
        session.end(entry, DONE, cwd=cwd, env=env, duration_ms=1000)
        new = {**line.now.env, variable: value}
        new.pop(dropped or "", None)
        line.now = Known({**line.now.files, file: text}, new, cwd, (*line.now.commands, f"command {self.count}"))

    @rule(data=st.data(), file=FILES, text=TEXTS)
    def edit_by_hand(self, data, file, text) -> None:
        _, line, _ = self.one(data)
        write(line.root, file, text)
        line.now = replace(line.now, files={**line.now.files, file: text})

    @rule(data=st.data(), file=FILES, text=TEXTS)
    def killed_during_a_command(self, data, file, text) -> None:
        name, line, session = self.one(data)
        self.count += 1
        session.begin(f"command {self.count}", level="dangerous")
        write(line.root, file, text)
        session.close()
        del self.opened[name]
        line.now = replace(
            line.now,
            files={**line.now.files, file: text},
            commands=(*line.now.commands, f"!command {self.count}"),
        )

    @rule(data=st.data())
    def closed(self, data) -> None:
        name, _, session = self.one(data)
        session.close()
        del self.opened[name]

    @rule(data=st.data())
    def saved(self, data) -> None:
        _, _, session = self.one(data)
        session.checkpoint("m")

    @rule(data=st.data())
    def branched(self, data) -> None:
        _, line, session = self.one(data)
        self.count += 1
        session.branch(f"b{self.count}")
        line.branches[f"b{self.count}"] = line.now

    @rule(data=st.data())
    def checked_out(self, data) -> None:
        _, line, session = self.one(data)
        if not line.branches:
            return
        branch = data.draw(st.sampled_from(sorted(line.branches)))
        done = session.checkout(branch)
        saved = done.saved.name.removeprefix(f"branches/{session.id}/")
        line.branches = {saved: line.now, **line.branches}
        there = {ref.name.removeprefix(f"branches/{session.id}/") for ref in session.branches()}
        line.branches = {name: known for name, known in line.branches.items() if name in there}
        line.now = line.branches[branch]

    @precondition(lambda self: len(self.lines) < 4)
    @rule(data=st.data(), early=st.booleans())
    def forked(self, data, early) -> None:
        name, line, session = self.one(data)
        self.count += 1
        branch = data.draw(st.sampled_from(sorted(line.branches))) if early and line.branches else None
        made = session.fork(f"f{self.count}", checkpoint=branch, provider="holdfast")
        known = line.now if branch is None else line.branches[branch]
        self.lines[made.id] = Line(Path(os.fsdecode(made.root)), known, parent=name)

    @precondition(lambda self: len(self.lines) > 1)
    @rule(data=st.data())
    def taken_over(self, data) -> None:
        name, line, session = self.one(data)
        other = data.draw(st.sampled_from(sorted(self.lines)))
        if other == name or self.lines[other].parent is None:
            return
        if other in self.opened:
            # (What has it open would have to save it, and does nothing else meanwhile: it is on this thread.)
            with pytest.raises(LockedError, match="is open in this process already"):
                session.checkout(f"forks/{other}")
            return
        session.checkout(f"forks/{other}")
        line.now = self.lines[other].now
        there = {ref.name.removeprefix(f"branches/{session.id}/") for ref in session.branches()}
        line.branches = {branch: known for branch, known in line.branches.items() if branch in there}

    @precondition(lambda self: len(self.lines) > 1)
    @rule(data=st.data())
    def deleted(self, data) -> None:
        name, line, session = self.one(data)
        if line.parent is None:
            return
        if any(other.parent == name for other in self.lines.values()):
            with pytest.raises(RefusedError):
                session.delete()
            del self.opened[name]
            return
        session.delete()
        del self.opened[name], self.lines[name]
        assert not line.root.exists()

    @rule(hours=st.sampled_from([0.1, 2, 30]))
    def time_passes(self, hours) -> None:
        self.clock.advance(hours * 3600)
        with self.sessions() as sessions:
            sessions.sweep()

    @rule(data=st.data())
    def thinned_out(self, data) -> None:
        _, _, session = self.one(data)
        session.workspace.forget(policy=Policy(keep_last=1))
        session.workspace.gc(grace=0)

    @invariant()
    def all_are_what_they_should_be(self) -> None:
        for name, line in self.lines.items():
            assert look(line.root) == line.now.files, name
            session = self.opened.get(name)
            if session is None:
                continue
            assert session.state.env == line.now.env
            assert session.state.cwd == line.now.cwd
            said = [("" if entry.result else "!") + entry.command for entry in session.history()[::-1]]
            assert said == list(line.now.commands)
            assert session.state.seq == len(said)
            there = {ref.name.removeprefix(f"branches/{name}/") for ref in session.branches()}
            assert there >= set(line.branches)


class _Closing:
    def __init__(self, opener: Opener) -> None:
        self.opener = opener

    def __enter__(self) -> Opener:
        return self.opener

    def __exit__(self, *_: object) -> None:
        self.opener.close()


def write(root: Path, file: str, text: str) -> None:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.fsencode(text))


def look(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): os.fsdecode(path.read_bytes()) for path in root.rglob("*") if path.is_file()}


TestModel = pytest.mark.usefixtures("written_out")(Model.TestCase)
TestModel.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
