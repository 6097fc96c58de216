"""The port for what a watcher sees to beside its own work."""

from __future__ import annotations

from typing import Protocol


class PeriodicTask(Protocol):
    """What is done now and then: whoever calls it is not held up for long, and nothing is raised."""

    def due_in(self) -> float:
        """Seconds until `turn` has something to do."""
        ...

    def turn(self) -> None:
        """Do what is due."""
        ...

    def end(self) -> None:
        """Do no more."""
        ...
