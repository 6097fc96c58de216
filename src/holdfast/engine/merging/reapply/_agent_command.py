"""The rung ``command``: an agent that is started for each small change, and answers the file's new content.

It is started word by word, without a shell, in an empty directory that is removed after it, with the change as one JSON
object on its standard input; its answer is one JSON object on standard output (docs/guide/merge.md). It has
``merge.timeout``, and nothing of it is left when that is over.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from typing import TYPE_CHECKING, Any, cast

from holdfast.engine.diffs import git_patch
from holdfast.engine.merging.reapply._strategy import Declined, NewContent
from holdfast.model.message_text import visible
from holdfast.model.paths import display
from holdfast.processes.child_environment import inherited_environment

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence

    from holdfast.engine.merging.reapply._strategy import ReapplyTask, RungName, RungOutcome

_MOST_SAID = 300
_MOST_ERRORS = 64 << 10
_REAPPLY = b"reapply"


class CommandRung:
    """See the module."""

    name: RungName = "command"
    takes_all = False

    def __init__(
        self,
        words: Sequence[str],
        *,
        home: bytes,
        timeout: float,
        max_bytes: int,
        stop: threading.Event | None = None,
        environment: Mapping[bytes, bytes] | None = None,
    ) -> None:
        """``timeout`` is in seconds; an answer may hold ``max_bytes`` of content. Setting ``stop`` ends what runs. What
        it is started in is in the ``home``, where the next one removes what a killed process has left. Without an
        ``environment`` it gets this process's.
        """
        self._above = os.path.join(home, _REAPPLY)
        self._words = list(words)
        self._timeout = timeout
        self._stop = stop
        self._environment = environment
        # (In JSON, a byte may take six characters.)
        self._most = 6 * max_bytes + (64 << 10)

    def apply(self, task: ReapplyTask) -> RungOutcome:
        """See `Rung.apply`."""
        from holdfast.engine.opening.home import make_private
        from holdfast.files.directories.scratch_directory import scratch

        asked = json.dumps(question(task)).encode() + b"\n"
        make_private(self._above)
        with scratch(self._above) as directory:
            answered = self._run(asked, directory)
        return answered if isinstance(answered, Declined) else parse_answer(answered, task)

    def _run(self, asked: bytes, directory: bytes) -> bytes | Declined:
        import shutil

        from holdfast.processes.child import Limits, run_contained

        if shutil.which(self._words[0]) is None:
            return Declined(f"{visible(self._words[0])} cannot be run: there is no such program")
        try:
            ended = run_contained(
                self._words,
                Limits(self._timeout, self._most, errors=_MOST_ERRORS),
                stdin=asked,
                cwd=directory,
                environment=inherited_environment(os.environb) if self._environment is None else self._environment,
                stop=self._stop,
            )
        except OSError as error:
            return Declined(f"{visible(self._words[0])} cannot be run: {error.strerror or error}")
        if ended.why == "time":
            return Declined(f"it took longer than merge.timeout, {self._timeout:g} s")
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


def question(task: ReapplyTask) -> dict[str, Any]:
    """What an agent is told of a change, as JSON."""
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
    """What an agent has answered, for bytes that anyone may have made."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return Declined("what it answered is no JSON")
    if not isinstance(found, dict):
        return Declined("what it answered is no JSON object")
    return read_answer(cast("dict[str, Any]", found), task.version, path=display(task.path))


def read_answer(found: dict[str, Any], version: str, *, path: str) -> RungOutcome:
    """The same for an answer that was read: ``content``, or ``content_base64``, ``delete`` or ``decline``.

    ``version`` and ``path`` must be those that were asked about, where they are said.
    """
    if found.get("version", version) != version or found.get("path", path) != path:
        return Declined("what it answered is for another version, or another file")
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
