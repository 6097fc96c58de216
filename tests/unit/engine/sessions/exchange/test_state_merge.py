"""Merging sessions, and picking what one command has changed: files come together, conflicts stop all of it.

Nothing goes that was not deleted elsewhere (I5).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.engine.merging.stacked_plan import Resolution
from holdfast.engine.sessions.exchange.state_merge import find_command, history_of, merge, pick
from holdfast.engine.sessions.registry import Sessions
from holdfast.engine.sessions.session import Session
from holdfast.model.errors import NotFoundError, RefusedError, UsageError
from holdfast.model.session_types import CommandEntry, CommandResult


def done(session: Session, work: Callable[[Path], object]) -> CommandEntry:
    """A command that does ``work`` in the session's directory."""
    entry = session.begin("a command", level="changes")
    work(Path(os.fsdecode(session.root)))
    result = CommandResult(exit_code=0, stdout="", stderr="")
    return session.end(entry, result, cwd=os.fsdecode(session.root), env=session.environment(), duration_ms=1)


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda root: (root / name).write_text(text)


def line(text: str) -> Callable[[Path], object]:
    return lambda root: subprocess.run(["sh", "-ec", text], cwd=root, check=True)


def content(root: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in root.iterdir()}


def test_a_fork_comes_back_with_what_it_has_done_i6(make, session: Session, tree: Path) -> None:
    made = session.fork("side")
    with make() as sessions, sessions.open("side") as side:
        done(side, write("b", "side\n"))
        done(side, lambda root: (root / "c").unlink())
        (Path(os.fsdecode(made.root)) / "by hand").write_text("x")
    done(session, write("a", "main\n"))
    before = content(tree)
    found = merge(make, session, "side")
    assert not found.conflicts
    assert content(tree) == {"a": "main\n", "b": "side\n", "by hand": "x"}
    assert found.checkpoint is not None
    assert session.state.tree == session.workspace.resolve("@")
    assert session.head.message == "merged the session side"
    session.workspace.undo()
    assert content(tree) == before


def test_merged_again_only_what_was_done_since_counts(make, session: Session, tree: Path) -> None:
    session.fork("side")
    with make() as sessions, sessions.open("side") as side:
        done(side, write("b", "one\n"))
    assert not merge(make, session, "side").conflicts
    with make() as sessions, sessions.open("side") as side:
        done(side, write("b", "two\n"))
    done(session, write("a", "main\n"))
    assert not merge(make, session, "side").conflicts
    assert content(tree) == {"a": "main\n", "b": "two\n", "c": "c\n"}
    assert merge(make, session, "side").checkpoint is None


def test_a_merge_that_was_undone_can_be_made_again(make, session: Session, tree: Path) -> None:
    made = session.fork("side")
    (Path(os.fsdecode(made.root)) / "b").write_text("side\n")
    merge(make, session, "side")
    session.workspace.undo()
    assert content(tree)["b"] == "b\n"
    assert merge(make, session, "side").merged.restored is not None
    assert content(tree)["b"] == "side\n"


def test_what_the_other_session_has_begun_to_ignore_stays_i5(make, session: Session, tree: Path) -> None:
    """Of merge and pick alike: whether the state that is brought in is what is on its disk, or an earlier one."""
    made = session.fork("side")
    with make() as sessions, sessions.open("side") as side:
        entry = done(side, write(".gitignore", "a\nb\n"))
    (Path(os.fsdecode(made.root)) / "b").unlink()
    (tree / "a").write_text("main\n")
    assert pick(session, side.id, entry, dry_run=True).merged.plan.uncaptured == [b"a"]
    assert merge(make, session, "side", dry_run=True).merged.plan.uncaptured == [b"a"]
    assert not merge(make, session, "side").conflicts
    assert content(tree) == {"a": "main\n", "c": "c\n", ".gitignore": "a\nb\n"}
    session.workspace.undo()
    assert content(tree) == {"a": "main\n", "b": "b\n", "c": "c\n"}


def test_what_was_settled_is_settled(make, session: Session, tree: Path) -> None:
    made = session.fork("side")
    (Path(os.fsdecode(made.root)) / "a").write_text("side\n")
    done(session, write("a", "main\n"))
    found = merge(make, session, "side", prefer="ours")
    assert found.merged.restored is None
    assert found.checkpoint is not None
    assert merge(make, session, "side").merged.plan.stacked.plan == ([], [], [])
    assert content(tree)["a"] == "main\n"


def test_two_forks_of_one_session(make, session: Session) -> None:
    roots = [Path(os.fsdecode(session.fork(name).root)) for name in ("one", "two")]
    (roots[0] / "a").write_text("one\n")
    (roots[1] / "b").write_text("two\n")
    with make() as sessions, sessions.open("two") as two:
        assert not merge(make, two, "one").conflicts
    assert content(roots[1]) == {"a": "one\n", "b": "two\n", "c": "c\n"}
    assert content(roots[0])["b"] == "b\n"


def test_a_conflict_changes_nothing_and_is_named(make, session: Session, tree: Path) -> None:
    made = session.fork("side")
    (Path(os.fsdecode(made.root)) / "a").write_text("side\n")
    (Path(os.fsdecode(made.root)) / "b").write_text("side\n")
    done(session, write("a", "main\n"))
    head, before = session.head, content(tree)
    found = merge(make, session, "side")
    assert [one.path for one in found.conflicts] == [b"a"]
    assert (session.head, content(tree)) == (head, before)
    preferred = merge(make, session, "side", prefer="ours")
    assert not preferred.conflicts
    assert content(tree) == {"a": "main\n", "b": "side\n", "c": "c\n"}


def test_a_dry_run_of_a_merge(make, session: Session, tree: Path) -> None:
    made = session.fork("side")
    (Path(os.fsdecode(made.root)) / "a").write_text("side\n")
    before = content(tree)
    found = merge(make, session, "side", dry_run=True)
    assert [change.path for change in found.merged.plan.stacked.plan.changes] == [b"a"]
    assert (found.checkpoint, content(tree)) == (None, before)


def test_a_session_is_not_merged_into_itself_nor_a_strangers(make, session: Session, home: Path) -> None:
    with pytest.raises(UsageError, match="itself"):
        merge(make, session, "main")
    with Sessions(home=os.fsencode(home), agent="somebody") as others, others.start(session.root, "theirs"):
        pass
    with pytest.raises(RefusedError) as caught:
        merge(make, session, "theirs")
    assert caught.value.code == "not_owner"
    with make() as sessions, pytest.raises(RefusedError) as caught:
        history_of(sessions, "theirs")
    assert caught.value.code == "not_owner"


def test_what_one_command_has_changed_is_picked(make, session: Session, tree: Path) -> None:
    session.fork("side")
    with make() as sessions, sessions.open("side") as side:
        done(side, write("a", "no\n"))
        wanted = done(side, write("b", "yes\n"))
        done(side, write("c", "no\n"))
    found = pick(session, session.id, wanted)
    assert not found.conflicts
    assert content(tree) == {"a": "a\n", "b": "yes\n", "c": "c\n"}
    assert session.workspace.show().checkpoint.provenance.command == "a command"
    session.workspace.undo()
    assert content(tree)["b"] == "b\n"


def test_what_overlaps_is_not_picked(make, session: Session, tree: Path) -> None:
    session.fork("side")
    with make() as sessions, sessions.open("side") as side:
        wanted = done(side, write("b", "side\n"))
    done(session, write("b", "main\n"))
    before = content(tree)
    found = pick(session, session.id, wanted)
    assert [one.why for one in found.conflicts] == ["content"]
    assert content(tree) == before


def test_what_cannot_be_picked(session: Session) -> None:
    nothing = done(session, lambda root: None)
    with pytest.raises(RefusedError, match="changed no file"):
        pick(session, session.id, nothing)
    flying = session.begin("sleep", level="safe")
    with pytest.raises(NotFoundError, match="are not known"):
        pick(session, session.id, flying)


def test_commands_are_found_by_number_and_by_id(session: Session) -> None:
    entries = [done(session, lambda root: None) for _ in range(2)]
    history = session.history()
    assert find_command(history, "2") == entries[1]
    assert find_command(history, entries[0].id[:8].upper()) == entries[0]
    for name in ("3", "x", "", "0"):
        with pytest.raises(NotFoundError):
            find_command(history, name)


def test_what_a_fork_does_not_capture_was_not_deleted_there(make, session: Session, tree: Path, home: Path) -> None:
    """Too large, or no file any more: it is there all the same, and a merge, also of a state that the fork has left
    behind, keeps what is here. What was deleted goes.
    """
    (home / "config.toml").write_text('[capture]\nmax_file_bytes = "64KiB"\n')
    made = session.fork("side")
    with make() as sessions, sessions.open("side") as side:
        entry = done(side, line("head -c 70000 /dev/zero > a; rm b c; mkfifo b"))
        done(side, line("rm a b; touch a b"))
    assert pick(session, side.id, entry, dry_run=True).merged.plan.uncaptured == [b"a", b"b"]
    (Path(os.fsdecode(made.root)) / "a").write_bytes(bytes(70_000))
    (Path(os.fsdecode(made.root)) / "b").unlink()
    os.mkfifo(Path(os.fsdecode(made.root)) / "b")
    assert merge(make, session, "side").merged.plan.uncaptured == [b"a", b"b"]
    assert content(tree) == {"a": "a\n", "b": "b\n"}


def test_a_checkout_keeps_what_the_fork_has_begun_to_ignore_i5(make, session: Session, tree: Path) -> None:
    """Of its present state and of earlier ones. What was deleted there, its directory tells, and goes."""
    side_root = Path(os.fsdecode(session.fork("side").root))
    with make() as sessions, sessions.open("side") as side:
        done(side, write(".gitignore", "a\nb\n"))
        point = side.checkpoint("rules")
    found = session.checkout(point.hash[:12]).restored
    assert ([path for path, _ in found.skipped], found.deleted) == ([b"a", b"b"], [])
    assert content(tree) == {"a": "a\n", "b": "b\n", "c": "c\n", ".gitignore": "a\nb\n"}
    session.workspace.undo()
    (side_root / "b").unlink()
    (side_root / "c").unlink()
    (tree / "a").write_text("main\n")
    found = session.checkout("forks/side").restored
    assert ([path for path, _ in found.skipped], set(found.deleted)) == ([b"a"], {b"b", b"c"})
    assert found.skipped[0].reason.endswith("it is left out there, as by an ignore rule")
    assert content(tree) == {"a": "main\n", ".gitignore": "a\nb\n"}
    session.workspace.undo()
    assert content(tree) == {"a": "main\n", "b": "b\n", "c": "c\n"}
    assert session.workspace.restore(point.state.tree, dry_run=True).deleted == [b"b"]


def test_a_checkout_keeps_what_the_fork_does_not_capture(make, session: Session, tree: Path, home: Path) -> None:
    (home / "config.toml").write_text('[capture]\nmax_file_bytes = "64KiB"\n')
    session.fork("side")
    with make() as sessions, sessions.open("side") as side:
        done(side, line("head -c 70000 /dev/zero > a; rm b; mkfifo b; rm c; echo new > d"))
    found = session.checkout("forks/side").restored
    assert ([path for path, _ in found.skipped], found.deleted) == ([b"a", b"b"], [b"c"])
    assert content(tree) == {"a": "a\n", "b": "b\n", "d": "new\n"}
    session.workspace.undo()
    assert content(tree) == {"a": "a\n", "b": "b\n", "c": "c\n"}


def test_of_a_command_of_a_deleted_fork_it_is_said_that_it_may_have_gone_with_that(make, session: Session) -> None:
    session.fork("side")
    with make() as sessions, sessions.open("side") as side:
        gone = [done(side, write("a", f"{number}\n")) for number in range(3)][1]
    session.checkout("forks/side")
    with make() as sessions:
        sessions.delete("side")
    assert gone in session.history(), "the commands have come along"
    with pytest.raises(NotFoundError, match="it went with its fork") as caught:
        pick(session, session.id, gone)
    assert caught.value.code == "state_gone"
    assert "before you delete it" in str(caught.value.hint)


def test_lines_that_do_not_touch_are_no_conflict_of_merge_nor_of_pick(make, session: Session, tree: Path) -> None:
    lines = [f"{number}\n" for number in range(1, 9)]
    done(session, write("a", "".join(lines)))
    session.fork("side")
    with make() as sessions, sessions.open("side") as side:
        entry = done(side, write("a", "".join([*lines[:7], "eight\n"])))
    done(session, write("a", "".join(["one\n", *lines[1:]])))
    both = "".join(["one\n", *lines[1:7], "eight\n"])
    before = content(tree)
    foreseen = merge(make, session, "side", dry_run=True)
    assert (foreseen.conflicts, foreseen.put_together) == ([], [b"a"])
    assert content(tree) == before
    assert [one.outcome for one in pick(session, side.id, entry).merged.prepared.records] == ["reapplied"]
    assert content(tree)["a"] == both
    session.workspace.undo()
    assert content(tree) == before
    found = merge(make, session, "side")
    assert found.checkpoint is not None
    assert content(tree)["a"] == both
    assert merge(make, session, "side").checkpoint is None


def test_a_person_decides_a_file_that_was_shown(make, session: Session, tree: Path) -> None:
    session.fork("side")
    with make() as sessions, sessions.open("side") as side:
        done(side, write("a", "side\n"))
        done(side, write("b", "side\n"))
    done(session, write("a", "main\n"))
    done(session, write("b", "main\n"))
    decided = {b"a": Resolution(content=b"both\n"), b"b": Resolution(prefer="theirs")}
    with pytest.raises(RefusedError) as caught:
        merge(make, session, "side", resolutions=decided)
    assert caught.value.code == "not_shown"
    shown = merge(make, session, "side")
    assert shown.merged.prepared.differences[b"a"] == ("@@ -1 +1 @@\n-a\n+main\n", "@@ -1 +1 @@\n-a\n+side\n")
    found = merge(make, session, "side", resolutions=decided)
    assert [one.path for one in found.settled] == [b"a", b"b"]
    assert content(tree) == {"a": "both\n", "b": "side\n", "c": "c\n"}
