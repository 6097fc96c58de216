"""What a client does in a mount so that its kernel says everything it can, and sees that the answers have arrived."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import select
import signal
import socket
import stat
import struct
from collections.abc import Callable

libc = ctypes.CDLL(None, use_errno=True)
NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
PUNCH_HOLE, KEEP_SIZE = 2, 1
GETFLAGS = 0x80086601
TIMES = (1_000_000_000_000_000_001, -5_000_000_000)


class Control:
    """Asks the server for what no system call asks for."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rw")

    def __call__(self, *order: object) -> str:
        self._file.write(json.dumps(order) + "\n")
        self._file.flush()
        return self._file.readline().strip()

    def speaks(self, minor: int) -> bool:
        """Whether the kernel knows what came with this version."""
        return int(self("minor")) >= minor


def fails(number: int, call: Callable[..., object], *arguments: object) -> None:
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno == number, error
    else:
        raise AssertionError(f"no {errno.errorcode[number]}")


def put(path: str, content: bytes) -> None:
    with open(path, "wb", buffering=0) as file:
        assert file.write(content) == len(content)


def got(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def rename2(old: str, new: str, flags: int) -> None:
    checked(libc.renameat2(-100, old.encode(), -100, new.encode(), flags))


def entries(ask: Control) -> None:
    os.mkdir("d", 0o777)
    assert stat.S_IMODE(os.stat("d").st_mode) == 0o755
    put("d/a", b"first")
    assert got("d/a") == b"first"
    os.symlink("d/a", "link")
    assert os.readlink("link") == "d/a"
    assert got("link") == b"first"
    os.link("d/a", "hard")
    assert os.stat("hard").st_nlink == 2
    os.mkfifo("pipe", 0o600)
    os.mknod("device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    assert os.stat("device").st_rdev == os.makedev(1, 3)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    os.mknod("plain", stat.S_IFREG | 0o640)
    fails(errno.EEXIST, os.mkdir, "d")
    fails(errno.ENOENT, os.stat, "none")
    fails(errno.ENAMETOOLONG, os.stat, "n" * 300)
    put("n" * 255, b"")
    put("d/\xff\n ü", b"any bytes")
    os.rename("hard", "d/moved")
    put("d/b", b"second")
    fails(errno.EEXIST, rename2, "d/a", "d/b", NOREPLACE)
    rename2("plain", "d/plain", NOREPLACE)
    rename2("d/plain", "plain", NOREPLACE)
    rename2("d/a", "d/b", EXCHANGE)
    assert got("d/b") == b"first"
    rename2("d/b", "d/c", WHITEOUT)
    assert stat.S_ISCHR(os.stat("d/b").st_mode)
    assert sorted(os.listdir("d")) == ["a", "b", "c", "moved", "\xff\n ü"]
    os.unlink("d/c")
    fails(errno.ENOTEMPTY, os.rmdir, "d")
    os.mkdir("e")
    os.rmdir("e")
    os.chdir("d")
    os.chdir("..")
    assert os.access("d/a", os.R_OK | os.W_OK)
    status = os.statvfs(".")
    assert (status.f_blocks, status.f_ffree, status.f_namemax) == (1000, 60, 255)


def attributes(ask: Control) -> None:
    put("f", b"x" * 5000)
    os.chmod("f", 0o6755)
    os.chown("f", 5, -1)
    os.chown("f", -1, 6)
    os.chmod("f", 0o6755)
    os.truncate("f", 10)
    os.utime("f", ns=TIMES)
    assert (os.stat("f").st_atime_ns, os.stat("f").st_mtime_ns) == TIMES
    os.utime("f")
    with open("f", "r+b", buffering=0) as file:
        os.ftruncate(file.fileno(), 3)
        os.fchmod(file.fileno(), 0o4711)
        assert os.fstat(file.fileno()).st_size == 3
        file.write(b"new")
    os.truncate("f", 0)
    with open("f", "wb"):
        pass
    result = ctypes.create_string_buffer(256)
    checked(libc.statx(-100, b"f", 0, 0xFFF, result))
    mask = struct.unpack_from("=I", result)[0]
    if mask & 0x800:
        assert struct.unpack_from("=qI", result, 0x50) == (1234567890, 5)


def content(ask: Control) -> None:
    with open("data", "w+b", buffering=0) as file:
        file.write(b"A" * 4096)
        file.seek(3 * 4096)
        file.write(b"B" * 100)
        os.fsync(file.fileno())
        os.fdatasync(file.fileno())
        os.posix_fallocate(file.fileno(), 0, 5 * 4096)
        checked(libc.fallocate(file.fileno(), PUNCH_HOLE | KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(4096)))
        assert os.lseek(file.fileno(), 0, os.SEEK_DATA) == 3 * 4096
        assert os.lseek(file.fileno(), 3 * 4096, os.SEEK_HOLE) == 4 * 4096
        fails(errno.ENXIO, os.lseek, file.fileno(), 1 << 40, os.SEEK_DATA)
        fails(errno.ENXIO, os.lseek, file.fileno(), -1, os.SEEK_HOLE)
        assert os.lseek(file.fileno(), 0, os.SEEK_END) == 5 * 4096
        with mmap.mmap(file.fileno(), 4096) as view:
            view[:6] = b"mapped"
            view.flush()
        assert os.pread(file.fileno(), 6, 0) == b"mapped"
        with open("copy", "wb", buffering=0) as other:
            assert os.copy_file_range(file.fileno(), other.fileno(), 4096, 0, 100) == 4096
        checked(libc.syncfs(file.fileno()))
        fails(errno.ENOTTY, fcntl.ioctl, file.fileno(), GETFLAGS, bytes(8))
    assert got("copy")[100:106] == b"mapped"
    with open("copy", "ab", buffering=0) as file:
        file.write(b"end")
    assert got("copy")[-3:] == b"end"
    direct = os.open("copy", os.O_RDONLY | os.O_DIRECT)
    with mmap.mmap(-1, 4096) as buffer:
        assert os.readv(direct, [buffer]) == 4096
    os.close(direct)
    directory = os.open(".", os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def unnamed(ask: Control) -> None:
    if ask.speaks(37):
        file = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
        os.write(file, b"named later")
        checked(libc.linkat(-100, f"/proc/self/fd/{file}".encode(), -100, b"named", 0x400))
        os.close(file)
        assert got("named") == b"named later"
    file = os.open("gone", os.O_CREAT | os.O_RDWR | os.O_EXCL)
    os.unlink("gone")
    os.write(file, b"still")
    assert os.pread(file, 9, 0) == b"still"
    os.close(file)


def xattrs(ask: Control) -> None:
    put("x", b"")
    os.setxattr("x", "user.a", b"one")
    fails(errno.EEXIST, os.setxattr, "x", "user.a", b"two", os.XATTR_CREATE)
    os.setxattr("x", "user.b", b"")
    assert os.getxattr("x", "user.a") == b"one"
    assert checked(libc.getxattr(b"x", b"user.a", None, 0)) == 3
    assert checked(libc.listxattr(b"x", None, 0)) == 14
    assert os.listxattr("x") == ["user.a", "user.b"]
    os.removexattr("x", "user.a")
    fails(errno.ENODATA, os.getxattr, "x", "user.a")
    os.setxattr("x", "user." + "n" * 250, b"v" * 300)


def groups(ask: Control) -> None:
    os.mkdir("shared")
    os.chown("shared", 0, 4321)
    os.setgroups([1234, 4321])
    put("shared/f", b"")
    assert os.stat("shared/f").st_gid == (4321 if ask.speaks(38) else 0)
    os.mkdir("shared/d")
    os.symlink("t", "shared/l")
    os.mknod("shared/n", stat.S_IFREG | 0o600)


def locks(ask: Control) -> None:
    def other_process(wants: int, start: int) -> int:
        child = os.fork()
        if child == 0:
            try:
                with open("locked", "r+b", buffering=0) as file:
                    fcntl.lockf(file, wants, 5, start)
            except OSError as error:
                os._exit(error.errno or 1)
            os._exit(0)
        return child

    put("locked", b"0123456789")
    with open("locked", "r+b", buffering=0) as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 5, 2)
        taken = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 4, 0)
        assert struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, taken))[0] == fcntl.F_UNLCK
        other = other_process(fcntl.LOCK_EX | fcntl.LOCK_NB, 0)
        assert os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]) == errno.EAGAIN
        other = other_process(fcntl.LOCK_EX, 0)
        assert ask("wait for a lock") == "ok"
        fcntl.lockf(file, fcntl.LOCK_UN, 5, 2)
        assert os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]) == 0
    with open("locked", "rb") as file, open("locked", "rb") as second:
        fcntl.flock(file, fcntl.LOCK_EX)
        fails(errno.EAGAIN, fcntl.flock, second, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_UN)
        fcntl.flock(second, fcntl.LOCK_SH)


def listing(ask: Control) -> None:
    assert ask("fill", "many", 1000) == "ok"
    with os.scandir("many") as found:
        assert sum(entry.stat().st_size for entry in found) == 3000
    with os.scandir("many") as found:
        assert len(list(found)) == 1000
    os.mkdir("few")
    for name in ("one", "two", "three"):
        put(f"few/{name}", b"")
    for _ in range(2):
        assert sorted(os.listdir("few")) == ["one", "three", "two"]


def interruptions(ask: Control) -> None:
    class Disturbed(Exception):
        pass

    def disturbed(_number: int, _frame: object) -> None:
        raise Disturbed

    signal.signal(signal.SIGUSR1, disturbed)
    assert ask("put", "slow", "never read") == "ok"
    file = os.open("slow", os.O_RDONLY)
    try:
        os.read(file, 10)
        raise AssertionError("it was answered")
    except Disturbed:
        pass
    os.close(file)
    if ask.speaks(40):
        assert ask("put", "resent", "asked twice") == "ok"
        assert got("resent") == b"asked twice"


def waiting(ask: Control) -> None:
    put("watched", b"")
    file = os.open("watched", os.O_RDONLY)
    poll = select.poll()
    poll.register(file, select.POLLIN)
    assert poll.poll() == [(file, select.POLLIN)]
    os.close(file)


def notifications(ask: Control) -> None:
    os.mkdir("n")
    put("n/f", b"before")
    assert got("n/f") == b"before"
    assert ask("put", "n/f", "after!") == "ok"
    assert got("n/f") == b"before"  # remembered
    assert ask("inval_inode", "n/f", 0, 0) == "ok"
    assert got("n/f") == b"after!"
    assert ask("put", "n/g", "made elsewhere") == "ok"
    fails(errno.ENOENT, os.stat, "n/h")
    assert ask("put", "n/h", "also") == "ok"
    fails(errno.ENOENT, os.stat, "n/h")
    assert ask("inval_entry", "n", "h", False) == "ok"
    assert got("n/h") == b"also"
    assert ask("drop", "n/h") == "ok"
    assert os.path.exists("n/h")
    assert ask("inval_entry", "n", "h", True) == "ok"
    assert not os.path.exists("n/h")
    assert ask("store", "n/f", 2, "XY") == "ok"
    assert got("n/f") == b"afXYr!"
    assert ask("retrieve", "n/f", 0, 6) == "ok"
    assert ask("retrieved") == "afXYr!"
    assert os.path.exists("n/f")
    assert ask("delete", "n", "f") == "ok"
    assert not os.path.exists("n/f")
    assert ask("inval_entry", "n", "unheard of", False) == "ENOENT"
    assert os.path.exists("n/g")
    assert ask("drop", "n/g") == "ok"
    assert ask("new_epoch") == "ok" if ask.speaks(44) else ask("inval_entry", "n", "g", False) == "ok"
    assert not os.path.exists("n/g")


def forgetting(ask: Control) -> None:
    assert ask("inval_entry", "", "many", False) == "ok"
    assert ask("wait for forgets", 100) == "ok"
    if ask.speaks(45):
        put("pruned", b"")
        assert ask("prune", "pruned") == "ok"
        assert ask("wait for forgets of", "pruned") == "ok"


def passthrough(ask: Control) -> None:
    if not ask.speaks(40):
        return
    assert ask("put", "through", "from the server") == "ok"
    assert got("through") == b"from below"
    with open("through", "r+b", buffering=0) as file:
        file.write(b"written")
    assert ask("below") == "writtenlow"


PLAIN = (entries, attributes, content, xattrs, listing)
EVERYTHING = (*PLAIN, unnamed, groups, locks, interruptions, waiting, notifications, forgetting)


def run(parts: tuple[Callable[[Control], None], ...], connection: socket.socket) -> None:
    """In the mount, which is the working directory. Raises whatever goes wrong."""
    os.umask(0o022)
    ask = Control(connection)
    for part in parts:
        part(ask)
