"""Saving and going back as commands do it: they finish an interrupted operation first, and ask or pause a watcher."""

from __future__ import annotations

from holdfast.engine.opening.context import ask_watcher, pause_watcher
from holdfast.engine.opening.current_run import checkpoint_by_launcher, current_run, forbid_inside_run
from holdfast.engine.opening.operation_journal import reverses_steps
from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.model.command_results import CheckpointRequest, CheckpointResult, RestoreResult
    from holdfast.model.content import Progress
    from holdfast.model.ids import CheckpointId

MOST_OF_PROMPT = 4000
"""Characters: with them a call of the watcher has room for all else, however they are escaped."""
_MOST_OF_MESSAGE = 200


def checkpoint(context: Context, request: CheckpointRequest, progress: Progress | None = None) -> CheckpointResult:
    """`holdfast.engine.history.checkpoint.create_checkpoint`: by the watcher, where one runs, at the cost of what
    changed; by its launcher inside of a run. An undo or a redo that was cut short is finished first, unless the kind is
    ``auto``.
    """
    from holdfast.engine.history.checkpoint import create_checkpoint

    if request.kind != "auto" and reverses_steps(context.folder) and current_run(context) is None:
        from holdfast.engine.history.recovery import lock_and_finish, log_failure

        with log_failure():
            lock_and_finish(context, progress)
    done = None if request.full_hash else ask_watcher(context, lambda watcher: watcher.checkpoint(request))
    if done is None:
        done = checkpoint_by_launcher(context, request)
    return create_checkpoint(context, request, progress) if done is None else done


def save(context: Context) -> CheckpointResult:
    """Save the tree's present state before another operation."""
    from holdfast.model.checkpoint import Provenance
    from holdfast.model.command_results import CheckpointRequest

    return checkpoint(context, CheckpointRequest("auto", provenance=Provenance(context.settings.identity.author)))


def prompt(context: Context, text: str, author: str) -> CheckpointResult:
    """Save the tree's present state at a prompt ``text`` for the agent ``author``, and record the prompt in the
    history, with or without changes. The first `MOST_OF_PROMPT` characters of a longer text are kept.
    """
    from holdfast.model.checkpoint import Provenance
    from holdfast.model.command_results import CheckpointRequest
    from holdfast.model.message_text import first_line
    from holdfast.model.timeline import PROMPT

    text = text.strip().encode(errors="replace").decode()
    line = first_line(text, _MOST_OF_MESSAGE)
    message = f"{PROMPT}: {line}" if line else PROMPT
    request = CheckpointRequest("auto", provenance=Provenance(author, message), prompt=text[:MOST_OF_PROMPT])
    return checkpoint(context, request)


def restore(
    context: Context,
    name: str,
    paths: Sequence[bytes] = (),
    *,
    dry_run: bool = False,
    as_state: bool = False,
    expected: CheckpointId | None = None,
    exact: bool = False,
    progress: Progress | None = None,
) -> RestoreResult:
    """`holdfast.engine.history.restore.restore` to the checkpoint that ``name`` means, with a running watcher paused.
    An interrupted undo or redo is finished first. Raises `RefusedError` inside a run.
    """
    forbid_inside_run(context, "a restore")
    from holdfast.engine.history.restore import restore
    from holdfast.engine.history.revisions import resolve_name_for_restore

    if not dry_run and reverses_steps(context.folder):
        from holdfast.engine.history.recovery import lock_and_finish

        lock_and_finish(context, progress)
    with pause_watcher(context):
        return restore(
            context,
            resolve_name_for_restore(context, name),
            paths,
            dry_run=dry_run,
            as_state=as_state,
            expected=expected,
            exact=exact,
            progress=progress,
        )
