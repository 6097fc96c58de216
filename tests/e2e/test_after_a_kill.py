"""I3: whatever command comes first after a keeper was killed in the middle of a step takes back what was half done, and
says so; nothing is built on it. While a keeper lives nothing is taken back.
"""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.engine.history.checkpoint import create_checkpoint
from holdfast.engine.opening.undo_log import log_directory
from holdfast.model.command_results import CheckpointRequest
from holdfast.testing.tree_state import PathState, differences, photograph
from holdfast.testing.workspace_step import do_step
from holdfast.undo.journal.heartbeat import read_beat
from holdfast.undo.reports import unreported_rollbacks

from ..contexts import context_of
from ..waiting import group, stop
from .test_run import bench, keeper_of

if TYPE_CHECKING:
    from e2e.conftest import Cli
    from holdfast.testing.tree_actor import InterceptedActor

__all__ = ["bench"]

SAID = "the open step was rolled back"
FIRST = (
    *("checkpoint", "status", "diff", "log", "show", "cat @:f", "steps", "barriers", "stats", "verify"),
    *("restore @", "restore @ f", "restore @ --dry-run", "fork @ ../fork", "run -- true", "session start"),
    *("undo --dry-run", "undo", "redo", "step begin", "forget --keep-last 9", "export @ ../bundle"),
)


def half(actor: InterceptedActor) -> None:
    actor.write(b"f", b"half")
    actor.unlink(b"cache/old")
    actor.write(b"cache/new", b"half")


def kill_in_a_step(cli: Cli) -> dict[bytes, PathState]:
    """Leave the workspace as a keeper that is killed in the middle of a step does; what it was before."""
    before = photograph(cli.root)
    with holdfast.open(cli.root) as workspace, context_of(workspace) as context:
        do_step(context, half, ends=False)
    assert (cli.root / "f").read_text() == "half"
    return before


@pytest.mark.parametrize("words", FIRST)
def test_whatever_comes_first_takes_back_what_is_half_done_and_says_so(bench: Cli, words: str) -> None:
    before = kill_in_a_step(bench)
    code = {"undo": 3, "undo --dry-run": 3, "redo": 3, "step begin": 4}.get(words, 0)
    said = bench(*words.split(), code=code).err
    assert said.count(SAID) == 1, said
    assert differences(before, photograph(bench.root)) == []
    assert "recovery is needed" not in said
    again = bench("status")
    assert SAID not in again.err
    with holdfast.open(bench.root) as workspace, context_of(workspace) as context:
        beat = read_beat(log_directory(context))
        assert beat is not None
        assert beat.at == 0
        assert [step.state for step in workspace.steps()] == ["undone"]
        assert [workspace.diff(one.parent, one.id).changes for one in workspace.log().checkpoints if one.parent] == []


@pytest.mark.parametrize("left", [None, b"", b"damaged"])
def test_a_sign_of_life_that_is_lost_does_not_hide_what_is_half_done(bench: Cli, left: bytes | None) -> None:
    before = kill_in_a_step(bench)
    [beat] = bench.home.glob("workspaces/*/undo/beat")
    if left is None:
        beat.unlink()
    else:
        beat.write_bytes(left)
    assert SAID in bench("status").err
    assert differences(before, photograph(bench.root)) == []
    found = read_beat(os.fsencode(beat.parent))
    assert found is not None
    assert found.at == 0
    beat.unlink()  # (nothing is half done: that is found out once)
    assert bench("status").err == ""
    assert beat.stat().st_size


def test_what_others_have_had_open_since_before_the_kill_saves_nothing_half_done(bench: Cli) -> None:
    """As the watcher has, and what serves: nobody there is told, so the next session is, or whoever looks first."""
    with holdfast.open(bench.root) as workspace, context_of(workspace) as context:
        before = kill_in_a_step(bench)
        assert not create_checkpoint(context, CheckpointRequest(kind="auto")).created
        assert differences(before, photograph(bench.root)) == []
        assert [report.steps for report in unreported_rollbacks.take_rollbacks(log_directory(context))] == [(1,)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_who_only_may_look_is_told_that_recovery_is_needed(bench: Cli) -> None:
    kill_in_a_step(bench)
    subprocess.run(["mount", "--bind", bench.home, bench.home], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", bench.home], check=True)
        said = bench("status").err
        assert said.count("recovery is needed") == 1, said
        assert (bench.root / "f").read_text() == "half"
    finally:
        subprocess.run(["umount", "--lazy", bench.home], check=True)
    assert SAID in bench("status").err


def test_nothing_is_taken_back_while_its_keeper_lives_and_all_once_everything_was_killed(bench: Cli) -> None:
    before = photograph(bench.root)
    go = bench.root.parent / "go"
    os.mkfifo(go)
    command = f"printf half > f; rm cache/old; echo > {go}; read x < {go}"
    with bench.start("run", "--one-step", "--", "sh", "-c", command, start_new_session=True) as running:
        go.read_text()
        for words in ("checkpoint", "status", "diff @-", "restore --dry-run @"):
            assert bench(*words.split()).err == ""
        assert (bench.root / "f").read_text() == "half"
        assert bench.json("steps")["steps"][-1]["state"] == "open"
        keeper = keeper_of(bench.home)
        # (Neither sees the other's end: the keeper would close the step, the launcher would take it back.)
        stop(*group(running.pid))
        os.kill(keeper, signal.SIGKILL)
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate(timeout=30)
    assert (bench.root / "f").read_text() == "half"
    assert SAID in bench.process("checkpoint").stderr.decode()
    assert differences(before, photograph(bench.root)) == []
