"""Which means is chosen, what is said when one cannot be had, and what happens at the kernel's limits."""

from __future__ import annotations

import errno
import logging
import os
import select
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import holdfast
from holdfast.files.watch import _inotify as inotify
from holdfast.files.watch import event_syscalls, open_watcher, why
from holdfast.files.watch._inotify import Event
from holdfast.files.watch.event_masks import Q_OVERFLOW
from holdfast.model.errors import UnsupportedError

SOURCE = str(Path(holdfast.__path__[0]).parent)


def limited(directory: Path, watches: int, code: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a user namespace: without privilege, and with so many watches, by the kernel's own limit."""
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    probe = subprocess.run(
        ["unshare", "-Ur", "sh", "-c", f"echo {watches} > /proc/sys/user/max_inotify_watches"],
        capture_output=True,
        check=False,
    )
    if probe.returncode:
        pytest.skip("needs user namespaces with a limit of their own")
    setup = f'echo {watches} > /proc/sys/user/max_inotify_watches && exec {sys.executable} -c "$CODE"'
    preamble = f"""
        import logging, os, select, sys
        logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(message)s")
        from holdfast.files.watch import open_watcher
        root = {os.fsencode(directory)!r}
        """
    return subprocess.run(
        ["unshare", "-Ur", "sh", "-c", setup],
        env={
            "PYTHONPATH": SOURCE,
            "PATH": os.environ["PATH"],
            "CODE": textwrap.dedent(preamble) + textwrap.dedent(code),
        },
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_without_privilege_it_is_inotify(tmp_path: Path) -> None:
    result = limited(tmp_path, 100, "print(open_watcher(root).backend)")
    assert result.stderr == ""
    said, backend = result.stdout.splitlines()
    assert "INFO" in said
    assert "by fanotify: it needs the capabilities CAP_SYS_ADMIN and CAP_DAC_READ_SEARCH" in said
    assert backend == "inotify"


def test_a_named_means_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EPERM, "no")

    monkeypatch.setattr(event_syscalls, "fanotify_init", refuse)
    with pytest.raises(UnsupportedError, match="CAP_SYS_ADMIN"):
        open_watcher(os.fsencode(tmp_path), "fanotify")


def test_no_instance_of_inotify_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "too many")

    monkeypatch.setattr(event_syscalls, "fanotify_init", refuse)
    monkeypatch.setattr(event_syscalls, "inotify_init", refuse)
    with caplog.at_level(logging.INFO):
        watcher = open_watcher(os.fsencode(tmp_path))
    assert watcher.backend == "polling"
    assert "fs.inotify.max_user_instances" in caplog.text
    watcher.close()


@pytest.mark.parametrize("number", [errno.EPERM, errno.EINVAL, errno.ENODEV, errno.EIO])
@pytest.mark.parametrize("choice", ["fanotify", "inotify"])
def test_every_reason_is_a_sentence(choice: str, number: int) -> None:
    assert len(why(choice, OSError(number, os.strerror(number)))) > 5


def test_more_directories_than_watches_from_the_start(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"d{number}").mkdir()
    result = limited(tmp_path, 4, "watcher = open_watcher(root, poll_interval=0.01); print(watcher.backend)")
    assert result.stderr == ""
    assert "WARNING" in result.stdout
    assert "fs.inotify.max_user_watches" in result.stdout
    assert result.stdout.splitlines()[-1] == "polling"


def test_more_directories_than_watches_later_on(tmp_path: Path) -> None:
    """It goes on as polling does, and is itself again when a refresh finds room."""
    code = """
        watcher = open_watcher(root, "inotify", poll_interval=0.01)
        fd = watcher.fileno()
        print(watcher.drain().everything, watcher.drain().everything)
        for number in range(8):
            os.mkdir(root + b"/d%d" % number)
        print(watcher.drain().everything, "max_user_watches" in watcher.limits)
        print(bool(select.select([fd], [], [], 10)[0]), watcher.drain().everything)
        for number in range(8):
            os.rmdir(root + b"/d%d" % number)
        watcher.drain()
        watcher.refresh()
        print(watcher.drain().everything, watcher.drain().everything, "max_user_watches" in watcher.limits)
        os.mkdir(root + b"/again")
        print(watcher.drain().paths)
        """
    result = limited(tmp_path, 6, code)
    assert result.stderr == ""
    warnings = [line for line in result.stdout.splitlines() if line.startswith("WARNING cannot watch all of")]
    lines = [line for line in result.stdout.splitlines() if line not in warnings]
    assert len(warnings) == 1
    assert lines == ["True False", "True True", "True True", "True False False", "frozenset({b'again'})"]


def test_an_overflow_of_inotifys_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost events make everything dirty, and directories that they would have told of are watched all the same."""
    watcher = open_watcher(os.fsencode(tmp_path), "inotify")
    watcher.drain()
    with monkeypatch.context() as patch:
        taken: list[Event] = []
        patch.setattr(
            inotify,
            "decode",
            lambda buffer: iter([Event(-1, Q_OVERFLOW, 0, b"")]) if not taken.append(buffer) else iter([]),
        )
        (tmp_path / "a/b").mkdir(parents=True)
        assert watcher.drain().everything
        assert taken
    assert not watcher.drain().everything
    (tmp_path / "a/b/file").touch()
    assert b"a/b/file" in watcher.drain().paths
    watcher.close()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
@pytest.mark.parametrize("backend", ["fanotify", "inotify"])
def test_a_file_system_mounted_in_the_tree(tmp_path: Path, backend: str) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    watcher = open_watcher(os.fsencode(tmp_path), backend)  # pyright: ignore[reportArgumentType]
    watcher.drain()
    if subprocess.run(["mount", "-t", "tmpfs", "none", inner], capture_output=True, check=False).returncode:
        watcher.close()
        pytest.skip("this machine does not let tests mount")
    try:
        assert watcher.drain().everything
        (inner / "file").write_text("on another file system")
        assert select.select([watcher.fileno()], [], [], 10)[0]
        dirty = watcher.drain()
        assert dirty.everything or dirty.paths & {b"inner", b"inner/file"}
        watcher.close()
    finally:
        subprocess.run(["umount", "-l", inner], check=True)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_one_file_system_in_two_places_of_the_tree(tmp_path: Path) -> None:
    """A handle then has two paths: fanotify would know one, so that another means is chosen."""
    (tmp_path / "elsewhere").mkdir()
    root = tmp_path / "root"
    (root / "bound").mkdir(parents=True)
    watcher = open_watcher(os.fsencode(root), "auto")
    if subprocess.run(["mount", "--bind", tmp_path / "elsewhere", root / "bound"], check=False).returncode:
        watcher.close()
        pytest.skip("this machine does not let tests mount")
    try:
        assert watcher.drain().everything
        (tmp_path / "elsewhere/file").touch()
        assert watcher.drain().everything or watcher.backend == "inotify"
        again = open_watcher(os.fsencode(root), "auto")
        assert again.backend == "inotify"
        again.drain()
        (tmp_path / "elsewhere/file2").touch()
        assert b"bound/file2" in again.drain().paths
        again.close()
        watcher.close()
    finally:
        subprocess.run(["umount", "-l", root / "bound"], check=True)
