"""A session whose commands run in a virtual machine that stays between them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.sandbox.images.manifest import Image
from holdfast.testing.tree_state import photograph

from ..waiting import wait_until
from .test_run_in_machine import Bench

pytestmark = pytest.mark.slow


@pytest.fixture(name="bench")
def _bench(tmp_path: Path, built_image: Image) -> Iterator[Bench]:
    made = Bench(tmp_path, built_image)
    yield made
    made.holdfast("session", "stop", code=None)  # (a machine goes on after a test that has failed)


def test_one_machine_for_many_commands(bench: Bench) -> None:
    def out(command: str, code: int = 0) -> str:
        return bench.holdfast("session", "exec", command, code=code).stdout

    before = photograph(bench.root)
    said = bench.holdfast("session", "start", "one", "--isolation", "vm").stdout
    assert said == f"Session one works in {bench.root}, with bash in a virtual machine.\n"
    (machine,) = bench.machines()
    about = f"image default, {'KVM' if machine['accelerator'] == 'kvm' else 'emulated'}, files by virtiofs, "
    assert f"machine      {about}" in bench.holdfast("session", "info").stdout
    shown = bench.json("session", "info")["machine"]
    assert isinstance(shown, dict)
    assert shown | {"memory_bytes": machine["memory_bytes"]} == machine
    # The shell goes on, and so does the machine, with what is running there and what is on its disk.
    assert out("pwd; cat notes; echo ${GREETING-none}") == f"{bench.root}\nto keep\nnone\n"
    assert out("cd src; export KEPT='a\nb'; sudo touch /of-root; sleep 1000 & exit 3", code=3) == ""
    assert out('pwd; echo "$KEPT"; pgrep -x sleep | wc -l; ls /of-root') == f"{bench.root}/src\na\nb\n1\n/of-root\n"
    out("cd /var/tmp")
    assert out("pwd") == "/var/tmp\n"
    assert [each | {"memory_bytes": machine["memory_bytes"]} for each in bench.machines()] == [machine]
    # Each command is a step.
    out(f"rm -rf {bench.root}/src; echo changed > {bench.root}/notes; kill %% 2>/dev/null; true")
    out(f"touch {bench.root}/another")
    assert [state for _, state in bench.steps()] == ["done", "done"]
    bench.holdfast("undo")
    assert not (bench.root / "another").exists()
    bench.holdfast("undo")
    assert photograph(bench.root) == before
    assert out(f"cat {bench.root}/src/main.py") == "print('hello')\n"
    # Input, and what is too slow.
    assert bench.start("session", "exec", "cat").communicate("given\n")[0] == "given\n"
    bench.holdfast("session", "exec", "--timeout", "1", "sleep 2000", code=143)
    # A client that is killed leaves nothing running, and the next one finds all as it was.
    killed = bench.start("session", "exec", f"touch {bench.root}/begun; exec sleep 2000")
    wait_until((bench.root / "begun").exists, limit=300)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert out("pwd; pgrep -f 'sleep 2000' | grep -v $$ | wc -l") == "/var/tmp\n0\n"
    for words in (
        ("experiment", "true", "false"),
        ("session", "bisect", "--good", "@-", "true"),
        ("session", "start", "two", "--isolation", "namespace"),
    ):
        assert "virtual machine" in bench.holdfast(*words, code=1).stderr
    # The end.
    assert bench.holdfast("session", "stop").stdout.startswith("Stopped the virtual machine of one;")
    assert bench.machines() == []
    assert not Path(f"/proc/{machine['pid']}").exists()
    assert bench.holdfast("session", "stop").stdout == "No virtual machine of one runs.\n"
    assert "machine      none runs now; the next" in bench.holdfast("session", "info").stdout
    bench.holdfast("session", "delete", "one")
    assert os.listdir(bench.home / "sessions" / "local") == []
    # Without an image there is no session.
    (bench.home / "config.toml").write_text('[vm]\nimage = "none"\n')
    assert "none" in bench.holdfast("session", "start", "two", "--isolation", "vm", code=3).stderr
    assert bench.json("session", "list")["sessions"] == []


def test_a_fork_has_a_machine_of_its_own(bench: Bench) -> None:
    bench.holdfast("session", "start", "one", "--isolation", "vm")
    bench.holdfast("session", "exec", "cd src; export KEPT=yes; echo one >name; sudo touch /of-one")
    (one,) = bench.machines()
    bench.holdfast("session", "fork", "two")
    assert bench.json("session", "info", "-s", "two")["machine"] is None
    said = bench.holdfast(
        "session", "exec", "-s", "two", "pwd; echo $KEPT; cat name; ls /of-one; echo two >name", code=0
    )
    fork = bench.json("session", "info", "-s", "two")
    assert said.stdout == f"{fork['root']}/src\nyes\none\n"
    assert "/of-one" in said.stderr
    machine = fork["machine"]
    assert isinstance(machine, dict)
    assert machine["pid"] != one["pid"]
    assert [each["pid"] for each in bench.machines()] == [one["pid"]]  # (of this workspace)
    assert bench.holdfast("session", "exec", "-s", "one", "cat name").stdout == "one\n"
    # Its machine ends with it, and the other goes on.
    bench.holdfast("session", "delete", "two", "--yes")
    assert not Path(f"/proc/{machine['pid']}").exists()
    assert not Path(str(fork["root"])).exists()
    assert bench.holdfast("session", "exec", "-s", "one", "ls /of-one").stdout == "/of-one\n"
