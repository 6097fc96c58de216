"""Records the system calls of a whole process that change files, its database included, as a `Recording`.

`strace` sees every one of them, also those of SQLite.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

from holdfast.testing.syscall_recording import Recording, Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

CALLS = (
    "open,openat,creat,write,pwrite64,lseek,fsync,fdatasync,sync,syncfs,ftruncate,truncate,fallocate,rename,renameat,"
    "renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat,symlink,symlinkat,link,linkat,fchmod,mmap,writev,pwritev,"
    "copy_file_range,sendfile,ioctl"
)
"""All calls that this module understands, or must find unused on recorded files."""

_LINE = re.compile(rb"(\d+) +(\w+)\((.*)\) += (-?\w+)(?:<([^>]*)>)?")
_UNFINISHED = re.compile(rb"(\d+) +(\w+)\((.*?)(?:, )? *<unfinished \.\.\.>$")
_RESUMED = re.compile(rb"(\d+) +<\.\.\. (\w+) resumed>(?:, )?(.*)$")
_HEX = re.compile(rb"\\x([0-9a-f]{2})")


def can_trace() -> bool:
    """True if there is a `strace` that may trace a child here."""
    if shutil.which("strace") is None:
        return False
    tried = subprocess.run(
        ["strace", "-f", "-o", os.devnull, "-e", "trace=none", "true"], capture_output=True, check=False
    )
    return tried.returncode == 0


def record(command: Sequence[str], root: str, start: str, trace: str) -> Recording:
    """Run ``command`` and record its changes below ``root``, of which ``start`` is a copy. It is one process, with the
    umask 022. ``trace`` is a file for the raw trace. Raises `AssertionError` if it fails, or makes changes that cannot
    be rebuilt.
    """
    options = ["-f", "-o", trace, "-xx", "-y", "-s", str(1 << 25), "-e", f"trace={CALLS}"]
    there = {os.path.join(at, name) for at, down, files in os.walk(os.fsencode(root)) for name in (*down, *files)}
    done = subprocess.run(["strace", *options, *command], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    parser = _Parser(os.fsencode(root), there)
    with open(trace, "rb") as lines:
        for line in _whole_lines(lines):
            parser.feed(line)
    return Recording(os.fsencode(root), os.fsencode(start), parser.steps, parser.marks)


def _whole_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Puts calls together that another thread interrupted; they count from where they ended."""
    begun: dict[bytes, bytes] = {}
    for line in lines:
        line = line.rstrip(b"\n")
        if found := _UNFINISHED.match(line):
            begun[found[1]] = found[3]
        elif found := _RESUMED.match(line):
            before = begun.pop(found[1])
            rest = found[3]
            joined = before + (b"" if not before or rest.startswith(b")") else b", ") + rest
            yield found[1] + b" " + found[2] + b"(" + joined
        else:
            yield line


class _Parser:
    def __init__(self, root: bytes, there: set[bytes]) -> None:
        self._root = root
        self._there = there
        self._offsets: dict[bytes, int] = {}
        self.steps: list[Step] = []
        self.marks: list[tuple[int, str]] = []

    def feed(self, line: bytes) -> None:
        found = _LINE.match(line)
        if found is None or found[4].startswith(b"-") or found[4] == b"?":
            return
        call, result = found[2], found[4]
        arguments = found[3].split(b", ")
        if call in (b"write", b"pwrite64") and self._mark(call, arguments):
            return
        self._call(call, arguments, result, found[5])

    def _mark(self, call: bytes, arguments: list[bytes]) -> bool:
        if not arguments[0].startswith(b"1<") or call != b"write":
            return False
        text = _text(arguments[1])
        if text.startswith(b"MARK "):
            self.marks.append((len(self.steps), text[5:].decode().strip()))
        return True

    def _call(self, call: bytes, arguments: list[bytes], result: bytes, opened: bytes | None) -> None:
        if call in (b"open", b"openat", b"creat"):
            self._open(arguments, result, opened)
        elif call in (b"write", b"pwrite64"):
            self._write(call, arguments, int(result))
        elif call == b"lseek":
            self._offsets[_number(arguments[0])] = int(result)
        elif call in (b"fsync", b"fdatasync"):
            self._add("sync", _fd_path(arguments[0]))
        elif call in (b"sync", b"syncfs"):
            self.steps.append(Step("sync all", b""))
        elif call == b"ftruncate":
            self._add("truncate", _fd_path(arguments[0]), offset=int(arguments[1]))
        elif call == b"fchmod":
            self._add("chmod", _fd_path(arguments[0]), mode=int(arguments[1], 8))
        elif call in (b"rename", b"renameat", b"renameat2", b"link", b"linkat"):
            source, rest = _at(arguments)
            target, rest = _at(rest)
            exchange = call == b"renameat2" and b"RENAME_EXCHANGE" in rest[0]
            name = "link" if call.startswith(b"link") else "exchange" if exchange else "rename"
            self._add(name, source, target=target)
        elif call in (b"unlink", b"unlinkat", b"rmdir"):
            self._add("remove", _at(arguments)[0])
        elif call in (b"mkdir", b"mkdirat"):
            path, rest = _at(arguments)
            self._add("mkdir", path, mode=int(rest[0], 8) & ~0o022)
        elif call in (b"symlink", b"symlinkat"):
            self._add("symlink", _at(arguments[1:])[0], data=_text(arguments[0]))
        else:
            self._refuse(call, arguments)

    def _open(self, arguments: list[bytes], result: bytes, opened: bytes | None) -> None:
        path, rest = _at(arguments)
        self._offsets[result] = 0
        if opened is None or self._inside(path) is None:
            return
        if b"O_TMPFILE" in rest[0]:
            return
        if b"O_CREAT" in rest[0] and path not in self._there:
            self._add("create", path, mode=int(rest[1], 8) & ~0o022)
        elif b"O_TRUNC" in rest[0]:
            self._add("truncate", path, offset=0)

    def _write(self, call: bytes, arguments: list[bytes], done: int) -> None:
        number, path = _number(arguments[0]), _fd_path(arguments[0])
        data = _text(arguments[1])[:done]
        if call == b"pwrite64":
            self._add("write", path, offset=int(arguments[3]), data=data)
            return
        at = self._offsets.get(number, 0)
        self._offsets[number] = at + done
        self._add("write", path, offset=at, data=data)

    def _refuse(self, call: bytes, arguments: list[bytes]) -> None:
        if call == b"mmap":
            shared = b"MAP_SHARED" in arguments[3] and b"PROT_WRITE" in arguments[2]
            path = _fd_path(arguments[4])
            assert not shared or self._inside(path) is None or path.endswith(b"-shm"), path
            return
        if call == b"ioctl" and b"FICLONE" not in arguments[1]:
            return
        if call == b"fallocate" and _fd_path(arguments[0]).endswith((b"-shm", b"/ballast")):
            return  # room, and nothing that is ever read back
        paths = [_fd_path(argument) for argument in arguments if b"<" in argument]
        assert all(self._inside(path) is None for path in paths), (call, arguments)

    def _add(
        self, name: str, path: bytes, *, target: bytes = b"", offset: int = 0, data: bytes = b"", mode: int = 0
    ) -> None:
        inner = self._inside(path)
        if inner is None or inner.endswith(b"-shm"):
            return  # the shared memory of SQLite is made anew after a crash
        self.steps.append(Step(name, inner, self._inside(target) or b"", offset, data, mode))
        if name in ("create", "mkdir", "symlink"):
            self._there.add(path)
        elif name == "remove":
            self._there.discard(path)
        elif name in ("rename", "link"):
            if name == "rename":
                self._there.discard(path)
            self._there.add(target)

    def _inside(self, path: bytes) -> bytes | None:
        if path.endswith(b" (deleted)") or b"/#" in path:
            return None
        if path == self._root:
            return b""
        return path[len(self._root) + 1 :] if path.startswith(self._root + b"/") else None


def _text(argument: bytes) -> bytes:
    return bytes.fromhex(b"".join(_HEX.findall(argument)).decode())


def _number(argument: bytes) -> bytes:
    return argument.partition(b"<")[0]


def _fd_path(argument: bytes) -> bytes:
    return _text(argument.partition(b"<")[2]) if b"<" in argument else b""


def _at(arguments: list[bytes]) -> tuple[bytes, list[bytes]]:
    """The path that the first one or two arguments name, and the other arguments."""
    if arguments[0].startswith(b'"'):
        return _text(arguments[0]), arguments[1:]
    return os.path.normpath(os.path.join(_fd_path(arguments[0]), _text(arguments[1]))), arguments[2:]
