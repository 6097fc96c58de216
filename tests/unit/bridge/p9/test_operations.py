"""Each request on a directory whose changes are recorded: what it does there, and that undo takes all of it back."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from holdfast.bridge.p9._fids import Qids
from holdfast.testing.p9_client import Qid
from holdfast.wire.p9 import protocol_constants as c

from .served import RecordedTree, connected

if TYPE_CHECKING:
    from collections.abc import Generator

READ, WRITE, READ_WRITE, TRUNCATE, APPEND, DIRECTORY = 0, 1, 2, 0o1000, 0o2000, 0o200000
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@contextmanager
def refused(number: int) -> Generator[None]:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - its number is looked at
        yield
    assert errno.errorcode[caught.value.errno or 0] == errno.errorcode[number]


def test_a_walk_leads_to_objects_by_their_names(tree: RecordedTree) -> None:
    with connected(tree.directory) as (_, client):
        root = client.attach()
        found = client.stat(client.walk(root, b"d", b"f"))
        real = os.stat(tree.path / "d" / "f")
        assert (found.qid, found.size, found.mode) == (Qid(c.QT_FILE, 0, real.st_ino), 7, real.st_mode)
        assert (found.mtime_ns, found.links, found.uid) == (real.st_mtime_ns, 1, real.st_uid)
        assert client.stat(root).qid == Qid(c.QT_DIRECTORY, 0, os.stat(tree.path).st_ino)
        assert client.stat(client.walk(root, b"l")).qid.type == c.QT_SYMLINK
        with pytest.raises(FileNotFoundError):
            client.walk(root, b"d", b"nothing")
        with refused(errno.ENOENT):
            client.walk(root, b"nothing")
        with refused(errno.ENOTDIR):
            client.walk(client.walk(root, b"a"), b"b")
        with refused(errno.ENOTDIR):
            client.walk(client.walk(root, b"a"), b"..")


def test_a_walk_of_dots_ends_at_the_root(tree: RecordedTree) -> None:
    (tree.path.parent / "secret").touch()
    with connected(tree.directory) as (_, client):
        root = client.attach()
        inode = os.stat(tree.path).st_ino
        for way in ((b"..",), (b"..",) * 16, (b"d", b"e", b"..", b"..", b".."), (b"d", b"..", b"..", b"..")):
            assert client.stat(client.walk(root, *way)).qid.path == inode
        with pytest.raises(FileNotFoundError):
            client.walk(root, b"..", b"secret")
        assert client.stat(client.walk(root, b"d", b"e", b"..", b"f")).size == 7
        opened = client.walk(root)
        client.open(opened)
        assert {entry.qid.path for entry in client.list(opened) if entry.name in (b".", b"..")} == {inode}


def test_the_qid_of_an_object_stays_when_it_is_looked_up_again(tree: RecordedTree) -> None:
    with connected(tree.directory) as (_, client):
        root = client.attach()
        fid = client.walk(root, b"a")
        before = client.stat(fid).qid
        client.clunk(fid)
        os.rename(tree.path / "a", tree.path / "b")
        assert client.stat(client.walk(root, b"b")).qid == before
        os.rename(tree.path / "b", tree.path / "a")
    tree.note_state()


def test_files_are_read_and_written(tree: RecordedTree) -> None:
    with connected(tree.directory) as (_, client):
        root = client.attach()
        fid = client.walk(root, b"a")
        assert client.open(fid, READ_WRITE).path == os.stat(tree.path / "a").st_ino
        assert client.read(fid, 3, 4) == b"3456"
        assert client.read(fid, 8, 100) == b"89"
        assert client.read(fid, 100, 100) == b""
        assert client.write(fid, 8, b"new") == 3
        client.fsync(fid)
        client.fsync(fid, data_only=True)
        assert (tree.path / "a").read_bytes() == b"01234567new"
        client.clunk(fid)
        fid = client.walk(root, b"a")
        client.open(fid, WRITE | TRUNCATE | APPEND)
        client.write(fid, 0, b"one")
        client.write(fid, 0, b"two")
        assert (tree.path / "a").read_bytes() == b"onetwo"
        with refused(errno.EBADF):
            client.read(fid, 0, 10)
        fid = client.walk(root, b"a")
        client.open(fid, READ)
        with refused(errno.EBADF):
            client.write(fid, 0, b"x")


def test_files_are_created(tree: RecordedTree) -> None:
    with connected(tree.directory) as (_, client):
        root = client.attach()
        fid = client.walk(root, b"d")
        client.create(fid, b"new", mode=0o100640, gid=os.getegid())
        client.write(fid, 0, b"made")
        assert client.stat(fid).size == 4
        made = os.stat(tree.path / "d" / "new")
        assert stat.S_IMODE(made.st_mode) == 0o640
        again = client.walk(root, b"d")
        with refused(errno.EEXIST):
            client.create(again, b"new", flags=0o302)
        client.create(again, b"new", flags=0o102)
        assert client.read(again, 0, 10) == b"made"
        with refused(errno.EBADF):
            client.create(again, b"other")
        with refused(errno.ENOTDIR):
            client.create(client.walk(root, b"a"), b"other")


def test_directories_are_listed_in_pieces(tree: RecordedTree) -> None:
    names = [b"%03d-%s" % (number, b"x" * 200) for number in range(60)]
    os.mkdir(tree.path / "many")
    for name in names:
        os.mknod(os.path.join(bytes(tree.path), b"many", name))
    tree.note_state()
    with connected(tree.directory) as (_, client):
        root = client.attach()
        fid = client.walk(root, b"many")
        client.open(fid, DIRECTORY)
        entries = client.list(fid, 1000)
        assert sorted(entry.name for entry in entries) == sorted([b".", b"..", *names])
        for entry in entries:
            if entry.name not in (b".", b".."):
                walked = client.walk(root, b"many", entry.name)
                assert client.stat(walked).qid == entry.qid
                client.clunk(walked)
        other = client.walk(root, b"many")
        client.open(other)
        assert client.list(other, 4000)[5:] == entries[5:]
        client.fsync(fid)


def test_names_are_made_moved_and_taken_away(tree: RecordedTree) -> None:
    with connected(tree.directory) as (_, client):
        root, gid = client.attach(), os.getegid()
        d = client.walk(root, b"d")
        assert client.mkdir(root, b"n", 0o40750, gid).type == c.QT_DIRECTORY
        assert client.symlink(root, b"s", b"to/nowhere", gid).type == c.QT_SYMLINK
        assert client.readlink(client.walk(root, b"s")) == b"to/nowhere"
        client.mknod(root, b"pipe", stat.S_IFIFO | 0o600, gid=gid)
        client.mknod(root, b"file", stat.S_IFREG | 0o600, gid=gid)
        assert stat.S_ISFIFO(os.stat(tree.path / "pipe").st_mode)
        client.link(d, client.walk(root, b"a"), b"another")
        assert client.stat(client.walk(root, b"a")).links == 2
        client.renameat(root, b"n", d, b"moved")
        client.rename(client.walk(d, b"f"), root, b"g")
        client.unlinkat(root, b"file")
        client.unlinkat(root, b"pipe")
        client.unlinkat(d, b"e", c.AT_REMOVEDIR)
        assert sorted(os.listdir(tree.path)) == ["a", "d", "g", "l", "s"]
        assert sorted(os.listdir(tree.path / "d")) == ["another", "moved"]
        with refused(errno.EEXIST):
            client.mkdir(root, b"d")
        with refused(errno.ENOTEMPTY):
            client.unlinkat(root, b"d", c.AT_REMOVEDIR)
        with refused(errno.EISDIR):
            client.unlinkat(root, b"d")
        with refused(errno.ENOTDIR):
            client.unlinkat(root, b"a", c.AT_REMOVEDIR)
        with refused(errno.ENOTDIR):
            client.mkdir(client.walk(root, b"a"), b"x")
        with refused(errno.EINVAL):
            client.readlink(client.walk(root, b"a"))


def test_what_a_fid_stands_for_is_removed(tree: RecordedTree) -> None:
    with connected(tree.directory) as (_, client):
        root = client.attach()
        client.remove(client.walk(root, b"a"))
        client.remove(client.walk(root, b"d", b"e"))
        assert sorted(os.listdir(tree.path)) == ["d", "l"]
        with refused(errno.EBUSY):
            client.remove(client.walk(root))
        fid = client.walk(root, b"d", b"f")
        client.open(fid)
        client.rename(fid, root, b"g")
        client.remove(fid)
        assert sorted(os.listdir(tree.path)) == ["d", "l"]
        with refused(errno.EBADF):
            client.clunk(fid)


def test_a_directory_is_moved_into_what_was_found_in_it(tree: RecordedTree) -> None:
    """(What a walk went through is given back all the same, the fixture says.)"""
    with connected(tree.directory) as (_, client):
        root = client.attach()
        d = client.walk(root, b"d")
        e = client.walk(d, b"e")
        client.renameat(d, b"e", root, b"e")
        client.rename(d, e, b"d")
        assert os.listdir(tree.path / "e" / "d") == ["f"]
        assert client.stat(client.walk(e, b"..")).qid == client.stat(d).qid
        assert client.stat(client.walk(e, b"d", b"..")).qid == client.stat(e).qid


def test_what_is_on_another_device_has_other_qids(tree: RecordedTree) -> None:
    status = os.stat(tree.path)
    qids = Qids(status)
    assert qids.of(status) == (c.QT_DIRECTORY, 0, status.st_ino)
    others = {qids.entry(status.st_mode, status.st_dev + device, status.st_ino).path for device in range(1, 100)}
    assert len(others) == 99
    assert min(others) >= 1 << 63


def test_a_fid_does_not_remove_what_has_its_name_by_now(tree: RecordedTree) -> None:
    with connected(tree.directory) as (_, client):
        root = client.attach()
        fids = [client.walk(root, b"a"), client.walk(root, b"a")]
        client.renameat(root, b"a", root, b"b")
        client.create(client.walk(root), b"a", gid=os.getegid())
        with refused(errno.ENOENT):
            client.remove(fids[0])
        with refused(errno.ENOENT):
            client.rename(fids[1], root, b"c")
        assert sorted(os.listdir(tree.path)) == ["a", "b", "d", "l"]


def test_a_file_that_was_removed_is_still_read_by_who_has_it_open(tree: RecordedTree) -> None:
    with connected(tree.directory) as (_, client):
        root = client.attach()
        fid = client.walk(root, b"a")
        client.open(fid, READ_WRITE)
        client.unlinkat(root, b"a")
        assert client.read(fid, 0, 10) == b"0123456789"
        assert client.stat(fid).links == 0
        client.write(fid, 0, b"x")


def test_attributes_are_changed(tree: RecordedTree) -> None:
    with connected(tree.directory) as (_, client):
        root = client.attach()
        fid = client.walk(root, b"a")
        client.set_attributes(fid, c.SETATTR_MODE, mode=0o100600)
        client.set_attributes(fid, c.SETATTR_SIZE, size=4)
        client.set_attributes(
            fid,
            c.SETATTR_ATIME | c.SETATTR_ATIME_SET | c.SETATTR_MTIME | c.SETATTR_MTIME_SET,
            atime_ns=1_000_000_001,
            mtime_ns=-5,
        )
        found = os.stat(tree.path / "a")
        assert (stat.S_IMODE(found.st_mode), found.st_size) == (0o600, 4)
        assert (found.st_atime_ns, found.st_mtime_ns) == (1_000_000_001, -5)
        client.set_attributes(fid, c.SETATTR_MTIME | c.SETATTR_CTIME)
        assert os.stat(tree.path / "a").st_mtime_ns > 10**18
        assert os.stat(tree.path / "a").st_atime_ns == 1_000_000_001
        opened = client.walk(root, b"a")
        client.open(opened, WRITE)
        client.set_attributes(opened, c.SETATTR_SIZE, size=1)
        assert client.stat(opened).size == 1
        with refused(errno.EISDIR):
            client.set_attributes(root, c.SETATTR_SIZE, size=0)
        born = client.stat(fid, c.GETATTR_ALL)
        assert not born.valid & c.GETATTR_BTIME or born.btime_ns > 10**18


@AS_ROOT
def test_what_is_made_belongs_to_who_asks(tree: RecordedTree) -> None:
    with connected(tree.directory) as (_, client):
        root = client.attach(uid=1234)
        client.mkdir(root, b"n", gid=2345)
        client.symlink(root, b"s", b"x", gid=2345)
        client.mknod(root, b"m", stat.S_IFREG | 0o600, gid=2345)
        client.create(client.walk(root), b"c", gid=2345)
        for name in "nsmc":
            found = os.lstat(tree.path / name)
            assert (found.st_uid, found.st_gid) == (1234, 2345)
        client.set_attributes(client.walk(root, b"c"), c.SETATTR_UID | c.SETATTR_GID, uid=5, gid=6)
        found = os.stat(tree.path / "c")
        assert (found.st_uid, found.st_gid) == (5, 6)
    os.chown(tree.path, 77, 88)
    with connected(tree.directory) as (_, client):
        client.mkdir(client.attach(), b"owner")
        assert os.stat(tree.path / "owner").st_uid == 77
    with connected(tree.directory, uid=99) as (_, client):
        client.mkdir(client.attach(), b"named")
        assert os.stat(tree.path / "named").st_uid == 99
    os.chown(tree.path, os.geteuid(), os.getegid())


@AS_ROOT
def test_set_id_bits_go_when_a_user_writes(tree: RecordedTree) -> None:
    os.chmod(tree.path / "a", 0o6755)
    tree.note_state()
    with connected(tree.directory) as (_, client):
        for uid, mode in ((0, 0o6755), (1234, 0o755)):
            fid = client.walk(client.attach(uid=uid), b"a")
            client.open(fid, WRITE)
            client.write(fid, 0, b"x")
            assert stat.S_IMODE(os.stat(tree.path / "a").st_mode) == mode


def test_extended_attributes(tree: RecordedTree) -> None:
    with connected(tree.directory) as (_, client):
        root = client.attach()
        fid = client.walk(root, b"a")
        client.set_xattr(fid, b"user.x", b"value")
        client.set_xattr(fid, b"user.empty", b"")
        assert os.getxattr(tree.path / "a", "user.x") == b"value"
        assert client.get_xattr(fid, b"user.x") == b"value"
        assert set(client.get_xattr(fid, b"").split(b"\0")) >= {b"user.x", b"user.empty", b""}
        with refused(errno.EEXIST):
            client.set_xattr(fid, b"user.x", b"other", os.XATTR_CREATE)
        client.set_xattr(fid, b"user.x", b"", os.XATTR_REPLACE)
        assert "user.x" not in os.listxattr(tree.path / "a")
        with refused(errno.ENODATA):
            client.get_xattr(fid, b"user.x")


def test_an_attribute_that_was_not_written_whole_is_not_set(tree: RecordedTree) -> None:
    with connected(tree.directory) as (line, client):
        root = client.attach()

        def begun(fid: int) -> int:
            line.send(c.Type.XATTRCREATE, 5, fid, b"user.x", 10, 0)
            assert line.receive().type == c.Type.XATTRCREATE
            return fid

        fid = begun(client.walk(root, b"a"))
        client.write(fid, 0, b"12345")
        with refused(errno.EINVAL):
            client.write(fid, 6, b"7")
        with refused(errno.EINVAL):
            client.write(fid, 5, b"678901")
        with refused(errno.EBADF):
            client.stat(fid)
        with refused(errno.EINVAL):
            client.clunk(fid)
        with refused(errno.EBADF):
            client.remove(begun(client.walk(root, b"a")))
        left = begun(client.walk(root, b"a"))
        client.write(left, 0, b"0123456789")
    assert os.listxattr(tree.path / "a") == []


def test_open_says_what_is_a_directory_and_what_is_none(tree: RecordedTree) -> None:
    with connected(tree.directory) as (_, client):
        root = client.attach()
        for name, flags, number in (
            (b"d", WRITE, errno.EISDIR),
            (b"d", READ | TRUNCATE, errno.EISDIR),
            (b"a", DIRECTORY, errno.ENOTDIR),
            (b"l", READ, errno.ELOOP),
        ):
            with refused(number):
                client.open(client.walk(root, name), flags)
        directory, file = client.walk(root, b"d"), client.walk(root, b"a")
        client.open(directory)
        client.open(file)
        with refused(errno.EISDIR):
            client.read(directory, 0, 10)
        with refused(errno.EISDIR):
            client.write(directory, 0, b"x")
        with refused(errno.ENOTDIR):
            client.list(file)


def test_the_file_system_is_described(tree: RecordedTree) -> None:
    with connected(tree.directory) as (_, client):
        real = os.statvfs(tree.path)
        assert client.statfs(client.attach())[1:3] == (real.f_frsize, real.f_blocks)


def test_only_one_tree_is_there_and_who_attaches_is_believed(tree: RecordedTree) -> None:
    with connected(tree.directory) as (line, client):
        client.attach(b"/")
        with refused(errno.ENOENT):
            client.attach(b"/etc")
        line.send(c.Type.AUTH, 3, 900, b"root", b"/", 0)
        assert line.receive().fields == (errno.ENOENT,)


def test_ranges_are_locked_until_the_fid_is_clunked(tree: RecordedTree) -> None:
    with connected(tree.directory) as (_, client):
        root = client.attach()
        one, two = client.walk(root, b"a"), client.walk(root, b"a")
        client.open(one, READ_WRITE)
        client.open(two, READ_WRITE)
        success, blocked = c.LockStatus.SUCCESS, c.LockStatus.BLOCKED
        assert client.lock(one, c.LOCK_WRITE, 10, 10, process=1) == success
        assert client.lock(one, c.LOCK_READ, 40, 0, process=1) == success
        assert client.lock(two, c.LOCK_READ, 19, 1, process=2) == blocked
        assert client.lock(two, c.LOCK_READ, 20, 20, process=2) == success
        assert client.lock(two, c.LOCK_READ, 50, 1, process=2) == success
        assert client.lock(two, c.LOCK_WRITE, 10, 10, process=1) == success
        assert client.get_lock(two, c.LOCK_WRITE, 0, 15, process=2, client=b"") == (c.LOCK_WRITE, 10, 10, 1, b"")
        assert client.get_lock(two, c.LOCK_WRITE, 0, 5, process=2)[0] == c.LOCK_UNLOCK
        # From the middle.
        assert client.lock(one, c.LOCK_UNLOCK, 12, 2, process=1) == success
        assert client.lock(two, c.LOCK_WRITE, 12, 2, process=3) == success
        assert client.lock(two, c.LOCK_WRITE, 14, 1, process=3) == blocked
        client.clunk(two)
        assert client.lock(one, c.LOCK_WRITE, 0, 0, process=9) == blocked
        client.clunk(one)
        one = client.walk(root, b"a")
        client.open(one, READ_WRITE)
        assert client.lock(one, c.LOCK_WRITE, 0, 0, process=9) == success
        for at in range(0, 2046, 2):
            assert client.lock(one, c.LOCK_READ, at, 1, process=9) == (success if at <= 1022 else c.LockStatus.ERROR)


def test_nothing_changes_where_it_is_read_only(tree: RecordedTree) -> None:
    with connected(tree.directory, is_read_only=True) as (_, client):
        root = client.attach()
        d, a = client.walk(root, b"d"), client.walk(root, b"a")
        for change in (
            lambda: client.create(client.walk(root), b"n"),
            lambda: client.mkdir(root, b"n"),
            lambda: client.mknod(root, b"n", stat.S_IFREG),
            lambda: client.symlink(root, b"n", b"x"),
            lambda: client.link(root, a, b"n"),
            lambda: client.rename(a, root, b"n"),
            lambda: client.renameat(root, b"a", d, b"n"),
            lambda: client.unlinkat(root, b"a"),
            lambda: client.remove(client.walk(root, b"a")),
            lambda: client.set_attributes(a, c.SETATTR_MODE, mode=0),
            lambda: client.set_xattr(a, b"user.x", b"y"),
            lambda: client.open(client.walk(root, b"a"), WRITE),
            lambda: client.open(client.walk(root, b"a"), TRUNCATE),
        ):
            with refused(errno.EROFS):
                change()
        client.open(a)
        assert client.read(a, 0, 3) == b"012"
