"""Hooks: what they are told, who may refuse, and that nothing of them is left."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from holdfast.engine.opening.opener import Opener
from holdfast.engine.sessions._hooks import HookRunner
from holdfast.engine.sessions.session import Session
from holdfast.model.config.settings import Hooks
from holdfast.model.errors import RefusedError

from ....waiting import has_ended, wait_until

Make = Callable[..., HookRunner]


def configure(home: Path, script: Path, *events: str) -> None:
    """Have ``script`` run at these events, which it gets as lines of JSON, for whoever opens the home from now on."""
    lines = "".join(f'{event} = ["{script}", "{event}"]\n' for event in events)
    (home / "config.toml").write_text(f"[hooks]\n{lines}")


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


EVENTS = [f"{when}_{what}" for what in ("checkpoint", "fork", "branch") for when in ("before", "after")]


def test_sessions_run_them(make, session: Session, home: Path, tmp_path: Path) -> None:
    session.close()
    configure(home, script(tmp_path / "hook", f"cat >> {tmp_path}/told"), *EVENTS)
    with make() as sessions, sessions.open("main") as again:
        point = again.checkpoint("a message")
        again.branch("here")
        made = again.fork("side")
    told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert [(one["event"], one["session"], one.get("kind")) for one in told] == [
        ("before_checkpoint", "main", "manual"),
        ("after_checkpoint", "main", "manual"),
        ("before_branch", "main", None),
        ("before_checkpoint", "main", "branch"),
        ("after_checkpoint", "main", "branch"),
        ("after_branch", "main", None),
        ("before_fork", "main", None),
        ("after_fork", "main", None),
    ]
    assert (told[1]["checkpoint"], told[1]["message"]) == (point.hash, "a message")
    assert (told[5]["branch"], told[5]["agent"]) == ("here", "me")
    assert (told[7]["fork"], told[7]["directory"]) == ("side", os.fsdecode(made.root))


@pytest.mark.parametrize("what", ["checkpoint", "branch", "fork"])
def test_what_a_hook_refuses_does_not_happen(make, session: Session, home: Path, tmp_path: Path, what: str) -> None:
    session.close()
    configure(home, script(tmp_path / "hook", "echo not today >&2; exit 1"), f"before_{what}")
    with make() as sessions, sessions.open("main") as again:
        head = again.head
        work = {
            "checkpoint": lambda: again.checkpoint("mine"),
            "branch": lambda: again.branch("here"),
            "fork": lambda: again.fork("side"),
        }
        with pytest.raises(RefusedError, match="not today") as caught:
            work[what]()
        assert caught.value.code == "hook_refused"
        assert again.head == head
        assert again.branches() == []
        assert [one.id for one in sessions.list()] == ["main"]


def test_what_is_saved_by_itself_no_hook_stops(
    make, session: Session, home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session.close()
    configure(home, script(tmp_path / "hook", "exit 1"), "before_checkpoint")
    with make() as sessions, sessions.open("main") as again:
        (Path(os.fsdecode(again.root)) / "a").write_text("changed\n")
        with caplog.at_level(logging.WARNING, logger="holdfast"):
            point = again.checkpoint(kind="auto")
        assert point.hash == again.head.hash
        assert point.state.tree == again.workspace.resolve("@")
    assert [record.getMessage() for record in caplog.records] == ["the hook before_checkpoint failed: it ended with 1"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree").mkdir()
    return tmp_path / "tree"


@pytest.fixture(params=["recorded", "contained"])
def runner(request: pytest.FixtureRequest, tree: Path) -> Iterator[Callable[..., HookRunner]]:
    """Makes what runs these hooks in the workspace ``tree``; in which way nothing is left of them is no matter."""
    with ExitStack() as stack:

        def make(**hooks: object) -> HookRunner:
            opener = stack.enter_context(closing(Opener(home=os.fsencode(tree.parent / "home"))))
            context, _ = opener.init(os.fsencode(tree))
            context.settings = context.settings._replace(hooks=Hooks(**hooks))  # type: ignore[arg-type]
            return HookRunner(context, lambda: request.param == "recorded")

        yield make


def shell(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


def test_a_hook_is_told_what_happens_in_the_sessions_directory(runner: Make, tree: Path) -> None:
    hooks = runner(before_fork=shell("cat > told; pwd > where"))
    hooks.before("before_fork", {"session": "main"})
    assert json.loads((tree / "told").read_text()) == {"event": "before_fork", "session": "main"}
    assert (tree / "where").read_text().strip() == os.path.realpath(tree)
    assert hooks.wanted("before_fork")


def test_where_there_is_no_hook_nothing_happens(runner: Make, tree: Path) -> None:
    hooks = runner()
    hooks.before("before_fork", {})
    hooks.after("after_fork", {})
    assert not hooks.wanted("before_fork")
    assert list(tree.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (shell("echo first >&2; echo not now >&2; exit 3"), r"not now \(it ended with 3\)"),
        (shell("exit 1"), "it ended with 1"),
        (shell("kill -9 $$"), f"signal {signal.SIGKILL.value} ended it"),
        (("/no/such/program",), "cannot be run: No such file"),
        (shell("printf '\\033[31mred' >&2; exit 1"), r"\\x1b\[31mred"),
    ],
)
def test_one_that_comes_before_refuses_and_says_why(
    runner: Make, tree: Path, command: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(RefusedError, match=reason) as caught:
        runner(before_branch=command).before("before_branch", {})
    assert caught.value.code == "hook_refused"


def test_of_one_that_says_very_much_the_end_is_kept(runner: Make, tree: Path) -> None:
    flood = shell("head -c 64M /dev/zero >&2; echo >&2; echo not now >&2; exit 3")
    tracemalloc.start()
    try:
        with pytest.raises(RefusedError, match=r"not now \(it ended with 3\)"):
            runner(before_branch=flood).before("before_branch", {})
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("reads", ["cat > told; ", ""])
def test_it_gets_all_that_it_is_told_or_what_it_wants_of_it(runner: Make, tree: Path, reads: str) -> None:
    message = "x" * (1 << 20)
    runner(before_branch=shell(f"cd {tree}; {reads}exit 0")).before("before_branch", {"message": message})
    if reads:
        assert json.loads((tree / "told").read_text())["message"] == message


def test_one_that_comes_after_is_only_heard(runner: Make, tree: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        runner(after_branch=shell("exit 7")).after("after_branch", {})
    assert [record.getMessage() for record in caplog.records] == ["the hook after_branch failed: it ended with 7"]


def test_one_that_takes_too_long_is_ended_with_its_children(runner: Make, tree: Path) -> None:
    os.mkfifo(tree / "never")
    command = shell("(read x < never) & echo $! > child; read x < never")
    with pytest.raises(RefusedError, match=r"longer than hooks\.timeout, 8 s"):
        runner(before_fork=command, timeout=8.0).before("before_fork", {})
    child = int((tree / "child").read_text())
    wait_until(lambda: has_ended(child), what="the child's end")


def test_one_ends_with_all_of_it_when_holdfast_is_killed(runner: Make, tree: Path) -> None:
    """Also what has made a session of its own."""
    os.mkfifo(tree / "never")
    command = shell(
        "(read x < never) & echo $! > child; setsid sh -c 'echo $$ > daemon; read x < never' & "
        "while ! [ -s daemon ]; do :; done; echo $$ > hook.new; mv hook.new hook; read x < never"
    )
    holder = os.fork()
    if not holder:
        try:
            runner(before_fork=command, timeout=300.0).before("before_fork", {})
        finally:
            os._exit(0)
    wait_until((tree / "hook").exists, what="the hook's beginning")
    running = [int((tree / name).read_text()) for name in ("hook", "child", "daemon")]
    assert not any(map(has_ended, running))
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    wait_until(lambda: all(map(has_ended, running)), what="the end of all of the hook")


def test_one_that_is_interrupted_is_ended_with_all_of_it(runner: Make, tree: Path) -> None:
    os.mkfifo(tree / "never")
    command = shell("echo $$ > hook.new; mv hook.new hook; read x < never")
    interrupt = f"until [ -s {tree}/hook ]; do sleep 0.01; done; kill -INT {os.getpid()}"
    with subprocess.Popen(["sh", "-c", interrupt]), pytest.raises(KeyboardInterrupt):
        runner(before_fork=command, timeout=300.0).before("before_fork", {})
    wait_until(lambda: has_ended(int((tree / "hook").read_text())), what="the end of the hook")


def test_one_that_reads_nothing_and_leaves_a_child_is_not_waited_for_without_end(runner: Make, tree: Path) -> None:
    command = shell("exec <&-; exit 0")
    runner(before_fork=command).before("before_fork", {"much": "x" * 200_000})
