"""The progress of concurrent attempts on a terminal: a line for each, with its phase, its time, and its last output."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, TextIO

from holdfast.cli.experiment_attempts import clipped

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console, Group
    from rich.live import Live

    from holdfast.engine.experiments.attempts import Attempt, AttemptProgress, Phase

_COLOURS: dict[Phase, str] = {
    "waiting": "dim",
    "done": "green",
    "failed": "red",
    "timed out": "red",
    "cancelled": "yellow",
}
_PER_SECOND = 8


class _Row:
    """The data of one attempt's line."""

    def __init__(self, name: str, now: float) -> None:
        self.name = name
        self.phase: Phase = "waiting"
        self.since = now
        self.took: float | None = None
        """Seconds, once it has ended."""
        self.line = ""


class Board:
    """A context manager, and a ``tell`` for an experiment: shows its attempts while they run, then clears up."""

    def __init__(self, attempts: list[Attempt], stream: TextIO, *, console: Console | None = None) -> None:
        self._rows = {one.number: _Row(clipped(one.name), time.monotonic()) for one in attempts}
        self._stream = stream
        self._console = console
        self._lock = threading.Lock()
        self._live: Live | None = None

    def __enter__(self) -> Board:
        from rich.console import Console
        from rich.live import Live

        console = self._console or Console(file=self._stream)
        self._live = Live(get_renderable=self.table, console=console, refresh_per_second=_PER_SECOND, transient=True)
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __call__(self, moved: AttemptProgress) -> None:
        """See `holdfast.engine.experiments.attempts.Tell`."""
        from holdfast.engine.experiments.attempts import ENDS

        now = time.monotonic()
        with self._lock:
            row = self._rows[moved.number]
            if moved.phase != row.phase:
                if moved.phase in ENDS:
                    row.took = now - row.since if row.phase in ("running", "setting up", "scoring") else 0.0
                elif moved.phase != "scoring":
                    row.since = now
                row.phase = moved.phase
            if moved.line:
                row.line = moved.line

    def table(self) -> Group:
        """The lines at this moment. Narrow terminals omit the attempts' output."""
        from rich.console import Group
        from rich.text import Text

        now = time.monotonic()
        lines: list[Text] = []
        with self._lock:
            width = max(len(row.name) for row in self._rows.values())
            for number, row in self._rows.items():
                seconds = row.took if row.took is not None else 0.0 if row.phase == "waiting" else now - row.since
                line = Text(f"{number:>2}  {row.name:<{width}}  ", no_wrap=True, overflow="ellipsis")
                line.append(f"{row.phase:<10}", style=_COLOURS.get(row.phase, "cyan"))
                line.append(f"  {f'{seconds:.1f} s' if seconds else '':>8}  ")
                lines.append(line.append(row.line, style="dim"))
        return Group(*lines)
