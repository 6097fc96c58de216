"""Prompts are rows of the history, whether anything had changed or not, and undo goes back to before one."""

from __future__ import annotations

import pytest

from holdfast.engine.history.operations import MOST_OF_PROMPT
from holdfast.engine.running.run import begin_run, end_run
from holdfast.model.errors import NotFoundError, RefusedError, UsageError


def prompts(bench):
    return [(item.number, item.author, item.text) for item in bench.workspace.timeline(kinds=["prompt"]).items]


def ask(bench, text="do it"):
    """The number of a prompt that comes in now; the tree is as it is then."""
    bench.seen.append(bench.look())
    return bench.workspace.prompt(text, author="claude").prompt


def test_a_prompt_is_kept_whether_anything_has_changed_or_not(bench):
    nothing = bench.workspace.prompt("  first\nand more ", author="claude")
    assert (nothing.created, nothing.checkpoint.id) == (False, bench.workspace.resolve("@"))
    (bench.tree / "f").write_text("1")
    changed = bench.workspace.prompt("second")
    assert changed.created
    assert (changed.checkpoint.kind, changed.checkpoint.provenance.message) == ("auto", "prompt: second")
    assert prompts(bench) == [(changed.prompt, "", "second"), (nothing.prompt, "claude", "first\nand more")]
    events = {event.seq: event for event in bench.workspace.log().events}
    assert [events[one.prompt].operation for one in (nothing, changed)] == ["prompt", "prompt"]
    assert [events[one.prompt].checkpoint for one in (nothing, changed)] == [
        nothing.checkpoint.id,
        changed.checkpoint.id,
    ]


def test_a_prompt_stays_when_its_checkpoint_is_forgotten(bench):
    (bench.tree / "f").write_text("1")
    number = ask(bench, "one")
    (bench.tree / "f").write_text("2")
    bench.workspace.checkpoint()
    bench.workspace.forget(["@-"])
    assert prompts(bench) == [(number, "claude", "one")]
    with pytest.raises(NotFoundError, match="was forgotten"):
        bench.workspace.undo(to=number)
    assert (bench.tree / "f").read_text() == "2"


def test_a_text_that_is_none_or_too_long_is_kept_as_far_as_it_goes(bench):
    for given in ("", "é" * (MOST_OF_PROMPT + 1), "odd \ud800 \0 \x1b[31m"):
        bench.workspace.prompt(given)
    assert [text for _, _, text in prompts(bench)] == ["odd ? \0 \x1b[31m", "é" * MOST_OF_PROMPT, ""]


def test_a_prompt_without_a_change_leaves_what_redo_leads_to(bench):
    bench.step(lambda actor: actor.write(b"f", b"1"))
    bench.workspace.undo()
    ask(bench)
    bench.workspace.redo()
    bench.check(1)


def test_all_since_a_prompt_is_taken_back_and_can_be_brought_forward(bench):
    bench.step(lambda actor: (actor.write(b"f", b"1"), actor.write(b"cache/a", b"1")))
    number = ask(bench)
    asked = len(bench.seen) - 1
    first = bench.step(lambda actor: (actor.write(b"f", b"2"), actor.unlink(b"cache/old")))
    bench.workspace.checkpoint("between")
    second = bench.step(lambda actor: actor.write(b"cache/a", b"3"))
    ask(bench, "another")
    (bench.tree / "g").write_text("by hand")
    unsaved = bench.look()
    bench.seen.append(unsaved)
    preview = bench.workspace.undo(to=number, dry_run=True)
    assert (preview.dry_run, sorted(preview.steps)) == (True, [first, second])
    bench.check(-1)
    done = bench.workspace.undo(to=number)
    assert sorted(done.steps) == [first, second]
    assert (sorted(preview.written), sorted(preview.deleted)) == (sorted(done.written), sorted(done.deleted))
    bench.check_files(asked)
    assert done.undo_command == "holdfast redo 3"
    bench.workspace.redo(3)
    bench.check_content(-1)


def test_what_steps_did_before_a_prompt_stays_also_where_only_what_is_ignored_was_changed(bench):
    before = bench.step(lambda actor: actor.write(b"cache/a", b"1"))
    number = ask(bench)
    asked = len(bench.seen) - 1
    since = bench.step(lambda actor: actor.write(b"cache/b", b"1"))
    assert list(bench.workspace.undo(to=number).steps) == [since]
    bench.check(asked)
    with pytest.raises(NotFoundError) as refused:
        bench.workspace.undo(to=number)
    assert refused.value.code == "nothing_to_undo"
    assert f"since prompt {number}" in refused.value.message
    assert list(bench.workspace.undo().steps) == [before]


def test_the_steps_of_a_run_that_goes_on_over_prompts_are_taken_back_from_the_prompt_on(bench):
    run = begin_run(bench.context, "agent")
    one = bench.step(lambda actor: actor.write(b"f", b"1"), run=run)
    number = ask(bench)
    asked = len(bench.seen) - 1
    two = bench.step(lambda actor: (actor.write(b"f", b"2"), actor.write(b"cache/a", b"2")), run=run)
    end_run(bench.context, run, "agent")
    assert list(bench.workspace.undo(to=number).steps) == [two]
    bench.check(asked)
    assert bench.workspace.redo().steps == (two,)
    assert sorted(bench.workspace.undo(run=run).steps) == [one, two]
    bench.check_files(0)


def test_a_step_that_was_brought_forward_since_is_taken_back(bench):
    step = bench.step(lambda actor: (actor.write(b"f", b"1"), actor.write(b"cache/a", b"1")))
    bench.workspace.undo()
    (bench.tree / "g").write_text("by hand")
    bench.workspace.checkpoint()
    number = ask(bench)
    asked = len(bench.seen) - 1
    bench.workspace.redo(step=step)
    assert list(bench.workspace.undo(to=number).steps) == [step]
    bench.check_files(asked)


def test_a_restore_since_is_taken_back_as_well(bench):
    (bench.tree / "f").write_text("1")
    number = ask(bench)
    asked = len(bench.seen) - 1
    bench.workspace.restore("@-")
    bench.workspace.undo(to=number)
    bench.check_content(asked)


def test_where_an_undo_has_led_to_before_a_prompt_that_is_said_and_nothing_changes(bench):
    bench.step(lambda actor: actor.write(b"f", b"1"))
    bench.workspace.checkpoint()
    number = ask(bench)
    bench.workspace.undo()
    with pytest.raises(RefusedError) as refused:
        bench.workspace.undo(to=number)
    assert refused.value.code == "undone_before"
    bench.check(0)
    bench.workspace.redo()
    bench.check(1)


def test_a_prompt_of_an_earlier_version_is_one(bench):
    (bench.tree / "f").write_text("1")
    bench.seen.append(bench.look())
    bench.workspace.checkpoint(kind="auto", message="prompt: count the items", author="claude")
    ((number, *said),) = prompts(bench)
    assert said == ["claude", "count the items"]
    (bench.tree / "f").write_text("2")
    bench.workspace.undo(to=number)
    bench.check_content(1)


def test_what_is_no_prompt_is_refused(bench):
    number = ask(bench)
    (bench.tree / "f").write_text("1")
    other = next(event.seq for event in bench.workspace.log().events if event.operation == "checkpoint")
    for wrong in (other, number + 1, 0, 1 << 61):
        with pytest.raises(NotFoundError, match="no prompt"):
            bench.workspace.undo(to=wrong)
    for more in ({"count": 2}, {"step": 1}, {"run": ""}):
        with pytest.raises(UsageError):
            bench.workspace.undo(to=number, **more)
    assert (bench.tree / "f").read_text() == "1"


def test_what_others_have_changed_since_stops_it_as_any_undo(bench):
    number = ask(bench)
    bench.step(lambda actor: actor.write(b"cache/a", b"1"))
    (bench.tree / "cache" / "a").write_text("by hand")
    for dry_run in (True, False):
        with pytest.raises(RefusedError) as refused:
            bench.workspace.undo(to=number, dry_run=dry_run)
        assert refused.value.code == "barrier"
    bench.workspace.undo(to=number, force=True)
    assert not (bench.tree / "cache" / "a").exists()


def test_an_undo_that_was_cut_short_is_finished_first(bench, cut_short):
    number = ask(bench)
    asked = len(bench.seen) - 1
    bench.step(lambda actor: actor.write(b"f", b"1"))
    bench.step(lambda actor: (actor.write(b"f", b"2"), actor.write(b"cache/a", b"2")))
    cut_short(bench.workspace.undo)
    bench.workspace.undo(to=number)
    bench.check_files(asked)
    assert [step.state for step in bench.workspace.steps()] == ["undone", "undone"]
