"""The server process of a mount, which outlives the command that made it: see `mount_server`."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Final

from holdfast.engine.forks._served_fork import ServedFork
from holdfast.engine.forks.checkpoint_mount import mount_checkpoint
from holdfast.engine.forks.mount_server_client import decode_order
from holdfast.engine.opening import fork_layers
from holdfast.engine.opening.home import open_process_log
from holdfast.engine.opening.opener import Opener
from holdfast.model.errors import HoldfastError, NotFoundError, unexpected
from holdfast.model.ids import CheckpointId
from holdfast.model.log import set_sender
from holdfast.processes.detached_worker import read_order, report
from holdfast.processes.module_process import ProcessOutcome, failed_outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.forks.mount_server_client import MountOrder
    from holdfast.model.log import Level

LOG: Final = b"mount.log"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Be such a process: read a `MountOrder`, and serve until it is unmounted."""
    given = read_order()
    if not given:
        return
    order = decode_order(given)
    opener = Opener(home=order.home, lenient=True)
    try:
        (_serve if order.checkpoint else _serve_fork)(opener, order)
    except HoldfastError as error:
        report(failed_outcome(error).encode())
    except Exception as error:  # noqa: BLE001 - the process that waits is to hear of it
        report(failed_outcome(unexpected(error)).encode())
    finally:
        opener.close()


def _serve(opener: Opener, order: MountOrder) -> None:
    context = opener.open(order.root)
    _log_to(context.folder, order.log_level)
    checkpoint = CheckpointId(order.checkpoint)
    with mount_checkpoint(
        context, checkpoint, order.directory, home=order.home, allow_other=order.allow_other
    ) as mounted:
        _at_signals(mounted.end)
        report(ProcessOutcome().encode())
        mounted.wait()


def _serve_fork(opener: Opener, order: MountOrder) -> None:
    context = opener.open_fork(order.root)
    _log_to(context.folder, order.log_level)
    note = fork_layers.read_note(context.folder)
    if note is None:
        raise NotFoundError("this is no fork by mount any more", code="no_fork")
    with ServedFork(context, note, order.directory) as served:
        _at_signals(served.try_to_end)
        report(ProcessOutcome().encode())
        served.wait()


def _log_to(folder: bytes, level: Level) -> None:
    """From now on messages go to the log in the workspace's folder."""
    log = open_process_log(folder, LOG)
    os.dup2(log, 2)
    os.close(log)

    def send() -> None:
        from holdfast.model import log_format

        log_format.send(level, log_format.LineHandler(as_json=True))

    set_sender(level, send)


def _at_signals(end: Callable[[], None]) -> None:
    for number in _SIGNALS:
        signal.signal(number, lambda _number, _frame: end())


if __name__ == "__main__":
    main()
