"""All that happened as one list: what each kind of item says, what the filters find, and where a page begins."""

from __future__ import annotations

import os
from contextlib import contextmanager

import pytest

import holdfast
from holdfast.engine.history.timeline import SessionCommands, timeline
from holdfast.engine.opening import undo_log
from holdfast.engine.opening.undo_log import log_directory
from holdfast.engine.running.run import begin_run, end_run
from holdfast.engine.sessions.shell.execution import execute
from holdfast.model.errors import UsageError
from holdfast.model.session_types import CommandEntry
from holdfast.undo.service import BarrierInfo, TicketInfo


@pytest.fixture
def lived(bench):
    """A workspace in which a run, checkpoints, restores and an undo have happened."""
    run = begin_run(bench.context, "make it so")
    bench.step(lambda actor: (actor.mkdir(b"d"), actor.write(b"d/n", b"1"), actor.unlink(b"cache/old")), run=run)
    end_run(bench.context, run, "make it so")
    (bench.tree / "f").write_text("by hand")
    bench.workspace.checkpoint("By Hand", message="why not", author="ada")
    bench.workspace.restore("@-", ["f"])
    bench.workspace.restore("By Hand")
    bench.workspace.undo()
    return bench


def kinds(page):
    return [item.kind for item in page.items]


def test_everything_is_in_it_the_newest_first(lived):
    page = lived.workspace.timeline()
    assert page.cursor is None
    assert kinds(page)[0] == "undo"
    assert kinds(page)[-4:] == ["run", "step", "run", "checkpoint"]
    events = [item.number for item in page.items if item.kind != "step"]
    assert events == [event.seq for event in lived.workspace.log().events]


def test_what_is_said_of_each_kind(lived):
    by_kind = {item.kind: item for item in lived.workspace.timeline().items}
    (step,) = (one for one in lived.workspace.steps() if one.run)
    found = by_kind["step"]
    assert (found.number, found.steps, found.run, found.command) == (step.id, (step.id,), step.run, "do")
    assert found.at == step.started_at // 1000
    ended, begun = (item for item in lived.workspace.timeline(kinds=["run"]).items)
    assert (ended.run, ended.steps, ended.command, ended.text) == (
        step.run,
        (step.id,),
        "make it so",
        f"run {step.run} ended",
    )
    assert (begun.run, begun.steps) == (step.run, ())
    restored, labelled = lived.workspace.timeline(text="by hand").items
    assert (restored.kind, restored.labels, restored.author) == ("restore", ("By Hand",), "")
    assert (labelled.kind, labelled.label, labelled.text, labelled.author) == (
        "checkpoint",
        "By Hand",
        "why not",
        "ada",
    )
    assert by_kind["restore"].checkpoint == lived.workspace.resolve("By Hand")
    assert by_kind["restore"].author == "", "who made the state did not restore it"


def test_a_prompt_is_known_by_what_was_asked_for(bench):
    (bench.tree / "f").write_text("1")
    bench.workspace.checkpoint(kind="auto", message="prompt: count the items", author="claude")
    (bench.tree / "f").write_text("2")
    bench.workspace.checkpoint(kind="auto", message="prompt", author="claude")
    (bench.tree / "f").write_text("3")
    bench.workspace.checkpoint(kind="auto", message="prompting", author="claude")
    found = bench.workspace.timeline(author="claude").items
    assert [(item.kind, item.text) for item in found] == [
        ("checkpoint", "prompting"),
        ("prompt", ""),
        ("prompt", "count the items"),
    ]


def test_a_path_is_looked_for_in_what_changed(lived):
    assert kinds(lived.workspace.timeline(path="cache/old", kinds=["step", "run", "checkpoint"])) == ["run", "step"]
    assert kinds(lived.workspace.timeline(path="d", kinds=["step", "run"])) == ["run", "step"]
    assert kinds(lived.workspace.timeline(path="d/n/", kinds=["step"])) == ["step"]
    assert not lived.workspace.timeline(path="elsewhere").items
    assert "By Hand" in [item.label for item in lived.workspace.timeline(path=b"f").items]
    assert [item.kind for item in lived.workspace.timeline(path=".gitignore").items] == ["checkpoint"]


def test_what_is_forgotten_stays_in_it_and_touches_nothing(lived):
    (labelled,) = lived.workspace.timeline(text="by hand", kinds=["checkpoint"]).items
    lived.workspace.forget(["By Hand"])
    assert labelled.number in [item.number for item in lived.workspace.timeline(kinds=["checkpoint"]).items]
    assert labelled.number not in [item.number for item in lived.workspace.timeline(path="f").items]
    lived.workspace.discard_steps()
    assert not lived.workspace.timeline(path="cache/old", kinds=["run", "step"]).items


def test_times_limit_what_is_given(lived):
    items = lived.workspace.timeline().items
    times = sorted({item.at for item in items})
    since, until = times[1], times[-2]
    found = lived.workspace.timeline(since=since, until=until).items
    assert list(found) == [item for item in items if since <= item.at <= until]


class Log:
    """An undo log with edits by others and a held operation, after the steps of another one."""

    def __init__(self, service, barriers, held):
        self._service = service
        self.barriers, self.held = lambda: barriers, lambda: held

    def __getattr__(self, name):
        return getattr(self._service, name)


def test_edits_by_others_and_what_is_held_stand_where_their_numbers_are(bench, monkeypatch):
    first = bench.step(lambda actor: actor.write(b"n", b"1"))
    bench.workspace.checkpoint("between")
    second = bench.step(lambda actor: actor.write(b"m", b"1"))
    begun = {step.id: step.begun for step in bench.workspace.steps()}
    edit = BarrierInfo(id=begun[second] - 1, at=7_000, after=first, paths=(b"d/e",), who="vim (7)", blocks=True)
    ticket = TicketInfo(
        id=1, step=second, danger="delete", path=b"m", message="delete m", asked_at=9_000, denied_at=10_000
    )
    opened = undo_log.open_service

    @contextmanager
    def with_more(context, **options):
        with opened(context, **options) as service:
            yield Log(service, [edit], [ticket])

    monkeypatch.setattr(undo_log, "open_service", with_more)
    found = bench.workspace.timeline(kinds=["step", "barrier", "held"]).items
    assert [(item.kind, item.number) for item in found] == [
        ("held", 1),
        ("step", second),
        ("barrier", edit.id),
        ("step", first),
    ]
    held, _, barrier, _ = found
    assert (held.text, held.paths, held.steps, held.at) == ("delete m", (b"m",), (second,), 9)
    assert (barrier.author, barrier.paths, barrier.at) == ("vim (7)", (b"d/e",), 7)
    assert kinds(bench.workspace.timeline(path="d")) == ["barrier"]
    assert kinds(bench.workspace.timeline(path="m", kinds=["held", "barrier", "step"])) == ["held", "step"]
    assert kinds(bench.workspace.timeline(author="vim (7)")) == ["barrier"]


def entry(seq, before, after, at, command="true", **more):
    return CommandEntry(
        id=f"{seq:016x}",
        seq=seq,
        input=command,
        command=command,
        generated=False,
        level="safe",
        started_at=at,
        before=before,
        after=after,
        **more,
    )


def test_a_command_stands_after_the_state_that_it_began_in(bench):
    """Whatever the clock said; also where that state was visited again."""
    states = [bench.workspace.resolve("@")]
    for number in (1, 2):
        (bench.tree / "f").write_text(str(number))
        states.append(bench.workspace.checkpoint().checkpoint.id)
    bench.workspace.restore(states[0])
    bench.workspace.restore(states[2])
    now = bench.context.clock.now()
    ran = [
        entry(1, states[0], states[1], 5, "one"),
        entry(2, states[1], states[2], 3, "two"),
        entry(3, states[2], states[2], now, "three"),
        entry(4, None, None, now, "four"),
    ]
    sessions = [SessionCommands("main", "me", lambda: iter(ran[::-1]))]
    page = timeline(bench.context, sessions=sessions)
    assert [item.command or item.checkpoint for item in page.items] == [
        states[2],
        states[0],
        "four",
        "three",
        states[2],
        "two",
        states[1],
        "one",
        states[0],
    ]
    found = timeline(bench.context, sessions=sessions, limit=3)
    four = found.items[-1]
    assert (four.kind, four.number, four.session, four.author) == ("command", 4, "main", "me")
    again = timeline(bench.context, sessions=sessions, cursor=found.cursor)
    assert list(again.items) == list(page.items)[3:]


def test_the_commands_of_sessions_are_in_it(session, home, tree):
    execute(session, "echo 2 > a")
    execute(session, "cat b")
    session.checkpoint()
    execute(session, "rm c")
    with holdfast.open(tree, home=home) as workspace:
        found = workspace.timeline(kinds=["command"]).items
        assert [(item.number, item.command) for item in found] == [(3, "rm c"), (2, "cat b"), (1, "echo 2 > a")]
        assert {(item.session, item.author) for item in found} == {("main", "me")}
        assert [item.number for item in workspace.timeline(path="a", kinds=["command"]).items] == [1]
        assert [item.number for item in workspace.timeline(text="RM").items if item.kind == "command"] == [3]
        everything = workspace.timeline().items
        made = next(at for at, item in enumerate(everything) if item.checkpoint == found[0].checkpoint)
        assert everything[made].kind == "checkpoint"
        assert everything[made + 1] == found[0], "what a command did comes right after it"


def test_a_page_has_nothing_that_happened_since_the_first(bench):
    for number in range(4):
        (bench.tree / "f").write_text(str(number))
        bench.workspace.checkpoint(str(number))
    before = list(bench.workspace.timeline().items)
    page = bench.workspace.timeline(limit=2)
    (bench.tree / "f").write_text("since")
    bench.workspace.checkpoint("since")
    bench.step(lambda actor: actor.write(b"n", b"1"))
    found = list(page.items)
    while page.cursor is not None:
        page = bench.workspace.timeline(limit=2, cursor=page.cursor)
        found += page.items
    assert found == before


@pytest.mark.parametrize("cursor", ["", "1", "1:2:3", "x:1.0.1:1.1.a", "1:1.0:1.1.a", "1:1.0.1:1.a.1"])
def test_what_is_no_cursor_is_refused(bench, cursor):
    with pytest.raises(UsageError):
        bench.workspace.timeline(cursor=cursor)


@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_a_page_has_bounds(bench, limit):
    with pytest.raises(UsageError):
        bench.workspace.timeline(limit=limit)


def test_a_workspace_without_a_state_has_no_past(workspace):
    assert workspace.timeline() == ([], None)
    assert os.path.isdir(workspace.path)


def test_an_undo_log_of_another_version_is_left_out_which_is_said(bench, caplog):
    bench.step(lambda actor: actor.write(b"n", b"1"))
    with open(os.path.join(log_directory(bench.context), b"version"), "wb") as file:
        file.write(b"0\n")
    assert kinds(bench.workspace.timeline()) == ["checkpoint"]
    assert "the undo log cannot be read, and its steps are left out" in caplog.text
