"""The public Python API: what is exported, that it is documented, and that the documented examples work."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Home, NotFoundError, UsageError, Workspace
from holdfast.model import errors

DOCUMENT = (Path(__file__).parents[2] / "docs" / "reference/api.md").read_text()
METHODS = re.findall(r"^\| `(\w+)` \| .* \| `(.*)` \|$", DOCUMENT, re.MULTILINE)
NAMES = re.findall(r"^\| `(\w+)` \| ", DOCUMENT, re.MULTILINE)
NOT_RUN = (
    "holdfast.open",
    "w.mount",
    "w.watch",
    "w.restore_continue",
    "w.restore_abort",
    "w.redo",
    "w.begin_step",
    "w.commit_step",
    "w.rollback_step",
    "w.answer",  # (answer_reapply as well)
)
"""What waits for a signal, needs what not every machine has, or another state than the other examples leave."""


def test_every_public_name_and_method_is_documented() -> None:
    public = [name for name in dir(Workspace) if not name.startswith("_")]
    assert sorted({*holdfast.__all__, *public} - {*NAMES} - {"Workspace", "Home"}) == []
    assert [name for name in dir(Home) if not name.startswith("_") and f"`{name}`" not in DOCUMENT] == []
    assert sorted({*NAMES} - {*holdfast.__all__, *public}) == []
    assert "`Workspace`, in the order of use" in DOCUMENT


def test_every_error_is_public() -> None:
    raised = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert raised <= set(holdfast.__all__)


@pytest.mark.parametrize("name", holdfast.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(holdfast, name) is not None
    assert name in dir(holdfast)


def test_there_is_nothing_else() -> None:
    with pytest.raises(AttributeError, match="nothing_like_it"):
        getattr(holdfast, "nothing_like_it")  # noqa: B009 - the type checker knows that it is not there


def test_a_module_that_is_started_by_its_name_is_public() -> None:
    package = Path(holdfast.__file__).parent
    programs = [
        path for path in package.rglob("*.py") if re.search(r'"__main__"|import main; main\(', path.read_text())
    ]
    assert len(programs) > 10
    private = [path for path in programs if any(part.startswith("_") for part in path.relative_to(package).parts)]
    assert private == [package / "__main__.py"]


def test_importing_it_loads_nothing_yet() -> None:
    code = "import sys, holdfast; print([name for name in sys.modules if name.startswith('holdfast.')])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_the_documented_examples_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "project" / "src").mkdir(parents=True)
    (tmp_path / "project" / "src" / "main.py").write_text("print(1)\n")
    names: dict[str, Any] = {"holdfast": holdfast}
    opened: dict[int, holdfast.Workspace | holdfast.Home] = {}
    ran = 0
    for method, example in METHODS:
        if not example.startswith(NOT_RUN):
            exec(example, names)
            ran += 1
            opened |= {id(one): one for one in names.values() if isinstance(one, (holdfast.Workspace, holdfast.Home))}
        if method == "checkpoint":
            (tmp_path / "project" / "src" / "main.py").write_text("print(2)\n")
        assert method in example
    for one in opened.values():
        one.close()
    assert ran > 25
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.iterdir()} == {
        "project",
        "memory",
        "second-attempt",
        "one.tar.zst",
    }


def test_text_is_taken_where_a_path_is_meant(workspace: Workspace, tree: Path) -> None:
    for name in ("é", "other"):
        (tree / name).write_text("1")
    workspace.checkpoint("one")
    for name in ("é", "other"):
        (tree / name).write_text("2")
    assert b"".join(workspace.cat("one", "é")) == b"1"
    assert [change.path for change in workspace.diff("one", paths=["é"]).changes] == ["é".encode()]
    assert workspace.restore("one", ["é"]).written == ["é".encode()]
    with pytest.raises(NotFoundError):
        workspace.restore("one", ["nosuch"])
    for call in (workspace.restore, lambda name, paths: workspace.diff(name, paths=paths)):
        with pytest.raises(UsageError, match="a list of paths"):
            call("one", "other")


def test_a_negative_limit_is_refused(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match="-1"):
        workspace.log(-1)


def test_every_module_can_be_imported() -> None:
    """Types alone are imported for type checkers: what a program imports from there is missed by these."""
    code = (
        "import importlib, pkgutil, holdfast\n"
        "for module in pkgutil.walk_packages(holdfast.__path__, 'holdfast.'):\n"
        "    if not module.name.endswith('__main__'):\n"
        "        importlib.import_module(module.name)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
