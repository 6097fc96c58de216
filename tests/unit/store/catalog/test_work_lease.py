from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

from holdfast.model.errors import LockedError, StorageError
from holdfast.store.catalog.schema import APPLICATION_ID, MIGRATIONS
from holdfast.store.catalog.work_lease import LASTS, Lease, may_run, this_process
from holdfast.store.database.sql_database import SqliteDatabase
from holdfast.store.database.sqlite_wal_index import NoRoomError
from holdfast.testing.clocks import ManualClock


@pytest.fixture
def database(tmp_path):
    found = SqliteDatabase(os.fsencode(tmp_path / "db"), MIGRATIONS, application_id=APPLICATION_ID)
    with found.writing() as transaction:
        transaction.run("INSERT INTO tenants (number, name, swept, latest) VALUES (1, 'local', 0, 0)")
    yield found
    found.close()


def another_process():
    code = "from holdfast.store.catalog.work_lease import this_process; print(this_process())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_a_running_process_may_run_and_a_finished_one_does_not():
    assert may_run(this_process())
    assert not may_run(another_process())
    assert may_run("another-boot 1 1"), "nobody can tell"
    assert may_run("")


def test_one_at_a_time(database):
    clock = ManualClock()
    one, two = (Lease(database, 1, "work", clock) for _ in range(2))
    one.acquire()
    with pytest.raises(LockedError):
        two.acquire()
    Lease(database, 1, "other work", clock).acquire()
    one.release()
    two.acquire()
    two.release()
    two.release()


def test_a_lease_is_kept_by_renewing_and_lost_by_time(database):
    clock = ManualClock()
    one, two = (Lease(database, 1, "work", clock) for _ in range(2))
    one.acquire()
    for _ in range(3):
        clock.advance(LASTS / 2e6)
        one.renew()
    with pytest.raises(LockedError):
        two.acquire()
    clock.advance(LASTS / 1e6 + 1)
    two.acquire()


def test_a_lease_that_another_took_over_is_noticed(database):
    clock = ManualClock()
    lease = Lease(database, 1, "work", clock)
    lease.acquire()
    with database.writing() as transaction:
        transaction.run("UPDATE leases SET owner = 'another'")
    clock.advance(LASTS / 2e6)
    with pytest.raises(LockedError):
        lease.renew()
    lease.release()
    with database.reading() as transaction:
        assert transaction.one("SELECT owner FROM leases") == ("another",)


def test_a_dead_process_holds_nothing_up(database):
    clock = ManualClock()
    Lease(database, 1, "work", clock).acquire()
    with database.writing() as transaction:
        transaction.run("UPDATE leases SET owner = ?", (another_process(),))
    Lease(database, 1, "work", clock).acquire()


def test_a_clock_that_was_set_back_holds_nothing_up_for_long(database):
    clock = ManualClock()
    Lease(database, 1, "work", clock).acquire()
    clock.advance(-1_000_000)
    Lease(database, 1, "work", clock).acquire()


def test_clocks_of_two_machines_may_differ_a_little(database):
    """The other machine's clock is four minutes ahead, or behind: either way it has the lease, but not for ever."""
    for apart in (240, -240):
        clock = ManualClock()
        clock.advance(apart)
        theirs = Lease(database, 1, f"work {apart}", clock)
        theirs.acquire()
        with database.writing() as transaction:
            transaction.run("UPDATE leases SET owner = 'another-boot 1 1'")
        here = ManualClock()
        with pytest.raises(LockedError):
            Lease(database, 1, f"work {apart}", here).acquire()
        here.advance(apart + LASTS / 1e6 + 1)
        Lease(database, 1, f"work {apart}", here).acquire()


class Broken(SqliteDatabase):
    """What is written is kept, or not, and whoever wrote it is told that the connection was lost."""

    broken = ""

    @contextmanager
    def writing(self):
        if self.broken == "before":
            raise StorageError("lost", code="connection_lost")
        with super().writing() as transaction:
            yield transaction
        if self.broken == "after":
            raise StorageError("lost", code="commit_unknown")


@pytest.fixture
def broken(database, tmp_path):
    found = Broken(os.fsencode(tmp_path / "db"), MIGRATIONS, application_id=APPLICATION_ID)
    yield found
    found.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_could_not_be_given_back_holds_up_nobody_in_this_process(broken, when):
    """It would else last for minutes, as its process runs."""
    lease = Lease(broken, 1, "work", ManualClock())
    lease.acquire()
    broken.broken = when
    with pytest.raises(StorageError):
        lease.release()
    broken.broken = ""
    other = Lease(broken, 1, "work", ManualClock())
    other.acquire()
    with pytest.raises(LockedError):
        lease.acquire()
    lease.release()
    with pytest.raises(LockedError):
        lease.acquire()
    other.release()
    lease.acquire()


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_nobody_knows_to_have_got_is_nobody_s(broken, when):
    broken.broken = when
    with pytest.raises(StorageError):
        Lease(broken, 1, "work", ManualClock()).acquire()
    broken.broken = ""
    Lease(broken, 1, "work", ManualClock()).acquire()
    with pytest.raises(LockedError):
        Lease(broken, 1, "work", ManualClock()).acquire()


def test_one_that_was_lost_to_another_of_the_same_process_is_lost(database):
    clock = ManualClock()
    one, two = (Lease(database, 1, "work", clock) for _ in range(2))
    one.acquire()
    clock.advance(LASTS / 1e6 + 1)
    two.acquire()
    clock.advance(LASTS / 2e6)
    with pytest.raises(LockedError):
        one.renew()
    two.renew()


def test_the_owner_of_a_lease_tells_whether_its_process_is_gone(database):
    """Also to a version that knows of no digits in it: it takes it for another machine's."""
    Lease(database, 1, "work", ManualClock()).acquire()
    with database.reading() as transaction:
        (owner,) = transaction.one("SELECT owner FROM leases")
    boot, pid, began = owner.split(" ")
    assert (boot.count("/"), pid) == (2, str(os.getpid()))
    assert may_run(owner)
    assert not may_run(f"{boot} {pid} 0{began}")


def test_who_only_reads_goes_on_without_it_on_a_full_disk_unless_another_has_it(database, monkeypatch):
    clock = ManualClock()
    other, reader = Lease(database, 1, "work", clock), Lease(database, 1, "work", clock, is_optional=True)
    other.acquire()

    def full():
        raise NoRoomError("no space left")

    with monkeypatch.context() as at:
        at.setattr(database, "writing", full)
        with pytest.raises(LockedError):
            reader.acquire()
    other.release()
    with monkeypatch.context() as at:
        at.setattr(database, "writing", full)
        reader.acquire()
        reader.renew()
        reader.release()
        with pytest.raises(NoRoomError):
            other.acquire()
    other.acquire()
