"""An agent that speaks nothing but the Model Context Protocol does real work, and everything is taken back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from holdfast.testing.tree_state import differences, photograph

from .frontend import Frontend
from .mcp_client import Place, call, run, text, until

PROJECT = Path(__file__).parents[2]

MODULE = """def slug(text):
    return text.lower().replace(" ", "_")
"""
TESTS = """import unittest
from shop.names import slug

class Names(unittest.TestCase):
    def test_slug(self):
        self.assertEqual(slug("Two Words"), "two-words")
"""
MAKEFILE = """PREFIX = /usr/local
install:
\tmkdir -p $(PREFIX)/lib
\tcp -r shop $(PREFIX)/lib/
\tprintf '#!/bin/sh\\nPYTHONPATH=%s exec \"$$PYTHON\" -c \"$$@\"\\n' '$(abspath $(PREFIX))/lib' > $(PREFIX)/run
\tchmod +x $(PREFIX)/run
"""


def git(directory: Path, *words: str) -> None:
    settings = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *settings, *words], cwd=directory, check=True, capture_output=True)


@pytest.fixture(name="origin")
def _origin(tmp_path: Path) -> Path:
    """A repository with a history, and a test that fails."""
    origin = tmp_path / "origin"
    (origin / "shop").mkdir(parents=True)
    git(origin, "init")
    (origin / ".gitignore").write_text("__pycache__/\nbuild/\n")
    (origin / "Makefile").write_text(MAKEFILE)
    for number in range(80):
        (origin / "shop" / f"part{number}.py").write_text(f"NUMBER = {number}\n")
    git(origin, "add", "-A")
    git(origin, "commit", "-m", "parts")
    (origin / "shop" / "names.py").write_text(MODULE)
    (origin / "test_names.py").write_text(TESTS)
    git(origin, "add", "-A")
    git(origin, "commit", "-m", "names")
    return origin


def test_an_agent_works_breaks_things_and_nothing_is_lost(tmp_path: Path, origin: Path) -> None:
    """I1, I9, I15: a frontend answers its safeguards over the other face; the first no, the second yes."""
    place = Place(tmp_path)
    (place.tree / "notes.txt").write_text("mine\n")
    before = photograph(place.tree)
    frontend = Frontend(place.tree, place.home)
    frontend.begin(guard=True)
    waits: list[str] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        if message and message.startswith("waiting for a person"):
            waits.append(message)

    async def work() -> None:
        async with place.client("--guard") as client:

            async def shell(command: str, code: int = 0, **more: Any) -> dict[str, Any]:
                value = await call(client, "execute_command", command=command, **more)
                assert value["exit_code"] == code, value
                return value

            await shell(f"git clone -q {origin} work && cd work && git checkout -q -b fix")
            # (What was compiled is taken for current after an edit of the same size in the same second.)
            unit = f"{sys.executable} -B -m unittest -q test_names"
            failed = await shell(unit, cwd="work", code=1)
            assert "two_words" in failed["stderr"]
            source = await call(client, "read_file", path="work/shop/names.py")
            edit = {"path": "work/shop/names.py", "old_text": '"_"', "new_text": '"-"'}
            assert source["content"].count(edit["old_text"]) == 1
            await call(client, "edit_file", **edit)
            await shell(unit, cwd="work")
            await shell("make install PREFIX=build", cwd="work")
            installed = "from shop.names import slug; print(slug('Two Words'))"
            tried = await shell('work/build/run "$CODE"', environment={"CODE": installed, "PYTHON": sys.executable})
            assert tried["stdout"] == "two-words\n"
            await shell("git -c user.name=A -c user.email=a@example.org commit -qam fixed", cwd="work")
            await call(client, "checkpoint", label="fixed", message="the test passes")
            fixed = photograph(place.tree)

            async def held(command: str, answer: str) -> Any:
                """A command that a safeguard holds until the frontend has answered."""
                results: list[Any] = []
                count, since = len(waits), len(frontend.messages)

                def confirm() -> None:
                    asked = frontend.event("safeguard_triggered", since)
                    assert asked["command"] == ["sh", "-c", command]
                    assert f"allow {asked['safeguard_id'].split('-')[1]}`" in waits[-1]
                    frontend.ask("safeguard.confirm", safeguard_id=asked["safeguard_id"], action=answer)

                async def execute() -> None:
                    arguments = {"command": command, "cwd": "work"}
                    results.append(await client.call_tool("execute_command", arguments, progress_callback=note))

                async with anyio.create_task_group() as group:
                    group.start_soon(execute)
                    await until(lambda: len(waits) > count)
                    await anyio.to_thread.run_sync(confirm)
                return results[0]

            denied = await held("rm -rf shop .git && touch gone", "deny")
            assert denied.structured_content["denied"]
            assert "denied" in text(denied)
            assert not (place.tree / "work" / "gone").exists()
            assert differences(fixed, photograph(place.tree)) == []

            allowed = await held("rm -rf shop .git", "allow")
            assert not allowed.structured_content["denied"]
            assert os.listdir(place.tree / "work" / ".git") == [] if (place.tree / "work" / ".git").exists() else True
            assert (await call(client, "diff", base="fixed", format="names"))["total"] == 81
            assert (await call(client, "undo"))["steps"] == [allowed.structured_content["step"]["id"]]
            assert differences(fixed, photograph(place.tree)) == []
            await shell(unit, cwd="work")
            forked = await call(client, "fork", name="attempt", checkpoint="fixed")
            assert (Path(forked["path"]) / "work/shop/names.py").read_text() == MODULE.replace('"_"', '"-"')

            history = await call(client, "get_undo_history", limit=1000)
            done = [step for step in history["steps"] if step["state"] == "done"]
            assert len(done) >= 3
            undone = await call(client, "undo", count=len(done))
            assert undone["totals"]["steps"] == len(done)
            assert differences(before, photograph(place.tree)) == []

    try:
        run(work)
    finally:
        frontend.end()


def test_the_example_runs(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    environment = {**os.environ, "HOLDFAST_HOME": str(tmp_path / "home"), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(PROJECT / "examples" / "mcp_client.py"), str(tmp_path / "tree")],
        capture_output=True,
        check=False,
        text=True,
        env=environment,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "3 notes/plan.txt" in done.stdout
    assert "measure three times\n" in done.stdout
    assert os.listdir(tmp_path / "tree") == []
