"""`log` tells the story, and `show` all about a row of it: in a pipe, at a terminal, and with whatever is asked for."""

from __future__ import annotations

import os
import pty
import re
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.cli.terminal import columns

from ..waiting import wait_until

if TYPE_CHECKING:
    from .conftest import Cli

ODD = b"two\nlines \xff\x1b[31m"
HOOK = (sys.executable, "-P", "-m", "holdfast", "hook", "claude", "UserPromptSubmit")


def rows(cli: Cli, *words: str) -> list[str]:
    """What `log` says, without marks, ids and ages."""
    lines = cli("log", *words).out.splitlines()
    told = [re.sub(r"^(\| )*..[ 0-9a-f]{12} {2,}(now|\d+ \w+ ago) +", "", line) for line in lines]
    return [re.sub(" +", " ", line) for line in told]


@pytest.fixture
def lived(cli: Cli) -> Cli:
    """A workspace with a row of each kind but promotions."""
    cli.write("f", "1")
    cli.write(ODD, "odd")
    cli("checkpoint", "-m", "one", "--author", "ada")
    cli("checkpoint", "-m", "zwei")
    given = b'{"session_id": "s", "cwd": "%b", "prompt": "tidy up\\n\\u001b[31mall"}' % os.fsencode(cli.root)
    cli.process(*HOOK[4:], input=given)
    cli.process("run", "--", "sh", "-c", "echo 2 > f; exit 3", code=3)
    cli.process("run", "--", "false", code=1)
    cli("undo", "--run")
    cli("redo")
    cli("fork", "@", str(cli.root.parent / "fork"))
    (cli.root.parent / "fork/new").write_text("1")
    cli("merge", str(cli.root.parent / "fork"))
    cli("restore", "one")
    cli("undo")
    return cli


def test_it_tells_one_row_for_each_thing(lived: Cli) -> None:
    shown = rows(lived)
    patterns = (
        r"undo:\d+ of restore:\d+, back to [0-9a-f]{12}",
        r"restore:\d+ to [0-9a-f]{12} one, zwei",
        r"merge:\d+ \+1 merged the fork .*/fork",
        r"redo:\d+ of step 1 of run:[0-9a-f]{12}: sh -c echo 2 > f; exit 3",
        r"undo:\d+ ~1 of step 1 of run:[0-9a-f]{12}: sh -c echo 2 > f; exit 3",
        r"run:[0-9a-f]{12} false",
        r"run:[0-9a-f]{12} ~1 sh -c echo 2 > f; exit 3 \(1 step\)",
        r"prompt:\d+ tidy up \(claude\)",
        r"manual \+2 one, zwei \(ada\)",
    )
    assert len(shown) == len(patterns), shown
    for line, pattern in zip(shown, patterns, strict=True):
        assert re.fullmatch(pattern, line), (line, pattern)
    (marked,) = [line for line in lived("log").out.splitlines() if line.startswith("@")]
    assert "merge:" in marked


def test_its_rows_are_counted_filtered_and_given_to_programs(lived: Cli) -> None:
    assert rows(lived, "-n", "2") == rows(lived)[:2]
    assert [line for line in rows(lived, "--steps") if line.startswith("step:")] == [
        "step:1 sh -c echo 2 > f; exit 3 exit 3"
    ]
    (prompt,) = rows(lived, "--grep", "TIDY")
    assert rows(lived, "--author", "claude") == [prompt]
    assert rows(lived, "--since", "1h") == rows(lived)
    assert lived("log", "--until", "1h").out == "No row matches.\n"
    assert [line.partition(":")[0] for line in rows(lived, "--", "new")] == ["undo", "restore", "merge"]
    assert rows(lived, "--", "two\\x0alines \\xff\\x1b[31m") == rows(lived)[-1:]
    assert lived("log", "--grep", "nothing", "--", "new").out == "No row matches.\n"
    (lived.root / "just-made").touch()
    assert lived("log", "--", "just-made").out == "No row matches.\n"
    for words in (["log"], ["log", "--json"], ["log", "--author", "claude"]):
        refused = lived(*words, "--", "nowhere", code=3)
        known = "no row of the log has to do with nowhere, and no checkpoint of this workspace holds it"
        assert (refused.out, known in refused.err) == ("", True)
    log = lived.json("log")
    names = [row["name"] for row in log["rows"]]
    assert len(names) == len(set(names)) == len(rows(lived))
    assert [row["name"] for row in lived.json("log", "-n", "3")["rows"]] == names[:3]
    assert [row["kind"] for row in log["rows"] if row["exit_code"]] == []
    found = lived.json("log", "--author", "ada")
    assert [one["label"] for one in found["checkpoints"]] == ["one"]
    assert [one["operation"] for one in found["events"]] == ["checkpoint"]
    assert lived.json("log", "--all")["rows"] == []


def test_a_path_that_checkpoints_hold_is_never_said_to_be_unknown(cli: Cli) -> None:
    for number in range(4):
        cli.write("a", str(number))
        if number == 1:
            cli.write("token.key", "secret")
        if number == 3:
            (cli.root / "token.key").unlink()
        cli("checkpoint", "-m", f"state {number}")
    cli("forget", "state 1")
    assert rows(cli, "--", "a") == ["manual ~1 -1 state 3", "manual +1 ~1 state 2", "manual +1 state 0"]
    assert rows(cli, "--", "token.key") == ["manual ~1 -1 state 3", "manual +1 ~1 state 2"]
    assert len(cli("log", "--json", "--", "token.key").json["rows"]) == 2
    cli("forget", "state 2")
    assert "no checkpoint of this workspace holds it" in cli("log", "--", "token.key", code=3).err


def test_without_a_row_the_checkpoints_that_hold_a_path_are_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.write("token.key", "secret")
    cli("checkpoint")
    cli("fork", "@", str(cli.root.parent / "fork"))
    monkeypatch.chdir(cli.root.parent / "fork")
    (began,) = [row["checkpoint"] for row in cli.json("log")["rows"]]
    Path("a").write_text("1")
    made = cli.json("checkpoint")["id"]
    cli("forget", began)  # the parent is now a checkpoint of the other workspace, which holds the file, too
    for words in (["log"], ["log", "--json"], ["log", "--author", "ada"]):
        refused = cli(*words, "--", "token.key", code=3)
        assert refused.out == ""
        assert "no row of the log shows a change of token.key" in refused.err
        assert f"but 1 checkpoint of this workspace holds it: {made[:12]}" in refused.err


@pytest.mark.parametrize(
    "words",
    [
        ("-n", "0"),
        ("--since", "soon"),
        ("--until", ""),
        ("--grep", "\udcff"),
        ("--graph", "--since", "1h"),
        ("--all", "--steps"),
        ("--all", "--", "f"),
        ("f",),
        ("--", "/etc/passwd"),
    ],
)
def test_what_makes_no_sense_is_refused(cli: Cli, words: tuple[str, ...]) -> None:
    cli.write("f", "1")
    cli("checkpoint")
    assert cli("log", *words, code=2).out == ""


def test_an_empty_history_is_said_to_be_empty(cli: Cli) -> None:
    for words in ((), ("--steps",), ("--graph",), ("--all",)):
        assert cli("log", *words).out.startswith("No checkpoint yet")
    assert cli.json("log")["rows"] == []
    assert cli("show", "prompt:1", code=3).out == ""


def test_a_row_is_shown_by_the_name_that_the_log_gives_it(lived: Cli) -> None:
    for row in lived.json("log", "--steps")["rows"]:
        shown = lived("show", row["name"]).out
        assert row["command"] in shown, shown
        if row["kind"] != "step" and ":" in row["name"]:
            assert lived.json("show", row["name"]) == row | {"changed": lived.json("show", row["name"])["changed"]}
    (run,) = [row for row in lived.json("log")["rows"] if row["kind"] == "run" and row["steps"]]
    shown = lived("show", run["name"]).out
    assert "way back    holdfast undo --run " in shown
    assert "  step:1      sh -c echo 2 > f; exit 3\n\n  M f\n" in shown
    (prompt,) = [row["name"] for row in lived.json("log")["rows"] if row["kind"] == "prompt"]
    assert f"way back    holdfast undo --to {prompt}\n\n  tidy up\n  \\x1b[31mall\n" in lived("show", prompt).out
    assert lived.json("show", "step:1") == lived.json("steps", "show", "1")
    for wrong in ("prompt:999", "run:x", "command:main:1", "step:1:2", ":", "\x1b:1"):
        assert lived("show", wrong, code=3).out == ""


def at_terminal(cli: Cli, *words: str, width: int = 80, typed: bytes = b"", **environment: str) -> tuple[str, int]:
    """What the command shows at a terminal of its own, and its exit code; ``typed`` is typed once it shows anything."""
    child, terminal = pty.fork()
    if not child:
        known = {"HOLDFAST_HOME": str(cli.home), "PATH": os.environ["PATH"], "TERM": "xterm", "COLUMNS": str(width)}
        os.chdir(cli.root)
        os.execve(sys.executable, [sys.executable, "-P", "-m", "holdfast", *words], known | environment)
    with closing(os.fdopen(terminal, "r+b", buffering=0)) as screen:
        shown = bytearray()
        while True:
            try:
                piece = screen.read(4096)
            except OSError:
                break  # the last process has closed it
            if not piece:
                break
            shown += piece
            if typed:
                screen.write(typed)
                typed = b""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return shown.decode().replace("\r\n", "\n"), code


def plain(shown: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).splitlines()


def test_at_a_terminal_rows_are_cut_to_its_width(lived: Cli) -> None:
    lived.write("g", "1")
    lived("checkpoint", "--message", "日本語" * 30)
    shown, code = at_terminal(lived, "log", "--no-pager", width=60)
    assert code == 0
    wide, *lines = plain(shown)
    assert all(columns(line) <= 60 for line in lines)
    assert any(columns(line) == 60 and line.endswith("…") for line in lines)
    assert columns(wide) in (59, 60)
    assert "\x1b[" in shown
    assert "\x1b[" not in at_terminal(lived, "log", "--no-pager", NO_COLOR="1")[0]
    first, *_ = plain(at_terminal(lived, "log", "--no-pager", "-v")[0])
    assert time.strftime("%Y-%m-%d ") in first


def test_a_pager_shows_it_at_a_terminal_alone(lived: Cli) -> None:
    def paged(*words: str, **environment: str) -> list[str]:
        shown, code = at_terminal(lived, *words, "-v", **environment)  # pyright: ignore[reportArgumentType]
        assert code == 0
        return plain(shown)

    every = paged("log", PAGER="")
    assert paged("log", PAGER="cat") == every
    assert paged("log", PAGER="sed s/^/p:/") == [f"p:{line}" for line in every]
    assert paged("log", PAGER="false", HOLDFAST_PAGER="sed 's/^/h: /'") == [f"h: {line}" for line in every]
    assert paged("show", "one", PAGER="sed s/^/p:/")[0].startswith("p:checkpoint")
    assert paged("log", "--graph", PAGER="sed s/^/p:/")[0].startswith("p:* ")
    for words in (("log", "--no-pager"), ("log", "--json")):
        assert not paged(*words, PAGER="sed s/^/p:/")[0].startswith("p:")
    assert paged("log", PAGER="head -n 1") == every[:1]
    assert paged("log", PAGER="true") == []
    for wrong in ("no-such-pager -x", "bad 'quote"):
        warning, *rest = paged("log", PAGER=wrong)
        assert warning.startswith("holdfast: warning: the pager ")
        assert rest == every
    assert lived.process("log", env=os.environ | {"PAGER": "false"}).stdout.count(b"\n") == len(every)


def test_an_interrupt_is_the_pagers_affair(lived: Cli) -> None:
    script = "import signal as s; s.pthread_sigmask(0, [2]); print('ready', flush=True); s.sigwait([2]); print('asked')"
    shown, code = at_terminal(lived, "log", typed=b"\x03", PAGER=f'{sys.executable} -c "{script}"')
    assert ([*plain(shown.replace("^C", ""))], code) == (["ready", "asked"], 0)


def test_another_command_goes_on_while_a_pager_shows_the_log(lived: Cli) -> None:
    ready = lived.root.parent / "ready"
    child, terminal = pty.fork()
    if not child:
        pager = f"sh -c 'echo > {ready}; head -c 1 > /dev/null; read line < /dev/tty'"
        os.execve(
            sys.executable,
            [sys.executable, "-P", "-m", "holdfast", "-w", str(lived.root), "log", "--steps"],
            {"HOLDFAST_HOME": str(lived.home), "PATH": os.environ["PATH"], "PAGER": pager},
        )
    try:
        wait_until(ready.exists)
        lived.write("g", "1")
        lived("undo")
        lived("redo")
        os.write(terminal, b"\n")
    finally:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        os.close(terminal)
