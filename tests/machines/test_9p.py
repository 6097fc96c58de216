"""A directory that the guest's own kernel has mounted by 9P: what programs do there is as on a disk, is exactly that on
the host, and is undone exactly.
"""

from __future__ import annotations

import hashlib
import os
import select
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.processes.process_tree import descendants
from holdfast.sandbox.images.manifest import Image
from holdfast.sandbox.images.store import ImageStore
from holdfast.sandbox.policy import NoNetwork
from holdfast.sandbox.vm.machine import Machine
from holdfast.sandbox.vm.plan import Share
from holdfast.testing.tree_state import photograph

from ..e2e.isolated import need_namespaces
from ..images import put_image
from ..waiting import has_ended, wait_until
from .guests import ANSWER_SECONDS, EMULATION, USER, Guest, Served, compare_at_random, plan
from .test_run_in_machine import Bench

pytestmark = pytest.mark.slow

PROGRAM = """
import errno, fcntl, hashlib, mmap, os, socket

def refused(action):
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno]

def in_a_child(action):
    child = os.fork()
    if not child:
        os._exit(0 if refused(action) is None else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

# An open file that has no name any more is a file still.
with open("gone", "w+") as gone:
    gone.write("abc")
    gone.flush()
    os.unlink("gone")
    gone.truncate(1)
    gone.seek(0, 2)
    gone.write("z")
    gone.seek(0)
    assert (gone.read(), os.fstat(gone.fileno()).st_nlink) == ("az", 0)
os.rename("old", "given")
# Locks.
with open("given", "r+b") as one, open("given", "r+b") as other:
    fcntl.flock(one, fcntl.LOCK_EX)
    assert refused(lambda: fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)) == "EAGAIN"
    fcntl.flock(one, fcntl.LOCK_UN)
    fcntl.lockf(one, fcntl.LOCK_EX, 10, 0)
    def lock(start):
        fcntl.lockf(open("given", "r+b"), fcntl.LOCK_EX | fcntl.LOCK_NB, 10, start)
    assert in_a_child(lambda: lock(5)) == 1
    assert in_a_child(lambda: lock(10)) == 0
# A directory that changes while it is read shows all that stays, once.
os.mkdir("many")
for number in range(40):
    open(f"many/{number}", "w").close()
seen = []
with os.scandir("many") as entries:
    for entry in entries:
        seen.append(entry.name)
        if entry.name.isdigit() and int(entry.name) % 2:
            os.unlink(f"many/{entry.name}")
            open(f"many/new{entry.name}", "w").close()
assert len(set(seen)) == len(seen) and set(map(str, range(40))) <= set(seen), seen
# What can be mapped.
with open("given", "r+b") as file:
    assert mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)[:2] == b"of"
    assert refused(lambda: mmap.mmap(file.fileno(), 0)) == "EINVAL"
with open("given", "rb") as file:
    assert mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)[:2] == b"of"
# Others.
os.setxattr("given", "user.kept", b"value")
os.setxattr("given", "user.gone", b"value")
os.removexattr("given", "user.gone")
os.utime("given", ns=(10**18, 2 * 10**18))  # (the kernel has whole seconds for times that a program says)
os.mkfifo("pipe")
with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
    server.bind("socket")
    server.listen()
    client.connect("socket")
# A large file.
block = hashlib.sha512(b"block").digest() * (1 << 14)
with open("large", "wb") as file:
    for number in range(32):
        file.write(block)
whole = hashlib.sha256()
with open("large", "rb") as file:
    while data := file.read(1 << 20):
        whole.update(data)
print(whole.hexdigest())
"""
OTHER_USERS = """
sudo install -d -o 33 -g 33 -m 700 theirs
sudo -u '#33' -g '#33' touch theirs/file
sudo touch of-root
! ls theirs 2>/dev/null
! sudo -u '#33' touch denied 2>/dev/null
"""
NAMES = """
touch own
ln own linked
ln -s own link
mkdir -p a/b/c
mv a/b moved
mv -T moved a/b
mv -T linked own2
chmod 640 own
"""
PROJECT = """
export HOME=/tmp GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
mkdir project
cd project
git init -q
echo 'import unittest
class Test(unittest.TestCase):
    def test(self): self.assertTrue(True)' > test_it.py
git add -A
git commit -q -m one
git status --porcelain
python3 -m unittest -q 2>&1 | tail -n 1
git status --porcelain --ignored
rm -rf ../kept
"""


class Working:
    """A machine with a directory by 9P."""

    def __init__(self, guest: Guest, served: Served) -> None:
        self.tree = served.tree
        self.guest = guest

    def out(self, script: str) -> str:
        """What a script says, of which each line succeeds, in the directory."""
        code, text = self.guest.run(f"set -e; {script}", cwd=bytes(self.tree))
        assert code == 0, text
        return text


@pytest.fixture(scope="module")
def working(built_image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Working]:
    need_namespaces()
    folder = tmp_path_factory.mktemp("machine")
    served = Served(folder, "9p")
    (served.tree / "old").write_text("of the host")
    (served.tree / "kept").mkdir()
    (served.tree / "kept" / "file").write_text("to be removed")
    for path in (served.tree, *served.tree.rglob("*")):
        os.chown(path, USER.uid, USER.gid)
    before = photograph(served.tree)
    with Machine.start(plan(built_image, folder, network=NoNetwork(), shares=(served.share,)), EMULATION) as machine:
        served.serve(machine.files[0].dup())
        guest = Guest(machine)
        yield Working(guest, served)
        guest.close()
    served.undo()
    assert photograph(served.tree) == before


def test_a_network_for_the_share_alone(working: Working) -> None:
    (mounted,) = (line for line in working.out("cat /proc/mounts").splitlines() if " 9p " in line)
    source, path, _, options, *_ = mounted.split()
    assert (source, path) == ("10.0.2.100", str(working.tree))
    assert {"rw", "nosuid", "nodev", "trans=tcp", "access=user"} <= set(options.split(","))
    assert working.out("ip route; cat /etc/resolv.conf").split(maxsplit=1)[0] == "10.0.2.0/24"
    assert "default" not in working.out("ip route")
    # Root can make itself a way out, which leads nowhere.
    attempt = "import socket; print(socket.socket().connect_ex(('{}', {})))"
    working.out("sudo ip route add default via 10.0.2.2")
    for address, port in (("192.0.2.1", 80), ("10.0.2.2", 22), ("10.0.2.100", 5641)):
        said = working.out(f'timeout 10 python3 -c "{attempt.format(address, port)}" || echo lost')
        assert said.strip() in ("111", "113", "lost"), said
    working.out("sudo ip route del default via 10.0.2.2")


def test_users_and_names(working: Working) -> None:
    working.out(NAMES)
    tree = working.tree
    owners = {name: ((tree / name).lstat().st_uid, (tree / name).lstat().st_gid) for name in ("own", "own2", "link")}
    assert set(owners.values()) == {(USER.uid, USER.gid)}
    assert os.path.samefile(tree / "own", tree / "own2")
    assert (os.readlink(tree / "link"), stat.S_IMODE((tree / "own").stat().st_mode)) == ("own", 0o640)
    assert (tree / "a" / "b" / "c").is_dir()
    if os.geteuid() == 0:  # (else the server cannot give files away)
        working.out(OTHER_USERS)
        assert [((tree / name).stat().st_uid, (tree / name).stat().st_gid) for name in ("theirs/file", "of-root")] == [
            (33, 33), (0, 0)
        ]  # fmt: skip


def test_what_programs_do_with_files(working: Working) -> None:
    (digest,) = working.out(f"cat > /tmp/program <<'END'\n{PROGRAM}\nEND\npython3 /tmp/program").split()
    tree = working.tree
    large = (tree / "large").read_bytes()
    assert (len(large), hashlib.sha256(large).hexdigest()) == (32 << 20, digest)
    assert (tree / "given").read_text() == "of the host"
    assert os.listxattr(tree / "given") == ["user.kept"]
    assert (tree / "given").stat().st_mtime_ns == 2 * 10**18
    assert stat.S_ISFIFO((tree / "pipe").stat().st_mode)
    assert stat.S_ISSOCK((tree / "socket").stat().st_mode)
    assert not (tree / "gone").exists()
    # What others change is seen at once: nothing is remembered.
    (tree / "given").write_text("changed")
    assert working.out("cat given") == "changed"


def test_what_is_read_is_what_was_written(working: Working) -> None:
    compare_at_random(working.guest, working.tree)


def test_a_project(working: Working) -> None:
    assert working.out(PROJECT).splitlines() == ["OK", "?? __pycache__/"]


def test_steps_are_undone(built_image: Image, tmp_path: Path) -> None:
    bench = Bench(tmp_path, built_image)
    (bench.home / "config.toml").write_text('[vm]\nfilesystem = "9p"\nmode = "ephemeral"\n')
    before = photograph(bench.root)
    command = "rm -rf src; chmod 600 notes; mv link moved; mkdir new; echo made > new/file; exit 7"
    bench.holdfast("run", "--isolation", "vm", "--", "sh", "-c", command, code=7)
    assert sorted(path.name for path in bench.root.iterdir()) == ["moved", "new", "notes"]
    # (9P does not say which process a change is by.)
    assert bench.steps() == [(f"sh -c {command}", "done")]
    bench.holdfast("undo", "--run")
    assert photograph(bench.root) == before


def test_a_share_that_does_not_answer(built_image: Image, tmp_path: Path) -> None:
    need_namespaces()
    share = Share("work", b"/work", kind="9p")
    with Machine.start(plan(built_image, tmp_path, network=NoNetwork(), shares=(share,)), EMULATION) as machine:
        asked = select.poll()
        asked.register(machine.files[0], select.POLLIN)
        assert asked.poll(ANSWER_SECONDS * 1000), machine.console_tail()
        failure = machine.failure()
        assert (failure.code, failure.message[:34]) == ("vm_not_started", "the machine did not come up in time"[:34])
        below = descendants(machine.pid)
        machine.stop(seconds=1)
    wait_until(lambda: all(map(has_ended, below)))


def test_a_kernel_without_9p_is_refused(tmp_path: Path) -> None:
    image = put_image(ImageStore(os.fsencode(tmp_path / "images-home")), "default")
    assert "9p" not in image.manifest.modules
    bench = Bench(tmp_path, image)
    (bench.home / "config.toml").write_text('[vm]\nfilesystem = "9p"\n')
    said = bench.holdfast("run", "--isolation", "vm", "--", "true", code=1).stderr
    assert f"({image.manifest.kernel_release}) has no 9P" in said
    assert "holdfast image build default --kernel linux-image-" in said
