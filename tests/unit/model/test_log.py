"""Logging is loaded when something is logged, and not before; what is wanted by nobody costs nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

SETUP = """
import sys
from holdfast.model.log import Log, child_level, logged, set_sender
log = Log("holdfast.undo.x")
begun = []
def begin():
    begun.append(1)
    from holdfast.model.log_format import LineHandler, send
    send(LEVEL, LineHandler(as_json=False))
def loaded():
    return "logging" in sys.modules
"""


def run(script: str, level: str) -> str:
    """What it says on standard error."""
    words = [sys.executable, "-c", SETUP.replace("LEVEL", repr(level)) + script]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("arranged", ["", 'set_sender("warn", begin)\n'])
def test_what_nobody_wants_loads_nothing(arranged: str) -> None:
    script = """
with logged(step_id=1):
    log.info("on"); log.debug("each", number=1); log.trace("bytes")
assert not log.wants("info") and log.wants("warn") and child_level() == "warn"
assert not loaded() and not begun
"""
    assert run(arranged + script, "warn") == ""


def test_the_first_warning_has_it_sent() -> None:
    script = 'set_sender("warn", begin)\nlog.warning("one")\nlog.info("on")\nlog.warning("two")\nassert len(begun) == 1'
    assert run(script, "warn") == "holdfast: warning: one\nholdfast: warning: two\n"


def test_who_wants_more_than_warnings_loads_it_at_once() -> None:
    script = (
        'set_sender("debug", begin)\nassert loaded() and log.wants("debug") and not log.wants("trace")\nlog.debug("x")'
    )
    assert run(script, "debug") == "holdfast: debug: x\n"


def test_threads_that_log_first_at_once_are_all_heard_in_one_form() -> None:
    script = """
import threading
set_sender("warn", begin)
ready = threading.Barrier(8)
def say():
    ready.wait()
    log.warning("said")
threads = [threading.Thread(target=say) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    assert run(script, "warn") == "holdfast: warning: said\n" * 8
