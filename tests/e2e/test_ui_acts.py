"""What a person does by the page, in a real browser: with keys, by click, without JavaScript; and who may not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from ..waiting import wait_until
from .conftest import INSTALLED
from .test_ui_browser import CHROMIUM, Ui, Watched, playwright

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

SCRIPT = "<img src=x onerror=alert(1)>"
FILES = 60


@pytest.fixture(scope="module")
def chromium() -> Iterator[object]:
    """A browser."""
    with playwright.sync_playwright() as driver:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        found = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        yield found
        found.close()


class Desk:
    """A page over a workspace, and the command line beside it."""

    def __init__(self, ui: Ui, page, base: str) -> None:
        self.ui = ui
        self.page = page
        self.base = base
        self.tree = ui.tree


@pytest.fixture
def desk(chromium, tmp_path, request) -> Iterator[Desk]:
    """A page over a young workspace; afterwards the store is whole, and the page has run nothing."""
    ui = Ui(tmp_path)
    (ui.tree / "cart.py").write_text("".join(f"line {number}\n" for number in range(40)))
    (ui.tree / SCRIPT.replace("/", "")).write_text(SCRIPT)
    (ui.tree / "many").mkdir()
    for number in range(FILES):
        (ui.tree / "many" / f"f{number}").write_text(f"{number}\n")
    ui.run("checkpoint", "-m", "first")
    lines = [f"line {number}\n" for number in range(40)]
    lines[3], lines[30] = "changed\n", "changed too\n"
    (ui.tree / "cart.py").write_text("".join(lines))
    (ui.tree / SCRIPT.replace("/", "")).unlink()
    ui.run("checkpoint", "-m", "second")
    context = chromium.new_context(java_script_enabled=getattr(request, "param", True))
    with ui.serve() as base:
        page = context.new_page()
        page.set_default_timeout(60_000)
        watched = Watched(page, base)
        page.goto(ui.entry)
        page.wait_for_url(f"{base}/")
        yield Desk(ui, page, base)
        # (A page that says what is refused has a status that says so, which the browser mentions.)
        watched.said = [said for said in watched.said if "(Conflict)" not in said and "(Not Found)" not in said]
        watched.assert_calm()
        page.goto("about:blank")
    context.close()
    assert json.loads(ui.run("verify", "--json"))["problems"] == []


def test_keys_undo_and_redo(desk):
    page = desk.page
    page.keyboard.press("z")
    page.wait_for_url("**/act/undo")
    page.locator(".patch .line.added", has_text="line 30").wait_for()
    page.get_by_role("button", name="Undo").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/done/*")
    assert "changed" not in (desk.tree / "cart.py").read_text()
    page.reload()
    assert "Went back" in page.locator("h1").inner_text()
    page.get_by_role("link", name="Redo it").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/act/redo")
    page.get_by_role("button", name="Redo").click()
    page.wait_for_url("**/done/*")
    assert "changed too" in (desk.tree / "cart.py").read_text()
    page.go_back()
    assert "changed too" in (desk.tree / "cart.py").read_text()


def test_chosen_lines_are_restored_from_a_difference(desk):
    page = desk.page
    page.goto(f"{desk.base}/diff?from=first&to=second")
    page.get_by_role("link", name="Restore from first").click()
    page.wait_for_url("**/act/parts?**")
    page.get_by_label("Restore these lines").nth(1).check()
    page.get_by_label("Bring this file back").check()
    page.get_by_role("button", name="Restore the ticked parts").first.click()
    page.wait_for_url("**/done/*")
    lines = (desk.tree / "cart.py").read_text().splitlines()
    assert (lines[3], lines[30]) == ("changed", "line 30")
    assert (desk.tree / SCRIPT.replace("/", "")).exists()


@pytest.mark.parametrize("desk", [False], indirect=True, ids=["without JavaScript"])
def test_acts_need_no_javascript(desk):
    page = desk.page
    page.locator(".row.here a.act", has_text="Undo").click()
    page.wait_for_url("**/act/undo")
    page.get_by_role("button", name="Undo").click()
    page.wait_for_url("**/done/*")
    assert "changed" not in (desk.tree / "cart.py").read_text()
    page.goto(f"{desk.base}/state/@")
    page.get_by_role("link", name="Label").click()
    page.get_by_label("Label").fill("a good one")
    page.get_by_role("button", name="Show what it would do").click()
    page.get_by_role("button", name="Label", exact=True).click()
    page.wait_for_url("**/done/*")
    assert "a good one" in json.loads(desk.ui.run("show", "a good one", "--json"))["labels"]


def test_what_others_have_changed_stays_unless_it_is_forced(desk):
    desk.ui.run("run", "--", "sh", "-c", "echo agent > note")
    (desk.tree / "note").write_text("mine\n")
    desk.ui.run("checkpoint", "-m", "mine")
    step = json.loads(desk.ui.run("steps", "--json"))["steps"][-1]["id"]
    page = desk.page
    page.goto(f"{desk.base}/step/{step}")
    page.get_by_role("link", name="Undo this step").click()
    page.wait_for_url("**/act/undo**")
    assert "refused" in page.locator("h1").get_attribute("class")
    assert (desk.tree / "note").read_text() == "mine\n"
    page.get_by_role("link", name="Show what --force would do").click()
    page.locator(".warning", has_text="are overwritten").wait_for()
    page.get_by_role("button", name="Undo, and overwrite").click()
    page.wait_for_url("**/done/*")
    assert not (desk.tree / "note").exists()


@contextmanager
def guarded(desk: Desk, command: str) -> Generator[subprocess.Popen[str]]:
    """A run that is asked about at its 50th file."""
    run = subprocess.Popen(
        [*INSTALLED, "run", "--guard", "--", "sh", "-c", command],
        cwd=desk.tree,
        env=desk.ui.environment | {"HOLDFAST_SAFEGUARD_TIMEOUT": "10m"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield run
    finally:
        if run.poll() is None:
            run.terminate()
        run.communicate(timeout=60)


@pytest.mark.parametrize("choice", ["Allow", "Deny"])
def test_what_waits_is_on_every_page_and_is_answered_there(desk, choice):
    page = desk.page
    page.goto(f"{desk.base}/diff?from=first&to=second")
    with guarded(desk, "rm -r many") as run:
        asks = page.locator("#held .waiting-operation")
        asks.wait_for()
        assert "delete" in asks.locator(".asks").inner_text()
        assert "rm -r many" in asks.inner_text()
        page.wait_for_function("document.title.startsWith('(1 waiting) ')")
        for where in ("/", "/state/@", "/act/undo?count=1", "/held"):
            page.goto(f"{desk.base}{where}")
            asks.wait_for()
            assert page.title().startswith("(1 waiting) ")
        other = page.context.new_page()
        other.goto(f"{desk.base}/held")
        page.keyboard.press("w")
        page.keyboard.press("Tab" if choice == "Allow" else "Shift")
        page.keyboard.press("Enter")
        page.wait_for_url("**/done/*")
        assert ("Allowed" if choice == "Allow" else "Denied") in page.locator("h1").inner_text()
        other.locator("#held .waiting-operation").wait_for(state="detached")
        assert not other.title().startswith("(")
        run.communicate(timeout=60)
        assert (desk.tree / "many").exists() is (choice == "Deny")
        assert len(list((desk.tree / "many").glob("*"))) == (FILES if choice == "Deny" else 0)


_ANSWER = """
import http.client, json, re, subprocess, sys
from urllib.parse import urlsplit
server = subprocess.Popen([*sys.argv[2:], "ui", "--json"], stdout=subprocess.PIPE, text=True)
entry = json.loads(server.stdout.readline())["address"]
where = urlsplit(entry)
def ask(method, path, body=None, **headers):
    connection = http.client.HTTPConnection(where.netloc, timeout=60)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return answer, answer.read().decode()
cookie = ask("GET", f"{where.path}?{where.query}")[0].getheader("set-cookie").partition(";")[0]
base = where.path.removesuffix("/enter")
page = ask("GET", f"{base}/held", cookie=cookie)[1]
form = re.search(r'name="form" value="([^"]*)"><input type="hidden" name="plan" value="([^"]*)"', page)
number = re.search(r'action="[^"]*/held/(\\d+)"', page)[1]
answer, _ = ask("POST", f"{base}/held/{number}", f"form={form[1]}&plan={form[2]}&answer=allow", cookie=cookie,
    origin=f"http://{where.netloc}", **{"content-type": "application/x-www-form-urlencoded"})
print(ask("GET", answer.getheader("location"), cookie=cookie)[1], file=open(sys.argv[1], "w"))
server.kill()
server.wait()
"""


def test_a_server_that_an_agent_has_started_answers_nothing(desk, tmp_path):
    (tmp_path / "agent.py").write_text(_ANSWER)
    told = tmp_path / "told"
    words = " ".join(f"'{word}'" for word in [sys.executable, str(tmp_path / "agent.py"), str(told), *INSTALLED])
    with guarded(desk, f"(rm -r many; :) & {words.replace(str(told), str(desk.tree / 'told'))}; wait") as run:
        page = desk.page
        page.locator("#held .waiting-operation").wait_for()
        wait_until(lambda: (desk.tree / "told").exists() and "</html>" in (desk.tree / "told").read_text())
        said = (desk.tree / "told").read_text()
        assert "a supervised process may not" in said, said
        assert page.locator("#held .waiting-operation").count() == 1, "it waits still"
        assert len(list((desk.tree / "many").iterdir())) > 0
        page.goto(f"{desk.base}/held")
        page.get_by_role("button", name="Deny").click()
        page.wait_for_url("**/done/*")
        run.communicate(timeout=60)
        assert len(list((desk.tree / "many").iterdir())) == FILES


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_acts_are_accessible_and_fit_a_narrow_screen(desk, scheme):
    from axe_playwright_python.sync_playwright import Axe

    page = desk.page
    page.emulate_media(color_scheme=scheme)
    with guarded(desk, "rm -r many"):
        page.locator("#held .waiting-operation").wait_for()
        pages = ("restore?to=first", "parts?to=first", "fork?of=first", "label?of=first", "forget?of=first", "redo")
        for width in (400, 1280, 2560):
            page.set_viewport_size({"width": width, "height": 800})
            for where in pages:
                page.goto(f"{desk.base}/act/{where}")
                assert page.evaluate("document.scrollingElement.scrollWidth") <= width, where
                found = Axe().run(page)
                assert found.violations_count == 0, found.generate_report()
        desk.ui.run("safeguard", "deny", "1")
