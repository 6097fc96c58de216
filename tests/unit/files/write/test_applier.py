"""Applying changes to a directory tree."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest

from holdfast.files.tree import ApplyResult
from holdfast.files.write.applier import DIRECTORY_IN_THE_WAY, OTHER_NAMES, Applier
from holdfast.files.write.atomic_replacement import GONE
from holdfast.files.write.batch import IN_THE_WAY, NAMED_TWICE
from holdfast.files.write.displaced_file import CHANGED
from holdfast.files.write.ownership import Owner
from holdfast.model.entries import Change, NotCaptured

from ..applying import NONCE, Workspace, file, link, put, signature_of, wanted


def test_a_tree_is_written_out(space: Workspace):
    target = {
        b"top": (file(b"top"), b"top"),
        b"a/b/c/deep": (file(b"deep", 0o755), b"deep"),
        b"a/b/link": (link(b"../../top"), b"../../top"),
        b"a/dangling": (link(b"/nowhere"), b"/nowhere"),
        b"caf\xe9/\xff\n": (file(b"no text", 0o600), b"no text"),
        b"empty": (file(b""), b""),
        b"locked": (file(b"x", 0o000), b"x"),
    }
    applied = space.go(target)
    assert sorted(applied.written) == sorted(target)
    assert applied.deleted == []
    assert applied.skipped == []
    assert space.tree() == {path: entry for path, (entry, _) in target.items()}


def test_the_index_knows_what_was_written(space: Workspace):
    put(space, "a/old", b"old")
    put(space, "chmod", b"same")
    space.scan()
    space.go(
        {
            b"a/old": (file(b"new"), b"new"),
            b"a/fresh": (file(b"fresh"), b"fresh"),
            b"new/dir/f": (file(b"f"), b"f"),
            b"l": (link(b"x"), b"x"),
            b"chmod": (file(b"same", 0o700), b"same"),
        }
    )
    assert {path: known.entry for path, known in space.seen.known.items()} == space.tree()
    for path, known in space.seen.known.items():
        assert known.signature == signature_of(space.at(path)), path


def test_files_that_stay_are_not_touched(space: Workspace):
    stays = put(space, "d/stays")
    os.utime(stays, ns=(1, 2))
    put(space, "d/goes")
    put(space, "d/changes")
    before = space.scan()
    info = stays.stat()
    space.go({b"d/stays": (before[b"d/stays"], b"old"), b"d/changes": (file(b"new"), b"new")})
    assert stays.stat() == info
    assert set(space.tree()) == {b"d/stays", b"d/changes"}


def test_content_comes_whole_or_in_pieces(space: Workspace):
    put(space, "a", b"old")
    space.scan()
    applied = space.go({b"a": (file(b"in pieces"), b"in pieces"), b"d/b": (file(b"more"), b"more")}, pieces=True)
    assert sorted(applied.written) == [b"a", b"d/b"]
    assert (space.path / "a").read_bytes() == b"in pieces"


def access_list(*entries: tuple[int, int, int]) -> bytes:
    """As acl(5) and the kernel's ``posix_acl_xattr.h`` have it: tag, permissions, number."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def test_what_is_replaced_hands_its_attributes_on(space: Workspace, caplog: pytest.LogCaptureFixture):
    none = 0xFFFFFFFF
    read = access_list((1, 6, none), (2, 4, 1234), (4, 4, none), (16, 4, none), (32, 0, none))
    given = {"user.a": b"1", "user.b": bytes(200), "system.posix_acl_access": read}
    for name in ("f", "pieces", "to-link"):
        for key, value in given.items():
            os.setxattr(put(space, name), key, value)
    put(space, "plain")
    space.scan()
    for name in ("f", "pieces", "to-link"):
        assert (space.path / name).stat().st_mode & 0o777 == 0o640
    for name in ("f", "pieces"):
        new = (file(b"new", 0o640), b"new")
        applied = space.go(
            {b"f": new, b"pieces": new, b"to-link": (link(b"f"), b"f"), b"plain": new}, pieces=name != "f"
        )
        assert applied.skipped == []
        at = space.path / name
        assert {key: os.getxattr(at, key) for key in os.listxattr(at) if key in given} == given
        assert at.stat().st_mode & 0o777 == 0o640
    assert os.listxattr(space.path / "to-link", follow_symlinks=False) == []
    assert not set(os.listxattr(space.path / "plain")) & given.keys()
    assert caplog.messages == []


def test_no_more_people_are_let_in_than_before(space: Workspace, caplog: pytest.LogCaptureFixture):
    """A list of other permissions, and capabilities, which the content of another version was not given."""
    none = 0xFFFFFFFF
    wide = access_list((1, 6, none), (2, 6, 1234), (4, 4, none), (16, 6, none), (32, 0, none))
    os.setxattr(put(space, "f"), "system.posix_acl_access", wide)
    lost = ["f"]
    put(space, "tool")
    if not os.geteuid():
        lost.append("tool")
        capable = bytes.fromhex("0100000200200000000000000000000000000000")  # (cap_net_raw=ep)
        os.setxattr(space.path / "tool", "security.capability", capable)
    space.scan()
    applied = space.go({b"f": (file(b"new", 0o600), b"new"), b"tool": (file(b"new"), b"new")})
    assert applied.skipped == []
    assert not {"system.posix_acl_access", "security.capability"} & {
        name for path in ("f", "tool") for name in os.listxattr(space.path / path)
    }
    assert (space.path / "f").stat().st_mode & 0o777 == 0o600
    assert caplog.messages == [f"these could not keep all of their extended attributes: {', '.join(lost)}"]


def test_what_is_replaced_and_cannot_hand_on_everything_is_named(space: Workspace, caplog: pytest.LogCaptureFixture):
    put(space, "one")
    os.link(space.path / "one", space.path / "other")
    (space.path / "changed").hardlink_to(put(space, "outside-of-it"))
    space.scan()
    known = {path: (seen.entry, b"old") for path, seen in space.seen.known.items()}
    (space.path / "changed").write_bytes(b"late")  # not ours to lose
    target = known | {b"one": (file(b"new"), b"new"), b"changed": (file(b"new"), b"new")}
    assert [one.path for one in space.go(target).skipped] == [b"changed"]
    assert (space.path / "one").read_bytes() + (space.path / "other").read_bytes() == b"newold"
    assert caplog.messages == ["these had other names (hard links), and are files of their own now: one"]


def test_attributes_that_the_system_refuses_are_named(
    space: Workspace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """As those of ``trusted.`` are for a user who may not set them."""
    os.setxattr(put(space, "f"), "user.a", b"1")
    space.scan()

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "no")

    monkeypatch.setattr(os, "setxattr", refuse)
    assert space.go({b"f": (file(b"new"), b"new")}).skipped == []
    assert (space.path / "f").read_bytes() == b"new"
    assert caplog.messages == ["these could not keep all of their extended attributes: f"]


def owners(space: Workspace) -> dict[str, tuple[int, int]]:
    return {at.name: (at.lstat().st_uid, at.lstat().st_gid) for at in space.path.iterdir()}


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away: root")
@pytest.mark.parametrize("pieces", [False, True])
def test_what_is_replaced_keeps_its_owner_and_group(space: Workspace, caplog: pytest.LogCaptureFixture, pieces: bool):
    for name in ("f", "to-link", "unchanged"):
        os.chown(put(space, name), 1000, 1001)
    os.symlink("f", space.path / "l")
    os.lchown(space.path / "l", 1000, 1001)
    space.scan()
    new = (file(b"new"), b"new")
    target = {b"f": new, b"to-link": (link(b"x"), b"x"), b"l": (link(b"y"), b"y"), b"made": new}
    assert space.go({**target, b"unchanged": (file(b"old", 0o600), b"old")}, pieces=pieces).skipped == []
    assert owners(space) == {**dict.fromkeys(("f", "to-link", "l", "unchanged"), (1000, 1001)), "made": (0, 0)}
    assert caplog.messages == []


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away: root")
def test_a_file_that_another_user_has_put_there_is_not_given_what_not_everybody_may_read(
    space: Workspace, caplog: pytest.LogCaptureFixture
):
    for name in ("secret", "readable"):
        os.chown(put(space, name), 1000, 1001)
    space.path.chmod(0o777)
    space.scan()
    space.go({b"secret": (file(b"new", 0o600), b"new"), b"readable": (file(b"new", 0o644), b"new")})
    assert owners(space) == {"secret": (0, 0), "readable": (1000, 1001)}
    assert caplog.messages == ["these could not keep their owner and group: secret"]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away: root")
def test_an_owner_that_is_configured_is_given_what_replaces_a_file(space: Workspace):
    os.chown(put(space, "f"), 1000, 1001)
    space.scan()
    space.applier = Applier(space.root, space.seen, owner=Owner(1234, 0), configured=(1234, None))
    space.go({b"f": (file(b"new"), b"new"), b"made": (file(b"new"), b"new")})
    assert owners(space) == {"f": (1234, 1001), "made": (1234, 0)}


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_an_owner_that_cannot_be_kept_is_named(space: Workspace, caplog: pytest.LogCaptureFixture):
    put(space, "theirs").chmod(0o644)
    os.chown(put(space, "mine"), 1234, 0)
    os.chown(space.path, 1234, 0)
    space.scan()
    new = (file(b"new"), b"new")
    groups = os.getgroups()
    os.setgroups([])
    os.seteuid(1234)
    try:
        assert space.go({b"theirs": new, b"mine": new}).skipped == []
    finally:
        os.seteuid(0)
        os.setgroups(groups)
    assert owners(space) == {"theirs": (1234, 0), "mine": (1234, 0)}
    assert caplog.messages == ["these could not keep their owner and group: theirs"]


def test_permissions_do_not_widen_an_access_control_list(space: Workspace, caplog: pytest.LogCaptureFixture):
    none = 0xFFFFFFFF
    masked = access_list((1, 6, none), (2, 6, 1234), (4, 4, none), (16, 4, none), (32, 0, none))
    for name in ("wider", "narrower"):
        os.setxattr(put(space, name), "system.posix_acl_access", masked)
    space.scan()
    changed = {b"wider": (file(b"old", 0o660), b"old"), b"narrower": (file(b"old", 0o600), b"old")}
    assert space.go(changed).skipped == []
    assert {at.name: at.stat().st_mode & 0o777 for at in space.path.iterdir()} == {"wider": 0o660, "narrower": 0o600}
    assert os.listxattr(space.path / "wider") == []
    assert os.listxattr(space.path / "narrower") == ["system.posix_acl_access"]
    assert caplog.messages == ["these could not keep all of their extended attributes: wider"]


def test_types_change_both_ways(space: Workspace):
    put(space, "file-link", b"f")
    (space.path / "link-file").symlink_to("x")
    put(space, "file-dir", b"f")
    put(space, "dir-file/a/b", b"f")
    put(space, "dir-link/a", b"f")
    (space.path / "link-dir").symlink_to("dir-link")
    space.scan()
    target = {
        b"file-link": (link(b"y"), b"y"),
        b"link-file": (file(b"now"), b"now"),
        b"file-dir/inside": (file(b"i"), b"i"),
        b"dir-file": (file(b"j"), b"j"),
        b"dir-link": (link(b"z"), b"z"),
        b"link-dir/inside": (file(b"k"), b"k"),
    }
    applied = space.go(target)
    assert applied.skipped == []
    assert space.tree() == {path: entry for path, (entry, _) in target.items()}


def test_emptied_directories_go_and_others_stay(space: Workspace):
    put(space, "a/b/c/f")
    put(space, "a/keep/f")
    put(space, "x/y/f")
    (space.path / "x/y/uncaptured").mkdir()
    before = space.scan()
    applied = space.go({b"a/keep/f": (before[b"a/keep/f"], b"old")})
    assert sorted(applied.deleted) == [b"a/b/c/f", b"x/y/f"]
    assert space.tree() == {b"a/keep/f": before[b"a/keep/f"], b"x/y/uncaptured": "empty"}


def test_a_directory_that_is_filled_again_keeps_its_permissions(space: Workspace):
    put(space, "d/old")
    (space.path / "d").chmod(0o700)
    space.scan()
    space.go(wanted(d_new=b"new"))
    assert (space.path / "d").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["file", "link", "fifo", "directory"])
def test_i5_what_is_not_captured_is_never_in_danger(space: Workspace, kind: str):
    path = space.path / "d/thing"
    path.parent.mkdir()
    if kind == "file":
        path.write_bytes(b"theirs")
    elif kind == "link":
        path.symlink_to("theirs")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
        (path / "theirs").write_bytes(b"theirs")
    before, info = space.tree(), path.lstat()
    applied = space.go({b"d/thing": (file(b"ours"), b"ours"), b"d/fine": (file(b"fine"), b"fine")})
    reason = DIRECTORY_IN_THE_WAY if kind == "directory" else IN_THE_WAY
    assert applied.skipped == [NotCaptured(b"d/thing", reason)]
    assert applied.written == [b"d/fine"]
    assert path.lstat() == info
    assert space.tree() == before | {b"d/fine": file(b"fine")}


@pytest.mark.parametrize("kind", ["file", "fifo"])
def test_i5_a_file_where_a_directory_must_go_stays(space: Workspace, kind: str):
    if kind == "file":
        put(space, "d", b"theirs")
    else:
        os.mkfifo(space.path / "d")
    before = space.tree()
    applied = space.go(wanted(d_f=b"ours"))
    assert applied.skipped == [NotCaptured(b"d/f", IN_THE_WAY)]
    assert space.tree() == before


def test_i5_a_directory_with_a_name_of_git_stays(space: Workspace):
    (space.path / "d/.git").mkdir(parents=True)
    assert space.go(wanted(d=b"file")).skipped == [NotCaptured(b"d", DIRECTORY_IN_THE_WAY)]
    assert (space.path / "d/.git").is_dir()


def test_directories_without_any_file_give_way_to_a_file(space: Workspace):
    (space.path / "d/e/f").mkdir(parents=True)
    assert space.go(wanted(d=b"file")).written == [b"d"]
    assert space.tree() == {b"d": file(b"file")}


@pytest.mark.parametrize("change", ["edit", "touch and edit", "replace", "directory", "gone", "chmod"])
def test_i8_what_changed_since_it_was_seen_is_left_alone(space: Workspace, change: str):
    for name in ("written", "deleted"):
        path = put(space, name, b"seen")
    space.scan()
    for name in ("written", "deleted"):
        path = space.path / name
        info = path.stat()
        if change in ("edit", "touch and edit"):
            path.write_bytes(b"edit")
            if change == "touch and edit":
                os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
        elif change == "chmod":
            path.chmod(0o600)
        else:
            path.unlink()
            if change == "replace":
                path.symlink_to("seen")
            elif change == "directory":
                path.mkdir()
                (path / "f").write_bytes(b"f")
    before = space.tree()
    applied = space.go(wanted(written=b"ours"))
    skipped = dict(applied.skipped)
    assert skipped[b"written"] == (GONE if change == "gone" else CHANGED)
    if change in ("gone", "directory"):
        assert applied.deleted == [b"deleted"], "there is no such file any more, as was wanted"
    else:
        assert skipped[b"deleted"] == CHANGED
    assert space.tree() == before


def test_a_file_that_was_only_touched_is_known_by_its_content(space: Workspace):
    for name in ("written", "deleted"):
        os.utime(put(space, name, b"seen"), ns=(1, 1))
    space.scan()
    for name in ("written", "deleted"):
        os.utime(space.path / name, ns=(2, 2))
    applied = space.go(wanted(written=b"ours"))
    assert applied == ApplyResult([b"written"], [b"deleted"], [])


def test_nothing_needs_to_be_known(space: Workspace):
    put(space, "a", b"old")
    put(space, "b", b"old")
    (space.path / "l").symlink_to("old")
    space.seen.known.clear()
    applied = space.applier.apply(
        [Change(b"b", file(b"old"), None), Change(b"l", link(b"old"), None)],
        [(Change(b"a", file(b"old"), file(b"new")), b"new")],
        nonce=NONCE,
    )
    assert applied == ApplyResult([b"a"], [b"l", b"b"], [])
    assert space.tree() == {b"a": file(b"new")}


def untouched(path: Path) -> tuple[int, ...]:
    """What any change of a file or a link would change; reading it may change the time of access, which is left out."""
    about = os.lstat(path)
    return (
        about.st_dev,
        about.st_ino,
        about.st_mode,
        about.st_nlink,
        about.st_size,
        about.st_mtime_ns,
        about.st_ctime_ns,
    )


def test_what_is_done_already_is_not_done_again(space: Workspace):
    put(space, "same/a", b"new", 0o755)
    put(space, "old", b"old")
    (space.path / "l").symlink_to("target")
    before = [untouched(space.path / name) for name in ("same/a", "l")]
    applied = space.applier.apply(
        [Change(b"gone", file(b"x"), None), Change(b"gone/deeper/x", file(b"x"), None)],
        [
            (Change(b"same/a", file(b"old"), file(b"new", 0o755)), b"new"),
            (Change(b"l", None, link(b"target")), b"target"),
            (Change(b"old", file(b"older"), file(b"old")), b"old"),
        ],
        nonce=NONCE,
    )
    assert sorted(applied.written) == [b"l", b"old", b"same/a"]
    assert sorted(applied.deleted) == [b"gone", b"gone/deeper/x"]
    assert applied.skipped == []
    assert [untouched(space.path / name) for name in ("same/a", "l")] == before
    assert space.seen.known[b"same/a"].entry == file(b"new", 0o755)


def test_permissions_alone_change_in_place(space: Workspace):
    path = put(space, "f", b"content")
    os.utime(path, ns=(5, 5))
    path.chmod(0o4644)
    hidden = put(space, "hidden", b"x", 0o000)
    space.scan()
    inode = path.stat().st_ino
    applied = space.go({b"f": (file(b"content", 0o755), b"content"), b"hidden": (file(b"x", 0o644), b"x")})
    assert sorted(applied.written) == [b"f", b"hidden"]
    info = path.stat()
    assert (info.st_ino, info.st_mtime_ns, info.st_mode & 0o7777) == (inode, 5, 0o4755), "set-id bits of the user stay"
    assert hidden.stat().st_mode & 0o7777 == 0o644


def test_permissions_are_not_changed_through_another_name(space: Workspace, tmp_path: Path):
    path = put(space, "f", b"same", 0o644)
    os.link(path, tmp_path / "outside")
    space.scan()
    assert space.go({b"f": (file(b"same", 0o755), b"same")}).skipped == [NotCaptured(b"f", OTHER_NAMES)]
    assert (tmp_path / "outside").stat().st_mode & 0o777 == 0o644
    (tmp_path / "outside").unlink()
    space.scan()
    assert space.go({b"f": (file(b"same", 0o755), b"same")}).written == [b"f"]
    assert path.stat().st_mode & 0o777 == 0o755


def test_permissions_are_not_changed_on_what_changed(space: Workspace):
    path = put(space, "f", b"content")
    space.scan()
    path.write_bytes(b"theirs!")
    assert space.go({b"f": (file(b"content", 0o755), b"content")}).skipped == [NotCaptured(b"f", CHANGED)]
    assert path.stat().st_mode & 0o777 == 0o644


def test_new_files_carry_no_set_id_bits(space: Workspace):
    path = put(space, "f", b"old", 0o6755)
    space.scan()
    space.go({b"f": (file(b"new", 0o755), b"new")})
    assert path.stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    "name", [b"../x", b"/tmp/x", b"a//b", b"a/../b", b".git/hooks/x", b"d/.holdfast/x", b"n\0", b"x" * 300]
)
def test_i7_paths_that_are_never_allowed_are_skipped(space: Workspace, name: bytes):
    applied = space.applier.apply(
        [Change(name, file(b"x"), None)], [(Change(name, None, file(b"x")), b"x")], nonce=NONCE
    )
    assert applied.written == applied.deleted == []
    assert [path for path, _ in applied.skipped] == [name, name]
    assert all("refused" in reason for _, reason in applied.skipped)
    assert os.listdir(space.path.parent) == ["w"]


def test_i7_no_link_is_written_through(space: Workspace, tmp_path: Path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/f").write_bytes(b"theirs")
    (space.path / "d").symlink_to("../outside")
    applied = space.applier.apply(
        [Change(b"d/f", file(b"theirs"), None)],
        [
            (Change(b"d/f", file(b"theirs"), file(b"ours")), b"ours"),
            (Change(b"d/new/f", None, file(b"ours")), b"ours"),
        ],
        nonce=NONCE,
    )
    assert applied.deleted == [b"d/f"], "what lies behind a link is not in the tree"
    assert [path for path, _ in applied.skipped] == [b"d/f", b"d/new/f"]
    assert (tmp_path / "outside/f").read_bytes() == b"theirs"
    assert os.listdir(tmp_path / "outside") == ["f"]


def test_i7_a_link_from_the_same_call_is_not_written_through(space: Workspace, tmp_path: Path):
    (tmp_path / "outside").mkdir()
    applied = space.applier.apply(
        [],
        [
            (Change(b"d", None, link(b"../outside")), b"../outside"),
            (Change(b"d/f", None, file(b"x")), b"x"),
            (Change(b"e/l", None, link(b"../../outside")), b"../../outside"),
            (Change(b"e/l/f", None, file(b"x")), b"x"),
            (Change(b"twice", None, file(b"1")), b"1"),
            (Change(b"twice", None, file(b"2")), b"2"),
            (Change(b"e/twice", None, file(b"1")), b"1"),
            (Change(b"e/twice", None, file(b"2")), b"2"),
        ],
        nonce=NONCE,
    )
    assert os.listdir(tmp_path / "outside") == []
    assert len(applied.written) + len(applied.skipped) == 8
    assert (b"e/twice", NAMED_TWICE) in applied.skipped
    for path, _ in applied.skipped:
        assert path in (b"d", b"d/f", b"e/l/f", b"twice", b"e/twice")
