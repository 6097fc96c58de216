"""The rung ``command``: an agent of any kind, also one that is slow, loud, hostile or not there."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.engine.merging.reapply._agent_command import AgentCommand, parse_answer
from holdfast.engine.merging.reapply._strategy import Declined, NewContent, ReapplyTask, RungOutcome, refusal

from .....waiting import wait_until

TASK = ReapplyTask(b"src/a.py", "content", b"now\nx\n", b"before\nx\n", b"after\nx\n", [3, 4], {"beside": ["b"]})


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "HOME", bytes(tmp_path / "home"))


HOME = b""
"""Of the test that runs."""


def asked(code: str, *, timeout: float = 20.0, max_bytes: int = 1 << 16, task: ReapplyTask = TASK) -> RungOutcome:
    """What comes of an agent that is this Python code; nothing of what it was started in is left."""
    command = AgentCommand(
        [sys.executable, "-c", code], home=HOME, timeout=timeout, total_timeout=900, max_bytes=max_bytes
    )
    try:
        return command.ask(task)
    finally:
        assert os.listdir(os.path.join(HOME, b"reapply")) == [b".lock"]


def test_it_is_told_of_the_change_and_answers() -> None:
    code = """
import json, os, sys
given = json.load(sys.stdin)
assert given["current"] == "now\\nx\\n" and given["before"] == "before\\nx\\n" and given["after"] == "after\\nx\\n"
assert given["diff"] == "@@ -1,2 +1,2 @@\\n-before\\n+after\\n x\\n", given["diff"]
assert given["path"] == "src/a.py" and given["changesets"] == [3, 4] and given["about"] == {"beside": ["b"]}
assert os.listdir(".") == []
print(json.dumps({"content": "both\\n", "said": "by hand", "version": given["version"], "path": given["path"]}))
"""
    assert asked(code) == NewContent(b"both\n", "by hand")


def test_what_is_not_utf_8_goes_both_ways() -> None:
    code = """
import json, sys
given = json.load(sys.stdin)
assert "current" not in given and given["after"] is None
print(json.dumps({"content_base64": given["current_base64"]}))
"""
    task = TASK._replace(now=b"\xff\xfe", after=None, why="deleted_there")
    assert asked(code, task=task) == NewContent(b"\xff\xfe")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ('print(\'{"decline": "no idea"}\')', "no idea"),
        ("print('hello')", "no JSON"),
        ("print('[]')", "no JSON object"),
        ("print('{}')", "one of"),
        ('print(\'{"content": "x", "delete": true}\')', "one of"),
        ("print('{\"content\": 1}')", "no text"),
        ("print('{\"delete\": 1}')", "delete is true"),
        ('print(\'{"content_base64": "###"}\')', "cannot be read"),
        (r"""print('{"content": "\\ud800"}')""", "cannot be read"),
        ('print(\'{"content": "x", "version": "other"}\')', "another version"),
        ('print(\'{"content": "x", "path": "../etc/passwd"}\')', "another version, or another file"),
        ("import sys; print('broken', file=sys.stderr); sys.exit(3)", r"broken \(it ended with 3\)"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9"),
        ("print('[' * 200000)", "no JSON"),
        ("import sys\nwhile True: sys.stdout.write('x' * 65536)", "answered more than"),
    ],
)
def test_an_answer_that_is_none_declines(code: str, why: str) -> None:
    import re

    found = asked(code)
    assert isinstance(found, Declined)
    assert re.search(why, found.reason), found.reason


def test_one_that_is_not_there_declines() -> None:
    found = AgentCommand(["/nonexistent/agent"], home=HOME, timeout=5, total_timeout=900, max_bytes=1 << 16).ask(TASK)
    assert isinstance(found, Declined)
    assert "/nonexistent/agent cannot be run" in found.reason


@pytest.mark.parametrize(
    "code",
    [
        "import time; time.sleep(600)",
        "import os, time; os.close(1); os.close(2); time.sleep(600)",
        "import sys, time\nwhile True: sys.stderr.write('x' * 9999)",
    ],
)
def test_one_that_is_slow_is_ended(code: str) -> None:
    found = asked(code, timeout=0.5)
    assert isinstance(found, Declined)
    assert "merge.timeout" in found.reason


def test_nothing_of_it_is_left(tmp_path: Path) -> None:
    note = tmp_path / "child"
    code = f"""
import os, sys, time
if os.fork() == 0:
    os.close(1); os.close(2)
    time.sleep(600)
open({str(note)!r}, "w").write(os.getcwd() + " " + str(os.getpgid(0)))
print('{{"content": "x"}}')
"""
    assert asked(code) == NewContent(b"x")
    directory, group = note.read_text().rsplit(" ", 1)
    assert not os.path.exists(directory)
    wait_until(lambda: not is_there(int(group)))


def test_nothing_of_it_is_left_where_whoever_asks_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "agent"
    agent = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid()) + ' '); time.sleep(600)"
    asker = (
        "import sys; from holdfast.engine.merging.reapply._agent_command import AgentCommand\n"
        "from holdfast.engine.merging.reapply._strategy import ReapplyTask\n"
        f"AgentCommand([sys.executable, '-c', {agent!r}], home={HOME!r}, timeout=600, total_timeout=900, max_bytes=9)"
        ".ask(ReapplyTask(b'a', 'content', b'', b'', b'', [1], {}))"
    )
    above = os.path.join(HOME, b"reapply")
    with subprocess.Popen([sys.executable, "-c", asker]) as process:
        wait_until(lambda: note.exists() and note.read_text().endswith(" "))
        (used,) = set(os.listdir(above)) - {b".lock"}
        (Path(os.fsdecode(above)) / os.fsdecode(used) / "closed").mkdir()
        (Path(os.fsdecode(above)) / os.fsdecode(used) / "closed").chmod(0)
        code = f'import os; assert os.path.isdir({os.path.join(above, used)!r}); print(\'{{"content": "x"}}\')'
        beside = AgentCommand([sys.executable, "-c", code], home=HOME, timeout=20, total_timeout=900, max_bytes=9)
        assert beside.ask(TASK) == NewContent(b"x"), "what another one uses is left alone"
        process.kill()
    wait_until(lambda: not is_there(int(note.read_text())))
    assert os.listdir(os.path.join(above, used)) == [b"closed"], "nobody was left to remove it"
    assert asked('print(\'{"content": "x"}\')') == NewContent(b"x"), "the next one does"


def test_one_that_nobody_waits_for_any_more_is_ended(tmp_path: Path) -> None:
    stop, note = threading.Event(), tmp_path / "agent"

    def stop_it() -> None:
        wait_until(note.exists)
        stop.set()

    agent = f"import time; open({str(note)!r}, 'w').close(); time.sleep(600)"
    stopping = threading.Thread(target=stop_it)
    stopping.start()
    found = AgentCommand(
        [sys.executable, "-c", agent], home=HOME, timeout=600, total_timeout=900, max_bytes=9, stop=stop
    ).ask(TASK)
    stopping.join()
    assert found == Declined("it was interrupted")


def is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_one_that_reads_nothing_is_heard_all_the_same() -> None:
    task = TASK._replace(now=b"x" * (1 << 20), before=b"y" * (1 << 20))
    assert asked('print(\'{"content": "x"}\')', task=task) == NewContent(b"x")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "neither side has deleted"),
        (b"x" * 101, "more than merge.max_bytes"),
        (b"a\0b", "no text"),
        (b"\xff", "not UTF-8"),
        (b"<<<<<<< ours\na\n=======\nb\n>>>>>>> theirs\n", "conflict markers"),
        (b"a\r\n>>>>>>>\r\n", "conflict markers"),
        (b"all right\n=======\n", None),
        (b"", None),
    ],
)
def test_an_answer_is_checked_whoever_gave_it(content: bytes | None, why: str | None) -> None:
    found = refusal(TASK, content, 100)
    assert (found is None) == (why is None)
    assert why is None or why in str(found)


def test_what_was_so_before_may_stay_so() -> None:
    marked = b">>>>>>> it explains merges\n"
    assert refusal(TASK._replace(now=marked), marked, 100) is None
    assert refusal(TASK._replace(now=b"\xff"), b"\xfe", 100) is None
    assert refusal(TASK._replace(after=None), None, 100) is None
    assert refusal(TASK._replace(before=b"\0"), b"\0", 100) is None


@pytest.mark.parametrize("data", [b"", b"\xff", b"null", b"1e999999", json.dumps({"content_base64": 7}).encode()])
def test_garbage_is_declined(data: bytes) -> None:
    assert isinstance(parse_answer(data, TASK), Declined)


def test_base64_is_read() -> None:
    given = json.dumps({"content_base64": base64.b64encode(b"\0x").decode()}).encode()
    assert parse_answer(given, TASK) == NewContent(b"\0x")
