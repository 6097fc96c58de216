from __future__ import annotations

import os
import subprocess
import sys

import pytest

from holdfast.model.errors import LockedError
from holdfast.store.database import SqliteDatabase
from holdfast.store.lease import LASTS, Lease, may_run, this_process
from holdfast.store.schema import APPLICATION_ID, MIGRATIONS
from holdfast.testing.clocks import ManualClock


@pytest.fixture
def database(tmp_path):
    found = SqliteDatabase(os.fsencode(tmp_path / "db"), MIGRATIONS, application_id=APPLICATION_ID)
    with found.writing() as session:
        session.run("INSERT INTO tenants (number, name, swept, latest) VALUES (1, 'local', 0, 0)")
    yield found
    found.close()


def another_process():
    code = "from holdfast.store.lease import this_process; print(this_process())"
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
    with database.writing() as session:
        session.run("UPDATE leases SET owner = 'another'")
    clock.advance(LASTS / 2e6)
    with pytest.raises(LockedError):
        lease.renew()
    lease.release()
    with database.reading() as session:
        assert session.one("SELECT owner FROM leases") == ("another",)


def test_a_dead_process_holds_nothing_up(database):
    clock = ManualClock()
    Lease(database, 1, "work", clock).acquire()
    with database.writing() as session:
        session.run("UPDATE leases SET owner = ?", (another_process(),))
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
        with database.writing() as session:
            session.run("UPDATE leases SET owner = 'another-boot 1 1'")
        here = ManualClock()
        with pytest.raises(LockedError):
            Lease(database, 1, f"work {apart}", here).acquire()
        here.advance(apart + LASTS / 1e6 + 1)
        Lease(database, 1, f"work {apart}", here).acquire()
