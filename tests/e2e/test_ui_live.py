"""A page open for long: beside another tab, as its server ends, over a long history. And each act, by both ways."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

import holdfast

from ..long_history import lengthen_history
from .conftest import INSTALLED
from .test_ui_acts import chromium, desk
from .test_ui_browser import Ui, Watched

if TYPE_CHECKING:
    from .test_ui_acts import Desk

__all__ = ["chromium", "desk"]  # the fixtures, used by their names

ROWS = 20_000
PAGE = 60


def test_an_act_in_one_tab_shows_in_the_other(desk):
    page = desk.page
    other = page.context.new_page()
    other.goto(f"{desk.base}/")
    for choose, seen in (("Undo", ".row.kind-undo"), ("Redo", ".row.kind-redo")):
        page.goto(f"{desk.base}/act/{choose.lower()}")
        page.get_by_role("button", name=choose).click()
        page.wait_for_url("**/done/*")
        other.locator(seen).wait_for()
    # What a tab planned before another one acted is not done: the plan is shown anew.
    other.goto(f"{desk.base}/act/undo")
    page.goto(f"{desk.base}/act/restore?to=first")
    page.get_by_role("button", name="Restore").click()
    page.wait_for_url("**/done/*")
    other.get_by_role("button", name="Undo").click()
    assert "changed since you looked" in other.get_by_role("alert").inner_text()
    other.close()


def test_many_tabs_are_live_at_once(desk):
    # (A browser opens no more than six connections to a server.)
    others = [desk.page.context.new_page() for _ in range(8)]
    for other in others:
        other.goto(f"{desk.base}/")
    desk.page.goto(f"{desk.base}/act/undo")
    desk.page.get_by_role("button", name="Undo").click()
    desk.page.wait_for_url("**/done/*")
    for other in others:
        other.locator(".row.kind-undo").wait_for()
    # Those that go leave the stream to those that stay.
    for other in others[:-1]:
        other.close()
    desk.page.goto(f"{desk.base}/act/redo")
    desk.page.get_by_role("button", name="Redo").click()
    others[-1].locator(".row.kind-redo").wait_for()
    others[-1].close()


def served_at(tree, environment, port: int) -> tuple[subprocess.Popen[str], str]:
    """A server, and the address that lets one browser in."""
    server = subprocess.Popen(
        [*INSTALLED, "ui", "--json", "--port", str(port)],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    return server, json.loads(server.stdout.readline())["address"]


@pytest.mark.parametrize("ends", ["is ended", "is killed"])
def test_a_page_whose_server_ends_says_so_and_the_next_one_takes_over(chromium, tmp_path, ends):
    ui = Ui(tmp_path)
    (ui.tree / "n").write_text("0")
    ui.run("checkpoint", "-m", "first")
    context = chromium.new_context()
    page = context.new_page()
    server, entry = served_at(ui.tree, ui.environment, 0)
    try:
        page.goto(entry)
        page.wait_for_url("**/")
        page.locator(".row.here").wait_for()
        assert page.locator("#ended").is_hidden()
        (server.terminate if ends == "is ended" else server.kill)()
        server.communicate(timeout=60)
        page.locator("#ended").wait_for()
        assert "holdfast ui" in page.locator("#ended").inner_text()

        server, entry = served_at(ui.tree, ui.environment, urlsplit(entry).port or 0)
        page.reload()
        assert "Open the address" in page.locator("body").inner_text()
        page.goto(entry)
        page.wait_for_url("**/")
        page.locator(".row.here .label", has_text="first").wait_for()
    finally:
        server.kill()
        server.communicate()
        context.close()


def test_a_long_history_is_loaded_a_page_at_a_time(chromium, tmp_path):
    ui = Ui(tmp_path)
    with holdfast.init(ui.tree, home=ui.environment["HOLDFAST_HOME"]) as workspace:
        for number in range(3):
            (ui.tree / "n").write_text(str(number))
            workspace.checkpoint(f"state {number}")
        lengthen_history(workspace, ROWS)
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    with ui.serve() as base:
        page = context.new_page()
        watched = Watched(page, base)
        page.goto(ui.entry)
        page.wait_for_url(f"{base}/")
        rows = page.locator(".row")
        for pages in range(1, 6):
            page.wait_for_function("least => document.querySelectorAll('.row').length >= least", arg=pages * PAGE)
            # (A turn of the wheel may come to the end twice: before and after what follows is there.)
            assert rows.count() <= (2 * pages + 1) * PAGE, "no more than what is looked at and what follows it"
            rows.nth(pages * PAGE - 1).scroll_into_view_if_needed()
            page.mouse.wheel(0, 3000)
        numbers = rows.evaluate_all("rows => rows.map(row => row.dataset.name)")
        assert len(numbers) == len(set(numbers))
        page.keyboard.press("G")
        # (It is the last of those that were there: being looked at, it brings more.)
        at = rows.evaluate_all("rows => rows.findIndex((row) => row.classList.contains('chosen'))")
        assert at >= len(numbers) - 1

        # A filter finds the oldest of them.
        page.goto(f"{base}/?text=items%200&kind=prompt")
        page.locator(".row", has_text="Count the items 0").last.wait_for()
        watched.assert_calm()
        page.goto("about:blank")
    context.close()


class Hand:
    """Does something on a page, as a person would: by clicking."""

    def __init__(self, desk: Desk) -> None:
        self.page = desk.page

    def follow(self, name: str) -> None:
        """A link."""
        self.page.get_by_role("link", name=name, exact=True).first.click()

    def press(self, name: str) -> None:
        """A button."""
        self.page.get_by_role("button", name=name, exact=True).first.click()

    def tick(self, name: str) -> None:
        """A box."""
        self.page.get_by_role("checkbox", name=name).first.check()

    def write(self, name: str, text: str) -> None:
        """Into a field."""
        self.page.get_by_label(name, exact=True).fill(text)


class Keys(Hand):
    """The same by the keyboard alone."""

    def follow(self, name: str) -> None:
        self._go("link", name)
        self.page.keyboard.press("Enter")

    def press(self, name: str) -> None:
        self._go("button", name)
        self.page.keyboard.press("Enter")

    def tick(self, name: str) -> None:
        self._go("checkbox", name)
        self.page.keyboard.press("Space")

    def write(self, name: str, text: str) -> None:
        self._go("textbox", name)
        self.page.keyboard.press("Control+a")
        self.page.keyboard.type(text)

    def _go(self, role: str, name: str) -> None:
        """Tab until it has the focus, which a person can see."""
        wanted = self.page.get_by_role(role, name=name, exact=role != "checkbox").first
        wanted.wait_for()
        for _ in range(200):
            if wanted.evaluate("one => one === document.activeElement"):
                assert wanted.evaluate("one => getComputedStyle(one).outlineStyle") != "none"
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"no Tab leads to {name}")


@pytest.mark.parametrize("way", [Hand, Keys], ids=["by clicking", "by keys"])
def test_every_act(desk, way):
    from axe_playwright_python.sync_playwright import Axe

    page, tree = desk.page, desk.tree
    hand = way(desk)
    cart = tree / "cart.py"

    def done(said: str) -> None:
        page.wait_for_url("**/done/*")
        assert said in page.locator("h1").inner_text()
        page.emulate_media(color_scheme="dark" if way is Keys else "light")
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()

    hand.follow("Undo…")
    hand.press("Undo")
    done("Went back")
    assert "changed" not in cart.read_text()
    hand.follow("Redo it…")
    hand.press("Redo")
    done("Went forward")
    assert "changed too" in cart.read_text()

    page.goto(f"{desk.base}/state/first?path=cart.py")
    hand.follow("Restore this…")
    hand.press("Restore")
    done("Restored")
    assert "changed" not in cart.read_text()
    hand.follow("Undo it…")
    hand.press("Undo")
    done("Went back")
    assert "changed" in cart.read_text()

    page.goto(f"{desk.base}/state/first")
    hand.follow("Choose what to restore…")
    hand.tick("Restore these lines")
    hand.press("Restore the ticked parts")
    done("Restored in part")
    assert [word in cart.read_text() for word in ("line 3\n", "changed too")] == [True, True]

    page.goto(f"{desk.base}/state/first")
    hand.follow("Label…")
    hand.write("Label", "the beginning")
    hand.press("Show what it would do")
    hand.press("Label")
    done("has the label the beginning")
    assert "the beginning" in json.loads(desk.ui.run("show", "first", "--json"))["labels"]

    page.goto(f"{desk.base}/state/first")
    hand.follow("Fork…")
    hand.write("Directory", f"{tree.parent}/attempt")
    hand.press("Show what it would do")
    hand.press("Fork")
    done("Forked")
    assert "changed" not in (tree.parent / "attempt" / "cart.py").read_text()

    page.goto(f"{desk.base}/state/second")
    hand.follow("Forget…")
    hand.press("Forget")
    done("Forgot")
    assert page.get_by_role("link", name="Undo").count() == 0
