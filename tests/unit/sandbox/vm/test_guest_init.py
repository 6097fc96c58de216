"""The guest's first program, as far as it can be tried outside of a guest."""

from __future__ import annotations

import ast
import base64
import os
import pty
import stat
import struct
import sys
import time
from pathlib import Path

import pytest

from holdfast.sandbox.vm import guest_init, plan

SOURCE = Path(guest_init.__file__).read_text()
PASSWD = "root:x:0:0:root:/root:/bin/bash\ndaemon:*:1:1::/:/usr/sbin/nologin\n"
GROUP = "root:x:0:\nstaff:x:50:\n"


def test_it_is_a_program_for_old_pythons_of_the_standard_library_alone() -> None:
    tree = ast.parse(SOURCE, feature_version=(3, 8))
    loaded = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    }
    assert loaded <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("user", "passwd", "group"),
    [
        (
            {"name": "me", "uid": 1000, "gid": 1000},
            PASSWD + "me:*:1000:1000::/home/x:{shell}\n",
            GROUP + "me:*:1000:\n",
        ),
        # A name or a group that another account has, and numbers that are there already.
        (
            {"name": "daemon", "uid": 1000, "gid": 50},
            PASSWD + "daemon-1000:*:1000:50::/home/x:{shell}\n",
            GROUP,
        ),
        (
            {"name": "staff", "uid": 1000, "gid": 60},
            PASSWD + "staff:*:1000:60::/home/x:{shell}\n",
            GROUP + "staff-60:*:60:\n",
        ),
        ({"name": "me", "uid": 0, "gid": 0}, PASSWD.replace(":/root:", ":/home/x:"), GROUP),
    ],
)
def test_the_user_has_an_account(user: dict[str, object], passwd: str, group: str) -> None:
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    assert guest_init.accounts(PASSWD, GROUP, user, "/home/x") == (passwd.replace("{shell}", shell), group)


@pytest.mark.parametrize("answer", [b"1700000000.250000\n", b""])
def test_the_clock_is_what_is_answered_at_the_console(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[int, float]] = []
    monkeypatch.setattr("time.clock_settime", lambda *given: found.append(given))
    monkeypatch.setattr(guest_init, "TIME_SECONDS", 30.0 if answer else 0.0)
    ours, console = pty.openpty()
    os.write(ours, answer)
    guest_init.set_clock(os.ttyname(console))
    assert found == ([(time.CLOCK_REALTIME, 1700000000.25)] if answer else [])
    said = b""
    while not said.endswith(plan.TIME_QUESTION + b"\r\n"):
        said += os.read(ours, 100)
    for fd in (ours, console):
        os.close(fd)


def test_the_machine_knows_its_own_name() -> None:
    assert guest_init.hosts("", "box") == "127.0.0.1 localhost\n::1 localhost\n127.0.1.1 box\n"
    known = "127.0.0.1 localhost box # other\n"
    assert guest_init.hosts(known, "box") == known
    assert guest_init.hosts(known, "other") == known + "127.0.1.1 other\n"


def test_structures_of_the_kernel() -> None:
    route = guest_init.default_route("10.0.2.2")
    word = struct.calcsize("L")
    assert len(route) == {8: 114, 4: 62}[word]
    assert route[word + 16 : word + 32] == struct.pack("HH4s8x", 2, 0, bytes((10, 0, 2, 2)))
    assert route[word + 48 : word + 50] == struct.pack("H", 3)


def test_files_are_put_in_place_of_whatever_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest_init, "FOLDER", str(tmp_path))
    home = tmp_path / "home"
    (tmp_path / "outside").write_text("kept")
    (home / "d").mkdir(parents=True)
    (home / "d/link").symlink_to(tmp_path / "outside")
    for name in ("new/deep/file", "d/link"):
        (tmp_path / "0").write_bytes(b"content")
        path = base64.b64encode(bytes(home / name)).decode()
        guest_init.place_file({"source": "0", "path": path, "mode": 0o640}, bytes(home), os.getuid(), os.getgid())
        found = (home / name).lstat()
        assert stat.S_ISREG(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o640
        assert (home / name).read_bytes() == b"content"
        assert not (tmp_path / "0").exists()
    assert (tmp_path / "outside").read_text() == "kept"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give directories to another user")
def test_only_directories_in_the_home_are_the_user_s(tmp_path: Path) -> None:
    home = tmp_path / "home/me"
    guest_init.make_directories(bytes(home / "work/tree"), bytes(home), 1234, 1235)
    guest_init.make_directories(bytes(tmp_path / "home/me-too"), bytes(home), 1234, 1235)
    owners = {str(path.relative_to(tmp_path)): path.stat().st_uid for path in (tmp_path / "home").rglob("*")}
    assert owners == {"me": 1234, "me/work": 1234, "me/work/tree": 1234, "me-too": 0} or owners == {
        "home/me": 1234,
        "home/me/work": 1234,
        "home/me/work/tree": 1234,
        "home/me-too": 0,
    }
    assert (tmp_path / "home").stat().st_uid == 0
