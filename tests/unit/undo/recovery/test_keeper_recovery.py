"""The program's log says what becomes of steps."""

from __future__ import annotations

import io
import json
from typing import Any

from holdfast.model.log import Level
from holdfast.model.log_format import LineHandler, send
from holdfast.testing.tree_actor import InterceptedActor
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.recovery.keeper_recovery import recover
from holdfast.undo.service import LogLimits

from ..conftest import Bench

SIZE = 40_000


class Heard:
    """What is logged from now on."""

    def __init__(self, level: Level) -> None:
        self._stream = io.StringIO()
        send(level, LineHandler(as_json=True, stream=self._stream))

    def lines(self) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self._stream.getvalue().splitlines()]
        assert {line["component"] for line in found} <= {"undo"}
        return found


def lose(actor: InterceptedActor) -> None:
    actor.write(b"written", b"new")
    actor.unlink(b"removed")
    actor.rename(b"moved", b"replaced")


def plant(bench: Bench) -> None:
    for name in ("written", "removed", "moved", "replaced"):
        (bench.tree / name).write_text(f"the content of {name}")


def test_each_preimage_is_told_of_at_debug_and_no_content(bench: Bench) -> None:
    plant(bench)
    heard = Heard("debug")
    with bench.keeper() as log:
        step = bench.step(log, lose)
        undone = LocalUndoService(log).undo([step])
    captured = [line for line in heard.lines() if line["message"] == "preimage captured"]
    assert [(line["step_id"], line["path"]) for line in captured[:3]] == [
        (step, "written"),
        (step, "removed"),
        (step, "replaced"),
    ]
    assert "the content" not in json.dumps(heard.lines())
    told = next(line for line in heard.lines() if line["message"] == "rollback executed")
    assert (told["level"], told["steps"], told["operations"]) == ("info", [step], undone.paths)


def test_above_debug_preimages_are_not_told_of(bench: Bench) -> None:
    plant(bench)
    heard = Heard("info")
    with bench.keeper() as log:
        bench.step(log, lose)
    assert heard.lines() == []


def test_a_step_near_its_limit_is_told_of_once(bench: Bench) -> None:
    bench.limits = LogLimits(max_step_bytes=SIZE * 10)
    for number in range(10):
        (bench.tree / str(number)).write_bytes(b"x" * SIZE)
    heard = Heard("warn")

    def rewrite(actor: InterceptedActor) -> None:
        for number in range(10):
            actor.write(b"%d" % number, b"new")

    with bench.keeper() as log:
        step = bench.step(log, rewrite)
    (line,) = heard.lines()
    assert (line["level"], line["step_id"], line["max_bytes"]) == ("warn", step, SIZE * 10)
    assert line["current_bytes"] == SIZE * 9


def test_a_recovery_is_told_of_once(bench: Bench) -> None:
    plant(bench)
    bench.abandon(lose)
    heard = Heard("warn")
    for _ in range(2):
        with bench.keeper() as log:
            recover(log)
    (line,) = heard.lines()
    assert (line["level"], line["steps"]) == ("warn", [1])
    assert "rolled back" in line["message"]
