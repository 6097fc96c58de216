"""Reaching the undo log of a workspace: its keeper where one runs, else the log itself for as long as it takes."""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial

from holdfast.engine.opening.current_run import current_run
from holdfast.engine.opening.home import UNDO_LOG, forks_directory, own_directories
from holdfast.files.scan.parallel_scan import end_early
from holdfast.model.errors import (
    HoldfastError,
    LockedError,
    NotFoundError,
    RefusedError,
    StorageError,
    UnsupportedError,
)
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.log import Log
from holdfast.model.paths import KEEPER_SOCKET, UNDO_LOG_IN_TREE, display, under

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence
    from contextlib import AbstractContextManager

    from holdfast.engine.opening.context import Context
    from holdfast.engine.opening.operation_journal import Operation
    from holdfast.model.checkpoint import HistoryEvent
    from holdfast.model.entries import Change
    from holdfast.model.ids import Hash
    from holdfast.undo.journal.heartbeat import Heartbeat
    from holdfast.undo.service import (
        BarrierInfo,
        ConflictInfo,
        LogLimits,
        PathChange,
        StepInfo,
        UndoReport,
        UndoService,
    )

_LOG = Log(__name__)

_PAUSE = 0.05
_MOVING_SECONDS = 2.0
"""How long another process may take to set a log aside."""
_LOOKED_BACK = 10
"""Events: their numbers grow, but of one that could not be known."""


def log_directory(context: Context) -> bytes:
    """Where the undo log of the workspace is, or would be.

    In the workspace's folder of the home if a file can be renamed from the tree to there; else in the tree.
    """
    root = context.workspace.path
    outside, in_the_tree = os.path.join(context.folder, UNDO_LOG), os.path.join(root, UNDO_LOG_IN_TREE)
    if current_run(context) is not None:
        # No test by `_is_other_mount`: the run would record its rename, and may hold it. A run has a keeper, so look
        # for its socket.
        return in_the_tree if os.path.lexists(os.path.join(in_the_tree, KEEPER_SOCKET)) else outside
    return in_the_tree if _is_other_mount(context.folder, root) else outside


def log_limits(context: Context) -> LogLimits:
    """How much the undo log may hold, as the settings say."""
    from holdfast.undo.service import LogLimits

    of = context.settings.undo
    return LogLimits(of.max_log_bytes, of.max_steps, of.max_step_bytes)


def known_numbers(context: Context) -> Heartbeat:
    """The undo log's numbers that the history knows: a log that replaces a lost one must give out larger numbers. With
    smaller ones its steps would seem older than the states before them, or be confused with lost steps.
    """
    from holdfast.undo.journal.heartbeat import NONE, read_beat

    catalog, workspace = context.catalog, context.workspace.id
    seq = max((event.undo_seq or 0 for event in catalog.events(workspace, limit=_LOOKED_BACK)), default=0)
    beat = read_beat(log_directory(context))
    if beat is not None and beat != NONE and beat.seq >= seq:
        return NONE  # all the history's numbers are its own
    from holdfast.engine.opening.operation_journal import read_operation

    events = catalog.events(workspace)
    named = [step for event in events for step in event.steps]
    with suppress(HoldfastError):  # operations that need a damaged record report it
        operation = read_operation(context.folder)
        named += () if operation is None else operation.steps
    return NONE._replace(
        step=max(0, *named) if named else 0,
        ambient=min(0, *named) if named else 0,
        seq=max((event.undo_seq or 0 for event in events), default=0),
    )


@contextmanager
def open_service(
    context: Context,
    *,
    always: bool = False,
    read_only: bool = False,
    on_report: Callable[[UndoReport], object] | None = None,
    own_limits: LogLimits | None = None,
) -> Generator[UndoService | None]:
    """The workspace's undo log; None if it has none (``always`` makes it, as `prepare_log` does), or its directory is
    gone.

    An unfinished step of a killed keeper is rolled back first, and reported to the log and to ``on_report``.
    ``own_limits`` apply to a log without a keeper (None: the settings). With ``read_only`` neither this function nor
    the caller may change anything: an unfinished step is only reported. Raises `VersionMismatchError`, `StorageError`,
    and `LockedError` if another process has the log without answering for it.
    """
    directory = log_directory(context)
    if always and os.path.isdir(context.workspace.path):
        prepare_log(context)
    elif not _is_there(context, directory):
        yield None
        return
    if not read_only:
        # From here on the tree may change without the early scan's knowledge: recovery rolls steps back, and a keeper
        # in its own process may reverse steps for the caller.
        end_early()
    from holdfast.supervisor.control.remote_service import visit

    deadline = context.clock.monotonic() + context.settings.lock.timeout
    while True:
        keeper = visit(directory)
        if keeper is not None:
            with keeper, _remember_service(context, None if read_only else keeper):
                yield keeper
            return
        wait = context.clock.monotonic() < deadline
        own = _open_log(
            context, directory, on_report, own_limits or log_limits(context), wait=wait, read_only=read_only
        )
        if own is not None:
            with own as service, _remember_service(context, None if read_only else service):
                yield service
            return
        time.sleep(_PAUSE)


def recover_log(context: Context, found: bytes, *, noted: bool) -> None:
    """Roll back the unfinished steps of a killed keeper, and finish its reversals, in the log ``found``. Report it; if
    ``noted``, record it for the next session. Does nothing while a keeper lives. Needs the lock.

    A failure, or a lack of permission, is reported once and keeps no command from its work.
    """
    from holdfast.undo.journal.log_ownership import VersionMismatchError, check_version, has_keeper, is_half_done

    if has_keeper(found):
        return
    failure = ""
    try:
        check_version(found)
    except VersionMismatchError as error:
        if not is_half_done(found):
            return
        failure = (
            f"{error.message}; any command of that version rolls them back, `holdfast "
            "steps --discard` leaves them as they are"
        )
    if failure:
        pass
    elif context.catalog.database.read_only:
        failure = f"any command that may write to {display(context.home)} does that first"
    else:
        try:
            with open_service(context, on_report=_rollback_note(found) if noted else None):
                pass
        except VersionMismatchError as error:
            _LOG.debug("%s", error)  # operations that need the log report it
        except HoldfastError as error:
            failure = f"that cannot be done now: {error}"
    if failure and not context.recovery_failed:
        _LOG.warning(
            "recovery is needed: a step was cut short in the middle, and its changes are still there; %s",
            failure,
        )
    context.recovery_failed = bool(failure)


def _rollback_note(directory: bytes) -> Callable[[UndoReport], object]:
    from holdfast.undo.reports.unreported_rollbacks import note_rollback

    return partial(note_rollback, directory)


def require_service(service: UndoService | None) -> UndoService:
    """The log; raises `NotFoundError` if there is none."""
    if service is None:
        raise NotFoundError(
            "nothing was recorded in this workspace: it has no undo log",
            hint="holdfast run -- COMMAND records the changes of a command",
            code="no_undo_log",
        )
    return service


def quieten(service: UndoService | None) -> AbstractContextManager[None]:
    """Block changes by supervised processes; changes made within make no barrier."""
    return nullcontext() if service is None else service.quiet()


@contextmanager
def open_if_running(context: Context) -> Generator[UndoService | None]:
    """The undo log as far as it costs nothing to reach: where this process has done so already, or a keeper runs."""
    directory = log_directory(context) if context.undo_log is None else b""
    if context.undo_log is not None or not _is_there(context, directory):
        yield context.undo_log
        return
    if not os.path.lexists(os.path.join(directory, KEEPER_SOCKET)):
        yield None
        return
    from holdfast.supervisor.control.remote_service import visit

    keeper = visit(directory)
    with keeper or nullcontext(), _remember_service(context, keeper):
        yield keeper


@contextmanager
def open_and_quieten(context: Context) -> Generator[None]:
    """For operations that restore the tree to a checkpoint, with the lock: open the log if possible, and `quieten` it.

    A log of another version, or a disk without room for one, must not keep a user from going back.
    """
    from holdfast.undo.journal.log_ownership import VersionMismatchError

    with ExitStack() as entered:
        service = entered.enter_context(open_if_running(context))
        if service is None:
            try:
                service = entered.enter_context(open_service(context))
            except (VersionMismatchError, StorageError) as error:
                advice = f"; {error.hint}" if error.hint else ""
                _LOG.warning("the undo log was not told of a restore: %s%s", error.message, advice)
        entered.enter_context(quieten(service))
        yield


@contextmanager
def _remember_service(context: Context, service: UndoService | None) -> Generator[None]:
    before, context.undo_log = context.undo_log, service
    try:
        yield
    finally:
        context.undo_log = before


def list_steps(context: Context) -> Sequence[StepInfo]:
    """All steps in the undo log, oldest first; none without a log."""
    if context.undo_log is not None:  # no other process could open it meanwhile
        return context.undo_log.steps()
    with open_service(context, read_only=True) as service:
        return [] if service is None else service.steps()


def any_step_since(context: Context, event: HistoryEvent | Operation) -> bool:
    """Whether steps that can be undone have changed the tree and had not ended at an event. If the log cannot be read,
    the answer is True, and a warning tells so.
    """
    try:
        found = list_steps(context)
    except HoldfastError as error:
        _LOG.warning("the changes of steps cannot be reported: %s", error.message)
        return True
    return any(step.paths and step.state != "undone" and not has_ended(step, event) for step in found)


def has_ended(step: StepInfo, by: HistoryEvent | Operation) -> bool:
    """Whether a step had ended at an event: by the numbers of the undo log, whatever the clock said; by times only
    where an earlier version recorded no number.
    """
    if step.ended_at is None:
        return False
    if step.ended is None or by.undo_seq is None:
        return step.ended_at <= by.at * 1000
    return step.ended <= by.undo_seq


def step_changes(context: Context, step: int) -> tuple[StepInfo, Sequence[PathChange]]:
    """One step with its changes. Raises `NotFoundError`."""
    with open_service(context, read_only=True) as service:
        service = require_service(service)
        (found,) = find_steps(service, [step])
        return found, service.changes(step)


def step_conflicts(context: Context, step: int) -> Sequence[ConflictInfo]:
    """The conflicts of the step's last undo, redo or rollback. Raises `NotFoundError`."""
    with open_service(context, read_only=True) as service:
        return require_service(service).conflicts(step)


def find_open_step(service: UndoService, run: str) -> StepInfo | None:
    """The explicit step that takes in what the run changes now: its own, or that of a user outside."""
    opened = [step for step in service.steps() if step.kind == "explicit" and step.state == "open"]
    return next((step for step in opened if step.run in (run, "")), None)


def find_steps(service: UndoService, chosen: Sequence[int]) -> list[StepInfo]:
    """The steps with these numbers, in the order of the log. Raises `NotFoundError` if one is missing."""
    from holdfast.undo.log import no_step

    wanted = set(chosen)
    found = [step for step in service.steps() if step.id in wanted]
    missing = wanted.difference(step.id for step in found)
    if missing:
        raise no_step(min(missing))
    return found


def touched_paths(service: UndoService | None, steps: Iterable[int]) -> set[bytes]:
    """The paths that steps have changed, by every name that is known."""
    if service is None:
        return set()
    changes = [change for step in steps for change in service.changes(step)]
    return {path for change in changes for path in (change.path, change.source) if path is not None}


def list_barriers(context: Context) -> Sequence[BarrierInfo]:
    """The edits by others that the undo log knows of, oldest first."""
    with open_service(context, read_only=True) as service:
        return [] if service is None else service.barriers()


def discard_steps(context: Context) -> int | None:
    """Forget all finished steps, whatever the log's version, and set-aside logs of other versions. Returns the number
    of steps, None if it is unknown.
    """
    from holdfast.undo.journal.log_ownership import VersionMismatchError, discard_log

    try:
        with open_service(context) as service:
            return 0 if service is None else service.discard()
    except VersionMismatchError:
        discard_log(log_directory(context), known_numbers(context))
        return None


def discard_other_version(context: Context) -> bool:
    """Delete only the set-aside logs of other versions; False if there are none."""
    from holdfast.undo.journal.log_ownership import forget_others, last_of_others

    directory = log_directory(context)
    if last_of_others(directory) is None:
        return False
    forget_others(directory)
    return True


def prepare_log(context: Context) -> bytes:
    """`make_log` for a caller that will record in it: a log of another version is set aside, with one warning.

    Raises `VersionMismatchError` while a keeper of that version has it, or if a step in it is unfinished.
    """
    from holdfast.undo.journal.log_ownership import VersionMismatchError, check_version, set_aside

    directory = make_log(context)
    deadline = context.clock.monotonic() + _MOVING_SECONDS
    while True:
        try:
            check_version(directory)
            return directory
        except VersionMismatchError as error:
            mismatch = error
        try:
            set_aside(directory, known_numbers(context), partial(_warn_of_set_aside, directory))
        except LockedError:
            if context.clock.monotonic() > deadline:
                raise mismatch from None
            time.sleep(_PAUSE)  # another process may be setting it aside


def _warn_of_set_aside(directory: bytes) -> None:
    _LOG.warning(
        "another version of Holdfast wrote the undo log in %s, so a new one begins. "
        "This version cannot undo the old steps, only restore checkpoints; "
        "`holdfast steps --discard` forgets the old log",
        display(directory),
    )


def make_log(context: Context) -> bytes:
    """The directory of the workspace's undo log, made if it is missing; warns if it has to be in the tree.

    Raises `UnsupportedError` where nothing may be made there.
    """
    directory = log_directory(context)
    if _is_in_the_tree(context, directory):
        _check_own(directory)
        if not os.path.lexists(directory):
            places = context.home, forks_directory(context.home, context.settings)
            is_fork = any(under(context.workspace.path, os.path.realpath(place)) for place in places)
            # A fork ends before any of that could happen to it.
            tell = _LOG.info if is_fork else _LOG.warning
            tell(
                "the home is on another file system than the workspace, so the undo log is in %s: "
                "`git clean -xfd` deletes it, and copies of the directory carry it",
                display(directory),
            )
        try:
            os.makedirs(directory, 0o700, exist_ok=True)
            _have_git_ignore(os.path.dirname(directory))
        except PermissionError as error:  # as inside a run that another home records
            raise UnsupportedError(f"no undo log can be made in {display(directory)}: {error.strerror}") from error
    os.makedirs(directory, 0o700, exist_ok=True)
    return directory


def _have_git_ignore(directory: bytes) -> None:
    """Keep Holdfast's own files out of commits by `git add -A`. An existing file stays, unless it is empty, as after a
    kill.
    """
    path = os.path.join(directory, b".gitignore")
    with suppress(FileNotFoundError):
        found = os.lstat(path)
        if found.st_size or not stat.S_ISREG(found.st_mode):
            return
    with open(path, "wb") as file:
        file.write(b"*\n")


def _is_there(context: Context, directory: bytes) -> bool:
    if not (os.path.lexists(os.path.join(directory, b"version")) and os.path.isdir(context.workspace.path)):
        return False
    if _is_in_the_tree(context, directory):
        _check_own(directory)
    return True


def _is_in_the_tree(context: Context, directory: bytes) -> bool:
    return not directory.startswith(context.folder + b"/")


def _check_own(directory: bytes) -> None:
    """A log in the tree may have come with the tree, from another user: only one that we made is believed."""
    for path, others in ((os.path.dirname(directory), 0o022), (directory, 0o077)):
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & others:
            raise RefusedError(
                f"{display(path)} is no undo log that Holdfast has made for you",
                hint="remove it, if you do not know it",
                code="foreign_log",
            )


def _is_other_mount(folder: bytes, root: bytes) -> bool:
    """Whether nothing can be renamed from one directory to the other, bind mounts of one file system included."""
    name = b"/.holdfast.tmp-" + os.urandom(8).hex().encode()
    try:
        # The kernel compares the mounts before it looks for the names, which are not there (rename(2): EXDEV).
        os.rename(folder + name, root + name)
    except OSError as error:
        return error.errno == errno.EXDEV
    raise AssertionError("a file with a random name was there")


def _open_log(
    context: Context,
    directory: bytes,
    on_report: Callable[[UndoReport], object] | None,
    within: LogLimits,
    *,
    wait: bool,
    read_only: bool,
) -> AbstractContextManager[UndoService] | None:
    """The log opened by this process; None if another one has it and there is time to ``wait``."""
    from holdfast.undo.log import UndoLog

    # A command may have changed the mode so that its owner cannot read it.
    root_fd = os.open(context.workspace.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        log = UndoLog(directory, root_fd, context.clock, limits=within, least=known_numbers(context))
    except LockedError:
        os.close(root_fd)
        if not wait:
            raise
        return None
    except BaseException:
        os.close(root_fd)
        raise

    @contextmanager
    def own() -> Generator[UndoService]:
        from holdfast.undo.local_service.undo_service import LocalUndoService
        from holdfast.undo.recovery.keeper_recovery import find_outstanding, is_cut_off, log_outstanding, recover
        from holdfast.undo.reports.step_views import undo_report

        try:
            if read_only:
                left = find_outstanding(log)
                log_outstanding(left)
                # Else only finished steps are not in the log yet: recovery changes nothing in the tree, and without it
                # they would be overlooked.
                if any(left) or not is_cut_off(log):
                    yield LocalUndoService(log, unfinished=left.finished)
                    log.journal.withdraw()
                    return
            recovered = recover(log)
            if on_report is not None and recovered.rolled_back is not None and recovered.rolled_back.steps:
                on_report(undo_report(log.quarantine, [recovered.rolled_back]))
            yield LocalUndoService(log, own=own_directories(context.home, context.settings))
        finally:
            log.close()
            os.close(root_fd)

    return own()


# Telling the undo log about checkpoints and restores, so that it recognises the results of its steps again.
#
# A checkpoint sends it the hashes of files that steps have left since the last one; a restore sends it the restored
# files. Neither then counts as an edit by another process.

_MOST_BYTES = 1 << 19
"""The most to send at once: less than the limit of a request to a keeper."""
_ENTRY_BYTES = 32


@contextmanager
def report_saved(context: Context) -> Generator[Callable[[Hash], None]]:
    """Enter it before the tree is scanned; it yields a function to call with the manifest of the scan.

    Then a step can still be undone after others changed its files and a checkpoint restored them. A failure to inform
    the log does not undo the checkpoint.
    """
    with ExitStack() as reached:
        service, steps = None, ()
        try:
            service = reached.enter_context(open_if_running(context))
            steps = service.unnoted() if service is not None else ()
        except HoldfastError as error:
            _warn_of_failure(error)

        def note(root: Hash) -> None:
            try:
                for step in steps:
                    assert service is not None
                    with suppress(NotFoundError):  # it is forgotten by now
                        _report_step(context, service, step, root)
            except HoldfastError as error:
                _warn_of_failure(error)

        yield note


def report_restored(context: Context, changes: Iterable[Change]) -> None:
    """Tell the undo log, if it is available, which changes were just made to the tree. Within `quieten`."""
    service = context.undo_log
    if service is None:
        return
    brought: list[tuple[bytes, bytes | None]] = []
    room = _MOST_BYTES
    try:
        for path, _, after in changes:
            if (room := room - len(path) - _ENTRY_BYTES) < 0:
                service.brought_back(brought)
                brought, room = [], _MOST_BYTES
            brought.append((path, None if after is None else after.hash))
        if brought:
            service.brought_back(brought)
    except HoldfastError as error:
        _warn_of_failure(error)


def _report_step(context: Context, service: UndoService, step: int, root: Hash) -> None:
    from holdfast.store.manifests import manifest

    room = _MOST_BYTES
    noted: list[tuple[bytes, bytes]] = []
    for path, entry in manifest.get_many(context.store.pages, root, service.left_files(step)).items():
        if (room := room - len(path) - _ENTRY_BYTES) < 0:
            break  # a step of very many files is not known again whole: then it is forced, or restored
        noted.append((path, entry.hash))
    service.note_contents(step, noted)


def _warn_of_failure(error: HoldfastError) -> None:
    _LOG.warning("undo may not recognise files of earlier steps, and may need --force: %s", error.message)
