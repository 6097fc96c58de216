"""The parts of the native loop that can be asked one by one: its gate, its sets, its journal, and how it is built."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import StorageError
from holdfast.undo.journal.records import Failed
from holdfast.undo.journal.segments import Journal, read_journal

from ...waiting import wait_until

SOURCES = Path(__file__).parents[3] / "native"


def _hot() -> ModuleType:
    return pytest.importorskip("holdfast._hot")


def test_the_gate_is_given_in_the_order_in_which_it_is_asked_for() -> None:
    gate = _hot().Gate()
    order: list[int] = []
    threads: list[threading.Thread] = []

    def take(number: int) -> None:
        with gate:
            order.append(number)

    with gate, gate:
        for number in range(4):
            thread = threading.Thread(target=take, args=(number,))
            thread.start()
            threads.append(thread)
            wait_until(lambda thread=thread: _waits(thread))
        assert order == []
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3]


def _waits(thread: threading.Thread) -> bool:
    """Whether it waits for a lock in the kernel."""
    return "futex" in Path(f"/proc/self/task/{thread.native_id}/wchan").read_text()


def test_a_condition_gives_the_gate_up_however_often_it_was_taken() -> None:
    gate = _hot().Gate()
    idle = threading.Condition(gate)
    done: list[str] = []

    def wait() -> None:
        with gate, gate:
            idle.wait_for(lambda: bool(done))
            done.append("woken")

    thread = threading.Thread(target=wait)
    thread.start()
    with gate:
        done.append("told")
        idle.notify_all()
    thread.join()
    assert done == ["told", "woken"]


def test_only_its_owner_gives_the_gate_up() -> None:
    gate = _hot().Gate()
    with pytest.raises(RuntimeError):
        gate.release()
    with gate:
        taken: list[bool] = []
        thread = threading.Thread(target=lambda: taken.append(gate.acquire(blocking=False)))
        thread.start()
        thread.join()
        assert taken == [False]


@given(st.lists(st.tuples(st.sampled_from(["add", "discard", "ask"]), st.binary(max_size=3))))
def test_a_set_holds_what_a_set_of_python_holds(changes: list[tuple[str, bytes]]) -> None:
    hot = _hot()
    ours, theirs = hot.Log(hot.Gate(), -1, 0).new_step(1, False).created, set[bytes]()
    for change, key in changes:
        if change == "ask":
            assert (key in ours) == (key in theirs)
        else:
            getattr(ours, change)(key)
            getattr(theirs, change)(key)
        assert len(ours) == len(theirs)
    assert set(ours) == theirs


def test_objects_are_told_by_device_and_number_and_nothing_else_is_taken() -> None:
    hot = _hot()
    contacts = hot.Log(hot.Gate(), -1, 0).new_step(1, False).contacts
    contacts.add((0, 1 << 63))
    assert (0, 1 << 63) in contacts
    assert (1 << 63, 0) not in contacts
    for wrong in ("text", (1, -1), (1, 2, 3), None):
        with pytest.raises((TypeError, OverflowError)):
            contacts.add(wrong)


def test_a_record_that_is_cut_short_is_taken_back(tmp_path: Path) -> None:
    hot = _hot()
    journal = Journal(os.fsencode(tmp_path))
    journal.write_by(hot.Log(hot.Gate(), -1, 0))
    journal.append(Failed(1, 1, 1))
    size = (tmp_path / "journal-00000001").stat().st_size
    code = (
        "import resource, sys; from holdfast._hot import *; log = Log(Gate(), -1, 0); import os, signal;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size + 5},) * 2);"
        f"fd = os.open({str(tmp_path / 'journal-00000001')!r}, os.O_WRONLY | os.O_APPEND); log.set_journal(fd, {size});"
        "print(log.append(b'x' * 100), log.written, log.append(b'x' * 100))"
    )
    told = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True).stdout.split()
    assert told[1] == str(size)
    assert int(told[0]) > 0
    journal.append(Failed(2, 1, 1))
    assert [record.seq for record in read_journal(os.fsencode(tmp_path)).records] == [1, 2]
    journal.close()
    with pytest.raises(StorageError):
        journal.append(Failed(3, 1, 1))


def test_how_full_the_journal_is_counts_what_was_written_natively(tmp_path: Path) -> None:
    journal = Journal(os.fsencode(tmp_path))
    log = _hot().Log(_hot().Gate(), -1, 0)
    journal.write_by(log)
    assert not journal.is_full
    log.set_journal(-1, (2 << 30) + 1)
    assert journal.is_full
    journal.close()


def _builder() -> ModuleType:
    specification = importlib.util.spec_from_file_location("native_build", SOURCES / "build.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_without_a_compiler_it_is_said_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = _builder()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(builder.CannotBuildError, match="no C compiler"):
        builder.build(tmp_path / "module.so")
    assert not (tmp_path / "module.so").exists()


def test_what_is_wrong_is_an_error_of_the_compilers(tmp_path: Path) -> None:
    builder = _builder()
    with pytest.raises(builder.CannotBuildError, match=r"false failed|cc failed"):
        builder.build(tmp_path / "module.so", ("false",))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("clang") is None, reason="libFuzzer comes with clang")
def test_hostile_calls_touch_nothing_that_they_should_not(tmp_path: Path) -> None:
    """For a while; `build_fuzzer` in native/build.py makes the program that goes on for as long as one likes."""
    program = tmp_path / "fuzz"
    _builder().build_fuzzer(program)
    command = (str(program), "-max_len=4000", "-max_total_time=60", "-print_final_stats=1")
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
