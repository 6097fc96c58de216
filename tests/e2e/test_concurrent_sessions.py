"""Sessions used by several processes at once: one at a time has each, and none loses what another one did."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import holdfast
from holdfast.engine.sessions.registry import Sessions

PROCESSES, COMMANDS = 4, 5

WORK = """
import json, os, sys
from holdfast.engine.sessions.registry import Sessions
from holdfast.model.session_types import CommandResult
home, name, number, count, file = json.loads(sys.argv[1])
sessions = Sessions(home=os.fsencode(home), agent="me", flags={"session.commands": 3, "session.min_interval": 0})
for at in range(count):
    with sessions.open(name) as session:
        entry = session.begin(f"{number}: {at}", level="changes")
        with open(os.path.join(session.root, os.fsencode(file)), "a") as out:
            out.write(f"{number}: {at}\\n")
        env = {**session.environment(), f"V{number}": str(at)}
        result = CommandResult(exit_code=0, stdout="", stderr="")
        session.end(entry, result, cwd=".", env=env, duration_ms=1)
        if at == 2:
            session.branch(f"b{number}")
        if at == 3:
            session.fork(f"{name}-f{number}", provider="holdfast")
"""


def run(home, jobs):
    working = [
        subprocess.Popen(
            [sys.executable, "-c", WORK, json.dumps([str(home), name, number, COMMANDS, file])],
            stderr=subprocess.PIPE,
        )
        for number, (name, file) in enumerate(jobs)
    ]
    for process in working:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said.decode()


def test_processes_that_share_a_session_take_turns(tmp_path):
    tree, home = tmp_path / "tree", tmp_path / "home"
    tree.mkdir()
    holdfast.init(tree, home=home).close()
    with Sessions(home=bytes(home), agent="me") as sessions:
        sessions.start(bytes(tree), "one").close()
        run(home, [("one", "file")] * PROCESSES)
        with sessions.open("one") as session:
            done = session.history()[::-1]
            assert [entry.seq for entry in done] == list(range(1, PROCESSES * COMMANDS + 1))
            assert all(entry.result for entry in done)
            assert (tree / "file").read_text().splitlines() == [entry.command for entry in done]
            assert session.state.env == {f"V{number}": str(COMMANDS - 1) for number in range(PROCESSES)}
            assert session.state.metrics.recoveries == 0
            assert session.state.metrics.forks == PROCESSES
            for before, after in itertools.pairwise(done):
                assert before.after == after.before, "nobody else was there in between"
            assert len(session.branches()) == PROCESSES
            assert session.workspace.verify(read_data=True).ok
        assert len(sessions.list()) == PROCESSES + 1


def test_sessions_of_one_workspace_are_used_side_by_side(tmp_path):
    tree, home = tmp_path / "tree", tmp_path / "home"
    tree.mkdir()
    holdfast.init(tree, home=home).close()
    with Sessions(home=bytes(home), agent="me") as sessions:
        for number in range(PROCESSES):
            sessions.start(bytes(tree), f"s{number}").close()
        run(home, [(f"s{number}", f"file{number}") for number in range(PROCESSES)])
        for number in range(PROCESSES):
            with sessions.open(f"s{number}") as session:
                assert [entry.command for entry in session.history()[::-1]] == [
                    f"{number}: {at}" for at in range(COMMANDS)
                ]
                assert session.state.env == {f"V{number}": str(COMMANDS - 1)}
                session.checkout(f"b{number}")
                assert len((tree / f"file{number}").read_text().splitlines()) == 3
        with holdfast.open(tree, home=home) as workspace:
            assert workspace.verify(read_data=True).ok
