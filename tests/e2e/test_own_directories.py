"""A home that lies where somebody works: out of reach by either protocol, whatever name it is called by (I7, I14)."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

import holdfast
from holdfast.processes.process_tree import descendants

from .frontend import Frontend
from .mcp_client import Place, call, refused, run
from .test_supervisor_runs import wait_until


class Nested(Place):
    """A workspace with its home in it, and links that lead there."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.home = self.tree / "deep/.hf"
        (self.tree / "deep").mkdir()
        with holdfast.init(self.tree, home=self.home):
            pass
        (self.tree / "way").symlink_to("deep/.hf")
        (self.tree / "file").symlink_to("deep/.hf/catalog.db")


@pytest.fixture(name="nested")
def _nested(tmp_path: Path) -> Generator[Nested]:
    before = set(descendants(os.getpid()))
    nested = Nested(tmp_path)
    yield nested
    wait_until(lambda: set(descendants(os.getpid())) <= before)
    with holdfast.open_home(nested.home) as home:
        assert home.verify().ok


@pytest.mark.parametrize("kept", [False, True], ids=["without a keeper", "with one"])
def test_a_model_neither_sees_nor_changes_the_home_in_its_workspace(nested: Nested, kept: bool) -> None:
    async def work() -> None:
        async with nested.client() as client:
            if kept:
                await call(client, "execute_command", command="true")
            for path in ("deep/.hf/catalog.db", "way/catalog.db", "file", str(nested.home / "catalog.db")):
                assert await refused(client, "read_file", path=path) == "escape"
                assert await refused(client, "write_file", path=path, content="x") == "escape"
                assert await refused(client, "edit_file", path=path, old_text="SQLite", new_text="x") == "escape"
            assert await refused(client, "write_file", path="deep/.hf/a/b/c", content="x") == "escape"
            for path in ("deep/.hf", "way", "deep/.hf/workspaces"):
                assert await refused(client, "list_directory", path=path) == "escape"
                assert await refused(client, "execute_command", command="true", cwd=path) == "escape"
            listed = await call(client, "list_directory", path="deep")
            assert (listed["entries"], listed["total"]) == ([], 0)
            assert (await call(client, "write_file", path="deep/f", content="x"))["step"]["paths"] == 1

    run(work)


def test_a_read_only_directory_is_not_the_home_nor_shows_it(tmp_path: Path) -> None:
    tree, home = tmp_path / "tree", tmp_path / "around/home"
    tree.mkdir()
    with holdfast.init(tree, home=home):
        pass
    (tmp_path / "link").symlink_to(home)
    client = Frontend(tree, home)
    client.ask("hello", versions=[1])
    for path in (home, home / "workspaces", tmp_path / "link"):
        both = [{"path": str(tree)}, {"path": str(path), "access": "read_only"}]
        assert client.refused("session.start", working_directories=both)["code"] == "escape"
    both = [{"path": str(tree)}, {"path": str(tmp_path / "around"), "access": "read_only"}]
    client.ask("session.start", working_directories=both)
    assert "home" not in [entry["name"] for entry in client.ask("fs.list", directory=1)["entries"]]
    for path in ("home/catalog.db", "home/../home/catalog.db"):
        assert client.refused("fs.read", directory=1, path=path)["code"] == "escape"
    assert client.refused("fs.list", directory=1, path="home")["code"] == "escape"
    assert client.end() == 0
    client = Frontend(tree, home)
    client.begin({"path": "/", "access": "read_only"})
    assert client.refused("fs.read", path=str(home / "catalog.db").lstrip("/"))["code"] == "escape"
    assert client.end() == 0


def test_a_command_runs_where_a_link_leads_unless_that_is_outside(nested: Nested) -> None:
    """I7: by both protocols."""
    (nested.tree / "deep/inner").mkdir()
    (nested.tree / "in").symlink_to("deep/inner")
    (nested.tree / "out").symlink_to(nested.base)

    async def work() -> None:
        async with nested.client() as client:
            for path in ("in", "deep/../in", str(nested.tree / "in")):
                done = await call(client, "execute_command", command="pwd -P", cwd=path)
                assert done["stdout"] == f"{nested.tree}/deep/inner\n"
            assert await refused(client, "execute_command", command="touch here", cwd="out") == "escape"
            assert await refused(client, "execute_command", command="true", cwd="none") == "no_directory"

    run(work)
    client = Frontend(nested.tree, nested.home)
    client.begin()
    for path in ("out", "..", "deep/../..", "/"):
        assert client.refused("agent.execute", command="touch here", cwd=path)["code"] == "escape"
    assert client.ask("agent.execute", command="touch here", cwd="in")["changed"] == 1
    assert client.end() == 0
    assert (nested.tree / "deep/inner/here").exists()
    assert not (nested.base / "here").exists()
