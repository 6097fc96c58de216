"""The public Python API: what is exported, and that an example of each function and method works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import NotFoundError, UsageError, Workspace
from holdfast.model import errors

EXAMPLES = (
    ("init", 'w = holdfast.init("project", home="memory")'),
    ("open", 'w = holdfast.open("project", home="memory")'),
    ("open_home", 'h = holdfast.open_home("memory")'),
    ("repair_catalog", 'r = holdfast.repair_catalog("memory")'),
    ("diagnose", 'f = holdfast.diagnose("project", home="memory")'),
    ("__version__", "print(holdfast.__version__)"),
    ("id", "w.id"),
    ("path", "w.path"),
    ("home", "w.home"),
    ("folder", "w.folder"),
    ("misconfigured", "w.misconfigured"),
    ("estimate", "w.estimate()"),
    ("write_ignore", "w.write_ignore()"),
    ("checkpoint", 'one = w.checkpoint("one", message="why", author="ada").checkpoint'),
    ("label", 'w.label("@", "it works")'),
    ("prompt", 'asked = w.prompt("tidy up", author="claude").prompt'),
    ("status", "w.status().clean"),
    ("ignored", "w.ignored()"),
    ("log", "[c.label for c in w.log(10).checkpoints]"),
    ("log_rows", "[r.name for r in w.log_rows(steps=True)]"),
    ("log_page", "page = w.log_page(limit=50)"),
    ("show_row", 'w.show_row(f"prompt:{asked}").item.text'),
    ("row_details", "r = w.row_details(next(w.log_rows()))"),
    ("row_diff", 'b"".join(w.patch(w.row_diff(r)))'),
    ("timeline", 'page = w.timeline(path="src", kinds=["step", "command"], limit=20)'),
    ("position", "w.position().ahead"),
    ("relatives", "w.relatives([one.id])[one.id].forks"),
    ("checkpoints_holding", '[c.label for c in w.checkpoints_holding(["src/main.py"])]'),
    ("history_revision", "w.history_revision()"),
    ("show", 'w.show("@").changes'),
    ("resolve", 'w.resolve("one")'),
    ("cat", 'b"".join(w.cat("one", "src/main.py"))'),
    ("browse", 'w.browse("one", "src").items'),
    ("line_origins", 'w.line_origins("one", "src/main.py").origins[0].checkpoint.id'),
    ("diff", 'd = w.diff("one", paths=["src"])'),
    ("diff_from_nothing", 'w.diff_from_nothing("one").changes'),
    ("patch", 'b"".join(w.patch(d))'),
    ("diff_stat", "[(s.path, s.added, s.removed) for s in w.diff_stat(d)]"),
    ("diff_json", 'w.diff_json(d)["stats"]'),
    ("diff_contents", "w.diff_contents(d).fetch([d.changes[0].after])"),
    ("restore", 'w.restore("one", ["src"], dry_run=True).written'),
    ("planned_diff", 'p = w.planned_diff(w.restore("one", dry_run=True))'),
    ("planned_patch", 'b"".join(w.planned_patch(p))'),
    ("restore_differences", 'd = w.restore_differences("one")'),
    ("restore_parts", "w.restore_parts(d.target, [(f, f.parts[:1]) for f in d.files()])"),
    ("undo", "w.undo(dry_run=True).deleted"),
    ("redo", "w.redo()"),
    ("isolation", 'w.isolation._replace(level="namespace")'),
    ("vm_image", "w.vm_image"),
    ("vm_status", "w.vm_status().running"),
    ("vm_reset", "w.vm_reset()"),
    ("run", 'w.run(["sh", "-c", "echo 2 > two"], directory=w.path).exit_code'),
    ("steps", "[s.command for s in w.steps()]"),
    ("step", "w.step(w.steps()[-1].id)"),
    ("conflicts", "w.conflicts(w.steps()[-1].id)"),
    ("begin_step", 'w.begin_step("the upgrade")'),
    ("commit_step", "w.commit_step()"),
    ("rollback_step", "w.rollback_step()"),
    ("barriers", "w.barriers()"),
    ("held", "w.held()"),
    ("answer", "w.answer(3, allow=True)"),
    ("discard_steps", "w.discard_steps()"),
    ("discard_other_version", "w.discard_other_version()"),
    ("unfinished", "w.unfinished()"),
    ("restore_continue", "w.restore_continue()"),
    ("restore_abort", "w.restore_abort()"),
    ("fork", 'w.fork("one", "second-attempt").path'),
    ("merge", 'w.merge("@", dry_run=True).plan.result'),
    ("waiting_reapplies", "w.waiting_reapplies(limit=10)"),
    ("next_reapply", "w.next_reapply()"),
    ("answer_reapply", 'w.answer_reapply("1f…", "6b…", {"version": "3a…", "content": "both\\n"})'),
    ("mount", 'w.mount("@", "before").close()'),
    ("snapshots", 'w.snapshots.take("built", with_ignored=True)'),
    ("mount_detached", 'w.mount_detached("@", "before")'),
    ("check_watchable", "w.check_watchable()"),
    ("watch", "w.watch()"),
    ("export", 'w.export(["one"], "one.tar.zst")'),
    ("import_", 'w.import_("one.tar.zst")'),
    ("forget", "w.forget(policy=holdfast.Policy(keep_last=10), dry_run=True).kept"),
    ("forget_gone", "w.forget_gone(dry_run=True).removed"),
    ("gc", "w.gc().bytes_freed"),
    ("verify", "w.verify(read_data=True).ok"),
    ("stats", "w.stats().stored_bytes"),
    ("let_go", "w.let_go()"),
    ("close", "w.close()"),
)
"""Each function and method in use, in an order in which they work."""
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


def test_every_function_and_method_has_an_example() -> None:
    public = [name for name in dir(Workspace) if not name.startswith("_")]
    functions = [name for name in holdfast.__all__ if not isinstance(getattr(holdfast, name), type)]
    assert sorted({*functions, *public} - {name for name, _ in EXAMPLES} - {"experiment"}) == []


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


def test_the_examples_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "project" / "src").mkdir(parents=True)
    (tmp_path / "project" / "src" / "main.py").write_text("print(1)\n")
    names: dict[str, Any] = {"holdfast": holdfast}
    opened: dict[int, holdfast.Workspace | holdfast.Home] = {}
    ran = 0
    for method, example in EXAMPLES:
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
