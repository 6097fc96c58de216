"""Looks at the tree before and after commands: at what was noticed, so that nobody's edit becomes a command's, and no
state is lost."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.sessions.registry import Sessions
from holdfast.engine.sessions.session import Session
from holdfast.engine.sessions.shell.execution import execute
from holdfast.model.session_types import CommandEntry, SessionConfig

DIRECTORIES = 40
_listed: list[list[str]] = []
"""One for each block that counts at the moment."""


def _hook(event: str, _arguments: tuple[object, ...]) -> None:
    if event in ("os.scandir", "os.listdir"):
        for one in _listed:
            one.append(event)


@pytest.fixture(scope="module", autouse=True)
def _audit() -> None:
    sys.addaudithook(_hook)


@contextmanager
def directories_listed() -> Generator[list[str]]:
    """How often this process lists a directory in the block."""
    found: list[str] = []
    _listed.append(found)
    try:
        yield found
    finally:
        _listed.remove(found)


@pytest.fixture
def make(home: Path) -> Callable[[], Sessions]:
    return lambda: Sessions(home=os.fsencode(home), agent="me")


@pytest.fixture
def session(make: Callable[[], Sessions], home: Path, tree: Path) -> Iterator[Session]:
    """Open, in a directory of directories; two commands have been run in it."""
    for number in range(DIRECTORIES):
        (tree / f"d{number}").mkdir()
        (tree / f"d{number}" / "file").write_text("before\n")
    holdfast.init(tree, home=home).close()
    with make() as sessions, sessions.start(os.fsencode(tree), "main") as found:
        execute(found, "true")
        execute(found, "true")
        yield found
    with holdfast.open(tree, home=home) as workspace:
        assert workspace.verify(read_data=True).ok
        assert workspace.status().clean, "something was never saved"


def changed(session: Session, entry: CommandEntry) -> dict[bytes, str]:
    """What a command has changed, by its entry."""
    assert entry.before is not None
    assert entry.after is not None
    found = session.workspace.diff(entry.before, entry.after, renames=False)
    return {change.path: change.status for change in found.changes}


def between(session: Session, first: CommandEntry, second: CommandEntry) -> set[bytes]:
    """What has changed between two commands, by their entries."""
    assert first.after is not None
    assert second.before is not None
    return {change.path for change in session.workspace.diff(first.after, second.before, renames=False).changes}


def test_a_look_costs_what_has_changed(session: Session) -> None:
    with directories_listed() as listed:
        entry = execute(session, "echo after > d3/file; mkdir new; echo x > new/file; rm d4/file")
    assert changed(session, entry) == {b"d3/file": "M", b"new/file": "A", b"d4/file": "D"}
    assert len(listed) < DIRECTORIES / 2


def test_an_edit_between_two_commands_is_nobodys(session: Session, tree: Path) -> None:
    first = execute(session, "echo mine > d1/file")
    (tree / "d2" / "file").write_text("theirs\n")
    os.rename(tree / "d5", tree / "moved")
    second = execute(session, "echo mine > d3/file")
    assert changed(session, first) == {b"d1/file": "M"}
    assert changed(session, second) == {b"d3/file": "M"}
    assert between(session, first, second) == {b"d2/file", b"d5/file", b"moved/file"}


def test_rules_that_change_between_two_commands_or_in_one(session: Session, tree: Path) -> None:
    first = execute(session, "echo made > d1/made")
    (tree / ".gitignore").write_text("*.made\n")
    second = execute(session, "echo x > d2/a.made; echo y > d2/b")
    assert changed(session, first) == {b"d1/made": "A"}
    assert changed(session, second) == {b"d2/b": "A"}
    third = execute(session, "rm .gitignore")
    assert changed(session, third) == {b".gitignore": "D", b"d2/a.made": "A"}
    fourth = execute(session, "echo z > d2/a.made")
    assert changed(session, fourth) == {b"d2/a.made": "M"}


def test_many_changes_at_once(session: Session, tree: Path) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if most > 20_000:
        pytest.skip("the queue of events is too long to be overrun here")
    # (Each makes three events at least.)
    entry = execute(session, f"mkdir big; cd big; for at in $(seq {most // 2}); do : > $at; done")
    assert len(changed(session, entry)) == most // 2
    (tree / "d7" / "file").write_text("theirs\n")
    after = execute(session, "rm -r ../big")
    assert len(changed(session, after)) == most // 2
    assert between(session, entry, after) == {b"d7/file"}


def test_where_a_file_has_a_name_elsewhere_every_look_is_at_everything(
    make: Callable[[], Sessions], session: Session, tree: Path, tmp_path: Path
) -> None:
    session.close()
    os.link(tree / "d1" / "file", tmp_path / "elsewhere")
    with make() as sessions, sessions.open("main") as again:
        execute(again, "true")
        first = execute(again, "true")
        (tmp_path / "elsewhere").write_text("theirs\n")
        second = execute(again, "echo mine >> d1/file")
        assert changed(again, second) == {b"d1/file": "M"}
        assert between(again, first, second) == {b"d1/file"}
        assert second.before is not None
        assert b"".join(again.workspace.cat(second.before, b"d1/file")) == b"theirs\n"


@pytest.mark.parametrize("ask", ["checkpoint", "risky", "fork"])
def test_what_nobody_can_notice_is_in_the_state_that_is_saved_and_no_commands(
    session: Session, tree: Path, ask: str
) -> None:
    (tree / "d1" / "mapped").write_bytes(bytes(4096))
    if ask == "risky":
        session.configure(SessionConfig(supervised=False))
    execute(session, "true")
    with open(tree / "d1" / "mapped", "r+b") as file, mmap.mmap(file.fileno(), 4096) as mapped:
        first = execute(session, "echo mine > d2/file")
        mapped[:6] = b"theirs"
        second = execute(session, "echo mine > d3/file")
        assert changed(session, first) == {b"d2/file": "M"}
        assert changed(session, second) == {b"d3/file": "M"}
        if ask == "checkpoint":
            tree_saved = session.checkpoint("now").state.tree
        elif ask == "fork":
            session.fork("side")
            tree_saved = session.head.state.tree
        else:
            entry = execute(session, "rm -rf d1")
            tree_saved = entry.before
            assert changed(session, entry)[b"d1/mapped"] == "D"
        assert tree_saved is not None
        assert b"".join(session.workspace.cat(tree_saved, b"d1/mapped"))[:6] == b"theirs"


def test_it_goes_on_after_a_checkout(session: Session, tree: Path) -> None:
    session.branch("here")
    execute(session, "echo mine > d1/file; rm -r d2")
    session.checkout("here")
    assert (tree / "d1" / "file").read_text() == "before\n"
    entry = execute(session, "echo again > d2/file")
    assert changed(session, entry) == {b"d2/file": "M"}


def test_a_command_that_opens_the_session_is_preceded_by_one_look(
    make: Callable[[], Sessions], session: Session, tree: Path
) -> None:
    session.close()
    (tree / "d1" / "file").write_text("theirs\n")
    with make() as sessions:
        with directories_listed() as listed, sessions.open("main", begins=True) as again:
            entry = execute(again, "echo mine > d2/file")
            # (Once before and once after; the rest is what the store and the session list.)
            assert len(listed) < 2.5 * DIRECTORIES
            assert changed(again, entry) == {b"d2/file": "M"}
            assert entry.before is not None
            found = again.workspace.show(entry.before)
            assert found.checkpoint.provenance.message == "found when the session main was opened"
        with sessions.open("main", begins=True) as looked:
            (tree / "d3" / "file").write_text("theirs, too\n")
            point = looked.checkpoint(kind="auto")
            assert point.state.tree == looked.workspace.resolve("@")
            assert looked.state.tree == point.state.tree
