"""What a person does by the page, in a real browser: with keys, by click, without JavaScript; and who may not."""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from ..waiting import wait_until
from .conftest import INSTALLED
from .test_ui_browser import Ui, Watched, chromium

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

__all__ = ["chromium"]  # the fixture, used by its name

SCRIPT = "<img src=x onerror=alert(1)>"
FILES = 60


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
        assert run.stdout is not None
        run.stdout.close()  # (which what a failed test has left running may hold open)
        run.wait(60)


_HIT_AT = """(times) => {
  const answers = document.querySelector(".answers");
  answers.style.animation = "none";
  void answers.offsetWidth;
  answers.style.animation = "";
  const [appears] = answers.getAnimations();
  appears.pause();
  return times.map((time) => {
    appears.currentTime = time;
    return getComputedStyle(answers.querySelector("button")).pointerEvents;
  });
}"""
"""Whether a click hits the first answer, so many milliseconds after it has appeared."""


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
        assert page.evaluate(_HIT_AT, [500, 1000]) == ["none", "auto"], "what appears under a click takes none"
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


def ask(address, method, path, body=None, **headers):
    """Status, headers and text of an answer."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.getheaders()), text


def answer_of(page, base, choice="allow"):
    """The address and the form by which a page would answer the operation that waits."""
    form = re.search(r'name="form" value="([^"]*)"><input type="hidden" name="plan" value="([^"]*)"', page)
    number = re.search(r'action="[^"]*/held/(\d+)"', page)
    assert form is not None, page
    assert number is not None, page
    return f"{urlsplit(base).path}/held/{number[1]}", f"form={form[1]}&plan={form[2]}&answer={choice}"


FORM = {"content-type": "application/x-www-form-urlencoded"}


def test_a_server_that_an_agent_has_started_answers_nothing(desk):
    """I9: also by a page of its own."""
    told, server = desk.tree / "told", " ".join(map(shlex.quote, [*INSTALLED, "ui", "--json"]))
    with guarded(desk, f"rm -r many & rm=$!; {server} > told & ui=$!; wait $rm; kill $ui; wait") as run:
        page = desk.page
        page.locator("#held .waiting-operation").wait_for()
        wait_until(lambda: told.exists() and told.read_text().endswith("}\n"))
        entry = json.loads(told.read_text())["address"]
        where = urlsplit(entry)
        status, headers, said = ask(entry, "GET", f"{where.path}?{where.query}")
        if status == 200:
            cookie, theirs = headers["set-cookie"].partition(";")[0], entry.rpartition("/")[0]
            path, form = answer_of(ask(entry, "GET", f"{urlsplit(theirs).path}/held", cookie=cookie)[2], theirs)
            origin = f"http://{where.netloc}"
            _, headers, _ = ask(entry, "POST", path, form, cookie=cookie, origin=origin, **FORM)
            said = ask(entry, "GET", headers["location"], cookie=cookie)[2]
            assert "a supervised process may not" in said, said
        else:  # (Root's server wants to see who asks, and from inside of a run nothing outside is seen.)
            assert (status, os.geteuid()) == (403, 0), said
        assert page.locator("#held .waiting-operation").count() == 1, "it waits still"
        page.goto(f"{desk.base}/held")
        page.get_by_role("button", name="Deny").click()
        page.wait_for_url("**/done/*")
        run.communicate(timeout=60)
        assert len(list((desk.tree / "many").iterdir())) == FILES


_STEAL = """
import glob, http.client, json, os, sys, time
from urllib.parse import urlsplit

def ask(method, address, body=None, **headers):
    where = urlsplit(address)
    connection = http.client.HTTPConnection(where.netloc, timeout=60)
    connection.request(method, f"{where.path}?{where.query}", body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()

def tell(name, said):
    with open(f"{sys.argv[1]}/.{name}", "w") as told:
        json.dump(said, told)
    os.rename(f"{sys.argv[1]}/.{name}", f"{sys.argv[1]}/{name}")

found = set()
while not found:
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            found |= {word.decode() for word in open(path, "rb").read().split(b"\\0") if b"/enter?token=" in word}
        except OSError:
            pass
entry = found.pop()
tell("entered", ask("GET", entry))
while not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
stolen = json.load(open(sys.argv[2]))
tell("looked", ask("GET", stolen["page"], cookie=stolen["cookie"])[0])
tell("answered", ask("POST", stolen["address"], stolen["form"], **stolen["headers"]))
"""


def test_an_agent_with_the_address_or_the_cookie_gets_nothing(desk, chromium, tmp_path):
    """I9: it reads the arguments of the browser, and then has all that the browser has."""
    (tmp_path / "agent.py").write_text(_STEAL)
    # (What stands for the browser, and has the address among its arguments until the test is over.)
    browser, over, stolen = tmp_path / "browser", tmp_path / "over", tmp_path / "stolen"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/entry.new; mv {tmp_path}/entry.new {tmp_path}/entry\n')
    with browser.open("a") as script:
        script.write(f"while ! [ -e {over} ]; do sleep 0.1; done\n")
    browser.chmod(0o755)
    server = subprocess.Popen(
        [*INSTALLED, "ui"],
        cwd=desk.tree,
        env=desk.ui.environment | {"BROWSER": f"{browser} %s"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until((tmp_path / "entry").exists)
        entry = (tmp_path / "entry").read_text().strip()
        base = entry.rpartition("/")[0]
        words = f"{sys.executable} {tmp_path}/agent.py {desk.tree} {stolen}"
        with guarded(desk, f"(rm -r many; :) & {words} & wait") as run:
            desk.page.locator("#held .waiting-operation").wait_for()
            wait_until((desk.tree / "entered").exists)
            status, said = json.loads((desk.tree / "entered").read_text())
            assert status == 403, said
            assert "in a run" in said

            # The token is still good for the browser of the person, which the agent then has the cookie of.
            context = chromium.new_context()
            page = context.new_page()
            page.goto(entry)
            page.wait_for_url(f"{base}/")
            (cookie,) = context.cookies(f"{base}/")
            path, form = answer_of(page.content(), base)
            origin = "http://" + urlsplit(base).netloc
            said = {
                "page": f"{base}/held",
                "cookie": f"{cookie['name']}={cookie['value']}",
                "address": origin + path,
                "form": form,
            }
            said["headers"] = {"cookie": said["cookie"], "origin": origin, **FORM}
            (tmp_path / "stolen.new").write_text(json.dumps(said))
            (tmp_path / "stolen.new").rename(stolen)
            wait_until((desk.tree / "answered").exists)
            assert json.loads((desk.tree / "looked").read_text()) == 200, "what it was given is right"
            status, said = json.loads((desk.tree / "answered").read_text())
            assert status == 403, said
            assert "in a run" in said
            assert page.locator("#held .waiting-operation").count() == 1, "it waits still"

            page.get_by_role("button", name="Allow").click()
            page.wait_for_url("**/done/*")
            assert "Allowed" in page.locator("h1").inner_text()
            run.communicate(timeout=60)
            assert not any((desk.tree / "many").glob("*"))
            context.close()
    finally:
        over.touch()
        server.send_signal(signal.SIGINT)
        _, warned = server.communicate(timeout=60)
    assert server.returncode == 0, warned
    assert warned.count("supervised") == 2, "who serves the page is told"


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
