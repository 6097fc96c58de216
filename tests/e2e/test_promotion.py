"""Promotion of forks of a web application that really builds, serves, and answers."""

from __future__ import annotations

import os
import pty
import re
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.promotion import _swap as swap
from holdfast.engine.promotion.manager import ProductionRef, Promotions
from holdfast.engine.promotion.spec import DecidedFile
from holdfast.model.answers.merges import Promoted
from holdfast.model.errors import HoldfastError, LockedError, NotFoundError, RefusedError, UsageError
from holdfast.model.ids import WorkspaceId
from holdfast.model.json_encoder import encode

from ..promoted import PAGES, Ground, content, make_app, needs_isolation
from ..sampling import some
from ..waiting import wait_until
from .conftest import INSTALLED, Cli


@pytest.fixture(name="ground")
def _ground(tmp_path: Path) -> Iterator[Ground]:
    """An application in production; what a test has done to the store is verified."""
    found = Ground(tmp_path, isolation="none")
    make_app(found.root, sys.executable)
    yield found.begin()
    found.sound()
    assert found.leftovers() == []


@needs_isolation
def test_two_forks_arrive_in_production_and_a_broken_one_does_not(tmp_path: Path) -> None:
    ground = Ground(tmp_path)  # isolated, as the settings have it by default
    make_app(ground.root, sys.executable)
    ground.begin()
    one, two, broken = ground.fork("one"), ground.fork("two"), ground.fork("broken")
    (one / "src/pages.py").write_text(PAGES.replace('"one"', '"ONE"'))
    (two / "src/other.py").write_text("VALUE = 2\n")
    (broken / "src/other.py").write_text("VALUE = (\n")
    about = os.stat(ground.root)
    os.setxattr(ground.root, "user.note", b"kept")
    first = ground.promote(one)
    assert b"ONE" in (ground.root / "src/pages.py").read_bytes()
    assert (ground.root / "deps/warm").read_text() == "cached\n"
    assert (ground.root / "deps/installed").read_text() == "nothing\n"
    assert (ground.root / "dist/app.pyz").exists()
    now = os.stat(ground.root)
    assert (now.st_ino, now.st_mode, now.st_uid) != (about.st_ino, about.st_mode, about.st_uid)
    assert (now.st_mode, now.st_uid, now.st_gid) == (about.st_mode, about.st_uid, about.st_gid)
    assert os.getxattr(ground.root, "user.note") == b"kept"
    before = content(ground.root)
    failed = ground.promote(broken, "build_failed").answer
    assert content(ground.root) == before
    assert (failed.failed_step, failed.exit_code) == ("build_command", 1)
    assert "SyntaxError" in failed.output
    assert str(ground.root) in failed.output, "it was built at production's own path"
    assert failed.recovery == "Fork removed. Production unchanged."
    second = ground.promote(two)
    assert (ground.root / "src/other.py").read_text() == "VALUE = 2\n"
    assert b"ONE" in (ground.root / "src/pages.py").read_bytes()
    with ground.opened() as workspace:
        log = workspace.log()
        assert log.head == second.answer.checkpoint
        assert [event.operation for event in log.events].count("promote") == 2
        assert workspace.status().clean
        assert "promoted" in log.checkpoints[0].provenance.message
        workspace.undo()  # I6
        assert (ground.root / "src/other.py").read_text() == "VALUE = 1\n"
        workspace.redo()
        workspace.restore(first.answer.checkpoint)
        assert (ground.root / "src/other.py").read_text() == "VALUE = 1\n"
    ground.sound()
    assert ground.leftovers() == []


def test_a_second_promotion_of_a_fork_brings_what_it_has_done_since(ground: Ground) -> None:
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    done = ground.promote(fork)
    said = encode(Promoted, done)
    assert said["changesets"] == 1
    assert said["changes"] is not None
    assert said["changes"]["apply_theirs"] == 1
    (ground.root / "new").write_text("by somebody else\n")
    (fork / "src/other.py").write_text("VALUE = 3\n")
    ground.promote(fork)
    assert (ground.root / "src/other.py").read_text() == "VALUE = 3\n"
    assert (ground.root / "new").exists()
    assert ground.promote(fork, "unchanged").answer.changesets == 0


def test_what_both_have_changed_stops_it(ground: Ground) -> None:
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    (ground.root / "src/other.py").write_text("VALUE = 7\n")
    before = ground.content()
    done = ground.promote(fork, "needs_reapply")
    answer = done.answer
    (told,) = encode(Promoted, done)["files"]
    assert (told["path"], told["outcome"]) == ("src/other.py", "open")
    assert [one["rung"] for one in told["tried"]] == ["structure", "text", "person"]
    assert [(one.path, one.changeset_count) for one in answer.overlapping_files] == [("src/other.py", 1)]
    assert ground.content() == before
    assert ground.promotions.foresee(fork).result == "needs_reapply"


def conflicting(ground: Ground) -> Path:
    """A fork with three files that production has changed as well."""
    fork = ground.fork()
    for name in ("src/other.py", "requirements", "src/pages.py"):
        for root, value in ((fork, "there"), (ground.root, "here")):
            path = root / name
            path.write_text(
                path.read_text().replace("nothing", value).replace("= 1", f"= '{value}'").replace("one", value)
            )
    return fork


def test_what_both_have_changed_is_shown_decided_and_built(ground: Ground) -> None:
    fork = conflicting(ground)
    decided = [
        DecidedFile("src/other.py", content=b"VALUE = 'both'\n"),
        DecidedFile("requirements", "ours"),
        DecidedFile("src/pages.py", "theirs"),
    ]
    with pytest.raises(RefusedError) as caught:
        ground.promotions.promote(fork, decided=decided)
    assert caught.value.code == "not_shown"
    assert ground.promotions.list() == []
    shown = encode(Promoted, ground.promote(fork, "needs_reapply"))["overlapping_files"]
    (other,) = [one for one in shown if one["path"] == "src/other.py"]
    assert (other["why"], other.get("production_diff")) == ("content", "@@ -1 +1 @@\n-VALUE = 1\n+VALUE = 'here'\n")
    assert other.get("fork_diff") == "@@ -1 +1 @@\n-VALUE = 1\n+VALUE = 'there'\n"
    assert ground.promotions.foresee(fork, decided=decided).result == "clean"
    done = ground.promote(fork, decided=decided)
    assert {one["outcome"] for one in encode(Promoted, done)["files"]} == {"decided"}
    assert (ground.root / "src/other.py").read_text() == "VALUE = 'both'\n"
    assert (ground.root / "requirements").read_text() == "here\n"
    assert "there" in (ground.root / "src/pages.py").read_text()
    assert (ground.root / "deps/installed").read_text() == "here\n", "it was built with what was decided"
    ground.promote(fork, "unchanged")


def test_a_decision_does_not_hold_for_what_was_edited_since_it_was_shown(ground: Ground) -> None:
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    (ground.root / "src/other.py").write_text("VALUE = 7\n")
    ground.promote(fork, "needs_reapply")
    # (While it is built: the plan is made anew, and what it shows then was not looked at.)
    ground.flags["promote.setup"] = ["sh", "-c", f"echo VALUE = 3 > {ground.root}/src/other.py"]
    found = ground.promote(fork, "failed", decided=[DecidedFile("src/other.py", "theirs")])
    assert (found.answer.code, found.answer.ends_with, found.facts.replans) == ("stale", 4, 1)
    assert (ground.root / "src/other.py").read_text() == "VALUE = 3\n"
    with pytest.raises(UsageError, match="decided twice"):
        ground.promotions.promote(fork, decided=[DecidedFile("a", "ours", version="x")] * 2)
    for wrong in ("../a", "/etc/passwd", "a\\"):
        with pytest.raises(HoldfastError):
            ground.promotions.promote(fork, decided=[DecidedFile(wrong, "ours", version="x")])


def test_what_both_have_changed_is_decided_on_the_command_line(
    ground: Ground, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_PROMOTE_ISOLATION", "none")
    fork = conflicting(ground)

    def promote(*words: str, code: int = 0):
        home = ("--home", str(ground.home))
        return cli(*home, "promote", str(fork), *words, code=code)

    ran = promote(code=4)
    assert "    in production:\n      @@ -1 +1 @@\n      -VALUE = 1\n      +VALUE = 'here'\n" in ran.out
    assert "Decide each with --resolve PATH=FILE, --keep PATH or --take PATH, and promote again." in ran.out
    (tmp_path / "both").write_text("VALUE = 'both'\n")
    words = ("--resolve", f"src/other.py={tmp_path / 'both'}", "--keep", "requirements", "--take", "src/pages.py")
    assert "to be written" in promote(*words, "--dry-run").out
    assert "Promoted to" in promote(*words).out
    assert (ground.root / "src/other.py").read_text() == "VALUE = 'both'\n"
    assert "cannot be read" in promote("--decisions", "/dev/null", code=2).err
    assert promote("--json", "--keep", "requirements", code=2).json["code"] == "not_overlapping"


def test_a_build_that_leaves_production_as_it_was_hinders_nothing_later(ground: Ground) -> None:
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    ground.flags["promote.setup"] = ["sh", "-c", "echo VALUE = 1 > src/other.py"]
    ground.promote(fork)
    (fork / "new").write_text("more\n")
    del ground.flags["promote.setup"]
    ground.promote(fork)
    assert (ground.root / "new").exists()
    assert (ground.root / "src/other.py").read_text() == "VALUE = 2\n", "it did not come to production before"


def test_production_that_went_away_and_came_back_while_it_was_built_is_recorded(ground: Ground) -> None:
    (ground.root / "new").write_text("first\n")
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")

    def back_and_forth(step: str) -> None:
        if step == "build":
            with ground.opened() as workspace:
                workspace.undo()
                workspace.redo()

    done = Promotions(home=ground.home, flags=ground.flags, tell=back_and_forth).promote(fork).answer
    assert (done.result, done.undo_command) == ("promoted", "holdfast undo")
    with ground.opened() as workspace:
        assert workspace.status().clean
        assert workspace.log().head == done.checkpoint
    ground.promote(fork, "unchanged")


def test_an_agent_that_answers_later_is_waited_for(ground: Ground) -> None:
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    (ground.root / "src/other.py").write_text("VALUE = 7\n")
    ground.flags["merge.ladder"] = ["queue"]
    before = ground.content()
    waiting = ground.promote(fork, "needs_reapply")
    assert [one["outcome"] for one in encode(Promoted, waiting)["files"]] == ["pending"]
    assert ground.content() == before
    with ground.opened() as workspace:
        asked = workspace.next_reapply()
        assert asked is not None
        workspace.answer_reapply(asked["id"], asked["token"], {"content": "VALUE = 9\n", "version": asked["version"]})
    ground.promote(fork)
    assert (ground.root / "src/other.py").read_text() == "VALUE = 9\n"


def test_an_agent_that_edits_production_each_time_is_not_asked_without_end(ground: Ground) -> None:
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    (ground.root / "src/other.py").write_text("VALUE = 7\n")
    edit = f"open({str(ground.root / 'src/other.py')!r}, 'a').write('x')"
    answer = 'print(\'{"content": "VALUE = 9"}\')'
    ground.flags |= {"merge.command": [sys.executable, "-c", f"{edit}; {answer}"], "merge.ladder": ["command"]}
    found = ground.promote(fork, "failed")
    assert (found.answer.code, found.facts.replans) == ("changed_meanwhile", 3)
    assert (ground.root / "src/other.py").read_text() == "VALUE = 7\nxxx"


def test_an_agent_that_edits_another_file_of_production_is_asked_once(ground: Ground) -> None:
    """The plan is made anew, and its answer holds for that, too; so it does for a build that failed."""
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    (ground.root / "src/other.py").write_text("VALUE = 7\n")
    edit = f"open({str(ground.root / 'edited')!r}, 'a').write('x')"
    answer = 'print(\'{"content": "VALUE = 9"}\')'
    ground.flags |= {"merge.command": [sys.executable, "-c", f"{edit}; {answer}"], "merge.ladder": ["command"]}
    ground.flags["promote.setup"] = ["false"]
    ground.promote(fork, "build_failed")
    del ground.flags["promote.setup"]
    ground.promote(fork)
    assert (ground.root / "edited").read_text() == "x"
    assert (ground.root / "src/other.py").read_text() == "VALUE = 9"


@pytest.mark.parametrize(
    "case",
    some(
        [
            ({"setup": ["false"]}, "setup_command", "ended with 1"),
            ({"build": ["/no/such/program"]}, "build_command", "ended with 127"),
            ({"start": ["sh", "-c", "echo no; exit 3"]}, "start_command", "ended with 3"),
            ({"health": ["http://127.0.0.1:{port}/nowhere"], "health_timeout": 2}, "health_check", "answered 404"),
            ({"health": ["sh", "-c", "exit 9"], "health_timeout": 0.2}, "health_check", "ended with 9"),
            ({"setup": ["sleep", "100"], "timeout": 0.2}, "setup_command", "longer than"),
        ],
        3,
    ),
)
def test_whatever_fails_leaves_production_as_it_is(ground: Ground, case: tuple[dict[str, object], str, str]) -> None:
    settings, step, said = case
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    before, about = ground.content(), os.stat(ground.root)
    ground.flags |= {f"promote.{name}": value for name, value in settings.items()}
    answer = ground.promote(fork, "build_failed").answer
    assert (answer.failed_step, said in answer.message) == (step, True), answer
    assert ground.content() == before
    assert os.stat(ground.root).st_ino == about.st_ino


def test_edits_to_production_while_it_builds_are_planned_for(ground: Ground) -> None:
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    edit = f"test -e {ground.root}/edited || echo by somebody > {ground.root}/edited"
    ground.flags["promote.setup"] = ["sh", "-c", edit]
    done = ground.promote(fork)
    assert done.facts.replans == 1
    assert ground.steps.count("copy") == 2
    assert (ground.root / "edited").read_text() == "by somebody\n"
    assert (ground.root / "src/other.py").read_text() == "VALUE = 2\n"


def test_edits_while_it_builds_that_leave_something_to_decide_leave_nothing_lying(ground: Ground) -> None:
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    ground.flags["promote.setup"] = ["sh", "-c", f"echo VALUE = 3 > {ground.root}/src/other.py"]
    assert ground.promote(fork, "needs_reapply").facts.replans == 1
    assert (ground.root / "src/other.py").read_text() == "VALUE = 3\n"
    assert ground.leftovers() == []
    with ground.opened() as workspace:
        assert [one.kind for one in workspace.log().checkpoints if one.kind == "merge"] == []


@pytest.mark.parametrize("where", ["exchanged", "in place"])
def test_what_the_fork_has_begun_to_ignore_stays_in_production(
    ground: Ground, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5, I6: it is there before, after and when the promotion was undone; what the fork has deleted as well is not."""
    if where == "in place":
        monkeypatch.setattr("holdfast.engine.promotion._build_directory._mounted", lambda: [bytes(ground.root)])
    fork = ground.fork()
    rules = (ground.root / ".gitignore").read_text()
    (fork / ".gitignore").write_text(rules + "/requirements\n/src/other.py\n")
    (fork / "src/other.py").unlink()
    (fork / "src/more.py").write_text("VALUE = 2\n")
    foreseen = ground.promotions.foresee(fork)
    assert (foreseen.uncaptured, foreseen.changes and foreseen.changes.deletes) == (["requirements"], 1)
    done = ground.promote(fork)
    assert encode(Promoted, done)["uncaptured"] == ["requirements"]
    assert done.answer.atomic == (where == "exchanged")
    assert (ground.root / "requirements").read_text() == "nothing\n"
    assert not (ground.root / "src/other.py").exists()
    with ground.opened() as workspace:
        assert workspace.status().clean
        assert workspace.log().head == done.answer.checkpoint
        workspace.undo()
        assert workspace.status().clean
    assert (ground.root / ".gitignore").read_text() == rules
    assert (ground.root / "requirements").read_text() == "nothing\n"
    assert (ground.root / "src/other.py").read_text() == "VALUE = 1\n"


@pytest.mark.parametrize("isolation", ["none", pytest.param("namespace", marks=needs_isolation)])
def test_secrets_of_the_environment_are_not_handed_on(
    ground: Ground, isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "HOLDFAST_STORE_TENANT", "NODE_ENV"):
        monkeypatch.setenv(name, "local")
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    (ground.root / "src/other.py").write_text("VALUE = 7\n")
    said = ground.base / "said"
    agent = "import os; open({said!r}, 'w').write(repr(dict(os.environ))); print('{{\"content\": \"VALUE = 9\"}}')"
    ground.flags |= {
        "promote.isolation": isolation,
        "promote.setup": ["sh", "-c", "env > deps/setup"],
        "promote.health": ["sh", "-c", "env > deps/health"],
        "promote.restart": ["sh", "-c", "env > deps/restart"],
        "isolation.environment": ["NODE_ENV"],
        "merge.ladder": ["command"],
        "merge.command": [sys.executable, "-c", agent.format(said=str(said))],
    }
    ground.promote(fork)
    for told in (said, *(ground.root / "deps" / name for name in ("setup", "health", "restart"))):
        text = told.read_text()
        assert ("NODE_ENV" in text, "PATH" in text) == (True, True), told
        assert "AWS_SECRET" not in text, told
        # (By the tenant's name, which is no secret, `holdfast cat` of the merge's agent finds production.)
        assert ("STORE_TENANT" in text) == (told == said), told


def named(ground: Ground) -> ProductionRef:
    about = os.stat(ground.root)
    with ground.opened() as workspace:
        return ProductionRef(WorkspaceId(workspace.id), (about.st_dev, about.st_ino))


def state_of(ground: Ground, fork: Path) -> str:
    with holdfast.open(fork, home=ground.home) as workspace:
        return workspace.checkpoint().checkpoint.id


@pytest.mark.parametrize("by", ["a stranger", "another workspace"])
@pytest.mark.parametrize("when", ["before", "while it builds"])
def test_another_directory_at_productions_path_is_not_taken_for_it(ground: Ground, by: str, when: str) -> None:
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    theirs, production = state_of(ground, fork), named(ground)
    hostile, away = ground.base / "hostile", ground.base / "away"
    make_app(hostile, sys.executable)
    if by != "a stranger":
        holdfast.init(hostile, home=ground.home).close()
    before = content(hostile)
    if when == "before":
        ground.root.rename(away)
        hostile.rename(ground.root)
        with pytest.raises(holdfast.HoldfastError) as caught:
            ground.promotions.promote(theirs, to=production)
        assert caught.value.code == "production_replaced"
    else:
        ground.flags["promote.setup"] = ["sh", "-c", f"mv {ground.root} {away} && mv {hostile} {ground.root}"]
        answer = ground.promotions.promote(theirs, to=production).answer
        assert (answer.result, answer.code) == ("failed", "production_replaced")
    assert content(ground.root) == before
    assert "VALUE = 1" in (away / "src/other.py").read_text()
    ground.root.rename(hostile)
    away.rename(ground.root)
    ground.flags.pop("promote.setup", None)
    assert ground.promotions.promote(theirs, to=production).answer.result == "promoted"
    assert (ground.root / "src/other.py").read_text() == "VALUE = 2\n"
    assert content(hostile) == before


def test_production_that_was_moved_is_followed(ground: Ground) -> None:
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    theirs, production = state_of(ground, fork), named(ground)
    ground.root = ground.root.rename(ground.base / "elsewhere")
    done = ground.promotions.promote(theirs, to=ProductionRef.parse(str(production)))
    assert (done.answer.result, done.path) == ("promoted", str(ground.root))
    assert (ground.root / "src/other.py").read_text() == "VALUE = 2\n"


@pytest.mark.parametrize("text", ["", "a", "a:1", "a:1:-1", "a:1:x", "a:1:2:3", "a:\u0661:2"])
def test_what_names_no_production_is_refused(text: str) -> None:
    with pytest.raises(holdfast.UsageError):
        ProductionRef.parse(text)


def test_production_that_never_holds_still_is_left_alone(ground: Ground) -> None:
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    ground.flags |= {"promote.setup": ["sh", "-c", f"date +%N >> {ground.root}/edited"], "promote.tries": 2}
    answer = ground.promote(fork, "failed").answer
    assert answer.code == "changed_meanwhile"
    assert (ground.root / "src/other.py").read_text() == "VALUE = 1\n"


def test_what_runs_in_production_and_is_ignored_is_carried_over(ground: Ground) -> None:
    (ground.root / "data.db").write_text("old")
    (ground.root / "gone.db").write_text("old")
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    root = ground.root
    edit = f"echo new > {root}/data.db; mkdir -p {root}/deps/a/b; echo x > {root}/deps/a/b/c; rm -f {root}/gone.db"
    ground.flags["promote.setup"] = ["sh", "-c", f"{edit}; echo trial > data.db; echo built > deps/warm"]
    ground.promote(fork)
    assert (root / "data.db").read_text() == "new\n"
    assert (root / "deps/a/b/c").read_text() == "x\n"
    assert (root / "deps/warm").read_text() == "built\n"
    assert not (root / "gone.db").exists()


def test_an_edit_in_the_last_moment_swaps_back(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    real = swap.exchange
    calls: list[bytes] = []

    def late(one: bytes, other: bytes) -> None:
        calls.append(other)
        if len(calls) == 1:
            (ground.root / "src/other.py").touch()
            (ground.root / "late").write_text("just before")
        real(one, other)
        if len(calls) == 1:
            (ground.root / "later").write_text("just after")

    monkeypatch.setattr(swap, "exchange", late)
    assert ground.promote(fork).facts.replans == 1
    assert len(calls) == 3
    assert (ground.root / "late").read_text() == "just before"
    assert (ground.root / "later").read_text() == "just after"
    assert (ground.root / "src/other.py").read_text() == "VALUE = 2\n"


def test_whoever_uses_the_old_directory_keeps_it_and_what_they_write(ground: Ground) -> None:
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    server = subprocess.Popen(["sleep", "100"], cwd=ground.root)
    try:
        done = ground.promote(fork)
        assert [one.pid for one in done.facts.used_by] == [server.pid]
        assert Path(f"/proc/{server.pid}/cwd/src/other.py").read_text() == "VALUE = 1\n"
        Path(f"/proc/{server.pid}/cwd/late").write_text("late")
        with pytest.raises(NotFoundError) as caught:
            holdfast.open(os.readlink(f"/proc/{server.pid}/cwd"), home=ground.home)
        assert "`cd .`" in (caught.value.hint or "")
    finally:
        server.kill()
        server.wait()
    swept = ground.promotions.sweep()
    assert (len(swept.kept), list(swept.removed)) == (1, [])
    assert ground.promotions.get(done.row.id).facts.late == ["late"]
    assert len(ground.promotions.sweep(force=True).removed) == 1


def test_a_restart_that_fails_is_told_and_changes_nothing(ground: Ground) -> None:
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    ground.flags["promote.restart"] = ["sh", "-c", "cat src/other.py; exit 5"]
    restart = ground.promote(fork).facts.restart
    assert restart is not None
    assert (restart.exit_code, restart.output) == (5, "VALUE = 2\n")


def test_without_an_exchange_production_is_brought_there_file_by_file(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    (fork / "requirements").unlink()
    ground.flags["promote.setup"] = ["sh", "-c", "echo built > deps/built; rm -f deps/warm"]
    inode = os.stat(ground.root).st_ino
    monkeypatch.setattr("holdfast.engine.promotion._build_directory._mounted", lambda: [os.fsencode(ground.root)])
    done = ground.promote(fork)
    assert (done.answer.atomic, done.facts.hindrance) == (False, "it is a mount point")
    assert os.stat(ground.root).st_ino == inode
    assert (ground.root / "src/other.py").read_text() == "VALUE = 2\n"
    assert not (ground.root / "requirements").exists()
    assert (ground.root / "deps/built").exists()
    assert not (ground.root / "deps/warm").exists()
    assert (ground.root / "dist/app.pyz").exists()
    with ground.opened() as workspace:
        assert workspace.status().clean
        other = ground.fork("other")
        (other / "src/other.py").write_text("VALUE = 3\n")
        workspace.undo()
        assert (ground.root / "requirements").exists()
        workspace.redo()
    assert ground.promote(other).answer.atomic is False
    assert (ground.root / "src/other.py").read_text() == "VALUE = 3\n"


def test_two_at_once_are_one_after_the_other(ground: Ground, tmp_path: Path) -> None:
    one, two = ground.fork("one"), ground.fork("two")
    (one / "src/other.py").write_text("VALUE = 2\n")
    (two / "src/pages.py").write_text(PAGES.replace('"one"', '"TWO"'))
    going, go = tmp_path / "going", tmp_path / "go"
    wait = f"touch {going}; while ! test -e {go}; do sleep 0.02; done"
    environ = os.environ | {"HOLDFAST_PROMOTE_ISOLATION": "none", "HOLDFAST_PROMOTE_SETUP": f"sh\n-c\n{wait}"}
    words = [*INSTALLED, "--home", str(ground.home), "promote", str(one)]
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as first:
        wait_until(going.exists)
        ground.flags["promote.wait"] = 0
        with pytest.raises(LockedError, match="another promotion") as refused:
            ground.promotions.promote(two)
        assert refused.value.code == "promotion_busy"
        assert list(ground.promotions.sweep().busy)
        ground.flags["promote.wait"] = 60
        found: list[object] = []
        second = threading.Thread(target=lambda: found.append(ground.promotions.promote(two).answer.result))
        second.start()
        go.touch()
        second.join(60)
        assert first.wait(60) == 0, first.stdout
    assert found == ["promoted"]
    assert (ground.root / "src/other.py").read_text() == "VALUE = 2\n"
    assert "TWO" in (ground.root / "src/pages.py").read_text()


def test_hostile_content_of_a_fork_stays_what_it_is(ground: Ground, tmp_path: Path) -> None:
    """I7: links that lead out are links, what is behind them is neither read nor written."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    fork = ground.fork()
    (fork / "out").symlink_to(outside)
    (fork / "out-file").symlink_to(outside / "file")
    os.mkfifo(fork / "fifo")
    os.mkfifo(ground.root / "deps/fifo")
    (ground.root / "deps/out").symlink_to(outside)
    shutil.rmtree(fork / "src")
    (fork / "src").symlink_to(outside)
    before = ground.content()
    answer = ground.promote(fork, "build_failed").answer
    assert answer.failed_step == "build_command" or answer.failed_step == "start_command"
    assert ground.content() == before
    assert content(outside) == {"file": b"mine"}
    ground.flags |= {"promote.build": ["true"], "promote.start": [], "promote.health": []}
    ground.promote(fork)
    assert (ground.root / "src").is_symlink()
    assert stat.S_ISFIFO(os.lstat(ground.root / "deps/fifo").st_mode)
    assert content(outside) == {"file": b"mine"}


@needs_isolation
def test_a_build_cannot_write_outside(ground: Ground, tmp_path: Path) -> None:
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    escape = f"echo x > {tmp_path}/escaped; echo x > {ground.home}/escaped; ls {ground.home}; echo in > deps/in; pwd"
    ground.flags |= {"promote.isolation": "namespace", "promote.setup": ["sh", "-c", escape]}
    done = ground.promote(fork)
    assert not (tmp_path / "escaped").exists()
    assert not (ground.home / "escaped").exists()
    assert (ground.root / "deps/in").exists()
    said = (ground.home / "promotions" / done.row.id / "setup.log").read_text()
    assert "catalog.db" not in said
    assert said.endswith(f"{ground.root}\n")


def test_what_makes_no_sense_is_refused_before_anything_begins(ground: Ground, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no fork"):
        ground.promotions.promote(ground.root)
    with pytest.raises(UsageError, match="to itself"):
        ground.promotions.promote(ground.root, to=ground.root)
    ground.flags["promote.health"] = ["http://example.com/health"]
    fork = ground.fork()
    with pytest.raises(UsageError, match="not on this machine"):
        ground.promotions.promote(fork)
    del ground.flags["promote.health"]
    (tmp_path / "alone").mkdir()
    with holdfast.init(tmp_path / "alone", home=ground.home) as other:
        other.checkpoint()
    answer = ground.promotions.promote(tmp_path / "alone", to=ground.root).answer
    assert (answer.result, answer.code, answer.ends_with) == ("failed", "unrelated", 4)
    assert ground.promotions.sweep().removed == []


def test_the_command_line(ground: Ground, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    monkeypatch.setenv("HOLDFAST_PROMOTE_ISOLATION", "none")
    monkeypatch.chdir(ground.base)
    home = ("--home", str(ground.home))
    assert cli.json("promote", str(fork), "--dry-run", *home)["result"] == "clean"
    assert (ground.root / "src/other.py").read_text() == "VALUE = 1\n"
    done = cli.json("promote", str(fork), "--message", "for the release", *home)
    assert done["result"] == "promoted"
    with holdfast.open(ground.root, home=ground.home) as workspace:
        made = workspace.log(1).checkpoints[0]
        assert made.provenance.message == f"promoted {fork}: for the release"
    assert done["undo_command"] == "holdfast undo"
    assert "Nothing to promote" in cli("promote", str(fork), *home).out
    (fork / "src/other.py").write_text("VALUE = (\n")
    assert "SyntaxError" in cli("promote", str(fork), *home, code=1).out
    (ground.root / "src/other.py").write_text("VALUE = 7\n")
    said = cli("promote", str(fork), *home, code=4).out
    assert "src/other.py: Modified in changeset Δ1 of the fork and here.\n    structure: " in said
    found = cli.json("promote", "--list", *home)["promotions"]
    assert [one["result"] for one in found] == ["promoted", "unchanged", "build_failed", "needs_reapply"]
    assert set(found[0]) == set(done)
    ours, its = pty.openpty()
    subprocess.run([*INSTALLED, "promote", "--list", *home], stdout=its, check=True, timeout=60)
    os.close(its)
    heading, *rows = os.read(ours, 1 << 16).decode().splitlines()
    os.close(ours)
    assert re.sub(r"\x1b\[[0-9;]*m", "", heading).split("  ")[0] == "promotion"
    assert (len(rows), found[0]["id"] in rows[0]) == (4, True)
    assert cli.json("promote", "--sweep", *home)["kept"] == []
    for words in (["--resume"], ["--resume", "abcd"], ["--resume", "x'y"]):
        cli("promote", *words, *home, code=3)
    for words in ([""], ["nothing/like/it"], ["caf\udce9"]):
        cli("promote", *words, *home, "--to", str(ground.root), code=3)
    for words in ([], ["x", "--sweep"], ["--list", "--force"], ["--resume", "--dry-run"]):
        cli("promote", *words, *home, code=2)


def test_without_settings_it_is_said_that_nothing_was_built(cli: Cli) -> None:
    cli.write("f", "1")
    cli("checkpoint")
    cli("fork", "../fork")
    (cli.root.parent / "fork/f").write_text("2")
    said = cli("promote", "../fork").out
    assert "Nothing was built or checked: " in said
    assert "Built in" not in said
    assert (cli.root / "f").read_text() == "2"


def test_nothing_is_promoted_over_what_runs_supervised(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")

    def busy(_: object) -> None:
        raise RefusedError("a supervised process runs", code="run_going_on")

    monkeypatch.setattr(swap, "refuse_running", busy)
    answer = ground.promote(fork, "failed").answer
    assert answer.code == "run_going_on"
    assert (ground.root / "src/other.py").read_text() == "VALUE = 1\n"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
@pytest.mark.parametrize("where", some(["build", "copy"], 1))
def test_a_full_disk_changes_nothing_in_production(tmp_path: Path, where: str) -> None:
    small = tmp_path / "small"
    small.mkdir()
    with mounted("tmpfs", small, "tmpfs", "size=4m"):
        ground = Ground(small, isolation="none")
        ground.home = tmp_path / "home"
        make_app(ground.root, sys.executable)
        if where == "copy":
            (ground.root / "deps/big").write_bytes(bytes(3 << 20))
        else:
            ground.flags["promote.setup"] = ["dd", "if=/dev/zero", "of=deps/big", "bs=1M", "count=9"]
        ground.begin()
        with ground.opened() as workspace:
            workspace.fork("@", tmp_path / "fork")
        (tmp_path / "fork/src/other.py").write_text("VALUE = 2\n")
        before = ground.content()
        answer = ground.promote(tmp_path / "fork", "failed" if where == "copy" else "build_failed").answer
        assert "No space left" in answer.message + answer.output
        assert ground.content() == before
        assert ground.leftovers() == []
        ground.sound()


@pytest.mark.root
@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_production_that_is_a_mount_point_is_brought_there_in_place(ground: Ground, tmp_path: Path) -> None:
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    with mounted(str(ground.root), ground.root, "", "bind"):
        done = ground.promote(fork)
        assert (done.answer.atomic, done.facts.hindrance) == (False, "it is a mount point")
    assert (ground.root / "src/other.py").read_text() == "VALUE = 2\n"


@contextmanager
def mounted(source: str, target: Path, kind: str, options: str) -> Generator[None]:
    """Something mounted in the tests' own mount namespace."""
    words = ["--bind"] if options == "bind" else ["-t", kind, "-o", options]
    subprocess.run(["mount", *words, source, str(target)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(target)], check=True)


def test_a_watcher_saves_nothing_by_itself_meanwhile_and_goes_on_afterwards(ground: Ground, tmp_path: Path) -> None:
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    environ = os.environ | {"HOLDFAST_WATCH_DEBOUNCE": "0.05s"}
    words = [*INSTALLED, "--home", str(ground.home), "-w", str(ground.root), "watch"]
    watcher = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        with ground.opened() as workspace:
            wait_until(lambda: workspace.status().watching)
            saved = len(workspace.log().checkpoints)
        edit = f"test -e {ground.root}/edited || {{ echo x > {ground.root}/edited; sleep 0.5; }}"
        ground.flags["promote.setup"] = ["sh", "-c", edit]
        done = ground.promote(fork)
        assert done.facts.replans == 1
        assert done.facts.kept == "", "our own watcher keeps no old directory"
        with ground.opened() as workspace:
            found = workspace.log().checkpoints
            assert [one.kind for one in found] == ["manual", "auto", *["manual"] * saved]
            assert found[1].label == "", "the promotion has saved the edit, and not the watcher"
            (ground.root / "after").write_text("after")
            wait_until(lambda: workspace.status().clean and len(workspace.log().checkpoints) == saved + 3)
    finally:
        watcher.terminate()
        watcher.communicate(timeout=30)
