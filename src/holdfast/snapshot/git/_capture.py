"""The state of a work tree as a commit of the shadow: the tracked files with their present contents.

Our own index starts as a copy of the user's, with its knowledge of unchanged files, and is kept: the next capture reads
only files that changed since. The user's own index is only read.
"""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.files.directories.replication import remove_whole
from holdfast.files.linux.reflink import copy_content
from holdfast.model.errors import RefusedError, StorageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.snapshot.git._skip_worktree import clear_flags, is_unchanged
from holdfast.snapshot.git._staged_files import staged
from holdfast.snapshot.private_directories import make_private

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from holdfast.snapshot.git._command import Git
    from holdfast.snapshot.git._read_access import ReadAccess
    from holdfast.snapshot.git._shadow_repository import ShadowRepository
    from holdfast.snapshot.git._user_repository import UserRepository

_LOG = Log(__name__)
_GITLINK = b"160000"
_SHOWN = 3
_PIECE = 1 << 20
_SOME_OUTPUT = 1 << 16
_READ_BY_GIT = (b".gitmodules", b".gitattributes", b".gitignore")
_SUFFIXES = (b"", b".lock", b".begun", b".unlooked")
_STAGED = b".staged"
_CAPTURED = (stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR)
"""A directory is a submodule's; anything else cannot be in a tree of Git."""


class SkippedFilters(NamedTuple):
    """The filters that are defined, and not run."""

    names: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    """Filters without which files must be neither captured nor written."""


class CaptureRules(NamedTuple):
    """The rules of a capture."""

    untracked: bool
    """Include files that are neither tracked nor ignored."""
    conflicts: bool = False
    """Accept an index with conflicts: they are kept beside the tree, which has the present files."""
    partial: bool = False
    """The repository is a partial clone: objects of it may be missing."""
    unrun: SkippedFilters = SkippedFilters()
    object_format: str = "sha1"
    """The hash of object names, and of an index's trailer."""


class Captured(NamedTuple):
    """The result of a capture."""

    commit: str
    conflicts: str = ""
    """The object, a blob, with the unmerged entries of the index, in the format of ``git ls-files --unmerged -z``;
    empty without any.
    """


def filters_of(git: Git, paths: Iterable[bytes], *words: str) -> Iterator[tuple[bytes, str]]:
    """Each of ``paths`` with the filter that it takes, as attributes say; ``words`` are of ``git check-attr``."""
    told = git.fields("check-attr", *words, "-z", "--stdin", "filter", stdin=_ended(paths))
    for path, name in zip(told[::3], told[2::3], strict=True):
        yield path, os.fsdecode(name)


def forget_index(path: bytes) -> None:
    """Remove our index at ``path``, and its temporary files. Does nothing if it is missing."""
    for suffix in _SUFFIXES:
        with suppress(FileNotFoundError):
            os.unlink(path + suffix)
    remove_whole(path + _STAGED)


def filter_refused(name: str, path: bytes) -> RefusedError:
    """The error for a file whose filter is required, and not run."""
    return RefusedError(
        f"{display(path)} takes the required filter {name}, which only the repository's configuration defines: not run",
        hint="git.trust_local_filters = yes runs it, if you trust the "
        "repository's author; or define it in ~/.gitconfig",
        code="git_filter",
    )


class Capture:
    """Captures one work tree, repeatedly, with an index of its own."""

    def __init__(
        self,
        shadow: ShadowRepository,
        source: UserRepository,
        index: bytes,
        reach: ReadAccess,
        rules: CaptureRules,
        *,
        borrows: bytes | None = None,
        only: bytes | None = None,
    ) -> None:
        """``index`` is our index's path; ``reach`` opens the user's; ``borrows`` is a directory of objects that the
        shadow does not borrow from; ``only`` is the one with every object that does not come from a file.
        """
        assert source.work_tree is not None, "a bare repository has no files"
        self._work_tree = source.work_tree
        self._shadow = shadow
        self._source = source
        self._index = index
        self._reach = reach
        self._rules = rules
        self._borrows = borrows
        self._only = only
        self._git = shadow.git(work_tree=source.work_tree, index=index, borrows=borrows)

    def run(self, *, base: str, parent: str, message: str, at: int) -> Captured:
        """Make a commit of what the files are now, and keep what the commit ``base`` does not hold.

        ``parent`` is the commit's parent, none if it is empty. Raises `RefusedError` with the code ``git_unmerged``,
        ``git_filter``, ``git_index``, ``git_objects`` or ``git_pipe``, `StorageError`.
        """
        self._refuse_pipes()
        kept = self._seed()
        try:
            tree, conflicts = self._tree(base, fresh=not kept)
        except StorageError as error:
            self.forget()
            if not kept:
                raise
            _LOG.debug("the index that was kept is of no use, and is begun anew: %s", error)
            self._seed()
            try:
                tree, conflicts = self._tree(base, fresh=True)
            except StorageError:
                self.forget()
                raise
        parents = ("-p", parent) if parent else ()
        words = ("commit-tree", "--no-gpg-sign", *parents, "-F", "-", tree)
        commit = self._git.word(*words, stdin=message.encode(), at=at)
        if conflicts:
            self.forget()  # ours has none any more, and the next capture must find them again
        return Captured(commit, conflicts)

    def _refuse_pipes(self) -> None:
        """Refuse pipes by names that Git reads at the top of a work tree: it would wait for a writer."""
        for name in _READ_BY_GIT:
            path = os.path.join(self._work_tree, name)
            with suppress(OSError):  # nothing, or a link that leads nowhere
                if not stat.S_ISFIFO(os.stat(path).st_mode):
                    continue
                raise RefusedError(
                    f"{display(path)} is a pipe, which Git would read and wait for",
                    hint="remove it, or put a file there",
                    code="git_pipe",
                )

    def forget(self) -> None:
        """Remove the index: the next capture begins with the user's."""
        forget_index(self._index)

    def _begun(self) -> bytes:
        """The file that says which index of the user's ours began as."""
        return self._index + b".begun"

    def _unlooked(self) -> bytes:
        """The file with the basis of our index, where the user's says that files need not be checked."""
        return self._index + b".unlooked"

    def _skip_worktree_file(self) -> bool:
        found = _content(self._unlooked(), limit=-1)
        return found is not None and is_unchanged(self._work_tree, found)

    def _seed(self) -> bool:
        """Start with the user's index, unless ours started with the same, and the files that it relied on are
        unchanged: then return True.
        """
        fd = self._reach.opened(path := os.path.join(self._source.own, b"index"))
        if fd is None:
            _refuse_no_file(path)
            fd = os.memfd_create("none", os.MFD_CLOEXEC)  # nothing was ever added
        try:
            found = os.fstat(fd)
            identity = b"%d %d %d %d\n" % (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
            if not found.st_size:
                identity = b"none\n"
            if os.path.lexists(self._index) and _content(self._begun()) == identity and self._skip_worktree_file():
                return True
            self.forget()
            make_private(os.path.dirname(self._index))
            if found.st_size:
                self._copy(fd, found)
            else:
                self._git("read-tree", "--empty")
        finally:
            os.close(fd)
        with open(self._begun(), "wb") as file:
            file.write(identity)
        return False

    def _copy(self, fd: int, found: os.stat_result) -> None:
        """Copy the user's index, and its time with it: what changed in the same tick as it was written is looked at."""
        copy = os.open(self._index, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            copy_content(fd, copy)
            self._refuse_damaged(copy)
        finally:
            os.close(copy)
        os.utime(self._index, ns=(found.st_atime_ns, found.st_mtime_ns))
        for name in os.listdir(self._source.own):
            if name.startswith(b"sharedindex."):  # a split index: most of it is in there
                target = os.path.join(self._shadow.path, name)
                if not os.path.lexists(target):
                    self._copy_file(os.path.join(self._source.own, name), target)

    def _copy_file(self, source: bytes, target: bytes) -> None:
        """Copy a file to a name that it gets when it is whole."""
        fd = self._reach.opened(source)
        if fd is None:
            return  # Git reports the fault
        try:
            copy = os.open(target + b".new", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                copy_content(fd, copy)
                self._refuse_damaged(copy)
            finally:
                os.close(copy)
        finally:
            os.close(fd)
        os.rename(target + b".new", target)

    def _refuse_damaged(self, fd: int) -> None:
        """Raise `StorageError` if the index open as ``fd``, a copy of the user's, does not end with the digest of its
        content: Git reads a truncated one as if zeros followed. Source: gitformat-index(5).
        """
        digest = hashlib.new(self._rules.object_format)
        left = os.fstat(fd).st_size - digest.digest_size
        os.lseek(fd, 0, os.SEEK_SET)
        while left > 0 and (piece := os.read(fd, min(left, _PIECE))):
            digest.update(piece)
            left -= len(piece)
        end = os.read(fd, digest.digest_size)
        # With ``index.skipHash``, Git writes zeros.
        if left or end not in (digest.digest(), bytes(digest.digest_size)):
            raise StorageError(
                f"the index of the repository is damaged: {display(os.path.join(self._source.own, b'index'))}",
                hint="`git fsck` says more; `git read-tree HEAD` makes the index anew, without staged changes",
                code="git_failed",
            )

    def _tree(self, base: str, *, fresh: bool) -> tuple[str, str]:
        """The tree of what the files are now, with every object of it where it stays, and `Captured.conflicts`.
        ``fresh``: the index is still the user's.
        """
        git = self._git
        unmerged = git("ls-files", "--unmerged", "-z", limit=1 << 30)
        if unmerged and not self._rules.conflicts:
            _refuse_conflicts(unmerged[:_SOME_OUTPUT].split(b"\0")[:-1])
        if self._rules.unrun.required:
            self._refuse_required(git.fields("ls-files", "-z"))
        stages = unmerged.split(b"\0")[:-1]
        conflicting = list(dict.fromkeys(item.partition(b"\t")[2] for item in stages))
        if conflicting:
            git("update-index", "-z", "--force-remove", "--stdin", stdin=_ended(conflicting))
        if fresh:
            found = clear_flags(git, self._work_tree)
            with open(self._unlooked(), "wb") as file:
                file.write(found)
        git("update-index", "-q", "--really-refresh", allowed=(0, 1))
        gone, changed = self._changes()
        modules = {item.partition(b"\t")[2] for item in stages if item.startswith(_GITLINK)}
        for path in conflicting:
            if self._can_be_captured(path) and (path in modules or not self._is_directory(path)):
                changed.append(path)
        if self._rules.untracked:
            listed = git.fields("ls-files", "--others", "--exclude-standard", "--exclude=/.holdfast/", "-z")
            others = (path for path in listed if path not in conflicting and not path.endswith(b"/"))
            fresh_files = [path for path in others if self._can_be_captured(path)]
            self._refuse_required(fresh_files)
            changed += fresh_files
        if fresh and self._rules.unrun.names:
            changed += self._unfiltered({*changed, *gone})
        if gone:
            git("update-index", "-z", "--force-remove", "--stdin", stdin=_ended(gone))
        if changed:
            self._take_in(changed)
        missing = ("--missing-ok",) if self._rules.partial else ()
        tree = git.word("write-tree", *missing)
        self._keep(tree, base, _blobs_of(stages))
        return tree, self._shadow.git().word("hash-object", "-w", "--stdin", stdin=unmerged) if unmerged else ""

    def _take_in(self, paths: list[bytes]) -> None:
        """Have our index hold these files as they are, and submodules as the commits that they are at."""
        words = ("update-index", "-z", "--add", "--remove", "--replace", "--stdin")
        with staged(self._work_tree, paths, place := self._index + _STAGED) as directories:
            copies = self._shadow.git(work_tree=place, index=self._index, borrows=self._borrows)
            copies(*words, stdin=_ended(path for path in paths if path not in directories))
        if directories:
            self._git(*words, stdin=_ended(directories))
        listed = {line.partition(b"\t")[2]: line for line in self._git.fields("ls-files", "--stage", "-z")}
        for path in directories:
            if path in listed and not listed[path].startswith(_GITLINK):
                raise StorageError(f"{display(path)} was replaced while it was captured", code="git_failed")
        # Git must not remember the copies' stat data.
        self._git("update-index", "-z", "--index-info", stdin=_ended(listed[path] for path in paths if path in listed))

    def _changes(self) -> tuple[list[bytes], list[bytes]]:
        """The tracked paths that are gone, and those that differ from our index."""
        words = ("diff-files", "-z", "--raw", "--no-renames", "--no-ext-diff", "--ignore-submodules=dirty")
        fields = self._git.fields(*words)
        gone: list[bytes] = []
        changed: list[bytes] = []
        for about, path in zip(fields[::2], fields[1::2], strict=True):
            deleted = about.endswith(b"D") or not self._can_be_captured(path)
            (gone if deleted else changed).append(path)
        return gone, changed

    def _refuse_required(self, paths: list[bytes]) -> None:
        """Refuse files that take a required filter which is not run: Git could not even compare them."""
        required = self._rules.unrun.required
        if required:
            for path, name in filters_of(self._git, paths):
                if name in required and self._can_be_captured(path):
                    raise filter_refused(name, path)

    def _unfiltered(self, known: set[bytes]) -> list[bytes]:
        """The other files whose filter is not run: the user's index has them filtered, and we as they are."""
        staged = {
            line.partition(b"\t")[2]: line
            for line in self._git.fields("ls-files", "--stage", "-z")
            if not line.startswith(_GITLINK)
        }
        paths = [path for path in staged if path not in known]
        again = [
            path
            for path, name in filters_of(self._git, paths)
            if name in self._rules.unrun.names and self._can_be_captured(path)
        ]
        # Without its stat data, Git reads the file again.
        self._git("update-index", "-z", "--index-info", stdin=_ended(staged[path] for path in again))
        return again

    def _can_be_captured(self, path: bytes) -> bool:
        try:
            return stat.S_IFMT(os.lstat(os.path.join(self._work_tree, path)).st_mode) in _CAPTURED
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _is_directory(self, path: bytes) -> bool:
        full = os.path.join(self._work_tree, path)
        return os.path.isdir(full) and not os.path.islink(full)

    def _keep(self, tree: str, base: str, more: Sequence[str]) -> None:
        """Have the objects of the tree that ``base`` lacks in the shadow's own store, and ``more`` objects: in the
        user's repository only an index or a stash may reference them, and its gc may delete them.
        """
        git = self._git
        before = git.word("rev-parse", "--verify", f"{base}^{{tree}}") if base else _empty_tree(git)
        if before == tree and not more:
            return
        fields = git.fields("diff-tree", "-r", "-t", "-z", "--raw", "--no-renames", "--no-abbrev", before, tree)
        names = {tree, *more}
        for about in fields[::2]:
            _, mode, _, name, status = about.split(b" ")
            if status != b"D" and mode != _GITLINK:
                names.add(name.decode("ascii"))
        self._shadow.keep(git, sorted(names), promised=self._rules.partial, only=self._only)


def _refuse_conflicts(unmerged: list[bytes]) -> None:
    paths = list(dict.fromkeys(item.partition(b"\t")[2] for item in unmerged))
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    shown = ", ".join(display(path) for path in paths[:_SHOWN])
    raise RefusedError(
        f"there are conflicts that are not resolved: {shown}{more}",
        hint="resolve them and `git add` the files, or `git merge --abort`, and try again; or set "
        'git.include_conflicts = "yes", and they are captured',
        code="git_unmerged",
    )


def _blobs_of(stages: Iterable[bytes]) -> list[str]:
    """The objects of lines of ``git ls-files --unmerged``, except submodules' commits."""
    return [line.split(b" ", 2)[1].decode("ascii") for line in stages if not line.startswith(_GITLINK)]


def give_conflicts(git: Git, listed: bytes) -> None:
    """Replace the entries in the index of ``git``'s work tree by the conflicts in ``listed``, in the format of
    `Captured.conflicts`. Raises `StorageError`.
    """
    stages = listed.split(b"\0")[:-1]
    paths = dict.fromkeys(line.partition(b"\t")[2] for line in stages)
    git("update-index", "-z", "--force-remove", "--stdin", stdin=_ended(paths))
    git("update-index", "-z", "--index-info", stdin=listed)


def blobs_in(listed: bytes) -> list[str]:
    """The objects that the conflicts ``listed`` so name."""
    return _blobs_of(listed.split(b"\0")[:-1])


def _empty_tree(git: Git) -> str:
    return git.word("hash-object", "-t", "tree", "--stdin")


def _ended(paths: Iterable[bytes]) -> bytes:
    return b"".join(path + b"\0" for path in paths)


def _refuse_no_file(path: bytes) -> None:
    """Refuse an index that is no file; a dangling link counts as none, as for Git."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    except OSError:
        mode = 0
    if not stat.S_ISREG(mode):
        raise RefusedError(
            f"{display(path)} is no file, and leads to none: there is no index to begin with",
            hint="`git reset` makes a new one, once that is removed",
            code="git_index",
        )


def _content(path: bytes, limit: int = _SOME_OUTPUT) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except FileNotFoundError:
        return None
