"""What is logged reaches a stream as lines of JSON, each with the same fields, or readable, and drives no terminal."""

from __future__ import annotations

import contextvars
import io
import json
import logging
import re
import threading

import pytest

from holdfast.model.log import LEVELS, Level, Log, child_level, logged
from holdfast.model.log_format import LineHandler, component_of, send
from holdfast.model.paths import parse_display

LOG = Log("holdfast.files.watch")


def sent(level: Level, *, as_json: bool) -> io.StringIO:
    """Where records go from now on."""
    stream = io.StringIO()
    send(level, LineHandler(as_json=as_json, stream=stream))
    return stream


def parsed(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def say_all(log: Log) -> None:
    for say in (log.error, log.warning, log.info, log.debug, log.trace):
        say("said", number=1)


@pytest.mark.parametrize("level", LEVELS)
def test_every_line_parses_and_has_the_fields_and_the_level_filters(level: Level) -> None:
    stream = sent(level, as_json=True)
    say_all(LOG)
    lines = parsed(stream)
    assert [line["level"] for line in lines] == list(LEVELS)[: list(LEVELS).index(level) + 1]
    for line in lines:
        assert list(line) == ["timestamp", "level", "component", "message", "number"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", str(line["timestamp"]))
        assert (line["component"], line["message"], line["number"]) == ("file_watcher", "said", 1)


def test_what_is_sent_elsewhere_is_not_sent_twice() -> None:
    first = sent("info", as_json=True)
    second = sent("info", as_json=True)
    LOG.info("saved")
    assert (first.getvalue(), len(parsed(second))) == ("", 1)


def test_values_are_what_json_can_say_and_bounded() -> None:
    stream = sent("info", as_json=True)
    LOG.info(
        "%s \udcff \ud800",
        "two\nlines",
        path=b"caf\xe9/\\",
        paths=[b"a", "b"],
        many=range(1000),
        long="x" * 100_000,
        nan=float("nan"),
        other=ValueError("no"),
        nested={"path": b"\xff"},
        level="not the record's",
    )
    (line,) = parsed(stream)
    assert (line["message"], line["level"]) == ("two\nlines \\xff \\xed\\xa0\\x80", "info")
    assert parse_display(str(line["path"])) == b"caf\xe9/\\"
    assert (line["paths"], line["nan"], line["other"], line["nested"]) == (["a", "b"], "nan", "no", {"path": "\\xff"})
    assert len(stream.getvalue()) < 20_000


def test_a_mistake_brings_its_traceback_in_the_same_line() -> None:
    stream = sent("error", as_json=True)
    try:
        raise ValueError("a mistake")
    except ValueError:
        LOG.exception("a call failed")
    (line,) = parsed(stream)
    assert "a mistake" in str(line["exception"])
    assert "test_log_format" in str(line["exception"])


def test_requests_and_steps_are_named_where_they_are_served() -> None:
    stream = sent("info", as_json=True)
    with logged(request_id="r1"):
        with logged(step_id=7):
            LOG.info("both")
            LOG.info("the record's own goes first", step_id=8)
            contextvars.copy_context().run(LOG.info, "a copy")
            thread = threading.Thread(target=LOG.info, args=("another thread",))
            thread.start()
            thread.join()
        LOG.info("the request alone")
    LOG.info("neither")
    found = [(line.get("request_id"), line.get("step_id")) for line in parsed(stream)]
    assert found == [("r1", 7), ("r1", 8), ("r1", 7), (None, None), ("r1", None), (None, None)]


def test_people_read_lines_as_they_know_them() -> None:
    stream = sent("debug", as_json=False)
    LOG.warning("cannot watch %s", "x", path=b"x")
    LOG.info("saved")
    LOG.debug("call", call="openat", path=b"caf\xe9", step_id=3)
    assert stream.getvalue() == (
        "holdfast: warning: cannot watch x\n"
        "holdfast: saved\n"
        "holdfast: debug: call (call openat, path caf\\xe9, step_id 3)\n"
    )


@pytest.mark.parametrize("as_json", [True, False])
def test_nothing_drives_a_terminal(as_json: bool) -> None:
    stream = sent("debug", as_json=as_json)
    hostile = "".join(map(chr, range(0xA0))) + "\u202e\u2028"
    LOG.info("%s", hostile, path=hostile.encode(), **{hostile: [hostile]})
    (line,) = stream.getvalue().splitlines()
    assert line.isascii() or not as_json
    assert not re.search("[\x00-\x1f\x7f-\x9f\u2028-\u202e]", line)


def test_a_reader_that_is_gone_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    class Gone(io.StringIO):
        def write(self, _text: str, /) -> int:
            raise BrokenPipeError

    send("info", LineHandler(as_json=True, stream=Gone()))
    LOG.warning("nobody listens")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("module", "component"),
    [
        ("holdfast.undo.local_service.undo_service", "undo"),
        ("holdfast.undo.safeguards.tickets", "safeguard"),
        ("holdfast.supervisor.operations._open", "fs_backend"),
        ("holdfast.supervisor.outsiders.outside_watcher", "file_watcher"),
        ("holdfast.sandbox.channel", "control"),
        ("holdfast.sandbox._connection_relay", "session"),
        ("holdfast.api.mcp._tools", "mcp"),
        ("holdfast.api.stdio", "stdio_api"),
        ("holdfast.store.collection.collector", "store"),
        ("holdfast.cli.console", "cli"),
        ("holdfast.engine.history.checkpoint", "engine"),
        ("holdfast.files.ignore.rules", "engine"),
        ("holdfast", "engine"),
    ],
)
def test_components(module: str, component: str) -> None:
    assert component_of(module) == component


def test_a_component_can_be_given() -> None:
    stream = sent("info", as_json=True)
    Log("holdfast.engine.x", "session").info("started")
    assert parsed(stream)[0]["component"] == "session"


@pytest.mark.parametrize(
    ("number", "level"),
    [(50, "warn"), (40, "warn"), (30, "warn"), (20, "info"), (15, "info"), (10, "debug"), (5, "trace")],
)
def test_other_processes_log_as_this_one_but_warnings_at_least(number: int, level: Level) -> None:
    logging.getLogger("holdfast").setLevel(number)
    assert child_level() == level
