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

from holdfast.engine.merging import merging
from holdfast.engine.promotion import finishing, inplace, places, swapping
from holdfast.engine.promotion.promote import Promotions
from holdfast.engine.promotion.work import Work
from holdfast.engine.promotion.workflow import STEPS
from holdfast.files import kernel

CALLS = (
    *((os, name) for name in ("write", "fsync", "rename", "unlink", "mkdir", "rmdir", "symlink", "link")),
    *((kernel, name) for name in ("renameat2", "syncfs")),
)


AFTER = {
    "exchanged": (swapping, "exchange"),
    "put-together": (merging, "put_together"),
    "captured": (inplace, "put_together"),
    "forgotten": (finishing, "_forget_plan"),
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
        places._mounted = lambda: [os.fsencode(os.path.dirname(fork) + "/app")]
    kind, _, where = point.partition(":")
    counter = Counter(int(where) if kind == "call" else -1)

    def step(work: Work, *, name: str, real: Callable[[Work], Any]) -> Any:
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
        from holdfast.store.postgresql import PostgresDatabase

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
