"""A session over STDIO whose commands run in virtual machines, one for each directory that may be written to."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast.sandbox.images.manifest import Image

from .test_run_in_machine import Bench

pytestmark = pytest.mark.slow


class Frontend:
    """A client of ``holdfast stdio``."""

    def __init__(self, bench: Bench) -> None:
        self._process = subprocess.Popen(
            bench.words("stdio"),
            cwd=bench.root,
            env=bench.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._asked = 0
        self.output = ""
        self.ask("hello", versions=[1])

    def ask(self, kind: str, **payload: object) -> dict[str, Any]:
        """The payload of the answer; what commands write meanwhile is in `output`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._asked += 1
        message = {"type": kind, "request_id": str(self._asked), "payload": payload}
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        self.output = ""
        while True:
            got = json.loads(self._process.stdout.readline())
            if got["type"] == "event.terminal_output":
                self.output += got["payload"]["data"]
            if got.get("request_id") == str(self._asked):
                assert got["status"] == "ok", got
                return got["payload"]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        assert self._process.wait(120) == 0
        self._process.stdout.close()


def test_each_directory_has_a_machine_that_sees_the_others(tmp_path: Path, built_image: Image) -> None:
    bench, other = Bench(tmp_path, built_image), tmp_path / "other"
    other.mkdir()
    (other / "shown").write_text("of the other directory\n")
    frontend = Frontend(bench)
    begun = frontend.ask(
        "session.start",
        working_directories=[{"path": str(bench.root)}, {"path": str(other), "access": "read_only"}],
        isolation={"level": "vm", "network": "disabled"},
        vm_mode="ephemeral",
    )
    machine = begun["directories"][0]["machine"]
    assert (machine["accelerator"] in ("tcg", "kvm"), machine["filesystem"], machine["persistent"]) == (
        True, "virtiofs", False
    )  # fmt: skip
    assert machine["memory_bytes"] > 50 << 20
    done = frontend.ask(
        "agent.execute", command=f"cat {other}/shown; rm -rf src; touch {other}/made; ls /sys/class/net"
    )
    assert done["changed"] == 2
    assert frontend.output.splitlines()[0] == "of the other directory"
    assert "Read-only file system" in frontend.output
    assert frontend.output.splitlines()[-1] == "lo"
    assert not (bench.root / "src").exists()
    assert sorted(path.name for path in other.iterdir()) == ["shown"]
    assert frontend.ask("agent.execute", command="(sleep 2; echo late > late) & exit 5")["exit_code"] == 5
    frontend.ask("agent.execute", command="while ! [ -e late ]; do sleep 0.1; done; echo more >> notes")
    undone = frontend.ask("undo.rollback", steps=1)
    # (What an earlier command has left running goes on; what it does meanwhile is put down to the command that runs.)
    assert (undone["written"], undone["deleted"]) == (["notes"], ["late"])
    frontend.ask("session.stop")
    assert bench.machines() == []
    frontend.close()
