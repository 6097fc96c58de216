"""The watch service: a real tree, real sockets, a saver that only notes what it is asked."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from holdfast.engine.watching._pending_changes import PendingChanges
from holdfast.engine.watching._schedule import Pace
from holdfast.engine.watching.service import WatchSetup
from holdfast.files.tree import DirtyPaths
from holdfast.ipc import messages
from holdfast.model.checkpoint import Provenance
from holdfast.model.command_results import CheckpointRequest, CheckpointResult
from holdfast.model.errors import HoldfastError, LockedError, NotFoundError

from ....waiting import wait_until
from .watch_service import RECORD, STATUS, Nothing, Running, everything_read, raw, reach, request, running

if TYPE_CHECKING:
    from holdfast.files.watch import Watcher


def test_results_travel_whole(setup: WatchSetup) -> None:
    request = CheckpointRequest("run", "a label", Provenance("agent", "because\n", "make -j"), full_hash=True)
    with running(setup) as run, reach(setup) as watcher:
        result = watcher.checkpoint(request)
        assert run.saver.requests == [request]
        assert result == CheckpointResult(
            RECORD._replace(kind="run", labels=("a label",), provenance=request.provenance),
            created=True,
            not_captured=STATUS.not_captured,
            elapsed_ms=1.5,
            labelled=True,
        )
        assert watcher.status() == STATUS
        run.saver.status_answer = STATUS._replace(last_checkpoint=None, changes=[], unfinished_restore=None)
        assert watcher.status() == run.saver.status_answer


def test_ping_says_how_the_watcher_does(setup: WatchSetup) -> None:
    with running(setup), reach(setup) as watcher:
        found = watcher.ping()
        assert (found.pid, found.root, found.backend) == (os.getpid(), os.fsdecode(setup.root), "inotify")
        assert found.unsaved  # nobody has looked at the tree yet
        assert not found.paused
        watcher.checkpoint(CheckpointRequest())
        assert not watcher.ping().unsaved


class Other:
    """Something that a watcher sees to beside its own work."""

    def __init__(self) -> None:
        self.turns = 0
        self.ends = 0

    def due_in(self) -> float:
        return 0.001

    def turn(self) -> None:
        assert not self.ends
        self.turns += 1

    def end(self) -> None:
        self.ends += 1


def test_what_is_done_beside_gets_its_turn_when_it_is_due_and_not_during_a_pause(setup: WatchSetup) -> None:
    other = Other()
    with running(setup, other), reach(setup) as watcher:
        wait_until(lambda: other.turns > 100, "its turns")
        with watcher.pause():
            before = other.turns
            for _ in range(3):
                watcher.ping()
            assert other.turns == before
        wait_until(lambda: other.turns > before, "its turns, again")
        assert not other.ends
    assert other.ends == 1


def test_an_error_comes_out_as_it_went_in(setup: WatchSetup) -> None:
    with running(setup) as run, reach(setup) as watcher:
        run.saver.fail = [
            NotFoundError("no such thing", hint="look elsewhere", code="no_such"),
            ValueError("a mistake"),
        ]
        with pytest.raises(NotFoundError, match="no such thing") as caught:
            watcher.checkpoint(CheckpointRequest())
        assert (caught.value.hint, caught.value.code, caught.value.exit_code) == ("look elsewhere", "no_such", 3)
        with pytest.raises(HoldfastError, match="a mistake") as other:
            watcher.status()
        assert other.value.code == "internal"
        assert watcher.ping().pid


def test_a_failed_call_lets_everything_count_as_changed(setup: WatchSetup) -> None:
    """It has taken changes that it made no use of: none may be lost."""
    with running(setup) as run, reach(setup) as watcher:
        watcher.checkpoint(CheckpointRequest())
        watcher.checkpoint(CheckpointRequest())
        assert [dirty.everything for dirty in run.saver.taken] == [True, False]
        for ask in (lambda: watcher.checkpoint(CheckpointRequest()), watcher.status):
            run.saver.fail = [LockedError("busy")]
            with pytest.raises(LockedError):
                ask()
            assert watcher.ping().unsaved
            watcher.checkpoint(CheckpointRequest())
            assert run.saver.taken[-1].everything


def test_changes_reach_the_scan_that_comes_next(setup: WatchSetup) -> None:
    root = Path(os.fsdecode(setup.root))
    with running(setup) as run, reach(setup) as watcher:
        watcher.checkpoint(CheckpointRequest())
        (root / "sub/file").write_text("1")
        watcher.checkpoint(CheckpointRequest())
        assert run.saver.taken[-1].paths == {b"sub/file"}
        (root / "two").write_text("2")
        wait_until(lambda: watcher.ping().unsaved)
        (root / "three").write_text("3")
        watcher.status()
        assert run.saver.taken[-1].paths == {b"two", b"three"}


# -- saving by itself ---------------------------------------------------------------------------------------------


def test_saves_by_itself_when_something_has_changed(setup: WatchSetup) -> None:
    setup = setup._replace(pace=Pace(debounce=0.01, latest=1))
    with running(setup) as run:
        wait_until(lambda: run.saver.requests, "the first checkpoint")
        assert run.saver.taken[0].everything
        (Path(os.fsdecode(setup.root)) / "sub/file").write_text("1")
        wait_until(lambda: any(b"sub/file" in dirty.paths for dirty in run.saver.taken), "the file")
        request = run.saver.requests[-1]
        assert request.kind == "auto"
        time.strptime(request.label, "auto-%Y-%m-%dT%H:%M:%SZ")
        with reach(setup) as watcher:
            wait_until(lambda: not watcher.ping().unsaved)
            assert watcher.ping().checkpoints == len(run.saver.requests)


def test_status_says_when_the_next_save_is_due(setup: WatchSetup) -> None:
    setup = setup._replace(pace=Pace(debounce=1000, latest=2000))
    with running(setup) as run, reach(setup) as watcher:
        (Path(os.fsdecode(setup.root)) / "sub/file").write_text("1")
        wait_until(lambda: watcher.ping().unsaved, "the change")
        before = time.time()
        told = watcher.status()
        assert told.next_save_at is not None
        assert told.next_save_by is not None
        assert before < told.next_save_at / 1e6 <= time.time() + 1000
        assert told.next_save_by > told.next_save_at
        with watcher.pause():
            assert watcher.status().next_save_at is None  # it is not known when the pause ends
        run.saver.status_answer = STATUS._replace(changes=[])
        assert watcher.status().next_save_at is None  # what was noticed made no difference


def test_a_failure_is_tried_again_and_said(setup: WatchSetup, caplog: pytest.LogCaptureFixture) -> None:
    setup = setup._replace(pace=Pace(debounce=0, latest=0, first_retry=0.05, last_retry=0.05))
    run = Running(setup)
    run.saver.fail = [HoldfastError("disk full"), RuntimeError("a mistake"), HoldfastError("disk full")]
    run.thread.start()
    with caplog.at_level(logging.WARNING):
        wait_until(lambda: len(run.saver.requests) >= 4, "the fourth attempt")
    with reach(setup) as watcher:
        wait_until(lambda: not watcher.ping().unsaved)
        assert watcher.ping().failure is None
    run.finish()
    assert all(dirty.everything for dirty in run.saver.taken)
    assert caplog.text.count("saving failed: disk full") == 2
    assert "a mistake" in caplog.text


def test_a_root_that_goes_and_comes_back(setup: WatchSetup) -> None:
    setup = setup._replace(pace=Pace(debounce=0.01, latest=1, first_retry=0.01, last_retry=0.01))
    root = Path(os.fsdecode(setup.root))
    with running(setup) as run:
        wait_until(lambda: run.saver.requests)
        (root / "sub").rmdir()
        root.rmdir()
        seen = len(run.saver.taken)
        wait_until(lambda: any(dirty.everything for dirty in run.saver.taken[seen:]))
        root.mkdir()
        seen = len(run.saver.taken)
        wait_until(lambda: any(dirty.everything for dirty in run.saver.taken[seen:]))
        (root / "back").touch()
        wait_until(lambda: any(b"back" in dirty.paths or dirty.everything for dirty in run.saver.taken[seen:]))


def test_unsaved_changes_are_saved_at_the_end(setup: WatchSetup) -> None:
    with running(setup) as run, reach(setup) as watcher:
        watcher.checkpoint(CheckpointRequest())
        (Path(os.fsdecode(setup.root)) / "late").touch()
        wait_until(lambda: watcher.ping().unsaved)
        watcher.stop()
        assert run.saver.requests[-1].kind == "auto"
        assert b"late" in run.saver.taken[-1].paths


def test_a_full_walk_now_and_then(setup: WatchSetup) -> None:
    setup = setup._replace(pace=Pace(debounce=0, latest=0, per_hour=10_000), full_walk_interval=0.02)
    with running(setup) as run:
        wait_until(lambda: sum(dirty.everything for dirty in run.saver.taken) >= 4)


def test_a_tree_that_cannot_be_watched_is_walked_when_the_time_has_come_and_not_before(setup: WatchSetup) -> None:
    """It always says that everything may have changed: to look again after each walk would be a walk without end."""
    pace = Pace(debounce=0, latest=0, per_hour=10_000)
    setup = setup._replace(backend="polling", poll_interval=3600, pace=pace, rest=0.0)
    with running(setup) as run, reach(setup) as watcher:
        wait_until(lambda: len(run.saver.taken) == 1)
        assert [watcher.ping().unsaved for _ in range(50)] == [False] * 50
        assert len(run.saver.taken) == 1


def test_what_polling_finds_is_saved_though_it_looks_more_often_than_it_is_quiet(setup: WatchSetup) -> None:
    """A look is no edit: it must not put off the save of the one before it."""
    root = Path(os.fsdecode(setup.root))
    setup = setup._replace(backend="polling", poll_interval=0.01, pace=Pace(debounce=0.1), rest=0.0)
    with running(setup) as run, reach(setup) as watcher:
        wait_until(lambda: len(run.saver.taken) == 1, "the first checkpoint")
        (root / "sub/file").write_text("1")
        wait_until(lambda: len(run.saver.taken) >= 2, "the edit")
        wait_until(lambda: not watcher.ping().unsaved, "the end of what was unsaved")


def test_rules_outside_of_the_tree_that_change_make_everything_count_as_changed(
    setup: WatchSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(setup) as run, reach(setup) as watcher:
        watcher.checkpoint(CheckpointRequest())
        watcher.status()
        refreshed: list[bool] = []
        monkeypatch.setattr(run.service._watcher, "refresh", lambda: refreshed.append(True) or True)
        run.exclusion.changed = True
        watcher.status()
        watcher.status()
        assert [dirty.everything for dirty in run.saver.taken] == [True, False, True, False]
        assert refreshed == [True]


def test_retention_now_and_then_and_its_failure_is_survived(
    setup: WatchSetup, caplog: pytest.LogCaptureFixture
) -> None:
    setup = setup._replace(retention_interval=0.01)
    run = Running(setup)
    run.saver.fail = [HoldfastError("locked")]
    run.thread.start()
    wait_until(lambda: run.saver.retentions >= 3)
    run.finish()
    assert "retention failed: locked" in caplog.text


# -- working ahead ------------------------------------------------------------------------------------------------


def test_what_changes_is_prepared(setup: WatchSetup) -> None:
    root = Path(os.fsdecode(setup.root))
    with running(setup) as run, reach(setup) as watcher:
        watcher.checkpoint(CheckpointRequest())
        (root / "sub" / "file").write_bytes(b"before")
        wait_until(lambda: b"sub/file" in run.saver.prepared, "the file")
        assert run.saver.last_prepared
        watcher.checkpoint(CheckpointRequest())
        run.saver.prepared.clear()
        (root / "sub" / "file").write_bytes(b"after")
        wait_until(lambda: b"sub/file" in run.saver.prepared, "the file after a save")
        assert len(run.saver.requests) == 2


def test_after_a_save_what_changes_is_noticed_soon_however_stormy_it_was(setup: WatchSetup) -> None:
    root = Path(os.fsdecode(setup.root))
    with running(setup._replace(rest=10_000)) as run, reach(setup) as watcher:
        watcher.checkpoint(CheckpointRequest())
        wait_until(lambda: watcher.ping() and not run.service._resting, "its rest after the save is over")
        run.service._pause = 1000
        (root / "one").write_bytes(b"x")
        wait_until(lambda: b"one" in run.saver.prepared, "the file")  # and nothing is looked at for 1,500 seconds
        watcher.checkpoint(CheckpointRequest())
        (root / "other").write_bytes(b"x")
        wait_until(lambda: b"other" in run.saver.prepared, "the file after a save")


def test_a_failure_to_prepare_is_survived(setup: WatchSetup, caplog: pytest.LogCaptureFixture) -> None:
    root = Path(os.fsdecode(setup.root))
    with running(setup) as run, reach(setup) as watcher:
        watcher.checkpoint(CheckpointRequest())
        failures = {b"one": HoldfastError("no such page"), b"other": ValueError("a mistake")}
        for name, run.saver.prepare_fails in failures.items():
            (root / os.fsdecode(name)).write_bytes(b"x")
            wait_until(lambda name=name: name in run.saver.prepared, "the file")
        assert watcher.ping().failure is None
        watcher.checkpoint(CheckpointRequest())
        assert failures.keys() <= run.saver.taken[-1].paths
    assert "preparing failed" in caplog.text


def test_nothing_is_prepared_during_a_pause(setup: WatchSetup) -> None:
    root = Path(os.fsdecode(setup.root))
    with running(setup) as run, reach(setup) as watcher:
        watcher.checkpoint(CheckpointRequest())
        with reach(setup) as other:
            with other.pause():
                (root / "file").write_bytes(b"half way")
                wait_until(lambda: watcher.ping().unsaved, "the file")
                assert run.saver.prepared == []
            wait_until(lambda: b"file" in run.saver.prepared, "the end of the pause")


def test_who_wants_nothing_prepared_is_spared(setup: WatchSetup) -> None:
    root = Path(os.fsdecode(setup.root))
    with running(setup._replace(prepare=False)) as run, reach(setup) as watcher:
        watcher.checkpoint(CheckpointRequest())
        (root / "file").write_bytes(b"x")
        wait_until(lambda: watcher.ping().unsaved, "the file")
        assert [watcher.ping().unsaved for _ in range(20)] == [True] * 20
        assert run.saver.prepared == []


class Telling:
    """A watcher that says what it is told to."""

    backend, limits = "inotify", None

    def __init__(self, *answers: set[bytes]) -> None:
        self.answers = list(answers)

    def drain(self) -> DirtyPaths:
        return DirtyPaths(everything=False, paths=frozenset(self.answers.pop(0) if self.answers else ()))


def changes_of(*answers: set[bytes]) -> PendingChanges:
    return PendingChanges(cast("Watcher", Telling(*answers)), Nothing(), lambda: None, lambda: None)


def test_of_very_many_changes_nothing_more_is_prepared() -> None:
    changes = changes_of({b"%d" % number for number in range(600)}, {b"%d" % number for number in range(1200)})
    changes.read_watcher()
    assert len(changes.to_prepare(100)) == 100
    assert changes.unprepared
    changes.read_watcher()
    assert not changes.unprepared
    assert len(changes.drain().paths) == 1200


def test_what_changes_all_the_time_is_prepared_a_few_times_until_it_is_saved() -> None:
    changes = changes_of(*({b"log"} for _ in range(5)), set(), {b"log"})

    def given() -> list[bytes]:
        changes.read_watcher()
        return changes.to_prepare(10)

    assert [given() for _ in range(5)] == [[b"log"], [b"log"], [b"log"], [], []]
    assert not changes.unprepared
    assert changes.drain().paths == {b"log"}
    assert given() == [b"log"]
    changes.doubt()
    assert not changes.unprepared


# -- pauses -------------------------------------------------------------------------------------------------------


def test_nothing_is_saved_during_a_pause(setup: WatchSetup) -> None:
    setup = setup._replace(pace=Pace(debounce=0, latest=0))
    root = Path(os.fsdecode(setup.root))
    with running(setup) as run, reach(setup) as watcher:
        wait_until(lambda: run.saver.requests)
        with watcher.pause():
            done = len(run.saver.requests)
            (root / "during").touch()
            wait_until(lambda: watcher.ping().unsaved)
            assert watcher.ping().paused
            assert len(run.saver.requests) == done
            with reach(setup) as other:
                with pytest.raises(LockedError) as caught:
                    other.checkpoint(CheckpointRequest())
                assert caught.value.code == "paused"
                with other.pause():  # two at once: it goes on when both have ended
                    pass
                assert other.ping().paused
            watcher.checkpoint(CheckpointRequest())  # whoever paused may
        wait_until(lambda: not watcher.ping().paused)


def test_the_pause_of_a_client_that_dies_ends(setup: WatchSetup) -> None:
    with running(setup), reach(setup) as watcher:
        connection = raw(setup)
        connection.sendall(request("pause"))
        assert messages.decode_result(connection.recv(1000)[messages.HEADER_BYTES :]) == {}
        assert watcher.ping().paused
        connection.close()
        wait_until(lambda: not watcher.ping().paused)


def test_pausing_a_watcher_that_has_just_stopped(setup: WatchSetup) -> None:
    with running(setup):
        watcher = reach(setup)
        other = reach(setup)
    with watcher, watcher.pause():
        pass
    with other, pytest.raises(HoldfastError) as caught:
        other.status()
    assert caught.value.code == "watcher_gone"


def test_a_pause_outlives_idleness(setup: WatchSetup) -> None:
    setup = setup._replace(limits=setup.limits._replace(idle=0.05))
    with running(setup):
        idle = raw(setup)
        with reach(setup) as watcher, watcher.pause():
            assert everything_read(idle) == b""  # hung up on, being idle
            idle.close()
            assert watcher.ping().paused
