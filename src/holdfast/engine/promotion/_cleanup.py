"""After the swap, or after a failure: production's processes are restarted, and the old or unused tree is removed."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.engine.opening.context import connect_watcher
from holdfast.engine.promotion import _build_directory as build_directory
from holdfast.engine.promotion._build import last_output, output_path
from holdfast.engine.promotion._build_directory import AFTER_APPLY, AT_SWAP, BEFORE_COPY, load_stamps
from holdfast.engine.promotion.build_isolation import environment_of
from holdfast.engine.promotion.spec import DirectoryUser, RestartResult
from holdfast.files.directories.tree_stamps import changed_paths, stamps
from holdfast.files.linux.directory_users import users_of
from holdfast.model.errors import HoldfastError, StorageError
from holdfast.model.ids import CheckpointId
from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.processes.helper_process import start_in_own_session

if TYPE_CHECKING:
    from holdfast.engine.promotion._job_context import PromotionJob
    from holdfast.engine.promotion.spec import PromotionAnswer

_LOG = Log(__name__)
_MOST_LATE = 100


def restart(job: PromotionJob) -> None:
    """Run the command that restarts production's own processes, if configured: with all rights of the user. Its result
    is recorded, and does not affect the promotion.

    Its background processes go on.
    """
    words, facts = job.spec.restart, job.facts
    if not words or facts.restart is not None:
        return
    output = output_path(job, "restart")
    code = 127
    try:
        with open(output, "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            # No `processes.child`, which would end all its background processes.
            process = start_in_own_session(
                words,
                stdin=subprocess.DEVNULL,
                stdout=file.fileno(),
                stderr=subprocess.STDOUT,
                cwd=job.context.workspace.path,
                environment=environment_of(job),
            )
        try:
            code = process.wait(job.spec.timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = 128 - process.wait()
    except OSError as error:
        _LOG.warning("promote.restart cannot be run: %s", error.strerror)
    facts.restart = RestartResult(code if code >= 0 else 128 - code, last_output(output))
    job.save()


def finish_promotion(job: PromotionJob) -> PromotionAnswer:
    """Remove the old directory, unless a process uses it, or has written to it since the swap; end the promotion."""
    facts = job.facts
    answer = facts.answer
    assert answer is not None, "it was recorded"
    remove_old(job)
    _forget_plan(job)
    return job.end(answer)


def remove_old(job: PromotionJob) -> None:
    """Remove the old directory if no process uses it or has written to it since the swap; otherwise record why not. A
    process that uses it may need its files.
    """
    facts = job.facts
    tree = build_directory.tree_of(job)
    if facts.exchange and os.path.lexists(tree):
        try:
            found = changed_paths(
                load_stamps(job, AT_SWAP), stamps(tree, without=build_directory.own_entries(job, tree))
            )
        except (HoldfastError, OSError) as error:
            _LOG.warning("cannot tell whether a process wrote to the old directory: %s", error)
            found = [b""]
        facts.late = [display(path) for path in found[:_MOST_LATE]]
        ours = (os.getpid(), _watcher(job))
        facts.used_by = [DirectoryUser(*user) for user in users_of(tree) if user.pid not in ours][:_MOST_LATE]
        facts.kept = display(tree) if found or facts.used_by else ""
    if not facts.kept:
        _remove(job)


def _watcher(job: PromotionJob) -> int:
    """The pid of production's watcher, if there is one: it goes to the new directory by itself. Else 0."""
    with suppress(HoldfastError):
        watcher = connect_watcher(job.context)
        if watcher is not None:
            with watcher:
                return watcher.ping().pid
    return 0


def discard_build(job: PromotionJob, answer: PromotionAnswer) -> PromotionAnswer:
    """Before the swap: remove the build, and end with ``answer``. Production is untouched."""
    _remove(job)
    _forget_plan(job)
    return job.end(answer)


def _remove(job: PromotionJob) -> None:
    """Remove our files; `sweep` removes those that cannot be removed now."""
    try:
        if not build_directory.remove(job):
            _LOG.warning("%s is not Holdfast's any more, and stays", job.facts.container)
    except StorageError as error:
        _LOG.warning("%s; `holdfast promote --sweep` tries again", error.message)
    for name in (b"index", b"directories", BEFORE_COPY, AFTER_APPLY, AT_SWAP):
        with suppress(OSError):
            os.unlink(os.path.join(job.folder, name))


def _forget_plan(job: PromotionJob) -> None:
    """Forget the merged states, which no tree has had: production's new state is a checkpoint of its own."""
    catalog = job.opener.store().catalog
    catalog.unpin_all(job.pins)
    for merged in job.facts.plans:
        with suppress(HoldfastError):
            if catalog.cursor(job.row.workspace).head != merged:
                catalog.forget([CheckpointId(merged)])
