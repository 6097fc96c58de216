"""Any changes through 9P have the same outcome as in a directory that is not served, and the same errors; undo leads
back.
"""

from __future__ import annotations

import errno
import os
import random
import stat
from typing import TYPE_CHECKING, Final

import pytest

from holdfast.testing.tree_state import PathState, photograph
from holdfast.wire.p9 import protocol_constants as c

from .served import RecordedTree, connected

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.testing.p9_client import P9Client

_PARENTS: Final = (b"", b"d", b"e", b"a")
_NAMES: Final = (b"a", b"b", b"d", b"e", b"f")


class Natively:
    """The operations, of the system itself."""

    def __init__(self, root: Path) -> None:
        self._root = bytes(root)

    def _at(self, parent: bytes, name: bytes) -> bytes:
        return os.path.join(self._root, parent, name)

    def write(self, parent: bytes, name: bytes, data: bytes, flags: int) -> None:
        file = os.open(self._at(parent, name), flags | os.O_NOFOLLOW, 0o640)
        try:
            os.pwrite(file, data, 3)
        finally:
            os.close(file)

    def read(self, parent: bytes, name: bytes) -> bytes:
        file = os.open(self._at(parent, name), os.O_RDONLY | os.O_NOFOLLOW)
        try:
            return os.pread(file, 100, 0)
        finally:
            os.close(file)

    def mkdir(self, parent: bytes, name: bytes) -> None:
        os.mkdir(self._at(parent, name), 0o750)

    def symlink(self, parent: bytes, name: bytes) -> None:
        os.symlink(b"to", self._at(parent, name))

    def mkfifo(self, parent: bytes, name: bytes) -> None:
        os.mkfifo(self._at(parent, name), 0o600)

    def link(self, parent: bytes, name: bytes, new_parent: bytes, new_name: bytes) -> None:
        os.link(self._at(parent, name), self._at(new_parent, new_name), follow_symlinks=False)

    def rename(self, parent: bytes, name: bytes, new_parent: bytes, new_name: bytes) -> None:
        os.rename(self._at(parent, name), self._at(new_parent, new_name))

    def unlink(self, parent: bytes, name: bytes) -> None:
        os.unlink(self._at(parent, name))

    def rmdir(self, parent: bytes, name: bytes) -> None:
        os.rmdir(self._at(parent, name))

    def chmod(self, parent: bytes, name: bytes, mode: int) -> None:
        if not stat.S_ISLNK(os.lstat(self._at(parent, name)).st_mode):
            os.chmod(self._at(parent, name), mode)

    def set_xattr(self, parent: bytes, name: bytes, value: bytes) -> None:
        os.setxattr(self._at(parent, name), "user.x", value, follow_symlinks=False)

    def names(self, parent: bytes) -> list[bytes]:
        return sorted(os.listdir(os.path.join(self._root, parent)))


class Through9P(Natively):
    """The same, through a client."""

    def __init__(self, client: P9Client) -> None:
        self._client = client
        self._top = client.attach(uid=os.geteuid())

    def _walk(self, *names: bytes) -> int:
        fid = self._top
        for name in names:
            if name:
                fid = self._client.walk(fid, name)
        return self._client.walk(fid) if fid == self._top else fid

    def _directory(self, name: bytes) -> int:
        """As a guest, which looks both directories up before it asks for what is done with two."""
        fid = self._walk(name)
        if not stat.S_ISDIR(self._client.stat(fid).mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return fid

    def write(self, parent: bytes, name: bytes, data: bytes, flags: int) -> None:
        if flags & os.O_CREAT:
            fid = self._walk(parent)
            self._client.create(fid, name, flags & (os.O_ACCMODE | os.O_EXCL), 0o100640, os.getegid())
        else:
            fid = self._walk(parent, name)
            self._client.open(fid, flags)
        self._client.write(fid, 3, data)

    def read(self, parent: bytes, name: bytes) -> bytes:
        fid = self._walk(parent, name)
        self._client.open(fid)
        return self._client.read(fid, 0, 100)

    def mkdir(self, parent: bytes, name: bytes) -> None:
        self._client.mkdir(self._walk(parent), name, 0o40750, os.getegid())

    def symlink(self, parent: bytes, name: bytes) -> None:
        self._client.symlink(self._walk(parent), name, b"to", os.getegid())

    def mkfifo(self, parent: bytes, name: bytes) -> None:
        self._client.mknod(self._walk(parent), name, stat.S_IFIFO | 0o600, gid=os.getegid())

    def link(self, parent: bytes, name: bytes, new_parent: bytes, new_name: bytes) -> None:
        source = self._walk(parent, name)
        self._client.link(self._directory(new_parent), source, new_name)

    def rename(self, parent: bytes, name: bytes, new_parent: bytes, new_name: bytes) -> None:
        self._client.renameat(self._directory(parent), name, self._directory(new_parent), new_name)

    def unlink(self, parent: bytes, name: bytes) -> None:
        self._client.unlinkat(self._walk(parent), name)

    def rmdir(self, parent: bytes, name: bytes) -> None:
        self._client.unlinkat(self._walk(parent), name, c.AT_REMOVEDIR)

    def chmod(self, parent: bytes, name: bytes, mode: int) -> None:
        fid = self._walk(parent, name)
        if not stat.S_ISLNK(self._client.stat(fid).mode):
            self._client.set_attributes(fid, c.SETATTR_MODE, mode=mode)

    def set_xattr(self, parent: bytes, name: bytes, value: bytes) -> None:
        self._client.set_xattr(self._walk(parent, name), b"user.x", value)

    def names(self, parent: bytes) -> list[bytes]:
        fid = self._walk(parent)
        self._client.open(fid, os.O_DIRECTORY)
        return sorted(entry.name for entry in self._client.list(fid) if entry.name not in (b".", b".."))


def _outcome(perform: Callable[[Natively], object], of: Natively) -> object:
    try:
        return perform(of)
    except OSError as error:
        return os.strerror(error.errno or 0)


def _is_for_us(root: Path, parent: bytes, name: bytes, *, opens: bool) -> bool:
    """Whether a guest would ask for it: it follows links, and opens pipes, by itself."""
    directory = os.path.join(bytes(root), parent)
    if parent and os.path.islink(directory):
        return False
    path = os.path.join(directory, name)
    return not opens or not os.path.lexists(path) or stat.S_IFMT(os.lstat(path).st_mode) in (stat.S_IFREG, stat.S_IFDIR)


def _without_time(states: dict[bytes, PathState]) -> dict[bytes, PathState]:
    return {path: state._replace(mtime=0) for path, state in states.items() if path}


@pytest.mark.parametrize("seed", range(4))
def test_changes_have_the_same_outcome(tree: RecordedTree, tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    control = tmp_path / "control"
    control.mkdir()
    (control / "d").mkdir()
    (control / "d" / "e").mkdir()
    (control / "d" / "f").write_bytes(b"content")
    (control / "a").write_bytes(b"0123456789")
    (control / "l").symlink_to("d/f")
    flags = (os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_CREAT, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    with connected(tree.directory) as (_, client):
        natively, served = Natively(control), Through9P(client)
        for number in range(400):
            at = chosen.choice(_PARENTS), chosen.choice(_NAMES)
            to = chosen.choice(_PARENTS), chosen.choice(_NAMES)
            how, mode = chosen.choice(flags), chosen.choice((0o644, 0o600, 0o755))
            operations: tuple[Callable[[Natively], object], ...] = (
                lambda of, at=at, how=how, n=number: of.write(*at, b"%d" % n, how),
                lambda of, at=at: of.read(*at),
                lambda of, at=at: of.mkdir(*at),
                lambda of, at=at: of.symlink(*at),
                lambda of, at=at: of.mkfifo(*at),
                lambda of, at=at, to=to: of.link(*at, *to),
                lambda of, at=at, to=to: of.rename(*at, *to),
                lambda of, at=at: of.unlink(*at),
                lambda of, at=at: of.rmdir(*at),
                lambda of, at=at, mode=mode: of.chmod(*at, mode),
                lambda of, at=at, n=number: of.set_xattr(*at, b"%d" % n),
                lambda of, at=at: of.names(at[0]),
            )
            operation = chosen.randrange(len(operations))
            if not all(_is_for_us(control, *path, opens=operation < 2) for path in (at, to)):
                continue
            expected = _outcome(operations[operation], natively)
            assert _outcome(operations[operation], served) == expected, (number, operation, at, to, how)
        assert _without_time(photograph(tree.path)) == _without_time(photograph(control))
