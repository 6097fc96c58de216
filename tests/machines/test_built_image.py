"""An image of Debian's packages is built, and starts by emulation: its first program hands over to the host's."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.sandbox.images import cpio
from holdfast.sandbox.images.debian_builder import DEFAULT_PACKAGES
from holdfast.sandbox.images.kernel_image import boots_by_pvh
from holdfast.sandbox.images.manifest import Image

EMULATORS = {
    "x86_64": ("qemu-system-x86_64", "q35", "ttyS0"),
    "aarch64": ("qemu-system-aarch64", "virt", "ttyAMA0"),
}
SECONDS = 300

pytestmark = pytest.mark.slow

REPORT = b"""
import ctypes, json, os, sys
def read(path):
    return open(path).read()
def there(*names):
    return [name for name in names if os.path.exists(name)]
print("GUEST " + json.dumps({
    "pid": os.getpid(),
    "version": list(sys.version_info[:2]),
    "plan": json.loads(read("/run/holdfast/plan.json")),
    "mounts": {line.split()[1]: line.split()[2] for line in open("/proc/mounts")},
    "built": read("/etc/holdfast-test"),
    "kept": os.path.exists("/kept"),
    "streams": [os.path.realpath(f"/proc/self/fd/{number}") for number in range(3)],
    "programs": there("/usr/bin/git", "/usr/bin/ip", "/usr/bin/sudo", "/usr/bin/ps"),
    "root": oct(os.stat("/").st_mode),
    "names": there("/etc/hostname", "/etc/resolv.conf"),
}), flush=True)
with open("/kept", "w") as kept:
    kept.write("x")
os.sync()
os.system("mount -o remount,ro /")
ctypes.CDLL(None).reboot(0x4321FEDC)
"""


class Machine:
    """Starts an image with a program of ours."""

    def __init__(self, image: Image, folder: Path) -> None:
        self._image = image
        self._folder = folder

    def run(self, *members: cpio.Member, disk: Path | None = None, root: bool = True) -> str:
        """What it has said on its console, when it has powered itself off."""
        emulator, machine, console = EMULATORS[platform.machine()]
        if shutil.which(emulator) is None:
            pytest.skip(f"{emulator} is not installed")
        initrd = self._folder / "initrd"
        initrd.write_bytes(Path(os.fsdecode(self._image.initrd)).read_bytes() + cpio.encode(members))
        drives = [(self._image.root, "root", "on")] if root else []
        drives += [(os.fsencode(disk), "disk", "off")] if disk else []
        words: list[str | bytes] = [emulator, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]
        words += ["-machine", machine, "-accel", "tcg", "-cpu", "max", "-m", "256", "-serial", "stdio"]
        for path, serial, read_only in drives:
            words += [
                "-drive",
                b"if=none,format=raw,id=%s,readonly=%s,file=%s" % (serial.encode(), read_only.encode(), path),
            ]
            words += ["-device", f"virtio-blk-pci,drive={serial},serial={serial}"]
        words += ["-kernel", self._image.kernel, "-initrd", os.fsencode(initrd)]
        words += ["-append", f"console={console} quiet panic=-1"]
        done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, timeout=SECONDS, check=True)
        return done.stdout.decode("utf-8", "replace").replace("\r\n", "\n")

    def report(self, *, disk: Path | None = None) -> dict[str, object]:
        """What the guest says of itself."""
        said = self.run(
            cpio.directory(b"holdfast"),
            cpio.file(b"holdfast/plan.json", b'{"version": 1}'),
            cpio.file(b"holdfast/guest_init.py", REPORT),
            disk=disk,
        )
        lines = [line.removeprefix("GUEST ") for line in said.splitlines() if line.startswith("GUEST ")]
        assert len(lines) == 1, said
        return json.loads(lines[0])


@pytest.fixture
def machine(built_image: Image, tmp_path: Path) -> Machine:
    return Machine(built_image, tmp_path)


def test_what_is_known_of_it(built_image: Image) -> None:
    about = built_image.manifest
    assert about.packages == DEFAULT_PACKAGES
    assert about.python == "/usr/bin/python3"
    assert about.kernel_package.partition("=")[0] == f"linux-image-{about.kernel_release}"
    if about.architecture == "amd64":
        assert boots_by_pvh(Path(os.fsdecode(built_image.kernel)).read_bytes())


def test_it_starts_the_hosts_program(machine: Machine) -> None:
    said = machine.report()
    mounts = said.pop("mounts")
    assert isinstance(mounts, dict)
    assert {path: mounts[path] for path in ("/", "/run", "/dev", "/proc", "/sys")} == {
        "/": "overlay",
        "/run": "tmpfs",
        "/dev": "devtmpfs",
        "/proc": "proc",
        "/sys": "sysfs",
    }
    version = said.pop("version")
    assert isinstance(version, list)
    assert version >= [3, 8]
    assert said == {
        "pid": 1,
        "plan": {"version": 1},
        "built": "built\n",
        "kept": False,
        "streams": ["/dev/console"] * 3,
        "programs": ["/usr/bin/git", "/usr/bin/ip", "/usr/bin/sudo", "/usr/bin/ps"],
        "root": "0o40755",
        "names": [],
    }


def test_a_disk_keeps_what_is_written(machine: Machine, tmp_path: Path) -> None:
    if shutil.which("mke2fs") is None:
        pytest.skip("mke2fs (e2fsprogs) is not installed")
    disk = tmp_path / "disk"
    subprocess.run(["mke2fs", "-q", "-t", "ext4", disk, "64M"], check=True)
    assert [machine.report(disk=disk)["kept"] for _ in range(2)] == [False, True]


def test_what_is_missing_is_said_on_the_console(machine: Machine) -> None:
    assert "holdfast: the host has given no program to start\n" in machine.run()
    assert "holdfast: there is no disk with the serial number root\n" in machine.run(root=False)
