"""The page in a real browser: over a history that the command line made, with keys, live, and under attack."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest

from .conftest import INSTALLED

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

pytest.importorskip("litestar", reason="needs litestar (extra server)")
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (extra dev)")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
if CHROMIUM is None:
    pytest.skip("needs chromium (apt-get install chromium)", allow_module_level=True)

SCRIPT = "<img src=x onerror=alert(1)><script>alert(2)</script>"
ROWS = 75


class Ui:
    """A server of the page, and the command line in its workspace."""

    def __init__(self, folder: Path) -> None:
        self.tree = folder / "tree"
        self.tree.mkdir()
        keep = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        self.environment = {**keep, "HOME": str(folder), "HOLDFAST_HOME": str(folder / "home")}
        self.entry = ""

    def run(self, *words: str) -> str:
        done = subprocess.run(
            [*INSTALLED, *words],
            check=False,
            cwd=self.tree,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done
        return done.stdout

    def live(self) -> None:
        """Make a history."""
        (self.tree / "src").mkdir()
        (self.tree / "src" / "cart.py").write_text("def total(items):\n    return sum(one.price for one in items)\n")
        (self.tree / SCRIPT.replace("/", "")).write_text(SCRIPT)
        (self.tree / "page.html").write_text(SCRIPT)
        drawing = f'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(3)">{SCRIPT}</svg>'
        (self.tree / "drawing.svg").write_text(drawing)
        (self.tree / "logo.png").write_bytes(_png(40))
        import holdfast

        with holdfast.init(self.tree, home=self.environment["HOLDFAST_HOME"]) as workspace:
            for number in range(ROWS):
                (self.tree / "n").write_text(str(number))
                workspace.checkpoint(author=SCRIPT, message=f"state {number} {SCRIPT}")
        (self.tree / "n").write_text("the last")
        prompt = "prompt: count the items\n\nand more"
        self.run("checkpoint", "-m", "it works", "--message", prompt, "--author", "claude")
        agent = f"sed -i s/price/cost/ src/cart.py; rm n; echo '{SCRIPT}' > made; : {SCRIPT!r}"
        self.run("run", "--", "sh", "-c", agent)
        self.run("fork", "../attempt")
        (self.tree / "logo.png").write_bytes(_png(200))
        (self.tree / "src" / "cart.py").rename(self.tree / "src" / "basket.py")
        self.run("checkpoint", "-m", "new logo")
        (self.tree / "late").write_text("1")
        self.run("checkpoint", "-m", "ahead of it")
        self.run("undo")

    @contextmanager
    def serve(self) -> Generator[str]:
        """The base of the pages; `entry` lets one browser in."""
        process = subprocess.Popen(
            [*INSTALLED, "ui", "--no-browser", "--json"],
            cwd=self.tree,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            self.entry = json.loads(process.stdout.readline())["address"]
            yield self.entry.rpartition("/")[0]
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
            process.stdout.close()


def _png(shade: int) -> bytes:
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes((shade, 60, 90)) * 32 for _ in range(32))
    head = struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def ui(tmp_path_factory) -> Iterator[Ui]:
    """A workspace with a history."""
    found = Ui(tmp_path_factory.mktemp("ui"))
    found.live()
    yield found
    assert json.loads(found.run("verify", "--json"))["problems"] == []


@pytest.fixture(scope="module")
def base(ui) -> Iterator[str]:
    """Its pages."""
    with ui.serve() as address:
        yield address


@pytest.fixture(scope="module")
def chromium() -> Iterator[object]:
    """A browser. A name of another owner leads to this machine."""
    with playwright.sync_playwright() as driver:
        options = ["--host-resolver-rules=MAP evil.example 127.0.0.1", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        found = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        yield found
        found.close()


@pytest.fixture(scope="module")
def signed_in(ui, base, chromium):
    """What a browser keeps that the page has let in."""
    context = chromium.new_context()
    page = context.new_page()
    page.goto(ui.entry)
    page.wait_for_url(f"{base}/")
    kept = context.storage_state()
    context.close()
    return kept


class Watched:
    """What a page did besides showing itself."""

    def __init__(self, page, base: str) -> None:
        self.said: list[str] = []
        self.asked: set[str] = set()
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("dialog", lambda dialog: (self.said.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self.asked.add(request.url))
        self._base = base

    def assert_calm(self) -> None:
        assert self.said == []
        assert {one for one in self.asked if not one.startswith(f"{self._base}/")} == set()


@pytest.fixture
def open_page(chromium, signed_in, base):
    """Opens a page below the base; afterwards nothing ran, failed, or asked another server."""
    contexts, watched = [], []

    def open_it(where="/", *, width=1280, height=800, **options):
        contexts.append(
            chromium.new_context(storage_state=signed_in, viewport={"width": width, "height": height}, **options)
        )
        page = contexts[-1].new_page()
        page.set_default_timeout(60_000)
        watched.append(Watched(page, base))
        page.goto(f"{base}{where}")
        return page

    yield open_it
    for one in watched:
        one.assert_calm()
    for context in contexts:
        context.close()


def test_the_history_is_there_and_a_run_unfolds(open_page):
    page = open_page()
    kinds = page.locator(".row .kind").all_inner_texts()
    assert kinds[:6] == ["undo", "checkpoint", "checkpoint", "run", "prompt", "checkpoint"]
    assert page.locator(".row.here .label").inner_text() == "new logo"
    assert page.locator(".row.ahead .label").inner_text() == "ahead of it"
    assert page.locator(".chip.fork").inner_text() == "fork attempt"
    run = page.locator(".row.kind-run")
    run.locator(".steps > summary").click()
    step = run.locator(".step", has_text="sed -i s/price/cost/").first
    step.locator("summary").click()
    step.locator(".paths li", has_text="src/cart.py").wait_for()


def test_keys_lead_through_the_rows_and_into_a_difference(open_page, base):
    page = open_page()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.locator(".row.chosen .label").inner_text() == "new logo"
    page.keyboard.press("k")
    assert page.locator(".row.chosen .label").inner_text() == "ahead of it"
    page.keyboard.press("?")
    page.locator("dialog[open]").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.locator(".row.chosen a.changes").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/diff?**")
    page.locator(".file .name", has_text="basket.py").wait_for()
    page.keyboard.press("u")
    page.wait_for_url(f"{base}/")
    page.keyboard.press("/")
    page.keyboard.type("count the")
    page.keyboard.press("Enter")
    page.wait_for_url("**text=count**")
    assert page.locator(".row").count() == 1


def test_older_rows_come_when_they_are_looked_at(open_page):
    page = open_page()
    assert page.locator(".row").count() == 60
    for _ in range(2):
        page.locator(".row").last.scroll_into_view_if_needed()
        page.mouse.wheel(0, 5000)
    page.locator(".row", has_text="state 0 ").wait_for()
    names = page.locator(".row").evaluate_all("rows => rows.map(row => row.dataset.name)")
    assert len(names) == len(set(names)) == ROWS + 5


def test_what_happens_is_shown_as_it_does(chromium, tmp_path):
    young = Ui(tmp_path)
    (young.tree / "n").write_text("0")
    young.run("checkpoint", "-m", "first")
    young.run("run", "--", "sh", "-c", "echo 1 > n")
    context = chromium.new_context()
    with young.serve() as base:
        page = context.new_page()
        watched = Watched(page, base)
        page.goto(young.entry)
        page.wait_for_url(f"{base}/")
        page.locator(".row.kind-run .steps > summary").click()
        page.locator(".step").first.wait_for()
        page.keyboard.press("g")
        assert page.locator(".row.chosen.kind-run").count() == 1
        young.run("undo")
        page.locator(".row.kind-undo.here").wait_for()
        page.locator(".row.kind-run.chosen details.steps[open] .step").first.wait_for()
        (young.tree / "n").write_text("2")
        young.run("checkpoint", "-m", "second")
        page.locator(".row.here .label", has_text="second").wait_for()
        assert page.locator(".row").count() == 4
        watched.assert_calm()
        page.goto("about:blank")
    context.close()


def test_a_difference_has_words_images_and_the_tree_as_it_is(open_page, ui):
    page = open_page("/diff?from=it%20works&to=new%20logo")
    page.locator(".images img").first.wait_for()
    page.get_by_role("button", name="On top of each other").click()
    slider = page.get_by_role("slider")
    slider.fill("25")
    before = page.locator(".over-stack img").nth(1)
    assert before.evaluate("image => image.style.clipPath") == "inset(0px 75% 0px 0px)"
    page.get_by_role("button", name="Side by side").click()
    assert page.locator(".images figure:visible").count() == 2
    (ui.tree / "unsaved").write_text("1\n2\n")
    page = open_page("/diff")
    page.locator(".file .name", has_text="unsaved").wait_for()


def test_what_a_row_changed_is_beside_the_rows_where_there_is_room(open_page, base):
    page = open_page(width=2560, height=1300)
    for _ in range(3):
        page.keyboard.press("j")
    page.locator("#preview .file .name", has_text="basket.py").wait_for()
    assert page.url == f"{base}/"


@pytest.mark.parametrize("where", ["/", "/state/@", "/state/@?path=src/basket.py", "/diff", "/diff?from=nothing&to=@"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible_and_fit_a_narrow_screen(open_page, where, scheme):
    from axe_playwright_python.sync_playwright import Axe

    for width in (400, 1280, 2560):
        page = open_page(where, width=width, color_scheme=scheme)
        if where == "/":
            page.locator(".row.kind-run .steps > summary").click()
            page.locator(".step").first.wait_for()
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_that_others_lead_to_are_accessible(chromium, signed_in, base, scheme):
    from axe_playwright_python.sync_playwright import Axe

    context = chromium.new_context(storage_state=signed_in, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"{base}/")
    run = page.locator(".row.kind-run .steps a").first.get_attribute("href")
    pages = (
        "/held",
        "/nothing",
        "/?text=not%20there",
        "/?kind=run",
        "/state/@?path=logo.png",
        "/state/@?path=drawing.svg",
    )
    file = "/diff/file?from=it%20works&to=new%20logo&path=src/basket.py&view="
    origin = base.rpartition("/")[0]
    for where in (
        run,
        *(f"{base}{one}".removeprefix(origin) for one in (*pages, file, f"{file}unified", "/act/undo?to=9999")),
    ):
        page.goto(origin + where)
        found = Axe().run(page)
        assert found.violations_count == 0, f"{where}\n{found.generate_report()}"
    page.goto(origin + run)
    page.goto(page.locator(".step a").first.evaluate("link => link.href"))
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    page.goto(f"{base}/")
    page.keyboard.press("?")
    page.locator("dialog[open]").wait_for()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    context.close()


@pytest.mark.parametrize(
    "where",
    [
        *("/state/@", "/diff?from=nothing&to=it%20works", "/?text=onerror", "/state/@?path=page.html"),
        *("/raw/now?path=page.html", "/state/@?path=drawing.svg"),
    ],
)
def test_no_name_and_no_content_runs(open_page, base, where):
    page = open_page(where)
    for link in page.locator("a[href*='/state/']").evaluate_all("links => links.map(link => link.href)")[:8]:
        page.goto(link)
        page.wait_for_load_state("load")
    # (Had anything run, or been refused to, `open_page` would find a dialog or a word of the browser.)
    assert page.url.startswith(base)


def test_a_drawing_as_it_is_runs_nothing(chromium, signed_in, base):
    context = chromium.new_context(storage_state=signed_in)
    page = context.new_page()
    watched = Watched(page, base)
    page.goto(f"{base}/raw/now?path=drawing.svg")
    page.wait_for_load_state("load")
    assert watched.said, "the browser tells what it has refused"
    assert all("sandboxed" in one or "Content Security Policy" in one for one in watched.said), watched.said
    context.close()


def test_without_javascript_it_can_be_read(chromium, signed_in, base):
    context = chromium.new_context(storage_state=signed_in, java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{base}/")
    assert page.locator(".row").count() == 60
    page.locator(".row.kind-run .steps > summary").click()
    page.get_by_role("link", name="Show them").click()
    page.get_by_text("sed -i s/price/cost/ src/cart.py", exact=True).wait_for()
    page.goto(f"{base}/")
    page.get_by_role("link", name="Older").click()
    assert page.locator(".row", has_text="state 0 ").count() == 1
    page.goto(f"{base}/diff?from=it%20works&to=new%20logo")
    assert page.locator(".file .name", has_text="basket.py").count() == 1
    context.close()


def test_no_other_browser_and_no_other_name_gets_in(chromium, ui, base):
    context = chromium.new_context()
    page = context.new_page()
    assert page.goto(ui.entry).status == 403
    assert page.goto(f"{base}/").status == 401
    port = base.rpartition(":")[2]
    assert page.goto(f"http://evil.example:{port}").status == 403
    context.close()


ELSEWHERE = """<!doctype html><title>Elsewhere</title><body><script>
const base = %r, found = window.found = [];
const note = (what) => (event) => found.push(`${what} ${event.type || event}`);
const load = (element, what, address) => {
  element.onload = element.onerror = note(what);
  element.src = base + address;
  document.body.append(element);
};
load(new Image(), "image", "/raw/now?path=logo.png");
load(document.createElement("script"), "script", "/static/x/keys.js");
const own = { credentials: "include" };
fetch(base + "/", own).then(note("fetch"), () => note("fetch")("error"));
fetch(base + "/", { ...own, mode: "no-cors", method: "POST" }).then(note("post"), () => note("post")("error"));
const events = new EventSource(base + "/live", { withCredentials: true });
events.onopen = events.onerror = note("events");
</script>"""


def test_a_page_of_another_port_of_this_machine_gets_nothing(chromium, signed_in, base):
    cookies: set[str] = set()

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self):
            cookies.add(self.headers.get("cookie", ""))
            body = (ELSEWHERE % base).encode()
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format, *args):  # noqa: A002 - the base class names it so
            pass

    with HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            context = chromium.new_context(storage_state=signed_in)
            page = context.new_page()
            page.goto(f"http://127.0.0.1:{server.server_port}/")
            page.wait_for_function("window.found.length >= 5")
            found = set(page.evaluate("window.found"))
            assert found == {"image error", "script error", "fetch error", "post error", "events error"}
            context.close()
        finally:
            server.shutdown()
            thread.join()
    assert cookies == {""}, "browsers send cookies to every port, but ours has a path of its own"
