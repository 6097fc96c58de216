"""Running a command in a workspace so that all its changes can be undone.

A checkpoint is taken before it and after it, and the history names the run at both; in between the supervisor records
every change in the undo log, in steps.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.engine.history.checkpoint import create_checkpoint_locked
from holdfast.engine.history.history_writer import next_state, record_run
from holdfast.engine.history.outside_policy import check_policy, remember_policy
from holdfast.engine.history.recovery import finish_interrupted, log_failure
from holdfast.engine.opening.current_run import RUN_VARIABLE, forbid_inside_run
from holdfast.engine.opening.home import own_directories
from holdfast.engine.opening.undo_log import has_ended, known_numbers, open_service, prepare_log
from holdfast.engine.opening.undo_log import log_limits as configured_limits
from holdfast.engine.running.isolation import make_box
from holdfast.model.checkpoint import Provenance
from holdfast.model.command_results import CheckpointRequest
from holdfast.model.errors import HoldfastError, UnsupportedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log, child_level
from holdfast.model.message_text import first_line, listed
from holdfast.model.paths import UNDO_LOG_IN_TREE, under
from holdfast.processes.child_environment import inherited_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Mapping, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.engine.running.machine import PreparedMachine
    from holdfast.model.config.settings import Isolation, OutsidePolicy, Safeguard
    from holdfast.model.ids import CheckpointId
    from holdfast.store.catalog_records import Cursor
    from holdfast.supervisor.control.remote_service import RemoteUndoService
    from holdfast.supervisor.keeper.keeper_settings import KeeperSettings
    from holdfast.undo.service import LogLimits, RunEnding, StepInfo, Thresholds, TicketInfo, UndoReport

_LOG = Log(__name__)

_MOST_NAMED = 3
_MOST_OF_LINE = 200


class RunResult(NamedTuple):
    """The result of a run."""

    run: str
    exit_code: int
    """The command's; 128 and the number of the signal that ended it."""
    before: CheckpointId
    """The state that it began in."""
    after: CheckpointId
    """The state that it left."""
    steps: Sequence[StepInfo]
    """The run's steps with changes."""
    isolation: Isolation
    """The isolation of the run."""
    unanswered: Sequence[TicketInfo] = ()
    """Held operations without an answer in time: the step of each was rolled back."""
    forgotten: int = 0
    """The number of its steps that the undo log has dropped because of its limits."""

    @property
    def standing(self) -> Sequence[StepInfo]:
        """The steps that were not undone before it ended, as denied steps and rollbacks inside the run are."""
        return [step for step in self.steps if step.state in ("open", "done")]

    @property
    def left(self) -> Sequence[StepInfo]:
        """Steps that were undone in part: something was left as it is (`UndoService.conflicts`)."""
        return [step for step in self.steps if step.state == "partly"]


class Invocation(NamedTuple):
    """The command, its directory, and its name in the history."""

    command: Sequence[bytes]
    """The argument list."""
    directory: bytes | None = None
    """None: this process's."""
    environment: Mapping[bytes, bytes] | None = None
    """None: this process's."""
    identity: str | None = None
    """The run's id (`new_run_id`), if the caller has to know it before."""
    one_step: bool = False
    """The whole run is one step."""
    fails_whole: bool = False
    """If it fails, its background processes end with it."""
    face: str = ""
    """The interface that it serves commands by, such as ``mcp``: the history shows this and the commands with changes,
    instead of ``command``.
    """
    is_shim: bool = False
    """It runs the commands from its standard input. In a virtual machine another shim does, which gets the input."""


class RunPolicy(NamedTuple):
    """A run's limits, and those of its undo log. None always means: as in the settings."""

    isolation: Isolation | None = None
    bridge: bool = False
    """It is not supervised: its changes come by a mount over the workspace that only it sees. Excludes isolation and
    ``read_only``.
    """
    read_only: Sequence[int] = ()
    """Descriptors of directories that it may not change, with their contents; see `supervise`. It sees them even when
    isolated.
    """
    thresholds: Thresholds | None = None
    """When a person is asked; the limits of other runs here apply as well."""
    limits: LogLimits | None = None
    """Of the undo log, if no keeper has it yet."""
    outside: OutsidePolicy | None = None
    """Whether undo stops at what others have changed."""


AS_CONFIGURED = RunPolicy()


def run(
    context: Context,
    invocation: Invocation,
    policy: RunPolicy = AS_CONFIGURED,
    *,
    ask: Callable[[TicketInfo], bool | None] | None = None,
    told: Callable[[UndoReport], object] | None = None,
) -> RunResult:
    """Run a command under supervision until it ends. It has the terminal meanwhile.

    Nothing runs if the first checkpoint fails, or if it cannot be supervised or isolated as requested
    (`UnsupportedError`). Its background processes go on, supervised; in namespaces they end with it. ``ask`` is called
    on a thread of its own for held operations: True allows one, False denies it, None leaves it to others. ``told``
    receives the report of a killed keeper's steps that were rolled back.
    """
    from holdfast.supervisor.launch.supervised_run import SupervisedCommand, supervise
    from holdfast.supervisor.resolution.territory import absolute

    command = invocation.command
    shown = invocation.face or " ".join(map(os.fsdecode, command)).encode("utf-8", "replace").decode()
    forbid_inside_run(context, "another run")
    context.renew_settings()
    context.require_configured()
    outside = context.settings.undo.outside if policy.outside is None else policy.outside
    check_policy(outside)
    log, forgotten = prepare_to_record(context, told)
    isolation = context.settings.isolation if policy.isolation is None else policy.isolation
    directory = os.getcwdb() if invocation.directory is None else invocation.directory
    if policy.bridge:
        _check_bridge(context, isolation, policy.read_only)
    others = [absolute(fd) for fd in policy.read_only]
    machine = _machine(context, isolation, directory, others) if isolation.level == "vm" else None
    box = make_box(context, isolation, directory=directory, log=log, readable=others) if machine is None else None
    identity = begin_run(context, shown, invocation.identity)
    remember_policy(context, identity, outside)
    before = _head(context)
    asked_for = policy.thresholds
    if asked_for is None:
        asked_for = configured_thresholds(context.settings.safeguard, guard=False)
    settings = keeper_settings(context, log, outside, policy.limits)
    surroundings = inherited_environment(os.environb if invocation.environment is None else invocation.environment)
    surroundings[RUN_VARIABLE] = identity.encode()
    parting: list[RunEnding] = []
    meanwhile = _answer_run(context, identity, settings.log, ask if asked_for.asks else None)
    try:
        if machine is not None:
            from holdfast.engine.running.machine import MachineCommand, run_in_machine

            words = () if invocation.is_shim else command
            in_machine = MachineCommand(
                words,
                os.path.realpath(directory),
                surroundings,
                identity,
                asked_for,
                not invocation.one_step,
                policy.read_only,
            )
            with meanwhile:
                code = run_in_machine(machine, in_machine, settings, parted=parting.append)
        else:
            supervised = SupervisedCommand(
                command,
                directory=directory,
                environment=surroundings,
                run=identity,
                one_step=invocation.one_step,
                fails_whole=invocation.fails_whole,
                read_only=policy.read_only,
                thresholds=asked_for,
            )
            entry = _entry(context, settings, directory, command) if policy.bridge else None
            code = supervise(supervised, settings, box=box, entry=entry, parted=parting.append, meanwhile=meanwhile)
    finally:
        steps = end_run(context, identity, shown, told, forgotten, itemized=bool(invocation.face))
    (last,) = parting
    return RunResult(
        identity, code, before, _head(context), steps, isolation, unanswered=last.unanswered, forgotten=last.forgotten
    )


def _machine(context: Context, isolation: Isolation, directory: bytes, read_only: Sequence[bytes]) -> PreparedMachine:
    from holdfast.engine.running.machine import prepare_machine

    return prepare_machine(context, isolation, directory, read_only)


def prepare_to_record(context: Context, told: Callable[[UndoReport], object] | None) -> tuple[bytes, Collection[str]]:
    """Prepare the undo log for a run; its directory, and the runs of which it has forgotten steps.

    A killed keeper's step is recovered, and ``told`` is called, before any save.
    """
    with context.lock(as_found=True):
        log = prepare_log(context)
        with open_service(context, on_report=told) as service:
            finish_interrupted(context, service)
            return log, () if service is None else service.forgotten()


def keeper_settings(
    context: Context, log: bytes, outside: OutsidePolicy, limits: LogLimits | None = None
) -> KeeperSettings:
    """The settings of a keeper of ``context``'s workspace; ``limits`` are the configured ones if None."""
    from holdfast.files.local_tree import LocalTree
    from holdfast.supervisor.keeper.keeper_settings import KeeperSettings

    tree = context.tree
    assert isinstance(tree, LocalTree)  # only directories of this machine are supervised
    return KeeperSettings(
        root=context.workspace.path,
        log=log,
        exclude=tree.sources.exclude,
        user=(tree.sources.user.home, tree.sources.user.config_home),
        forbidden=tuple(filter(os.path.isdir, own_directories(context.home, context.settings))),
        limits=limits or configured_limits(context),
        least=known_numbers(context),
        outside_blocks=outside == "barrier",
        server="holdfast.engine.running.mount_service",
        log_level=child_level(),
        notify=context.settings.safeguard.notify,
        home=context.home,
    )


def _check_bridge(context: Context, isolation: Isolation, read_only: Sequence[int]) -> None:
    if isolation.level != "none" or read_only:
        raise UnsupportedError(
            "--bridge fuse and isolation cannot be combined",
            hint="--isolation none, or leave --bridge away: a supervised run is isolated by --isolation namespace",
        )
    if context.workspace.path == b"/":
        raise UnsupportedError("nothing can be mounted over the root of the file system")


def _entry(
    context: Context, settings: KeeperSettings, directory: bytes, command: Sequence[bytes]
) -> Callable[[int], Sequence[bytes]]:
    """The command line for a channel, with which the command sees the workspace by a mount."""
    from holdfast.engine.running.mount_entry import build_arguments

    root = os.path.realpath(settings.root)
    others = [os.path.join(one.path, UNDO_LOG_IN_TREE) for one in context.catalog.workspaces() if one.path != root]
    own = [*settings.forbidden, os.path.realpath(settings.log), *filter(os.path.isdir, others)]
    outermost = [path for path in own if not any(path != other and under(path, other) for other in own)]
    return lambda channel: build_arguments(channel, root, list(dict.fromkeys(outermost)), directory, command)


@contextmanager
def _answer_run(
    context: Context, identity: str, log: bytes, ask: Callable[[TicketInfo], bool | None] | None
) -> Generator[None]:
    """For the length of the block, take checkpoints that the run asks for, and `_answer_tickets`."""
    from holdfast.engine.running._checkpoint_server import serve_checkpoints

    with _answer_tickets(log, ask), serve_checkpoints(context, identity):
        yield


@contextmanager
def _answer_tickets(log: bytes, ask: Callable[[TicketInfo], bool | None] | None) -> Generator[None]:
    """For the length of the block, ask about held operations."""
    if ask is None:
        yield
        return
    from holdfast.engine.running.keeper_watch import KeeperWatch

    def look(keeper: RemoteUndoService, begun: Sequence[TicketInfo], _over: object) -> None:
        for ticket in begun:
            answer = ask(ticket)
            if answer is not None:
                try:
                    keeper.answer(ticket.id, allow=answer)
                except HoldfastError as error:
                    # Another person answered it, its time was over, or the keeper has ended.
                    _LOG.info("%s", error.message)

    watch = KeeperWatch(log, look)
    try:
        yield
    finally:
        watch.stop()


def new_run_id(random: Callable[[int], bytes]) -> str:
    """An id that no run has."""
    return random(6).hex()


def begin_run(context: Context, command: str, identity: str | None = None) -> str:
    """Save the present state, and record the beginning of a run in the history; returns its id."""
    identity = identity or new_run_id(context.random)
    with context.lock():
        create_checkpoint_locked(
            context, CheckpointRequest("run", provenance=_provenance(context, identity, "begins", command))
        )
        record_run(context, identity, command)
    return identity


def end_run(
    context: Context,
    identity: str,
    command: str,
    told: Callable[[UndoReport], object] | None = None,
    forgotten: Collection[str] = (),
    *,
    itemized: bool = False,
) -> list[StepInfo]:
    """Save the run's changes, and record its end; returns its steps. Reports steps that the undo log has forgotten,
    except of the runs ``forgotten`` before. ``itemized``: the history names the steps' commands after ``command``.
    """
    with context.lock(as_found=True), open_service(context, on_report=told) as service:
        with log_failure():
            finish_interrupted(context, service)
        steps = [] if service is None else [step for step in service.steps() if step.run == identity]
        acted = [step for step in steps if step.paths]
        if itemized:
            command = ": ".join(filter(None, (command, _named_commands(acted))))
        cursor, ids = context.catalog.cursor(context.workspace.id), tuple(step.id for step in steps)
        if service is not None:
            _say_forgotten(identity, [one for one in service.forgotten() if one not in forgotten])
        recorded = None
        if acted and cursor.head is not None and not _is_undone_to(context, cursor, acted):
            # A state of its own, even if all changes are ignored: later changes must not come before its steps.
            recorded = next_state(cursor, "run", steps=ids, run=identity, text=command)
        request = CheckpointRequest("run", provenance=_provenance(context, identity, "ended", command))
        create_checkpoint_locked(context, request, recorded=recorded)
        if recorded is None:
            record_run(context, identity, command, ids)
    # The rollback of a step may have left all its changes as they are.
    return [step for step in steps if step.paths or step.state == "partly"]


def _named_commands(steps: Sequence[StepInfo]) -> str:
    """The first commands of steps, each once, and how many more there are."""
    lines: dict[str, None] = {}
    for step in steps:
        words = step.command[2:] if step.command[:2] == (b"sh", b"-c") else step.command
        if line := first_line(b" ".join(words).decode("utf-8", "replace"), _MOST_OF_LINE):
            lines[line] = None
    named = [*lines][:_MOST_NAMED]
    return "; ".join([*named, f"and {len(lines) - len(named):,} more"] if len(lines) > len(named) else named)


def _say_forgotten(identity: str, runs: Sequence[str]) -> None:
    if identity in runs:
        _LOG.warning(
            "the undo log was full or discarded, and forgot steps of this run. `holdfast undo --run "
            "%s --force` takes back the rest, but no ignored files that the forgotten steps changed",
            identity,
        )
    if others := [run for run in runs if run != identity]:
        _LOG.warning(
            "the undo log was full (undo.max_steps, undo.max_log_bytes) or discarded: "
            "%s %s can no longer be undone completely",
            "run" if len(others) == 1 else "runs",
            listed(others),
        )


def _is_undone_to(context: Context, cursor: Cursor, steps: Sequence[StepInfo]) -> bool:
    """Whether an undo led to the history's present position, and no step has ended since: the way forward stays
    open.
    """
    if cursor.redo_tip is None or cursor.position == cursor.redo_tip:
        return False
    moves = (event for event in context.catalog.events(context.workspace.id) if event.operation in ("undo", "redo"))
    last = next(moves, None)
    return last is not None and all(has_ended(step, last) for step in steps)


def configured_thresholds(settings: Safeguard, *, guard: bool) -> Thresholds:
    """The limits of safeguards; ``guard`` turns the preset on."""
    from holdfast.undo.service import OFF, PRESET

    preset = PRESET if guard or settings.preset == "guard" else OFF
    own = settings._asdict()
    chosen = {
        "deletes": own["deletes"],
        "overwrite_bytes": own["overwrite_bytes"],
        "rename_over": own["rename_over"],
    }
    known = {key: type(getattr(preset, key))(value) for key, value in chosen.items() if value >= 0}
    return preset._replace(timeout=settings.timeout, **known)


def _provenance(context: Context, identity: str, what: str, command: str) -> Provenance:
    return Provenance(context.settings.identity.author, f"run {identity} {what}", command)


def _head(context: Context) -> CheckpointId:
    head = context.catalog.cursor(context.workspace.id).head
    assert head is not None
    return head
