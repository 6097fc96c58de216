"""Submodules in a fork: each is a repository of its own, like the fork itself, at the commit that the fork has for it.

Files that any process may have written name the place of a submodule's repository. One in the workspace, or in its
normal place within the surrounding repository, is accepted; all others are skipped, and their files are plain files.
Sources: gitsubmodules(7), gitmodules(5), gitrepository-layout(5).
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Protocol

from holdfast.files.directories.replication import remove_whole
from holdfast.files.git.configuration import find_repository
from holdfast.model.errors import HoldfastError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log
from holdfast.model.paths import display, under
from holdfast.snapshot.git._capture import filter_refused, filters_of
from holdfast.snapshot.git._command import Git
from holdfast.snapshot.git._shadow_repository import config_section, filters_run_by
from holdfast.snapshot.git._user_repository import UserRepository, head_of
from holdfast.snapshot.git._work_tree_repository import git_directory, make_inner_repository, renew_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from holdfast.snapshot.git._user_repository import RepositorySettings

_LOG = Log(__name__)
MOST = 500
"""In one fork: each takes some processes of Git, and that many a quarter of a minute."""
_LINK = re.compile(rb"(?:\A|(?<=\0))160000 ([0-9a-f]{40}(?:[0-9a-f]{24})?) 0\t([^\0]+)\0")
_SHOWN = 20
_MOST_NAMES = 1 << 20
"""Bytes of ``.gitmodules``: of more, no names are read."""
_MODULES = b"modules"


class ObjectLender(Protocol):
    """Keeps the objects, and knows the refs, of the user's repositories."""

    def __call__(self, source: UserRepository, most_bytes: int) -> tuple[Mapping[str, str], int]:
        """Keep all objects of a repository for forks, and return its refs and how many bytes had to be copied for
        that, at most ``most_bytes`` (0: any number). Raises `HoldfastError`, `OSError`.
        """
        ...


class _SkippedError(Exception):
    """Why a submodule is left: a clause."""


class _Superproject(NamedTuple):
    """A repository that submodules may be in."""

    theirs: UserRepository
    ours: bytes
    """Its work tree in the fork."""
    own: bytes
    """Its own directory in the fork."""
    inside: bytes
    """The path of its work tree, relative to that of the fork."""


class Submodules:
    """Makes the submodules of one fork."""

    def __init__(
        self,
        look: Callable[[UserRepository], RepositorySettings],
        lend: ObjectLender,
        *,
        kept: bytes,
        object_format: str,
        most_bytes: int,
        trust_filters: bool,
    ) -> None:
        """``look`` returns a repository's settings for content, and raises `HoldfastError` if Git must not read it;
        ``lend`` keeps objects in ``kept``, for names of one ``object_format``; at most ``most_bytes`` are copied
        altogether (0: any number).
        """
        self._look = look
        self._lend = lend
        self._kept = kept
        self._object_format = object_format
        self._most_bytes = most_bytes
        self._copied = 0
        self._trust_filters = trust_filters
        self._made: set[bytes] = set()
        """The own directories of the finished ones."""
        self._now = True
        self._tried = 0
        self._left: list[str] = []
        """The messages about skipped ones."""

    def make(self, work_tree: bytes, source: UserRepository, *, now: bool) -> None:
        """Make a repository in ``work_tree`` for each submodule of ``source``, and nested ones, that is a repository
        there. ``source`` is checked out in ``work_tree``, with its present state (``now``) or a former one, and no
        process works there yet. A submodule that cannot be made is left as an empty directory, which is logged, for
        people. Raises `StorageError` if Git fails in ``work_tree``.
        """
        self._now = now
        left = [_Superproject(source, work_tree, git_directory(work_tree), b"")]
        while left:
            left += self._all_in(left.pop())
        for text in self._left[:_SHOWN]:
            _LOG.warning("%s", text)
        if len(self._left) > _SHOWN:
            _LOG.warning("%d more submodules are no repositories in the fork", len(self._left) - _SHOWN)

    def _all_in(self, around: _Superproject) -> list[_Superproject]:
        """Make those of one repository."""
        git = Git(around.ours, git_dir=around.own)
        made: dict[bytes, _Superproject] = {}
        for path, commit in _links(git):
            try:
                found = self._one(around, path, commit)
            except (_SkippedError, HoldfastError, OSError) as error:
                shown = display(os.path.join(around.inside, path))
                self._left.append(f"the submodule {shown} is no repository in the fork: {error}")
            else:
                if found is not None:
                    made[path] = found
        if made:
            names = _names(git)
            with open(os.path.join(around.own, b"config"), "ab") as file:
                for path in made:
                    if path in names:
                        file.write(config_section(f"submodule.{names[path]}.active", "true"))
        return list(made.values())

    def _one(self, around: _Superproject, path: bytes, commit: str) -> _Superproject | None:
        """Make one; None: it is no repository of the user's either."""
        ours = os.path.join(around.ours, path)
        found = _source(around.theirs, path)
        if found is None:
            return None
        self._tried += 1
        if self._tried > MOST:
            raise _SkippedError(f"no more than {MOST:,} are")
        own = self._place_of(found, around, ours)
        settings = self._look(found)
        if settings.object_format != self._object_format:
            raise _SkippedError(f"its objects have names by {settings.object_format}")
        if not os.path.isdir(ours) or os.path.islink(ours) or os.listdir(ours):
            raise _SkippedError("something else is in its place")
        if self._now and around.inside:  # no commit of the fork's says where that one is
            commit = head_of(found) or commit
        if Git(ours, git_dir=found.own)("cat-file", "-t", commit, allowed=(0, 128)).strip() != b"commit":
            raise _SkippedError(f"it does not have its commit {commit[:12]} any more")
        try:
            remaining = self._most_bytes and max(self._most_bytes - self._copied, 1)
            refs, copied = self._lend(found, remaining)
            self._copied += copied
            make_inner_repository(
                ours,
                own,
                settings,
                commit=commit,
                kept=self._kept,
                refs=refs,
                trust_filters=self._trust_filters,
            )
            self._refuse_required(ours, own, settings)
            Git(ours, git_dir=own, work_tree=ours)("read-tree", "-m", "-u", "HEAD")
        except BaseException:
            remove_whole(ours)
            remove_whole(own)
            os.mkdir(ours)
            raise
        self._made.add(own)
        return _Superproject(found, ours, own, os.path.join(around.inside, path))

    def _refuse_required(self, ours: bytes, own: bytes, settings: RepositorySettings) -> None:
        """Refuse files that take a required filter which is not run: Git writes those out as they are."""
        git = Git(ours, git_dir=own, index=os.path.join(own, b"index.looked-at"))
        required = frozenset(() if self._trust_filters else settings.required)
        if required and (required := required - filters_run_by(git)):
            git("read-tree", "HEAD")
            for path, name in filters_of(git, git.fields("ls-files", "-z"), "--cached"):
                if name in required:
                    raise filter_refused(name, path)
            os.unlink(os.path.join(own, b"index.looked-at"))

    def _place_of(self, source: UserRepository, around: _Superproject, ours: bytes) -> bytes:
        """Where in the fork what belongs to Git is to lie: where it does in the repository around it. Raises
        `_SkippedError` if that is not where Git has it.
        """
        assert source.work_tree is not None, "it was found by that"
        if source.own == git_directory(source.work_tree):
            return git_directory(ours)
        for above in (around.theirs.own, around.theirs.common):
            modules = os.path.join(above, _MODULES)
            if source.own != modules and under(source.own, modules):
                name = os.path.relpath(source.own, modules)
                own = os.path.join(around.own, _MODULES, name)
                if name.endswith((b"\n", b"\r")) or not self._is_free(own, os.path.join(around.own, _MODULES)):
                    raise _SkippedError("its name does not go together with that of another one")
                return own
        raise _SkippedError(f"its repository lies elsewhere, in {display(source.own)}")

    def _is_free(self, own: bytes, modules: bytes) -> bool:
        """Whether neither the directory nor a parent of it below ``modules`` belongs to another submodule."""
        if os.path.lexists(own):
            return False
        return not any(other.startswith(modules + b"/") and under(own, other) for other in self._made)


def renew_indexes(fork: bytes) -> None:
    """`renew_index` for the work tree ``fork``, and for each repository of a submodule in it, including nested ones.
    Files that were written there since may lead to one of the user's, which is neither read nor written. Raises
    `StorageError`.
    """
    top = os.path.realpath(fork)
    left = [UserRepository(top, git_directory(top), git_directory(top))]
    while left:
        around = left.pop()
        assert around.work_tree is not None, "those of submodules are found by it"
        renew_index(around.work_tree, around.own)
        for path, _ in _links(Git(around.work_tree, git_dir=around.own)):
            try:
                found = _source(around, path)
            except _SkippedError:
                continue
            if found is not None and under(found.own, top):
                left.append(found)


def _source(around: UserRepository, path: bytes) -> UserRepository | None:
    """A submodule's repository, by the user's files; None if it was not initialised. Raises `_SkippedError`."""
    assert around.work_tree is not None, "a bare repository has no submodules that are"
    place = os.path.join(around.work_tree, path)
    if not os.path.lexists(git_directory(place)):
        return None
    real = os.path.join(os.path.realpath(around.work_tree), path)
    if os.path.realpath(place) != real:
        raise _SkippedError("a link leads there")
    found = find_repository(real)
    if found is None or found.worktree != real:
        raise _SkippedError("its .git leads to no repository")
    own = os.path.realpath(found.own)
    if own != os.path.realpath(found.common):
        raise _SkippedError("it is a linked work tree")
    return UserRepository(real, own, own)


def _links(git: Git) -> Iterator[tuple[bytes, str]]:
    """The paths of the submodules of the checked out commit, and their commits."""
    for found in _LINK.finditer(git("ls-files", "--stage", "-z", limit=1 << 30)):
        yield found[2], found[1].decode()


def _names(git: Git) -> dict[bytes, str]:
    """The names of submodules by path: from a commit of any origin. Used in configuration alone."""
    blob = "HEAD:.gitmodules"
    size = git("cat-file", "-s", blob, allowed=(0, 128)).strip()
    if not size.isdigit() or int(size) > _MOST_NAMES:
        return {}
    words = ("config", "--blob", blob, "--no-includes", "-z", "--get-regexp", r"^submodule\..*\.path$")
    listed = git(*words, limit=2 * _MOST_NAMES, allowed=(0, 1, 128)).split(b"\0")[:-1]
    found: dict[bytes, str] = {}
    for item in listed:
        key, _, value = item.partition(b"\n")
        found[value] = os.fsdecode(key.removeprefix(b"submodule.").removesuffix(b".path"))
    return found
