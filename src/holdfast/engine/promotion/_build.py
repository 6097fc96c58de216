"""Building in a copy of production: the copy, the merged files in it, and the commands that have to succeed there."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Literal

import msgspec

from holdfast.engine.forks.workspace_providers import providers_of
from holdfast.engine.history.status import scan_tree
from holdfast.engine.opening.context import saved_state
from holdfast.engine.promotion import _build_directory as build_directory
from holdfast.engine.promotion._build_directory import AFTER_APPLY, BEFORE_COPY, save_stamps
from holdfast.engine.promotion._target_state import UNCHANGED, interrupted_answer
from holdfast.engine.promotion.build_isolation import environment_of, make_box, signal_reset_prefix
from holdfast.engine.promotion.spec import PromotionAnswer
from holdfast.files.directories.directory_exchange import directory_identity
from holdfast.files.directories.tree_stamps import stamps
from holdfast.model.content import HashSink
from holdfast.model.decoders import json_decoder
from holdfast.model.errors import StorageError, room_hint
from holdfast.model.ids import CheckpointId
from holdfast.model.paths import display
from holdfast.processes.child import FileLimits
from holdfast.processes.helper_process import program_words
from holdfast.sandbox.limited_command import run_contained
from holdfast.snapshot.provider_selection import choose
from holdfast.store.blobs.content_supply import StoredContent
from holdfast.store.manifests import manifest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.engine.promotion._job_context import PromotionJob
    from holdfast.engine.promotion.spec import Stage
    from holdfast.files.local_tree import LocalTree
    from holdfast.processes.child import Ended

_SAID_BYTES = 64 << 10
"""So much of an output is in an answer; all that is kept is in the promotion's folder."""
_SLACK_SECONDS = 30.0
_CHECK_SECONDS = 10.0
_STAYS_SECONDS = 1.0
"""How long a started program without a health check must run."""


def copy_production(job: PromotionJob) -> PromotionAnswer | Literal["changed"] | None:
    """Copy production with all its files, and bring the copy to the merged state. Files of an earlier attempt are
    removed first.

    ``changed``: production was edited since the plan. Raises `StorageError`, with production unchanged.
    """
    context, facts = job.context, job.facts
    root = context.workspace.path
    facts.attempt += 1
    own = build_directory.own_entries(job, root)
    try:
        before = stamps(root, without=own)
        if os.geteuid() and any(stamp.uid != os.geteuid() for stamp in before.values()):
            facts.hindrance = "a file in it belongs to another user, and a copy could not"
        build_directory.prepare(job)
        tree = build_directory.tree_of(job)
        save_stamps(job, BEFORE_COPY, before)
        facts.old = directory_identity(root)
        _copied_to(job, tree)
        facts.built = directory_identity(tree)
    except OSError as error:
        raise StorageError(
            f"cannot copy {display(root)}{_in(error)}: {error.strerror}", hint=room_hint(error)
        ) from error
    job.save()
    copied = tree_at(job, tree)
    ours, merged = (context.catalog.checkpoint(CheckpointId(one)) for one in (facts.ours, facts.merged))
    scan = copied.scan(HashSink(), saved=saved_state(context, ours))
    held = manifest.build((path, entry) for path, entry in sorted(scan.changes.items()) if entry is not None)
    if held.root != ours.root:
        return "changed"
    changes = manifest.diff(context.store.pages, ours.root, merged.root)
    supply = StoredContent(context.store.reader)
    applied = copied.apply(
        [change for change in changes if change.after is None],
        ((change, supply) for change in changes if change.after is not None),
        nonce=job.row.id,
        notes=_NothingNoted([change.path for change in changes]),
    )
    if applied.skipped:
        with context.lock():
            now = scan_tree(context)
        if now.root != ours.root:
            return "changed"
        path, reason = applied.skipped[0]
        return PromotionAnswer(
            result="failed",
            code="in_the_way",
            message=f"{display(path)} cannot be brought to production: {reason}",
            recovery=UNCHANGED,
        )
    save_stamps(job, AFTER_APPLY, stamps(tree, without=own))
    return None


class _NothingNoted:
    """See `holdfast.files.tree.ApplyNotes`: a copy that is cut short is made anew."""

    def __init__(self, paths: Sequence[bytes]) -> None:
        self.paths = paths

    @property
    def opened(self) -> Mapping[bytes, int]:
        return {}

    def opening(self, modes: Mapping[bytes, int]) -> None:
        pass

    def in_place(self, path: bytes) -> None:
        pass


def _copied_to(job: PromotionJob, tree: bytes) -> None:
    """Let the best provider, or the configured one, copy production. Raises `UnsupportedError`, `OSError`."""
    providers = providers_of(job.context, job.row.id)
    found = [one.detect_beside(os.path.dirname(tree)) for one in providers]
    choice = choose(providers, job.spec.provider, ignored=True, key="promote.provider", detected=found)
    job.facts.provider = choice.capabilities.provider
    job.facts.provider_reason = "; ".join((choice.reason, *choice.capabilities.notes))
    choice.provider.copy_to(tree, without=build_directory.own_entry_paths(job, job.context.workspace.path))


def tree_at(job: PromotionJob, tree: bytes) -> LocalTree:
    """The copy as a tree with production's rules."""
    return job.opener.tree_at(tree, job.folder, job.context.settings)


def run_stage(job: PromotionJob, stage: Stage) -> PromotionAnswer | Literal["again"] | None:
    """Run a stage's command, if there is one; its failure, or None.

    ``again``: the stage was interrupted before, and its results must not be used. All its processes have ended when
    this returns. Raises `UnsupportedError` where commands cannot be isolated as requested.
    """
    spec = job.spec
    words = {"setup": spec.setup, "build": spec.build, "check": [*spec.start, *spec.health]}[stage]
    if not words:
        return None
    # Named by the attempt: a process that lost its lease, but still runs, must not take the marker of the present one.
    begun = os.path.join(job.folder, b"begun-%d" % job.facts.attempt)
    done = os.path.join(job.folder, b"done-%d-%b" % (job.facts.attempt, stage.encode()))
    if os.path.lexists(done):
        return None  # killed between that and its being told so
    if os.path.lexists(begun):
        return "again"
    os.close(os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    answer = _check(job) if stage == "check" else _command(job, stage, words)
    if answer is None:
        os.rename(begun, done)
    return answer


def _command(job: PromotionJob, stage: Literal["setup", "build"], words: list[str]) -> PromotionAnswer | None:
    ran = _run(job, stage, [os.fsencode(word) for word in words], job.spec.timeout)
    if ran.why == "stopped":
        return interrupted_answer()
    if not ran.exit_code and not ran.why:
        return None
    return _failed(job, stage, f"{stage}_command", words, ran.exit_code, _failure_reason(job, ran, job.spec.timeout))


def _check(job: PromotionJob) -> PromotionAnswer | None:
    """Start the built program, and run its health check."""
    spec = job.spec
    order = {
        "start": spec.start,
        "health": spec.health,
        "seconds": spec.health_timeout,
        "interval": spec.health_interval,
        "timeout": _CHECK_SECONDS,
        "stays": _STAYS_SECONDS,
    }
    said = os.memfd_create("holdfast")
    try:
        program = os.path.join(os.path.dirname(os.path.abspath(_sandbox())), "server_health.py")
        words = program_words(program, str(said), json.dumps(order))
        ran = _run(job, "check", list(map(os.fsencode, words)), spec.health_timeout + _SLACK_SECONDS, said)
        if ran.why == "stopped":
            return interrupted_answer()
        try:
            found = json_decoder(_Trial).decode(os.pread(said, 1 << 16, 0) or b"{}")
        except msgspec.MsgspecError:
            found = _Trial()
    finally:
        os.close(said)
    if found.outcome == "healthy" and not ran.why and not ran.exit_code:
        return None
    if found.outcome == "ended" or not spec.health:
        step, command, code = "start_command", spec.start, found.exit_code or ran.exit_code
    else:
        step, command, code = "health_check", spec.health, found.exit_code
    message = (
        _failure_reason(job, ran, spec.health_timeout + _SLACK_SECONDS) if ran.why or not found.detail else found.detail
    )
    return _failed(job, "check", step, command, code, message)


class _Trial(msgspec.Struct):
    outcome: str = ""
    exit_code: int = 1
    detail: str = ""
    checks: int = 0


def _sandbox() -> str:
    from holdfast.sandbox import limited_command

    return limited_command.__file__


def _run(job: PromotionJob, stage: Stage, command: list[bytes], seconds: float, *keep: int) -> Ended:
    spec = job.spec
    tree = build_directory.tree_of(job)
    limits = FileLimits(seconds, spec.memory, spec.max_output_bytes)
    box = make_box(job, tree)
    return run_contained(
        [*signal_reset_prefix(), *command],
        box=box,
        directory=tree if box is None else job.context.workspace.path,
        environment=environment_of(job),
        limits=limits,
        output=output_path(job, stage),
        stop=job.site.stop,
        keep=keep,
    )


def output_path(job: PromotionJob, stage: str) -> bytes:
    """The file with what a stage's command has printed."""
    return os.path.join(job.folder, stage.encode() + b".log")


def last_output(path: bytes) -> str:
    """The end of the output, as text."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _SAID_BYTES))
            return file.read(_SAID_BYTES).decode("utf-8", "backslashreplace")
    except OSError:
        return ""


def _failed(job: PromotionJob, stage: str, step: str, words: list[str], code: int, message: str) -> PromotionAnswer:
    import shlex

    return PromotionAnswer(
        result="build_failed",
        failed_step=step,
        command=shlex.join(words),
        exit_code=code,
        output=last_output(output_path(job, stage)),
        recovery="Fork removed. Production unchanged.",
        code="build_failed",
        message=message,
    )


def _failure_reason(job: PromotionJob, ran: Ended, seconds: float) -> str:
    if ran.why == "time":
        return f"it took longer than {seconds:g} s, and was ended"
    if ran.why == "memory":
        return f"it took more than {job.spec.memory} bytes of memory, and was ended"
    return f"it ended with {ran.exit_code}"


def _in(error: OSError) -> str:
    return f": {display(error.filename)}" if isinstance(error.filename, bytes) else ""
