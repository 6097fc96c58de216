"""A launcher in a process of its own: for callers that start a command and cannot wait as `supervise` does.

The two share an anonymous file: the launcher reads the command from it at its start, as JSON, and replaces it with the
result at its end.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import msgspec

from holdfast.model.decoders import json_decoder
from holdfast.model.errors import FormatError, HoldfastError
from holdfast.processes.forked_process import allow_forks
from holdfast.processes.helper_process import module_words
from holdfast.processes.module_process import ProcessOutcome, decode_outcome, failed_outcome
from holdfast.supervisor.keeper.keeper_settings import KeeperSettings
from holdfast.supervisor.launch.supervised_run import SupervisedCommand, supervise
from holdfast.undo.service import OFF, Thresholds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

_MODULE = "holdfast.supervisor.launch.launcher_process"
_NOT_STARTED = 126


class SupervisedLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """The command of a launcher; the fields are those of `SupervisedCommand`, and ``settings`` those of a keeper."""

    words: tuple[bytes, ...]
    called: tuple[bytes, ...] = ()
    directory: bytes
    environment: dict[bytes, bytes]
    run: str
    one_step: bool
    ends_whole: bool = False
    inherited: tuple[int, ...] = ()
    thresholds: Thresholds = OFF
    settings: KeeperSettings


class LaunchFile:
    """The file that is shared with a launcher."""

    def __init__(self, launch: SupervisedLaunch) -> None:
        """Write what to run. Raises `OSError`."""
        self.fd = os.memfd_create("launch", os.MFD_CLOEXEC)
        with open(self.fd, "wb", closefd=False) as file:
            file.write(msgspec.json.encode(launch))

    @property
    def words(self) -> Sequence[str]:
        """The command line; ``fd`` must be passed on. It ends as the command does, or with 126 for an error in
        `outcome`.
        """
        return module_words(_MODULE, str(self.fd))

    def outcome(self) -> ProcessOutcome | None:
        """The outcome; None if the launcher was killed before its report."""
        try:
            return decode_outcome(os.pread(self.fd, os.fstat(self.fd).st_size, 0))
        except FormatError:
            return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Release the file."""
        os.close(self.fd)


def main(fd: int) -> int:
    """Run the command in the file ``fd``, and write the result there; the exit code."""
    order = json_decoder(SupervisedLaunch).decode(os.pread(fd, os.fstat(fd).st_size, 0))
    command = SupervisedCommand(
        order.words,
        called=order.called,
        directory=order.directory,
        environment=order.environment,
        run=order.run,
        one_step=order.one_step,
        ends_whole=order.ends_whole,
        inherited=order.inherited,
        thresholds=order.thresholds,
    )
    os.set_inheritable(fd, False)
    try:
        outcome = ProcessOutcome(exit_code=supervise(command, order.settings))
    except HoldfastError as error:
        outcome = failed_outcome(error)._replace(exit_code=_NOT_STARTED)
    said = outcome.encode()
    os.ftruncate(fd, 0)
    os.pwrite(fd, said, 0)
    return outcome.exit_code


if __name__ == "__main__":
    allow_forks()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main(int(sys.argv[1])))
