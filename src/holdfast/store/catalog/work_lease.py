"""Leases: work that only one process does at a time, which a killed process does not hold up."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.model.errors import LockedError
from holdfast.model.log import Log
from holdfast.store.database.sqlite_wal_index import NoRoomError

if TYPE_CHECKING:
    from holdfast.model.clock import Clock
    from holdfast.store.database.sql_database import Database, Transaction

_LOG = Log(__name__)

LASTS = 300 * 1_000_000
"""Microseconds after which an unrenewed lease is lost if its process's end cannot be verified. The clocks of machines
that share a catalog may differ by less than this.
"""


def this_process() -> str:
    """The running process, in a way that no other process ever has: the boot, the pid and when it began."""
    return process_name(os.getpid())


def process_name(pid: int) -> str:
    """A process that runs, named as `this_process` names the running one."""
    return f"{_boot()} {pid} {_began(pid)}"


def of_this_boot(owner: str) -> bool:
    """Whether a process that was named so has run since the machine was started, where this one sees it."""
    return owner.partition(" ")[0] == _boot()


def may_run(owner: str) -> bool:
    """False if the process that `this_process`, or a lease's owner, names has surely ended; True if it runs or that is
    unknown.
    """
    boot, _, rest = owner.partition(" ")
    boot = "/".join(boot.split("/")[:2])
    pid, _, began = rest.partition(" ")
    if boot != _boot() or not pid.isdigit() or not began:
        return True  # another machine's or container's
    return _began(int(pid)) == began


def process_named(owner: str) -> int | None:
    """The number of the process with this name from `this_process`; None if it has ended, or that is unknown."""
    boot, _, rest = owner.partition(" ")
    pid, _, began = rest.partition(" ")
    if boot != _boot() or not pid.isdigit() or not began or _began(int(pid)) != began:
        return None
    return int(pid)


_LEFT: set[str] = set()
"""Owners of leases, in this process, that could not be released, or maybe were not acquired: the next acquirer in this
process takes them over.
"""


def _owner() -> str:
    """The owner of one lease, from when it is acquired until it is released: the process, and 16 hex digits."""
    boot, _, rest = this_process().partition(" ")
    # The digits follow the boot: a process of an older version takes the owner for another machine's, and not for a
    # process that has ended.
    return f"{boot}/{secrets.token_hex(8)} {rest}"


def _boot() -> str:
    try:
        # The pid namespace is part of the name: a pid means nothing to a process in another container.
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _began(pid: int) -> str:
    try:
        # Field 22, counted from behind the command's name, which may hold anything.
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


class Lease:
    """Work of a tenant that only one process does at a time; ended by `release`, by the death of its process, or by
    time.

    Losing it does not harm the store: its holder must be correct without it, only slower.
    """

    __slots__ = ("_clock", "_database", "_is_optional", "_name", "_owner", "_renewed", "_tenant")

    def __init__(self, database: Database, tenant: int, name: str, clock: Clock, *, is_optional: bool = False) -> None:
        """``is_optional``: for who only reads, and goes on without it where the disk is too full to note it."""
        self._database = database
        self._tenant = tenant
        self._name = name
        self._clock = clock
        self._is_optional = is_optional
        self._owner = ""
        self._renewed = 0

    def acquire(self) -> None:
        """Acquire or renew it; raises `LockedError` if another process that may still run has it.

        If the catalog is read-only every process has it: none can do the work.
        """
        if self._database.read_only:
            return
        owner = _owner()
        try:
            with self._database.writing() as transaction:
                now = self._clock.now()
                last = self._last_owner(transaction, now)
                transaction.run(
                    """INSERT INTO leases (tenant, name, owner, expires_at) VALUES (?, ?, ?, ?)
                    ON CONFLICT (tenant, name) DO UPDATE
                    SET owner = excluded.owner, expires_at = excluded.expires_at""",
                    (self._tenant, self._name, owner, now + LASTS),
                )
        except LockedError:
            raise
        except NoRoomError:
            if not self._is_optional:
                raise
            with self._database.reading(once=True) as transaction:
                self._last_owner(transaction, self._clock.now())
            _LOG.warning(
                "the disk is full, so that nothing keeps a collection from starting: free some space and try again "
                "where anything is said to be missing"
            )
            return
        except BaseException:
            _LEFT.add(owner)  # it may be ours for all that: the answer to the commit can be lost
            raise
        _LEFT.discard(last)
        self._owner, self._renewed = owner, now

    def _last_owner(self, transaction: Transaction, now: int) -> str:
        """Its last owner; empty if there was none. Raises `LockedError` if another one that may still run has it."""
        row = transaction.one(
            "SELECT owner, expires_at FROM leases WHERE tenant = ? AND name = ?", (self._tenant, self._name)
        )
        free = row is None or row[0] == self._owner or row[0] in _LEFT
        if row is not None and not free and now < row[1] <= now + 2 * LASTS and may_run(row[0]):
            raise LockedError(
                f"another process is at work on the store: {self._name}", hint="try again when it has finished"
            )
        return "" if row is None else row[0]

    @property
    def _is_without(self) -> bool:
        """Whether it cannot be written down that it is held."""
        return self._database.read_only or (self._is_optional and not self._owner)

    def renew(self) -> None:
        """Keep it; call this now and then. Raises `LockedError` if it was lost to another process."""
        now = self._clock.now()
        if self._is_without or 0 <= now - self._renewed < LASTS // 5:
            return
        with self._database.writing() as transaction:
            kept = transaction.run(
                "UPDATE leases SET expires_at = ? WHERE tenant = ? AND name = ? AND owner = ?",
                (now + LASTS, self._tenant, self._name, self._owner),
            )
        if not kept:
            raise LockedError(f"another process has taken over: {self._name}", hint="nothing is lost; it goes on there")
        self._renewed = now

    def release(self) -> None:
        """Give it back. Harmless if it is not held."""
        if self._is_without:
            return
        try:
            with self._database.writing() as transaction:
                transaction.run(
                    "DELETE FROM leases WHERE tenant = ? AND name = ? AND owner = ?",
                    (self._tenant, self._name, self._owner),
                )
        except BaseException as error:
            _LEFT.add(self._owner)
            if not (self._is_optional and isinstance(error, NoRoomError)):
                raise
            self._owner = ""
            return
        _LEFT.discard(self._owner)
        self._owner = ""
