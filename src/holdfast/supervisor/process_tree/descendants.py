"""The names under which the keeper knows `holdfast.processes.process_tree`."""

from __future__ import annotations

from holdfast.processes.process_tree import descendants, signal_all

__all__ = ["descendants", "signal_all"]
