"""Experiments, machines and authors of lines in a real browser: watched, adopted by click and by keys, taken back."""

from __future__ import annotations

import json
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from holdfast.engine.sessions.registry import Sessions

from .conftest import INSTALLED
from .test_ui_acts import Desk, chromium
from .test_ui_browser import Ui, Watched

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

__all__ = ["chromium"]  # the fixture, used by its name

SCRIPT = "<img src=x onerror=alert(1)>"
COMMANDS = (
    "until [ -e ../go ]; do echo tick; sleep 0.2; done; echo long long > out",
    "echo short > out; rm cart.py; echo done",
    f"echo '{SCRIPT}'; echo why >&2; exit 3",
)


class Bench(Desk):
    """A page over a workspace, and experiments in it."""

    @contextmanager
    def trying(self) -> Generator[None]:
        """An experiment of which one attempt goes on for the length of the block; it is over after that."""
        # (The forks are not beside the tree: where to go on is asked for by its full path.)
        commands = [one.replace("../go", f"{self.tree.parent}/go") for one in COMMANDS]
        running = subprocess.Popen(
            [*INSTALLED, "experiment", *commands, "--score", "wc -c < out", "--keep"],
            cwd=self.tree,
            env=self.ui.environment,
            stdout=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            (self.tree.parent / "go").touch()
            assert running.wait(120) == 0

    def tried(self) -> None:
        """An experiment that is over."""
        with self.trying():
            pass


@pytest.fixture
def bench(chromium, tmp_path, request) -> Iterator[Bench]:
    """A page over a young workspace; afterwards the store is whole, and the page has run nothing."""
    ui = Ui(tmp_path)
    (ui.tree / "cart.py").write_text("one\ntwo\nthree\n")
    ui.run("checkpoint", "-m", "first", "--author", "ann")
    context = chromium.new_context(java_script_enabled=getattr(request, "param", True))
    with ui.serve() as base:
        page = context.new_page()
        page.set_default_timeout(60_000)
        watched = Watched(page, base)
        page.goto(ui.entry)
        page.wait_for_url(f"{base}/")
        yield Bench(ui, page, base)
        watched.assert_calm()
        page.goto("about:blank")
    context.close()
    assert json.loads(ui.run("verify", "--json"))["problems"] == []


def test_an_experiment_is_watched_and_its_best_adopted_by_a_click(bench):
    page = bench.page
    page.get_by_role("link", name="Experiments").click()
    page.locator(".empty", has_text="No experiment runs").wait_for()
    with bench.trying():
        page.locator(".attempt[data-phase=running] .output", has_text="tick").wait_for()
        page.locator(".attempt[data-phase=done]", has_text="short").wait_for()
        page.locator(".attempt[data-phase=failed] .errors", has_text="why").wait_for()
        assert page.locator(".adopt").count() == 0
    page.locator(".experiment h2", has_text="is over").wait_for()
    best = page.locator(".attempt").first
    assert best.locator(".mark").inner_text() == "best"
    assert "done" in best.locator(".output").inner_text()
    assert "6" in best.locator(".measures").inner_text()
    best.locator("a.changes").click()
    page.locator(".file", has_text="cart.py").first.wait_for()
    page.go_back()
    page.get_by_role("link", name="Adopt attempt 2").click()
    page.wait_for_url("**/act/adopt?**")
    page.locator("p", has_text="1 file would be written, 1 would be deleted.").wait_for()
    assert (bench.tree / "cart.py").exists()
    page.get_by_role("button", name="Adopt").click()
    page.wait_for_url("**/done/*")
    assert page.locator("h1").inner_text().startswith("Adopted echo short")
    assert (bench.tree / "out").read_text() == "short\n"
    assert not (bench.tree / "cart.py").exists()
    page.get_by_role("link", name="Undo it").click()
    page.wait_for_url("**/act/undo")
    page.get_by_role("button", name="Undo").click()
    page.wait_for_url("**/done/*")
    assert (bench.tree / "cart.py").exists()
    assert not (bench.tree / "out").exists()


def test_an_experiment_that_was_killed_says_so(bench):
    page = bench.page
    page.goto(f"{bench.base}/experiments")
    running = subprocess.Popen(
        [*INSTALLED, "experiment", "echo begun; sleep 600"],
        cwd=bench.tree,
        env=bench.ui.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    page.locator(".output", has_text="begun").wait_for()
    running.kill()
    running.wait()
    page.locator(".experiment h2", has_text="was killed").wait_for()
    name = page.locator(".experiment .hash").inner_text()
    bench.ui.run("session", "exec", "true")  # (what opens a session next clears away)
    page.goto(f"{bench.base}/experiments?of={name}")
    page.locator(".empty", has_text="its forks are gone").wait_for()


def press(page, selector: str) -> None:
    """Go by Tab to the next such element, and press it."""
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            page.keyboard.press("Enter")
            return
    raise AssertionError(f"no key leads to {selector}")


def test_an_attempt_is_adopted_by_keys(bench):
    bench.tried()
    page = bench.page
    page.goto(f"{bench.base}/experiments")
    page.keyboard.press("j")
    page.keyboard.press("j")
    chosen = page.locator(".attempt.chosen")
    assert "long long" in chosen.inner_text()
    press(page, ".adopt")
    page.wait_for_url("**/act/adopt?**")
    press(page, "button.go")
    page.wait_for_url("**/done/*")
    assert (bench.tree / "out").read_text() == "long long\n"


@pytest.mark.parametrize("bench", [False], indirect=True, ids=["without JavaScript"])
def test_attempts_are_compared_and_adopted_without_javascript(bench):
    bench.tried()
    page = bench.page
    page.get_by_role("link", name="Experiments").click()
    page.get_by_role("link", name="Difference to the best").first.click()
    page.locator(".file", has_text="out").first.wait_for()
    page.go_back()
    page.get_by_role("link", name="Adopt attempt 1").click()
    page.get_by_role("button", name="Adopt").click()
    page.wait_for_url("**/done/*")
    assert (bench.tree / "out").read_text() == "long long\n"
    page.goto(f"{bench.base}/state/first?path=cart.py")
    page.get_by_role("link", name="who changed each line").click()
    assert page.locator(".origins").inner_text().count("ann") == 1
    page.locator(".who a").first.click()
    assert page.url.endswith("#origin-1")


def test_the_new_pages_are_accessible_and_fit_a_narrow_screen(bench, chromium):
    from axe_playwright_python.sync_playwright import Axe

    bench.tried()
    home = bench.ui.environment["HOLDFAST_HOME"]
    with Sessions(home=home) as sessions, sessions.start(bench.tree, "built", isolation="vm") as session:
        session.checkpoint(f"installed {SCRIPT}")
        session.fork("tried")
        session.checkpoint("later")
    bench.ui.run("run", "--", "sed", "-i", "s/two/2/", "cart.py")
    kept = bench.page.context.storage_state()
    pages = ["/experiments", "/machines", "/state/@?path=cart.py&lines=yes", "/"]
    for scheme in ("light", "dark"):
        for width in (400, 1280, 2560):
            options = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
            context = chromium.new_context(storage_state=kept, **options)
            page = context.new_page()
            for where in pages:
                page.goto(f"{bench.base}{where}")
                assert page.evaluate("document.scrollingElement.scrollWidth") <= width, (where, width)
                found = Axe().run(page)
                assert found.violations_count == 0, (where, width, scheme, found.generate_report())
            context.close()
