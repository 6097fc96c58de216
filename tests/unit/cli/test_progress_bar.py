"""The progress bar: for terminals, and only when work takes a while."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from holdfast.cli import progress_bar
from holdfast.cli.console import Console

if TYPE_CHECKING:
    import pytest


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_short_work_shows_nothing() -> None:
    stream = Terminal()
    with progress_bar.Bar(stream) as bar:
        bar("reading", 1, 2)
    assert stream.getvalue() == ""


def test_long_work_shows_its_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_bar, "_PATIENCE", 0)
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with progress_bar.Bar(stream) as bar:
        bar("reading [bold]files", 1, 2)
        bar("reading [bold]files", 2, 2)
        bar("writing", 5, 0)
        bar("writing", 7, 0)
    shown = stream.getvalue()
    assert "reading [bold]files" in shown
    assert "1/2" in shown
    assert "writing" in shown


def test_in_a_pipe_and_when_quiet_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with Console().progress() as bar:
        assert bar is None
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Console(quiet=True).progress() as bar:
        assert bar is None
    with Console().progress() as bar:
        assert isinstance(bar, progress_bar.Bar)
