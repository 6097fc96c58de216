"""A model's commands in a virtual machine: ``holdfast mcp --isolation vm``, asked by the official client."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

from holdfast.sandbox.images.manifest import Image
from holdfast.testing.tree_state import photograph

from ..e2e.mcp_client import call
from .test_run_in_machine import SECONDS, Bench

pytestmark = pytest.mark.slow


@pytest.fixture(name="bench")
def _bench(tmp_path: Path, built_image: Image) -> Bench:
    return Bench(tmp_path, built_image)


def test_commands_run_in_one_machine_and_are_undone(bench: Bench) -> None:
    before = photograph(bench.root)
    program, *arguments = bench.words("-w", str(bench.root), "mcp", "--isolation", "vm")
    server = StdioServerParameters(command=program, args=arguments, env=bench.environment)

    async def work() -> None:
        async with Client(server, read_timeout_seconds=SECONDS) as client:
            installed = "hostname; sudo touch /installed; mkdir made; ln -s ../notes made/link; rm -rf src; exit 3"
            first = await call(client, "execute_command", command=installed)
            assert (first["exit_code"], first["stdout"], first["stderr"]) == (3, "holdfast\n", "")
            assert [each["path"] for each in first["step"]["changes"]] == ["made", "made/link", "src", "src/main.py"]
            (machine,) = bench.machines()
            await call(client, "write_file", path="made/by-tool", content="from the tool\n")
            second = await call(client, "execute_command", command="ls /installed; cat by-tool", cwd="made")
            assert second["stdout"] == "/installed\nfrom the tool\n"
            assert [each["pid"] for each in bench.machines()] == [machine["pid"]]
            for _ in range(2):
                await call(client, "undo")
            assert photograph(bench.root) == before
            third = await call(client, "execute_command", command="cat src/main.py; ls made")
            assert third["stdout"] == "print('hello')\n"

    anyio.run(work)
    assert bench.machines() == []
    assert photograph(bench.root) == before


def test_a_command_sees_what_was_written_just_before(bench: Bench) -> None:
    program, *arguments = bench.words("-w", str(bench.root), "mcp", "--isolation", "vm")
    server = StdioServerParameters(command=program, args=arguments, env=bench.environment)
    # (It has the guest's kernel remember at each moment what the file is like.)
    looks = "import os, time\nwhile True:\n os.stat('notes')\n time.sleep(0.01)"

    async def work() -> None:
        async with Client(server, read_timeout_seconds=SECONDS) as client:
            await call(client, "execute_command", command=f'python3 -c "{looks}" >/dev/null 2>&1 & sleep 2; cat notes')
            for count in range(1, 9):
                content = count * "longer " + "\n"
                await call(client, "write_file", path="notes", content=content)
                assert (await call(client, "execute_command", command="cat notes"))["stdout"] == content
            await call(client, "undo")
            assert (await call(client, "execute_command", command="cat notes"))["stdout"] == 7 * "longer " + "\n"

    anyio.run(work)
