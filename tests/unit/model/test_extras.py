"""What installs the libraries of an extra, beside a Holdfast that was installed from a clone or a wheel."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from importlib import util
from pathlib import Path
from typing import get_args

import pytest

from holdfast.model.extras import Extra, install_command

TOP = Path(__file__).resolve().parents[3]
EXTRAS: dict[str, list[str]] = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["optional-dependencies"]
for _ours in ("dev", "docs"):
    EXTRAS.pop(_ours)


def _requirement(text: str) -> tuple[str, frozenset[str]]:
    """A name as an index has it, and its bounds in any order."""
    found = re.match(r"[\w.\[\]-]+", text)
    assert found
    return re.sub(r"[._-]", "-", found[0]), frozenset(text[found.end() :].split(","))


@pytest.mark.parametrize("extra", get_args(Extra))
def test_the_command_names_the_libraries_that_are_declared(extra: Extra) -> None:
    python, *words = shlex.split(install_command(extra))
    assert (python, words[:3]) == (sys.executable, ["-m", "pip", "install"])
    assert list(map(_requirement, words[3:])) == list(map(_requirement, EXTRAS[extra]))


def test_every_extra_has_one() -> None:
    assert set(get_args(Extra)) == set(EXTRAS)


def test_pip_finds_that_they_are_there() -> None:
    words = shlex.split(install_command("structure"))
    done = subprocess.run([*words, "--no-index"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.count("already satisfied: tomlkit")) == (0, 1), done.stderr


def test_where_there_is_no_pip_uv_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", lambda _name: None)
    words = shlex.split(install_command("vm"))
    assert words[:-1] == ["uv", "pip", "install", "--python", sys.executable]


def test_no_page_and_no_message_sends_people_to_an_index_for_holdfast_itself() -> None:
    pages = [TOP / "README.md", TOP / "CONTRIBUTING.md", *(TOP / "docs").rglob("*.md"), *(TOP / "src").rglob("*.py")]
    assert not [page for page in pages if re.search(r"install [^`\n]*holdfast\[", page.read_text())]
