"""Runs a command in a virtual machine of the workspace: the workspace's keeper serves the machine's files and records
its changes; it reaches nothing else on the host.

The machine is this process's child, and this process has its screen, its commands and its monitor; the keeper has the
workspace's files. If one of the three ends, so do the other two.
"""

from __future__ import annotations

import os
import pwd
import select
import signal
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.engine.running.keeper_watch import KeeperWatch
from holdfast.engine.running.machine_state import machine_directory, noted, provide_disk
from holdfast.engine.running.read_only_share import shared_read_only
from holdfast.files.linux.case_sensitivity import IGNORES_CASE, ignores_case
from holdfast.model.config.settings import Isolation
from holdfast.model.errors import ChannelError, HoldfastError, LockedError, MachineError, UnsupportedError, UsageError
from holdfast.model.log import Log
from holdfast.model.machine import RunningMachine
from holdfast.model.paths import display
from holdfast.processes.process_tree import hindered_seconds
from holdfast.sandbox.channel import Channel
from holdfast.sandbox.images.store import ImageStore
from holdfast.sandbox.policy import let_through, parse_network
from holdfast.sandbox.terminal_command import run_at_channel
from holdfast.sandbox.vm.accelerator import choose_accelerator
from holdfast.sandbox.vm.command_line import MEMORY_UNIT
from holdfast.sandbox.vm.machine import Machine
from holdfast.sandbox.vm.plan import Accelerator, BootPlan, GuestFile, GuestUser, MachinePlan, Share
from holdfast.supervisor.control.keeper_port import JoinRequest
from holdfast.supervisor.launch.keeper_connection import join

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.model.clock import Clock
    from holdfast.sandbox.images.manifest import Image
    from holdfast.supervisor.control.keeper_port import ServedBy
    from holdfast.supervisor.control.remote_service import RemoteUndoService
    from holdfast.supervisor.keeper.keeper_settings import KeeperSettings
    from holdfast.undo.service import RunEnding, Thresholds, TicketInfo

_LOG = Log(__name__)

_TERMINAL: Final = ("TERM", "COLORTERM", "NO_COLOR", "COLUMNS", "LINES", "LANG", "LANGUAGE", "LC_*", "TZ")
"""Variables that describe the caller's terminal."""
_SYSTEM: Final = frozenset(b"/ /bin /boot /dev /etc /lib /lib64 /proc /run /sbin /sys /usr /var".split())
"""Where a workspace would cover what the guest is made of."""
_STOP_SECONDS: Final = 20.0
_ENDING_SECONDS: Final = 5.0
_PIECE_BYTES: Final = 1 << 16
_LARGEST_FILE: Final = 1 << 20


class PreparedMachine(NamedTuple):
    """The parts that are prepared before the start."""

    plan: MachinePlan
    accelerator: Accelerator
    disk_bytes: int | None
    """The size of the disk that stays; None: none does."""
    start_seconds: float
    clock: Clock


class MachineCommand(NamedTuple):
    """The command for a machine."""

    words: Sequence[bytes]
    """Empty: this process's standard input and output are the lines of the control channel for another process."""
    directory: bytes
    environment: Mapping[bytes, bytes]
    """The caller's."""
    run: str
    thresholds: Thresholds
    tells_apart: bool = True
    """Each child of the command makes a step, where its file system says which process a change is by (9P does not)."""
    read_only: Sequence[int] = ()
    """Descriptors of additional directories that it sees."""


def prepare_machine(
    context: Context, isolation: Isolation, directory: bytes, read_only: Sequence[bytes] = ()
) -> PreparedMachine:
    """Look up all that a machine of the workspace's consists of. ``read_only`` are directories that it is to see and
    cannot change. Raises `UnsupportedError`, `UsageError` and `NotFoundError`, and has changed nothing.
    """
    settings, root = context.settings.vm, os.path.realpath(context.workspace.path)
    _check(isolation, root)
    if not _is_in(os.path.realpath(directory), root):
        raise UsageError(
            f"a virtual machine sees nothing of {display(directory)}", hint="run the command in the workspace"
        )
    image = ImageStore(context.home).find(settings.image)
    kept = machine_directory(context.folder)
    persistent = settings.mode == "persistent"
    user = _user()
    network = parse_network(isolation.network, isolation.allow, isolation.dns)
    kind: ServedBy = "virtiofs" if settings.filesystem == "auto" else settings.filesystem
    _check_kernel(image, kind)
    boot = BootPlan(
        user,
        environment=_environment((*settings.environment, *isolation.environment), os.environb),
        files=_files(settings.files, user.home, (root, *read_only)),
    )
    plan = MachinePlan(
        image=image,
        memory=-(-settings.memory // MEMORY_UNIT) * MEMORY_UNIT,
        cpus=settings.cpus,
        boot=boot,
        network=network,
        log=kept,
        shares=(
            Share("workspace", root, kind=kind),
            *(Share(f"other-{at}", path, read_only=True, kind=kind) for at, path in enumerate(read_only)),
        ),
    )
    accelerator = choose_accelerator(context.home, image)
    if accelerator.note:
        _LOG.warning("%s", accelerator.note)
    return PreparedMachine(
        plan, accelerator, settings.disk if persistent else None, settings.start_timeout, context.clock
    )


def _user() -> GuestUser:
    """The user of this process, with a home directory in the guest."""
    uid = os.geteuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = "agent"  # the host has a number alone
    return GuestUser(name, uid, os.getegid(), b"/root" if uid == 0 else os.path.join(b"/home", os.fsencode(name)))


def run_in_machine(
    prepared: PreparedMachine,
    command: MachineCommand,
    settings: KeeperSettings,
    *,
    parted: Callable[[RunEnding], object],
    serve: Callable[[Channel, Machine], int] | None = None,
) -> int:
    """Start the machine, run the command in it until that has ended, and shut it down; the exit code (128 and the
    number of the signal that ended it). ``serve``: that has commands run, and the machine ends when it returns. Raises
    `HoldfastError`: `vm_not_started`, `vm_hung`, `vm_crashed`, `vm_killed`
    for the machine, ``keeper_gone``.
    """
    plan = prepared.plan
    os.makedirs(plan.log, 0o700, exist_ok=True)
    if prepared.disk_bytes is not None:
        plan = plan._replace(disk=provide_disk(plan.log, prepared.disk_bytes, plan.image, prepared.clock))
    with ExitStack() as context:
        machine = context.enter_context(_started(plan, prepared.accelerator))
        _LOG.info("a machine was started", run=command.run, pid=machine.pid, accelerator=prepared.accelerator.kind)
        context.enter_context(noted(plan.log, _running(plan, prepared, machine, command.run)))
        kind, (files, *others) = plan.shares[0].kind, machine.files
        for directory, connection in zip(command.read_only, others, strict=True):
            own = (*settings.forbidden, settings.log)
            context.enter_context(shared_read_only(directory, connection, kind, own))
        keeper = context.enter_context(_joined(machine.pid, files, machine.processes, kind, command, settings))
        with _watched(machine, keeper, command.run, settings.log):
            try:
                code = _converse(machine, keeper, kind, command, prepared.start_seconds, serve)
            finally:
                machine.stop(_STOP_SECONDS)
                _LOG.info("the machine has ended", run=command.run, exit_code=machine.exit_code())
        parted(keeper.leave())
        return code


def _started(plan: MachinePlan, accelerator: Accelerator) -> Machine:
    try:
        return Machine.start(plan, accelerator)
    except LockedError as error:
        raise LockedError(
            "another virtual machine of this workspace runs, and has its disk",
            hint="`holdfast vm status` shows it; HOLDFAST_VM_MODE=ephemeral runs this one without that disk",
            code="machine_running",
        ) from error


def _running(plan: MachinePlan, prepared: PreparedMachine, machine: Machine, run: str) -> RunningMachine:
    return RunningMachine(
        run=run,
        pid=machine.pid,
        image=plan.image.name,
        accelerator=prepared.accelerator.kind,
        filesystem=plan.shares[0].kind,
        persistent=plan.disk is not None,
        started_at=time.time(),
    )


@contextmanager
def _joined(
    monitor: int,
    files: socket.socket,
    port: socket.socket,
    kind: ServedBy,
    command: MachineCommand,
    settings: KeeperSettings,
) -> Generator[RemoteUndoService]:
    request = JoinRequest(
        run=command.run,
        agent=monitor,
        one_step=False,
        command=tuple(command.words) or (b"virtual machine",),
        directory=command.directory,
        read_only=0,
        thresholds=command.thresholds,
        served_by=kind,
    )
    keeper, _ = join(settings, request, files.fileno(), port=port.fileno())
    files.close()
    port.close()
    with keeper:
        yield keeper


def _converse(
    machine: Machine,
    keeper: RemoteUndoService,
    kind: ServedBy,
    command: MachineCommand,
    start_seconds: float,
    serve: Callable[[Channel, Machine], int] | None,
) -> int:
    """Have the command run, or another process talk to the shim; the exit code. Raises `MachineError`."""
    if not command.words and serve is None:
        if not _relay(machine.control):
            raise _failure(machine, answered=True)
        return 0
    with Channel(machine.control, machine.control, start_seconds=start_seconds) as channel:
        try:
            channel.await_shim(start_seconds, lambda: hindered_seconds(machine.pid))
        except ChannelError as error:
            raise _failure(machine, answered=False) from error
        _LOG.info("the machine is up", run=command.run)
        try:
            return _run(channel, keeper, kind, command) if serve is None else serve(channel, machine)
        except ChannelError as error:
            if error.code == "shim_violation":
                raise
            raise _failure(machine, answered=True) from error


def _run(channel: Channel, keeper: RemoteUndoService, kind: ServedBy, command: MachineCommand) -> int:
    given = let_through(_TERMINAL, command.environment)
    if command.tells_apart and kind == "virtiofs":
        return run_at_channel(channel, 1, command.words, command.directory, given)
    step = keeper.expect(command.run, command.words)
    code = None
    try:
        code = ended = run_at_channel(channel, step, command.words, command.directory, given)
    finally:
        keeper.settle(step, code)
    return ended


def _failure(machine: Machine, *, answered: bool) -> MachineError:
    """Why the shim does not answer; a machine that is just ending is waited for."""
    has_ended = machine.wait(_ENDING_SECONDS if answered else 0)
    error = machine.failure(answered=answered)
    if not answered and not has_ended:
        error.hint = (
            "an emulated machine starts slowly: vm.start_timeout is what that may take, without its waits for a "
            "processor that others have"
        )
    return error


@contextmanager
def _watched(machine: Machine, keeper: RemoteUndoService, run: str, log: bytes) -> Generator[None]:
    """For the length of the block, the machine ends with the keeper, and pauses while a change of the run is held."""
    over = os.eventfd(0, os.EFD_CLOEXEC)
    lost: list[bool] = []

    def look_after() -> None:
        ends = select.poll()
        for each in (over, machine.fileno()):
            ends.register(each, select.POLLIN)
        ends.register(keeper.fileno(), select.POLLRDHUP)  # only the hang-up: answers are for the thread that asked
        found = {fd for fd, _ in ends.poll()}
        if keeper.fileno() in found and over not in found:
            lost.append(True)
            signal.pidfd_send_signal(machine.fileno(), signal.SIGKILL)

    held: set[int] = set()

    def look(service: RemoteUndoService, begun: Sequence[TicketInfo], ended: Sequence[TicketInfo]) -> None:
        was_held = bool(held)
        own = {step.id for step in service.steps() if step.run == run} if begun else ()
        held.update(ticket.id for ticket in begun if ticket.step in own)
        held.difference_update(ticket.id for ticket in ended)
        if was_held != bool(held):
            (machine.pause if held else machine.resume)()

    thread = threading.Thread(target=look_after, daemon=True)
    thread.start()
    watch = KeeperWatch(log, look)
    try:
        yield
    except HoldfastError as error:
        if lost:
            raise HoldfastError(
                "the run was ended: its keeper was killed",
                hint="its open step is rolled back when the undo log is used next; `holdfast redo --step` "
                "brings it forward, `holdfast steps` names it",
                code="keeper_gone",
            ) from error
        raise
    finally:
        watch.finish()
        os.eventfd_write(over, 1)
        thread.join()
        os.close(over)


def _relay(control: socket.socket) -> bool:
    """Copy standard input to the machine, and its output back, until one side ends; whether that is this side."""
    control.setblocking(True)
    has_ended = threading.Event()

    def pass_on() -> None:
        with suppress(OSError):  # the machine has ended, as the loop below notices
            while data := os.read(0, _PIECE_BYTES):
                control.sendall(data)
            has_ended.set()
            control.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=pass_on, daemon=True).start()
    try:
        while data := control.recv(_PIECE_BYTES):
            while data:
                data = data[os.write(1, data) :]
    except BrokenPipeError:
        return True
    except OSError:
        pass  # it has ended
    return has_ended.is_set()


def _check(isolation: Isolation, root: bytes) -> None:
    """Raise `UsageError` or `UnsupportedError` for what a machine cannot do."""
    for name in ("hidden", "visible", "writable", "tmp"):
        if getattr(isolation, name) != getattr(Isolation(), name):
            raise UsageError(
                f"isolation.{name} has no meaning for a virtual machine, which sees nothing of the host but the "
                "workspace",
                hint="vm.files names files that it gets copies of",
            )
    for name, instead in (("memory", "vm.memory"), ("disk", "vm.disk"), ("processes", "vm.cpus")):
        if getattr(isolation, name):
            raise UsageError(f"isolation.{name} is for namespaces", hint=f"a virtual machine is limited by {instead}")
    if ignores_case(root):
        raise UnsupportedError(f"a virtual machine cannot show {display(root)}: {IGNORES_CASE}")
    if root in _SYSTEM:
        raise UnsupportedError(f"a virtual machine cannot show {display(root)}: its own system is there")


def _check_kernel(image: Image, kind: ServedBy) -> None:
    """Raise `UnsupportedError` if the image's kernel cannot mount such a file system."""
    about = image.manifest
    if kind == "9p" and kind not in about.modules:
        raise UnsupportedError(
            f"the kernel of the image {image.name} ({about.kernel_release}) has no 9P, which vm.filesystem asks for",
            hint=f"`holdfast image build {image.name} --kernel linux-image-{about.architecture}` builds it with one "
            "that has, or leave vm.filesystem at auto",
            code="kernel_lacks_module",
        )


def _is_in(path: bytes, directory: bytes) -> bool:
    return path == directory or path.startswith(directory.rstrip(b"/") + b"/")


def _environment(names: Sequence[str], environment: Mapping[bytes, bytes]) -> dict[str, str]:
    found = let_through(names, environment)
    return {os.fsdecode(name): os.fsdecode(value) for name, value in found.items()}


def _files(names: Sequence[str], home: bytes, shown: Sequence[bytes]) -> tuple[GuestFile, ...]:
    """Copies of the user's files. Raises `UsageError` for one that is no file, cannot be read, or would replace a file
    in one of the host's directories that are ``shown``.
    """
    found: list[GuestFile] = []
    own = os.path.expanduser(b"~")
    for name in names:
        path = os.path.abspath(os.path.expanduser(os.fsencode(name)))
        try:
            with open(path, "rb") as file:
                content = file.read(_LARGEST_FILE + 1)
                mode = os.fstat(file.fileno()).st_mode & 0o777
        except OSError as error:
            raise UsageError(f"vm.files: {display(path)}: {error.strerror}") from error
        if len(content) > _LARGEST_FILE:
            raise UsageError(f"vm.files: {display(path)} is larger than {_LARGEST_FILE} bytes")
        there = os.path.join(home, os.path.relpath(path, own)) if _is_in(path, own) else path
        if any(_is_in(there, each) for each in shown):
            raise UsageError(
                f"vm.files: {display(path)} lies in a directory that the machine sees as it is",
                hint="leave it out: it is there already",
            )
        found.append(GuestFile(there, content, mode))
    return tuple(found)
