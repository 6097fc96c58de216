"""The page among enemies: names, contents and messages that would run, drive or deceive; requests that would escape,
or keep it from answering.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import pytest

from .conftest import INSTALLED
from .test_ui_browser import Ui, Watched, chromium

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

__all__ = ["chromium"]  # the fixture, used by its name

NAMES = (
    b"<img src=x onerror=alert(1)>",
    b"\"' onfocus=alert(2) autofocus x=",
    b"<bdi><svg onload=alert(3)>",
    b"line\nbreak\rreturn\ttab",
    b"esc\x1b[31mred\x1b]0;title\x07",
    "right\u202egnp.exe".encode(),
    "held\u2066 apart\u2069 \u200f\u2028next".encode(),
    b"\xff\xfe not UTF-8 \xc3(",
    b"{{7*7}}{% include 'base.html' %}${8*8}",
    b"&lt;script&gt; &amp; &#x3c;b&#x3e;",
    b"javascript:alert(4)",
    b"a?b=c&to=d#e+f;g",
    b"%2e%2e%2f",
    b"..%2f..%2f",
    b"--force",
    b" spaces at both ends ",
    b"x" * 255,
)
CONTENT = b"<script>alert(5)</script>\n" + b"\n".join(NAMES) + b"\n</table><img src=x onerror=alert(6)>\n"
RUN = b"\xef\xbb\xbf<html><body><script>alert(7)</script>"
FILES = {
    b"page.html": RUN,
    b"page.xhtml": b'<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><script>alert(8)</script></html>',
    b"sheet.xml": b'<?xml-stylesheet href="javascript:alert(9)"?><a/>',
    b"drawing.svg": b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(10)"><script>alert(11)</script>'
    b'<image href="http://evil.example/x"/><foreignObject><iframe xmlns="http://www.w3.org/1999/xhtml" '
    b'src="javascript:alert(12)"/></foreignObject></svg>',
    b"both.gif": b"GIF89a/*" + bytes(20) + b"*/=1;alert(13)//<script>alert(14)</script>",
    b"no.png": RUN,
    b"paper.pdf": b"%PDF-1.4\n1 0 obj<</OpenAction<</S/JavaScript/JS(app.alert(15))>>>>\x00",
    b"code.js": b"alert(16)",
    b"empty.svg": b"",
}
NOT_SHOWN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
SECRET = "what lies outside of the workspace"
MOST_PAGES = 160
LINKS = "[...document.querySelectorAll('a[href]')].map((link) => link.href)"
OPEN_ALL = """async () => {
    document.querySelectorAll("details").forEach((one) => { one.open = true; });
    do { await new Promise((resolve) => setTimeout(resolve)); } while (document.querySelector(".htmx-request"));
}"""


class Fort(Ui):
    """A workspace in which everything has a hostile name, and a server of its pages."""

    def __init__(self, folder) -> None:
        super().__init__(folder)
        self.secret = folder / "secret"
        self.secret.mkdir()
        (self.secret / "file").write_text(SECRET)
        self.address = ""
        self.base = ""
        self.cookie = ""

    def write(self, name: bytes, content: bytes) -> None:
        """A file of the tree."""
        path = os.path.join(os.fsencode(self.tree), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)

    def build(self) -> None:
        """A history in which each row has something of it."""
        for name in NAMES:
            self.write(name, CONTENT)
            self.write(b"below/" + name + b"/deep", name)
        for name, content in FILES.items():
            self.write(name, content)
        (self.tree / "out").symlink_to(self.secret)
        (self.tree / "file out").symlink_to(self.secret / "file")
        (self.tree / "self").symlink_to("self")
        os.symlink(NAMES[0], os.path.join(os.fsencode(self.tree), b"to " + NAMES[1]))
        hostile = NAMES[0].decode() + "\n" + NAMES[5].decode() + NAMES[1].decode() + "\x1b[2J"
        self.run("checkpoint", "-m", "all of it", "--message", hostile, "--author", hostile)
        arguments = [os.fsdecode(one) for one in NAMES]
        self.run("run", "--", "sh", "-c", 'for one; do echo "$one" >> "$one"; done; rm page.xhtml', "sh", *arguments)
        self.run("checkpoint", "-m", NAMES[0].decode(), "--message", f"prompt: {hostile}")
        self.run("fork", f"../{NAMES[0].decode()}")
        (self.tree / "code.js").unlink()
        self.write(NAMES[4] + b" new", CONTENT)
        self.run("checkpoint", "--message", hostile)
        self.run("undo")
        self.write(NAMES[5], b"changed and not saved")

    def ask(self, method: str, path: str, body=None, **headers) -> tuple[int, dict[str, str], bytes]:
        """Status, headers, content of an answer to the browser that is in."""
        connection = http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=120)
        said = {"cookie": self.cookie, **{name.replace("_", "-"): value for name, value in headers.items()}}
        connection.request(method, path if path.startswith("/") else f"{self.base}/{path}", body, said)
        answer = connection.getresponse()
        found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        connection.close()
        return found

    @contextmanager
    def open(self) -> Generator[None]:
        """Serve, and let ourselves in."""
        with self.serve() as base:
            where = urlsplit(self.entry)
            self.address, self.base = self.entry, urlsplit(base).path
            _, headers, _ = self.ask("GET", f"{where.path}?{where.query}")
            self.cookie = headers["set-cookie"].partition(";")[0]
            yield


@pytest.fixture(scope="module")
def fort(tmp_path_factory) -> Iterator[Fort]:
    found = Fort(tmp_path_factory.mktemp("fort"))
    found.build()
    with found.open():
        yield found


@pytest.fixture
def page(chromium, fort):
    """A page that the server has let in; afterwards nothing ran, and no other server was asked."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    name, _, value = fort.cookie.partition("=")
    where = urlsplit(fort.address)
    context.add_cookies([{"name": name, "value": value, "domain": where.hostname, "path": fort.base}])
    page = context.new_page()
    watched = Watched(page, f"http://{where.netloc}{fort.base}")
    yield page
    # (What the page refuses has a status that says so, which the browser mentions.)
    watched.said = [one for one in watched.said if "the server responded with a status of" not in one]
    watched.assert_calm()
    context.close()


def kind_of(address: str) -> str:
    """What pages have in common that differ in their state alone; ``address`` is below the base."""
    return re.sub(r"[0-9a-f]{24}|number=\d+|cursor=[^&]*|down_to=[^&]*|/\d+|path=.*?(&|$)", "", address)


def test_nothing_runs_and_nothing_deceives_on_any_page(page, fort):
    waiting, seen, alike = [f"{fort.base}/"], set(), {}
    origin = "http://" + urlsplit(fort.address).netloc
    while waiting and len(seen) < MOST_PAGES:
        address = waiting.pop(0)
        kind = kind_of(address.removeprefix(fort.base))
        most = 20 if "path=" in address else 3
        if address in seen or alike.get(kind, 0) >= most or "/live" in address:
            continue
        seen.add(address)
        alike[kind] = alike.get(kind, 0) + 1
        _, headers, content = fort.ask("GET", address)
        assert headers["x-content-type-options"] == "nosniff", address
        if not headers["content-type"].startswith("text/html"):
            continue
        text = content.decode()
        assert NOT_SHOWN.search(text) is None, (address, NOT_SHOWN.search(text))
        page.goto(origin + address)
        links = page.evaluate(LINKS)
        page.evaluate(OPEN_ALL)
        links += page.evaluate(LINKS)  # (what was loaded into an open one stands in the place of the link to it)
        found = page.evaluate(
            """() => ({
                inserted: document.querySelectorAll(
                    "script:not([src]), iframe, object, embed, base, [onerror], [onload], [onfocus], [autofocus][x], "
                    + "svg:not(.graph):not(.brand svg), img:not(figure img), style").length,
                scripts: [...document.scripts].map((script) => script.src),
            })"""
        )
        assert found["inserted"] == 0, address
        assert all(one.startswith(f"{origin}{fort.base}/") for one in links + found["scripts"]), address
        waiting += [one.removeprefix(origin).partition("#")[0] for one in links]
    reached = {one.removeprefix(fort.base).split("/")[1].partition("?")[0] for one in seen}
    assert reached >= {"", "state", "diff", "raw", "act", "run", "step"}, reached
    assert sum(alike.values()) > 60


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_each_name_leads_to_its_own_file(fort, name):
    """In every state, now, in a difference and through an act."""
    path = quote(name, safe="")
    assert fort.ask("GET", f"raw/all%20of%20it?path={path}")[2] == CONTENT
    expected = b"changed and not saved" if name == NAMES[5] else CONTENT + name + b"\n"
    assert fort.ask("GET", f"raw/now?path={path}")[2] == expected
    for where in ("state/@", "diff?from=all%20of%20it&to=@", "?x=", "act/restore?to=all%20of%20it", "act/parts?to=@"):
        status, _, content = fort.ask("GET", f"{where}{'&' if '?' in where else '?'}path={path}")
        assert status == 200, where
        assert b"<img src=x" not in content


@pytest.mark.parametrize("name", FILES, ids=ascii)
def test_a_file_as_it_is_runs_nothing_in_any_place(page, fort, name):
    _, headers, content = fort.ask("GET", f"raw/all%20of%20it?path={name.decode()}")
    assert content == FILES[name]
    kind = headers["content-type"].partition(";")[0]
    assert kind in ("text/plain", "image/svg+xml", "image/gif", "application/octet-stream")
    assert headers["content-security-policy"].endswith("sandbox")
    assert headers.get("content-disposition", "") == ("attachment" if kind == "application/octet-stream" else "")
    page.goto(f"http://{urlsplit(fort.address).netloc}{fort.base}/state/all%20of%20it?path={name.decode()}")
    page.wait_for_load_state("load")


OUTSIDE = (
    *("../secret/file", "..%2fsecret%2ffile", "%2e%2e/secret/file", "out/file", "out", "file out", "self", "self/x"),
    *("below/../../secret/file", "./../secret/file", "//etc/passwd", "/etc/passwd", "....//secret/file", "..\\secret"),
    *("x%00/../../secret/file", ".holdfast", "../home/catalog.db", "/proc/self/environ", "out/../file", "%252e%252e/x"),
)


@pytest.mark.parametrize("path", OUTSIDE)
def test_no_path_leads_out(fort, path):
    (fort.tree / "below" / "late").unlink(missing_ok=True)
    (fort.tree / "below" / "late").symlink_to(fort.secret)
    asked = path.replace(" ", "%20")
    pages = (
        f"raw/now?path={asked}",
        f"raw/@?path={asked}",
        f"state/@?path={asked}",
        f"diff/file?from=@&to=now&path={asked}",
    )
    for where in (
        *pages,
        f"static/x/{asked}",
        f"diff?path={asked}",
        f"act/restore?to=@&path={asked}",
        "raw/now?path=below/late/file",
    ):
        status, _, content = fort.ask("GET", where)
        assert status in (200, 400, 404, 409), (where, status)
        assert SECRET.encode() not in content, where
        assert b"root:" not in content, where
        assert b"SQLite format" not in content, where


@pytest.mark.parametrize(
    "path",
    [
        *(
            "act/fork?of=@&directory=../x",
            "act/fork?of=@&directory=x",
            "act/fork?of=@&directory=%2Fproc%2Fself%2Ffd%2F3",
        ),
        *(
            "act/undo?count=99999999999999999999",
            "act/undo?count=-1",
            "act/undo?step=1-99999999999",
            "act/undo?run=%00",
        ),
        *("act/restore?to=@-999999999999", "act/label?of=@&label=" + "x" * 5000, "act/nothing", "done/x", "held/x"),
        *("rows?lanes=" + ",".join(["0"] * 9), "rows?lanes=x", "rows?cursor=x", "rows?cursor=1.2.3&down_to=%ff"),
        *("?kind=x", "?since=yesterdayish", "?until=99999999999999999y", "?text=" + "(a%2B)%2B" * 500 + "$"),
        *("diff?from=now", "diff?from=nothing&to=nothing", "diff?view=x", "diff?from=@&to=" + "9" * 300, "run/%ff%00"),
        *(
            "step/99999999999999999999999",
            "step/-1",
            "state/%00",
            "state/" + "@-" * 1000,
            "static/x/%00",
        ),
    ],
)
def test_what_makes_no_sense_is_said_and_harms_nothing(fort, path):
    status, _, content = fort.ask("GET", path)
    assert status in (200, 400, 404, 405, 409), (path, status, content)
    assert b"Traceback" not in content
    assert SECRET.encode() not in content
    assert fort.ask("GET", "")[0] == 200


def raw(fort, data: bytes) -> bytes:
    """What is answered to any bytes."""
    where = urlsplit(fort.address)
    found = b""
    with socket.create_connection((where.hostname, where.port), timeout=120) as connection:
        with suppress(ConnectionError):  # (It may hang up before it has read all.)
            connection.sendall(data)
        with suppress(ConnectionError):
            while piece := connection.recv(1 << 16):
                found += piece
    return found


def head(fort, method: str, path: str, *lines: str) -> bytes:
    host = urlsplit(fort.address).netloc
    asked = [f"{method} {fort.base}/{path} HTTP/1.1", f"host: {host}", f"cookie: {fort.cookie}", *lines, "", ""]
    return "\r\n".join(asked).encode()


def test_what_is_too_large_is_refused_and_the_next_request_answered(fort):
    origin = f"origin: http://{urlsplit(fort.address).netloc}"
    form = "content-type: application/x-www-form-urlencoded"
    piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    sent = {
        "a query": head(fort, "GET", "?text=" + "x" * 200_000),
        "a name": head(fort, "GET", "state/" + "x" * 200_000),
        "a header": head(fort, "GET", "", "x-large: " + "x" * 200_000),
        "headers": head(fort, "GET", "", *(f"x-{number}: x" for number in range(20_000))),
        "fields": head(fort, "GET", "?" + "&".join(f"a{number}=1" for number in range(7_000))),
        "a form": head(fort, "POST", "act/undo", origin, form, "content-length: 1048576") + b"x" * 1048576,
        "a form in pieces": head(fort, "POST", "act/undo", origin, form, "transfer-encoding: chunked") + piece * 20,
        "a form that is said to be large": head(fort, "POST", "act/undo", origin, form, "content-length: 99999999999"),
        "a form of two lengths": head(fort, "POST", "act/undo", origin, form, "content-length: 1", "content-length: 2"),
        "no HTTP": b"\x16\x03\x01\x02\x00" * 1000,
        "nothing": b"\r\n" * 10_000,
    }
    with ThreadPoolExecutor(len(sent)) as threads:
        answers = dict(zip(sent, threads.map(lambda data: raw(fort, data), sent.values()), strict=True))
    for what, answer in answers.items():
        assert not answer or answer.startswith(b"HTTP/1.1 "), what
        assert b"500" not in answer[:16], what
    assert fort.ask("GET", "")[0] == 200


def test_hundreds_of_streams_and_of_slow_clients_end_nothing(fort):
    where = urlsplit(fort.address)
    connections = [socket.create_connection((where.hostname, where.port), timeout=120) for _ in range(300)]
    for number, connection in enumerate(connections):
        data = head(fort, "GET", "live?since=0")
        connection.sendall(data if number % 2 else data[:40])
    started = [connection.recv(12) for connection in connections[1::2][:100]]
    assert set(started) <= {b"HTTP/1.1 200", b"HTTP/1.1 503"}
    assert b"HTTP/1.1 503" in started, "no more than are meant to be"
    for connection in connections:
        connection.close()
    # (As soon as it has seen that they are gone.)
    for _ in range(600):
        if fort.ask("GET", "")[0] == 200:
            break
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: fort.ask("GET", "diff?from=all%20of%20it&to=@")[0], range(24)))
    assert set(found) == {200}


def test_who_begins_a_request_and_never_ends_it_keeps_no_one_from_the_page(fort):
    where = urlsplit(fort.address)
    slow = [socket.create_connection((where.hostname, where.port), timeout=120) for _ in range(40)]
    lines = (f"origin: http://{where.netloc}", "content-type: application/x-www-form-urlencoded")
    for number, connection in enumerate(slow):
        whole = head(fort, "POST", "act/undo", *lines, "content-length: 1000") + b"form="
        connection.sendall(whole if number % 2 else whole[:60])
    assert fort.ask("GET", "")[0] == 200
    assert {connection.recv(1 << 16)[:12] for connection in slow} == {b"", b"HTTP/1.1 408"}
    for connection in slow:
        connection.close()


def test_a_held_operation_with_a_hostile_name_is_plain_text(chromium, tmp_path):
    fort = Fort(tmp_path)
    for number in range(60):
        fort.write(b"many/%d" % number + NAMES[number % len(NAMES)][:200], b"x")
    fort.run("checkpoint", "-m", "first")
    command = f"rm -r many {NAMES[0].decode()!r} {NAMES[5].decode()!r}"
    run = subprocess.Popen(
        [*INSTALLED, "run", "--guard", "--", "sh", "-c", command],
        cwd=fort.tree,
        env=fort.environment | {"HOLDFAST_SAFEGUARD_TIMEOUT": "10m"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    context = chromium.new_context()
    try:
        with fort.serve() as base:
            page = context.new_page()
            watched = Watched(page, base)
            page.goto(fort.entry)
            page.wait_for_url(f"{base}/")
            asks = page.locator("#held .waiting-operation")
            asks.wait_for()
            assert NOT_SHOWN.search(page.content()) is None
            assert "<img src=x onerror" in asks.inner_text()
            page.get_by_role("button", name="Deny").click()
            page.wait_for_url("**/done/*")
            assert NOT_SHOWN.search(page.content()) is None
            watched.assert_calm()
            page.goto("about:blank")
    finally:
        if run.poll() is None:
            run.terminate()
        run.wait(60)
        context.close()
    assert len(os.listdir(fort.tree / "many")) == 60
    assert json.loads(fort.run("verify", "--json"))["problems"] == []
