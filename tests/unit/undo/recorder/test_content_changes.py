"""Files that their own owner may not read, whose content is kept nevertheless."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from holdfast.testing.permissions import permissions_hold

from ..conftest import Bench, undo


def test_nobody_else_waits_for_the_process_that_opens_one(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bench.tree / "file"
    path.write_bytes(b"before")
    path.chmod(0o200)
    before = bench.photograph()
    os.mkfifo(tmp_path / "go")
    slow = tmp_path / "python"
    slow.write_text(f'#!/bin/sh\nread -r _ < "{tmp_path}/go"\nexec "{sys.executable}" "$@"\n')
    slow.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(slow))
    steps: list[int] = []

    def write() -> None:
        with permissions_hold():
            steps.append(bench.open_step(log, lambda actor: actor.write(b"file", b"after")))

    with bench.keeper() as log:
        writing = threading.Thread(target=write)
        writing.start()
        with open(tmp_path / "go", "w") as go:  # it is there as soon as somebody reads
            is_free = log.recorder.gate.acquire(blocking=False)
            if is_free:
                log.recorder.gate.release()
            assert not steps
            go.write("on\n")
        writing.join()
        assert is_free
        bench.finish(log, steps[0])
        assert path.read_bytes() == b"after"
        undo(log, steps)
        bench.assert_as(before)


def test_a_process_that_somebody_has_stopped_is_not_waited_for_once_it_has_opened_one(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bench.tree / "file"
    path.write_bytes(b"before")
    path.chmod(0o200)
    stopped = tmp_path / "python"
    stopped.write_text(f'#!/bin/sh\n"{sys.executable}" "$@"\nkill -STOP $$\n')
    stopped.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(stopped))
    with bench.keeper() as log, permissions_hold():
        bench.step(log, lambda actor: actor.write(b"file", b"after"))
    assert path.read_bytes() == b"after"
