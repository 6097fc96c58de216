"""The tools that change files; each change can be undone."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from holdfast.api._request_arguments import file_in, named_steps, path_in
from holdfast.api.mcp import _tool_results as tool_results
from holdfast.api.mcp._read_tools import ToolAnswer
from holdfast.api.mcp._resolutions import resolutions
from holdfast.api.mcp._text_content import decode_text
from holdfast.api.mcp._tool_results import checkpoint_object, clipped, restored_object, step_object
from holdfast.engine.merging.fork_merge import merge_object
from holdfast.model.answers.steps import RolledBack
from holdfast.model.answers.workspace import Forked
from holdfast.model.errors import RefusedError, StorageError, UsageError
from holdfast.model.ids import HASH_BYTES, hash_bytes
from holdfast.model.json_encoder import encode
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.api._truncated_results import Step
    from holdfast.api.mcp._shared_host import SharedHost
    from holdfast.api.mcp._tool_arguments import (
        AnswerReapply,
        BeginStep,
        EditFile,
        EndStep,
        Fork,
        Merge,
        NextReapply,
        Redo,
        Restore,
        TakeCheckpoint,
        Undo,
        WriteFile,
    )
    from holdfast.engine.hosting.working_directory import HostedDirectory
    from holdfast.model.command_results import RestoreResult
    from holdfast.undo.service import StepInfo


def write_file(_host: SharedHost, hosted: HostedDirectory, request: WriteFile) -> ToolAnswer:
    """Write a file, as a step of its own."""
    path = file_in(hosted.path, request.path)
    content = decode_text(request.content, request.encoding)
    require_keeper(hosted)
    step = hosted.write_file(path, content, expected=_expected(request.expected_hash))
    digest = hash_bytes(content)
    return ToolAnswer(encode(tool_results.FileWritten, path=path, bytes=len(content), hash=digest, step=_step(step)))


def edit_file(_host: SharedHost, hosted: HostedDirectory, request: EditFile) -> ToolAnswer:
    """Replace a part of a file, as a step of its own."""
    path = file_in(hosted.path, request.path)
    require_keeper(hosted)
    done = hosted.edit_file(path, request.old_text.encode(), request.new_text.encode(), every=request.replace_all)
    return ToolAnswer(encode(tool_results.FileEdited, done, path=path, step=_step(done.step)))


def begin_step(host: SharedHost, hosted: HostedDirectory, request: BeginStep) -> ToolAnswer:
    """A step that takes in what follows."""
    step = hosted.begin_step(request.label)
    host.note_begun(hosted, step)
    return ToolAnswer(encode(tool_results.BegunStep, id=step))


def commit_step(_host: SharedHost, hosted: HostedDirectory, _request: EndStep) -> ToolAnswer:
    """Close the client's step."""
    closed = hosted.commit_step()
    with hosted.undo_log() as log:
        changes = () if log is None or not closed.paths else log.changes(closed.id)
    return ToolAnswer(step_object(closed, changes))


def rollback_step(_host: SharedHost, hosted: HostedDirectory, _request: EndStep) -> ToolAnswer:
    """Close the client's step and roll it back."""
    report = hosted.rollback_step()
    return ToolAnswer(encode(RolledBack, report, conflicts=report.conflicts[: tool_results.SHOWN]))


def undo(_host: SharedHost, hosted: HostedDirectory, request: Undo) -> ToolAnswer:
    """Undo the newest changes, some steps, or a run; never another process's changes, saved or not."""
    with hosted.workspace() as workspace:
        steps = named_steps(request.step, request.steps)
        result = workspace.undo(request.count, step=steps, run=request.run, recorded_only=True, dry_run=request.dry_run)
    if not result.dry_run:
        hosted.rolled_back(result.steps)
    return _answer(result)


def redo(_host: SharedHost, hosted: HostedDirectory, request: Redo) -> ToolAnswer:
    """Redo what undo took back."""
    with hosted.workspace() as workspace:
        steps = named_steps(request.step, request.steps)
        return _answer(workspace.redo(request.count, step=steps, dry_run=request.dry_run))


def restore(_host: SharedHost, hosted: HostedDirectory, request: Restore) -> ToolAnswer:
    """The tree, or some paths of it, as a checkpoint holds them."""
    paths = [path_in(hosted.path, path) for path in request.paths]
    with hosted.workspace() as workspace:
        return _answer(workspace.restore(request.checkpoint, paths, dry_run=request.dry_run, as_state=True))


def take_checkpoint(_host: SharedHost, hosted: HostedDirectory, request: TakeCheckpoint) -> ToolAnswer:
    """The state as it is now, saved."""
    with hosted.workspace() as workspace:
        made = workspace.checkpoint(request.label, message=request.message)
    return ToolAnswer(checkpoint_object(made))


def fork(host: SharedHost, hosted: HostedDirectory, request: Fork) -> ToolAnswer:
    """Write a checkpoint out as a workspace of its own, beside this one.

    A client gives a name, never a place: isolated commands cannot write elsewhere, and this tool must not help them.
    """
    folder = host.forks or hosted.path + b".forks"
    hosted.refuse_others(folder)
    with _made(folder):
        target = os.path.join(folder, request.name.encode())
        if os.path.lexists(target):
            raise RefusedError(f"there is a {display(target)} already", hint="choose another name", code="exists")
        with hosted.workspace() as workspace:
            return ToolAnswer(encode(Forked, workspace.fork(request.checkpoint, target)))


def merge(host: SharedHost, hosted: HostedDirectory, request: Merge) -> ToolAnswer:
    """Merge a fork into the working directory.

    As in `fork`, the client gives the fork's name, never a path: a merge reaches no other directory.
    """
    decided = resolutions(hosted, request.resolutions)
    with hosted.workspace() as workspace:
        source = _fork_directory(host, hosted, request.fork) or workspace.resolve(request.fork)
        done = workspace.merge(source, resolutions={**decided}, message=request.message, dry_run=request.dry_run)
        return ToolAnswer(clipped(merge_object(tool_results.Merged, done)))


def _fork_directory(host: SharedHost, hosted: HostedDirectory, name: str) -> str | None:
    """The directory of the fork with this name; None if there is none."""
    folder = host.forks or hosted.path + b".forks"
    path = os.path.join(folder, name.encode())
    if "/" in name or "\0" in name or name in (".", ".."):
        return None
    if not all(os.path.isdir(each) and not os.path.islink(each) for each in (folder, path)):
        return None
    return os.fsdecode(path)


def next_reapply(_host: SharedHost, hosted: HostedDirectory, _request: NextReapply) -> ToolAnswer:
    """The change that waits longest to be applied anew; the client's for a while."""
    with hosted.workspace() as workspace:
        return ToolAnswer(encode(tool_results.NextReapply, change=workspace.next_reapply()))


def answer_reapply(_host: SharedHost, hosted: HostedDirectory, request: AnswerReapply) -> ToolAnswer:
    """Keep the client's answer; the next merge uses it."""
    given: dict[str, Any] = {"version": request.version, "said": request.said}
    if request.content is not None:
        given["content" if request.encoding == "utf-8" else "content_base64"] = request.content
    if request.delete:
        given["delete"] = True
    if request.decline is not None:
        given["decline"] = request.decline
    with hosted.workspace() as workspace:
        status = workspace.answer_reapply(request.id, request.token, given)
    return ToolAnswer(encode(tool_results.AnsweredReapply, id=request.id, status=status))


@contextmanager
def _made(folder: bytes) -> Generator[None]:
    """Make the directory for the block. If the block fails, remove it, unless it existed before or is not empty.

    A link in its place is refused: otherwise the process that made it would choose where forks are written.
    """
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            raise RefusedError(f"{display(folder)} is no directory", code="not_a_directory") from None
        yield
        return
    except OSError as error:
        raise StorageError(f"{display(folder)} cannot be made: {error.strerror}") from error
    try:
        yield
    except BaseException:
        with suppress(OSError):
            os.rmdir(folder)
        raise


def require_keeper(hosted: HostedDirectory) -> None:
    """A safeguard can hold an operation only where a process keeps the undo log until the answer."""
    if hosted.access == "read_write" and hosted.inside is None and hosted.thresholds.asks:
        hosted.start()


def _expected(given: str | None) -> bytes | None:
    if not given:
        return None if given is None else b""
    prefix, _, digits = given.partition(":")
    try:
        value = bytes.fromhex(digits)
    except ValueError:
        value = b""
    if prefix != "blake3" or len(value) != HASH_BYTES:
        raise UsageError("expected_hash is no hash", hint="give it as read_file does")
    return value


def _step(step: StepInfo | None) -> Step | None:
    return None if step is None else step_object(step)


def _answer(result: RestoreResult) -> ToolAnswer:
    return ToolAnswer(restored_object(result))
