"""The requests to a keeper over its socket, and the clients that may send them: the methods of `UndoService`, and those
of runs.

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
    """The number of descriptors of read-only directories behind the listener and the parent's socket."""
    thresholds: Thresholds
    """The run's limits at which a person is asked."""
    served_by: ServedBy
    """With ``mount`` the tree sees the workspace only by a mount, whose device comes in place of a listener; with the
    last two the agent is a virtual machine, and its file system's socket comes in that place.
    """


class RunService(Protocol):
    """The requests beside `UndoService`, and those with another form on the socket."""

    def serves(self, run: str) -> bool:
        """Whether a run of this id has joined, and has not left."""
        ...

    def expect(self, run: str, command: Sequence[bytes]) -> StepId:
        """Open the step of the command that the agent of a run is about to start: its next new child.

        Raises `NotFoundError` if no such run has joined, `RefusedError` if another command is expected.
        """
        ...

    def settle(self, step: StepId, exit_code: int | None) -> StepOutcome:
        """End an expected step, when its operations in progress have ended.

        Later changes of its processes are another step. ``exit_code`` is used if the keeper does not know better.
        """
        ...

    def keep_channel(self, run: str) -> int:
        """See `RemoteUndoService.open_channel`; the socket comes with the request."""
        ...

    def pass_connection(self, run: str) -> int:
        """See `RemoteUndoService.connect_agent`; the connection comes with the request."""
        ...

    def begin_line(self, label: str, run: str) -> None:
        """The agent of a run is a shell, and begins to run a line. Its own changes until `end_line`, and those of
        processes that it starts until then, are one step, except those in an explicit step. An explicit step of the run
        divides it: the line's later changes are another step. Processes from before are not part of it.

        Raises `NotFoundError` if no such run has joined.
        """
        ...

    def end_line(self, run: str, exit_code: int) -> None:
        """The shell is back at its prompt, and the line's step ends. The line's background processes make new steps;
        but one that a safeguard holds continues in the same step until its end.

        Raises `NotFoundError` if no such run has joined.
        """
        ...

    def guard(self, run: str, thresholds: Thresholds) -> None:
        """Change the limits of a run at which a person is asked. The strictest of all runs' limits count.

        Raises `NotFoundError` if no such run has joined, `RefusedError` unless this process started the run.
        """
        ...

    def leave(self) -> RunEnding:
        """The agent has ended: returns when all steps of the run are finished. Remaining processes are served until
        they end, and their later changes make new steps.
        """
        ...

    def visit(self) -> None:
        """Keep the keeper running until this connection ends, or it is told to end."""
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
        """The beginning of `UndoService.quiet`; it also ends with the connection."""
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
"""Requests that a process of a supervised tree may not send: a tree never approves its own requests (I9)."""

WITH_PROOF: Final = OUTSIDE_ONLY | {"begin", "commit", "rollback"}
"""With these a client sends its proof that it is outside, if it has one
(`holdfast.supervisor.control._unsupervised_proof`). Without one, the last three are about the process's own run alone.
"""

SUPERVISED = "inside_run"
"""The error code for a client inside a tree, or without a proof that it is outside."""

MOST_READ_ONLY: Final = 14
"""Read-only directories of one run."""

GONE = "keeper_gone"
"""The code of the error when the keeper ended before it answered."""
