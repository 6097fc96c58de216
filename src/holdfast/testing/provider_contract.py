"""The contract of a snapshot `Provider`: subclass `ProviderContract` and give it a fixture named ``ground``."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from holdfast.files.directories.btrfs_subvolume import remove_subvolume
from holdfast.files.directories.directory_exchange import directory_identity, exchange
from holdfast.model.errors import FormatError, NotFoundError, RefusedError, UnsupportedError, UsageError
from holdfast.model.paths import under
from holdfast.testing.crash_points import run_killed
from holdfast.testing.tree_state import PathState, differences, photograph

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.snapshot.port import Prepared, Provider

LEDGER_WRITES = tuple((os, name) for name in ("rename", "fsync", "unlink", "rmdir", "mkdir"))
"""Where the processes of `ProviderContract` die."""


class Ground(NamedTuple):
    """The place where the suite works."""

    root: Path
    """The workspace: a directory with the files of `lay`, and any others that the provider needs."""
    make: Callable[[str], Provider]
    """A new provider for the workspace, for a session; any number, in any process."""
    left: Callable[[], list[str]]
    """The remains of providers, except directories shared by all sessions; empty is right."""
    script: str
    """Python that binds ``make`` to the same in another process."""
    takes: Callable[[Path], object] = os.fspath
    """A user's action that makes the provider capture a new file: a harmless one, or ``git add``."""


FILES = {
    b"plain": b"plain\n",
    b"deep/er/file": b"deep\n",
    b"n\xe9 not UTF-8\n": b"odd\n",
    b"-option": b"looks like one\n",
    b"run.sh": b"#!/bin/sh\n",
    b"empty": b"",
}


def lay(root: Path) -> None:
    """The files that the suite expects in its workspace."""
    top = os.fsencode(root)
    for name, content in FILES.items():
        path = os.path.join(top, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
    os.chmod(os.path.join(top, b"run.sh"), 0o755)  # noqa: S103
    os.symlink(b"deep/er/file", os.path.join(top, b"link"))
    os.symlink(b"/nowhere/at all", os.path.join(top, b"dangling"))


def enrich(root: Path) -> None:
    """Add features that copies often lose: a name of two, holes, attributes, times and restrictive permissions."""
    os.link(root / "plain", root / "deep" / "plain too")
    with open(root / "sparse", "wb") as file:
        file.seek(4 << 20)
        file.write(b"end")
    os.setxattr(root / "sparse", "user.told", b"by whom")
    os.utime(root / "empty", ns=(1, 2_000_000_001))
    os.chmod(root / "deep" / "er", 0o500)


def content(root: Path | bytes) -> dict[bytes, tuple[bool, bytes]]:
    """The content of a tree except ``.git``: whether each file is executable or a link, and its data."""
    found: dict[bytes, tuple[bool, bytes]] = {}
    top = os.fsencode(root)
    for directory, inner, names in os.walk(top):
        inner[:] = [name for name in inner if name not in (b".git", b".holdfast")]
        for name in names + [name for name in inner if os.path.islink(os.path.join(directory, name))]:
            path = os.path.join(directory, name)
            if name == b".git":
                continue
            about = os.lstat(path)
            if stat.S_ISLNK(about.st_mode):
                found[os.path.relpath(path, top)] = (True, b"-> " + os.readlink(path))
            else:
                with open(path, "rb") as file:
                    found[os.path.relpath(path, top)] = (bool(about.st_mode & 0o100), file.read())
    return found


def seen(root: Path) -> dict[bytes, PathState]:
    """The whole content of a tree, except Holdfast's own files, the mtimes of its directories, and those of Git's
    objects, which Git updates when it finds one that it wants to write.
    """
    return {
        path: about._replace(mtime=0) if stat.S_ISDIR(about.mode) or path.startswith(b".git/objects/") else about
        for path, about in photograph(root).items()
        if not under(path, b".holdfast") and not under(path, b".git/refs/holdfast")
    }


def write(prepared: Prepared, name: str, text: str) -> None:
    """Change a file in the prepared directory."""
    with open(os.path.join(os.fsdecode(prepared.path), name), "w") as file:
        file.write(text)


def _refuses_changes(path: bytes) -> bool:
    """Whether the system lets no user change a file, whatever its permissions."""
    try:
        os.chmod(path, stat.S_IMODE(os.stat(path).st_mode))
    except OSError as error:
        return error.errno == errno.EROFS
    return False


def _may_change_places(root: bytes, private: bytes) -> bool:
    """Whether the two lie in one file system."""
    return os.stat(os.path.dirname(root)).st_dev == os.stat(private).st_dev and not os.path.ismount(root)


class ProviderContract:
    """The suite. The fixture ``ground`` gives a `Ground` with nothing made yet."""

    def test_a_copy_takes_the_workspace_s_own_place_or_it_is_said_why_not(self, ground: Ground) -> None:
        provider = ground.make("one")
        root, private = os.fsencode(ground.root), os.fsencode(ground.root) + b" beside"
        os.mkdir(private, 0o700)
        target = os.path.join(private, b"tree")
        found = provider.detect_beside(private)
        assert (found.provider, os.listdir(private)) == (provider.name, [])
        if not found.score:
            assert found.notes
            with pytest.raises(UnsupportedError, match=provider.name):
                provider.copy_to(target, without=())
            assert os.listdir(private) == []
            return
        assert found.carries_ignored
        enrich(ground.root)
        mine, theirs = (os.path.join(root, name) for name in (b"mine", b"theirs"))
        for path in (mine, theirs):
            os.mkdir(path)
        before = photograph(ground.root)
        provider.copy_to(target, without=(mine, os.path.join(root, b"not there"), b"/elsewhere"))
        assert photograph(ground.root) == before
        del before[b"mine"]
        assert differences(before, photograph(target)) == []
        holes = os.stat(os.path.join(target, b"sparse"))
        assert holes.st_blocks * 512 < holes.st_size
        assert os.stat(os.path.join(target, b"plain")).st_nlink == 2
        with pytest.raises(FileExistsError):
            provider.copy_to(target, without=())
        with open(os.path.join(target, b"plain"), "w") as file:
            file.write("of the copy")
        assert (ground.root / "plain").read_bytes() == FILES[b"plain"]
        one, other = directory_identity(root), directory_identity(target)
        if _may_change_places(root, private):
            exchange(root, target)
            assert (directory_identity(target), directory_identity(root)) == (one, other)
            assert one != other
            assert (ground.root / "plain").read_text() == "of the copy"
            exchange(root, target)
        remove_subvolume(target)
        assert os.listdir(private) == []
        assert (ground.left(), provider.tokens()) == ([], [])

    def test_detecting_says_what_can_be_had_and_makes_nothing(self, ground: Ground) -> None:
        provider = ground.make("one")
        before = seen(ground.root)
        found = provider.detect()
        assert found.provider == provider.name
        assert 0 < found.score <= 100
        assert "worktree" in found.modes
        assert differences(before, seen(ground.root)) == []
        assert list(provider.snapshots()) == list(provider.tokens()) == ground.left() == []

    def test_a_workspace_of_its_own_has_what_the_original_has(self, ground: Ground) -> None:
        provider = ground.make("one")
        before = seen(ground.root)
        prepared = provider.prepare("worktree")
        assert (prepared.provider, prepared.mode) == (provider.name, "worktree")
        assert prepared.root == os.fsencode(ground.root) != prepared.path
        assert content(prepared.path) == content(ground.root)
        write(prepared, "plain", "changed\n")
        write(prepared, "more", "new\n")
        os.unlink(os.path.join(prepared.path, b"empty"))
        assert differences(before, seen(ground.root)) == [], "the original stays"
        provider.cleanup(prepared.token)
        provider.cleanup(prepared.token)
        assert not os.path.lexists(prepared.path)
        assert ground.left() == []
        assert differences(before, seen(ground.root)) == []

    def test_snapshots_are_what_was_there_and_stay_so(self, ground: Ground) -> None:
        provider = ground.make("one")
        line = provider.prepare("in-place")
        assert line.path == os.fsencode(ground.root)
        states = [content(ground.root)]
        taken = [provider.snapshot(line, "first")]
        (ground.root / "plain").write_text("second\n")
        (ground.root / "run.sh").chmod(0o644)
        (ground.root / "link").unlink()
        (ground.root / "link").symlink_to("plain")
        (ground.root / "added").write_text("added\n")
        ground.takes(ground.root / "added")
        states.append(content(ground.root))
        taken.append(provider.snapshot(line, "second"))
        (ground.root / "deep/er/file").unlink()
        (ground.root / "deep/er").rmdir()
        (ground.root / "deep").rmdir()
        (ground.root / "deep").write_text("a file now\n")
        ground.takes(ground.root / "deep")
        states.append(content(ground.root))
        taken.append(provider.snapshot(line, "third"))
        assert [snapshot.label for snapshot in provider.snapshots()] == ["first", "second", "third"]
        assert list(ground.make("one").snapshots()) == taken
        assert [snapshot.parent for snapshot in taken] == [None, taken[0].id, taken[1].id]
        assert taken[0].created_at < taken[1].created_at < taken[2].created_at
        for snapshot, state in zip(taken, states, strict=True):
            view = provider.mount(snapshot)
            assert content(view.path) == state
            provider.cleanup(view.token)
            prepared = provider.prepare("worktree", base=snapshot)
            assert content(prepared.path) == state
            provider.cleanup(prepared.token)
        for snapshot in taken:
            provider.discard(snapshot)
            with pytest.raises(NotFoundError):
                provider.discard(snapshot)
            with pytest.raises(NotFoundError):
                provider.mount(snapshot)
        provider.cleanup(line.token)
        assert content(ground.root) == states[2]
        assert ground.left() == []

    def test_a_snapshot_of_what_has_not_changed_is_the_same(self, ground: Ground) -> None:
        provider = ground.make("one")
        line = provider.prepare("in-place")
        first, second = provider.snapshot(line, "a"), provider.snapshot(line, "")
        assert first.id != second.id
        views = [provider.mount(snapshot) for snapshot in (first, second)]
        assert [list(provider.views(snapshot)) for snapshot in (first, second)] == [[view] for view in views]
        assert content(views[0].path) == content(views[1].path) == content(ground.root)

    def test_branches_know_nothing_of_each_other_nor_of_their_origin(self, ground: Ground) -> None:
        provider = ground.make("one")
        line = provider.prepare("in-place")
        origin = provider.snapshot(line, "origin")
        state = content(ground.root)
        one, two = (provider.branch(origin, name, "worktree") for name in ("one", "t.w-o_2"))
        write(one, "plain", "by one\n")
        taken = provider.snapshot(one, "of one")
        write(one, "plain", "by one, later\n")
        assert taken.parent == origin.id
        assert content(two.path) == content(ground.root) == state
        deeper = provider.branch(taken, "deeper", "worktree")
        assert content(deeper.path) == {**state, b"plain": (False, b"by one\n")}
        again = provider.snapshot(one, "of one again")
        assert again.parent == taken.id
        provider.discard(origin)
        provider.cleanup(one.token)
        assert content(two.path) == state, "what was made of a snapshot stays without it"
        view = provider.mount(again)
        assert content(view.path) == {**state, b"plain": (False, b"by one, later\n")}
        with pytest.raises(NotFoundError):
            provider.snapshot(one, "gone")

    def test_names_are_taken_once_and_are_names(self, ground: Ground) -> None:
        provider = ground.make("one")
        snapshot = provider.snapshot(provider.prepare("in-place"), "s")
        provider.branch(snapshot, "mine", "worktree")
        with pytest.raises(RefusedError) as refused:
            provider.branch(snapshot, "mine", "worktree")
        assert refused.value.code == "branch_exists"
        before = provider.tokens()
        for name in ("", ".", "..", "a/b", "-x", "a..b", "a.lock", ".a", "a.", "a b", "a\n", "a\0", "é", "x" * 65):
            with pytest.raises(UsageError):
                provider.branch(snapshot, name, "worktree")
            with pytest.raises(UsageError):
                ground.make(name)
        for label in ("x" * 1001, "two\nlines", "\0", "\x1b[2J"):
            with pytest.raises(UsageError):
                provider.snapshot(provider.prepare("in-place"), label)
        assert len(provider.tokens()) == len(before) + 4
        odd = provider.snapshot(provider.prepare("in-place"), "-m 'é' \\ \"$(x)\"")
        assert provider.snapshots()[-1].label == odd.label == "-m 'é' \\ \"$(x)\""

    def test_modes_that_it_lacks_are_refused(self, ground: Ground) -> None:
        provider = ground.make("one")
        lacking = {"worktree", "overlay", "in-place"} - set(provider.detect().modes)
        snapshot = provider.snapshot(provider.prepare("in-place"), "s")
        before = provider.tokens()
        for mode in lacking:
            with pytest.raises(UnsupportedError):
                provider.prepare(mode)  # type: ignore[arg-type]
        with pytest.raises(UnsupportedError):
            provider.prepare("in-place", base=snapshot)
        with pytest.raises(UnsupportedError):
            provider.branch(snapshot, "b", "in-place")
        assert provider.tokens() == before

    def test_a_view_cannot_be_written_to_and_is_not_the_snapshot(self, ground: Ground) -> None:
        provider = ground.make("one")
        snapshot = provider.snapshot(provider.prepare("in-place"), "s")
        state = content(ground.root)
        view = provider.mount(snapshot)
        for directory, _, names in os.walk(view.path):
            for path in (directory, *(os.path.join(directory, name) for name in names)):
                mode = os.lstat(path).st_mode
                assert os.path.islink(path) or not mode & 0o222 or _refuses_changes(path), path
        if not _refuses_changes(view.path):
            os.chmod(os.path.join(view.path, b"plain"), 0o600)
            with open(os.path.join(view.path, b"plain"), "wb") as file:
                file.write(b"scribbled by root\n")
        other = provider.mount(snapshot)
        assert content(other.path) == state
        for shown in (view, other):
            provider.cleanup(shown.token)
            assert not os.path.lexists(shown.path)

    def test_everything_can_be_cleaned_up_from_another_process(self, ground: Ground) -> None:
        provider = ground.make("one")
        line = provider.prepare("in-place")
        snapshot = provider.snapshot(line, "s")
        branch, view = provider.branch(snapshot, "b", "worktree"), provider.mount(snapshot)
        kinds = {allocation.token: allocation.kind for allocation in provider.tokens()}
        assert kinds == {
            line.token: "workspace",
            snapshot.id: "snapshot",
            branch.token: "workspace",
            view.token: "view",
        }
        assert all(allocation.complete for allocation in provider.tokens())
        code = "\nfor one in make('one').tokens():\n    make('one').cleanup(one.token)\n"
        subprocess.run([sys.executable, "-c", ground.script + code], check=True, timeout=60)
        assert list(provider.tokens()) == list(provider.snapshots()) == ground.left() == []

    def test_what_was_prepared_is_found_again_by_its_token(self, ground: Ground) -> None:
        provider = ground.make("one")
        line, own = provider.prepare("in-place"), provider.prepare("worktree")
        snapshot = provider.snapshot(line, "s")
        write(own, "plain", "changed\n")
        for prepared in (line, own):
            assert ground.make("one").resume(prepared.token) == prepared
        assert content(own.path)[b"plain"] == (False, b"changed\n")
        provider.cleanup(own.token)
        for token in (own.token, snapshot.id, "", "../x"):
            with pytest.raises(NotFoundError):
                provider.resume(token)  # type: ignore[arg-type]
        with pytest.raises(NotFoundError):
            ground.make("two").resume(line.token)

    def test_git_finds_no_repository_of_yours_above(self, ground: Ground) -> None:
        """Git would move its branches, from a copy that has lost its own repository, or never had one (I15)."""
        provider = ground.make("one")
        prepared = provider.prepare("worktree")
        provider.resume(prepared.token)
        above = os.path.dirname(prepared.path)
        environment = {**os.environ, "GIT_DISCOVERY_ACROSS_FILESYSTEM": "1", "LC_ALL": "C"}
        words = ["git", "rev-parse", "--git-dir"]
        done = subprocess.run(words, cwd=above, env=environment, capture_output=True, check=False)
        assert done.stderr == b"fatal: not a git repository: /nowhere/holdfast-forks-are-in-no-repository\n"
        provider.cleanup(prepared.token)
        assert ground.left() == []

    def test_tokens_that_are_nobodys_do_nothing(self, ground: Ground) -> None:
        provider = ground.make("one")
        kept = provider.prepare("worktree")
        for token in ("", "0" * 16, "../x", "x" * 16, "é", kept.token + "\n", "0" * 1000):
            provider.cleanup(token)  # type: ignore[arg-type]
        ground.make("two").cleanup(kept.token)
        assert os.path.isdir(kept.path)
        assert ground.make("two").tokens() == []

    def test_what_was_damaged_is_told_and_the_rest_goes_on(
        self, ground: Ground, caplog: pytest.LogCaptureFixture
    ) -> None:
        provider = ground.make("one")
        line = provider.prepare("in-place")
        origin = provider.snapshot(line, "origin")
        branch = provider.branch(origin, "b", "worktree")
        lost = provider.snapshot(line, "lost")
        state = content(ground.root)
        for token in (origin.id, lost.id):
            (path,) = [Path(path) for path in ground.left() if path.endswith(f"/ledger/one/{token}")]
            path.write_bytes(path.read_bytes()[:-5])
        assert list(provider.snapshots()) == []
        assert {one.token for one in provider.tokens()} == {line.token, branch.token}
        caplog.clear()
        for prepared in (line, branch):
            taken = provider.snapshot(prepared, "later")
            view = provider.mount(taken)
            assert content(view.path) == state
            provider.cleanup(view.token)
        assert any(lost.id in record.getMessage() for record in caplog.records)
        calls: tuple[Callable[[], object], ...] = (
            lambda: provider.mount(lost),
            lambda: provider.discard(lost),
            lambda: provider.cleanup(lost.id),
        )
        for call in calls:
            with pytest.raises(FormatError, match=lost.id):
                call()
        for allocation in provider.tokens():
            provider.cleanup(allocation.token)
        left = ground.left()
        assert {lost.id, origin.id} <= {Path(path).name for path in left}, "it stays, for a person to look at"

    def test_two_sessions_at_once_know_nothing_of_each_other(self, ground: Ground) -> None:
        failures: list[BaseException] = []
        start = threading.Barrier(2)

        def work(session: str) -> None:
            try:
                provider = ground.make(session)
                start.wait(60)
                line = provider.prepare("in-place")
                for number in range(3):
                    snapshot = provider.snapshot(line, f"{session} {number}")
                    branch = provider.branch(snapshot, f"b{number}", "worktree")
                    write(branch, "plain", session)
                    inner = provider.snapshot(branch, "inner")
                    view = provider.mount(inner)
                    assert content(view.path)[b"plain"] == (False, session.encode())
                    for token in (view.token, branch.token, inner.id):
                        provider.cleanup(token)
                assert [snapshot.label for snapshot in provider.snapshots()] == [f"{session} {at}" for at in range(3)]
                for allocation in provider.tokens():
                    provider.cleanup(allocation.token)
            except BaseException as error:
                failures.append(error)
                raise

        threads = [threading.Thread(target=work, args=(session,)) for session in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert failures == []
        assert ground.left() == []


def kill_everywhere(ground: Ground, calls: Any = LEDGER_WRITES, *, first: int = 1, every: int = 1) -> int:
    """Kill a process that performs each action once before the ``first`` of its ``calls``, and each ``every``-th after
    that, and clean up after each; returns the number of kills. Nothing may remain (I3).
    """

    def work() -> None:
        provider = ground.make("one")
        line = provider.prepare("in-place")
        snapshot = provider.snapshot(line, "s")
        branch = provider.branch(snapshot, "b", "worktree")
        view = provider.mount(snapshot)
        second = provider.snapshot(branch, "t")
        provider.discard(snapshot)
        for token in (view.token, branch.token, second.id, line.token):
            provider.cleanup(token)

    before = seen(ground.root)
    total = 0
    while True:
        total += 1
        ended = run_killed(work, first + (total - 1) * every, calls=calls)
        provider = ground.make("one")
        for snapshot in provider.snapshots():
            view = provider.mount(snapshot)  # a listed snapshot is complete
            assert content(view.path) == content(ground.root)
        for allocation in provider.tokens():
            provider.cleanup(allocation.token)
        left = ground.left()
        assert not left, f"killed at {total}, and still there: {left}"
        assert differences(before, seen(ground.root)) == [], f"killed at {total}"
        if not ended.killed:
            return total
