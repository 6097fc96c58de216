"""A host with real sessions: commands, files, undo, safeguards and events, as every face uses them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.hosting.executor import CommandOutcome
from holdfast.engine.hosting.host import Host
from holdfast.engine.hosting.monitor import ForeignEdit, HostEvent, OperationHeld, StepsRolledBack, VersionMismatch
from holdfast.engine.hosting.working_directory import DirectorySpec, HostedDirectory
from holdfast.model.config.settings import Isolation
from holdfast.model.errors import ChannelError, HoldfastError, NotFoundError, RefusedError, UsageError
from holdfast.model.ids import hash_bytes
from holdfast.processes.process_tree import descendants
from holdfast.testing.tree_state import differences, photograph
from holdfast.undo.journal.heartbeat import Heartbeat, encode_beat
from holdfast.undo.service import OFF, PRESET, LogLimits

from ..processes import command_of
from ..waiting import wait_until
from . import hostile
from .frontend import Frontend


class Stage:
    """Hosts on directories of a test, and what they tell."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.home = base / "home"
        self.events: list[tuple[str, HostEvent]] = []
        self.hosts: list[Host] = []

    def host(self, *directories: DirectorySpec, **options: object) -> Host:
        def notify(hosted: HostedDirectory, event: HostEvent) -> None:
            self.events.append((hosted.label, event))

        host = Host(directories, home=os.fsencode(self.home), notify=notify, **options)  # type: ignore[arg-type]
        self.hosts.append(host)
        return host

    def tree(self, name: str = "tree") -> Path:
        path = self.base / name
        path.mkdir(exist_ok=True)
        return path

    def hosted(self, **options: object) -> HostedDirectory:
        return self.host(DirectorySpec(os.fsencode(self.tree())), **options).directory()

    def told(self, kind: type[HostEvent]) -> Sequence[HostEvent]:
        return [event for _, event in self.events if isinstance(event, kind)]


@pytest.fixture(name="stage")
def _stage(tmp_path: Path) -> Generator[Stage]:
    stage = Stage(tmp_path)
    before = set(descendants(os.getpid()))
    yield stage
    for host in stage.hosts:
        host.close()
    wait_until(lambda: set(descendants(os.getpid())) <= before)
    if stage.home.exists():
        with holdfast.open_home(stage.home) as home:
            assert home.verify().ok


def execute(hosted: HostedDirectory, command: str, **options: object) -> tuple[CommandOutcome, bytes, bytes]:
    out: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    def take(stream: str, data: bytes) -> None:
        out[stream] += data

    done = hosted.execute(command, on_output=take, **options)  # type: ignore[arg-type]
    return done, out["stdout"], out["stderr"]


@pytest.mark.parametrize("level", ["none", "namespace"])
def test_commands_are_steps_that_can_be_undone(stage: Stage, level: str) -> None:
    """I1."""
    tree = stage.tree()
    (tree / ".gitignore").write_text("ignored\n")
    (tree / "ignored").mkdir()
    (tree / "ignored/f").write_text("1")
    before = photograph(tree)
    try:
        hosted = stage.hosted(isolation=Isolation(level=level))  # type: ignore[arg-type]
        hosted.start()
    except HoldfastError as error:
        if error.code == "unsupported":
            pytest.skip(error.message)
        raise
    first, out, err = execute(hosted, "echo out; echo err >&2; rm -r ignored; mkdir d; cd d; echo 1 > f; exit 3")
    assert (first.exit_code, out, err) == (3, b"out\n", b"err\n")
    assert [change.path for change in first.changes] == [b"d", b"d/f", b"ignored", b"ignored/f"]
    second, out, _ = execute(hosted, "pwd; echo $X; cat f", directory=b"d", environment={"X": "set"})
    assert out.decode() == f"{tree}/d\nset\n1\n"
    assert second.info is None
    assert second.step == first.step + 1
    assert hosted.state == "idle"
    refused, _, err = execute(hosted, "kill -SYS $$")
    assert (refused.exit_code, b"every 32-bit program" in err) == (159, True)
    with hosted.workspace() as workspace:
        assert list(workspace.undo().steps) == [first.step]
    assert differences(before, photograph(tree)) == []
    with hosted.workspace() as workspace:
        workspace.redo()
    assert (tree / "d/f").read_text() == "1\n"
    hosted.stop()
    assert hosted.state == "stopped"
    with hosted.workspace() as workspace:
        workspace.undo(run=hosted.run)
    assert differences(before, photograph(tree)) == []


def test_commands_wait_for_each_other_and_can_be_cancelled(stage: Stage) -> None:
    hosted = stage.hosted()
    done: list[str] = []
    started = threading.Event()

    def work(name: str, command: str) -> None:
        found = hosted.execute(command, on_output=lambda *_: None, on_start=lambda _: started.set())
        done.append(f"{name} {found.exit_code} {found.cancelled}")

    first = threading.Thread(target=work, args=("first", "trap '' TERM; touch one; while :; do sleep 0.05; done"))
    first.start()
    started.wait(60)
    wait_until((stage.tree() / "one").exists)
    second = threading.Thread(target=work, args=("second", "touch two"))
    second.start()
    assert not (stage.tree() / "two").exists()
    assert hosted.state == "running"
    assert hosted.cancel()
    for thread in (first, second):
        thread.join(60)
    assert done == ["first 137 True", "second 0 False"]
    assert not hosted.cancel()


def test_files_are_written_and_edited_with_and_without_a_session(stage: Stage) -> None:
    hosted = stage.hosted()
    before = photograph(stage.tree())
    hosted.write_file(b"a/f", b"one two two\n")
    hosted.start()
    assert hosted.edit_file(b"a/f", b"one", b"three").replaced == 1
    assert hosted.edit_file(b"a/f", b"two", b"2", every=True).replaced == 2
    assert hosted.read_file(b"a/f").content == b"three 2 2\n"
    for old, code in ((b"two", "no_match"), (b"2", "many_matches"), (b"", "usage")):
        with pytest.raises(HoldfastError) as caught:
            hosted.edit_file(b"a/f", old, b"x")
        assert caught.value.code == code
    with pytest.raises(RefusedError) as caught:
        hosted.write_file(b"a/f", b"", expected=hash_bytes(b"other"))
    assert caught.value.code == "changed"
    assert stage.told(ForeignEdit) == []
    with hosted.workspace() as workspace:
        assert [step.kind for step in workspace.steps()] == ["api"] * 3
        workspace.undo(3)
    assert differences(before, photograph(stage.tree())) == []


def test_a_file_that_grows_while_it_is_read_has_changed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    hosted = stage.hosted()
    file = stage.tree() / "log"
    file.write_text("one\n")
    read = os.pread

    def read_while_it_grows(fd: int, size: int, offset: int) -> bytes:
        piece = read(fd, size, offset)
        if not piece:
            with file.open("a") as more:
                more.write("two\n")
        return piece

    monkeypatch.setattr(os, "pread", read_while_it_grows)
    with pytest.raises(RefusedError) as caught:
        hosted.edit_file(b"log", b"one", b"1")
    assert caught.value.code == "changed"
    assert file.read_text() == "one\ntwo\n"


def test_a_held_command_is_an_event_and_somebody_else_answers(stage: Stage) -> None:
    """I9."""
    tree = stage.tree()
    fill(tree)
    before = photograph(tree)
    hosted = stage.hosted(guard=True)
    other = stage.hosted(guard=True)
    hosted.start()
    other.start()
    for allow in (False, True):
        result: list[CommandOutcome] = []
        thread = threading.Thread(target=lambda found=result: found.append(execute(hosted, "rm -f f*; touch after")[0]))
        count = len(stage.told(OperationHeld))
        thread.start()
        wait_until(lambda before=count: len(stage.told(OperationHeld)) == before + 2)  # each of the hosts is told
        held = stage.told(OperationHeld)[-1]
        assert isinstance(held, OperationHeld)
        assert held.ticket.danger == "delete"
        assert held.step is not None
        assert held.sample
        with other.workspace() as workspace:
            workspace.answer(held.ticket.id, allow=allow)
        thread.join(60)
        if not allow:
            assert differences(before, photograph(tree)) == []
            assert result[0].info is not None
            assert result[0].info.state == "undone"
        assert result[0].denied != allow
    assert sorted(os.listdir(tree)) == ["after"]
    hosted.limit(LogLimits(max_bytes=1))
    execute(hosted, "touch x")
    with hosted.workspace() as workspace:
        assert len(workspace.steps()) == 1


def fill(tree: Path) -> None:
    for number in range(60):
        (tree / f"f{number}").write_text("1")


def test_safeguards_hold_for_all_as_long_as_whoever_asked_for_them_is_there(stage: Stage) -> None:
    """I9: nobody who comes, and nobody who changes their mind, switches off what another one has asked for."""
    tree = stage.tree()
    fill(tree)
    guarded, other = stage.hosted(), stage.hosted()
    guarded.guard(PRESET._replace(timeout=0.5))
    guarded.start()
    other.start()
    other.guard(PRESET._replace(deletes=55, timeout=100))
    other.guard(OFF)
    for hosted in (guarded, other):
        assert execute(hosted, "rm -f f*")[0].denied
        with hosted.undo_log() as log:
            assert hosted.rules(log).thresholds == PRESET._replace(timeout=0.5)
    assert other.thresholds == OFF
    assert len(os.listdir(tree)) == 60
    guarded.stop()
    assert not execute(other, "rm -f f*")[0].denied
    assert os.listdir(tree) == []


def test_safeguards_of_a_session_are_its_own_to_change(stage: Stage) -> None:
    tree = stage.tree()
    fill(tree)
    hosted = stage.hosted(guard=True)
    hosted.start()
    hosted.guard(OFF)
    assert not execute(hosted, "rm -f f*")[0].denied
    fill(tree)
    hosted.guard(PRESET._replace(timeout=0.5))
    hosted.stop()
    assert execute(hosted, "rm -f f*")[0].denied


def test_limits_of_the_undo_log_are_the_last_that_were_set(stage: Stage) -> None:
    one, other = stage.hosted(), stage.hosted()
    one.limit(LogLimits(max_steps=3))
    one.start()
    other.start()
    for hosted in (one, other):
        with hosted.undo_log() as log:
            assert hosted.rules(log).limits == LogLimits(max_steps=3)
    other.limit(LogLimits(max_steps=2))
    for number in range(4):
        execute(one, f"touch f{number}")
    for hosted in (other, stage.hosted()):
        execute(hosted, "touch another")
        execute(hosted, "rm another")
    with one.undo_log() as log:
        assert log is not None
        assert len(log.steps()) == 4  # of two runs: of the first, none is left
        assert list(log.forgotten()) == [one.run]
        assert one.rules(log).limits == LogLimits(max_steps=2)


def test_what_a_session_writes_is_of_its_run(stage: Stage) -> None:
    hosted = stage.hosted()
    before = photograph(stage.tree())
    execute(hosted, "touch f")
    written = hosted.write_file(b"a/g", b"1")
    hosted.edit_file(b"a/g", b"1", b"2")
    assert written is not None
    with hosted.workspace() as workspace:
        steps = workspace.steps()
        assert [step.kind for step in steps] == ["command", "api", "api"]
        assert {(step.run, step.directory) for step in steps} == {(hosted.run, os.fsencode(stage.tree()))}
        assert sorted(workspace.undo(run=hosted.run).steps) == [step.id for step in steps]
    assert differences(before, photograph(stage.tree())) == []
    hosted.stop()
    again = hosted.write_file(b"g", b"1")
    assert again is not None
    assert again.run == ""


def test_thresholds_are_set_before_there_is_a_keeper(stage: Stage) -> None:
    tree = stage.tree()
    (tree / "large").write_bytes(b"1" * (11 << 20))
    hosted = stage.hosted()
    hosted.guard(PRESET._replace(timeout=0.5))
    done, _, _ = execute(hosted, "echo small > large; true")
    assert done.denied
    assert done.info is None
    assert (tree / "large").stat().st_size == 11 << 20


def test_edits_by_others_are_events(stage: Stage) -> None:
    hosted = stage.hosted()
    execute(hosted, "touch f")
    (stage.tree() / "theirs").write_text("1")
    wait_until(lambda: any(isinstance(event, ForeignEdit) for event in stage.told(ForeignEdit)))
    (event,) = stage.told(ForeignEdit)
    assert isinstance(event, ForeignEdit)
    assert event.barrier.paths == (b"theirs",)


def test_directories_are_apart(stage: Stage) -> None:
    """I10."""
    one, two, three = (stage.tree(name) for name in ("one", "two", "three"))
    (three / "f").write_text("3")
    host = stage.host(
        DirectorySpec(os.fsencode(one)),
        DirectorySpec(os.fsencode(two), "second"),
        DirectorySpec(os.fsencode(three), access="read_only"),
    )
    assert [hosted.label for hosted in host.directories] == ["one", "second", "three"]
    for number, name in enumerate(("one", "second", "three")):
        assert host.directory(number) is host.directory(name) is host.directory(os.fsdecode(host.directory(name).path))
    for hosted in host.directories[:2]:
        execute(hosted, "touch f")
    with host.directory(0).workspace() as workspace:
        workspace.undo()
    assert (os.listdir(one), os.listdir(two)) == ([], ["f"])
    third = host.directory("three")
    assert third.read_file(b"f").content == b"3"
    for attempt in (
        lambda: execute(third, "touch g"),
        lambda: third.write_file(b"g", b""),
        lambda: third.edit_file(b"f", b"3", b"4"),
        lambda: third.workspace().__enter__(),
        lambda: third.guard(PRESET),
        lambda: third.limit(LogLimits()),
    ):
        with pytest.raises(RefusedError) as caught:
            attempt()
        assert caught.value.code == "read_only"
    assert os.listdir(three) == ["f"]
    with pytest.raises(NotFoundError):
        host.directory("fourth")
    for wrong in ([], [DirectorySpec(os.fsencode(one))] * 2, [DirectorySpec(b"/")]):
        with pytest.raises((UsageError, RefusedError)):
            stage.host(*wrong)


@pytest.mark.parametrize("level", ["none", "namespace"])
def test_a_command_changes_no_other_directory_of_the_session(stage: Stage, level: str) -> None:
    """I10: neither what is read-only nor what another keeper records, be it made writable in the settings."""
    tree, other = stage.tree(), hostile.furnish(stage.tree("beside") / "other")
    kept = hostile.furnish(stage.tree("above") / "kept")
    boxed = Isolation(level="namespace", tmp="shared", writable=(str(kept.parent), str(other.parent)))
    host = stage.host(
        DirectorySpec(os.fsencode(tree)),
        DirectorySpec(os.fsencode(other)),
        DirectorySpec(os.fsencode(kept), access="read_only"),
        isolation=boxed if level == "namespace" else None,
    )
    before = {path: photograph(path.parent) for path in (other, kept)}
    for path in (other, kept):
        try:
            done, out, err = execute(host.directory(0), hostile.command(path))
        except HoldfastError as error:
            if error.code == "unsupported":
                pytest.skip(error.message)
            raise
        assert done.exit_code == 0, err
        hostile.judge(out.decode())
        execute(host.directory(0), "rm -r *")
        assert differences(before[path], photograph(path.parent)) == []
    execute(host.directory(1), "echo 2 > file")
    assert (other / "file").read_text() == "2\n"
    with host.directory(1).workspace() as workspace:
        workspace.undo()
    assert differences(before[other], photograph(other.parent)) == []


def test_what_is_still_there_of_a_session_ends_with_it(stage: Stage) -> None:
    """A directory is read-only for the runs of the session that says so."""
    one, two = stage.tree("one"), stage.tree("two")
    host = stage.host(DirectorySpec(os.fsencode(one)), DirectorySpec(os.fsencode(two), access="read_only"))
    assert execute(host.directory(0), f"touch {two}/f")[0].exit_code == 1
    host.close()
    alone = stage.host(DirectorySpec(os.fsencode(one)))
    assert execute(alone.directory(0), f"touch {two}/f")[0].exit_code == 0
    assert os.listdir(two) == ["f"]


def test_a_session_does_not_begin_beside_a_directory_that_is_gone(stage: Stage) -> None:
    one, two = stage.tree("one"), stage.tree("two")
    host = stage.host(DirectorySpec(os.fsencode(one)), DirectorySpec(os.fsencode(two), access="read_only"))
    two.rename(stage.base / "moved")
    for make in (lambda: None, lambda: two.symlink_to("moved")):
        make()
        with pytest.raises(NotFoundError) as caught:
            execute(host.directory(0), "touch made")
        assert caught.value.code == "no_directory"
    assert os.listdir(one) == []


def test_directories_that_lie_in_each_other_are_refused(stage: Stage) -> None:
    tree = stage.tree()
    (tree / "sub").mkdir()
    for other in (tree / "sub", tree, stage.base, Path("/")):
        for pair in ((tree, other), (other, tree)):
            given = [DirectorySpec(os.fsencode(path), access="read_only") for path in pair]
            given[pair.index(tree)] = DirectorySpec(os.fsencode(tree))
            with pytest.raises(RefusedError, match="lie in each other"):
                stage.host(*given)


def killed(hosted: HostedDirectory, command: str, victim: Callable[[], int]) -> HoldfastError:
    """Kill the process that ``victim`` tells while the command runs; what the command raises."""
    found: list[HoldfastError] = []
    started = threading.Event()

    def work() -> None:
        try:
            hosted.execute(command, on_output=lambda *_: started.set())
        except HoldfastError as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert started.wait(60)
    os.kill(victim(), signal.SIGKILL)
    thread.join(60)
    return found[0]


def process(name: bytes) -> int:
    """The descendant whose command line holds ``name``."""
    for pid in descendants(os.getpid()):
        if name in command_of(pid):
            return pid
    raise AssertionError(name)


@pytest.mark.parametrize(
    "name", [b"sandbox/shim.py", b"engine.hosting.launcher", b"supervisor.keeper", b"supervisor.launch.tree_parent"]
)
def test_whatever_is_killed_the_next_command_works(stage: Stage, name: bytes) -> None:
    """I3."""
    tree = stage.tree()
    hosted = stage.hosted()
    execute(hosted, "touch kept")
    error = killed(hosted, "touch half; echo up; sleep 50", lambda: process(name))
    assert isinstance(error, ChannelError) or error.code == "keeper_gone"
    done, out, _ = execute(hosted, "ls")
    assert done.exit_code == 0
    assert out == (b"kept\n" if name == b"supervisor.keeper" else b"half\nkept\n")
    if name == b"supervisor.keeper":
        assert [type(event) for event in stage.told(StepsRolledBack)] == [StepsRolledBack]
    with hosted.workspace() as workspace:
        while workspace.steps() and any(step.state == "done" for step in workspace.steps()):
            workspace.undo()
    assert os.listdir(tree) == []


def test_what_a_killed_keeper_left_is_told_whatever_is_done_first(stage: Stage) -> None:
    """I3."""
    tree = stage.tree()
    hosted = stage.hosted()
    for _ in range(2):
        torn(tree, stage.home)
        count = len(stage.told(StepsRolledBack))
        with hosted.workspace() as workspace:
            assert (tree / "f").read_text() == "before"
            workspace.steps()
        assert len(stage.told(StepsRolledBack)) == count + 1


def torn(tree: Path, home: Path) -> None:
    """Leave a step open, with a file in the middle of being written, and nobody who keeps the log."""
    (tree / "f").write_text("before")
    client = Frontend(tree, home)
    client.begin()
    client.send("agent.execute", command="printf to > f; echo up; sleep 1000")
    client.event("terminal_output")
    # (What is written later than half a second after the keeper's last sign of life is not known to be the step's.)
    written = (tree / "f").stat().st_ctime_ns
    wait_until(lambda: any(each.stat().st_mtime_ns > written for each in home.glob("**/undo/beat")), "a sign of life")
    for pid in (client.process.pid, *descendants(client.process.pid)):
        with suppress(ProcessLookupError):  # it ends with the one before
            os.kill(pid, signal.SIGKILL)
    client.ended()
    assert (tree / "f").read_text() == "to"


def test_a_log_of_another_version_is_an_event_and_set_aside(stage: Stage) -> None:
    hosted = stage.hosted()
    hosted.write_file(b"f", b"1")
    (version,) = stage.home.glob("**/undo/version")
    version.write_text("holdfast-undo 999\n")
    hosted.start()
    assert hosted.state == "idle"
    assert len(stage.told(VersionMismatch)) == 1
    assert list(version.parent.glob("other-version/*/steps/*"))
    with hosted.workspace() as workspace:
        workspace.discard_steps()
    assert not list(version.parent.glob("other-version*"))


def test_a_log_of_another_version_with_a_half_done_step_is_an_event_and_can_be_discarded(stage: Stage) -> None:
    hosted = stage.hosted()
    hosted.write_file(b"f", b"1")
    (version,) = stage.home.glob("**/undo/version")
    version.write_text("holdfast-undo 999\n")
    (version.parent / "beat").write_bytes(encode_beat(Heartbeat(5, 1, 0, 9)))
    for _ in range(2):
        with pytest.raises(HoldfastError) as caught:
            hosted.start()
        assert caught.value.code == "undo_version_mismatch"
    assert len(stage.told(VersionMismatch)) == 1
    with hosted.workspace() as workspace:
        workspace.discard_steps()
    hosted.start()
    assert hosted.state == "idle"


def test_a_slow_reader_makes_the_command_wait(stage: Stage) -> None:
    hosted = stage.hosted()
    blocked, go_on = threading.Event(), threading.Event()
    size = 0

    def take(_stream: str, data: bytes) -> None:
        nonlocal size
        blocked.set()
        go_on.wait(60)
        size += len(data)

    thread = threading.Thread(target=lambda: hosted.execute("head -c 5000000 /dev/zero; touch end", on_output=take))
    thread.start()
    assert blocked.wait(60)
    hosted.write_file(b"meanwhile", b"1")  # nothing else waits
    assert not (stage.tree() / "end").exists()
    go_on.set()
    thread.join(60)
    assert size == 5_000_000
    assert (stage.tree() / "end").exists()


def test_no_label_means_two_directories(stage: Stage) -> None:
    names = ("a/src", "b/src", "c/1", "d")
    paths = [os.fsencode(stage.base / name) for name in names]
    for path in paths:
        os.makedirs(path)
    for labels, field in (
        (("x", "", "x"), 2),
        (("", "1"), 1),
        (("-1",), 0),
        ((os.fsdecode(paths[1]), ""), 0),
    ):
        given = [DirectorySpec(path, label) for path, label in zip(paths, labels, strict=False)]
        with pytest.raises(UsageError, match=rf"working_directories\[{field}\].label") as caught:
            stage.host(*given)
        assert caught.value.data == {"field": f"payload.working_directories[{field}].label"}
    host = stage.host(*(DirectorySpec(path) for path in paths))
    first, second, third, fourth = host.directories
    assert [each.label for each in host.directories] == ["src", os.fsdecode(paths[1]), os.fsdecode(paths[2]), "d"]
    assert (host.directory("src"), host.directory(second.label), host.directory(1)) == (first, second, second)
    assert (host.directory(third.label), host.directory("d")) == (third, fourth)
    host = stage.host(DirectorySpec(paths[0]), DirectorySpec(paths[1], "src"))
    assert [each.label for each in host.directories] == [os.fsdecode(paths[0]), "src"]
