"""How much is worked on at a time for all clients together."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from holdfast.api.mcp._shared_host import MOST_AT_ONCE, SharedHost
from holdfast.engine.hosting.host import Host
from holdfast.engine.hosting.working_directory import DirectorySpec
from holdfast.model.errors import RefusedError


@asynccontextmanager
async def opened(tmp_path: Path) -> AsyncGenerator[SharedHost]:
    given = DirectorySpec(os.fsencode(tmp_path), access="read_only")
    home = os.fsencode(tmp_path.with_name("home"))
    host = SharedHost(lambda notify: Host([given], home=home, notify=notify), forks=None)
    yield host
    await host.close()


def test_so_many_calls_look_at_a_time_also_if_their_clients_do_not_wait(tmp_path: Path) -> None:
    go_on = threading.Event()
    running: set[int] = set()

    async def work() -> None:
        async with opened(tmp_path) as host:
            done: list[int] = []

            async def call(number: int) -> None:
                def look() -> int:
                    running.add(number)
                    go_on.wait(60)
                    return number

                done.append(await host.look(look))

            async with anyio.create_task_group() as given_up:
                for number in range(MOST_AT_ONCE + 5):
                    given_up.start_soon(call, number)
                while len(running) < MOST_AT_ONCE:
                    await anyio.sleep(0)
                given_up.cancel_scope.cancel()
            async with anyio.create_task_group() as others:
                for number in range(100, 110):
                    others.start_soon(call, number)
                await anyio.wait_all_tasks_blocked()
                assert running == set(range(MOST_AT_ONCE))
                go_on.set()
            assert sorted(done) == list(range(100, 110))
            assert len(running) == MOST_AT_ONCE + 10

    anyio.run(work)


@pytest.mark.parametrize("path", ["tree", "tree/fk/forks", "link/forks", "tree/out"])
def test_forks_are_written_to_no_working_directory(tmp_path: Path, path: str) -> None:
    """A command could put a link in the place of one."""
    (tmp_path / "tree/fk").mkdir(parents=True)
    (tmp_path / "link").symlink_to("tree/fk")
    (tmp_path / "tree/out").symlink_to(tmp_path)
    given = DirectorySpec(os.fsencode(tmp_path / "tree"), access="read_only")
    home = os.fsencode(tmp_path / "home")

    async def work() -> None:
        SharedHost(lambda notify: Host([given], home=home, notify=notify), forks=os.fsencode(tmp_path / path))

    with pytest.raises(RefusedError, match="working directory"):
        anyio.run(work)


def test_what_a_look_raises_its_caller_gets(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as host:

            def look() -> None:
                raise KeyError("x")

            try:
                await host.look(look)
            except KeyError as error:
                assert error.args == ("x",)
            else:
                raise AssertionError

    anyio.run(work)
