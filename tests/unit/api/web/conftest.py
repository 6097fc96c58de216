"""A page over a workspace with a real history, and who asks for it."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.engine.running.run import begin_run, end_run

pytest.importorskip("litestar", reason="needs litestar (extra server)")
pytest.importorskip("jinja2", reason="needs jinja2 (extra server)")

from litestar.testing import TestClient

from holdfast.api.web.access import Access
from holdfast.api.web.peers import Peers
from holdfast.api.web.server import make_app
from holdfast.api.web.workspaces import Workspaces

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

AUTHORITY = "127.0.0.1:7000"
SCRIPT = "<script>alert(1)</script>"
IMAGE = b"\x89PNG\r\n\x1a\n" + bytes(40)


class Site:
    """A server, and a browser that has its cookie."""

    def __init__(self, client, access, workspace, tree):
        self.client = client
        self.access = access
        self.workspace = workspace
        self.tree = tree

    def enter(self):
        answer = self.client.get(self.access.entry)
        assert answer.status_code == 200
        self.client.cookies.clear()
        self.client.headers["cookie"] = answer.headers["set-cookie"].partition(";")[0]
        return answer

    def get(self, page, **headers):
        """``page`` is below the base, or an address that a page has."""
        address = page if page.startswith(self.access.base) else f"{self.access.base}/{page}"
        return self.client.get(
            address.replace("&amp;", "&"),
            headers={name.replace("_", "-"): value for name, value in headers.items()},
            follow_redirects=False,
        )

    def text(self, page, **headers):
        answer = self.get(page, **headers)
        assert answer.status_code == 200, answer.text
        return answer.text

    def links(self, text):
        """Every address on a page, once."""
        found = re.findall(r'(?:href|src|action|hx-get|hx-post|sse-connect|data-refresh)="([^"]*)"', text)
        return sorted({one.replace("&amp;", "&") for one in found if one and not one.startswith("#")})


def live(found, tree, home):
    """Checkpoints, a run, a prompt, an undo, a fork that was merged; names and texts that are scripts."""
    (tree / "src").mkdir()
    (tree / "src" / "cart.py").write_text("def total(items):\n    return sum(one.price for one in items)\n")
    (tree / f"{SCRIPT[:-9]}.html").write_text(SCRIPT)
    (tree / "drawing.svg").write_text(f'<svg xmlns="http://www.w3.org/2000/svg">{SCRIPT}</svg>')
    (tree / "logo.png").write_bytes(IMAGE)
    (tree / "numbers").write_text("".join(f"{number}\n" for number in range(2000)))
    (tree / "out").symlink_to("/etc/passwd")
    (tree / "blob").write_bytes(bytes(100))
    (tree / "\udcff.txt").write_text("not UTF-8")
    found.checkpoint("First & <b>", author=SCRIPT, message=f"one\n{SCRIPT}")
    run = begin_run(found._context, f"agent {SCRIPT}")
    (tree / "src" / "cart.py").write_text("def total(items):\n    return sum(one.cost for one in items)\n")
    found.checkpoint("changed", message="prompt: count <i>", author="claude")
    end_run(found._context, run, f"agent {SCRIPT}")
    found.fork("@", tree.parent / "attempt")
    with holdfast.open(tree.parent / "attempt", home=home) as fork:
        (tree.parent / "attempt" / "tried").write_text("1")
        fork.checkpoint("tried")
    found.merge(str(tree.parent / "attempt"))
    (tree / "logo.png").write_bytes(IMAGE + b"1")
    (tree / "blob").write_bytes(bytes(101))
    (tree / "numbers").write_text("".join(f"{number * (1 + number % 2)}\n" for number in range(2000)))
    (tree / "src" / "cart.py").rename(tree / "src" / "basket.py")
    found.checkpoint("later")
    found.undo()


@pytest.fixture(scope="module")
def lived(tmp_path_factory) -> Iterator[tuple[holdfast.Workspace, Path, Workspaces]]:
    """A workspace with a history, for tests that only look."""
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        tree, home = folder / "tree", folder / "home"
        tree.mkdir()
        with holdfast.init(tree, home=home) as workspace:
            live(workspace, tree, home)
            workspaces = Workspaces(lambda: holdfast.open(tree, home=home, lenient=True))
            yield workspace, tree, workspaces
            workspaces.close()
            assert workspace.verify().ok


class NoPeers(Peers):
    """For requests without a connection, which are no process's."""

    def refusal(self, client, server, *, enters=False):
        return None


@contextmanager
def browser(workspaces, workspace, tree) -> Generator[Site]:
    """A page that has let no browser in yet."""
    access = Access()
    app = make_app(workspaces, access, AUTHORITY, NoPeers(may_hide=False), ending=lambda: True)
    with TestClient(app, base_url=f"http://{AUTHORITY}") as client:
        yield Site(client, access, workspace, tree)


@pytest.fixture
def outside(lived) -> Iterator[Site]:
    """A page over that history, which has let no browser in yet."""
    workspace, tree, workspaces = lived
    with browser(workspaces, workspace, tree) as found:
        yield found


@pytest.fixture
def site(outside) -> Site:
    """The same, and a browser that it has let in."""
    outside.enter()
    return outside


@pytest.fixture(autouse=True)
def _small_pages_in_any_time(monkeypatch) -> None:
    monkeypatch.setattr("holdfast.api.web.diff_page._INLINE_SECONDS", 60)
    monkeypatch.setattr("holdfast.api.web.timeline_page.PAGE_ROWS", 6)
    monkeypatch.setattr("holdfast.api.web.timeline_page._MOST_REFRESHED", 20)


@pytest.fixture
def growing(workspace, tree, home) -> Iterator[Site]:
    """A page over a workspace in which something will happen, with a browser."""
    (tree / "n").write_text("0")
    workspace.checkpoint("first")
    workspaces = Workspaces(lambda: holdfast.open(tree, home=home, lenient=True))
    with browser(workspaces, workspace, tree) as found:
        found.enter()
        yield found
    workspaces.close()


def grow(site, number):
    """Save so many states."""
    for one in range(number):
        (site.tree / "n").write_text(f"{number} {one}")
        site.workspace.checkpoint(f"n{one}")
