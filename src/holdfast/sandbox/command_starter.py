"""Starts the commands of a session, as its own children: ``command_starter.py CHANNEL`` (a descriptor).

The commands of a session belong to one supervised tree, so that each may signal and inspect earlier ones' background
processes. This is the first process of the tree. It receives connections over a socket (``SOCK_SEQPACKET``), a
descriptor with each byte: the first from its starter, before it begins, and later ones from the tree's keeper, which
lets no supervised process connect. A connection requests one command at a time; the three descriptors with the request
are the command's standard streams. The starter ends when it has no connection and the tree has no other process;
background processes keep it, for later commands.

A request is four bytes, the length (big-endian) of what follows, and an object of JSON: ``words``, ``directory``,
``environment``, texts in UTF-8 with surrogate escapes, and ``umask``, a number. The answers are lines of JSON: first
``{"ready": 1}``, then ``{"pid": …}`` or ``{"error": errno}``, and at the command's end ``{"status": …}`` as from
`os.wait`. A connection without a command only keeps the tree; the answer to ``{"leave": true}`` is ``{"stays": …}``:
whether another process or connection keeps it.

A program of its own, with the standard library alone: every command waits for it, under the filter of its tree, and its
forks must have nothing of ours in their memory.
"""

from __future__ import annotations

import array
import errno
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from typing import Any

MAX_REQUEST_BYTES = 16 << 20
SECONDS = 10.0
"""For a request, from its first byte on, and for who takes in an answer."""
LOOK_SECONDS = 1.0
"""Seconds between checks whether background processes that are no children of ours have ended."""
MAX_CLIENTS = 64
"""More are hung up on: one process at a time has the session, and asks for one command at a time."""
_LENGTH = struct.Struct(">I")
_STREAMS = 3


class Client:
    """A connection, and the command that it requested."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(SECONDS)
        self.connection = connection
        self.process = 0
        """0: none was requested."""

    def tell(self, **said: int) -> None:
        """Answer. A client that is gone is no matter of the command's."""
        try:
            self.connection.sendall(json.dumps(said).encode() + b"\n")
        except OSError:
            pass

    def is_gone(self) -> bool:
        """Whether the other side has hung up."""
        try:
            ready, _, _ = select.select([self.connection], [], [], 0)
            return bool(ready) and not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def receive(self) -> tuple[dict[str, Any], list[int]] | None:
        """The request, and the descriptors that came with it; None if the connection has ended."""
        data, descriptors = receive(self.connection, _LENGTH.size, _STREAMS)
        try:
            if not data:
                return None
            until = time.monotonic() + SECONDS  # for all messages together, since others wait
            (length,) = _LENGTH.unpack(data + self._whole(_LENGTH.size - len(data), until))
            if length > MAX_REQUEST_BYTES:
                raise ValueError("a request that none of ours makes")
            request: dict[str, Any] = json.loads(self._whole(length, until))
            if type(request) is not dict:
                raise ValueError("a request is an object")
            return request, descriptors
        except BaseException:
            for fd in descriptors:
                os.close(fd)
            raise

    def _whole(self, size: int, until: float) -> bytes:
        got = bytearray()
        while len(got) < size:
            self.connection.settimeout(max(until - time.monotonic(), 0.001))
            piece = self.connection.recv(size - len(got))
            if not piece:
                raise ValueError("a request was cut short")
            got += piece
        self.connection.settimeout(SECONDS)
        return bytes(got)


class Starter:
    """Serves the connections that come over a channel."""

    def __init__(self, channel: socket.socket, woken: int) -> None:
        """``woken`` can be read when a child has ended."""
        channel.setblocking(False)
        self._channel = channel
        self._woken = woken
        self._clients: dict[int, Client] = {}
        self._running: dict[int, Client | None] = {}

    def serve(self) -> None:
        """Return when, after the first client, there is no client and no other process of the tree."""
        select.select([self._channel], [], [])
        is_open = self._accept()
        while self._clients or self._running or others_live():
            poll = select.poll()
            for fd in (self._woken, *self._clients, *([self._channel.fileno()] if is_open else [])):
                poll.register(fd, select.POLLIN)
            ready = {fd for fd, _ in poll.poll(None if self._clients or self._running else LOOK_SECONDS * 1000)}
            if self._woken in ready:
                os.read(self._woken, 512)
                self._reap()
            for fd in ready & self._clients.keys():
                self._hear(self._clients[fd])
            if self._channel.fileno() in ready:
                is_open = self._accept()

    def _accept(self) -> bool:
        """Take in the connections that have come; whether more may come."""
        try:
            while True:
                data, descriptors = receive(self._channel, 1, 1)
                for fd in descriptors:
                    connection = socket.socket(fileno=fd)
                    if len(self._clients) >= MAX_CLIENTS:
                        connection.close()
                        continue
                    client = Client(connection)
                    self._clients[fd] = client
                    client.tell(ready=1)
                if not data:
                    return False
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _hear(self, client: Client) -> None:
        try:
            asked = client.receive() if not client.process else None
        except (OSError, ValueError, RecursionError):
            asked = None
        if asked is None:
            # The command goes on without its client.
            self._running = {pid: None if one is client else one for pid, one in self._running.items()}
            del self._clients[client.connection.fileno()]
            client.connection.close()
            return
        request, streams = asked
        try:
            if "leave" in request:
                self._reap()
                others = any(not one.is_gone() for one in self._clients.values() if one is not client)
                client.tell(stays=int(others or bool(self._running) or others_live()))
                return
            if len(streams) != _STREAMS:
                raise ValueError("a command has three streams")
            client.process = start(request, streams)
        except Exception as error:  # noqa: BLE001 - whatever is asked for, others are served
            client.tell(error=_number(error))
            return
        finally:
            for fd in streams:
                os.close(fd)
        self._running[client.process] = client
        client.tell(pid=client.process)

    def _reap(self) -> None:
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            client = self._running.pop(pid, None)
            if client is not None:
                client.tell(status=status)


def receive(connection: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """The received bytes, with their descriptors. Raises `OSError`."""
    descriptors = array.array("i")
    room = socket.CMSG_SPACE(most * descriptors.itemsize)
    data, ancillary, _, _ = connection.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    return data, list(descriptors)


def start(request: dict[str, Any], streams: list[int]) -> int:
    """Start the requested command, in a session of its own; its number."""
    words = [_bytes(word) for word in request["words"]]
    environment = {_bytes(name): _bytes(value) for name, value in request["environment"].items()}
    directory, umask = _bytes(request["directory"]), int(request["umask"])
    read, write = os.pipe()
    process = os.fork()
    if not process:
        try:
            os.setsid()
            for number, fd in enumerate(streams):
                os.dup2(fd, number)  # all descriptors are above 2
            os.umask(umask)
            os.chdir(directory)
            for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            os.execve(words[0], words, environment)  # noqa: S606
        except Exception as error:  # noqa: BLE001 - nothing above may go on in this process
            os.write(write, b"%d" % _number(error))
        finally:
            os._exit(126)
    os.close(write)
    with open(read, "rb") as file:
        failed = file.read()
    if failed:
        os.waitpid(process, 0)
        raise OSError(int(failed), os.strerror(int(failed)))
    return process


def _number(error: Exception) -> int:
    return (error.errno if isinstance(error, OSError) else None) or errno.EINVAL


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def others_live() -> bool:
    """Whether an orphan of the tree lives: it is a child of our parent then, with as many filters as we have. The
    keeper may be a child of our parent, too, and have the filters that a container sets for all.
    """
    parent = os.getppid()
    try:
        with open(f"/proc/{parent}/task/{parent}/children") as file:
            siblings = [int(number) for number in file.read().split()]
    except OSError:
        return False
    ours = _filters(os.getpid())
    # Before Linux 5.9 the number is unknown: then orphans keep no tree.
    return ours > 0 and any(_filters(pid) >= ours for pid in siblings if pid != os.getpid())


def _filters(pid: int) -> int:
    """Under how many filters (seccomp(2)) a process is; -1 if it has ended."""
    try:
        with open(f"/proc/{pid}/status") as file:
            lines = dict(line.split(":", 1) for line in file if ":" in line)
    except OSError:
        return -1
    return -1 if lines["State"].split()[0] in ("Z", "X") else int(lines.get("Seccomp_filters", "0"))


def main(channel: int) -> int:
    """Serve until nothing is left to be served."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    os.set_inheritable(channel, False)
    with socket.socket(fileno=channel) as connections:
        Starter(connections, woken).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
