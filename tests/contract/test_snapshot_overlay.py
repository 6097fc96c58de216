"""Overlays beyond the suite: at the workspace's own path, exact whatever was done in them, back after a restart."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.bridge.mount.overlayfs import detach_overlays
from holdfast.files.directories.removal_obstacles import mounted_at
from holdfast.model.errors import RefusedError, StorageError
from holdfast.snapshot.overlay import _holder as overlay_held
from holdfast.snapshot.overlay.namespace_process import FAILED, holder_of
from holdfast.snapshot.overlay.provider import overlay_provider
from holdfast.snapshot.provider_context import ProviderContext
from holdfast.testing.provider_contract import lay
from holdfast.testing.tree_state import differences, photograph

from ..disks import mounted
from ..overlays import holders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.snapshot.port import Prepared, Provider

pytestmark = pytest.mark.root


@pytest.fixture(params=["btrfs", "ext4", "tmpfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "on"
    place.mkdir()
    with mounted(request.param, place) as found:
        yield found


@pytest.fixture
def root(disk: Path) -> Path:
    """A workspace with what overlayfs has to take pains with."""
    root = disk / "the work space"
    root.mkdir(mode=0o750)
    lay(root)
    for name in ("renamed/in/it", "emptied/in", "replaced/in", "kept/in"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{name}\n")
    for name in ("linked", "kept/also linked", "third"):
        os.link(root / "plain", root / name)
    os.mkfifo(root / "fifo")
    os.setxattr(root / "run.sh", "user.holdfast", b"value")
    (root / "kept").chmod(0o2751)
    os.utime(root / "kept", ns=(5, 10**18 + 9))
    os.utime(root, ns=(5, 10**18 + 10))
    return root


@pytest.fixture
def provider(root: Path) -> Iterator[Provider]:
    found = make(root)
    yield found
    for allocation in found.tokens():
        found.cleanup(allocation.token)
    assert not list(state_of(root).rglob("layers"))
    assert not list(state_of(root).rglob("lower"))


def state_of(root: Path) -> Path:
    return root.with_name("state")


def make(root: Path) -> Provider:
    return overlay_provider(ProviderContext(bytes(root), bytes(state_of(root)), "one"))


def inside(prepared: Prepared, *command: str, directory: Path | None = None) -> str:
    """What a command says that is run in what was prepared."""
    where = os.fsdecode(prepared.path) if directory is None else directory
    done = subprocess.run([*prepared.enter, *command], cwd=where, capture_output=True, text=True, check=True)
    return done.stdout


CHANGES = """
set -e
echo changed >> plain                  # one of four names
mv renamed elsewhere
echo more > elsewhere/in/more
rm -r emptied && mkdir emptied && echo new > emptied/new
rm -r replaced && echo 'a file now' > replaced
rm link fifo && mkdir link && mv run.sh link/
touch -d @1234567890.5 kept/in && chmod 600 kept/in
ln kept/in another
setfattr -n user.mine -v x kept 2>/dev/null || true
mv third fourth
"""


def test_commands_find_it_at_the_path_of_the_workspace(root: Path, provider: Provider) -> None:
    before = photograph(root)
    prepared = provider.prepare("overlay")
    assert prepared.path == prepared.root == bytes(root)
    assert inside(prepared, "cat", f"{root}/deep/er/file", directory=Path("/")) == "deep\n"
    inside(prepared, "sh", "-ec", "pwd > where; rm -r deep; echo mine > plain")
    assert differences(before, photograph(root)) == [], "nobody else sees it"
    assert inside(prepared, "cat", "where", "plain", "linked") == f"{root}\nmine\nmine\n"
    assert inside(prepared, "sh", "-c", "ls -d deep || echo gone").split() == ["gone"]
    other = provider.prepare("overlay")
    assert inside(other, "cat", "plain") == "plain\n"
    assert inside(prepared, "cat", "plain") == "mine\n"
    (root / "plain").write_text("by hand\n")
    assert inside(other, "cat", "plain") == "plain\n", "what was prepared does not follow the workspace"


def test_exit_codes_and_signals_are_the_commands_own(root: Path, provider: Provider) -> None:
    prepared = provider.prepare("overlay")
    codes = {"exit 7": 7, "kill -TERM $$": -signal.SIGTERM, "yes | head -n 1 > /dev/null": 0}
    for line, code in codes.items():
        assert subprocess.run([*prepared.enter, "sh", "-c", line], check=False, cwd=root).returncode == code
    missing = subprocess.run([*prepared.enter, "no-such-command"], check=False, capture_output=True)
    assert (missing.returncode, missing.stderr) == (127, b"holdfast: there is no command no-such-command\n")
    provider.cleanup(prepared.token)
    over = subprocess.run([*prepared.enter, "true"], check=False, capture_output=True)
    assert over.returncode == FAILED
    assert b"cannot be entered" in over.stderr


@pytest.mark.parametrize("mode", ["overlay", "worktree"])
def test_whatever_was_done_a_snapshot_has_it_all(root: Path, provider: Provider, mode: str) -> None:
    """All metadata, and which names are one file."""
    before = photograph(root)
    prepared = provider.prepare(mode)  # type: ignore[arg-type]
    first = provider.snapshot(prepared, "nothing changed")
    assert differences(before, photograph(provider.mount(first).path)) == []
    inside(prepared, "sh", "-c", CHANGES)
    second = provider.snapshot(prepared, "changed")
    view = provider.mount(second)
    seen = photograph(view.path)
    assert seen[b"plain"].content == b"plain\nchanged\n"
    assert set(seen[b"plain"].names) == {b"fourth", b"kept/also linked", b"linked", b"plain"}
    assert set(seen[b"another"].names) == {b"another", b"kept/in"}
    assert seen[b"kept/in"].mtime == 1234567890_500000000
    assert sorted(path for path in seen if b"e" in path[:1]) == sorted(
        [b"elsewhere", b"elsewhere/in", b"elsewhere/in/it", b"elsewhere/in/more", b"emptied", b"emptied/new", b"empty"]
    )
    assert not {b"link/er", b"fifo", b"run.sh", b"renamed", b"third", b"replaced/in"} & seen.keys()
    assert seen[b"link/run.sh"].xattrs == before[b"run.sh"].xattrs
    branch = provider.branch(second, "b", "worktree")
    assert differences(seen, photograph(branch.path)) == []
    inside(branch, "sh", "-c", "rm -r elsewhere; echo b > plain; ln plain fifth")
    third = provider.mount(provider.snapshot(branch, "of the branch"))
    assert differences(photograph(branch.path), photograph(third.path)) == []
    assert differences(seen, photograph(view.path)) == []
    assert differences(before, photograph(root)) == []
    with pytest.raises(OSError, match="Read-only"):
        os.unlink(os.path.join(view.path, b"plain"))


def test_it_is_mounted_again_after_a_restart(root: Path, provider: Provider) -> None:
    own, hidden = provider.prepare("worktree"), provider.prepare("overlay")
    for prepared in (own, hidden):
        inside(prepared, "sh", "-c", "rm deep/er/file; echo kept > added; echo x >> plain")
    expected = photograph(own.path)
    detach_overlays(own.path)
    kill_holder(root, hidden)
    assert not os.listdir(own.path)
    done = subprocess.run([*hidden.enter, "true"], check=False, capture_output=True)
    assert (done.returncode, b"resume it" in done.stderr) == (FAILED, True)
    taken = provider.snapshot(hidden, "while nothing is mounted")
    again = make(root)
    assert [again.resume(prepared.token) for prepared in (own, hidden)] == [own, hidden]
    assert differences(expected, photograph(own.path)) == []
    assert inside(hidden, "cat", "added", "linked") == "kept\nplain\nx\n"
    assert photograph(provider.mount(taken).path)[b"added"].content == b"kept\n"


def test_what_somebody_has_mounted_over_it_keeps_it(root: Path, provider: Provider) -> None:
    prepared = provider.prepare("worktree")
    own = mounted_at(prepared.path)
    subprocess.run(["mount", "-t", "tmpfs", "none", prepared.path], check=True)
    try:
        Path(os.fsdecode(prepared.path), "precious").write_text("precious")
        with pytest.raises(RefusedError) as caught:
            provider.cleanup(prepared.token)
        assert caught.value.code == "mounted_over"
        assert Path(os.fsdecode(prepared.path), "precious").read_text() == "precious"
    finally:
        while len(mounted_at(prepared.path)) > len(own):
            subprocess.run(["umount", prepared.path], check=True)
    provider.cleanup(prepared.token)
    assert not os.path.lexists(prepared.path)


def test_what_still_runs_there_keeps_it_from_being_mounted_twice(root: Path, provider: Provider) -> None:
    """Two mounts of the same layers would damage both."""
    prepared = provider.prepare("overlay")
    words = [*prepared.enter, "sh", "-c", "echo begun; cat"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"begun\n"
        kill_holder(root, prepared)
        with pytest.raises(RefusedError) as refused:
            provider.resume(prepared.token)
        assert refused.value.code == "in_use"
        running.communicate(b"")
    assert provider.resume(prepared.token) == prepared
    assert inside(prepared, "cat", "plain") == "plain\n"


def test_who_comes_to_hold_it_while_it_is_removed_does_not(root: Path, provider: Provider) -> None:
    """As a process does that was started by one that has been killed."""
    prepared = provider.prepare("overlay")
    held = os.fsencode(state_of(root) / "layers" / prepared.token / "held")
    with overlay_held.without_holder(held):
        with pytest.raises(RefusedError) as refused:
            overlay_held.start(held, bytes(root), (b"/", b"/", b"/", b"trusted"))
        assert refused.value.code == "in_use"
        os.unlink(held)
    with pytest.raises(StorageError, match="No such file"):
        overlay_held.start(held, bytes(root), (b"/", b"/", b"/", b"trusted"))
    assert holders(state_of(root)) == []


def test_it_is_gone_with_the_home(root: Path) -> None:
    """Whoever removes all of that by hand leaves no process behind."""
    prepared = make(root).prepare("overlay")
    with open(holder(root, prepared), "rb", buffering=0) as pidfd:
        shutil.rmtree(state_of(root))
        assert select.select([pidfd], [], [], 60)[0]


def kill_holder(root: Path, prepared: Prepared) -> None:
    with open(holder(root, prepared), "rb", buffering=0) as pidfd:
        signal.pidfd_send_signal(pidfd.fileno(), signal.SIGKILL)
        assert select.select([pidfd], [], [], 60)[0]


def holder(root: Path, prepared: Prepared) -> int:
    """A pidfd of the process that holds what was prepared."""
    with open(state_of(root) / "layers" / prepared.token / "held", "rb") as held:
        process = holder_of(held.fileno())
    assert process
    return os.pidfd_open(process)


def test_whoever_is_not_root_has_them_in_a_user_namespace() -> None:
    here = Path(__file__)
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        own, empty = Path(directory, "own"), Path(directory, "empty")
        own.mkdir()
        empty.mkdir()
        os.chown(own, 65534, 65534)
        words = [sys.executable, here.parents[1] / "e2e/as_user.py", empty]
        words += [sys.executable, here.with_name("overlay_as_user.py"), own]
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=directory)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
    if "lacking" in found:
        pytest.skip(f"users can mount no overlays here: {found['lacking']}")
    assert found == {
        "modes": ["overlay", "in-place"],
        "refused": "the provider overlay has no mode worktree",
        "who": "65534",
        "sees": "plain\nchanged\n",
        "changed": [],
        "first": [],
        "second": ["deep", "deep/-option", "deep/new", "deep/run.sh", "moved", "moved/in", "moved/in/file"],
        "third": [],
        "unmounting": 32,
        "left": [f"{own}/state/ledger"],
    }
