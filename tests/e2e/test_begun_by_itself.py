"""What begins to keep something makes a workspace where there is none, by one rule, and says so."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import holdfast

from .conftest import INSTALLED

SAYS = "was in no workspace: now it is one"


class Person:
    """Works in a directory that Holdfast has not met."""

    def __init__(self, place: Path) -> None:
        self.home = place / "home"
        self.tree = place / "tree"
        self.tree.mkdir()
        (self.tree / "file").write_text("content\n")
        self.environment = {**os.environ, "HOLDFAST_HOME": str(self.home), "HOME": str(place / "user")}

    def does(self, *words: str, cwd: Path | None = None, typed: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*INSTALLED, *words],
            cwd=cwd or self.tree,
            env=self.environment,
            input=typed,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def workspaces(self) -> int:
        with holdfast.open_home(self.home) as home:
            return home.stats().workspaces


@pytest.fixture(name="person")
def _person(tmp_path: Path) -> Person:
    return Person(tmp_path)


START = "".join(
    json.dumps({"type": name, "request_id": name, "payload": payload}) + "\n"
    for name, payload in (("hello", {"versions": [1]}), ("session.start", {}))
)
"""What begins work by STDIO; the end of its input ends it."""


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (("checkpoint",), ""),
        (("run", "--", "true"), ""),
        (("session", "start", "one"), ""),
        (("stdio",), START),
        (("mcp",), ""),
    ],
)
def test_the_directory_becomes_a_workspace_and_that_is_said(person: Person, words: tuple[str, ...], typed: str) -> None:
    done = person.does(*words, typed=typed)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(SAYS) == 1, done.stderr
    assert person.workspaces() == 1
    again = person.does(*words[:2], *(["two"] if words[0] == "session" else words[2:]), typed=typed)
    assert (again.returncode, SAYS in again.stderr) == (0, False), again.stderr


def test_import_begins_a_workspace(person: Person, tmp_path: Path) -> None:
    assert person.does("checkpoint").returncode == 0
    assert person.does("export", "@", str(tmp_path / "bundle")).returncode == 0
    (tmp_path / "other").mkdir()
    other = Person(tmp_path / "other")
    done = other.does("import", str(tmp_path / "bundle"))
    assert done.returncode == 0, done.stderr
    assert SAYS in done.stderr
    assert other.workspaces() == 1


@pytest.mark.parametrize(("content", "code"), [(None, 3), (b"no bundle", 5)])
def test_what_is_no_bundle_begins_no_workspace(person: Person, content: bytes | None, code: int) -> None:
    if content is not None:
        (person.tree / "bundle").write_bytes(content)
    done = person.does("import", "bundle")
    assert (done.returncode, SAYS in done.stderr) == (code, False), done.stderr
    assert not person.home.exists()


@pytest.mark.parametrize("words", [("checkpoint",), ("run", "--", "touch", "here"), ("session", "start"), ("mcp",)])
def test_what_init_refuses_is_refused(person: Person, words: tuple[str, ...]) -> None:
    user = Path(person.environment["HOME"])
    user.mkdir()
    done = person.does(*words, cwd=user)
    assert done.returncode == 4
    assert "is your home directory" in done.stderr
    assert "holdfast init --force" in done.stderr
    assert not list(user.iterdir())
    assert person.does("init", "--force", cwd=user).returncode == 0
    assert person.does(*words, cwd=user).returncode == 0


@pytest.mark.parametrize("words", [("log",), ("status",), ("undo",), ("watch", "--stop"), ("session", "exec", "true")])
def test_what_looks_or_goes_back_begins_nothing(person: Person, words: tuple[str, ...]) -> None:
    done = person.does(*words)
    assert done.returncode == 3, done.stderr
    assert not person.home.exists() or person.workspaces() == 0


def test_workspaces_inside_are_named(person: Person) -> None:
    for name in ("a", "b", "c", "d"):
        inside = person.tree / name
        inside.mkdir()
        assert person.does("init", cwd=inside).returncode == 0
    done = person.does("checkpoint")
    assert done.returncode == 0
    assert f"other workspaces, whose files are saved with it too: {person.tree}/a" in done.stderr
    assert "and 1 more" in done.stderr
    assert "other workspaces" not in person.does("checkpoint").stderr


def test_installed_dependencies_are_left_out_of_checkpoints_and_come_back_with_a_step(person: Person) -> None:
    for name in (".venv", "node_modules", "sub/node_modules"):
        (person.tree / name).mkdir(parents=True)
        (person.tree / name / "file").write_text(name)
    assert person.does("checkpoint").returncode == 0
    listed = person.does("show", "@", "--json")
    assert json.loads(listed.stdout)["total_files"] == 1
    assert person.does("run", "--", "rm", "-rf", ".venv", "sub").returncode == 0
    assert person.does("undo").returncode == 0
    assert (person.tree / "sub/node_modules/file").read_text() == "sub/node_modules"
    assert (person.tree / ".venv/file").read_text() == ".venv"
