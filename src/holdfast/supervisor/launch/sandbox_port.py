"""The port to where a supervised command runs: what `holdfast.supervisor.launch.supervised_run` needs of a box.

A box may hide or forbid things by mounts, which the filter of a supervised tree refuses to all below it. So the box is
finished first, and what puts itself under the filter (`holdfast.supervisor.confinement.filter_shim`) is started inside
of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager


class PreparedCommand(NamedTuple):
    """A program to execute, in a child of the caller's, in the caller's session and its terminal's foreground.

    It ends as the command does: with its exit code, or 128 and the number of the signal that ended it. It stops and
    goes on with it, and leaves all signals to it: to what is executed inside, every one of them may be ignored.
    """

    arguments: Sequence[bytes]
    environment: Mapping[bytes, bytes]
    descriptors: Sequence[int] = ()
    """To be inherited under the same numbers, besides the standard ones; they stay the box's own."""


class Sandbox(Protocol):
    """A place for one command."""

    def prepare(
        self,
        command: Sequence[bytes],
        *,
        directory: bytes,
        environment: Mapping[bytes, bytes],
        keep: Sequence[int] = (),
    ) -> AbstractContextManager[PreparedCommand]:
        """What has to be executed so that ``command`` runs inside, in ``directory``, with what the box lets through of
        ``environment`` and, of all descriptors, the standard ones and ``keep`` alone.

        Whatever was set up for it is gone when the context is left, and when this process is killed. Raises
        `UnsupportedError` if the box cannot be had here, saying why and what would help: never is less enforced than
        was asked for.
        """
        ...
