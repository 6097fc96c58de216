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
    """What to execute to run a module of ours. What lies in the current directory is none of its modules."""
    return [sys.executable, "-P", "-m", module, *arguments]


def program_words(*words: str) -> list[str]:
    """What to execute to run a file of ours, or code behind ``-c``, that needs the standard library alone. Neither the
    environment nor the directory has a say in what code it is.
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
    """Start a program that the signals of our terminal are not for: by default in the root directory, so that it keeps
    no other busy, with our environment and our standard error. Raises `OSError`.

    It goes on until it ends by itself, or its starter ends it.
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
