"""Executes a command with default signal handling: the entry of a box ignores some signals
(`holdfast.sandbox.namespace_entry`), and a program that inherits that could not be ended by them.

A program of its own, with the standard library alone: it executes the command without a child process.
"""

from __future__ import annotations

import os
import signal
import sys


def main(command: list[str]) -> None:
    """Does not return."""
    for number in (
        signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE,
    ):  # fmt: skip
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell is meant
    except OSError as error:
        sys.stderr.write(f"holdfast: {command[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
