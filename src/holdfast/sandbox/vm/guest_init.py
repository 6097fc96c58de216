"""The first process of a guest: it carries out the host's plan, runs the shim, and powers off after its end.

A program of its own: one file, with the standard library of Python 3.8 or later and nothing of Holdfast, as it runs in
the guest. The image's first file system has made the root, a ``tmpfs`` at ``/run`` and the directory ``/run/holdfast``
with this program, the shim and ``plan.json`` (`holdfast.sandbox.vm.boot_archive`), and then becomes this process.

A failure here prints a line that begins with ``holdfast:`` on the console, and powers the machine off.
"""

from __future__ import annotations

import binascii
import ctypes
import errno
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import termios
import time

TYPE_CHECKING = False  # `typing` loads slowly in an emulated guest
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

    Plan = dict[str, Any]

FOLDER = "/run/holdfast"
CONTROL_PORT = "holdfast.control"
PROCESSES_PORT = "holdfast.processes"
PIDFD_OPEN = 434
MOST_WORDS = 100
MOST_WORD_BYTES = 200
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TIME_QUESTION = b"holdfast: what time is it?"
TIME_SECONDS = 5.0
PORT_SECONDS = 10.0
GRACE_SECONDS = 1.0
"""From SIGTERM to SIGKILL, for processes that remain after the shim's end."""

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MNT_DETACH = 2
PR_SET_DUMPABLE, PR_SET_NAME = 4, 15
SIOCADDRT, SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK = 0x890B, 0x8914, 0x8916, 0x891C
IFF_UP, RTF_UP, RTF_GATEWAY = 1, 1, 2
POWER_OFF = 0x4321FEDC
ADDRESS, NETMASK, GATEWAY = "10.0.2.15", "255.255.255.0", "10.0.2.2"
"""As QEMU's network for users has it."""

SYSTEM_MOUNTS = (
    ("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, ""),
    ("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, ""),
    ("devtmpfs", "/dev", "devtmpfs", MS_NOSUID, "mode=755"),
    ("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "mode=620,ptmxmode=666,gid=5"),
    ("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777"),  # noqa: S108 - where it is mounted
    ("tmpfs", "/run/lock", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=1777"),
    ("cgroup2", "/sys/fs/cgroup", "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC, ""),
)
OPTIONAL = ("cgroup2",)
DEVICE_LINKS = (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2"))

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> NoReturn:
    """Never returns: the machine ends."""
    mounts: list[bytes] = []
    try:
        with open(FOLDER + "/plan.json") as file:
            plan = json.load(file)
        if plan["version"] != 1:
            raise ValueError(f"the plan has the version {plan['version']!r}")
        mounts = [text_path(each["path"]) for each in plan["mounts"]]
        prepare(plan)
        shim = start_shim(plan)
        start_watching(shim)
        reap_until(shim)
    except Exception as error:  # noqa: BLE001 - the first process must not end
        say(f"{type(error).__name__}: {error}")
    power_off(mounts)


def prepare(plan: Plan) -> None:
    """All but the shim. Raises `OSError`."""
    os.umask(0o022)
    for mount_ in SYSTEM_MOUNTS:
        mount_system(*mount_)
    for name, target in DEVICE_LINKS:
        if not os.path.lexists("/dev/" + name):
            os.symlink(target, "/dev/" + name)
    set_clock()
    user = plan["user"]
    home = text_path(user["home"])
    set_host_name(plan["hostname"])
    set_network(plan["network"])
    make_account(user, home)
    for each in plan["mounts"]:
        path = text_path(each["path"])
        make_directories(path, home, user["uid"], user["gid"])
        flags = MS_NOSUID | MS_NODEV | (MS_RDONLY if each["read_only"] else 0)
        mount(each["source"], path, each["type"], flags, each["options"])
    make_directories(home, home, user["uid"], user["gid"])
    for each in plan["files"]:
        place_file(each, home, user["uid"], user["gid"])
    os.unlink(FOLDER + "/plan.json")  # its environment may have secrets


def say(text: str) -> None:
    """Tell the console, and by it the host."""
    os.write(2, b"holdfast: " + text.encode("utf-8", "backslashreplace") + b"\n")


def text_path(text: str) -> bytes:
    """The path that the plan has as base64."""
    return binascii.a2b_base64(text)


# -- files -------------------------------------------------------------------------------------------------------------


def mount(source: str, path: str | bytes, kind: str, flags: int, options: str) -> None:
    """Make what ``source`` names visible at ``path``. Raises `OSError`."""
    path = os.fsencode(path)
    if _libc.mount(source.encode(), path, kind.encode(), ctypes.c_ulong(flags), options.encode() or None):
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)} (mounting {source} at {os.fsdecode(path)})")


def mount_system(source: str, path: str, kind: str, flags: int, options: str) -> None:
    """Mount it unless it exists, as from the image's first file system."""
    try:
        os.makedirs(path, exist_ok=True)
        if not os.path.ismount(path):
            mount(source, path, kind, flags, options)
    except OSError as error:
        if kind not in OPTIONAL:
            raise
        say(f"without {kind}: {error}")


def make_directories(path: bytes, home: bytes, uid: int, gid: int) -> None:
    """Make the directory with all above it; those in the user's home, and that itself, belong to the user."""
    above = os.path.dirname(path)
    if above != path and not os.path.isdir(above):
        make_directories(above, home, uid, gid)
    try:
        os.mkdir(path, 0o755)
    except FileExistsError:
        return
    if (path + b"/").startswith(home.rstrip(b"/") + b"/"):
        os.chown(path, uid, gid)


def place_file(each: Plan, home: bytes, uid: int, gid: int) -> None:
    """Write a file of the plan, replacing any other."""
    path = text_path(each["path"])
    make_directories(os.path.dirname(path), home, uid, gid)
    source = os.path.join(FOLDER, each["source"])
    with open(source, "rb") as file:
        content = file.read()
    os.unlink(source)
    write_file(path, content, each["mode"], uid, gid)


def write_file(path: str | bytes, content: bytes, mode: int = 0o644, uid: int = 0, gid: int = 0) -> None:
    """Replace a file; no link at its place is followed."""
    path = os.fsencode(path)
    new = path + b".holdfast-new"
    try:
        os.unlink(new)
    except FileNotFoundError:
        pass
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(fd, "wb") as file:
        file.write(content)
        os.fchown(fd, uid, gid)
        os.fchmod(fd, mode)
    os.rename(new, path)


def read_text(path: str) -> str:
    """The text of a file; empty if it is missing."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except FileNotFoundError:
        return ""


# -- the system's settings ---------------------------------------------------------------------------------------------


def set_clock(path: str = "/dev/console") -> None:
    """Set the clock to the host's, which answers at the console. (The machine's own clock has whole seconds, and files
    of the host with a time in the future confuse programs such as ``make``.)
    """
    console = os.open(path, os.O_RDWR | os.O_NOCTTY)
    try:
        attributes = termios.tcgetattr(console)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(console, termios.TCSANOW, attributes)
        os.write(console, TIME_QUESTION + b"\n")
        poll = select.poll()
        poll.register(console, select.POLLIN)
        if poll.poll(TIME_SECONDS * 1000):
            time.clock_settime(time.CLOCK_REALTIME, float(os.read(console, 64)))
        else:
            say("the host does not tell the time")
    finally:
        os.close(console)


def set_host_name(name: str) -> None:
    """The kernel's, and that of programs that look it up."""
    socket.sethostname(name)
    write_file("/etc/hostname", name.encode() + b"\n")
    write_file("/etc/hosts", hosts(read_text("/etc/hosts"), name).encode("utf-8", "surrogateescape"))


def hosts(text: str, name: str) -> str:
    """``/etc/hosts`` with the machine's own name in it."""
    names = {word for line in text.splitlines() for word in line.partition("#")[0].split()[1:]}
    lines = [line for line in text.splitlines() if line]
    if "localhost" not in names:
        lines += ["127.0.0.1 localhost", "::1 localhost"]
    if name not in names:
        lines.append("127.0.1.1 " + name)
    return "\n".join(lines) + "\n"


def set_network(network: Plan) -> None:
    """Set up the loopback interface, and QEMU's with a fixed address. (If it is for the shares alone, it leads nowhere
    else.)
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        set_up(any_socket, "lo")
        if network["mode"] == "disabled":
            return
        name = min(each for each in os.listdir("/sys/class/net") if each.startswith(("eth", "en")))
        for request, address in ((SIOCSIFADDR, ADDRESS), (SIOCSIFNETMASK, NETMASK)):
            fcntl.ioctl(any_socket, request, struct.pack("16s16s8x", name.encode(), socket_address(address)))
        set_up(any_socket, name)
        if network["mode"] != "shares":
            fcntl.ioctl(any_socket, SIOCADDRT, default_route(GATEWAY))
    try:
        os.unlink("/etc/resolv.conf")  # it may be a link into a directory that is not there
    except FileNotFoundError:
        pass
    write_file("/etc/resolv.conf", "".join(f"nameserver {each}\n" for each in network["dns"]).encode())


def set_up(any_socket: socket.socket, name: str) -> None:
    """Let an interface carry packets."""
    fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", name.encode(), IFF_UP))


def socket_address(address: str) -> bytes:
    """A ``struct sockaddr_in``."""
    return struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))


def default_route(gateway: str) -> bytes:
    """A ``struct rtentry`` (``linux/route.h``)."""
    anywhere = socket_address("0.0.0.0")  # noqa: S104 - no address to listen at
    return struct.pack(
        "L16s16s16sHhLPhPLLH",
        *(0, anywhere, socket_address(gateway), anywhere, RTF_UP | RTF_GATEWAY, 0, 0, 0, 0, 0, 0, 0, 0),
    )


def make_account(user: Plan, home: bytes) -> None:
    """The account that commands run as; it may do everything by ``sudo``, where that is: the guest is its own."""
    passwd, group = accounts(read_text("/etc/passwd"), read_text("/etc/group"), user, os.fsdecode(home))
    for path, text in (("/etc/passwd", passwd), ("/etc/group", group)):
        write_file(path, text.encode("utf-8", "surrogateescape"))
    if os.path.isdir("/etc/sudoers.d"):
        write_file("/etc/sudoers.d/holdfast", b"#%d ALL=(ALL:ALL) NOPASSWD: ALL\n" % user["uid"], 0o440)


def accounts(passwd: str, group: str, user: Plan, home: str) -> tuple[str, str]:
    """``/etc/passwd`` and ``/etc/group`` in which the user is. An account with the number stays, except its home."""
    lines = [line.split(":") for line in passwd.splitlines() if line]
    groups = [line.split(":") for line in group.splitlines() if line]
    uid, gid, name = str(user["uid"]), str(user["gid"]), user["name"]
    known = [line for line in lines if line[2:3] == [uid]]
    for line in known:
        line[5:6] = [home]
    if not known:
        if any(line[0] == name for line in lines):
            name += "-" + uid
        # No password matches. An ``x`` would refer to another file, which does not have it.
        lines.append([name, "*", uid, gid, "", home, "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"])
    if not any(line[2:3] == [gid] for line in groups):
        group_name = name if all(line[0] != name for line in groups) else name + "-" + gid
        groups.append([group_name, "*", gid, ""])
    return joined(lines), joined(groups)


def joined(lines: list[list[str]]) -> str:
    """The lines of a file whose fields have colons between them."""
    return "".join(":".join(line) + "\n" for line in lines)


# -- processes ---------------------------------------------------------------------------------------------------------


def start_shim(plan: Plan) -> int:
    """Start the shim at the control port, as the user; returns its number."""
    port = open_port(CONTROL_PORT)
    user = plan["user"]
    home = text_path(user["home"])
    environment = dict(plan["environment"])
    for name, value in (("PATH", PATH), ("HOME", os.fsdecode(home)), ("USER", user["name"]), ("LANG", "C.UTF-8")):
        environment.setdefault(name, value)
    shim = os.fork()
    if shim:
        os.close(port)
        return shim
    try:
        os.setsid()
        for fd in (0, 1):
            os.dup2(port, fd)
        os.close(port)
        os.setgroups([])
        os.setgid(user["gid"])
        os.setuid(user["uid"])
        os.chdir(home)
        become_shim(environment)
    except Exception as error:  # noqa: BLE001 - nothing above may go on in this process
        say(f"the shim has failed: {type(error).__name__}: {error}")
    finally:
        os._exit(1)


def start_watching(shim: int) -> None:
    """Start what tells the host which command a process belongs to
    (`holdfast.supervisor.keeper.guest_processes` says how).
    """
    port = open_port(PROCESSES_PORT)
    if not os.fork():
        try:
            Watcher(port, shim).serve()
        except OSError as error:
            say(f"commands are not told apart any more: {error}")
        finally:
            os._exit(1)
    os.close(port)


class Watcher:
    """Answers at a port of the machine's, and tells of children of commands that have ended."""

    def __init__(self, port: int, shim: int) -> None:
        self.port = port
        self.shim = shim
        self.tops: dict[int, int] = {}
        """By the descriptor of each (pidfd_open(2)): its number."""
        self.waiting = select.poll()
        self.waiting.register(port, select.POLLIN)

    def serve(self) -> None:
        """Until the host hangs up. Raises `OSError`."""
        asked = b""
        while True:
            ready = dict(self.waiting.poll())
            # Ended processes first: a client then knows that their numbers may be reused.
            for pidfd in self.tops.keys() & ready.keys():
                self.waiting.unregister(pidfd)
                os.close(pidfd)
                self.tell({"ended": self.tops.pop(pidfd)})
            if self.port in ready:
                data = os.read(self.port, 4096)
                if not data:
                    return
                *lines, asked = (asked + data).split(b"\n")
                for line in lines:
                    self.tell(self.answer(int(line)))

    def tell(self, said: Plan) -> None:
        """Send a line."""
        data = json.dumps(said).encode() + b"\n"
        while data:
            data = data[os.write(self.port, data) :]

    def answer(self, pid: int) -> Plan:
        """Where a process is below a command: which child of the command's first process it is, or is below."""
        line = [pid]
        while line[-1] > 1 and line[-1] != self.shim:
            line.append(parent_of(line[-1]))
        if line[-1] != self.shim or len(line) < 2:
            return {"pid": pid}
        if len(line) == 2:
            return {"pid": pid, "top": 0}
        top = line[-3]
        try:
            if top not in self.tops.values():
                pidfd = _libc.syscall(PIDFD_OPEN, top, 0)  # `os.pidfd_open` came with Python 3.9
                if pidfd < 0:
                    raise OSError(ctypes.get_errno(), "pidfd_open")
                self.tops[pidfd] = top
                self.waiting.register(pidfd, select.POLLIN)
            with open(f"/proc/{top}/cmdline", "rb") as file:
                words = file.read(MOST_WORDS * MOST_WORD_BYTES).split(b"\0")[:-1][:MOST_WORDS]
            directory = os.readlink(b"/proc/%d/cwd" % top)
        except OSError:
            return {"pid": pid}  # it has ended, and its children belong to no command
        texts = [binascii.b2a_base64(word[:MOST_WORD_BYTES], newline=False).decode() for word in (*words, directory)]
        return {"pid": pid, "top": top, "words": texts[:-1], "directory": texts[-1]}


def parent_of(pid: int) -> int:
    """Of a thread or a process; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def become_shim(environment: dict[str, str]) -> None:
    """Run the shim in this process: a new interpreter would take half a second to start in an emulated guest, and load
    the same modules again.
    """
    os.environ.clear()
    os.environ.update(environment)
    # A process that has changed its user may not read its own ``/proc`` entries, unless it permits it or calls exec.
    _libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    _libc.prctl(PR_SET_NAME, b"shim", 0, 0, 0)
    path = FOLDER + "/shim.py"
    sys.argv = [path]
    with open(path) as file:
        code = compile(file.read(), path, "exec")
    exec(code, {"__name__": "__main__", "__file__": path})  # noqa: S102 - a program of ours


def open_port(wanted: str) -> int:
    """Open a virtio-serial port by its name, once the host is connected to it. Without udev, nothing has made links to
    the devices by their names; they are made here.
    """
    os.makedirs("/dev/virtio-ports", exist_ok=True)
    until = time.monotonic() + PORT_SECONDS
    found = None
    while found is None:
        for device in os.listdir("/sys/class/virtio-ports"):
            name = read_text(f"/sys/class/virtio-ports/{device}/name").strip()
            if name and not os.path.lexists("/dev/virtio-ports/" + name):
                os.symlink("../" + device, "/dev/virtio-ports/" + name)
            if name == wanted:
                found = "/dev/" + device
        if found is None:
            if time.monotonic() > until:
                raise OSError(errno.ENODEV, f"there is no port {wanted}")
            time.sleep(0.01)
    port = os.open(found, os.O_RDWR | os.O_NOCTTY)
    poll = select.poll()
    poll.register(port, select.POLLOUT)
    # Until the kernel knows that the host is connected, the port reads as ended.
    while any(events & select.POLLHUP for _, events in poll.poll(1000)):
        if time.monotonic() > until:
            raise OSError(errno.ENOTCONN, f"the host is not at the port {wanted}")
        time.sleep(0.01)
    return port


def reap_until(last: int) -> None:
    """Wait for all that ends below this process, until ``last`` does."""
    while True:
        pid, _ = os.waitpid(-1, 0)
        if pid == last:
            return


def power_off(mounts: Sequence[bytes]) -> NoReturn:
    """End all processes, write everything to disk, and switch the machine off."""
    try:
        end_processes()
        # The guest's own file systems first: the server of the others may be gone, and syncing them would wait for it.
        fd = os.open("/", os.O_RDONLY)
        _libc.syncfs(fd)
        for path in reversed(mounts):
            _libc.umount2(path, MNT_DETACH)
        with open("/proc/sysrq-trigger", "w") as file:
            file.write("u")  # file systems that cannot be unmounted become read-only, with a clean journal
    except OSError as error:
        say(str(error))
    finally:
        _libc.reboot(ctypes.c_int(POWER_OFF - (1 << 32) if POWER_OFF >> 31 else POWER_OFF))
        while True:
            time.sleep(60)


def end_processes() -> None:
    """Of the machine, all but this one."""
    for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, GRACE_SECONDS)):
        try:
            os.kill(-1, number)
        except ProcessLookupError:
            return
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.01)
            except ChildProcessError:
                return


if __name__ == "__main__":
    main()
