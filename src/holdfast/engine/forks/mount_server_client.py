"""Starting the server process of a mount, which outlives the command, and sending it its order.

Its own code is in `holdfast.engine.forks.mount_server`. It is started early, so that it gets ready during the command's
other work. It reports only whether the mount succeeded, and ends when nothing is mounted any more.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from holdfast.model.errors import FormatError, StorageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.paths import display, parse_display
from holdfast.processes.detached_worker import DetachedWorker
from holdfast.processes.module_process import decode_outcome

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from holdfast.model.log import Level

_SERVING: Final = "holdfast.engine.forks.mount_server"
_SECONDS: Final = 60.0
"""Time for a mount: the home may be slow."""


class MountOrder(NamedTuple):
    """An order to mount."""

    home: bytes
    root: bytes
    """Of the workspace."""
    directory: bytes
    """Where."""
    checkpoint: str = ""
    """Empty: the workspace is a fork, and is mounted itself."""
    allow_other: bool = False
    log_level: Level = "info"

    def encode(self) -> bytes:
        """As it is given to the process: one JSON object."""
        paths = {name: display(path) for name, path in self._asdict().items() if isinstance(path, bytes)}
        return json.dumps(self._asdict() | paths).encode()


def decode_order(given: bytes) -> MountOrder:
    """The order in these bytes."""
    fields: dict[str, Any] = json.loads(given)
    for name in ("home", "root", "directory"):
        fields[name] = parse_display(fields[name])
    return MountOrder(**fields)


class MountServer:
    """A server process that waits for its order. A context manager: without an order the process ends.

    Start it before other work, so that it is ready soonest: see `holdfast.processes.detached_worker`.
    """

    def __init__(self) -> None:
        """Start it. Raises `StorageError`."""
        try:
            self._process = DetachedWorker(_SERVING)
        except OSError as error:
            raise StorageError(f"cannot start a process that serves the mount: {error.strerror}") from error
        self.pid = self._process.pid

    def mount(self, order: MountOrder) -> None:
        """Order a mount, which the process then serves on its own. Returns when it is mounted; raises its errors."""
        try:
            said = self._process.ask(order.encode(), _SECONDS)
        except TimeoutError:
            self._process.terminate()
            raise StorageError(f"nothing was mounted within {_SECONDS:g} s") from None
        try:
            outcome = decode_outcome(said)
        except FormatError:
            raise StorageError("the process that was to serve the mount has ended at once") from None
        if outcome.error is not None:
            raise outcome.error
        self._process.detach()

    def __enter__(self) -> MountServer:
        """The process itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Without an order, or after a failure, the process ends."""
        self._process.close()


def given_or_started(server: MountServer | None) -> AbstractContextManager[MountServer]:
    """A server for the length of a block: the caller's, which the caller also ends, or a new one."""
    return MountServer() if server is None else nullcontext(server)
