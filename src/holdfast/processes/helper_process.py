"""Starting a process that goes on when this one ends: what to execute, and how it is kept apart from us."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from holdfast.processes.child_environment import with_our_modules

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Words = Sequence[str | bytes]
    Environment = Mapping[str, str] | Mapping[str, str | bytes] | Mapping[bytes, bytes]


def module_words(module: str, *arguments: str) -> list[str]:
    """The words to run a module of ours. No module is loaded from the current directory."""
    return [sys.executable, "-P", "-m", module, *arguments]


def program_words(*words: str) -> list[str]:
    """The words to run a file of ours, or code after ``-c``, that needs only the standard library. Neither the
    environment nor the directory can change the code.
    """
    return [sys.executable, "-I", "-S", "-B", *words]


def start_in_own_session(
    words: Words,
    *,
    stdin: int,
    stdout: int,
    stderr: int | None = None,
    cwd: bytes | str | None = "/",
    environment: Environment | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a program that gets no signals of our terminal: by default in the root directory, so that it keeps no
    other directory busy, with our environment and our standard error. Raises `OSError`.

    It runs until it ends by itself, or its parent ends it.
    """
    return subprocess.Popen(
        words,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=cwd,
        env=environment,
        pass_fds=pass_fds,
        start_new_session=True,
    )


def start_module(
    module: str,
    *arguments: str,
    stdin: int,
    stdout: int,
    stderr: int | None = None,
    cwd: bytes | str = "/",
    environment: Mapping[bytes, bytes] = os.environb,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """The same for a module of ours, which finds the modules that this process does. Raises `OSError`."""
    return start_in_own_session(
        module_words(module, *arguments),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=cwd,
        environment=with_our_modules(environment),
        pass_fds=pass_fds,
    )
