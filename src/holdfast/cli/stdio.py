"""``stdio``: serve a frontend on standard input and output."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.cli.command import Command
from holdfast.cli.console import current_directory

if TYPE_CHECKING:
    import argparse

    from holdfast.cli.console import Console


def _configure(_parser: argparse.ArgumentParser) -> None:
    pass


def _stdio(console: Console, _arguments: argparse.Namespace) -> int:
    from holdfast.api.stdio.server import serve

    console.prepare_log(for_programs=True)
    directory = os.path.abspath(os.fsencode(console.directory or current_directory()))
    serve(directory=directory, home=None if console.home is None else os.fsencode(console.home))
    return 0


COMMANDS = {
    "stdio": Command(
        description="Serve a frontend, by lines of JSON on standard input and output (docs/reference/stdio.md), "
        "until the input ends.",
        configure=_configure,
        run=_stdio,
        examples=(
            ("holdfast stdio", "work in the current directory, unless the frontend says where"),
            ("holdfast --log-level info stdio", "with a log of the requests"),
        ),
    ),
}
