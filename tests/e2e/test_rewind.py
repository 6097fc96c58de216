"""`rewind`: what it shows of a real history, where one goes from there, and that nothing drives the terminal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from argparse import Namespace
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import holdfast
from holdfast.cli import rewind_screen
from holdfast.cli.console import Console
from holdfast.cli.rewind_screen import GoScreen, Rewind, _WorkspaceThread
from holdfast.cli.terminal import Palette
from holdfast.model.log import Log

from .test_serve_without_extra import WITHOUT

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from .conftest import Cli

SMALL, LARGE = (80, 24), (200, 60)
NAME = b"\x1b]0;owned\x07[red]x[/red] [link=a]"
SHOWN = r"\x1b]0;owned\x07[red]x[/red] [link=a]"


class Shown:
    """The screen, as a person at it."""

    def __init__(self, app: Rewind) -> None:
        self.app = app

    def text(self) -> str:
        """All that is to be seen."""
        return "\n".join(strip.text.rstrip() for strip in self.app.screen._compositor.render_strips())

    async def until(self, condition: Callable[[], object], what: str = "") -> None:
        """Wait for it."""
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end, f"{what or 'it'} has not come:\n{self.text()}"
            await asyncio.sleep(0.02)

    async def sees(self, *parts: str) -> None:
        """Wait until all of this is to be seen."""
        await self.until(lambda: all(part in self.text() for part in parts), repr(parts))

    async def press(self, *keys: str) -> None:
        """Press keys. (The pilot would wait for each widget afterwards, those of a screen that was closed too.)"""
        await self.app._press_keys(keys)

    async def ready(self) -> None:
        """Wait for the rows, and for the details of the one that the cursor is on."""
        await self.until(lambda: self.app.timeline.rows and not self.app._is_reading, "the rows")
        await self.until(lambda: self.app.details.lines, "the details")

    async def is_at(self, state: str) -> GoScreen:
        """Wait until the question has come so far."""
        await self.until(lambda: isinstance(self.app.screen, GoScreen) and self.app.screen.state == state, state)
        assert isinstance(self.app.screen, GoScreen)
        return self.app.screen

    async def cursor_to(self, kind: str) -> None:
        """Move down to the next row of a kind."""
        while self.app.timeline.current is None or self.app.timeline.current.kind != kind:
            before = self.app.timeline.cursor
            await self.press("down")
            await self.until(lambda: self.app.timeline.cursor > before, kind)  # noqa: B023

    async def agrees(self, key: str = "enter") -> str:
        """Press a key that asks, agree to what the dry run tells, and go back to the timeline: what was told."""
        await self.press(key)
        screen = await self.is_at("asking")
        await self.press("enter")
        await self.is_at("done")
        told = "\n".join(screen.plan.lines)
        await self.press("enter")
        await self.until(lambda: not isinstance(self.app.screen, GoScreen))
        await self.ready()
        return told


@asynccontextmanager
async def rewound(size: tuple[int, int], **arguments: Any) -> AsyncGenerator[Shown]:
    console = Console()
    console.paint = Palette(True)
    given = Namespace(
        **{"since": None, "until": None, "author": "", "grep": "", "paths": [], "steps": False, **arguments}
    )
    with _WorkspaceThread(partial(console.open, offer=False)) as thread:
        app = Rewind(console, thread, given)
        async with app.run_test(size=size):
            yield Shown(app)


def played(scenario: Callable[[Shown], Coroutine[Any, Any, None]], size: tuple[int, int] = SMALL, **given: Any) -> None:
    """Show the screen, and do with it what ``scenario`` does."""

    async def play() -> None:
        async with rewound(size, **given) as shown:
            await shown.ready()
            await scenario(shown)

    asyncio.run(play())


@pytest.fixture(name="lived")
def _lived(cli: Cli) -> Cli:
    """A workspace with checkpoints, a prompt, and a run of two steps after it."""
    cli.write("src/cart.py", "price\n")
    cli.write("README.md", "shop\n")
    cli("checkpoint", "-m", "works")
    cli.write("src/cart.py", "price\ncount\n")
    cli("checkpoint", "-m", "[bold]counts[/bold]", "--author", "ada")
    with holdfast.open(cli.root) as workspace:
        workspace.prompt("remove [red]it[/red]", author="claude")
    cli("run", "--", "sh", "-c", "rm -rf src; echo hi > new")
    return cli


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
def test_it_shows_the_rows_of_the_log_and_what_each_has_changed(lived: Cli, size: tuple[int, int]) -> None:
    rows = lived.json("log")["rows"]

    async def look(shown: Shown) -> None:
        text = shown.text()
        assert all(row["name"] in text for row in rows if row["kind"] in ("run", "prompt"))
        assert "remove [red]it[/red]" in text, "no markup"
        assert "[bold]counts[/bold]" in text
        assert all(row["checkpoint"][:12] in text for row in rows if row["made"])
        await shown.sees("command     sh -c rm -rf src; echo hi > new")
        await shown.press("tab", "end")
        await shown.sees("-count")
        await shown.press("tab")
        await shown.cursor_to("checkpoint")
        await shown.sees("label       [bold]counts[/bold]", "author      ada")
        timeline, details = shown.app.timeline.region, shown.app.details.region
        assert (timeline.y == details.y) == (size == LARGE), "side by side where there is room"
        await shown.press("k")
        await shown.until(lambda: getattr(shown.app.timeline.current, "kind", "") == "prompt")
        assert shown.app.done == []

    played(look, size)


def test_enter_goes_to_a_state_after_a_look_at_what_would_change(lived: Cli) -> None:
    before = lived.tree()

    async def go(shown: Shown) -> None:
        await shown.cursor_to("checkpoint")
        await shown.press("enter")
        screen = await shown.is_at("asking")
        plan = "\n".join(screen.plan.lines)
        assert "would write   src/cart.py" in plan
        assert "would delete  new" in plan
        assert "\x1b[32m+count\x1b[0m" in plan
        await shown.press("escape")
        await shown.until(lambda: not isinstance(shown.app.screen, GoScreen))
        assert lived.tree() == before, "only agreeing changes something"
        told = await shown.agrees()
        assert "`holdfast undo` brings it back" in told
        assert lived.tree() == {"src/cart.py": b"price\ncount\n", "README.md": b"shop\n"}
        assert [list(lines) for lines in shown.app.done] == [told.split("\n")]
        assert shown.app.timeline.rows[0].kind == "restore", "the rows were read anew"

    played(go)
    lived("undo")
    assert lived.tree() == before


def test_from_a_prompt_it_goes_to_before_it(lived: Cli) -> None:
    async def go(shown: Shown) -> None:
        await shown.cursor_to("prompt")
        await shown.press("enter")
        screen = await shown.is_at("asking")
        assert re.search(r"before this prompt +\(holdfast undo --to prompt:\d+\)", shown.text())
        assert "new" in "\n".join(screen.plan.lines)
        await shown.press("escape")
        await shown.agrees()

    played(go)
    assert lived.tree() == {"src/cart.py": b"price\ncount\n", "README.md": b"shop\n"}


def test_a_step_is_taken_back_alone_and_brought_forward_again(lived: Cli) -> None:
    async def go(shown: Shown) -> None:
        await shown.press("s")
        await shown.until(lambda: any(row.kind == "step" for row in shown.app.timeline.rows), "the steps")
        await shown.cursor_to("step")
        await shown.press("down")
        await shown.sees("command       rm -rf src")
        assert shown.app.timeline.current is not None
        number = shown.app.timeline.current.number
        await shown.agrees()
        assert set(lived.tree()) == {"src/cart.py", "README.md", "new"}
        (at,) = (at for at, row in enumerate(shown.app.timeline.rows) if (row.kind, row.number) == ("step", number))
        await shown.press(*["j"] * at)
        await shown.until(lambda: shown.app.timeline.cursor == at)
        await shown.agrees()
        assert set(lived.tree()) == {"README.md", "new"}

    played(go, LARGE)


def test_a_run_is_taken_back_or_the_state_after_it_chosen(lived: Cli) -> None:
    async def go(shown: Shown) -> None:
        lived.write("more", "")
        await shown.cursor_to("run")
        await shown.press("enter")
        await shown.is_at("asking")
        assert "holdfast undo --run" in shown.text()
        await shown.press("tab")
        await shown.sees("Go to the state after it", "would delete  more")
        await shown.press("enter")
        await shown.is_at("done")
        assert set(lived.tree()) == {"README.md", "new"}
        await shown.press("enter")
        await shown.until(lambda: not isinstance(shown.app.screen, GoScreen))
        await shown.ready()
        await shown.cursor_to("run")
        await shown.agrees()
        assert set(lived.tree()) == {"README.md", "src/cart.py"}

    played(go)


def test_undo_and_redo_and_what_is_refused(lived: Cli) -> None:
    before = lived.tree()

    async def go(shown: Shown) -> None:
        await shown.agrees("u")
        assert set(lived.tree()) == {"README.md"}
        await shown.agrees("r")
        assert lived.tree() == before
        await shown.press("r")
        await shown.is_at("refused")
        await shown.sees("redo")
        await shown.press("escape")
        await shown.until(lambda: not isinstance(shown.app.screen, GoScreen))
        assert len(shown.app.done) == 2

    played(go)


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
def test_names_and_contents_neither_drive_the_terminal_nor_are_markup(cli: Cli, size: tuple[int, int]) -> None:
    cli.write(NAME.replace(b"/", b"|"), b"\x1b[2J[blink]\xff\x9b1m\r\n\tx\n")
    shown_name = SHOWN.replace("/", "|")
    cli("checkpoint", "-m", "[@click=app.exit]", "--message", "\x1b[2J\x9b31m[/]", "--author", "\u202e[b]")

    async def look(shown: Shown) -> None:
        assert r"[@click=app.exit]  \x1b[2J" in shown.text()
        lines = [strip.text for strip in map(shown.app.details.render_line, range(60))]
        details = "\n".join(re.sub(r"\x1b\[[\d;]*m", "", line) for line in shown.app.details.lines)
        assert shown_name in details
        assert r"+\x1b[2J[blink]\xff\x9b1m\x0d" in details
        await shown.press("u")
        await shown.is_at("refused")
        await shown.press("escape")
        await shown.until(lambda: not isinstance(shown.app.screen, GoScreen))
        cli.write(NAME.replace(b"/", b"|"), b"\x1b[2J")
        await shown.press("u")
        await shown.is_at("asking")
        assert shown_name in shown.text()
        await shown.press("escape")
        await shown.until(lambda: not isinstance(shown.app.screen, GoScreen))
        await shown.press("slash", *"[red]x[")
        await shown.press("enter")
        await shown.sees("text [red]x[", "No row matches.")
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202e]", "".join(lines) + shown.text().replace("\n", ""))

    played(look, size)


def test_a_search_by_text_and_by_path(lived: Cli) -> None:
    async def search(shown: Shown) -> None:
        every = len(shown.app.timeline.rows)
        await shown.press("slash", *"REMOVE", "enter")
        await shown.until(lambda: [row.kind for row in shown.app.timeline.rows] == ["prompt"], "the prompt")
        await shown.sees("text REMOVE (Escape: all rows)")
        await shown.press("slash", *["backspace"] * 6, "tab", *"new", "enter")
        await shown.until(lambda: [row.kind for row in shown.app.timeline.rows] == ["run"], "the run")
        await shown.press("slash", "tab", *"-no", "enter")
        await shown.sees("no row of the log has to do with new-no")
        await shown.press("escape")
        await shown.until(lambda: len(shown.app.timeline.rows) == every, "all rows")
        await shown.press("slash", *"urqs", "slash")
        await shown.until(lambda: shown.app._text.value == "urqs/", "keys in a field are text")
        assert not isinstance(shown.app.screen, GoScreen)

    played(search)


def test_rows_are_read_as_one_scrolls(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewind_screen, "_ROWS_AT_ONCE", 20)
    monkeypatch.setattr(rewind_screen, "_ROWS_AHEAD", 5)
    with holdfast.open(cli.root) as workspace:
        for number in range(90):
            workspace.prompt(f"number {number}")

    async def scroll(shown: Shown) -> None:
        timeline = shown.app.timeline
        assert len(timeline.rows) == 20
        for count in (40, 60, 80):
            await shown.press("G")
            await shown.until(lambda count=count: len(timeline.rows) == count)
        await shown.press("end")
        await shown.until(lambda: len(timeline.rows) > 80)
        assert [row.text for row in timeline.rows if row.kind == "prompt"] == [
            f"number {at}" for at in range(89, -1, -1)
        ]
        await shown.press("end")
        await shown.sees("number 0")
        await shown.press("home")
        await shown.sees("number 89")

    played(scroll)


def test_the_screen_goes_on_while_the_workspace_is_at_work(lived: Cli) -> None:
    entered, release = threading.Event(), threading.Event()

    def wait(_workspace: object) -> None:
        entered.set()
        assert release.wait(60)

    async def go(shown: Shown) -> None:
        try:
            held = asyncio.ensure_future(shown.app.thread.call(wait))
            await shown.until(entered.is_set)
            await shown.press("j", "j", "enter")
            screen = await shown.is_at("planning")
            await shown.sees("Looking…")
            await shown.press("escape")
            await shown.until(lambda: shown.app.screen is not screen)
            assert shown.app.timeline.cursor == 2
        finally:
            release.set()
        await held

    played(go)


def test_what_was_agreed_to_is_done_or_asked_for_again(lived: Cli) -> None:
    async def go(shown: Shown) -> None:
        await shown.press("u")
        await shown.is_at("asking")
        lived.write("later", "by an agent, while the question stands")
        lived.process("checkpoint")
        await shown.press("enter")
        await shown.sees("has changed since you were asked", "would delete  later")
        await shown.is_at("asking")
        assert set(lived.tree()) == {"README.md", "later", "new"}
        await shown.press("enter")
        await shown.is_at("done")
        assert set(lived.tree()) == {"README.md", "new"}

    played(go)


def test_a_long_line_is_cut_and_of_many_lines_the_first_are_shown(cli: Cli) -> None:
    cli.write("long", "[red]" * 100_000 + "\n" + "line\n" * 6000)
    cli("checkpoint")

    async def look(shown: Shown) -> None:
        lines = shown.app.details.lines
        assert max(map(len, lines)) < 2100
        assert lines[-1] == "… only the first 5,000 lines are shown"
        await shown.press("tab", "end")
        await shown.sees("only the first 5,000 lines")

    played(look)


def test_warnings_are_shown_on_the_screen_and_told_again_afterwards(
    lived: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(app: Rewind) -> None:
        async def play() -> None:
            async with app.run_test(size=SMALL):
                shown = Shown(app)
                await shown.ready()
                await app.thread.call(lambda _: Log("holdfast.engine.test").warning("lost \x1b[2J[red]it"))
                await shown.sees(r"warning: lost \x1b[2J[red]it")

        asyncio.run(play())

    monkeypatch.setattr(Rewind, "run", run)
    capsys.readouterr()
    given = Namespace(since=None, until=None, author="", grep="", paths=[], steps=False)
    assert rewind_screen.show(Console(), given) == []
    assert capsys.readouterr().err == "holdfast: warning: lost \\x1b[2J[red]it\n"


def test_a_query_that_is_wanted_no_more_ends(lived: Cli) -> None:
    seen: list[int] = []

    def stop(_phase: str, number: int, _total: int) -> None:
        seen.append(number)
        if number == 2:
            raise KeyError

    with holdfast.open(lived.root) as workspace, pytest.raises(KeyError):
        list(workspace.log_rows(text="matches nothing", progress=stop))
    assert seen == [0, 1, 2]


def in_terminal(cli: Cli, *answers: tuple[bytes, bytes]) -> tuple[str, int]:
    """What the command writes to a terminal, where each key comes once a text was written; and its exit code."""
    child, terminal = pty.fork()
    if not child:
        os.chdir(cli.root)
        known = {"HOLDFAST_HOME": str(cli.home), "PATH": os.environ["PATH"], "TERM": "xterm-256color"}
        known |= {"HOME": os.environ["HOME"]}
        os.execve(sys.executable, [sys.executable, "-P", "-m", "holdfast", "rewind"], known)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    shown, seen, left = b"", 0, list(answers)
    with closing(os.fdopen(terminal, "r+b", buffering=0)) as screen, suppress(OSError):
        while select.select([screen], [], [], 60)[0] and (
            piece := screen.read(65536)
        ):  # (an error: all have closed it)
            shown += piece
            # (Between the words there may be sequences: what is shown is looked for without them.)
            if left and left[0][0] in re.sub(rb"\x1b\[[\d;?]*[a-zA-Z]", b"", shown[seen:]):
                seen = len(shown)
                screen.write(left.pop(0)[1])
    if left:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert not left, shown
    return shown.decode(), code


def test_in_a_real_terminal(lived: Cli) -> None:
    lived.write(NAME.replace(b"/", b"|"), b"\x1b]0;owned\x07")
    shown, code = in_terminal(
        lived,
        (b"sh -c rm -rf src", b"u"),
        (b"Enter: do it", b"\r"),
        (b"back to the timeline", b"\r"),
        (b" undo:", b"q"),
    )
    assert code == 0
    assert "\x07" not in re.sub(r"\x1b\]22;\w*\x07", "", shown), "but for the shape of the pointer"
    assert "\x1b]0;" not in shown
    screen, _, after = shown.rpartition("\x1b[?1049l")
    assert "\x1b[?1049h" in screen, "on the other screen of the terminal"
    assert re.search(r"Went back to \w{12}: 0 files written, 1 deleted\.", after)
    assert "`holdfast redo` brings it back." in after
    assert set(lived.tree()) == {"README.md", "new"}


@pytest.mark.parametrize("words", [[], ["-q"]])
def test_in_a_pipe_it_says_how_to_do_the_same(lived: Cli, words: list[str]) -> None:
    ran = lived("rewind", *words, code=4)
    assert ran.out == ""
    assert all(f"`holdfast {name}`" in ran.err for name in ("log", "show", "diff", "undo", "restore"))
    assert lived("rewind", "--json", code=2).out == ""


def test_without_the_library_it_says_what_to_install(lived: Cli) -> None:
    code = WITHOUT.format(names=["textual"]) + "\n"
    child, terminal = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, "rewind"],
            check=False,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**os.environ, "TERM": "xterm"},
            timeout=120,
        )
        said = os.read(child, 4096).decode()
    finally:
        os.close(child)
        os.close(terminal)
    assert done.returncode == 1
    assert "needs the library textual of the extra tui" in said.replace("\r\n", " ")
    assert "pip install 'textual" in said
