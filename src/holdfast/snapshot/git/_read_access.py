"""Which parts of a repository may be read, when a command that works in it may be confined and see less.

Any name in it can lead outside, and can be replaced at any moment: a check of a path proves nothing about the file that
is opened a moment later. So the location of each file that we read is checked after opening; for files that Git reads,
only the check before is possible.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from holdfast.model.errors import RefusedError
from holdfast.model.paths import display, under
from holdfast.snapshot.git._alternates import stores_behind
from holdfast.snapshot.git._user_repository import links_below
from holdfast.snapshot.git.fork_objects import lent_to

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.snapshot.git._user_repository import UserRepository
    from holdfast.snapshot.provider_context import ProviderContext

_NO_FILE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG, errno.ENODEV))
_PIECE = 1 << 20
_READ_OF_A_REPOSITORY = (
    *(b"HEAD", b"config", b"config.worktree", b"packed-refs", b"refs", b"refs/heads", b"refs/tags", b"refs/remotes"),
    *(b"refs/notes", b"info", b"info/attributes", b"info/exclude", b"info/sparse-checkout", b"shallow", b"index"),
    b"reftable",
)


class ReadAccess:
    """The paths that the forks of one workspace may show: all except Holdfast's own, and those hidden from runs."""

    def __init__(self, context: ProviderContext, hidden: Sequence[bytes], fork: bytes = b"") -> None:
        """``hidden``: the directories that are hidden from runs. ``fork``: the work tree that is read, if it is a fork
        of this session, which may also read its borrowed stores.
        """
        self._open = [context.root, *lent_to(context.root), *lent_to(fork)]
        self._closed = (context.state, *context.own, *hidden)

    def refuse_hidden(self, source: UserRepository) -> list[bytes]:
        """Refuse to read a repository that is, or has parts, where its runs may not read: a fork would show it, and Git
        itself follows the stores that it borrows from. Returns as `stores`. Raises `RefusedError` (``git_hidden``).
        """
        further = os.path.join(source.common, b"commondir")
        if source.own != source.common and os.path.lexists(further):  # which Git would follow, and we have not
            raise _hidden(further, b"another repository")
        for directory in {source.own, source.common}:
            real_directory = os.path.realpath(directory)
            if not self._may_read(real_directory):
                raise _hidden(directory, real_directory)
            for name in (*_READ_OF_A_REPOSITORY, *_split_indexes(directory)):
                real = os.path.realpath(path := os.path.join(directory, name))
                if real != os.path.join(real_directory, name) and not self._may_read(real):
                    raise _hidden(path, real)
        for path in links_below(os.path.join(source.common, b"refs")):
            if not self._may_read(real := os.path.realpath(path)):
                raise _hidden(path, real)
        return self.stores(source)

    def stores(self, source: UserRepository) -> list[bytes]:
        """The directories of objects to read: the repository's own, last, with those that it borrows from. Raises
        `RefusedError` (``git_hidden``, ``git_objects``).
        """
        found = stores_behind(objects := os.path.join(source.common, b"objects"), read=self.content)
        for store in found:
            if not self._may_read(store):
                where = objects if store == found[-1] else os.path.join(objects, b"info/alternates")
                raise _hidden(where, store)
        return found

    def opened(self, path: bytes) -> int | None:
        """The regular file ``path``, maybe a link, opened for reading; None if it is missing. Never blocks. Raises
        `RefusedError` (``git_hidden``) for a place that may not be read, `OSError`.
        """
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _NO_FILE:
                return None
            raise
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                real = os.readlink(b"/proc/self/fd/%d" % fd).removesuffix(b" (deleted)")
                if not self._may_read(real):
                    raise _hidden(path, real)
                fd, kept = -1, fd
                return kept
            return None
        finally:
            if fd >= 0:
                os.close(fd)

    def content(self, path: bytes, limit: int) -> bytes | None:
        """At most ``limit`` bytes of what `opened` opens; None if there is no such file. Raises the same."""
        fd = self.opened(path)
        if fd is None:
            return None
        with open(fd, "rb", buffering=0) as file:
            found = bytearray()
            while piece := file.read(min(_PIECE, limit - len(found))):
                found += piece
            return bytes(found)

    def _may_read(self, real: bytes) -> bool:
        """A process in the repository decides where it leads, and may work where that is invisible: only forks that
        were given Holdfast's own files may read them, and no fork may read paths that are hidden from runs.
        """
        if any(under(real, os.path.realpath(path)) for path in self._open):
            return True
        return not any(under(real, os.path.realpath(path)) for path in self._closed)


def _hidden(path: bytes, real: bytes) -> RefusedError:
    leads = "" if path == real else f" leads to {display(real)}, which"
    return RefusedError(
        f"{display(path)}{leads} is hidden from runs, or Holdfast's own",
        hint="put a file or directory of its own there; or use another provider of snapshots",
        code="git_hidden",
    )


def _split_indexes(directory: bytes) -> list[bytes]:
    return [name for name in os.listdir(directory) if name.startswith(b"sharedindex.")]
