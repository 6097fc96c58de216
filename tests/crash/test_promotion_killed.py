"""I3: a promotion killed between any two steps, and at any change from the swap on: production is the one before or the
one after, whole, and whoever comes next goes on, or takes it back; nothing is left lying.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

import holdfast
from holdfast.model.errors import NotFoundError
from holdfast.store.catalog.promotion_rows import PromotionRows

from ..promoted import PAGES, Ground, make_app
from ..sampling import some
from ..waiting import stop, wait_until

KILLER = Path(__file__).parents[1] / "promotion_killer.py"
POINTS = sorted(
    (
        f"{when}:{step}"
        for step in ("plan", "copy", "setup", "build", "check", "swap", "restart", "finish")
        for when in ("before", "after")
    ),
    key=lambda point: {"after:setup": 0, "before:swap": 2}.get(point, 1),
)
"""The first and the last are those that always run."""
CALLS = range(1, 60)


on_both = pytest.mark.parametrize("ground", ["embedded", "postgresql"], indirect=True)
"""The databases that a catalog can be on."""


@pytest.fixture(name="ground")
def _ground(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Ground:
    """Production, and a fork of it that is to be promoted. Nothing is built that would take long: where it is killed is
    what matters.
    """
    if getattr(request, "param", "embedded") == "postgresql":
        monkeypatch.setenv("HOLDFAST_STORE_CATALOG", request.getfixturevalue("catalog_url"))
    ground = Ground(tmp_path)
    make_app(ground.root, sys.executable)
    (ground.root / "holdfast.toml").write_text(
        '[promote]\nsetup = ["sh", "-c", "echo setup >> deps/log"]\n'
        'build = ["sh", "-c", "cat src/other.py > deps/out"]\n'
        'health = ["grep", "2", "deps/out"]\n'
    )
    ground.begin()
    (ground.home / "config.toml").write_text('[promote]\nisolation = "none"\n')
    return ground


def kill(ground: Ground, point: str, *how: str) -> bool:
    """Promote the fork, killed at a point; False if it came to its end before."""
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    (ground.root / "late").write_text("not saved yet\n")
    done = subprocess.run(
        [sys.executable, str(KILLER), str(ground.home), str(fork), point, *how],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode in (0, -9), done
    if how:
        return done.returncode != 0
    value = (ground.root / "src/other.py").read_text()
    assert value in ("VALUE = 1\n", "VALUE = 2\n")
    assert (ground.root / "late").read_text() == "not saved yet\n"
    assert (ground.root / "deps/log").exists() == (value == "VALUE = 2\n")
    return done.returncode != 0


def check(ground: Ground, value: int) -> None:
    """Production is whole, saved, and known; nothing is left of the promotion."""
    assert (ground.root / "src/other.py").read_text() == f"VALUE = {value}\n"
    assert (ground.root / "deps/warm").read_text() == "cached\n"
    if value == 2:
        assert (ground.root / "deps/log").read_text() == "setup\n", "built once, on what nobody had built on"
        assert (ground.root / "deps/out").read_text() == "VALUE = 2\n"
    assert ground.leftovers() == []
    with ground.opened() as workspace:
        assert workspace.status().clean
        assert workspace.verify(read_data=True).problems == []
        log = workspace.log()
        assert sum(event.operation == "promote" for event in log.events) <= 1
        if value == 2:
            workspace.undo()
            assert (ground.root / "src/other.py").read_text() == "VALUE = 1\n"
            assert (ground.root / "late").exists()


def merged_states(workspace: holdfast.Workspace) -> list[str]:
    """What was put together and is there still; nothing may be pinned any more."""
    pinned = [one for reasons in workspace._context.catalog.protections().values() for one in reasons]
    assert not any(one.kind == "pin" for one in pinned)
    return [one.id for one in workspace.log().checkpoints if one.kind == "merge"]


@on_both
@pytest.mark.parametrize("point", some(POINTS, 2))
def test_i3_killed_between_two_steps_it_goes_on(ground: Ground, point: str) -> None:
    assert kill(ground, point)
    try:
        assert ground.promotions.resume().answer.result == "promoted"
    except NotFoundError:
        assert point == "after:finish"
    check(ground, 2)


@on_both
@pytest.mark.parametrize("call", some(CALLS, 3))
def test_i3_killed_from_the_swap_on_it_goes_on(ground: Ground, call: int) -> None:
    if not kill(ground, f"call:{call}"):
        pytest.skip("it came to its end before")
    try:
        assert ground.promotions.resume().answer.result == "promoted"
    except NotFoundError:
        assert ground.promotions.list()[0].answer.result == "promoted"
        ground.promotions.sweep()
    check(ground, 2)


@on_both
@pytest.mark.parametrize("call", some(CALLS, 2))
def test_i3_killed_from_the_swap_on_it_is_swept_away(ground: Ground, call: int) -> None:
    if not kill(ground, f"call:{call}"):
        pytest.skip("it came to its end before")
    before = (ground.root / "src/other.py").read_text()
    ground.promotions.sweep()
    assert (ground.root / "src/other.py").read_text() == before
    assert ground.promotions.list()[0].row.phase == "ended"
    check(ground, int(before[-2]))


@pytest.mark.parametrize("by", ["resume", "sweep", "the next one"])
@pytest.mark.parametrize("point", ["put-together:", "captured:", "forgotten:"])
def test_i3_no_merged_state_is_left_that_nobody_knows_of(
    ground: Ground, point: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed right after a checkpoint was put together, or when the plan was forgotten and nothing was ended."""
    how = ["in-place"] if point == "captured:" else []
    if how:
        monkeypatch.setattr("holdfast.engine.promotion._build_directory._mounted", lambda: [bytes(ground.root)])
    assert kill(ground, point, *how)
    if by == "resume":
        assert ground.promotions.resume().answer.result == "promoted"
    elif by == "sweep":
        ground.promotions.sweep()
    else:
        ground.promote(ground.base / "fork", "unchanged" if point == "forgotten:" else "promoted")
    with ground.opened() as workspace:
        assert merged_states(workspace) == ([workspace.log().head] if how and by != "sweep" else [])
    check(ground, 1 if by == "sweep" and point != "forgotten:" else 2)


def test_i3_killed_where_nothing_comes_of_it_it_is_taken_back(ground: Ground) -> None:
    """The build fails, and it is killed when the plan was forgotten: the same is the answer of whoever goes on."""
    (ground.home / "config.toml").write_text('[promote]\nisolation = "none"\nbuild = ["false"]\n')
    (ground.root / "holdfast.toml").write_text("")
    assert kill(ground, "forgotten:", "failing")
    assert ground.promotions.resume().answer.result == "build_failed"
    check(ground, 1)
    with ground.opened() as workspace:
        assert merged_states(workspace) == []


def test_i3_killed_in_the_build_the_next_promotion_takes_it_back(ground: Ground) -> None:
    assert kill(ground, "after:build")
    other = ground.fork("other")
    (other / "src/pages.py").write_text(PAGES.replace("one", "two"))
    (other / "src/other.py").write_text("VALUE = 2\n")
    ground.promote(other)
    assert [one.answer.result for one in ground.promotions.list()] == ["failed", "promoted"]
    check(ground, 2)


def test_i3_a_command_in_between_knows_production_again(ground: Ground) -> None:
    """Killed right after the exchange: another directory is at production's path, and is the same workspace."""
    with ground.opened() as workspace:
        name = workspace.id
    assert kill(ground, "exchanged:")
    with ground.opened() as workspace:
        assert workspace.id == name
        workspace.checkpoint("somebody was there first")
    assert ground.promotions.resume().answer.result == "promoted"
    check(ground, 2)


def test_what_was_undone_before_it_was_recorded_comes_again(ground: Ground) -> None:
    """Killed right after the exchange, and production brought back by hand: it holds nothing of the fork then."""
    assert kill(ground, "exchanged:")
    with ground.opened() as workspace:
        workspace.undo()
        assert (ground.root / "src/other.py").read_text() == "VALUE = 1\n"
    assert ground.promotions.resume().answer.result == "promoted"
    assert (ground.root / "src/other.py").read_text() == "VALUE = 1\n", "whoever went back is not overruled"
    ground.promote(ground.base / "fork")
    assert (ground.root / "src/other.py").read_text() == "VALUE = 2\n"
    with ground.opened() as workspace:
        workspace.undo()
    ground.promote(ground.base / "fork")
    assert (ground.root / "src/other.py").read_text() == "VALUE = 2\n"


def test_what_was_undone_before_it_was_recorded_is_known_when_it_is_redone(ground: Ground) -> None:
    assert kill(ground, "exchanged:")
    with ground.opened() as workspace:
        workspace.undo()
    ground.promotions.sweep()
    with ground.opened() as workspace:
        workspace.redo()
    (ground.base / "fork/src/other.py").write_text("VALUE = 1\n")
    ground.flags["promote.health"] = ["true"]
    ground.promote(ground.base / "fork")
    assert (ground.root / "src/other.py").read_text() == "VALUE = 1\n", "that the fork takes it back counts"


@pytest.mark.parametrize("call", some(range(21, 75, 2), 1))
@pytest.mark.parametrize("by", ["resume", "sweep"])
def test_i3_killed_in_place_it_is_finished_or_taken_back(
    ground: Ground, call: int, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kill(ground, f"call:{call}", "in-place"):
        pytest.skip("it came to its end before")
    monkeypatch.setattr("holdfast.engine.promotion._build_directory._mounted", lambda: [bytes(ground.root)])
    if by == "sweep":
        ground.promotions.sweep()
    else:
        try:
            assert ground.promotions.resume().answer.result == "promoted"
        except NotFoundError:
            ground.promotions.sweep()
    found = ground.promotions.list()[0]
    assert found.row.phase == "ended"
    check(ground, 2 if found.row.result == "promoted" else 1)


@on_both
@pytest.mark.parametrize("point", ["before:build", "exchanged:"])
def test_i3_one_that_a_former_version_began_goes_on_by_the_row(ground: Ground, point: str) -> None:
    """That kept which steps are done in tables of a library, and before that in a file: nobody looks there."""
    assert kill(ground, point)
    (folder,) = (ground.home / "promotions").iterdir()
    (folder / "workflow.sqlite").write_bytes(b"as a former version had it")
    with ground.opened() as workspace:
        catalog = workspace._context.catalog
        rows = PromotionRows(catalog)
        (row,) = rows.list()
        facts = json.loads(row.facts)
        del facts["next"], facts["failure"]
        rows.change(row._replace(facts=json.dumps({**facts, "starts": 1})))
        with catalog.database.writing() as session:
            session.run("CREATE TABLE workflow_status (workflow_uuid TEXT PRIMARY KEY, status TEXT)")
            session.run("INSERT INTO workflow_status VALUES (?, ?)", (f"1.m.{row.id}.1", "PENDING"))
    assert ground.promotions.resume().answer.result == "promoted"
    check(ground, 2)
    ground.promotions.sweep()
    assert not folder.exists()


def test_i3_killed_while_it_goes_on_it_goes_on_again(ground: Ground) -> None:
    """Each that takes it over is another process, which does no step that another has done."""
    assert kill(ground, "after:setup")
    for point in ("after:build", "after:swap"):
        done = subprocess.run(
            [sys.executable, str(KILLER), str(ground.home), "", point, "resume"],
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == -9, done
    assert ground.promotions.resume().answer.result == "promoted"
    check(ground, 2)


@on_both
def test_i3_one_that_was_stopped_and_taken_over_does_nothing_more(ground: Ground, tmp_path: Path) -> None:
    """It goes on when another process has its lease, and has done its work: what it says then is true."""
    begun, go = tmp_path / "begun", tmp_path / "go"
    script = f"echo >> {begun}; until [ -e {go} ]; do sleep 0.05; done; cat src/other.py > deps/out"
    (ground.root / "holdfast.toml").write_text(
        f'[promote]\nsetup = ["sh", "-c", "echo setup >> deps/log"]\nbuild = ["sh", "-c", "{script}"]\n'
    )
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    line = [sys.executable, "-m", "holdfast", "--home", str(ground.home), "--json", "promote", str(fork)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as first:
        try:
            wait_until(begun.exists)
            stop(first.pid)
            with ground.opened() as workspace, workspace._context.catalog.database.writing() as session:
                session.run("UPDATE leases SET expires_at = 0")
            second = Thread(target=ground.promotions.resume)
            second.start()
            wait_until(lambda: begun.read_text() == "\n\n")
            go.touch()
            second.join(60)
            assert ground.promotions.list()[0].answer.result == "promoted"
            (ground.root / "late").write_text("of somebody who goes on\n")
            first.send_signal(signal.SIGCONT)
            out, errors = first.communicate(timeout=60)
        finally:
            first.kill()
    said = json.loads(out or errors.splitlines()[-1])
    if first.returncode:
        assert said["error"]["code"] in ("taken_over", "promotion_stopped"), said
    else:
        assert said["result"] == "promoted"
    assert (ground.root / "late").read_text() == "of somebody who goes on\n"
    assert (ground.root / "src/other.py").read_text() == "VALUE = 2\n"
    assert (ground.root / "deps/log").read_text() == "setup\n"
    assert ground.leftovers() == []
    ground.sound()
