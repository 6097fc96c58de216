"""A disk that fails: at a chosen step, or permanently from there on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.store.objects.disk_port import SYSTEM_DISK, Disk

if TYPE_CHECKING:
    from collections.abc import Callable


class FaultyDisk:
    """A `Disk` that asks ``fault`` before every step; an exception that it returns is raised in place of the step.

    ``fault`` gets the step's name (that of the method) and its number from 0. An `OSError` means a disk that is full or
    broken; an exception of any other class means a process killed there.
    """

    def __init__(self, fault: Callable[[str, int], BaseException | None], disk: Disk = SYSTEM_DISK) -> None:
        self._fault = fault
        self._disk = disk
        self.steps: list[str] = []
        """The names of the steps so far."""

    def _step(self, name: str) -> None:
        number = len(self.steps)
        self.steps.append(name)
        error = self._fault(name, number)
        if error is not None:
            raise error

    def create(self, path: str) -> int:
        """See `Disk.create`."""
        self._step("create")
        return self._disk.create(path)

    def write(self, fd: int, data: bytes | bytearray | memoryview) -> int:
        """See `Disk.write`."""
        self._step("write")
        return self._disk.write(fd, data)

    def sync(self, fd: int) -> None:
        """See `Disk.sync`."""
        self._step("sync")
        self._disk.sync(fd)

    def close(self, fd: int) -> None:
        """See `Disk.close`. Never fails: a descriptor is gone after it in any case."""
        self._disk.close(fd)

    def make_directory(self, path: str) -> None:
        """See `Disk.make_directory`."""
        self._step("make_directory")
        self._disk.make_directory(path)

    def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`."""
        self._step("rename")
        self._disk.rename(source, target)

    def remove(self, path: str) -> None:
        """See `Disk.remove`."""
        self._step("remove")
        self._disk.remove(path)

    def sync_directory(self, path: str) -> None:
        """See `Disk.sync_directory`."""
        self._step("sync_directory")
        self._disk.sync_directory(path)

    def mark_durable(self, path: str) -> None:
        """See `Disk.mark_durable`."""
        self._step("mark_durable")
        self._disk.mark_durable(path)
