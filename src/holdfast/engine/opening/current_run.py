"""Holdfast inside a run: supervised processes cannot write the home, so the run's launcher outside acts for them.

The launcher listens on a socket in the workspace's folder. It understands the watcher's messages, but only
`checkpoint`, which adds to the history and changes no tree. Commands that go back or delete history must run outside: a
recorded command must not change its own record.
"""

from __future__ import annotations

import os

from holdfast.model.errors import RefusedError
from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.opening.context import Context, StoreContext
    from holdfast.model.command_results import CheckpointRequest, CheckpointResult

RUN_VARIABLE = b"HOLDFAST_RUN"
"""In the environment of all that runs: the id of the run."""


OVERLAID_VARIABLE = "HOLDFAST_OVERLAID"
"""In the environment of what `holdfast snapshot run` runs: the workspace that it sees an overlay of."""


def refuse_overlaid(workspace: bytes, overlaid: str | None) -> None:
    """Raise `RefusedError` if this process sees an overlay at the path of the ``workspace``: its changes are not in the
    workspace itself, and must not be saved or undone as if they were.
    """
    if overlaid is not None and os.fsencode(overlaid) == workspace:
        raise RefusedError(
            "this process sees an overlay in the place of the workspace, and cannot use it",
            hint="`holdfast snapshot run -m LABEL` keeps the changes of the command as a snapshot",
            code="inside_snapshot",
        )


def run_socket(run: str) -> bytes:
    """The name of the socket in the workspace's folder where the launcher of a run answers."""
    return b"run-" + os.fsencode(run)


def current_run(context: StoreContext) -> str | None:
    """The id of the run that this process belongs to and that keeps it from writing the home; None otherwise."""
    run = os.environb.get(RUN_VARIABLE, b"")
    # The variable may be inherited or invented. A process that can write needs no launcher.
    return os.fsdecode(run) if run.isalnum() and context.store.catalog.database.read_only else None


def refuse_hidden_home(home: bytes) -> None:
    """Raise `RefusedError` if this process belongs to a run that is kept apart from the home."""
    if RUN_VARIABLE not in os.environb or not os.path.isdir(home) or os.listdir(home):
        return
    if os.statvfs(home).f_flag & os.ST_RDONLY:
        raise RefusedError(
            "a process isolated by namespaces cannot reach the saved data",
            hint="do it from another terminal, or let `holdfast watch` save automatically",
            code="inside_run",
        )


def forbid_inside_run(context: StoreContext, what: str) -> None:
    """Raise `RefusedError` if this process belongs to a run: ``what`` must be done outside of it."""
    run = current_run(context)
    if run is not None:
        raise RefusedError(
            f"a supervised process, in the run {run}, cannot ask for {what}",
            hint="do it from another terminal, or in a session begun with --unsupervised; a run may look, and take "
            "checkpoints",
            code="inside_run",
        )


def checkpoint_by_launcher(context: Context, request: CheckpointRequest) -> CheckpointResult | None:
    """Let the launcher of this process's run take a checkpoint; None outside of runs.

    Raises `RefusedError` without a launcher: processes that a run left behind have none any more.
    """
    run = current_run(context)
    if run is None:
        return None
    from holdfast.engine.opening.watch_client import connect

    launcher = connect(context.folder, name=run_socket(run))
    if launcher is None:
        raise RefusedError(
            f"no launcher takes this checkpoint: the run {run} of this process is over, or elsewhere",
            hint="do it from another terminal, or let `holdfast watch` save automatically",
            code="inside_run",
        )
    with launcher:
        return launcher.checkpoint(request)
