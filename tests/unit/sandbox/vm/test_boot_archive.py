"""What is appended to an image's first file system."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.sandbox.images import cpio
from holdfast.sandbox.policy import NoNetwork, OpenNetwork, parse_network
from holdfast.sandbox.vm.boot_archive import boot_archive, joined
from holdfast.sandbox.vm.plan import BootPlan, GuestFile, GuestUser, Share

BOOT = BootPlan(
    GuestUser("ü", 1000, 1001, b"/home/\xff"), "name", {"A": "ö"}, (GuestFile(b"/etc/\xfe", b"secret", 0o600),)
)


def entries(archive: bytes) -> dict[str, tuple[int, bytes]]:
    """Mode and content by name, as the kernel reads them."""
    found: dict[str, tuple[int, bytes]] = {}
    at = 0
    while True:
        assert archive[at : at + 6] == b"070701"
        fields = [int(archive[at + 6 + 8 * n : at + 14 + 8 * n], 16) for n in range(13)]
        name = archive[at + 110 : at + 110 + fields[11] - 1].decode()
        content_at = (at + 110 + fields[11] + 3) // 4 * 4
        assert fields[2:4] == [0, 0]
        if name == "TRAILER!!!":
            return found
        found[name] = (fields[1], archive[content_at : content_at + fields[6]])
        at = (content_at + fields[6] + 3) // 4 * 4


def test_what_the_guest_is_told() -> None:
    shares = (Share("t", b"/work/\xfd", read_only=True), Share("u", b"/u", kind="9p"), Share("v", b"/v", kind="9p"))
    found = entries(boot_archive(BOOT, shares, OpenNetwork(), init=b"init", shim=b"shim"))
    assert {name: oct(mode) for name, (mode, _) in found.items()} == {
        "holdfast": "0o40755",
        "holdfast/files": "0o40755",
        "holdfast/plan.json": "0o100600",
        "holdfast/guest_init.py": "0o100600",
        "holdfast/shim.py": "0o100644",
        "holdfast/files/0": "0o100600",
    }
    assert found["holdfast/files/0"][1] == b"secret"
    assert (found["holdfast/guest_init.py"][1], found["holdfast/shim.py"][1]) == (b"init", b"shim")

    def text(path: bytes) -> str:
        return base64.b64encode(path).decode()

    def by_9p(port: int) -> str:
        return f"trans=tcp,port={port},version=9p2000.L,msize=131072,cache=none,access=user"

    assert json.loads(found["holdfast/plan.json"][1]) == {
        "version": 1,
        "hostname": "name",
        "user": {"name": "ü", "uid": 1000, "gid": 1001, "home": text(b"/home/\xff")},
        "mounts": [
            {"source": "t", "path": text(b"/work/\xfd"), "type": "virtiofs", "read_only": True, "options": ""},
            {"source": "10.0.2.100", "path": text(b"/u"), "type": "9p", "read_only": False, "options": by_9p(5641)},
            {"source": "10.0.2.100", "path": text(b"/v"), "type": "9p", "read_only": False, "options": by_9p(5642)},
        ],
        "network": {"mode": "open", "dns": ["10.0.2.3"]},
        "environment": {"A": "ö"},
        "files": [{"source": "files/0", "path": text(b"/etc/\xfe"), "mode": 0o600}],
    }


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (NoNetwork(), {"mode": "disabled", "dns": []}),
        (parse_network("allow", ["192.0.2.1"]), {"mode": "allow", "dns": []}),
        (parse_network("allow", [], ["127.0.0.53"]), {"mode": "allow", "dns": ["10.0.2.3"]}),
        (
            parse_network("allow", [], ["2001:db8::1", "192.0.2.1", "192.0.2.2", "127.0.0.1"]),
            {"mode": "allow", "dns": ["10.0.2.3", "192.0.2.2"]},
        ),
    ],
)
def test_the_network(network: NoNetwork, said: dict[str, object]) -> None:
    archive = boot_archive(BOOT, (), network, init=b"", shim=b"")
    assert json.loads(entries(archive)["holdfast/plan.json"][1])["network"] == said


def test_a_network_for_the_shares_alone() -> None:
    archive = boot_archive(BOOT, (Share("t", b"/t", kind="9p"),), NoNetwork(), init=b"", shim=b"")
    assert json.loads(entries(archive)["holdfast/plan.json"][1])["network"] == {"mode": "shares", "dns": []}


@pytest.mark.skipif(shutil.which("cpio") is None, reason="needs cpio")
def test_cpio_unpacks_it(tmp_path: Path) -> None:
    members = [cpio.directory(b"d"), cpio.file(b"d/file", b"12345", 0o640), cpio.file(b"d/empty", b"", 0o600)]
    archive = cpio.encode(members)
    assert len(archive) % 4 == 0
    assert joined(b"12345", archive) == b"12345\0\0\0" + archive
    subprocess.run(["cpio", "-i", "--quiet", "-H", "newc"], input=archive, cwd=tmp_path, check=True)
    assert (tmp_path / "d/file").read_bytes() == b"12345"
    assert (tmp_path / "d/file").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "d/empty").read_bytes() == b""
