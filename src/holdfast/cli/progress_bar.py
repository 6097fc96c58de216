"""A progress bar on a terminal, for work that turns out to take a while."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import Progress, TaskID

_PATIENCE = 0.4
"""Seconds of work before anything is shown: most commands end sooner, and loading rich would be their largest part."""


class Bar:
    """A context manager, and a ``progress`` for the engine: shows the phase and how far it is, then clears up."""

    __slots__ = ("_bar", "_last", "_phase", "_started", "_stream", "_task")

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._started = time.monotonic()
        self._last = 0.0
        self._phase = ""
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __call__(self, phase: str, done: int, total: int) -> None:
        """See `holdfast.model.content.Progress`."""
        now = time.monotonic()
        if now - self._started < _PATIENCE or (now - self._last < 0.05 and phase == self._phase and done != total):
            return
        self._last = now
        if self._bar is None:
            self._bar = _rich_bar(self._stream)
            self._bar.start()
        if phase != self._phase or self._task is None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._phase = phase
            self._task = self._bar.add_task(phase, total=total or None, completed=done)
        self._bar.update(self._task, completed=done, total=total or None)


def _rich_bar(stream: TextIO) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(file=stream),
        transient=True,
    )
