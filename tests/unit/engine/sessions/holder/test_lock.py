"""Ending what a session's commands have left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from holdfast.engine.sessions.holder.lock import end_leftovers
from holdfast.model.session_types import SessionId

from .....waiting import has_ended, wait_until


def started(session: str, script: str) -> subprocess.Popen[bytes]:
    """A process of a session, once it has written a line."""
    code = f"import signal, time; {script}; print(flush=True); time.sleep(600)"
    environ = {**os.environ, "HOLDFAST_SESSION": session}
    child = subprocess.Popen([sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    child.stdout.readline()
    return child


def test_what_a_session_has_left_is_ended_and_nothing_else() -> None:
    ours = [started("mine", "0"), started("mine", "signal.signal(signal.SIGTERM, signal.SIG_IGN)")]
    other = started("mine-too", "0")
    try:
        assert end_leftovers(SessionId("mine")) == 2
        assert all(has_ended(child.pid) for child in ours)
        assert [child.wait(30) for child in ours] == [-signal.SIGTERM, -signal.SIGKILL]
        assert other.poll() is None
        assert end_leftovers(SessionId("mine")) == 0
    finally:
        other.kill()
        for child in (*ours, other):
            child.wait()
            assert child.stdout is not None
            child.stdout.close()


def test_children_that_begin_meanwhile_are_ended_too() -> None:
    # Its child takes its place as soon as it is asked to end.
    script = (
        "import subprocess, sys; signal.signal(signal.SIGTERM, lambda *_: "
        "(subprocess.Popen(['sleep', '600']), sys.exit()))"
    )
    child = started("restless", script)
    assert end_leftovers(SessionId("restless")) == 1
    wait_until(lambda: end_leftovers(SessionId("restless")) == 0, "its end")
    child.wait(30)
    assert child.stdout is not None
    child.stdout.close()
