"""What the keeper logs of the requests of a frontend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from holdfast.engine.opening.opener import Opener
from holdfast.engine.opening.undo_log import log_directory
from holdfast.supervisor.keeper.stderr_log import LogReader

from ..waiting import wait_until
from .frontend import Start


def keeper_log(home: Path, tree: Path) -> list[dict[str, Any]]:
    opener = Opener(home=bytes(home))
    try:
        path = Path(log_directory(opener.open(bytes(tree))).decode()) / "keeper.log"
    finally:
        opener.close()
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]


def test_lines_of_the_keeper_name_the_request(start: Start, tree: Path, tmp_path: Path) -> None:
    client = start("--log-level", "info")
    client.ask("hello", versions=[1])
    client.ask("session.start")
    command = client.send("agent.execute", command="echo 1 > f")
    assert client.answer(command)["payload"]["changed"] == 1
    undo = client.send("undo.rollback")
    assert client.answer(undo)["payload"]["steps"] == [1]

    def of(request: str) -> list[str]:
        return [line["message"] for line in keeper_log(tmp_path / "home", tree) if line.get("request_id") == request]

    wait_until(lambda: "step committed" in of(command))
    wait_until(lambda: any("rollback" in message for message in of(undo)))
    wait_until(lambda: "step committed" in [each["message"] for each in client.events("log")])
    (committed,) = [each for each in client.events("log") if each["message"] == "step committed"]
    assert (committed["request_id"], committed["step_id"], committed["directory"]) == (command, 1, 0)
    assert (committed["component"], committed["level"]) == ("undo", "info")


def test_a_log_that_is_begun_anew_is_read_on(tmp_path: Path) -> None:
    log = tmp_path / "keeper.log"
    log.write_text("old\n")
    reader = LogReader(bytes(tmp_path))
    with log.open("a") as file:
        file.write("one\nhalf")
        file.flush()
        assert reader.lines() == [b"one"]
        log.rename(tmp_path / "keeper.log.1")
        file.write(" of it\n")
    log.write_text("two\n")
    assert reader.lines() == [b"half of it"]
    assert reader.lines() == [b"two"]
    assert reader.lines() == []
    reader.close()
