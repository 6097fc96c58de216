"""Records what other programs say in 9P2000.L: diod, its clients, and our own client to it.

``python -m tests.protocol.p9.record DIRECTORY`` writes ``DIRECTORY/SESSION.txt``; it needs Debian's package diod, and
root. A file holds the exchanges of one connection, in the order of the replies: ``>`` the request in hexadecimal, ``<``
the reply.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from holdfast.testing.p9_client import P9Client, encode_request
from holdfast.wire.p9 import protocol_constants
from holdfast.wire.p9.framing import FrameSplitter, decode_header
from holdfast.wire.p9.protocol_constants import Type

GROUND = Path("/tmp/p9-recording")  # A name that says nothing of the machine: clients send it.
TREE, SERVER, PROXY = GROUND / "tree", GROUND / "diod", GROUND / "proxy"
MOST_EXCHANGES, MOST_BYTES = 60, 2048


def connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(10)
    for _ in range(100):
        with suppress(FileNotFoundError, ConnectionRefusedError):
            connection.connect(str(path))
            return connection
        time.sleep(0.05)
    raise TimeoutError(path)


@contextmanager
def recorded(file: Path) -> Generator[None]:
    """Who connects to `PROXY` meanwhile speaks to diod, and is recorded."""
    exchanges: list[str] = []
    requests: dict[int, bytes] = {}

    def pass_on(source: socket.socket, to: socket.socket, see: Callable[[bytes], None]) -> None:
        splitter = FrameSplitter(1 << 20)
        while data := source.recv(1 << 16):
            for frame in splitter.split(data):
                see(bytes(frame))
                to.sendall(frame)
        to.shutdown(socket.SHUT_WR)

    def request(frame: bytes) -> None:
        requests[decode_header(memoryview(frame)).tag] = frame

    def reply(frame: bytes) -> None:
        asked = requests.pop(decode_header(memoryview(frame)).tag)
        if len(exchanges) < MOST_EXCHANGES and len(asked) + len(frame) <= MOST_BYTES:
            exchanges.append(f"> {asked.hex()}\n< {frame.hex()}\n")

    PROXY.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(PROXY))
        listener.listen(1)
        threads: list[threading.Thread] = []

        def serve() -> None:
            client, server = listener.accept()[0], connect(SERVER)
            for arguments in ((client, server, request), (server, client, reply)):
                threads.append(threading.Thread(target=pass_on, args=arguments, daemon=True))
                threads[-1].start()

        accepting = threading.Thread(target=serve, daemon=True)
        accepting.start()
        yield
        accepting.join(10)
        for thread in threads:
            thread.join(10)
    file.write_text("\n".join(exchanges))


def over(connection: socket.socket, message: bytes) -> bytes:
    """The reply to it."""
    connection.sendall(message)
    answer = b""
    while len(answer) < 4 or len(answer) < struct.unpack_from("<I", answer)[0]:
        answer += connection.recv(1 << 16)
    return answer


def our_client(exchange: Callable[[bytes], bytes]) -> None:
    """Everything that diod answers."""
    attached = bytes(TREE)
    client = P9Client(exchange, msize=8192)
    exchange(encode_request(Type.AUTH, 3, 99, b"root", attached, 0))
    root = client.attach(attached, uid=0, user=b"root")
    client.stat(root)
    client.statfs(root)
    client.mkdir(root, b"sub")
    sub = client.walk(root, b"sub")
    new = client.walk(root)
    client.create(new, b"new", gid=0)
    client.write(new, 0, b"content")
    client.read(new, 2, 3)
    client.fsync(new, data_only=True)
    client.lock(new, protocol_constants.LOCK_WRITE, 1, 10, 7, b"client", protocol_constants.LOCK_BLOCK)
    client.get_lock(new, protocol_constants.LOCK_WRITE, 0, 0, 8, b"other")
    client.symlink(root, b"soft", b"new")
    client.readlink(client.walk(root, b"soft"))
    client.mknod(root, b"pipe", 0o10644)
    path = client.walk(root, b"new")
    client.link(sub, path, b"hard")
    client.rename(path, sub, b"moved")
    client.set_attributes(path, 0x1FF & ~6, mode=0o600, size=2, atime_ns=-5 * 10**9 + 7, mtime_ns=10**18)
    client.stat(path, protocol_constants.GETATTR_ALL)
    client.set_xattr(path, b"user.a", b"value")
    client.get_xattr(path, b"user.a")
    client.get_xattr(path, b"")
    directory = client.walk(root, b"sub")
    client.open(directory, 0o200000)
    client.list(directory, 512)
    client.clunk(directory)
    for names in ((b"no",), (b"sub", b"no"), (b"sub", b"..", b"pipe")):
        with suppress(FileNotFoundError):
            client.walk(root, *names)
    client.remove(path)
    exchange(encode_request(Type.FLUSH, 3, 77))
    client.clunk(new)


def main(folder: Path) -> None:
    shutil.rmtree(GROUND, ignore_errors=True)
    (TREE / "directory").mkdir(parents=True)
    (TREE / "file").write_text("hello\n")
    folder.mkdir(parents=True, exist_ok=True)
    options = ("-f", "-n", "-N", "-c", "/dev/null", "-e", str(TREE), "-l", str(SERVER), "-L", "stderr")
    server = subprocess.Popen(("diod", *options), stderr=subprocess.DEVNULL)
    try:
        connect(SERVER).close()
        with recorded(folder / "our_client.txt"), connect(PROXY) as connection:
            our_client(partial(over, connection))
        for name, arguments in (
            ("diodls", ("-a", str(TREE))),
            # (Of a directory, -l would walk to ".", which is no name in 9P.)
            ("diodls", ("-a", str(TREE), "-l", "file")),
            ("diodcat", ("-a", str(TREE), "file")),
        ):
            with recorded(folder / f"{name}_{len(arguments)}.txt"):
                subprocess.run((name, "-s", str(PROXY), *arguments), check=True, stdout=subprocess.DEVNULL, timeout=60)
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(GROUND)


if __name__ == "__main__":
    assert os.geteuid() == 0
    main(Path(sys.argv[1]))
