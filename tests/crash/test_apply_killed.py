"""I3: an apply that is killed at any change of the file system is finished by repeating it."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.files.index.stat_index import KnownFile, Signature
from holdfast.files.linux import syscalls
from holdfast.files.write import applier
from holdfast.files.write.applier import Applier
from holdfast.files.write.rooted_access import Root
from holdfast.model.entries import Change, Entry, file_entry, symlink_entry
from holdfast.model.ids import hash_bytes
from holdfast.model.paths import TEMPORARY_PREFIX

from ..sampling import spread
from ..seen import Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from holdfast.files.tree import ApplyResult, CleanResult
    from holdfast.model.content import Content

NONCE = "crash"
KILLED = 77
OS_STEPS = ("open", "write", "fchmod", "mkdir", "rmdir", "symlink", "link", "rename", "unlink", "fsync")
STEPS = (
    *((os, name) for name in OS_STEPS),
    *((syscalls, name) for name in ("renameat2", "syncfs")),
)


def cleaned_after(child: int, base: Path) -> CleanResult:
    """Clean up after a call that was killed as it was to be; a second time finds nothing, and nothing of ours lies."""
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED
    with Root(bytes(base)) as root:
        cleaned = Applier(root, Seen()).clean(NONCE)
        assert Applier(root, Seen()).clean(NONCE) == (0, [])
    assert not list(base.rglob(os.fsdecode(TEMPORARY_PREFIX) + "*"))
    return cleaned


def look_at(base: Path) -> dict[bytes, KnownFile]:
    """What a scan of the tree would have remembered."""
    known: dict[bytes, KnownFile] = {}
    for path, (entry, _) in BEFORE.items():
        info = os.lstat(base / os.fsdecode(path))
        signature = Signature(info.st_mtime_ns, info.st_ctime_ns, info.st_size, info.st_ino, info.st_mode)
        known[path] = KnownFile(entry, signature)
    return known


def file(content: bytes, permissions: int = 0o644) -> tuple[Entry, bytes]:
    return file_entry(hash_bytes(content), len(content), permissions), content


def link(target: bytes) -> tuple[Entry, bytes]:
    return symlink_entry(hash_bytes(target), len(target)), target


State = dict[bytes, tuple[Entry, bytes]]

BEFORE: State = {
    b"same": file(b"same"),
    b"edit": file(b"before the edit" * 100),
    b"d/edit": file(b"before"),
    b"mode": file(b"mode"),
    b"gone": file(b"gone"),
    b"gone-dir/a/b": file(b"gone too"),
    b"file-link": file(b"f"),
    b"link-file": link(b"same"),
    b"dir-file/x/y": file(b"y"),
    b"file-dir": file(b"f"),
}
AFTER: State = {
    b"same": file(b"same"),
    b"edit": file(b"after!" * 300),
    b"d/edit": file(b"after", 0o755),
    b"d/new": file(b"new"),
    b"mode": file(b"mode", 0o700),
    b"file-link": link(b"nowhere"),
    b"link-file": file(b"now a file"),
    b"dir-file": file(b"now a file as well"),
    b"file-dir/in/side": file(b"inside"),
    b"fresh/a": file(b"fresh a"),
    b"fresh/deep/er/b": file(b"fresh b"),
    b"fresh/l": link(b"a"),
}
UNCAPTURED = b"gone-dir/uncaptured"


def changes() -> tuple[list[Change], list[tuple[Change, Content | None]]]:
    deletes = [Change(path, entry, None) for path, (entry, _) in BEFORE.items() if path not in AFTER]
    writes: list[tuple[Change, Content | None]] = []
    for path, (entry, content) in AFTER.items():
        before = BEFORE[path][0] if path in BEFORE else None
        if before != entry:
            same = before is not None and before.hash == entry.hash
            writes.append((Change(path, before, entry), None if same else iter([content[:3], content[3:]])))
    return deletes, writes


def lay_out(base: Path, state: State) -> None:
    for path, (entry, content) in state.items():
        target = base / os.fsdecode(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if entry.is_symlink:
            target.symlink_to(os.fsdecode(content))
        else:
            target.write_bytes(content)
            target.chmod(entry.permissions)
    (base / os.fsdecode(UNCAPTURED)).parent.mkdir(parents=True, exist_ok=True)
    (base / os.fsdecode(UNCAPTURED)).write_bytes(b"theirs")


def found(base: Path) -> State:
    state: State = {}
    for path in base.rglob("*"):
        inner = os.fsencode(path.relative_to(base))
        if path.is_symlink():
            state[inner] = link(os.fsencode(path.readlink()))
        elif path.is_file():
            state[inner] = file(path.read_bytes(), path.stat().st_mode)
        elif not any(path.iterdir()):
            state[inner] = file(b"an empty directory")
    return state


def run(base: Path, *, flags: bool, known: dict[bytes, KnownFile] | None = None) -> ApplyResult:
    with Root(bytes(base)) as root:
        applier = Applier(root, Seen(known), flags=flags)
        applier.clean(NONCE)
        return applier.apply(*changes(), nonce=NONCE)


def die_at(step: int) -> None:
    """Make this process die just before its ``step``-th change of the file system, as a SIGKILL would."""
    count = 0

    def dying(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            nonlocal count
            if real is not REAL_OPEN or int(arguments[1]) & os.O_CREAT:  # type: ignore[call-overload]
                count += 1
                if count == step:
                    os._exit(KILLED)
            return real(*arguments, **named)

        return call

    for module, name in STEPS:
        setattr(module, name, dying(getattr(module, name)))


REAL_OPEN = os.open


def killed_run(base: Path, step: int, *, flags: bool, known: dict[bytes, KnownFile] | None = None) -> bool:
    """Run in a child that dies at ``step``; False if it came to its end before."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        try:
            die_at(step)
            run(base, flags=flags, known=known)
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, KILLED)
    return status == KILLED


def check_nothing_torn(base: Path) -> None:
    """Each path holds what it held before, or what it is to hold; what nobody captured is as it was."""
    for path, state in found(base).items():
        if os.path.basename(path).startswith(TEMPORARY_PREFIX) or b"/" + TEMPORARY_PREFIX in b"/" + path:
            continue
        if path == UNCAPTURED:
            assert state == file(b"theirs")
        elif state != file(b"an empty directory"):
            assert state in (BEFORE.get(path), AFTER.get(path)), path
    for path, state in BEFORE.items():
        if AFTER.get(path) is not None and AFTER[path][0].is_symlink == state[0].is_symlink:
            assert os.path.lexists(base / os.fsdecode(path)), "what is to be replaced is always there"


@pytest.fixture(autouse=True)
def _no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill loses nothing that was written: syncs are steps at which it may come, and need not be done."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(syscalls, "syncfs", lambda fd: None)


@pytest.fixture(params=["renameat2", "no flags"])
def flags(request: pytest.FixtureRequest) -> bool:
    return request.param == "renameat2"


def steps_that_kill(tmp_path: Path, flags: bool) -> Iterator[tuple[Path, dict[bytes, KnownFile]]]:
    """Trees in which an apply was killed a few steps later each, and what was known of them before."""
    for step in range(1, 1000, spread(4)):
        base = tmp_path / str(step)
        base.mkdir()
        lay_out(base, BEFORE)
        known = look_at(base)
        if not killed_run(base, step, flags=flags, known=known):
            assert step > 30, "the steps are seen"
            return
        yield base, known
    pytest.fail("it never comes to its end")


@pytest.mark.parametrize("case", ["old index", "index lost", "little room"])
def test_i3_killed_anywhere_it_converges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: bool, case: str):
    if case == "little room":
        monkeypatch.setattr(applier, "_BATCH_BYTES", 1 << 60)  # no disk has that much
    expected = {**AFTER, UNCAPTURED: file(b"theirs")}
    for base, known in steps_that_kill(tmp_path, flags):
        check_nothing_torn(base)
        with Root(bytes(base)) as root:
            Applier(root, Seen()).clean(NONCE)
        assert not list(base.rglob(os.fsdecode(TEMPORARY_PREFIX) + "*"))
        check_nothing_torn(base)
        applied = run(base, flags=flags, known=None if case == "index lost" else known)
        assert applied.skipped == [], base
        assert found(base) == expected, base


def test_i3_killed_again_and_again_it_converges(tmp_path: Path, flags: bool):
    base = tmp_path / "w"
    base.mkdir()
    lay_out(base, BEFORE)
    for step in range(1, 1000):
        if not killed_run(base, step, flags=flags):
            break
        check_nothing_torn(base)
    assert run(base, flags=flags).skipped == []
    assert found(base) == {**AFTER, UNCAPTURED: file(b"theirs")}


@pytest.mark.parametrize("moment", ["exchanged", "given back"])
def test_i8_an_edit_just_before_the_exchange_survives_a_kill_just_after_it(tmp_path: Path, moment: str):
    base = tmp_path / "w"
    base.mkdir()
    lay_out(base, BEFORE)
    known = look_at(base)

    def intrude(real: Callable[..., object]) -> Callable[..., object]:
        calls: list[bytes] = []

        def call(src_fd: int, src: bytes, dst_fd: int, dst: bytes, rules: int) -> None:
            if rules == syscalls.RENAME_EXCHANGE and dst == b"edit":
                if not calls:
                    (tmp_path / "editor").write_bytes(b"somebody's last edit")
                    (tmp_path / "editor").rename(base / "edit")
                calls.append(dst)
                real(src_fd, src, dst_fd, dst, rules)
                if len(calls) == (1 if moment == "exchanged" else 2):
                    os._exit(KILLED)
            else:
                real(src_fd, src, dst_fd, dst, rules)

        return call

    child = os.fork()
    if not child:
        syscalls.renameat2 = intrude(syscalls.renameat2)
        run(base, flags=True, known=known)
        os._exit(1)
    cleaned = cleaned_after(child, base)
    if moment == "exchanged":
        assert [path for path, _ in cleaned.kept] == [b"edit.kept-1"]
        assert (base / "edit.kept-1").read_bytes() == b"somebody's last edit"
    else:
        assert cleaned.kept == []
        assert (base / "edit").read_bytes() == b"somebody's last edit"


@pytest.mark.parametrize("way", ["replaced", "deleted", "deleted beside"])
def test_i5_a_directory_that_took_a_file_s_place_just_before_survives_a_kill(tmp_path: Path, way: str):
    """It changed places with what was written, or was moved aside, when the process died."""
    base = tmp_path / "w"
    base.mkdir()
    lay_out(base, BEFORE)
    known = look_at(base)
    victim = b"edit" if way == "replaced" else b"gone"

    def put_a_directory_there() -> None:
        (base / os.fsdecode(victim)).unlink()
        (base / os.fsdecode(victim) / "deep").mkdir(parents=True)
        (base / os.fsdecode(victim) / "deep" / "precious").write_bytes(b"saved nowhere")

    def exchanging(src_fd: int, src: bytes, dst_fd: int, dst: bytes, rules: int) -> None:
        if rules == syscalls.RENAME_EXCHANGE and dst == victim:
            put_a_directory_there()
            real_exchange(src_fd, src, dst_fd, dst, rules)
            os._exit(KILLED)
        real_exchange(src_fd, src, dst_fd, dst, rules)

    def renaming(src: bytes, dst: bytes, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        if src == victim:
            if way == "deleted beside" and src_dir_fd != dst_dir_fd:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))  # as on another mount inside the tree
            put_a_directory_there()
            real_rename(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            os._exit(KILLED)
        real_rename(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    real_exchange, real_rename = syscalls.renameat2, os.rename
    child = os.fork()
    if not child:
        syscalls.renameat2, os.rename = exchanging, renaming
        run(base, flags=True, known=known)
        os._exit(1)
    cleaned = cleaned_after(child, base)
    kept = b"edit.kept-1" if way == "replaced" else b"found.kept-1"
    assert [path for path, _ in cleaned.kept] == [kept]
    assert (base / os.fsdecode(kept) / "deep" / "precious").read_bytes() == b"saved nowhere"
