"""What a keeper is asked for over its socket, and by which clients: the methods of `UndoService`, and those of runs.

Both sides are of one version: a client finds the socket in the log, and the log has a version.
"""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - the signatures are read at run time
from typing import Final, Literal, NamedTuple, Protocol

from holdfast.ipc.port import Port
from holdfast.undo.journal.records import StepId  # noqa: TC001
from holdfast.undo.service import RunEnding, StepInfo, StepOutcome, Thresholds, UndoService

MAX_REQUEST_BYTES: Final = 1 << 20
MAX_ANSWER_BYTES: Final = 1 << 28


ServedBy = Literal["filter", "mount", "virtiofs", "9p"]


class JoinRequest(NamedTuple):
    """The arguments of ``join``, in their order."""

    run: str
    agent: int
    """The first process of its tree."""
    one_step: bool
    command: tuple[bytes, ...]
    directory: bytes
    read_only: int
    """So many descriptors of read-only directories follow the listener and the parent's socket."""
    thresholds: Thresholds
    """When the run wants a person to be asked."""
    served_by: ServedBy
    """With ``mount`` the tree sees the workspace by a mount alone, and the device of that comes in place of a listener;
    with the last two the agent is a virtual machine, and the socket of its file system comes there.
    """


class RunService(Protocol):
    """What the keeper's socket offers beside `UndoService`, and what goes over it in another shape."""

    def serves(self, run: str) -> bool:
        """Whether a run of this id has joined, and has not left."""
        ...

    def expect(self, run: str, command: Sequence[bytes]) -> StepId:
        """Open the step of the command that the agent of a run is about to start: the next new child of its own.

        Raises `NotFoundError` if no such run has joined, `RefusedError` if another command is expected.
        """
        ...

    def settle(self, step: StepId, exit_code: int | None) -> StepOutcome:
        """A step that was expected is over, when its operations in flight are.

        What its processes change from now on is another step. ``exit_code`` counts if the keeper does not know better.
        """
        ...

    def keep_channel(self, run: str) -> int:
        """See `RemoteUndoService.open_channel`; the socket comes with the request."""
        ...

    def pass_connection(self, run: str) -> int:
        """See `RemoteUndoService.connect_agent`; the connection comes with the request."""
        ...

    def begin_line(self, label: str, run: str) -> None:
        """The agent of a run is a shell, and begins to run a line: what it changes itself until `end_line`, and what
        it starts until then, is one step, but for what an explicit step takes in. One that a process of the run opens
        divides it: what the line changes after that is another step. What was started before is no part of it.

        Raises `NotFoundError` if no such run has joined.
        """
        ...

    def end_line(self, run: str, exit_code: int) -> None:
        """The shell is back at its prompt, and the step of the line is over. What the line has left running makes new
        steps; but if a safeguard holds that, it goes on in the same step, until it has ended.

        Raises `NotFoundError` if no such run has joined.
        """
        ...

    def guard(self, run: str, thresholds: Thresholds) -> None:
        """Change when a person is asked on behalf of a run. The strictest of what all runs ask for holds.

        Raises `NotFoundError` if no such run has joined, `RefusedError` unless the run was started by this process.
        """
        ...

    def leave(self) -> RunEnding:
        """The agent has ended: returns when all steps of the run are finished. What lives on is served until it ends,
        and what it changes from now on makes new steps.
        """
        ...

    def visit(self) -> None:
        """The keeper does not end before this connection does, unless it is told to."""
        ...

    def begin_attended(self, label: str) -> StepId:
        """`UndoService.begin`, of a step that ends when this connection does, if it is open then: as by a commit, and
        its label says so.
        """
        ...

    def join(self, request: JoinRequest) -> None:
        """See `RemoteUndoService.join_run`; its descriptors come with the request."""
        ...

    def pause(self) -> None:
        """What `UndoService.quiet` does at its beginning; it ends with the connection as well."""
        ...

    def resume(self) -> None:
        """The end of a `pause`."""
        ...

    def write_content(self, path: bytes, expected: bytes | None, run: str) -> StepInfo | None:
        """`UndoService.write` of the content in the descriptor that comes with the request."""
        ...


PORT: Final = Port(UndoService, RunService, without=("quiet", "write"))
OUTSIDE_ONLY: Final = frozenset(
    {
        *(
            "answer",
            "begin_attended",
            "begin_line",
            "brought_back",
            "configure",
            "discard",
            "end_line",
            "expect",
            "foresee",
            "guard",
            "join",
            "keep_channel",
            "note_contents",
            "pass_connection",
            "pause",
        ),
        *("redo", "resume", "settle", "signal", "undo", "visit", "write_content"),
    }
)
"""What a process of a supervised tree may not ask: a tree never approves what it asks for itself (I9)."""

WITH_PROOF: Final = OUTSIDE_ONLY | {"begin", "commit", "rollback"}
"""With these a client sends its proof that it is outside, if it has one
(`holdfast.supervisor.control._unsupervised_proof`). Without one, the last three are about the process's own run alone.
"""

SUPERVISED = "inside_run"
"""The code of the error for a client that is inside of a tree, or has not proved that it is not."""

MOST_READ_ONLY: Final = 14
"""Read-only directories of one run."""

GONE = "keeper_gone"
"""The code of the error when the keeper ended before it answered."""
