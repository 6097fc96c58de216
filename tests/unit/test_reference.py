"""The pages of docs/reference, and the man page, are what docs/generate.py makes of the source."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.model.log import LEVELS
from holdfast.model.log_format import _COMPONENTS

PROJECT = Path(__file__).parents[2]


def generator():
    specification = importlib.util.spec_from_file_location("generate", PROJECT / "docs" / "generate.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


GENERATE = generator()


@pytest.mark.parametrize("path", GENERATE.FILES, ids=lambda path: path.name)
def test_a_committed_page_is_what_the_source_says(path: Path) -> None:
    assert path.read_text() == GENERATE.FILES[path](), "run `make docs`"


def test_every_template_makes_a_page_and_every_part_is_used() -> None:
    templates = {path: path.read_text() for path in GENERATE.TEMPLATES.glob("*.md.in")}
    assert {GENERATE.REFERENCE / path.stem for path in templates} <= set(GENERATE.FILES)
    for part in GENERATE.PARTS:
        assert sum(f"\n<!-- {part} -->\n" in text for text in templates.values()) == 1, part


def test_the_man_page_has_no_warnings() -> None:
    checkers = (["groff", "-ww", "-man", "-Tutf8", "-z"], ["mandoc", "-T", "lint", "-W", "warning"])
    command = next((each for each in checkers if shutil.which(each[0])), None)
    if command is None:
        pytest.skip("neither groff nor mandoc is installed")
    done = subprocess.run([*command, str(GENERATE.MAN_PAGE)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_page_of_the_log_has_every_level_and_component() -> None:
    text = (GENERATE.REFERENCE / "logs.md").read_text()
    for name in (*LEVELS, *_COMPONENTS.values(), "engine"):
        assert f"`{name}`" in text, name
