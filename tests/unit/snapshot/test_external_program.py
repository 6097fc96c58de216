"""Limits of a program are there before it begins."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import pytest

from holdfast.model.errors import StorageError, UnsupportedError
from holdfast.snapshot._external_program import ProgramLimits, ProgramResult, execute

LIMITED = ProgramLimits(1 << 20, 60, "slow", resources={resource.RLIMIT_CORE: 0})


def run(directory: Path, code: str, limits: dict[int, int] | None = None, stdin: bytes = b"") -> ProgramResult:
    words = [sys.executable, "-I", "-S", "-c", code]
    environ = {"PATH": "/usr/bin:/bin"}
    allowed = ProgramLimits(1 << 20, 60, "slow", resources=limits or {})
    return execute(words, environ, os.fsencode(directory), allowed, stdin=stdin)


def test_a_program_begins_with_its_limits(tmp_path: Path) -> None:
    """What reads an image of another person's could else write as much as it likes."""
    code = """
import resource, sys
for kind in resource.RLIMIT_FSIZE, resource.RLIMIT_CORE, resource.RLIMIT_AS, resource.RLIMIT_NOFILE:
    print(*resource.getrlimit(kind))
print(sys.stdin.read())
"""
    limits = {
        resource.RLIMIT_FSIZE: (8 << 20) - 1,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_AS: 4 << 30,
        resource.RLIMIT_NOFILE: 99,
    }
    done = run(tmp_path, code, limits, b"said")
    assert done == ProgramResult(0, b"8388608 8388608\n0 0\n4294967296 4294967296\n99 99\nsaid\n", "")


def test_one_whose_limits_cannot_be_set_never_begins(tmp_path: Path) -> None:
    """More than there can be (as many as the kernel allows) is refused."""
    code = f"open({str(tmp_path / 'begun')!r}, 'w')"
    done = run(tmp_path, code, {resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: 1 << 40})
    assert done.code
    assert "limit" in done.errors
    assert not (tmp_path / "begun").exists()


def test_its_words_are_no_words_of_a_shell(tmp_path: Path) -> None:
    done = execute(["echo", "$HOME", "'", "-n"], {"PATH": "/usr/bin:/bin"}, bytes(tmp_path), LIMITED)
    assert done == ProgramResult(0, b"$HOME ' -n\n", "")


def test_what_takes_too_long_or_writes_too_much(tmp_path: Path) -> None:
    limits = ProgramLimits(100, 0.3, "slow", "a hint")
    with pytest.raises(StorageError, match="sleep was stopped, as it took too long") as slow:
        execute(["/bin/sleep", "100"], {}, bytes(tmp_path), limits)
    assert (slow.value.code, slow.value.hint) == ("slow", "a hint")
    with pytest.raises(UnsupportedError, match="head says more than 100 bytes"):
        execute(["head", "-c", "101", "/dev/zero"], {"PATH": "/usr/bin:/bin"}, bytes(tmp_path), limits)


def test_without_limits_it_is_run_as_it_is(tmp_path: Path) -> None:
    assert run(tmp_path, "import os; print(os.getppid())").out == b"%d\n" % os.getpid()
