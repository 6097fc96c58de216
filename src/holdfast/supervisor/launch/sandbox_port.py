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
    """A program to execute, in a child of the caller, in the caller's session and its terminal's foreground.

    It ends as the command does: with its exit code, or 128 and the number of its signal. It stops and continues with
    the command, and leaves all signals to it: the program that runs inside may inherit every signal as ignored.
    """

    arguments: Sequence[bytes]
    environment: Mapping[bytes, bytes]
    descriptors: Sequence[int] = ()
    """To be inherited under the same numbers, in addition to the standard ones; the box keeps them."""


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
        """The program that runs ``command`` inside, in ``directory``, with the variables of ``environment`` that the
        box permits and, of all descriptors, only the standard ones and ``keep``.

        Everything that it set up is removed at the end of the context, and when this process is killed. Raises
        `UnsupportedError`, with reason and remedy, if the box is impossible here: it never enforces less than
        requested.
        """
        ...
