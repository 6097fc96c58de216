"""The common base of all interfaces: working directories, commands and files in them, and events.

A `Host` has one or several working directories. A writable one is a workspace with a keeper, an undo log and a session
of its own; a read-only one can only be read. A command changes only its own directory, since no keeper would record its
changes in another. Nothing here approves an operation: the client that asked for a command must not answer its
safeguards (I9), and the interfaces ensure that.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from holdfast.engine.hosting.working_directory import HostedDirectory
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError, UsageError
from holdfast.model.log import Log
from holdfast.model.paths import display, under

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.engine.hosting.monitor import HostEvent
    from holdfast.engine.hosting.working_directory import DirectorySpec
    from holdfast.model.config.settings import Isolation

_log = Log(__name__)

MAX_DIRECTORIES: Final = 8


class Host:
    """See the module. Any thread may call."""

    def __init__(
        self,
        directories: Sequence[DirectorySpec],
        *,
        home: bytes | None = None,
        flags: Mapping[str, object] | None = None,
        isolation: Isolation | Callable[[Isolation], Isolation] | None = None,
        guard: bool = False,
        face: str = "",
        notify: Callable[[HostedDirectory, HostEvent], object] = lambda _hosted, _event: None,
    ) -> None:
        """Make the writable directories workspaces, where they are in none yet. The first one is the primary.
        ``notify`` receives events, on threads of its own; ``guard`` turns the safeguards' preset on; ``isolation`` is
        the isolation of commands, or computes it from the configured one; ``face`` is the interface that the history
        shows, such as ``mcp``.

        Raises `UsageError`, also for an ambiguous label, `RefusedError` for an unusual directory, and the errors of
        opening a workspace.
        """
        if not 1 <= len(directories) <= MAX_DIRECTORIES:
            raise UsageError(f"between 1 and {MAX_DIRECTORIES} working directories, not {len(directories)}")
        _check_labels([given.label for given in directories])
        self.directories: Sequence[HostedDirectory] = [
            HostedDirectory(
                index, given, home=home, flags=flags, isolation=isolation, guard=guard, face=face, notify=notify
            )
            for index, given in enumerate(directories)
        ]
        for at, one in enumerate(self.directories):
            for other in self.directories[:at]:
                if _overlap(one.path, other.path):
                    raise RefusedError(
                        f"{display(one.given)} and {display(other.given)} lie in each other, or in one workspace",
                        hint="name directories that are apart",
                    )
        for one in self.directories:
            one.keep_off([other.path for other in self.directories if other is not one])
        self._label([given.label for given in directories])

    def _label(self, given: Sequence[str]) -> None:
        """Give each directory a name that means no other one."""
        paths = {display(hosted.path) for hosted in self.directories}
        taken = {label for label in given if label}
        for hosted, label in zip(self.directories, given, strict=True):
            if label:
                if label in paths - {display(hosted.path)}:
                    raise _ambiguous(hosted.index, f"{label!r} is the path of another working directory")
                continue
            if hosted.label in taken or _reads_as_number(hosted.label):
                hosted.label = display(hosted.path)
            taken.add(hosted.label)

    def directory(self, which: int | str | None = None) -> HostedDirectory:
        """One by its number, label or path; None: the primary. Raises `NotFoundError`."""
        if which is None:
            return self.directories[0]
        for hosted in self.directories:
            if which in (hosted.index, hosted.label) or which == display(hosted.path):
                return hosted
        shown = ", ".join(f"{hosted.index} ({hosted.label})" for hosted in self.directories)
        raise NotFoundError(f"there is no working directory {which!r:.100}; there are {shown}", code="no_directory")

    def recover(self) -> None:
        """Recover from killed keepers, with events, before a client reads the files. An error in a directory is logged:
        the next use of its undo log raises it again.
        """
        for hosted in self.directories:
            if hosted.access == "read_only":
                continue
            try:
                hosted.recover()
            except HoldfastError as error:
                _log.warning("%s: %s", display(hosted.path), error.message)

    @property
    def inside(self) -> str | None:
        """The run that this process belongs to, see `HostedDirectory.inside`."""
        return next((hosted.inside for hosted in self.directories if hosted.inside is not None), None)

    def close(self) -> None:
        """Stop every session. An error of one is logged, and the others are stopped all the same."""
        for hosted in self.directories:
            try:
                hosted.stop()
            except HoldfastError as error:
                _log.warning("%s: %s", display(hosted.path), error.message)


def _check_labels(labels: Sequence[str]) -> None:
    for index, label in enumerate(labels):
        if _reads_as_number(label):
            raise _ambiguous(index, f"{label!r} reads like the number of a working directory")
        if label and label in labels[:index]:
            raise _ambiguous(index, f"{label!r} is the label of another working directory")


def _reads_as_number(label: str) -> bool:
    return re.fullmatch(r"\s*[+-]?\d+\s*", label) is not None


def _ambiguous(index: int, why: str) -> UsageError:
    field = f"working_directories[{index}].label"
    return UsageError(f"{field}: {why}", hint="give each a name of its own", data={"field": f"payload.{field}"})


def _overlap(one: bytes, other: bytes) -> bool:
    return under(one, other.rstrip(b"/")) or under(other, one.rstrip(b"/"))
