"""A small web application that really builds, serves and answers, as production; for tests of promotions."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.engine.promotion.manager import Promotions

BUILD = """\
import os, pathlib, sys, zipapp
for source in sorted(pathlib.Path("src").glob("*.py")):
    compile(source.read_text(), str(source), "exec")
pathlib.Path("dist").mkdir(exist_ok=True)
zipapp.create_archive("src", "dist/app.pyz")
print("built in", os.getcwd())
"""

SERVER = """\
import http.server, pathlib, sys
import pages

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        found = pages.PAGES.get(self.path)
        self.send_response(200 if found else 404)
        self.end_headers()
        self.wfile.write((found or "").encode())

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

SETTINGS = """\
[promote]
setup = ["sh", "-c", "mkdir -p deps && cp requirements deps/installed"]
build = [{python!r}, "build.py"]
start = [{python!r}, "dist/app.pyz", "{{port}}"]
health = ["http://127.0.0.1:{{port}}/health"]
health_timeout = "20s"
"""

PAGES = 'PAGES = {"/health": "well", "/": "one"}\n'
ISOLATED = shutil.which("bwrap") is not None


def make_app(root: Path, python: str) -> None:
    """Lay the application out in ``root``."""
    (root / "src").mkdir(parents=True)
    (root / "deps").mkdir()
    (root / "deps/warm").write_text("cached\n")
    (root / "requirements").write_text("nothing\n")
    (root / "src/__main__.py").write_text(SERVER)
    (root / "src/pages.py").write_text(PAGES)
    (root / "src/other.py").write_text("VALUE = 1\n")
    (root / "build.py").write_text(BUILD)
    (root / "holdfast.toml").write_text(SETTINGS.format(python=python))
    (root / ".gitignore").write_text("deps/\ndist/\n*.db\n__pycache__/\n")


class Ground:
    """A production with forks, in a directory of a test's own."""

    def __init__(self, base: Path, **settings: object) -> None:
        self.base = base
        self.home = base / "home"
        self.root = base / "app"
        self.flags = {f"promote.{name}": value for name, value in settings.items()}
        self.steps: list[str] = []

    def begin(self) -> Ground:
        with holdfast.init(self.root, home=self.home) as workspace:
            workspace.checkpoint("base")
        return self

    def fork(self, name: str = "fork") -> Path:
        with self.opened() as workspace:
            workspace.fork("@", self.base / name)
        return self.base / name

    def opened(self) -> holdfast.Workspace:
        return holdfast.open(self.root, home=self.home)

    @property
    def promotions(self) -> Promotions:
        return Promotions(home=self.home, flags=self.flags, tell=self.steps.append)

    def promote(self, fork: Path, result: str = "promoted", **options: Any):
        done = self.promotions.promote(fork, **options)
        assert done.answer.result == result, done
        return done

    def content(self) -> dict[str, bytes]:
        """Every file of production, links as what they lead to."""
        return content(self.root)

    def leftovers(self) -> list[str]:
        """What lies beside production and is none of the test's."""
        return [name for name in os.listdir(self.base) if name.startswith(".holdfast")]

    def sound(self) -> None:
        with self.opened() as workspace:
            assert workspace.verify(read_data=True).problems == []


def content(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
        for path in sorted(root.rglob("*"))
        if (path.is_file() or path.is_symlink()) and "__pycache__" not in path.parts
    }


needs_isolation = pytest.mark.skipif(not ISOLATED, reason="bubblewrap is not installed")
