"""After the swap, or after a failure: what runs is restarted, and what was built or replaced is removed."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.engine.opening.context import watcher_of
from holdfast.engine.promotion import _build_directory as build_directory
from holdfast.engine.promotion._build import output_of, said
from holdfast.engine.promotion._build_directory import AFTER_APPLY, AT_SWAP, BEFORE_COPY, load_stamps
from holdfast.engine.promotion._build_isolation import environment_of
from holdfast.engine.promotion.spec import InUse, Restarted
from holdfast.files.directories.tree_stamps import changed_paths, stamps
from holdfast.files.linux.directory_users import users_of
from holdfast.model.errors import HoldfastError, StorageError
from holdfast.model.ids import CheckpointId
from holdfast.model.log import Log
from holdfast.model.paths import display

if TYPE_CHECKING:
    from holdfast.engine.promotion._job_context import Work
    from holdfast.engine.promotion.spec import Answer

_LOG = Log(__name__)
_MOST_LATE = 100


def restart(work: Work) -> None:
    """Run what restarts production's own processes, if anything does: with all rights of the user. How it went is
    noted, and changes nothing about the promotion.

    What it leaves running goes on.
    """
    words, facts = work.spec.restart, work.facts
    if not words or facts.restart is not None:
        return
    output = output_of(work, "restart")
    code = 127
    try:
        with open(output, "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=work.context.workspace.path,
                env=environment_of(work),
                start_new_session=True,
            )
        try:
            code = process.wait(work.spec.timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = 128 - process.wait()
    except OSError as error:
        _LOG.warning("promote.restart cannot be run: %s", error.strerror)
    facts.restart = Restarted(code if code >= 0 else 128 - code, said(output))
    work.save()


def finish(work: Work) -> Answer:
    """Remove the old directory, unless somebody uses it, or has written to it since the swap; end the promotion."""
    facts = work.facts
    answer = facts.answer
    assert answer is not None, "it was recorded"
    remove_old(work)
    _forget_plan(work)
    return work.end(answer)


def remove_old(work: Work) -> None:
    """Remove the old directory if nobody would miss it, and note why not. (What uses it may need what is in it.)"""
    facts = work.facts
    tree = build_directory.tree_of(work)
    if facts.exchange and os.path.lexists(tree):
        try:
            found = changed_paths(load_stamps(work, AT_SWAP), stamps(tree, without=build_directory.own_in(work, tree)))
        except (HoldfastError, OSError) as error:
            _LOG.warning("whether the old directory was written to cannot be told: %s", error)
            found = [b""]
        facts.late = [display(path) for path in found[:_MOST_LATE]]
        ours = (os.getpid(), _watcher(work))
        facts.used_by = [InUse(*user) for user in users_of(tree) if user.pid not in ours][:_MOST_LATE]
        facts.kept = display(tree) if found or facts.used_by else ""
    if not facts.kept:
        _remove(work)


def _watcher(work: Work) -> int:
    """The pid of production's watcher, if there is one: it goes to the new directory by itself. Else 0."""
    with suppress(HoldfastError):
        watcher = watcher_of(work.context)
        if watcher is not None:
            with watcher:
                return watcher.ping().pid
    return 0


def undo(work: Work, answer: Answer) -> Answer:
    """Before the swap: remove what was built, and end with ``answer``. Production is untouched."""
    _remove(work)
    _forget_plan(work)
    return work.end(answer)


def _remove(work: Work) -> None:
    """Remove what is ours; what cannot be removed now, `sweep` removes."""
    try:
        if not build_directory.remove(work):
            _LOG.warning("%s is none of ours any more, and stays", work.facts.container)
    except StorageError as error:
        _LOG.warning("%s; `holdfast promote --sweep` tries again", error.message)
    for name in (b"index", b"directories", BEFORE_COPY, AFTER_APPLY, AT_SWAP):
        with suppress(OSError):
            os.unlink(os.path.join(work.folder, name))


def _forget_plan(work: Work) -> None:
    """The merged states were no states of any tree: what production has become is a checkpoint of its own."""
    catalog = work.opener.store().catalog
    catalog.unpin_all(work.pins)
    for merged in work.facts.plans:
        with suppress(HoldfastError):
            if catalog.cursor(work.row.workspace).head != merged:
                catalog.forget([CheckpointId(merged)])
