"""A program that tries every way to change what lies in a directory, and says what came of each."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

PROGRAM = r"""
import ctypes, errno, fcntl, json, mmap, os, socket, struct, sys
d, said = sys.argv[1], {}
libc = ctypes.CDLL(None, use_errno=True)
f, absent, empty, here = d + "/file", d + "/absent", d + "/empty", os.getcwd()
up = os.path.relpath(d)  # by way of ..
os.symlink(d, "link"); os.symlink(f, "to-file"); os.symlink(absent, "to-absent")
for name in ("mine", "over"):
    open(name, "w").close()
os.mkdir("own")

def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result

def attempt(name, act):
    try:
        act()
        said[name] = "done"
    except OSError as error:
        said[name] = errno.errorcode[error.errno]

def opening(path, flags):
    return lambda: os.close(os.open(path, flags, 0o644))

def reading(act, path=f, flags=os.O_RDONLY):
    def acting():
        fd = os.open(path, flags)
        try:
            act(fd)
        finally:
            os.close(fd)
    return acting

def bind(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)

def mapped():
    fd = os.open(f, os.O_RDWR)
    with mmap.mmap(fd, 1) as memory:
        memory[0] = 88

def setting_flags(fd):
    fcntl.ioctl(fd, 0x40086602, struct.pack("q", 0x80))

def handle():
    found = ctypes.create_string_buffer(struct.pack("Ii", 120, 0), 128)
    mount = ctypes.c_int()
    if libc.name_to_handle_at(-100, f.encode(), found, ctypes.byref(mount), 0):
        raise OSError(errno.EROFS, "none to be had here")
    top = os.open(d, os.O_RDONLY)
    try:
        check(libc.open_by_handle_at(top, found, os.O_RDWR))
    except PermissionError:
        raise OSError(errno.EROFS, "for root alone")

def openat2(directory, path, flags, resolve):
    how = struct.pack("QQQ", flags, 0o600 if flags & os.O_CREAT else 0, resolve)
    os.close(check(libc.syscall(437, directory, path.encode(), how, 24)))

def in_child(act):
    def acting():
        reader, writer = os.pipe()
        if not (pid := os.fork()):
            number = 0
            try:
                act()
            except OSError as error:
                number = error.errno
            finally:
                os.write(writer, struct.pack("i", number))
                os._exit(0)
        (number,) = struct.unpack("i", os.read(reader, 4))
        os.waitpid(pid, 0)
        if number:
            raise OSError(number, "")
    return acting

def moved_root():
    if libc.unshare(0x10000000):  # a user namespace
        raise OSError(errno.EROFS, "none to be had here")
    os.chroot(os.path.dirname(d))
    open("/" + os.path.basename(d) + "/file", "w").close()

def mounting():
    libc.unshare(0x10020000)  # and one of mounts
    check(libc.mount(d.encode(), (here + "/own").encode(), None, 4096, None))

for way, at in (("", f), ("link ", "link/file"), ("to-file ", "to-file"), ("up ", up + "/file")):
    for flags in ("O_WRONLY", "O_RDWR", "O_APPEND", "O_TRUNC"):
        wanted = getattr(os, flags) | (os.O_WRONLY if flags == "O_APPEND" else 0)
        attempt(f"{way}open {flags}", opening(at, wanted))
    attempt(way + "chmod", lambda: os.chmod(at, 0o777))
    attempt(way + "truncate", lambda: os.truncate(at, 1))
for way, at in (("", absent), ("link ", "link/absent"), ("to-absent ", "to-absent"), ("up ", up + "/absent")):
    attempt(way + "create", opening(at, os.O_WRONLY | os.O_CREAT))
    attempt(way + "create to read", opening(at, os.O_RDONLY | os.O_CREAT))
attempt("create exclusively", opening(absent, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
attempt("O_TMPFILE", opening(d, os.O_WRONLY | os.O_TMPFILE))
attempt("pipe", opening(d + "/pipe", os.O_RDWR))
attempt("openat", lambda: os.open("file", os.O_WRONLY, dir_fd=os.open(d, os.O_RDONLY)))
for name, resolve in (("beneath", 8), ("in root", 16), ("any way", 0)):
    top = os.open(d, os.O_PATH)
    attempt("openat2 " + name, lambda: openat2(top, "file", os.O_WRONLY, resolve))
    attempt("openat2 " + name + " create", lambda: openat2(top, "absent", os.O_WRONLY | os.O_CREAT, resolve))
attempt("by handle", handle)
attempt("mmap", mapped)
for name, number in (("read", os.O_RDONLY), ("path", os.O_PATH)):
    attempt(name + " reopened", reading(lambda fd: os.open(f"/proc/self/fd/{fd}", os.O_RDWR), flags=number))
    attempt(name + " chmod", reading(lambda fd: os.chmod(f"/proc/self/fd/{fd}", 0o777), flags=number))
attempt("through cwd", lambda: (os.chdir(d), open("/proc/self/cwd/file", "w")))
attempt("in cwd", lambda: os.unlink("file"))
attempt("cwd chmod", lambda: os.chmod(".", 0o777))
os.chdir(here)
attempt("fchmod", reading(lambda fd: os.fchmod(fd, 0o777)))
attempt("fchown", reading(lambda fd: os.fchown(fd, os.getuid(), os.getgid())))
attempt("chown", lambda: os.chown(f, os.getuid(), os.getgid()))
attempt("lchown", lambda: os.lchown(d + "/points", os.getuid(), os.getgid()))
attempt("utime", lambda: os.utime(f, (1, 1)))
attempt("utime link", lambda: os.utime(d + "/points", (1, 1), follow_symlinks=False))
attempt("futimens", reading(lambda fd: os.utime(fd, (1, 1))))
attempt("setxattr", lambda: os.setxattr(f, "user.a", b"1"))
attempt("fsetxattr", reading(lambda fd: os.setxattr(fd, "user.a", b"1")))
attempt("removexattr", lambda: os.removexattr(f, "user.a"))
attempt("flags", reading(setting_flags))
attempt("mkdir", lambda: os.mkdir(absent))
attempt("link mkdir", lambda: os.mkdir("link/absent"))
attempt("mkfifo", lambda: os.mkfifo(absent))
attempt("mknod", lambda: os.mknod(absent))
attempt("symlink", lambda: os.symlink("x", absent))
attempt("bind", lambda: bind(absent))
attempt("bind up", lambda: bind(up + "/absent"))
attempt("bind link", lambda: bind("link/absent"))
attempt("unlink", lambda: os.unlink(f))
attempt("up unlink", lambda: os.unlink(up + "/file"))
attempt("link unlink", lambda: os.unlink("link/file"))
attempt("rmdir", lambda: os.rmdir(empty))
attempt("rename in", lambda: os.rename("mine", absent))
attempt("rename over", lambda: os.rename("mine", f))
attempt("rename out", lambda: os.rename(f, "out"))
attempt("rename out over", lambda: os.rename(f, "over"))
attempt("rename within", lambda: os.rename(f, absent))
attempt("exchange", lambda: check(libc.renameat2(-100, b"mine", -100, f.encode(), 2)))
attempt("link in", lambda: os.link("mine", absent))
attempt("link within", lambda: os.link(f, absent))
attempt("the directory: chmod", lambda: os.chmod(d, 0o777))
attempt("the directory: utime", lambda: os.utime(d, (1, 1)))
attempt("the directory: setxattr", lambda: os.setxattr(d, "user.a", b"1"))
attempt("the directory: rename", lambda: os.rename(d, d + ".moved"))
attempt("the directory: moved in", lambda: os.rename(d, "stolen"))
attempt("the directory: rmdir", lambda: os.rmdir(d))
attempt("what it is in: rename", lambda: os.rename(os.path.dirname(d), os.path.dirname(d) + ".moved"))
attempt("another root", in_child(moved_root))
bad = {name: number for name, number in said.items() if number != "EROFS"}
said.clear()
attempt("link out", lambda: os.link(f, "out"))
attempt("link out over", lambda: os.link(f, "over"))
attempt("mkdir again", lambda: os.mkdir(empty))
attempt("create again", opening(f, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
attempt("read", opening(f, os.O_RDONLY))
attempt("read or create", opening(f, os.O_RDONLY | os.O_CREAT))
attempt("list", lambda: os.listdir("link"))
attempt("own", opening("mine", os.O_WRONLY))
attempt("mount", in_child(mounting))
print(json.dumps([bad, said]))
"""

ANSWERS = {
    "link out": "EXDEV",
    "link out over": "EEXIST",
    "mkdir again": "EEXIST",
    "create again": "EEXIST",
    "read": "done",
    "read or create": "done",
    "list": "done",
    "own": "done",
    "mount": "EPERM",
}
"""What is not EROFS."""


def furnish(directory: Path) -> Path:
    """Make the directory that is tried."""
    (directory / "empty").mkdir(parents=True)
    (directory / "file").write_bytes(b"content")
    os.symlink("file", directory / "points")
    os.mkfifo(directory / "pipe")
    return directory


def command(directory: Path) -> str:
    """The program, for a shell."""
    return shlex.join([sys.executable, "-c", PROGRAM, str(directory)])


def judge(printed: str) -> None:
    """Fail unless everything was refused as it should be."""
    refused: Any
    refused, other = json.loads(printed)
    assert refused == {}, "neither done nor refused otherwise"
    assert other == ANSWERS
