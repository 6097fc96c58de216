"""A running virtual machine: QEMU as a child of this process, in a box of namespaces.

QEMU is not trusted: a guest that takes it over by a bug in an emulated device has no privileges, sees only the system's
programs and libraries and its image, read-only, and has only the plan's network. QEMU gets all other files as open
descriptors. It ends with this process, even if that is killed.

Any thread may call the methods. Each machine has a thread that reads from QEMU and the console, and has started QEMU:
bubblewrap ends its box with the thread that started it.
"""

from __future__ import annotations

import fcntl
import glob
import os
import select
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from holdfast.model.errors import ChannelError, MachineError, StorageError, room_hint
from holdfast.model.paths import display
from holdfast.processes.helper_process import start_in_own_session
from holdfast.processes.kill_on_exit import ends_with_us
from holdfast.processes.process_tree import memory_of_tree
from holdfast.sandbox.namespace import Namespace
from holdfast.sandbox.namespace_entry import FAILED
from holdfast.sandbox.policy import AllowedConnections, FileAccess, SandboxPolicy
from holdfast.sandbox.secret_places import OF_THE_SYSTEM
from holdfast.sandbox.vm import boot_archive, command_line, disk
from holdfast.sandbox.vm.console import Console, harmless_lines
from holdfast.sandbox.vm.monitor import EventLoopThread, Monitor, require_library
from holdfast.sandbox.vm.plan import TIME_QUESTION
from holdfast.sandbox.vm.programs import find_qemu

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from holdfast.sandbox.images.manifest import Image
    from holdfast.sandbox.policy import Network
    from holdfast.sandbox.vm.plan import Accelerator, MachinePlan

    _Take = Callable[[bytes], object]

_SYSTEM = (
    b"usr", b"bin", b"sbin", b"lib", b"lib32", b"lib64", b"libx32", b"etc", b"nix", b"gnu", b"dev", b"proc", b"sys",
)  # fmt: skip
"""Entries of ``/``: the directories of programs and libraries, and those that the box has of its own."""
_KVM = b"/dev/kvm"
_STOP_SECONDS = 10.0
_QUIT_SECONDS = 2.0
_PLUG_SECONDS = 10.0
_LOOK_SECONDS = 0.01
_DRAIN_SECONDS = 1.0
_PIECE = 1 << 16
_ERROR_BYTES = 1 << 13
_KILLED = 128


class Machine:
    """A machine that was started. Leaving it as a context manager stops it."""

    @classmethod
    def start(cls, plan: MachinePlan, accelerator: Accelerator, *, restored: bool = False) -> Machine:
        """Start QEMU. The guest is not up yet when this returns: its first line comes over `control`, or `fileno` can
        be read, and `failure` says why. Each share must be served at its socket before the guest can begin.
        ``restored``: QEMU waits for its memory and the state of its devices (`holdfast.sandbox.vm.memory_snapshot`).

        Raises `UsageError` for a plan that contradicts itself, `UnsupportedError` if a program, a library or isolation
        by namespaces is missing, `LockedError` if another machine has the disk, `StorageError`.
        """
        command_line.check(plan)
        require_library()
        program = find_qemu()
        with ExitStack() as closing:
            machine = cls(plan, accelerator, program, closing, restored=restored)
            machine._closing = closing.pop_all()
            return machine

    def __init__(
        self, plan: MachinePlan, accelerator: Accelerator, program: str, closing: ExitStack, *, restored: bool
    ) -> None:
        """See `start`, which calls this."""
        self.plan = plan
        self.accelerator = accelerator
        self._closing = closing
        self._errors = bytearray()
        self._paused = False
        try:
            self._console = Console(plan.log)
            closing.callback(self._console.close)
            files = _open_files(plan, closing)
            self.memory = files[0]
            """A descriptor of the guest's memory, as a file that QEMU has mapped."""
        except OSError as error:
            where = f" {display(os.fsencode(error.filename))}" if error.filename else ""
            raise StorageError(f"cannot open{where}: {error.strerror}", hint=room_hint(error)) from error
        self._thread = EventLoopThread("holdfast-machine")
        closing.callback(self._thread.stop)
        with ExitStack() as theirs:

            def connected() -> tuple[socket.socket, int]:
                ours, its = socket.socketpair()
                closing.enter_context(ours)
                return ours, theirs.enter_context(its).fileno()

            monitor, monitor_fd = connected()
            console, console_fd = connected()
            self.control, control_fd = connected()
            """Our end of the port that the shim speaks at."""
            self.processes, processes_fd = connected()
            """Our end of the port at which the guest says which command a process belongs to
            (`holdfast.supervisor.keeper.guest_processes`).
            """
            shares = [] if restored else [connected() for _ in plan.shares]
            self.files = tuple(ours for ours, _ in shares)
            """For each of the plan's shares, the socket at which it is to be served, as its kind says; none for one
            that is restored.
            """
            self.plugged = set(range(len(shares)))
            """Which of the plan's shares have a device in the guest."""
            given = command_line.Descriptors(
                monitor_fd, console_fd, control_fd, processes_fd, *files, [descriptor for _, descriptor in shares]
            )
            image = plan.image._replace(
                kernel=os.path.realpath(plan.image.kernel), root=os.path.realpath(plan.image.root)
            )
            words = command_line.arguments(
                os.fsencode(program), plan._replace(image=image), accelerator, given, restored=restored
            )
            sockets = (monitor_fd, console_fd, control_fd, processes_fd)
            keep = [fd for fd in (*sockets, *files, *given.shares) if fd is not None]
            box = Namespace(_policy(image, plan.network, with_kvm=accelerator.kind == "kvm"))
            prepared = closing.enter_context(box.prepare(words, directory=b"/", environment={}, keep=keep))
            self._child: subprocess.Popen[bytes] = self._thread.call(
                lambda: start_in_own_session(
                    prepared.arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    environment=prepared.environment,
                    pass_fds=(*keep, *prepared.descriptors),
                )
            )
        closing.callback(self._kill)
        closing.enter_context(ends_with_us(self.pid))
        self._pidfd = os.pidfd_open(self.pid)
        closing.callback(os.close, self._pidfd)
        assert self._child.stderr is not None
        closing.enter_context(self._child.stderr)
        self._console_socket = console
        self._asked = b""
        self._sources = {console.fileno(): self._hear_console, self._child.stderr.fileno(): self._add_error}
        self._thread.call(self._listen)
        closing.callback(lambda: self._thread.call(self._hear_out))
        self._monitor = Monitor(self._thread, monitor)
        closing.callback(self._monitor.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """Our child, which ends when QEMU does."""
        return self._child.pid

    def fileno(self) -> int:
        """A descriptor of that child (pidfd_open(2)): readable when the machine has ended."""
        return self._pidfd

    def exit_code(self) -> int | None:
        """QEMU's exit code; 128 and more, or less than 0, if it was killed. None: it runs."""
        return self._child.poll()

    def wait(self, seconds: float) -> bool:
        """Wait for it to end. Whether it has."""
        if self.exit_code() is not None:
            return True
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        if not poll.poll(seconds * 1000):
            return False
        self._child.wait()
        return True

    def memory_in_use(self) -> int:
        """Its use of the host's memory in bytes: the guest's touched memory, and QEMU's own."""
        return memory_of_tree(self.pid)

    def console_tail(self, lines: int = 20) -> str:
        """The last lines of the console, of printable characters alone."""
        return self._console.tail(lines)

    # -- requests ------------------------------------------------------------------------------------------------------

    @property
    def monitor(self) -> Monitor:
        """QEMU's control."""
        return self._monitor

    def pause(self) -> None:
        """Hold the guest's processors; does nothing if they are held. Raises `ChannelError` if QEMU is gone."""
        self._monitor.execute("stop")
        self._paused = True

    def resume(self) -> None:
        """Let them go on; does nothing if they do. Raises as `pause`."""
        self._monitor.execute("cont")
        self._paused = False

    def unplug(self, number: int) -> None:
        """Take the device of a share out of the guest, which must have unmounted it; its back end is hung up on.
        Raises `ChannelError` also if the guest keeps it.
        """
        name = command_line.share_name(number)
        self._monitor.execute("device_del", {"id": name})
        until = time.monotonic() + _PLUG_SECONDS
        # The socket is in use while the device exists.
        while True:
            try:
                self._monitor.execute("chardev-remove", {"id": name})
            except ChannelError as error:
                if not error.message.endswith("is busy"):
                    raise
                if time.monotonic() > until:
                    path = display(self.plan.shares[number].path)
                    raise ChannelError(f"the guest does not let go of {path}") from error
                time.sleep(_LOOK_SECONDS)
            else:
                break
        self.plugged.discard(number)

    def plug(self, number: int, serve: Callable[[socket.socket], object]) -> None:
        """Give the guest the device of a share, for it to mount. ``serve`` is called with the socket at which its back
        end is to serve it, takes that over, and must return at once: QEMU waits for the back end's answer.

        Raises `ChannelError`.
        """
        name = command_line.share_name(number)
        ours, its = socket.socketpair()
        with its:
            try:
                self._monitor.execute("getfd", {"fdname": name}, fd=its.fileno())
                address = {"type": "fd", "data": {"str": name}}
                backend = {"type": "socket", "data": {"addr": address, "server": False}}
                self._monitor.execute("chardev-add", {"id": name, "backend": backend})
            except BaseException:
                ours.close()
                raise
        serve(ours)
        self._monitor.execute("device_add", command_line.share_device(number, self.plan.shares[number]))
        self.plugged.add(number)

    def stop(self, seconds: float = _STOP_SECONDS) -> None:
        """End the machine, cleanly if possible within ``seconds``: when its control channel closes, the guest ends its
        processes, writes unwritten data and powers off. After that QEMU gets a request to quit, and is killed at last.

        When this returns, all its processes have ended. Idempotent.
        """
        if self._closing is None:
            return
        if seconds > 0 and self.exit_code() is None:
            with suppress(OSError):
                if self._paused:
                    self._resume_quietly()
                self.control.shutdown(socket.SHUT_RDWR)
            self.wait(seconds)
        if self.exit_code() is None and self._monitor.is_connected():
            with suppress(ChannelError):
                self._monitor.execute("quit")
                self.wait(_QUIT_SECONDS)
        self._kill()
        closing, self._closing = self._closing, None
        closing.close()

    def failure(self, *, answered: bool = False) -> MachineError:
        """Why the machine is unusable: for a caller that waits for it in vain, or whose control channel has ended.
        ``answered``: it had started before.

        The code is ``vm_not_started`` (it did not start), ``vm_hung`` (it runs and does not answer), ``vm_crashed``
        (QEMU or the guest's kernel failed, or the guest ended by itself) or ``vm_killed``.
        """
        code, what = self._diagnosis(answered)
        lines = self.console_tail().split("\n")
        shown = "".join(f"\n  {line}" for line in lines if line)
        return MachineError(f"{what}{'; the end of its console:' if shown else ''}{shown}", code=code)

    def _diagnosis(self, answered: bool) -> tuple[str, str]:
        if not self.wait(0):
            status = self._status()
            if answered:
                return "vm_hung", f"the machine does not answer{status}"
            return "vm_not_started", f"the machine did not come up in time{status}"
        if self._closing is not None:
            self._monitor.wait_for_end(_DRAIN_SECONDS)
            self._thread.call(self._hear_out)
        ended, reason = self._child.wait(), self._monitor.shutdown_reason
        errors = harmless_lines(bytes(self._errors))
        early = "vm_crashed" if answered else "vm_not_started"
        if ended == FAILED:
            return "vm_not_started", errors[-1] if errors else "the box of the machine could not be made"
        if ended < 0 or ended > _KILLED:
            return "vm_killed", f"the machine was killed ({_signal_name(abs(ended) % _KILLED)})"
        if ended:
            return early, f"QEMU has failed ({ended}){': ' if errors else ''}{errors[-1] if errors else ''}"
        _, panicked, panic = self.console_tail(100).rpartition("Kernel panic - not syncing: ")
        if panicked:
            return "vm_crashed", f"the guest's kernel has panicked: {panic.partition(chr(10))[0]}"
        if reason == "guest-reset":
            return "vm_crashed", "the guest has restarted, which ends its machine"
        if reason == "guest-shutdown":
            return early, "the guest has powered off by itself"
        return early, f"the machine has ended{f' ({reason})' if reason else ''}"

    def _status(self) -> str:
        try:
            status = str(self._monitor.execute("query-status").get("status"))
        except ChannelError as error:
            return f": {error.message}"
        return "" if status in ("running", "prelaunch") else f": QEMU says that it is {status}"

    # -- behind the scenes ---------------------------------------------------------------------------------------------

    def _resume_quietly(self) -> None:
        with suppress(ChannelError):
            self.resume()

    def _listen(self) -> None:
        for fd, take in self._sources.items():
            os.set_blocking(fd, False)
            self._thread.loop.add_reader(fd, self._take, fd, take)

    def _take(self, fd: int, take: _Take) -> bool:
        """Whether more may come."""
        try:
            data = os.read(fd, _PIECE)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            take(data)
        else:
            self._thread.loop.remove_reader(fd)
        return bool(data)

    def _hear_out(self) -> None:
        """Read the rest from an ended QEMU's sockets. (From a living one, no more than the sockets hold.)"""
        until = time.monotonic() + _DRAIN_SECONDS
        for fd, take in self._sources.items():
            while self._take(fd, take) and time.monotonic() < until:
                pass

    def _hear_console(self, data: bytes) -> None:
        """Keep what the guest prints, and tell it the time when it asks."""
        self._console.add(data)
        said = self._asked + data
        if TIME_QUESTION in said:
            with suppress(OSError):  # a closed port gets no answer
                self._console_socket.send(b"%.6f\n" % time.time())
        self._asked = said[-len(TIME_QUESTION) + 1 :]

    def _add_error(self, data: bytes) -> None:
        self._errors += data
        del self._errors[:-_ERROR_BYTES]

    def _kill(self) -> None:
        if self._child.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._child.wait()


def _open_files(plan: MachinePlan, closing: ExitStack) -> tuple[int, int, int | None]:
    """Memory, first file system and disk, and the check that QEMU can open its files by path."""

    def closed_later(fd: int) -> int:
        closing.callback(os.close, fd)
        return fd

    ram = closed_later(os.memfd_create("holdfast-memory", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    os.truncate(ram, plan.memory)
    # Otherwise QEMU could truncate it under the processes that have mapped it to serve directories.
    fcntl.fcntl(ram, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    for path in (plan.image.kernel, plan.image.root):
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    initrd = closed_later(os.memfd_create("holdfast-initrd"))
    with open(initrd, "wb", closefd=False) as file:
        file.write(_initrd(plan))
    locked = None
    if plan.disk is not None:
        locked = closed_later(disk.open_disk(plan.disk))
    return ram, initrd, locked


def _initrd(plan: MachinePlan) -> bytes:
    """The image's, and the boot archive."""
    here = os.path.dirname(os.path.abspath(__file__))
    with (
        open(plan.image.initrd, "rb") as first,
        open(os.path.join(here, "guest_init.py"), "rb") as init,
        open(os.path.join(os.path.dirname(here), "shim.py"), "rb") as shim,
    ):
        told = boot_archive.boot_archive(plan.boot, plan.shares, plan.network, init=init.read(), shim=shim.read())
        return boot_archive.joined(first.read(), told)


def _policy(image: Image, network: Network, *, with_kvm: bool) -> SandboxPolicy:
    """The box of QEMU."""
    tops = tuple(b"/" + name for name in sorted(os.listdir(b"/")) if name not in _SYSTEM)
    # As root, QEMU could read files that a user could not.
    secret = tuple(path for pattern in OF_THE_SYSTEM for path in map(os.fsencode, glob.glob(pattern)))
    files = FileAccess(
        None, hidden=(*tops, *secret), lent=(image.kernel, image.root), devices=(_KVM,) if with_kvm else ()
    )
    if isinstance(network, AllowedConnections):
        network = network._replace(resets=True)
    return SandboxPolicy(files, network, environment=())


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def first_line(machine: Machine, seconds: float) -> bytes:
    """The guest's first line on its control port, within ``seconds``, as a trial. Raises `MachineError`."""
    until = time.monotonic() + seconds
    line = bytearray()
    waiting = select.poll()
    waiting.register(machine.control, select.POLLIN)
    waiting.register(machine.fileno(), select.POLLIN)
    while b"\n" not in line:
        left = until - time.monotonic()
        ready = [fd for fd, _ in waiting.poll(max(left, 0) * 1000)]
        piece = machine.control.recv(_PIECE) if machine.control.fileno() in ready else b""
        if not piece:
            raise machine.failure()
        line += piece
    return bytes(line.partition(b"\n")[0])
