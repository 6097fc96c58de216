"""The process that saves idle sessions, one after the other: its order, and its reports.

It reads its order from standard input, and writes each report to standard output at once. Killed at any moment, it has
saved a session or has not; its starter may be gone.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.model.errors import HoldfastError, unexpected
from holdfast.model.log import Log, set_sender
from holdfast.model.paths import display, parse_display
from holdfast.model.session_types import SessionId
from holdfast.processes.module_process import ProcessOutcome, failed_outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.model.log import Level

_LOG = Log(__name__)
_PATH = "PYTHONPATH"


class SaveOrder(NamedTuple):
    """The order for the process."""

    home: bytes
    flags: Mapping[str, object]
    """As `Opener` has them."""
    sessions: Sequence[SessionId]
    log_level: Level
    python_path: str | None
    """The PYTHONPATH for hooks: the process itself has another one."""

    def encode(self) -> bytes:
        """As it is given to the process."""
        return json.dumps({**self._asdict(), "home": display(self.home)}).encode()


def decode_order(given: bytes) -> SaveOrder:
    """The order in these bytes."""
    fields: dict[str, Any] = json.loads(given)
    fields["home"] = parse_display(fields["home"])
    return SaveOrder(**fields)


class SaveReport(NamedTuple):
    """The result for one session."""

    session: SessionId
    seconds: float | None = None
    """As `_idle_save.save_idle` returns it."""
    error: HoldfastError | None = None


def save_order(home: bytes, flags: Mapping[str, object], sessions: Sequence[SessionId], log_level: Level) -> SaveOrder:
    """To save these, for a child of this process."""
    return SaveOrder(home, flags, sessions, log_level, os.environ.get(_PATH))


def decode_reports(said: bytes) -> list[SaveReport]:
    """The reports that the process wrote before its end."""
    found: list[SaveReport] = []
    for line in said.splitlines(keepends=True):
        if line.endswith(b"\n"):
            fields: dict[str, Any] = json.loads(line)
            found.append(
                SaveReport(SessionId(fields["session"]), fields["seconds"], ProcessOutcome(**fields["outcome"]).error)
            )
    return found


def main() -> None:
    """Be such a process."""
    order = decode_order(sys.stdin.buffer.read())
    if order.python_path is None:
        os.environ.pop(_PATH, None)
    else:
        os.environ[_PATH] = order.python_path
    set_sender(order.log_level, lambda: _log_at(order.log_level))
    for session in order.sessions:
        said = _save(order, session)
        outcome = ProcessOutcome() if said.error is None else failed_outcome(said.error)
        line = {"session": session, "seconds": said.seconds, "outcome": outcome._asdict()}
        try:
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:  # the process that started it is gone, and sees to no more sessions
            os._exit(0)


def _log_at(level: Level) -> None:
    from holdfast.model.log_format import LineHandler, send

    send(level, LineHandler(as_json=not sys.stderr.isatty()))


def _save(order: SaveOrder, session: SessionId) -> SaveReport:
    from holdfast.engine.opening.opener import Opener
    from holdfast.engine.sessions.idle._idle_save import save_idle

    opener = Opener(home=order.home, flags=order.flags, lenient=True)
    try:
        return SaveReport(session, save_idle(opener, session))
    except HoldfastError as error:
        return SaveReport(session, error=error)
    except Exception as error:  # noqa: BLE001 - the others are saved all the same
        _LOG.exception("saving the session %s failed", session)
        return SaveReport(session, error=unexpected(error))
    finally:
        opener.close()


if __name__ == "__main__":
    main()
