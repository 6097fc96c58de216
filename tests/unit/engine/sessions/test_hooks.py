"""Hooks: what they are told, who may refuse, and that nothing of them is left."""

from __future__ import annotations

import json
import logging
import os
import signal
from pathlib import Path

import pytest

from holdfast.engine.sessions.hooks import HookRunner
from holdfast.model.config import Hooks
from holdfast.model.errors import RefusedError

from ....waiting import has_ended, wait_until


def runner(directory: Path, **hooks: object) -> HookRunner:
    return HookRunner(Hooks(**hooks), os.fsencode(directory))  # type: ignore[arg-type]


def shell(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


def test_a_hook_is_told_what_happens_in_the_sessions_directory(tmp_path: Path) -> None:
    hooks = runner(tmp_path, before_fork=shell("cat > told; pwd > where"))
    hooks.before("before_fork", {"session": "main"})
    assert json.loads((tmp_path / "told").read_text()) == {"event": "before_fork", "session": "main"}
    assert (tmp_path / "where").read_text().strip() == os.path.realpath(tmp_path)
    assert hooks.wanted("before_fork")


def test_where_there_is_no_hook_nothing_happens(tmp_path: Path) -> None:
    hooks = runner(tmp_path)
    hooks.before("before_fork", {})
    hooks.after("after_fork", {})
    assert not hooks.wanted("before_fork")
    assert list(tmp_path.iterdir()) == []


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
def test_one_that_comes_before_refuses_and_says_why(tmp_path: Path, command: tuple[str, ...], reason: str) -> None:
    with pytest.raises(RefusedError, match=reason) as caught:
        runner(tmp_path, before_branch=command).before("before_branch", {})
    assert caught.value.code == "hook_refused"


def test_one_that_comes_after_is_only_heard(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        runner(tmp_path, after_branch=shell("exit 7")).after("after_branch", {})
    assert [record.getMessage() for record in caplog.records] == ["the hook after_branch failed: it ended with 7"]


def test_one_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never")
    command = shell("(read x < never) & echo $! > child; read x < never")
    with pytest.raises(RefusedError, match=r"longer than hooks\.timeout, 2 s"):
        runner(tmp_path, before_fork=command, timeout=2.0).before("before_fork", {})
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: has_ended(child), what="the child's end")


def test_one_that_reads_nothing_and_leaves_a_child_is_not_waited_for_without_end(tmp_path: Path) -> None:
    command = shell("exec <&-; exit 0")
    runner(tmp_path, before_fork=command).before("before_fork", {"much": "x" * 200_000})
