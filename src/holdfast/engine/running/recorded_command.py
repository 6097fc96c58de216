"""A session's command whose changes are recorded as steps; no checkpoint is taken for it.

It is a run of its own, and is started like any child: a separate launcher process supervises it
(`holdfast.supervisor.launch.launcher_process`).
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from holdfast.engine.history.outside_policy import check_policy, remember_policy
from holdfast.engine.history.recovery import finish_interrupted, log_failure
from holdfast.engine.opening.current_run import RUN_VARIABLE, forbid_inside_run
from holdfast.engine.opening.undo_log import open_service
from holdfast.engine.running._checkpoint_server import CheckpointServer, warn_of_no_checkpoints
from holdfast.engine.running.child_start import ChildStart
from holdfast.engine.running.run import configured_thresholds, keeper_settings, new_run_id, prepare_to_record
from holdfast.model.errors import HoldfastError
from holdfast.processes.child_environment import with_our_modules
from holdfast.supervisor.launch.launcher_process import LaunchFile, SupervisedLaunch
from holdfast.supervisor.launch.supervised_run import effective_capabilities, require_calls, require_tracing, yama_scope

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from holdfast.engine.opening.context import Context


@contextmanager
def recorded(
    context: Context,
    start: ChildStart,
    *,
    called: Sequence[bytes] = (),
    one_step: bool = True,
    ends_whole: bool = False,
) -> Generator[ChildStart]:
    """For the length of the block, a start of the same command that records all its changes in ``context``'s workspace.
    The command has ended when the block ends. The lock is not held.

    Steps name the command ``called`` (empty: the real one). ``one_step`` makes all changes one step; otherwise steps
    are as in a run. ``ends_whole`` ends its background processes with it. Recovery of a killed keeper's step comes
    first, and once more if the keeper or the launcher is killed.

    Raises as `holdfast.engine.running.run.run`: at the beginning, or at the end if it could not be supervised or its
    keeper was killed. A killed launcher ends with that signal, and so do its children.
    """
    launch = prepare_launch(context, start, called=called, one_step=one_step, ends_whole=ends_whole)
    with LaunchFile(launch) as file, ExitStack() as stack:
        words, server = tuple(map(os.fsencode, file.words)), None
        try:
            server = stack.enter_context(CheckpointServer(context, launch.run))
        except HoldfastError as error:
            warn_of_no_checkpoints(error)
        ours = with_our_modules(os.environb)
        yield ChildStart(words, b"/", ours, (file.fd,), launch.run, os.path.realpath(launch.settings.log), server)
        outcome = file.outcome()
    error = None if outcome is None else outcome.error
    if outcome is None or error is not None:
        with log_failure(), context.lock(as_found=True), open_service(context) as service:
            finish_interrupted(context, service)
    if error is not None:
        raise error


def prepare_launch(
    context: Context, start: ChildStart, *, called: Sequence[bytes] = (), one_step: bool, ends_whole: bool = False
) -> SupervisedLaunch:
    """A run of its own for the command of ``start``, with its descriptors, and the undo log prepared for it.

    Raises as `holdfast.engine.running.run.run` at its beginning.
    """
    context.renew_settings()
    outside = context.settings.undo.outside
    check_policy(outside)
    log, _ = prepare_to_record(context, None)
    run = new_run_id(context.random)
    remember_policy(context, run, outside)
    return SupervisedLaunch(
        words=tuple(start.words),
        called=tuple(called),
        directory=start.directory,
        environment={**start.environment, RUN_VARIABLE: run.encode()},
        run=run,
        one_step=one_step,
        ends_whole=ends_whole,
        inherited=start.descriptors,
        thresholds=configured_thresholds(context.settings.safeguard, guard=False),
        settings=keeper_settings(context, log, outside),
    )


def check_can_record(context: Context) -> None:
    """Raise `RefusedError` inside of a run, which records its commands already, and `UnsupportedError` where processes
    may not be supervised. Whether the kernel can is seen when one is.
    """
    forbid_inside_run(context, "another run")
    require_tracing(yama_scope(), effective_capabilities())
    require_calls()
