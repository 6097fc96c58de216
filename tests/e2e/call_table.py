"""A table of system calls with their flags and errors, to be made in trees that are equal, and compared."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from pathlib import Path
from platform import machine
from typing import Final

from holdfast.supervisor.syscalls.table import ARCHITECTURES
from holdfast.testing.tree_state import PathState

PRELUDE: Final = """
import ctypes, errno, fcntl, json, os, socket, stat, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
NUMBERS = json.loads(sys.argv[1])
CWD = -100
RDONLY, WRONLY, RDWR, CREAT, EXCL, TRUNC = os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_EXCL, os.O_TRUNC
APPEND, DIRECTORY, NOFOLLOW, TMPFILE = os.O_APPEND, os.O_DIRECTORY, os.O_NOFOLLOW, os.O_TMPFILE
NONBLOCK, PATH = os.O_NONBLOCK, os.O_PATH
PAGE = os.sysconf("SC_PAGE_SIZE")
out = []

def raw(name, *arguments):
    passed = [ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_long(a) for a in arguments]
    for _ in range(100):
        value = libc.syscall(ctypes.c_long(NUMBERS[name]), *passed)
        # (By a rename or a mount anywhere, a way up may have been unsure.)
        if name != "openat2" or value >= 0 or ctypes.get_errno() != errno.EAGAIN:
            break
    return value if value >= 0 else -ctypes.get_errno()

def say(*what):
    out.append(" ".join(map(str, what)))

def described(name, arguments):
    # Without addresses and what may hold one: they differ.
    return name + str([str(a)[:50] if isinstance(a, bytes) and b"\\0" not in a else a
                       if isinstance(a, int) and abs(a) < 1 << 32 else "" for a in arguments])

def call(name, *arguments):
    if name not in NUMBERS:
        return None
    value = raw(name, *arguments)
    say(described(name, arguments), errno.errorcode[-value] if value < 0 else value)
    return value

def opened(name, *arguments, write=b"written"):
    # The same for a call that returns a descriptor, which is written to and closed.
    if name not in NUMBERS:
        return
    fd = raw(name, *arguments)
    say(described(name, arguments), errno.errorcode[-fd] if fd < 0 else "opened")
    if fd >= 0:
        # (O_NOFOLLOW means nothing to a descriptor, but the kernel keeps it.)
        say(oct(fcntl.fcntl(fd, fcntl.F_GETFL) & ~NOFOLLOW), fcntl.fcntl(fd, fcntl.F_GETFD), oct(os.fstat(fd).st_mode))
        if write and stat.S_ISREG(os.fstat(fd).st_mode):
            try:
                os.write(fd, write)
            except OSError as error:
                say(error.errno)
        os.close(fd)

def attempt(work, *arguments, **options):
    try:
        value = work(*arguments, **options)
    except OSError as error:
        say(sys._getframe(1).f_lineno, errno.errorcode[error.errno])
        return None
    say(sys._getframe(1).f_lineno, value if isinstance(value, (int, bytes, str)) else "done")
    return value

def forked(work):
    pid = os.fork()
    if not pid:
        try:
            work()
        finally:
            print(*out, sep="\\n", flush=True)
            os._exit(0)
    say("ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

def execute(script):
    # What is known of this process must not outlive it. (A subshell would be another one.)
    call("mkdirat", CWD, b"known before", 0o700)
    print(*out, sep="\\n", flush=True)
    os.execvp("sh", ["sh", "-c", "{ %s; } 2>/dev/null || echo refused" % script])

def how(flags, mode=0, resolve=0):
    return struct.pack("QQQ", flags, mode, resolve)
"""

SCRIPTS: Final = {
    "open": """
for name, at in (("open", ()), ("openat", (CWD,))):
    for path in (b"file", b"new", b"dir", b"dir/new", b"missing/x", b"file/x", b"link", b"dangling", b"loop", b"to-dir",
                 b"to-dir/in", b"", b"file/", b"dir/", b".", b"..", b"fifo", b"../out/x", b"../out/new", b"x" * 300):
        for flags in (WRONLY, RDWR, WRONLY | APPEND, WRONLY | TRUNC, RDONLY | TRUNC, WRONLY | NOFOLLOW,
                      WRONLY | DIRECTORY, RDWR | CREAT | EXCL, WRONLY | CREAT | os.O_CLOEXEC, WRONLY | CREAT | NOFOLLOW,
                      CREAT | DIRECTORY, CREAT, CREAT | TRUNC | RDWR, WRONLY | PATH, 3, 3 | TRUNC):
            if name == "openat" or flags in (WRONLY, RDWR | CREAT | EXCL, RDONLY | TRUNC):
                opened(name, *at, path, flags | NONBLOCK, 0o4671)
    opened(name, *at, 1, WRONLY, 0)
opened("openat", 99, b"file", WRONLY, 0)
opened("openat", 99, os.fsencode(os.path.abspath("file")), WRONLY, 0)
d, f = os.open("dir", RDONLY), os.open("file", RDONLY)
opened("openat", d, b"in", WRONLY, 0)
opened("openat", d, b"made", WRONLY | CREAT, 0o600)
opened("openat", d, b"../file", WRONLY | APPEND, 0)
opened("openat", f, b"x", WRONLY, 0)
opened("openat", f, b"", WRONLY, 0)
for path in (b"created", b"file", b"dir", b"missing/x", b"dangling"):
    opened("creat", path, 0o640)
opened("openat", CWD, b"dir", TMPFILE | RDWR, 0o600)
opened("openat", CWD, b"file", TMPFILE | RDWR, 0o600)
opened("openat", CWD, b"dir", TMPFILE | RDONLY, 0o600)
for number in (f, d, 99):
    for flags in (WRONLY, RDWR | TRUNC, WRONLY | CREAT):
        opened("openat", CWD, b"/proc/self/fd/%d" % number, flags, 0)
        opened("openat", CWD, b"/dev/fd/%d" % number, flags | NOFOLLOW, 0)
opened("openat", CWD, b"/dev/null", WRONLY, 0)
opened("openat", CWD, b"/proc/self/comm", WRONLY, 0)
opened("openat", CWD, b"/proc/self/cwd/made too", WRONLY | CREAT, 0o600)
opened("openat", CWD, b"/proc/thread-self/cwd/made again", WRONLY | CREAT, 0o600)
""",
    "openat2": """
d = os.open("dir", RDONLY)
for resolve in (0, 1, 2, 4, 8, 0x10, 0x18, 0x40):
    for path in (b"file", b"dir/in", b"../out/x", b"link", b"to-dir/in", b"/file", b"dir/../file", b"new%d" % resolve,
                 b"dangling", b"outside/x", b"/proc/self/cwd/file"):
        opened("openat2", CWD, path, how(WRONLY, 0, resolve), 24)
        if path != b"/file" or resolve & 0x18:  # nothing is made at the root of the machine
            opened("openat2", CWD, path, how(WRONLY | CREAT | NOFOLLOW, 0o644, resolve), 24)
    opened("openat2", d, b"in", how(RDWR | TRUNC, 0, resolve), 24)
    opened("openat2", d, b"../file", how(RDWR, 0, resolve), 24)
opened("openat2", CWD, b"file", how(WRONLY, 0o600), 24)
opened("openat2", CWD, b"file", how(WRONLY | CREAT, 0o10600), 24)
opened("openat2", CWD, b"file", how(WRONLY | 1 << 40), 24)
opened("openat2", CWD, b"file", how(WRONLY), 20)
opened("openat2", CWD, b"file", how(WRONLY) + bytes(8), 32)
opened("openat2", CWD, b"file", how(WRONLY) + b"x" * 8, 32)
for size in (PAGE, PAGE + 8):
    opened("openat2", CWD, b"file", how(WRONLY) + bytes(size - 24), size)
opened("openat2", CWD, b"file", how(fcntl.fcntl(os.open("file", RDWR), fcntl.F_GETFL)), 24)
opened("openat2", CWD, b"dir", how(TMPFILE | RDWR, 0o600), 24)
for path in (b"file", b"link", b"dangling", b"loop", b"dir", b"to-dir/in", b"file/", b"missing", b"../out/x", b"",
             b"/file"):
    for resolve in (0, 2, 4, 8, 0x10):
        for flags in (RDONLY, RDONLY | NOFOLLOW, RDONLY | DIRECTORY, RDONLY | os.O_CLOEXEC):
            opened("openat2", CWD, path, how(flags, 0, resolve), 24)
""",
    "names": """
for path in (b"made", b"file", b"missing/x", b"dangling", b"file/x", b"loop/x", b"made/", b"", b".", b"dir/..",
             b"x" * 300):
    call("mkdir", path, 0o1751)
    call("mkdirat", CWD, path + b"2", 0o777)
    call("symlink", b"target", path + b"3")
    call("symlinkat", b"target", CWD, path)
    for kind in (stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFDIR, stat.S_IFLNK, 0):
        call("mknod", path + b"%o" % kind, kind | 0o644, 0x103)
        call("mknodat", CWD, path + b"at%o" % kind, kind | 0o600, 0x103)
call("symlink", b"", b"empty target")
call("mkdir", 1, 0o777)
for path in (b"file", b"link", b"dangling", b"fifo", b"missing", b"dir", b"dir/in", b"made", b"made/", b"made2", b".",
             b"..", b"file/", b"to-dir", b"full", b"dir/.", b"", b"/"):
    call("unlink", path)
    call("rmdir", path)
    call("unlinkat", CWD, path + b"3", 0)
    call("unlinkat", CWD, path, 0x200)
    call("unlinkat", CWD, path, 1)
d = os.open("full", RDONLY)
call("unlinkat", d, b"in", 0)
call("unlinkat", 99, b"in", 0)
""",
    "links": """
for source in (b"file", b"link", b"dangling", b"dir", b"missing", b"fifo", b"loop", b""):
    for n, target in enumerate((b"again", b"file", b"dir/again", b"missing/again", b"again/", b"dangling", b"")):
        call("link", source, target + b"%d" % n if n == 0 else target)
        call("linkat", CWD, source, CWD, target + source, 0)
        call("linkat", CWD, source, CWD, target + source + b"f", 0x400)
        call("linkat", CWD, source, CWD, target + source + b"e", 0x1000)
        call("linkat", CWD, source, CWD, target + source + b"x", 1)
f = os.open("file", RDONLY)
call("linkat", f, b"", CWD, b"by fd", 0x1000)
call("linkat", CWD, b"/proc/self/fd/%d" % f, CWD, b"by proc", 0x400)
for mode in (TMPFILE | RDWR, TMPFILE | RDWR | EXCL):
    t = os.open("dir", mode, 0o640)
    os.write(t, b"nameless")
    call("linkat", t, b"", CWD, b"named%d" % (mode & EXCL), 0x1000)
    os.write(t, b" more")
    call("linkat", t, b"", CWD, b"file", 0x1000)
    say(os.fstat(t).st_nlink)
""",
    "renames": """
NAMES = (b"file", b"new", b"dir", b"full", b"link", b"to-dir", b"dangling", b"dir/in", b"missing/x", b"file/", b"dir/",
         b"full/deeper", b".", b"..", b"fifo", b"")
for source in NAMES:
    for target in NAMES:
        for flags in (0, 1, 2, 3, 8):
            call("renameat2", CWD, source, CWD, target, flags)
    call("rename", source, b"by rename")
    call("renameat", CWD, b"by rename", CWD, source)
d = os.open("full", RDONLY)
call("renameat", d, b"in", CWD, b"out of it")
call("renameat2", CWD, b"out of it", d, b"back", 1)
call("renameat2", 99, b"x", d, b"back", 1)
""",
    "attributes": """
TIMES = struct.pack("qqqq", 5, 600, 7, 800)
MICRO = struct.pack("qqqq", 5, 600, 7, 1_000_000)
NOW, OMIT = (1 << 30) - 1, (1 << 30) - 2
f, d, p = os.open("file", RDONLY), os.open("dir", RDONLY), os.open("file", PATH)
link = os.open("link", PATH | NOFOLLOW)
for path in (b"file", b"link", b"dir", b"dangling", b"missing", b"file/x", b"", b"fifo", b"to-dir/", b"loop",
             b"/proc/self/fd/%d" % f):
    for mode in (0o600, 0o4711, 0o2755, 0o101777):
        call("chmod", path, mode)
        call("fchmodat", CWD, path, mode ^ 0o11)
        for flags in (0, 0x100, 0x1000, 0x1100, 1):
            call("fchmodat2", CWD, path, mode ^ 0o22, flags)
    for uid, gid in ((0, 0), (-1, 12), (11, -1), (-1, -1)):
        call("chown", path, uid, gid)
        call("lchown", path, uid, gid)
        for flags in (0, 0x100, 0x1000, 1):
            call("fchownat", CWD, path, uid, gid, flags)
    call("utime", path, struct.pack("qq", 9, 10))
    call("utime", path, 0)
    for times in (TIMES, MICRO, 0):
        call("utimes", path, times)
        call("futimesat", CWD, path, times)
    for a, b in ((5, 6), (NOW, OMIT), (OMIT, NOW), (OMIT, OMIT), (5, 1_000_000_000)):
        for flags in (0, 0x100, 0x1000, 1):
            call("utimensat", CWD, path, struct.pack("qqqq", 5, a, 6, b), flags)
    call("utimensat", CWD, path, 0, 0)
    for size in (0, 3, 100_000, -1):
        call("truncate", path, size)
for fd in (f, d, p, link, 99, -1, CWD):
    call("fchmod", fd, 0o640)
    call("fchown", fd, 3, 4)
    call("fchmodat2", fd, b"", 0o604, 0x1000)
    call("fchownat", fd, b"", 5, 6, 0x1000)
    call("utimensat", fd, 0, TIMES, 0)
    call("utimensat", fd, 0, TIMES, 0x100)
    call("utimensat", fd, b"", TIMES, 0x1000)
    call("futimesat", fd, 0, 0)
call("truncate", 1, 5)
""",
    "xattrs": """
f, d, p = os.open("file", RDONLY), os.open("dir", RDONLY), os.open("file", PATH)
value = ctypes.create_string_buffer(b"value", 8)
def arguments(size, flags):
    return struct.pack("QII", ctypes.addressof(value), size, flags)
for path in (b"file", b"link", b"dir", b"dangling", b"missing", b"", b"fifo", b"loop", b"file/"):
    for attribute in (b"user.a", b"trusted.b", b"bad", b"", b"user.", b"user." + b"x" * 300, b"security.mine"):
        for flags in (0, 1, 2, 4):
            call("setxattr", path, attribute, b"one", 3, flags)
            call("lsetxattr", path, attribute, b"four", 4, flags)
            for at in (0, 0x100, 0x1000, 1):
                call("setxattrat", CWD, path, at, attribute, arguments(5, flags), 16)
        call("setxattr", path, attribute, b"", 0, 0)
        call("setxattr", path, attribute, 0, 70_000, 0)
        call("removexattr", path, attribute)
        call("lremovexattr", path, attribute)
        call("setxattr", path, attribute, b"kept", 4, 0)
        call("removexattrat", CWD, path, 0x100, attribute)
        call("removexattrat", CWD, path, 1, attribute)
call("setxattrat", CWD, b"file", 0, b"user.c", arguments(5, 0), 8)
call("setxattrat", CWD, b"file", 0, b"user.c", arguments(5, 0) + bytes(8), 24)
call("setxattrat", CWD, b"file", 0, b"user.d", arguments(5, 0) + b"x" * 8, 24)
for size in (PAGE, PAGE + 8):
    call("setxattrat", CWD, b"file", 0, b"user.e", arguments(5, 0) + bytes(size - 16), size)
for fd in (f, d, p, 99):
    call("fsetxattr", fd, b"user.f", b"value", 5, 0)
    call("fsetxattr", fd, b"user.g", b"value", 5, 2)
    call("setxattrat", fd, b"", 0x1000, b"user.h", arguments(5, 0), 16)
    call("removexattrat", fd, b"", 0x1000, b"user.h")
    call("fremovexattr", fd, b"user.g")
    call("setxattrat", fd, 0, 0x1000, b"user.i", arguments(5, 0), 16)
call("lsetxattr", b"dangling", b"trusted.kept", b"value", 5, 0)
""",
    "special": """
f, d, p = os.open("file", RDONLY), os.open("dir", RDONLY), os.open("file", PATH)
GET, SET = 0x80086601, 0x40086602
flags = ctypes.create_string_buffer(8)
for fd in (f, d, p, 99):
    if call("ioctl", fd, GET, ctypes.addressof(flags)) == 0:
        flags[0] = bytes([flags[0][0] | 0x40])  # no dump
        call("ioctl", fd, SET, ctypes.addressof(flags))
call("ioctl", f, SET, 1)
attributes = ctypes.create_string_buffer(64)
call("file_setattr", CWD, b"missing", attributes.raw, 24, 0)
call("file_setattr", CWD, b"file", attributes.raw, 8, 0)
call("file_setattr", CWD, b"file", 1, 24, 0)
for path in (b"socket", b"file", b"missing/socket", b"dangling", b"dir", b"socket"):
    s = socket.socket(socket.AF_UNIX)
    address = struct.pack("H", socket.AF_UNIX) + path + b"\\0"
    call("bind", s.fileno(), address, len(address))
    s.close()
call("bind", f, address, len(address))
call("bind", 99, address, len(address))
s = socket.socket(socket.AF_INET)
call("bind", s.fileno(), struct.pack("HH", socket.AF_INET, 0) + bytes(12), 16)
s = socket.socket(socket.AF_UNIX)
call("bind", s.fileno(), struct.pack("H", socket.AF_UNIX) + b"\\0abstract %d" % os.getpid(), 20)
handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
mount = ctypes.c_int()
libc.name_to_handle_at(CWD, b"file", handle, ctypes.byref(mount), 0)
opened("open_by_handle_at", d, handle.raw, WRONLY)
opened("open_by_handle_at", d, handle.raw, RDONLY)
opened("open_by_handle_at", 99, handle.raw, WRONLY)
opened("open_by_handle_at", d, struct.pack("Ii", 500, 1) + bytes(100), WRONLY)
""",
    "identity": """
def other():
    call("umask", 0o27)
    opened("openat", CWD, b"masked", WRONLY | CREAT, 0o666)
    call("mkdirat", CWD, b"masked dir", 0o777)
    call("setfsgid", 7)
    opened("openat", CWD, b"of group 7", WRONLY | CREAT, 0o660)
    call("setfsuid", 8)
    opened("openat", CWD, b"refused to 8", WRONLY | CREAT, 0o666)
    opened("openat", CWD, b"free/of 8", WRONLY | CREAT, 0o666)
    opened("openat", CWD, b"file", WRONLY, 0)
    call("chmod", b"file", 0o777)
    call("chown", b"free/of 8", 9, 9)
    call("setfsuid", 0)
    call("setfsgid", 0)
    call("setgroups", 1, struct.pack("I", 77))
    call("setregid", -1, 12)
    call("setresgid", -1, 12, 12)
    call("setgid", 12)
    call("setreuid", -1, 11)
    opened("openat", CWD, b"free/of 11", WRONLY | CREAT, 0o666)
    opened("openat", CWD, b"group", WRONLY, 0)
    opened("openat", CWD, b"secret/x", WRONLY | CREAT, 0o666)
    for name in (b"free/of 8", b"free/of 11", b"sticky/root", b"secret/in", b"file"):
        call("unlink", name)
        call("truncate", name, 1)
        call("utimensat", CWD, name, 0, 0)
        call("setxattr", name, b"user.x", b"x", 1, 0)
        call("renameat2", CWD, name, CWD, name + b" moved", 0)
        call("linkat", CWD, name, CWD, b"free/linked", 0)
    call("mkdir", b"free/dir of 11", 0o700)
    call("rmdir", b"secret")
    call("setresuid", 11, 11, 11)
    call("setuid", 0)
    call("mknod", b"free/device", stat.S_IFCHR | 0o600, 0x103)
    call("mknod", b"free/pipe", stat.S_IFIFO | 0o600, 0)
    call("chmod", b"free/pipe", 0o6777)
    call("unlink", b"free/pipe")
forked(other)
def powerless():
    header, data = struct.pack("Ii", 0x20080522, 0), bytes(24)
    call("capset", header, data)
    opened("openat", CWD, b"free/of nobody's", WRONLY | CREAT, 0o666)
    opened("openat", CWD, b"of 11/x", WRONLY | CREAT, 0o666)
    call("chown", b"file", 5, 5)
    call("chmod", b"group", 0o600)
forked(powerless)
def elsewhere():
    os.chdir("dir")
    call("chroot", b"..")
    opened("openat", CWD, b"/from root", WRONLY | CREAT, 0o666)
    opened("openat", CWD, b"../../../dir/made", WRONLY | CREAT, 0o666)
    opened("openat", CWD, b"/../file", WRONLY | APPEND, 0)
    opened("openat", CWD, b"/rooted/in", WRONLY | APPEND, 0)
    call("rename", b"/file", b"/dir/file")
    call("unlink", b"/link")
    call("symlink", b"/dir/made", b"/absolute")
    opened("openat", CWD, b"/absolute", WRONLY | APPEND, 0)
    opened("openat", CWD, b"/dangling to root", WRONLY | CREAT, 0o600)
    call("mkdir", b"/full/made", 0o700)
forked(elsewhere)
def apart():
    call("unshare", 0x20000)  # a mount namespace
    opened("openat", CWD, b"file2", WRONLY | CREAT, 0o666)
    call("unshare", 0x200)
    call("umask", 0o77)
    call("mkdir", b"apart", 0o777)
    call("setns", 99, 0)
    call("unlink", b"file2")
    opened("openat", CWD, os.fsencode(os.path.abspath("absolutely")), WRONLY | CREAT, 0o666)
    call("rename", b"apart", b"a part")
    call("rmdir", b"a part")
forked(apart)
""",
    "bounded": """
def bounded():
    for capability in (1, 2, 3):
        raw("prctl", 24, capability, 0, 0, 0)
    execute("echo bounded >> 'of 11/in'")
forked(bounded)
""",
    "rootless": """
def rootless():
    raw("prctl", 28, 1, 0, 0, 0)
    execute("echo rootless >> 'of 11/in'")
forked(rootless)
""",
    "executed by a thread": """
def first():
    call("mkdirat", CWD, b"by the first", 0o700)
    def second():
        raw("setgroups", 0, 0)
        raw("setresgid", 11, 11, 11)
        raw("setresuid", 11, 11, 11)
        execute("echo thread >> file")
    threading.Thread(target=second).start()
    time.sleep(100)
forked(first)
""",
    "another for files": """
def other():
    # Whose files it may access is the keeper again, until something is executed.
    raw("prctl", 8, 1, 0, 0, 0)
    raw("setresuid", 11, 11, 11)
    header, data = struct.pack("Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
    libc.capget(header, data)
    _, low, _, _, high, _ = struct.unpack("6I", data.raw)
    call("capset", header, struct.pack("6I", low, low, 0, high, high, 0))
    raw("setfsuid", 0)
    forked(lambda: execute("echo returned >> file"))
forked(other)
""",
    "threads": """
def work(n):
    for i in range(40):
        path = b"thread %d-%d" % (n, i)
        fd = os.open(path, WRONLY | CREAT | EXCL, 0o600)
        os.write(fd, path)
        os.close(fd)
        os.rename(path, path + b" moved")
        if i % 3 == 0:
            os.unlink(path + b" moved")
        os.utime(b"shared", (n, i))
        with open("shared", "ab") as file:
            file.write(b"x")
threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
os.utime("shared", (1, 1))
def apart():
    # A thread with a working directory of its own.
    raw("unshare", 0x200)
    os.chdir("dir")
    opened("openat", CWD, b"in the thread's directory", WRONLY | CREAT, 0o600)
thread = threading.Thread(target=apart)
thread.start()
thread.join()
opened("openat", CWD, b"in the other's", WRONLY | CREAT, 0o600)
""",
    "passing": """
ours, its = socket.socketpair()
def sender():
    fd = os.open("passed", RDWR | CREAT, 0o600)
    os.write(fd, b"first")
    socket.send_fds(its, [b"x"], [fd, os.open("dir", RDONLY), os.open("full", PATH)])
forked(sender)
_, (fd, d, p), _, _ = socket.recv_fds(ours, 1, 3)
os.write(fd, b" second")
os.unlink("passed")
os.write(fd, b" third")
say(os.pread(fd, 100, 0))
opened("openat", d, b"made by its descriptor", WRONLY | CREAT, 0o600)
opened("openat", p, b"made by its path", WRONLY | CREAT, 0o600)
call("fchmod", d, 0o700)
call("fchmod", p, 0o700)
""",
    "pipes": """
fd = os.open("fifo", RDWR)
os.write(fd, b"through")
say(os.read(fd, 100))
os.close(fd)
def writer():
    with open("fifo", "wb") as pipe:
        pipe.write(b"waited")
thread = threading.Thread(target=writer)
thread.start()
say(open("fifo", "rb").read())
thread.join()
null = os.open("null", RDWR)
os.write(null, b"nothing")
""",
    "append": """
a, b = (os.open("log", WRONLY | CREAT | APPEND, 0o600) for _ in range(2))
for i in range(20):
    os.write(a, b"a"); os.write(b, b"b")
say(open("log").read())
fcntl.fcntl(a, fcntl.F_SETFL, 0)
os.pwrite(a, b"X", 0)
os.ftruncate(b, 30)
libc.fallocate(a, 0, 0, 5000)
say(os.fstat(a).st_size)
os.truncate("log", 7)
import mmap
with open("file", "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
    memory[0:3] = b"MAP"
os.copy_file_range(os.open("full/in", RDONLY), os.open("file", WRONLY), 4, 0, 2)
os.sendfile(os.open("dir/in", WRONLY), os.open("full/in", RDONLY), 0, 3)
""",
    "running": """
with open("program", "w") as file:
    file.write("#!/bin/sh\\necho it ran $0\\n")
os.chmod("program", 0o755)
attempt(subprocess.check_output, ["./program"])
import shutil
shutil.copy("/bin/true", "binary")
for _ in range(20):
    shutil.copy("/bin/true", "binary")
    attempt(subprocess.call, ["./binary"])
fd = os.open("binary", WRONLY)
attempt(subprocess.call, ["./binary"])
os.close(fd)
shutil.copy("/bin/sleep", "sleeper")
sleeper = subprocess.Popen(["./sleeper", "100"])
attempt(os.open, "sleeper", WRONLY)
attempt(os.truncate, "sleeper", 1)
attempt(os.unlink, "sleeper")
sleeper.kill()
sleeper.wait()
""",
    "inheritance": """
say(os.umask(0o027))
ACL = lambda *entries: struct.pack("I", 2) + b"".join(struct.pack("HHI", *entry) for entry in entries)
acl = ACL((1, 7, 0xFFFFFFFF), (2, 6, 11), (4, 5, 0xFFFFFFFF), (16, 7, 0xFFFFFFFF), (32, 0, 0xFFFFFFFF))
attempt(os.setxattr, "dir", "system.posix_acl_default", acl)
attempt(os.setxattr, "file", "system.posix_acl_access", acl)
attempt(os.setxattr, "file", "system.posix_acl_default", acl)
attempt(os.setxattr, "file", "system.posix_acl_access", b"nonsense")
os.chown("group dir", 0, 12)
os.chmod("group dir", 0o2775)
for folder in ("dir", "group dir"):
    os.close(os.open(folder + "/by open", WRONLY | CREAT, 0o666))
    os.mkdir(folder + "/by mkdir", 0o777)
    os.mknod(folder + "/by mknod", 0o666 | stat.S_IFIFO)
    os.symlink("x", folder + "/by symlink")
    t = os.open(folder, TMPFILE | RDWR, 0o666)
    call("linkat", t, b"", CWD, os.fsencode(folder) + b"/by tmpfile", 0x1000)
    s = socket.socket(socket.AF_UNIX)
    s.bind(folder + "/by bind")
attempt(os.removexattr, "dir", "system.posix_acl_default")
def unprivileged():
    os.setgroups([]); os.setresgid(11, 11, 11); os.setresuid(11, 11, 11)
    attempt(os.chmod, "of 11/in", 0o2755)
    opened("openat", CWD, b"of 11/set-id", WRONLY, 0)
    attempt(os.truncate, "of 11/set-id", 2)
    os.chmod("of 11/set-id", 0o6755)
    attempt(os.truncate, "of 11/set-id", 1)
    os.chmod("of 11/set-id", 0o6755)
    attempt(os.chown, "of 11/set-id", -1, 11)
    os.chmod("of 11/set-id", 0o6755)
    opened("openat", CWD, b"of 11/set-id", WRONLY | TRUNC, 0, write=b"")
    opened("openat", CWD, b"open to all", WRONLY, 0)
    attempt(os.truncate, "open to all", 1)
    attempt(os.chmod, "open to all", 0o700)
    attempt(os.unlink, "sticky/root")
    attempt(os.rename, "sticky/root", "sticky/x")
    opened("openat", CWD, b"sticky/mine", WRONLY | CREAT, 0o666)
    attempt(os.unlink, "sticky/mine")
    opened("openat", CWD, b"group dir/mine", WRONLY | CREAT, 0o2770)
    attempt(os.rename, "sticky/root", "free/root")
    attempt(os.setxattr, "of 11/in", "trusted.x", b"x")
    attempt(os.setxattr, "of 11/in", "user.x", b"x")
forked(unprivileged)
""",
    "deleted": """
def nothing_left(fd):
    say(stat.S_ISREG(os.fstat(fd).st_mode), os.path.exists("gone"))
for how_gone in ("unlink", "replace", "rename away"):
    for name in ("gone", "gone twice"):
        with open(name, "wb") as file:
            file.write(b"content")
    f, w = os.open("file", RDONLY), os.open("large", RDWR)
    new = os.open("gone", RDWR)
    d = os.open("empty", RDONLY)
    if how_gone == "unlink":
        os.unlink("file"); os.unlink("large"); os.unlink("gone"); os.rmdir("empty")
    elif how_gone == "replace":
        for name in ("file", "large", "gone"):
            open("over", "wb").close()
            os.rename("over", name)
        os.mkdir("over"); os.rename("over", "empty")
    else:
        os.rename("file", "full/file"); os.rename("large", "full/large"); os.rename("gone", "full/gone")
        os.rename("empty", "full/empty")
    os.write(w, b"written after")
    for fd in (f, w, new, d):
        call("fchmod", fd, 0o640)
        call("fchown", fd, 3, 4)
        call("utimensat", fd, 0, struct.pack("qqqq", 5, 6, 7, 8), 0)
        call("fsetxattr", fd, b"user.x", b"x", 1, 0)
        call("fremovexattr", fd, b"user.x")
        opened("openat", CWD, b"/proc/self/fd/%d" % fd, RDWR, 0)
        opened("openat", CWD, b"/proc/self/fd/%d" % fd, WRONLY | TRUNC, 0)
        call("truncate", b"/proc/self/fd/%d" % fd, 3)
        call("chmod", b"/proc/self/fd/%d" % fd, 0o600)
        found = os.fstat(fd)
        say(oct(found.st_mode), found.st_uid, found.st_nlink if how_gone == "unlink" else "")
        if not stat.S_ISDIR(found.st_mode):
            say(os.pread(fd, 100, 0))
    for path in (b"x", b"."):
        opened("openat", d, path + b" made", WRONLY | CREAT, 0o600)
        call("mkdirat", d, path + b" made dir", 0o700)
    if how_gone == "rename away":
        break
    for name in ("file", "large"):
        with open(name, "wb") as file:
            file.write(b"anew" * 9000)
    if how_gone == "unlink":
        os.mkdir("empty")
os.mkdir("where"); os.chdir("where"); os.rmdir("../where")
opened("openat", CWD, b"made", WRONLY | CREAT, 0o600)
call("mkdir", b"made", 0o700)
call("unlink", b"made")
call("chmod", b".", 0o700)
""",
}


def plant(top: Path) -> None:
    """A tree with every kind of thing in it, and something beside it."""
    for directory in (
        "ws/dir", "ws/full/deeper", "ws/free", "ws/sticky", "ws/secret", "ws/group dir", "ws/of 11", "ws/empty", "out",
    ):  # fmt: skip
        (top / directory).mkdir(parents=True)
    names = ("file", "dir/in", "full/in", "full/deeper/x", "sticky/root", "secret/in", "group", "of 11/in", "shared")
    for name in (*(f"ws/{name}" for name in names), "ws/open to all", "ws/of 11/set-id", "out/x"):
        (top / name).write_bytes(name.encode() * 3)
    (top / "ws" / "large").write_bytes(b"large" * 50_000)
    for name, target in {
        "link": "file", "to-dir": "dir", "dangling": "nowhere", "loop": "loop", "outside": "../out", "rooted": "/dir",
        "dangling to root": "/made at root",
    }.items():  # fmt: skip
        (top / "ws" / name).symlink_to(target)
    os.mkfifo(top / "ws" / "fifo")
    os.mknod(top / "ws" / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    for name, mode in {"free": 0o777, "sticky": 0o1777, "secret": 0o700, "group": 0o660, "open to all": 0o6777}.items():
        os.chmod(top / "ws" / name, mode)
    for name in ("of 11", "of 11/in", "of 11/set-id"):
        os.chown(top / "ws" / name, 11, 11)
    os.chown(top / "ws" / "group", 0, 77)
    os.chmod(top / "ws" / "of 11" / "set-id", 0o6755)
    for folder in top, *top.parents[:2]:
        os.chmod(folder, 0o755)


def without_times(photo: dict[bytes, PathState]) -> dict[bytes, PathState]:
    return {path: seen._replace(mtime=0) for path, seen in photo.items()}


def numbers_here() -> dict[str, int]:
    """Without the calls that this kernel is too old for, which the keeper carries out all the same."""
    table = dict(ARCHITECTURES[machine()].numbers)
    libc = ctypes.CDLL(None, use_errno=True)
    for name in ("fchmodat2", "setxattrat", "removexattrat", "file_setattr"):
        libc.syscall(table[name], -1, b"x", 0, 0, 0, 0)
        if ctypes.get_errno() == errno.ENOSYS:
            del table[name]
    return table


def program(name: str) -> str:
    """The script, whole: its argument is a table of numbers, as JSON."""
    return PRELUDE + SCRIPTS[name] + '\nprint(*out, sep="\\n")\n'
