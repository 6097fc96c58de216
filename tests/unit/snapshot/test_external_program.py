"""Limits of a program are there before it begins."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import pytest

from holdfast.snapshot import _external_program as external_program
from holdfast.snapshot._external_program import ProgramLimits, ProgramResult, execute

LIMITS = {resource.RLIMIT_FSIZE: 8 << 20, resource.RLIMIT_CORE: 0}


def run(directory: Path, code: str, limits: dict[int, int] | None = None, stdin: bytes = b"") -> ProgramResult:
    words = [sys.executable, "-I", "-S", "-c", code]
    environ = {"PATH": "/usr/bin:/bin"}
    allowed = ProgramLimits(1 << 20, 60, "slow", resources=limits or {})
    return execute(words, environ, os.fsencode(directory), allowed, stdin=stdin)


def test_a_program_does_nothing_before_its_limits_are_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads an image of somebody else's could have written as much as it liked by then, and at times did."""
    real = resource.prlimit
    running = []

    def prlimit(pid: int, kind: int, limits: tuple[int, int]) -> tuple[int, int]:
        running.append(os.path.realpath(f"/proc/{pid}/exe"))
        return real(pid, kind, limits)

    monkeypatch.setattr(external_program.resource, "prlimit", prlimit)
    code = "import resource, sys; print(resource.getrlimit(resource.RLIMIT_FSIZE), sys.stdin.read())"
    done = run(tmp_path, code, LIMITS, b"said")
    assert (done.code, done.out) == (0, b"(8388608, 8388608) said\n")
    assert len(running) == 2
    assert os.path.realpath(sys.executable) not in running


def test_one_whose_limits_cannot_be_set_never_begins(tmp_path: Path) -> None:
    """More than there can be (as many as the kernel allows) is refused."""
    code = f"open({str(tmp_path / 'begun')!r}, 'w')"
    with pytest.raises((ValueError, OSError)):
        run(tmp_path, code, {resource.RLIMIT_NOFILE: 1 << 40})
    assert not (tmp_path / "begun").exists()


def test_without_limits_it_is_run_as_it_is(tmp_path: Path) -> None:
    assert run(tmp_path, "import os; print(os.getppid())").out == b"%d\n" % os.getpid()
