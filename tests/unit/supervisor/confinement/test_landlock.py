"""The domain, in children that put themselves into it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.supervisor.confinement.landlock import confine, version, writable
from holdfast.supervisor.confinement.seccomp_notify import give_up_privileges

needs_landlock = pytest.mark.skipif(not version(), reason="this kernel has no Landlock")


def inside(root: Path, act: Callable[[], object]) -> str:
    """What ``act`` did in a confined child: nothing, or the name of its error."""
    reader, writer = os.pipe()
    if not (pid := os.fork()):
        said = "no result"
        try:
            give_up_privileges()
            confine([os.fsencode(root)])
            act()
            said = "done"
        except BaseException as error:
            said = type(error).__name__
        finally:
            os.write(writer, said.encode())
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        said = file.read().decode()
    os.waitpid(pid, 0)
    return said


@needs_landlock
@pytest.mark.parametrize(
    "change",
    [
        lambda at: os.open(at / "file", os.O_WRONLY),
        lambda at: os.open(at / "new", os.O_CREAT | os.O_RDWR),
        lambda at: os.open(at / "file", os.O_WRONLY | os.O_TRUNC),
        lambda at: os.unlink(at / "file"),
        lambda at: os.rmdir(at / "empty"),
        lambda at: os.mkdir(at / "made"),
        lambda at: os.mkfifo(at / "pipe"),
        lambda at: os.symlink("x", at / "link"),
        lambda at: os.link(at / "file", at / "empty" / "other"),
        lambda at: os.rename(at / "file", at / "other"),
    ],
)
def test_nothing_is_changed_by_name(tmp_path: Path, change: Callable[[Path], object]) -> None:
    (tmp_path / "file").write_text("content")
    (tmp_path / "empty").mkdir()
    # Any directory, the workspace or not; a mistake of this test would show as another error than a refusal.
    for root in (tmp_path, tmp_path / "elsewhere"):
        assert inside(root, lambda: change(tmp_path)) in ("PermissionError", "OSError")
    assert sorted(os.listdir(tmp_path)) == ["empty", "file"]
    assert (tmp_path / "file").read_text() == "content"


@needs_landlock
def test_descriptors_from_outside_and_devices_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    fd = os.open(tmp_path / "file", os.O_RDWR)

    def act() -> None:
        os.write(fd, b"CON")
        os.ftruncate(fd, 5)
        os.close(os.open("/dev/null", os.O_WRONLY | os.O_TRUNC))
        os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY))
        with open("/proc/self/comm", "w") as file:
            file.write("another")

    assert inside(tmp_path, act) == "done"
    os.close(fd)
    assert (tmp_path / "file").read_text() == "CONte"


@needs_landlock
def test_those_outside_are_not_traced(tmp_path: Path) -> None:
    own = os.getpid()
    assert inside(tmp_path, lambda: os.close(os.open(f"/proc/{own}/mem", os.O_RDONLY))) == "PermissionError"


def test_a_workspace_below_a_device_directory_is_left_out() -> None:
    root = b"/dev/shm"
    found = list(writable([root]))
    assert b"/dev/null" in found
    assert b"/proc" in found
    assert b"/sys" not in found
    assert b"/dev" not in found
    assert root not in found
    both = set(writable([b"/srv/work", b"/dev/shm/kept", root]))
    assert b"/dev/null" in both
    assert not any(path == b"/dev" or path.startswith(root) for path in both)
    assert set(writable([b"/srv/work"])) == {b"/dev", b"/proc"}
