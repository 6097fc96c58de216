"""Which change each line comes from: over edits, renames, undo, runs and prompts, and within limits."""

from __future__ import annotations

import pytest

from holdfast.engine.diffs import line_origins as module
from holdfast.model.errors import NotFoundError, RefusedError


def saved(workspace, tree, path, *lines, **options):
    """A state in which the file has these lines; its id."""
    (tree / path).write_text("".join(f"{line}\n" for line in lines))
    return workspace.checkpoint(**options).checkpoint.id


def origins(workspace, path="a", state="@"):
    """For each line the state that it comes from."""
    found = workspace.line_origins(state, path)
    assert sum(one.lines for one in found.origins) == sum(at is not None for at in found.of_lines)
    return [None if at is None else found.origins[at].checkpoint.id for at in found.of_lines]


def test_each_line_comes_from_the_state_that_brought_it(workspace, tree):
    first = saved(workspace, tree, "a", "one", "two", "three")
    saved(workspace, tree, "b", "something else")
    second = saved(workspace, tree, "a", "one", "2", "three", "four")
    third = saved(workspace, tree, "a", "zero", "one", "2", "four")
    assert origins(workspace) == [third, first, second, second]
    assert origins(workspace, state=second) == [first, second, first, second]
    assert origins(workspace, state=first) == [first] * 3


def test_a_line_that_went_and_came_again_is_new(workspace, tree):
    first = saved(workspace, tree, "a", "one", "two")
    saved(workspace, tree, "a", "one")
    third = saved(workspace, tree, "a", "one", "two")
    assert origins(workspace) == [first, third]
    workspace.undo(2)
    assert origins(workspace) == [first, first], "what an undo left behind has made nothing"


def test_a_renamed_file_keeps_its_lines(workspace, tree):
    lines = [f"line {number}" for number in range(20)]
    first = saved(workspace, tree, "a", *lines)
    (tree / "a").unlink()
    lines[3] = "changed"
    second = saved(workspace, tree, "b", *lines)
    (tree / "b").rename(tree / "c")
    workspace.checkpoint()
    found = workspace.line_origins("@", "c")
    assert [(one.checkpoint.id, one.path, one.lines) for one in found.origins] == [(second, b"b", 1), (first, b"a", 19)]
    assert found.of_lines.index(0) == 3


def test_the_prompt_before_it_and_the_steps_of_a_run_are_told(workspace, tree):
    first = saved(workspace, tree, "a", "one", "two", "three", author="ann")
    asked = workspace.prompt("Change the second\nplease", author="claude").prompt
    workspace.run(["sh", "-c", "sed -i s/two/2/ a; mv a b; echo else > other"], directory=bytes(tree))
    other = workspace.prompt("Change the third", author="codex").prompt
    workspace.run(["sed", "-i", "s/three/3/", "b"], directory=bytes(tree))
    newest, middle, oldest = workspace.line_origins("@", "b").origins
    assert (newest.prompt, newest.asked) == (other, "Change the third")
    assert (middle.prompt, middle.asked) == (asked, "Change the second\nplease")
    assert [step.command[0] for step in newest.steps] == [b"sed"]
    assert [step.command[0] for step in middle.steps] == [b"sed", b"mv"]
    assert (oldest.checkpoint.id, oldest.prompt, list(oldest.steps)) == (first, None, [])
    assert oldest.checkpoint.provenance.author == "ann"


def test_lines_of_before_a_fork_come_from_what_was_forked(workspace, tree, open_workspace):
    first = saved(workspace, tree, "a", "one", "two")
    workspace.fork("@", tree.parent / "fork")
    fork = open_workspace(tree.parent / "fork")
    second = saved(fork, tree.parent / "fork", "a", "one", "2")
    assert origins(fork) == [first, second]


def test_limits_are_said_and_older_lines_have_no_origin(workspace, tree, monkeypatch):
    saved(workspace, tree, "a", "one", "x", "end")
    newest = [saved(workspace, tree, "a", "one", str(number), "end") for number in range(5)][-1]
    monkeypatch.setattr(module, "_MOST_VERSIONS", 3)
    assert origins(workspace) == [None, newest, None]
    assert workspace.line_origins("@", "a").limit == "3 versions were compared"
    monkeypatch.setattr(module, "_MOST_VERSIONS", 300)
    monkeypatch.setattr(module, "_MOST_STATES", 1)
    assert workspace.line_origins("@", "a").limit == "1 states were looked at"
    monkeypatch.setattr(module, "_MOST_STATES", 5000)
    monkeypatch.setattr(module, "_MOST_COMPARED", 20)
    assert origins(workspace) == [None, newest, None]


def test_what_was_no_text_before_brought_all_lines(workspace, tree):
    (tree / "a").write_bytes(bytes(100))
    workspace.checkpoint()
    second = saved(workspace, tree, "a", "one", "two")
    assert origins(workspace) == [second, second]


def test_what_has_no_lines_is_refused(workspace, tree):
    (tree / "blob").write_bytes(bytes(100))
    (tree / "link").symlink_to("blob")
    (tree / "folder").mkdir()
    (tree / "folder" / "x").write_text("x")
    (tree / "empty").write_text("")
    workspace.checkpoint()
    for path in ("blob", "link", "folder"):
        with pytest.raises(RefusedError) as caught:
            workspace.line_origins("@", path)
        assert caught.value.code == "no_text"
    with pytest.raises(NotFoundError):
        workspace.line_origins("@", "nowhere")
    assert workspace.line_origins("@", "empty").of_lines == []
