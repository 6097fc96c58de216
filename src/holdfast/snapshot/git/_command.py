"""Running Git so that no repository can choose a program to run: a controlled environment, no shell, limits on time and
output.

Git works in the shadow, whose configuration is ours. The user's own configuration (``~/.gitconfig`` and the system's)
is obeyed for content; settings that would run another program are overridden. Source: git(1), git-config(1), on
``GIT_CONFIG_COUNT``.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.model.errors import StorageError, UnsupportedError, room_hint
from holdfast.model.paths import display
from holdfast.snapshot._external_program import ProgramLimits, error_line, execute

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

QUICK_SECONDS = 60.0
"""For what reads or writes little."""
LONG_SECONDS = 1800.0
"""For what works on all files, or runs filters over them."""
MAX_OUTPUT = 256 << 20
"""Bytes of a list of paths: more than a million of them."""

_PIECE = 1 << 16
_LITTLE_ROOM = 1 << 20
"""A file of this size that cannot be written means a lack of disk space."""
_QUOTING = re.compile(
    r"(?:unexpected|unterminated) line in |object directory |normalize alternate object path|bad shallow line"
    r"|bad graft data|bad \w+ config value "
)
"""In Git's messages, the text before a quotation, which may be a line of any file to which a link led then."""
_KEPT = ("HOME", "XDG_CONFIG_HOME", "PATH", "TMPDIR", "USER", "LOGNAME", "LANG")
_OVERRIDDEN = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.splitIndex": "false",
    "core.ignoreStat": "false",
    "core.safecrlf": "false",
    "core.logAllRefUpdates": "false",
    "core.pager": "cat",
    "core.editor": "false",
    "core.askPass": "false",
    "core.sshCommand": "false",
    "core.gitProxy": "",
    "core.alternateRefsCommand": "true",
    "core.filesRefLockTimeout": "10000",
    "core.packedRefsTimeout": "10000",
    "core.fsync": "loose-object,pack,pack-metadata,reference",
    "core.fsyncMethod": "batch",
    "credential.helper": "",
    "protocol.allow": "never",
    **{f"protocol.{name}.allow": "never" for name in ("file", "git", "http", "https", "ssh", "ext")},
    "gc.auto": "0",
    "maintenance.auto": "false",
    "submodule.recurse": "false",
    "commit.gpgSign": "false",
    "init.defaultBranch": "main",
}
_FIXED = {
    "LC_ALL": "C.UTF-8",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "GIT_AUTHOR_NAME": "Holdfast",
    "GIT_AUTHOR_EMAIL": "holdfast@localhost",
    "GIT_COMMITTER_NAME": "Holdfast",
    "GIT_COMMITTER_EMAIL": "holdfast@localhost",
}


def find_git() -> str | None:
    """The program, as the user's ``PATH`` has it."""
    return shutil.which("git")


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Git's environment, from ``environ``: no variable makes it use another repository, ask a person, use the network,
    or run a program except filters.
    """
    given = {name: environ[name] for name in _KEPT if name in environ} | _FIXED
    given["GIT_CONFIG_COUNT"] = str(len(_OVERRIDDEN))
    for number, (key, value) in enumerate(_OVERRIDDEN.items()):
        given[f"GIT_CONFIG_KEY_{number}"] = key
        given[f"GIT_CONFIG_VALUE_{number}"] = value
    return given


class Git:
    """The program ``git``, told where to work."""

    def __init__(
        self,
        directory: bytes,
        *,
        git_dir: bytes | None = None,
        work_tree: bytes | None = None,
        index: bytes | None = None,
        borrows: bytes | None = None,
        objects: bytes | None = None,
        seconds: float = LONG_SECONDS,
    ) -> None:
        """Git runs in ``directory``, for at most ``seconds``; ``borrows`` is for ``GIT_ALTERNATE_OBJECT_DIRECTORIES``,
        ``objects`` replaces the repository's directory of objects. Raises `UnsupportedError` without Git.
        """
        program = find_git()
        if program is None:
            raise UnsupportedError("there is no program git", hint="install Git, 2.31 or later")
        self._program = program
        self._directory = directory
        self._writes_to = directory if git_dir is None else git_dir
        self._seconds = seconds
        self._environment: dict[str, str | bytes] = {**environment(os.environ)}
        for name, value in (
            ("GIT_DIR", git_dir),
            ("GIT_WORK_TREE", work_tree),
            ("GIT_INDEX_FILE", index),
            ("GIT_ALTERNATE_OBJECT_DIRECTORIES", borrows),
            ("GIT_OBJECT_DIRECTORY", objects),
        ):
            if value is not None:
                self._environment[name] = value

    def __call__(
        self,
        *words: str | bytes,
        stdin: bytes = b"",
        limit: int = MAX_OUTPUT,
        allowed: Sequence[int] = (0,),
        at: int | None = None,
    ) -> bytes:
        """Run it, and return its output. ``at``: the time of a commit in microseconds.

        Raises `StorageError` with the code ``git_failed`` and Git's message for an exit code not in ``allowed``, and
        ``git_slow`` if it takes too long; `UnsupportedError` if it writes more than ``limit`` bytes.
        """
        given = self._environment
        if at is not None:
            moment = f"@{at // 1_000_000} +0000"
            given = given | {"GIT_AUTHOR_DATE": moment, "GIT_COMMITTER_DATE": moment}
        hint = "a filter of yours may hang" if self._seconds == LONG_SECONDS else "what it reads may not answer"
        limits = ProgramLimits(limit, self._seconds, "git_slow", hint)
        ended = execute([self._program, *words], given, self._directory, limits, stdin=stdin)
        if ended.code not in allowed:
            verb = words[0].decode() if isinstance(words[0], bytes) else words[0]
            if full := self._no_room(ended.errors):
                raise StorageError(
                    f"git {verb} failed: {display(self._writes_to)}: {full.strerror}",
                    hint=room_hint(full),
                    code="git_failed",
                ) from full
            why = error_line(ended.errors, ("fatal:", "error:"))
            if quoting := _QUOTING.search(why):
                why = f"{why[: quoting.start()]}a file that it reads is not what it should be"
            raise StorageError(f"git {verb} failed ({ended.code}): {why}", code="git_failed")
        return ended.out

    def _no_room(self, errors: str) -> OSError | None:
        """The error of a lack of disk space, if that was the cause; Git does not always report it."""
        for number in (errno.ENOSPC, errno.EDQUOT):
            if os.strerror(number) in errors:
                return OSError(number, os.strerror(number))
        with suppress(OSError):
            there = os.statvfs(self._writes_to)
            if "unable to write" in errors and there.f_bavail * there.f_frsize < _LITTLE_ROOM:
                return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return None

    def fields(self, *words: str | bytes, stdin: bytes = b"", limit: int = MAX_OUTPUT) -> list[bytes]:
        """Its output, as a list of NUL-terminated fields (``-z``). Raises as a call."""
        return self(*words, stdin=stdin, limit=limit).split(b"\0")[:-1]

    def word(self, *words: str | bytes, stdin: bytes = b"", at: int | None = None) -> str:
        """The one line that it writes, such as the name of an object. Raises as a call."""
        return self(*words, stdin=stdin, limit=_PIECE, at=at).decode("ascii", "replace").strip()
