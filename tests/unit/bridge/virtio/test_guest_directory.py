"""A recorded directory that guests mount: by several devices of one process, and read-only."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from holdfast.bridge.fuse.live_caches import LiveCaches
from holdfast.bridge.fuse.served_file_system import ServedFileSystem
from holdfast.bridge.server.loop import FuseServer
from holdfast.bridge.virtio.vhost_user_backend import VhostUserBackend
from holdfast.model.clock import SystemClock
from holdfast.testing.bridged import SingleStep
from holdfast.testing.vhost_user_frontend import Frontend
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.vfs.recorded import files
from holdfast.vfs.recorded.node_registry import NodeRegistry
from holdfast.wire.fuse.protocol_constants import Opcode

from ....protocol.fuse import structures as c
from ....protocol.fuse.structures import request
from ....waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from holdfast.undo.interceptor import Place
    from holdfast.vfs.file_system import Caller
    from holdfast.vfs.recorded.node import LocatedNode

LIMIT: Final = 20.0
SHORT: Final = 0.2
FALLOC_FL_KEEP_SIZE: Final = 1
FALLOC_FL_PUNCH_HOLE: Final = 2
ROOM: Final = 8192


class Share:
    """A directory with its undo log, of which devices can be made."""

    def __init__(self, directory: Path, stack: ExitStack, *, log: str = "log") -> None:
        self.tree = directory / "tree"
        self.tree.mkdir()
        self._stack = stack
        self._root = os.open(self.tree, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, self._root)
        (directory / log).parent.mkdir(exist_ok=True)
        self._log = UndoLog(bytes(directory / log), self._root, SystemClock())
        stack.callback(self._log.close)
        self._hidden = os.open(directory / log, os.O_PATH)
        stack.callback(os.close, self._hidden)
        self._service = LocalUndoService(self._log, intercepts=True)
        self._step = self._service.open("command")
        self._hosts: list[SingleStep] = []

    def mounted(self, *, is_read_only: bool = False) -> Guest:
        return self._stack.enter_context(self._mounted(is_read_only=is_read_only))

    def undo(self, *, force: bool = False) -> None:
        self._service.close(self._step)
        assert not self._service.undo([self._step], force=force).conflicts

    def begin(self) -> None:
        """Another step."""
        self._step = self._service.open("command")
        for host in self._hosts:
            host.current = self._step

    @contextmanager
    def _mounted(self, *, is_read_only: bool) -> Generator[Guest]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        device, guest = VhostUserBackend(ours), Guest(theirs)
        guest.ask_later(Opcode.INIT, bytes(c.InitIn(major=7, minor=38, max_readahead=1 << 17)))
        transport = device.accept(LIMIT)
        assert transport is not None
        host = SingleStep(self._log, self._root, self._step)
        host.hidden = (self._hidden,)
        self._hosts.append(host)
        caches = LiveCaches(host, self._log.preimages, transport, is_read_only=is_read_only)
        served = ServedFileSystem(caches.directory, caches)
        server = FuseServer(transport, served)
        server.start()
        assert not guest.answer()[0]
        yield guest
        guest.frontend.close()
        assert server.wait(LIMIT)
        assert server.stop()
        served.close()
        caches.close()
        device.close()


class Guest:
    """What asks, by numbers of its own."""

    def __init__(self, connection: socket.socket) -> None:
        self.frontend = Frontend(connection, seconds=LIMIT)
        self.frontend.negotiate()
        self.frontend.start(0)
        self.queue = self.frontend.start(1)
        self._unique = 0

    def ask_later(self, opcode: int, body: bytes = b"", node: int = 1) -> None:
        self._unique += 1
        self.queue.add([bytes(request(opcode, body, unique=self._unique, node=node))], [ROOM], indirect=True)
        self.frontend.kick(1)

    def tell(self, opcode: int, body: bytes, node: int) -> None:
        """What has no answer."""
        self.ask_later(opcode, body, node)
        while not self.queue.take_used():
            self.frontend.wait_for_call(1)

    def answer(self) -> tuple[int, bytes]:
        while not (used := self.queue.take_used()):
            self.frontend.wait_for_call(1)
        (chain,) = used
        _, error, unique = struct.unpack_from("=IiQ", chain.data)
        assert unique == self._unique
        return -error, chain.data[16 : chain.written]

    def ask(self, opcode: int, body: bytes = b"", node: int = 1) -> bytes:
        self.ask_later(opcode, body, node)
        error, data = self.answer()
        if error:
            raise OSError(error, os.strerror(error))
        return data

    def lookup(self, name: bytes, parent: int = 1) -> int:
        return struct.unpack_from("=Q", self.ask(Opcode.LOOKUP, name + b"\0", parent))[0]

    def open_directory(self, node: int) -> int:
        return struct.unpack_from("=Q", self.ask(Opcode.OPENDIR, bytes(8), node))[0]

    def listing(self, handle: int) -> bytes:
        return struct.pack("=QQIIQII", handle, 0, 4096, 0, 0, 0, 0)

    def list(self, node: int, handle: int) -> bytes:
        return self.ask(Opcode.READDIR, self.listing(handle), node)

    def open(self, node: int, flags: int) -> int:
        return struct.unpack_from("=Q", self.ask(Opcode.OPEN, struct.pack("=II", flags, 0), node))[0]

    def read(self, node: int) -> bytes:
        handle = self.open(node, os.O_RDONLY)
        return self.ask(Opcode.READ, struct.pack("=QQIIQII", handle, 0, 4096, 0, 0, 0, 0), node)

    def create(self, name: bytes, content: bytes) -> None:
        body = struct.pack("=IIII", os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IFREG | 0o644, 0, 0)
        made = self.ask(Opcode.CREATE, body + name + b"\0")
        (node,), (handle,) = struct.unpack_from("=Q", made), struct.unpack_from("=Q", made, 128)
        self.ask(Opcode.WRITE, struct.pack("=QQIIQII", handle, 0, len(content), 0, 0, 1, 0) + content, node)


@pytest.fixture(name="share")
def _share(tmp_path: Path) -> Iterator[Share]:
    with ExitStack() as stack:
        yield Share(tmp_path, stack)


def test_what_one_guest_does_another_sees_at_once(share: Share) -> None:
    one, other = share.mounted(), share.mounted()
    one.create(b"made", b"by one")
    assert other.read(other.lookup(b"made")) == b"by one"
    other.ask(Opcode.RENAME, struct.pack("=Q", 1) + b"made\0moved\0")
    with pytest.raises(FileNotFoundError):
        one.lookup(b"made")
    assert one.read(one.lookup(b"moved")) == b"by one"
    (share.tree / "moved").write_bytes(b"by the host")
    assert one.read(one.lookup(b"moved")) == b"by the host"


_CHANGES: Final[dict[str, tuple[int, Callable[[int, int], bytes]]]] = {
    "chmod": (Opcode.SETATTR, lambda file, handle: struct.pack("=I4xQQQqqqIIIIIIII", 1, *[0] * 9, 0o600, 0, 0, 0, 0)),
    "mkdir": (Opcode.MKDIR, lambda file, handle: struct.pack("=II", 0o755, 0) + b"new\0"),
    "mknod": (Opcode.MKNOD, lambda file, handle: struct.pack("=III4x", stat.S_IFIFO | 0o644, 0, 0) + b"new\0"),
    "symlink": (Opcode.SYMLINK, lambda file, handle: b"new\0target\0"),
    "link": (Opcode.LINK, lambda file, handle: struct.pack("=Q", file) + b"new\0"),
    "unlink": (Opcode.UNLINK, lambda file, handle: b"file\0"),
    "rmdir": (Opcode.RMDIR, lambda file, handle: b"empty\0"),
    "rename": (Opcode.RENAME, lambda file, handle: struct.pack("=Q", 1) + b"file\0new\0"),
    "renameat2": (Opcode.RENAME2, lambda file, handle: struct.pack("=QI4x", 1, 0) + b"file\0new\0"),
    "create": (Opcode.CREATE, lambda file, handle: struct.pack("=IIII", os.O_RDWR, 0o644, 0, 0) + b"new\0"),
    "tmpfile": (Opcode.TMPFILE, lambda file, handle: struct.pack("=IIII", os.O_RDWR, 0o644, 0, 0) + b"/\0"),
    "open to write": (Opcode.OPEN, lambda file, handle: struct.pack("=II", os.O_WRONLY, 0)),
    "open to truncate": (Opcode.OPEN, lambda file, handle: struct.pack("=II", os.O_TRUNC, 0)),
    "write": (Opcode.WRITE, lambda file, handle: struct.pack("=QQIIQII", handle, 0, 3, 0, 0, 1, 0) + b"new"),
    "fallocate": (Opcode.FALLOCATE, lambda file, handle: struct.pack("=QQQI4x", handle, 0, 9, 0)),
    "copy": (Opcode.COPY_FILE_RANGE, lambda file, handle: struct.pack("=7Q", handle, 0, file, handle, 0, 3, 0)),
    "setxattr": (Opcode.SETXATTR, lambda file, handle: struct.pack("=II", 1, 0) + b"user.new\0x"),
    "removexattr": (Opcode.REMOVEXATTR, lambda file, handle: b"user.old\0"),
}
_OF_THE_FILE: Final = frozenset({"chmod", "open to write", "open to truncate", "write", "fallocate", "copy"}) | {
    "setxattr",
    "removexattr",
}


def test_nothing_changes_a_directory_that_is_read_only(share: Share) -> None:
    (share.tree / "file").write_bytes(b"old")
    (share.tree / "empty").mkdir()
    before = _state(share.tree)
    guest = share.mounted(is_read_only=True)
    file = guest.lookup(b"file")
    handle = guest.open(file, os.O_RDONLY)
    for change, (opcode, body) in _CHANGES.items():
        guest.ask_later(opcode, body(file, handle), file if change in _OF_THE_FILE else 1)
        assert guest.answer()[0] == errno.EROFS, change
        assert _state(share.tree) == before, change
    assert guest.read(file) == b"old"


def test_each_change_is_none_that_is_refused_anyway(share: Share) -> None:
    """What the test above sends is in order: without the refusal, it is carried out."""
    (share.tree / "file").write_bytes(b"old")
    guest = share.mounted()
    file = guest.lookup(b"file")
    guest.ask(Opcode.SETATTR, _CHANGES["chmod"][1](file, 0), file)
    guest.ask(Opcode.OPEN, _CHANGES["open to truncate"][1](file, 0), file)
    guest.ask(Opcode.RENAME, _CHANGES["rename"][1](file, 0))
    assert (share.tree / "new").stat().st_size == 0
    assert stat.S_IMODE((share.tree / "new").stat().st_mode) == 0o600


@pytest.mark.parametrize("log", ["log", "tree/.holdfast/undo"], ids=["beside", "in the tree"])
def test_what_is_done_to_the_removed_is_not_done_to_what_the_log_keeps(tmp_path: Path, log: str) -> None:
    """A guest may go on with a node whose name is gone: its kernel does so for what a process has open."""
    with ExitStack() as stack:
        share = Share(tmp_path, stack, log=log)
        for name in ("chmod", "setxattr", "open to truncate", "write"):
            (share.tree / name).write_bytes(b"precious")
        (share.tree / "mkdir").mkdir()
        before = _state(share.tree)
        guest = share.mounted()
        nodes = {name: guest.lookup(name.encode()) for name in os.listdir(share.tree) if not name.startswith(".")}
        for name in nodes:
            guest.ask(Opcode.RMDIR if name == "mkdir" else Opcode.UNLINK, name.encode() + b"\0")
        for name in ("chmod", "setxattr", "open to truncate"):
            opcode, body = _CHANGES[name]
            guest.ask(opcode, body(0, 0), nodes[name])
        handle = guest.open(nodes["write"], os.O_RDWR)
        guest.ask(Opcode.WRITE, struct.pack("=QQIIQII", handle, 0, 3, 0, 0, 1, 0) + b"new", nodes["write"])
        with pytest.raises(FileNotFoundError):
            guest.ask(Opcode.MKDIR, _CHANGES["mkdir"][1](0, 0), nodes["mkdir"])
        share.undo()
        assert _state(share.tree) == before
        assert not os.listdir(share.tree / "mkdir")
        assert all((share.tree / name).read_bytes() == b"precious" for name in nodes if name != "mkdir")
        assert not os.listxattr(share.tree / "setxattr")


def test_what_the_host_moves_out_of_the_directory_is_out_of_reach(share: Share, tmp_path: Path) -> None:
    """A guest's root may go on with any node that it has ever been told; root finds the object of one anywhere."""
    (share.tree / "d" / "inner").mkdir(parents=True)
    (share.tree / "d" / "file").write_bytes(b"once in the tree")
    (share.tree / "alone").write_bytes(b"once in the tree")
    guest = share.mounted()
    alone, directory = guest.lookup(b"alone"), guest.lookup(b"d")
    file, inner = guest.lookup(b"file", directory), guest.lookup(b"inner", directory)
    listing = guest.open_directory(directory)
    assert b"inner" in guest.list(directory, listing)

    (share.tree / "d").rename(tmp_path / "away")
    (share.tree / "alone").rename(tmp_path / "alone")
    (tmp_path / "away" / "secret").write_bytes(b"never in the tree")
    (tmp_path / "away" / "inner" / "secret").write_bytes(b"never in the tree")

    def is_out_of_reach() -> bool:
        return _errno(guest, Opcode.LOOKUP, b"secret\0", directory) == errno.ESTALE

    # (What was seen in the tree just now is taken to be there for a moment.)
    wait_until(is_out_of_reach, "that the guest is told nothing more of the directory")
    wait_until(lambda: _errno(guest, Opcode.LOOKUP, b"secret\0", inner) == errno.ESTALE, "that it is below that one")
    for node in (directory, inner, file, alone):
        assert _errno(guest, Opcode.GETATTR, bytes(16), node) == errno.ESTALE
        assert _errno(guest, Opcode.GETXATTR, struct.pack("=II", 0, 0) + b"user.x\0", node) == errno.ESTALE
    for node in (file, alone):
        for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_TRUNC):
            assert _errno(guest, Opcode.OPEN, struct.pack("=II", flags, 0), node) == errno.ESTALE
    for node in (directory, inner):
        assert _errno(guest, Opcode.OPENDIR, bytes(8), node) == errno.ESTALE
        for change in ("mkdir", "mknod", "symlink", "create", "tmpfile"):
            opcode, body = _CHANGES[change]
            assert _errno(guest, opcode, body(0, 0), node) in (errno.ESTALE, errno.ENOENT), change
    for opcode in (Opcode.READDIR, Opcode.READDIRPLUS):
        assert _errno(guest, opcode, guest.listing(listing), directory) == errno.ESTALE
    assert sorted(os.listdir(tmp_path / "away")) == ["file", "inner", "secret"]
    assert (tmp_path / "alone").read_bytes() == b"once in the tree"

    (tmp_path / "away").rename(share.tree / "back")
    assert guest.lookup(b"back") == directory
    assert guest.read(guest.lookup(b"file", directory)) == b"once in the tree"


def test_a_directory_that_is_moved_while_something_is_made_in_it(share: Share, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest's requests are worked on side by side: what is journalled is where it is."""
    (share.tree / "d").mkdir()
    before = _state(share.tree)
    one, other = share.mounted(), share.mounted()
    directory = one.lookup(b"d")
    other.lookup(b"d")
    place = NodeRegistry.place
    found, moved = threading.Event(), threading.Event()

    def late(objects: NodeRegistry, parent: int, dir_fd: int, name: bytes) -> Place:
        known = place(objects, parent, dir_fd, name)
        if name == b"new":
            found.set()
            moved.wait(SHORT)  # (It is not: that waits for what is being made.)
        return known

    monkeypatch.setattr(NodeRegistry, "place", late)

    def move() -> None:
        assert found.wait(LIMIT)
        other.ask(Opcode.RENAME, struct.pack("=Q", 1) + b"d\0moved\0")
        moved.set()

    mover = threading.Thread(target=move)
    mover.start()
    one.ask(Opcode.MKDIR, struct.pack("=II", 0o755, 0) + b"new\0", directory)
    mover.join()
    assert os.listdir(share.tree / "moved") == ["new"]
    share.undo()
    assert _state(share.tree) == before
    assert not os.listdir(share.tree / "d")


@pytest.mark.parametrize("change", ["open to truncate", "chmod", "setxattr", "removexattr"])
def test_a_file_that_is_moved_while_it_is_about_to_be_changed(
    share: Share, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    (share.tree / "d").mkdir()
    (share.tree / "d" / "file").write_bytes(b"precious")
    os.setxattr(share.tree / "d" / "file", "user.old", b"value")
    before, inner = _state(share.tree), _state(share.tree / "d")
    one, other = share.mounted(), share.mounted()
    directory = other.lookup(b"d")
    file = one.lookup(b"file", one.lookup(b"d"))
    moves = iter([(directory, b"file\0again\0"), (1, b"d\0moved\0")])
    located = NodeRegistry.located

    @contextmanager
    def late(objects: NodeRegistry, node: int, handle: int | None = None, **more: Any) -> Generator[LocatedNode]:
        with located(objects, node, handle, **more) as thing:
            if (move := next(moves, None)) is not None:
                other.ask(Opcode.RENAME, struct.pack("=Q", move[0]) + move[1], move[0])
            yield thing

    monkeypatch.setattr(NodeRegistry, "located", late)
    opcode, body = _CHANGES[change]
    one.ask(opcode, body(file, 0), file)
    assert next(moves, None) is None
    share.undo()
    assert (_state(share.tree), _state(share.tree / "d")) == (before, inner)
    assert (share.tree / "d" / "file").read_bytes() == b"precious"
    assert os.getxattr(share.tree / "d" / "file", "user.old") == b"value"


def test_what_a_guest_closes_while_it_is_written_to_is_not_written_elsewhere(
    share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of a closed descriptor is another file's at once."""
    for name in ("file", "other"):
        (share.tree / name).write_bytes(b"content")
    one, fine = share.mounted(), share.mounted()
    node = one.lookup(b"file")
    handle = one.open(node, os.O_RDWR)
    keep = files.RecordedFile.keep
    closes = iter([True])

    def late(file: files.RecordedFile, caller: Caller) -> None:
        keep(file, caller)
        if next(closes, False):
            before = file.fd
            file.close()
            fine.open(fine.lookup(b"other"), os.O_RDWR)
            assert os.path.samestat(os.fstat(before), os.stat(share.tree / "file"))

    monkeypatch.setattr(files.RecordedFile, "keep", late)
    _BY_HANDLE["write"](one, node, handle)
    assert (share.tree / "file").read_bytes() == b"lateent"
    assert (share.tree / "other").read_bytes() == b"content"
    assert _errno(one, Opcode.READ, one.listing(handle), node) == errno.EBADF


_BY_HANDLE: Final[dict[str, Callable[[Guest, int, int], object]]] = {
    "write": lambda guest, node, handle: guest.ask(
        Opcode.WRITE, struct.pack("=QQIIQII", handle, 0, 4, 0, 0, 1, 0) + b"late", node
    ),
    "fallocate": lambda guest, node, handle: guest.ask(
        Opcode.FALLOCATE, struct.pack("=QQQI4x", handle, 0, 9, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE), node
    ),
    "copy": lambda guest, node, handle: guest.ask(
        Opcode.COPY_FILE_RANGE, struct.pack("=7Q", handle, 0, node, handle, 4, 4, 0), node
    ),
    "truncate": lambda guest, node, handle: guest.ask(
        Opcode.SETATTR, struct.pack("=I4xQQQqqqIIIIIIII", 8 | 64, handle, 1, *[0] * 12), node
    ),
}


@pytest.mark.parametrize("change", _BY_HANDLE)
def test_what_is_open_while_its_step_is_taken_back_loses_nothing_that_came_back(share: Share, change: str) -> None:
    """As after a safeguard's denial: the guest goes on, with what it has open."""
    (share.tree / "file").write_bytes(b"precious" * 10)
    guest = share.mounted()
    node = guest.lookup(b"file")
    handle = guest.open(node, os.O_RDWR)
    _BY_HANDLE["write"](guest, node, handle)
    share.undo(force=True)
    share.begin()
    before = _state(share.tree)
    assert (share.tree / "file").read_bytes() == b"precious" * 10
    _BY_HANDLE[change](guest, node, handle)
    _BY_HANDLE["write"](guest, node, handle)
    assert (share.tree / "file").read_bytes() != b"precious" * 10
    share.undo(force=True)
    assert (share.tree / "file").read_bytes() == b"precious" * 10
    assert _state(share.tree) == before


def test_a_directory_that_was_removed_is_still_a_process_s(share: Share) -> None:
    (share.tree / "d").mkdir()
    guest = share.mounted()
    directory = guest.lookup(b"d")
    listing = guest.open_directory(directory)
    guest.ask(Opcode.RMDIR, b"d\0")
    assert not _errno(guest, Opcode.GETATTR, bytes(16), directory)
    assert not _errno(guest, Opcode.READDIR, guest.listing(listing), directory)


def test_the_directory_may_be_moved_as_a_whole(share: Share, tmp_path: Path) -> None:
    (share.tree / "d").mkdir()
    guest = share.mounted()
    directory = guest.lookup(b"d")
    for number in range(3):
        share.tree = share.tree.rename(tmp_path / f"elsewhere-{number}")
        (share.tree / "d" / f"{number}").write_bytes(b"there")
        assert guest.read(guest.lookup(b"%d" % number, directory)) == b"there"


def test_a_guest_that_knows_all_nodes_that_it_may_is_refused_further_ones(
    share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be told to forget any: to wait for that would be for ever."""
    defaults = NodeRegistry.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "most", 3)
    for name in ("a", "b", "c"):
        (share.tree / name).touch()
    guest = share.mounted()
    known = guest.lookup(b"a")
    guest.lookup(b"b")
    assert _errno(guest, Opcode.LOOKUP, b"c\0", 1) == errno.ENFILE
    assert guest.lookup(b"a") == known
    guest.tell(Opcode.FORGET, struct.pack("=Q", 2), known)
    guest.lookup(b"c")


def test_a_guest_copies_no_more_at_a_time_than_it_may_keep_a_thread_by(
    share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_MOST_COPIED", 5)
    (share.tree / "from").write_bytes(b"0123456789ab")
    (share.tree / "to").write_bytes(b"before")
    guest = share.mounted()
    source, target = guest.lookup(b"from"), guest.lookup(b"to")
    here, there = guest.open(source, os.O_RDONLY), guest.open(target, os.O_WRONLY)
    copied: list[int] = []
    while not copied or copied[-1]:
        at = sum(copied)
        body = struct.pack("=7Q", here, at, target, there, at, 1 << 62, 0)
        copied.append(struct.unpack_from("=I", guest.ask(Opcode.COPY_FILE_RANGE, body, source))[0])
    assert copied == [5, 5, 2, 0]
    assert (share.tree / "to").read_bytes() == b"0123456789ab"
    share.undo(force=True)
    assert (share.tree / "to").read_bytes() == b"before"


def test_attributes_that_nothing_would_bring_back_are_refused(share: Share) -> None:
    (share.tree / "file").touch()
    guest = share.mounted()
    file = guest.lookup(b"file")
    for name in (b"security.selinux", b"security.ima", b"security.evm"):
        for opcode, body in (
            (Opcode.SETXATTR, struct.pack("=II", 1, 0) + name + b"\0x"),
            (Opcode.REMOVEXATTR, name + b"\0"),
        ):
            guest.ask_later(opcode, body, file)
            assert guest.answer()[0] == errno.EOPNOTSUPP
    assert not [name for name in os.listxattr(share.tree / "file") if name != "security.selinux"]


def test_a_file_that_is_all_holes_and_still_open_does_not_keep_an_undo_for_days(share: Share) -> None:
    """(To read all of it, this would take half an hour.)"""
    (share.tree / "holes").write_bytes(b"content")
    guest = share.mounted()
    file = guest.lookup(b"holes")
    guest.open(file, os.O_RDWR)
    guest.ask(Opcode.SETATTR, struct.pack("=I4xQQQqqqIIIIIIII", 8, 0, 1 << 41, *[0] * 7, 0, 0, 0, 0, 0), file)
    share.undo(force=True)
    assert (share.tree / "holes").read_bytes() == b"content"


def _errno(guest: Guest, opcode: int, body: bytes, node: int) -> int:
    guest.ask_later(opcode, body, node)
    return guest.answer()[0]


def _state(tree: Path) -> list[tuple[str, int, int, int, int]]:
    return [
        (path.name, found.st_mode, found.st_size, found.st_mtime_ns, found.st_nlink)
        for path in sorted(tree.iterdir())
        for found in (path.lstat(),)
    ]
