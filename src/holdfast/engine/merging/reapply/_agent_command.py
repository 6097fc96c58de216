"""The rung ``command``: an agent process for each small change, which answers with the file's new content.

It is started word by word, without a shell, in an empty directory that is removed after it, with the change as one JSON
object on its standard input; its answer is one JSON object on standard output (docs/reference/ladder.md). Each call has
``merge.timeout``, and all calls of one merge have ``merge.total_timeout``; its processes are killed then.
``merge.calls`` run at the same time. An accepted answer is kept in the catalog until the merge is made, so that it is
not asked again if another file keeps the merge open, or the process is killed.

Production's state is written out for the agent once for each ladder, at the first change.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import time
from typing import TYPE_CHECKING, Any, cast

from holdfast.engine.diffs import git_patch
from holdfast.engine.merging.reapply._strategy import Declined, NewContent, refusal
from holdfast.model.entries import Change
from holdfast.model.errors import StorageError
from holdfast.model.ids import CheckpointId, hash_bytes
from holdfast.model.message_text import visible
from holdfast.model.paths import display
from holdfast.processes.child_environment import inherited_environment
from holdfast.store.catalog.reapply_rows import ReapplyRow, ReapplyRows

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence
    from contextlib import ExitStack

    from holdfast.engine.merging.reapply._strategy import ReapplyTask, RungName, RungOutcome
    from holdfast.engine.opening.context import Context

_MOST_SAID = 300
_MOST_ERRORS = 64 << 10
_REAPPLY = b"reapply"


class AgentCommand:
    """The command of ``merge.command``, as it is called for one change."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        home: bytes,
        timeout: float,
        total_timeout: float,
        max_bytes: int,
        stop: threading.Event | None = None,
        environment: Mapping[bytes, bytes] | None = None,
    ) -> None:
        """``timeout`` and ``total_timeout`` are in seconds; the latter is for all calls together, from the first one
        on. An answer may hold ``max_bytes`` of content. Setting ``stop`` ends running agents and prevents new ones.
        Agents start in a directory in the ``home``, where the next call removes the rest of a killed process.
        ``environment`` defaults to this process's.
        """
        self.above = os.path.join(home, _REAPPLY)
        """Where the directories of calls are."""
        self._words = list(words)
        self._timeout = timeout
        self._total_timeout = total_timeout
        self._until: float | None = None
        self._stop = stop
        given = inherited_environment(os.environb) if environment is None else environment
        # So that `holdfast cat ID:PATH` finds the states in its input.
        self._environment = {**given, b"HOLDFAST_HOME": home}
        # In JSON, a byte may take six characters.
        self._most = 6 * max_bytes + (64 << 10)

    def why_not(self) -> Declined | None:
        """Why it cannot be called; None if it can."""
        import shutil

        if shutil.which(self._words[0]) is None:
            return Declined(f"{visible(self._words[0])} cannot be run: there is no such program")
        if self._stop is not None and self._stop.is_set():
            return Declined("it was interrupted")
        return self._over() if self._left() <= 0 else None

    def ask(self, task: ReapplyTask, production: bytes | None = None) -> RungOutcome:
        """Have it apply one change; ``production`` is a directory with the state of production. For any thread."""
        from holdfast.engine.opening.home import make_private
        from holdfast.files.directories.scratch_directory import scratch

        refused = self.why_not()
        if refused is not None:
            return refused
        told = question(task)
        if production is not None:
            told["about"] = {**task.about, "production_directory": os.fsdecode(production)}
        asked = json.dumps(told).encode() + b"\n"
        make_private(self.above)
        with scratch(self.above) as directory:
            answered = self._run(asked, directory)
        return answered if isinstance(answered, Declined) else parse_answer(answered, task)

    def _left(self) -> float:
        """How many seconds all calls have still."""
        if self._until is None:
            self._until = time.monotonic() + self._total_timeout
        return self._until - time.monotonic()

    def _over(self) -> Declined:
        return Declined(f"merge.total_timeout, {self._total_timeout:g} s, is over")

    def _run(self, asked: bytes, directory: bytes) -> bytes | Declined:
        from holdfast.processes.child import Limits, run_contained

        left = self._left()
        try:
            ended = run_contained(
                self._words,
                Limits(max(0.1, min(self._timeout, left)), self._most, errors=_MOST_ERRORS),
                stdin=asked,
                cwd=directory,
                environment=self._environment,
                stop=self._stop,
            )
        except OSError as error:
            return Declined(f"{visible(self._words[0])} cannot be run: {error.strerror or error}")
        if ended.why == "time":
            return (
                Declined(f"it took longer than merge.timeout, {self._timeout:g} s")
                if self._timeout <= left
                else self._over()
            )
        if ended.why == "output":
            return Declined(f"it answered more than {self._most} bytes")
        if ended.why == "stopped" and self._stop is not None and self._stop.is_set():
            return Declined("it was interrupted")
        code = ended.exit_code
        if code == 0:
            return ended.output
        how = f"it ended with {code}" if code not in range(129, 193) else f"signal {code - 128} ended it"
        said = ended.errors.decode("utf-8", "replace").strip().splitlines()
        return Declined(f"{visible(said[-1])[:_MOST_SAID]} ({how})" if said else how)


class CommandRung:
    """See the module. For several threads, each of which holds the ``turn``."""

    name: RungName = "command"
    takes_all = False

    def __init__(self, context: Context, command: AgentCommand, *, turn: threading.Lock, resources: ExitStack) -> None:
        """Applies changes of merges into the workspace of ``context`` with ``command``. While the agent works, another
        thread may have the ``turn``. Closing ``resources`` removes the files that are written out for it; the next call
        removes those of a killed process.
        """
        self._context = context
        self._settings = context.settings.merge
        self._command = command
        self._turn = turn
        self._resources = resources
        self._kept = ReapplyRows(context.store.catalog)
        self._production: tuple[str, bytes] | None = None

    def apply(self, task: ReapplyTask) -> RungOutcome:
        """See `Rung.apply`."""
        name = self._name_of(task)
        kept = self._kept.get(name)
        if kept is not None:
            return NewContent(kept.answer, kept.said)
        refused = self._command.why_not()
        if refused is not None:
            return refused
        production = self._production_directory(CheckpointId(task.about["production_checkpoint"]))
        self._turn.release()
        try:
            found = self._command.ask(task, production)
        finally:
            self._turn.acquire()
        if isinstance(found, NewContent) and refusal(task, found.content, self._settings.max_bytes) is None:
            self._keep(name, task, found)
        return found

    def _name_of(self, task: ReapplyTask) -> str:
        """The key for an answer to ``task``: another command is asked anew."""
        words = b"\0".join(map(os.fsencode, self._settings.command))
        asked = (b"command", self._context.workspace.id.encode(), task.version.encode(), task.why.encode(), words)
        return hash_bytes(b"\0".join(asked)).hex()

    def _keep(self, name: str, task: ReapplyTask, found: NewContent) -> None:
        row = ReapplyRow(
            name,
            self._context.workspace.id,
            task.path,
            "{}",
            None,
            None,
            None,
            "kept",
            answer=found.content,
            said=found.said,
            created_at=self._context.clock.now(),
        )
        self._kept.keep(row, most=self._settings.queue_entries, most_bytes=self._settings.queue_bytes)

    def _production_directory(self, production: CheckpointId) -> bytes:
        """A directory with the state ``production``, without the permission to write there."""
        if self._production is not None and self._production[0] == production:
            return self._production[1]
        from holdfast.engine.opening.home import make_private
        from holdfast.files.directories.scratch_directory import scratch

        make_private(self._command.above)
        # In a directory of its own, which stays private whatever the state's permissions are.
        directory = os.path.join(self._resources.enter_context(scratch(self._command.above)), b"production")
        os.mkdir(directory, 0o700)
        _write_out(self._context, production, directory)
        self._production = (production, directory)
        return directory


def _write_out(context: Context, state: CheckpointId, directory: bytes) -> None:
    """Write a state into an empty directory, and take the permission to write there away. Raises `StorageError`."""
    from holdfast.files.local_tree import LocalTree
    from holdfast.store.blobs.content_supply import StoredContent
    from holdfast.store.manifests import manifest

    entries = manifest.iterate(context.store.pages, context.catalog.checkpoint(state).root)
    supply = StoredContent(context.store.reader)
    applied = LocalTree(directory).apply(
        [], ((Change(path, None, entry), supply) for path, entry in entries), nonce="production"
    )
    if applied.skipped:
        path, reason = applied.skipped[0]
        raise StorageError(f"production cannot be written out for the agent: {display(path)}: {reason}")
    for above, directories, files in os.walk(directory, topdown=False):
        for name in (*directories, *files):
            path = os.path.join(above, name)
            if not os.path.islink(path):
                os.chmod(path, os.lstat(path).st_mode & 0o555)
    os.chmod(directory, 0o500)


def question(task: ReapplyTask) -> dict[str, Any]:
    """The description of a change for an agent, as JSON."""
    found: dict[str, Any] = {
        "path": display(task.path),
        "why": task.why,
        "version": task.version,
        "changesets": list(task.numbers),
        "about": task.about,
    }
    for name, content in (("current", task.now), ("before", task.before), ("after", task.after)):
        found |= _told(name, content)
    if not any(one is not None and git_patch.is_binary(one) for one in (task.before, task.after)):
        found["diff"] = b"".join(git_patch.hunks(task.before or b"", task.after or b"")).decode("utf-8", "replace")
    return found


def _told(name: str, content: bytes | None) -> dict[str, Any]:
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode("ascii")}


def parse_answer(data: bytes, task: ReapplyTask) -> RungOutcome:
    """An agent's answer, from untrusted bytes."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return Declined("its answer is no JSON")
    if not isinstance(found, dict):
        return Declined("its answer is no JSON object")
    return read_answer(cast("dict[str, Any]", found), task.version, path=display(task.path))


def read_answer(found: dict[str, Any], version: str, *, path: str) -> RungOutcome:
    """`parse_answer` for a decoded answer: ``content``, or ``content_base64``, ``delete`` or ``decline``.

    ``version`` and ``path``, if present, must be those of the question.
    """
    if found.get("version", version) != version or found.get("path", path) != path:
        return Declined("its answer is for another version, or another file")
    if "decline" in found:
        return Declined(visible(str(found["decline"]))[:_MOST_SAID])
    chosen = [name for name in ("content", "content_base64", "delete") if name in found]
    if len(chosen) != 1:
        return Declined("an answer has one of content, content_base64, delete and decline")
    value = found[chosen[0]]
    said = visible(str(found["said"]))[:_MOST_SAID] if isinstance(found.get("said"), str) else ""
    if chosen == ["delete"]:
        return NewContent(None, said) if value is True else Declined("delete is true, or it is left out")
    if not isinstance(value, str):
        return Declined(f"{chosen[0]} is no text")
    try:
        return NewContent(value.encode() if chosen == ["content"] else base64.b64decode(value, validate=True), said)
    except (UnicodeEncodeError, binascii.Error, ValueError):
        return Declined(f"{chosen[0]} cannot be read")
