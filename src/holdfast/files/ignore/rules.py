"""Decides which paths of a tree are not captured: by Git's exclude rules, `.checkpointignore`, and reserved paths.

Path by path, Git's part of the answer is that of ``git check-ignore --no-index``, in a repository and, with the same
files, in a folder that is none: nested repositories are ordinary files, and files added to a Git index by force are
unknown here. ``.checkpointignore`` (same syntax, at any depth) only adds: a negation there cancels a pattern of a
``.checkpointignore``, never one of Git's.
"""

from __future__ import annotations

import os
import stat

from blake3 import blake3

from holdfast.files.git.configuration import MAX_RULES_BYTES, GitUser, find_repository, global_excludes
from holdfast.files.linux.regular_file import read_regular
from holdfast.model.errors import StorageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.log import Log
from holdfast.model.paths import TEMPORARY_PREFIX, display

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.files.ignore._rule_matcher import Rules

GITIGNORE = b".gitignore"
CHECKPOINTIGNORE = b".checkpointignore"

FINGERPRINT_BYTES = 16
UNKNOWN_FINGERPRINT = bytes(FINGERPRINT_BYTES)
"""The fingerprint of no rules."""

DEFAULT_CHECKPOINTIGNORE = b"""\
# What checkpoints leave out, besides what .gitignore excludes. Same syntax as .gitignore.

# Secrets (may not be in .gitignore)
.env.local
.env*.local

# OS junk
.DS_Store
Thumbs.db

# Logs and temp
*.log
/tmp/

# IDE state (machine-specific)
.idea/
.vscode/settings.json
*.swp
*.swo

# Language caches
__pycache__/
*.pyc
.pytest_cache/
.mypy_cache/
.ruff_cache/
.turbo/
coverage/

# Installed dependencies
.venv/
node_modules/
.tox/
.nox/
"""
"""In force while the root holds no ``.checkpointignore``."""

_ALWAYS_NAMES = frozenset((b".git", b".holdfast"))
_ALWAYS_SUFFIXES = (b".sock", b".pid")
"""Of what a running program leaves, and no directory is."""
_FORMAT = b"holdfast-ignore-3"
_LOG = Log(__name__)


class _RuleFile:
    """The rules of a file with one content, parsed when they are first asked: in an unchanged tree they never are."""

    __slots__ = ("_content", "_rules", "_where")

    def __init__(self, content: bytes, where: bytes) -> None:
        self._content = content
        self._where = where
        self._rules: Rules | None = None

    def verdict(self, path: bytes, name: bytes, is_directory: bool) -> bool | None:
        """See `Rules.verdict`."""
        if self._rules is None:
            from holdfast.files.ignore._patterns import parse_rules
            from holdfast.files.ignore._rule_matcher import MAX_GLOBS, Rules

            self._rules = Rules(parse_rules(self._content))
            if len(self._content) > MAX_RULES_BYTES:
                _LOG.warning(
                    "only the first %d bytes of the ignore rules in %s are obeyed",
                    MAX_RULES_BYTES,
                    display(self._where),
                )
            if self._rules.left_out:
                _LOG.warning(
                    "%d ignore patterns in %s are not obeyed: only the first %d with several wildcards are",
                    self._rules.left_out,
                    display(self._where),
                    MAX_GLOBS,
                )
        return self._rules.verdict(path, name, is_directory)


_Layer = tuple[_RuleFile, int, bytes]
"""Rules, the length of the path above their directory, and its prefix if that is outside the workspace."""


class _Outside(NamedTuple):
    """A rule file outside of the tree."""

    where: bytes
    """``global``, ``info``, or the directory above the root that it lies in."""
    file: bytes
    content: bytes


class DirectoryRules:
    """The rules in force for the entries of one directory, and below it up to where other rule files are."""

    __slots__ = ("_cache", "_git", "_own", "fingerprint")

    def __init__(
        self, fingerprint: bytes, git: tuple[_Layer, ...], own: tuple[_Layer, ...], cache: dict[bytes, _RuleFile]
    ) -> None:
        self.fingerprint = fingerprint
        """Decisions made under equal fingerprints, about the same path, are equal. `FINGERPRINT_BYTES` long."""
        self._git = git
        self._own = own
        self._cache = cache

    def excluded(self, path: bytes, name: bytes, is_directory: bool) -> bool:
        """True if the entry ``path`` (from the root; ``name`` is its last part) is not captured.

        The directories above it must not be excluded themselves: callers never ask for the content of an excluded one.
        """
        if name in _ALWAYS_NAMES or name.startswith(TEMPORARY_PREFIX):
            return True
        if name.endswith(_ALWAYS_SUFFIXES) and not is_directory:
            return True
        for rules, above, before in self._git:
            verdict = rules.verdict(before + path[above:], name, is_directory)
            if verdict:
                return True
            if verdict is False:
                break
        for rules, above, before in self._own:
            verdict = rules.verdict(before + path[above:], name, is_directory)
            if verdict is not None:
                return verdict
        return False

    def below(self, path: bytes, gitignore: bytes | None, checkpointignore: bytes | None) -> DirectoryRules:
        """The rules for the directory ``path`` below, given the content of its rule files (None for a missing one)."""
        if gitignore is None and checkpointignore is None:
            return self
        return self._with(path + b"/", gitignore, checkpointignore)

    def at_root(self, gitignore: bytes | None, checkpointignore: bytes | None) -> DirectoryRules:
        """The rules for the root itself; without a ``.checkpointignore`` there, the default one is in force."""
        return self._with(b"", gitignore, DEFAULT_CHECKPOINTIGNORE if checkpointignore is None else checkpointignore)

    def _with(self, prefix: bytes, gitignore: bytes | None, checkpointignore: bytes | None) -> DirectoryRules:
        state = blake3(self.fingerprint)
        for content in (gitignore, checkpointignore):
            state.update(b"\0" if content is None else b"\1" + blake3(content).digest())
        git, own = self._git, self._own
        if gitignore is not None:
            git = ((_rules(self._cache, gitignore, prefix + GITIGNORE), len(prefix), b""), *git)
        if checkpointignore is not None:
            own = ((_rules(self._cache, checkpointignore, prefix + CHECKPOINTIGNORE), len(prefix), b""), *own)
        return DirectoryRules(state.digest(FINGERPRINT_BYTES), git, own, self._cache)


class IgnoreSources:
    """The rules from outside a tree: Git's for the user and the repository around it, and the configured patterns."""

    def __init__(self, root: bytes, *, user: GitUser | None = None, exclude: Sequence[str] = ()) -> None:
        """``root`` is the tree's absolute path. ``exclude`` are patterns that act as if the outermost
        ``.checkpointignore`` began with them.
        """
        self._root = root
        self.user = GitUser() if user is None else user
        self.exclude = tuple(exclude)
        """The configured patterns; others may be put in their place."""
        self._cache: dict[bytes, _RuleFile] = {}
        self._last: DirectoryRules | None = None
        self._unreadable: set[bytes] = set()

    def outer(self) -> DirectoryRules:
        """The rules from above the root, as in the files now; the same object while they are unchanged.

        A root excluded by its own repository must be captured all the same: then that repository's rule files above the
        root are ignored.
        """
        repository = find_repository(self._root)
        contents: list[_Outside] = []
        excludes = global_excludes(self.user, repository)
        worktree = self._root if repository is None else repository.worktree
        if excludes is not None:
            contents.append(_Outside(b"global", excludes, self._read(excludes)))
        parts: list[bytes] = []
        if repository is not None:
            file = repository.common + b"/info/exclude"
            contents.append(_Outside(b"info", file, self._read(file)))
            parts = [part for part in self._root[len(worktree) :].split(b"/") if part]
            at = worktree
            for part in parts:
                file = at + b"/" + GITIGNORE
                contents.append(_Outside(at, file, self._read(file, follow=False)))
                at += b"/" + part
        state = blake3(_FORMAT)
        for item in (DEFAULT_CHECKPOINTIGNORE, _lines(self.exclude), b"/".join(parts)):
            state.update(len(item).to_bytes(8, "little") + item)
        for where, _, content in contents:
            key = where if where in (b"global", b"info") else where[len(worktree) :]
            state.update(len(key).to_bytes(8, "little") + key + len(content).to_bytes(8, "little") + content)
        fingerprint = state.digest(FINGERPRINT_BYTES)
        if self._last is None or self._last.fingerprint != fingerprint:
            own = _excluding(self._cache, self.exclude)
            self._last = DirectoryRules(fingerprint, self._layers(contents, parts, worktree), own, self._cache)
        return self._last

    def _read(self, path: bytes, *, follow: bool = True) -> bytes:
        """The rules in the file ``path``; an unreadable file is reported once, and ignored."""
        try:
            found = read_regular(path, MAX_RULES_BYTES + 1, follow=follow)
        except OSError as error:
            if path not in self._unreadable:
                self._unreadable.add(path)
                _LOG.warning("the ignore rules in %s are not obeyed: %s", display(path), error.strerror)
            return b""
        self._unreadable.discard(path)
        return found or b""

    def _layers(self, contents: list[_Outside], parts: list[bytes], worktree: bytes) -> tuple[_Layer, ...]:
        layers: list[_Layer] = []
        obeyed: list[_Layer] = []
        for where, file, content in contents:
            if where in (b"global", b"info"):
                depth = 0
            else:
                depth = where[len(worktree) :].count(b"/")
            before = b"".join(part + b"/" for part in parts[depth:])
            layer = (_rules(self._cache, content, file), 0, before)
            layers.insert(0, layer)
            if where == b"global":
                obeyed.insert(0, (layer[0], 0, b""))
        for depth in range(1, len(parts) + 1):
            # Each directory on the way down is judged by the rules above it, as Git does.
            known = layers[len(parts) - depth :]
            for rules, _, before in known:
                above = parts[len(parts) - before.count(b"/") : depth]
                verdict = rules.verdict(b"/".join(above), parts[depth - 1], True)
                if verdict:
                    return tuple(obeyed)
                if verdict is False:
                    break
        return tuple(layers)


def rules_excluding(exclude: Sequence[str]) -> DirectoryRules:
    """The rules that hold above a root of which nothing is known but the patterns that `IgnoreSources` is given."""
    cache: dict[bytes, _RuleFile] = {}
    return DirectoryRules(UNKNOWN_FINGERPRINT, (), _excluding(cache, exclude), cache)


def _excluding(cache: dict[bytes, _RuleFile], exclude: Sequence[str]) -> tuple[_Layer, ...]:
    return ((_rules(cache, _lines(exclude), b"capture.exclude"), 0, b""),) if exclude else ()


def _lines(exclude: Sequence[str]) -> bytes:
    return "\n".join(exclude).encode("utf-8", "surrogateescape")


def _rules(cache: dict[bytes, _RuleFile], content: bytes, where: bytes) -> _RuleFile:
    """The rules of a file with this content; trees hold many equal ones."""
    rules = cache.get(content)
    if rules is None:
        rules = cache[content] = _RuleFile(content, where)
    return rules


def read_rule_file(directory: int, name: bytes) -> bytes | None:
    """The content of the rule file ``name`` in an open directory; None if there is none. A link is not followed (I7),
    as in Git. A file longer than `MAX_RULES_BYTES` is cut. Raises `OSError` if it is unreadable.
    """
    return read_regular(name, MAX_RULES_BYTES + 1, dir_fd=directory, follow=False)


def read_rule_files(directory: int) -> tuple[bytes | None, bytes | None]:
    """The content of ``.gitignore`` and ``.checkpointignore`` in an open directory; None for a missing or unreadable
    one: for callers that need only a likely answer.
    """

    def read(name: bytes) -> bytes | None:
        try:
            return read_rule_file(directory, name)
        except OSError:
            return None

    return read(GITIGNORE), read(CHECKPOINTIGNORE)


def write_default_ignore(root: bytes) -> bool:
    """Write the default ``.checkpointignore`` into ``root``; False, and nothing is changed, if there is one already."""
    path = root + b"/" + CHECKPOINTIGNORE
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o666)
    except FileExistsError:
        return False
    except OSError as error:
        raise StorageError(f"cannot write {display(path)}: {error.strerror}") from error
    try:
        above = os.stat(root)
        if stat.S_ISDIR(above.st_mode) and os.geteuid() == 0:
            os.fchown(fd, above.st_uid, above.st_gid)
        os.write(fd, DEFAULT_CHECKPOINTIGNORE)
        os.fsync(fd)
    except OSError as error:
        raise StorageError(f"cannot write {display(path)}: {error.strerror}") from error
    finally:
        os.close(fd)
    return True
