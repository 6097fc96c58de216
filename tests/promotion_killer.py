"""Promotes a fork, and is killed on the way: run as a program by tests (`tests/crash/test_promotion_killed.py`).

Arguments: the home, the fork, where to die (``before:STEP``, ``after:STEP``, ``exchanged:``,
``put-together:``, ``captured:``, ``forgotten:``, or ``call:N``: just before
the Nth change of the disk or of the catalog from the step ``swap`` on), where ``after`` is before it is noted that the
step has been done; and ``in-place``, for a production that is
taken for a mount point, or ``resume``, to go on with what was begun.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.engine.merging import fork_merge
from holdfast.engine.promotion import _build_directory as build_directory
from holdfast.engine.promotion import _cleanup as cleanup
from holdfast.engine.promotion import _in_place_update as in_place_update
from holdfast.engine.promotion import _swap as swap
from holdfast.engine.promotion._job_context import PromotionJob
from holdfast.engine.promotion._workflow import STEPS
from holdfast.engine.promotion.manager import Promotions
from holdfast.files.linux import syscalls

CALLS = (
    *((os, name) for name in ("write", "fsync", "rename", "unlink", "mkdir", "rmdir", "symlink", "link")),
    *((syscalls, name) for name in ("renameat2", "syncfs")),
)


AFTER = {
    "exchanged": (swap, "exchange"),
    "put-together": (fork_merge, "create_derived_checkpoint"),
    "captured": (in_place_update, "create_derived_checkpoint"),
    "forgotten": (cleanup, "_forget_plan"),
}
"""Where to die when a function has done its work, and nobody knows of that yet."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after(module: Any, function: str) -> None:
    """Die as soon as ``function`` has returned."""
    real = getattr(module, function)

    def last(*positional: object, **named: object) -> None:
        real(*positional, **named)
        die()

    setattr(module, function, last)


class Counter:
    def __init__(self, fatal: int) -> None:
        self.fatal = fatal
        self.count = 0
        self.armed = False

    def step(self) -> None:
        if self.armed:
            self.count += 1
            if self.count == self.fatal:
                die()


def main(home: str, fork: str, point: str, how: str = "") -> None:
    if how == "in-place":
        build_directory._mounted = lambda: [os.fsencode(os.path.dirname(fork) + "/app")]
    kind, _, where = point.partition(":")
    counter = Counter(int(where) if kind == "call" else -1)

    def step(work: PromotionJob, *, name: str, real: Callable[[PromotionJob], Any]) -> Any:
        if point == f"before:{name}":
            die()
        if name == "swap":
            counter.armed = True
        found = real(work)
        if point == f"after:{name}":
            die()
        return found

    for name, real in STEPS.items():
        STEPS[name] = partial(step, name=name, real=real)
    for name, (module, function) in AFTER.items():
        if kind == name:
            after(module, function)
    if kind == "call":
        arm(counter)
    promotions = Promotions(home=home)
    print((promotions.resume() if how == "resume" else promotions.promote(fork)).answer.result, counter.count)


def arm(counter: Counter) -> None:
    calls: list[tuple[Any, str]] = list(CALLS)
    if os.environ.get("HOLDFAST_STORE_CATALOG"):
        from holdfast.store.postgresql.database import PostgresDatabase

        calls.append((PostgresDatabase, "_commit"))
    for module, name in calls:
        original = getattr(module, name)

        def call(*positional: object, original=original, **named: object) -> object:
            counter.step()
            return original(*positional, **named)

        setattr(module, name, call)
    connect = sqlite3.connect

    class Stepping(sqlite3.Connection):
        def execute(self, sql: str, /, *parameters: Any) -> sqlite3.Cursor:
            if sql == "COMMIT":
                counter.step()
            return super().execute(sql, *parameters)

    sqlite3.connect = lambda *positional, **named: connect(*positional, **{"factory": Stepping, **named})


if __name__ == "__main__":
    main(*sys.argv[1:])
