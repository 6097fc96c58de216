"""Whether calls are carried out natively is said, can be switched off, and changes nothing that a person sees."""

from __future__ import annotations

import importlib.util
import json
import subprocess

import pytest

from holdfast.files.linux.native import SWITCH

from .conftest import Cli


def _natively(bench: Cli) -> int:
    (log,) = bench.home.glob("workspaces/*/undo/keeper.log")
    told = [json.loads(line) for line in log.read_text().splitlines()]
    return sum(line["natively"] for line in told if "natively" in line)


def test_what_a_command_does_is_carried_out_natively_unless_that_is_switched_off(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec("holdfast._hot") is None:
        pytest.skip("it was not built")
    cli.write("kept", "1")
    for switch, is_native in (("1", True), ("0", False)):
        monkeypatch.setenv(SWITCH, switch)
        before = 0 if is_native else _natively(cli)
        command = "for n in 1 2 3 4 5; do : > made$n; done; rm kept made*"
        with cli.start("--log-level", "info", "run", "--", "sh", "-c", command):
            pass
        assert (_natively(cli) > before) == is_native
        assert not (cli.root / "kept").exists()
        cli("undo")
        assert (cli.root / "kept").read_text() == "1"
    with cli.start("doctor", "--json", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        findings = json.load(process.stdout)["findings"]
    assert any("HOLDFAST_NATIVE=0 is set" in finding["message"] for finding in findings)
