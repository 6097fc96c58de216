"""The keeper's private socket: clients use `UndoService` and `RunService`, and runs join.

A connection's pause or run ends with it. Clients inside the trees share one limit, and other clients another: no tree
can keep a person from the keeper.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from holdfast.ipc.port import encode_result
from holdfast.ipc.server import Client, ClientGroup, Limits, Server
from holdfast.model.errors import RefusedError
from holdfast.model.log import logged
from holdfast.model.paths import KEEPER_SOCKET
from holdfast.supervisor.control._unsupervised_proof import take_proof
from holdfast.supervisor.control.keeper_port import (
    MAX_ANSWER_BYTES,
    MAX_REQUEST_BYTES,
    MOST_READ_ONLY,
    OUTSIDE_ONLY,
    PORT,
    SUPERVISED,
    WITH_PROOF,
)
from holdfast.supervisor.process_tree.members import has_ended

if TYPE_CHECKING:
    import select
    from collections.abc import Callable

    from holdfast.model.clock import Clock

_FOR_OTHERS = {
    "answer": "allow or deny held operations",
    "configure": "change its own safeguards and limits",
    "discard": "forget steps",
    "pass_connection": "start commands in a session that another process began",
    "redo": "bring steps forward",
    "undo": "take steps back",
}
"""The requests of `OUTSIDE_ONLY` that people make, in words."""

LATER: Final = object()
"""The keeper's result for a request that takes time: it calls `Client.send` later."""

_LIMITS = Limits(
    request_bytes=MAX_REQUEST_BYTES,
    answer_bytes=MAX_ANSWER_BYTES,
    descriptors=2 + 2 + MOST_READ_ONLY,  # the proof, and those of `RemoteUndoService.join_run`
    request=math.inf,
    answer=math.inf,
    idle=math.inf,
)
"""A client's connection may last as long as its run, so number and bytes are limited, and not time."""


class KeeperServer:
    """The socket of the keeper of one log."""

    def __init__(
        self,
        folder: bytes,
        epoll: select.epoll,
        clock: Clock,
        perform: Callable[[Client, str, tuple[Any, ...]], object],
        left: Callable[[Client], None],
        is_inside: Callable[[int], bool],
    ) -> None:
        """Bind the socket; the caller holds the log.

        ``perform(client, method, arguments)`` carries out a request, and returns the result or `LATER`;
        ``left(client)`` is called at the end of a connection; ``is_inside(pid)`` tells whether a process belongs to a
        supervised tree, or might.
        """
        self._folder = folder
        self._perform = perform
        self._is_inside = is_inside
        self._insiders = ClientGroup(clients=16, unread=1 << 26)
        self._outsiders = ClientGroup(clients=64, unread=2 * MAX_ANSWER_BYTES)
        self._server = Server(
            folder, KEEPER_SOCKET, clock, self._answer, left=left, group_of=self._group_of, limits=_LIMITS, epoll=epoll
        )

    def owns(self, fd: int) -> bool:
        """Whether the descriptor that ``epoll`` named is one of ours."""
        return self._server.owns(fd)

    def serve(self, fd: int) -> None:
        """Do what can be done for the descriptor."""
        self._server.serve_ready(fd)

    def close(self) -> None:
        """Take no client in any more, remove the socket, and hang up."""
        self._server.close()
        self._server.hang_up()

    def _group_of(self, client: Client) -> ClientGroup:
        return self._insiders if self._may_be_inside(client) else self._outsiders

    def _may_be_inside(self, client: Client) -> bool:
        """A connection outlives its maker in other hands, and the maker's number comes back as another process's."""
        # In this order: if it has not ended after the check, the check was of that process.
        return self._is_inside(client.peer.pid) or client.process is None or has_ended(client.process)

    def _answer(self, client: Client, body: bytes) -> bytes | None:
        method, arguments = PORT.decode_request(body)
        client.is_outside = method in WITH_PROOF and self._is_outside(client)
        if method in OUTSIDE_ONLY and not client.is_outside:
            raise RefusedError(
                f"a supervised process may not {_FOR_OTHERS.get(method, f'ask its keeper for {method}')}",
                hint="do it from another terminal, which is not supervised",
                code=SUPERVISED,
            )
        with logged(request_id=PORT.request_id(body)):
            result = self._perform(client, method, arguments)
        return None if result is LATER else encode_result(result)

    def _is_outside(self, client: Client) -> bool:
        """Whether its request had the proof that it is in no tree, nor ever was, and nothing else shows that it is."""
        if not take_proof(client.descriptors, self._folder):
            return False
        # Another process may have passed on a proof.
        return client.group is self._outsiders and not self._may_be_inside(client)
