"""Two agents and one production web application: both arrive there, and a build that is broken on purpose does not.

    python demo.py [DIRECTORY]

Lays out a small application that really is built and served, and runs `holdfast` as anybody would. Everything is in
DIRECTORY (default: a temporary one, removed at the end): production, the agents' forks, the home: see
docs/reference/promote.md.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

BUILD = '''\
"""Compiles the sources and packs them: what is served is dist/site.pyz."""
import pathlib, zipapp
for source in sorted(pathlib.Path("src").glob("*.py")):
    compile(source.read_text(), str(source), "exec")
pathlib.Path("dist").mkdir(exist_ok=True)
zipapp.create_archive("src", "dist/site.pyz")
print("built", len(list(pathlib.Path("src").glob("*.py"))), "sources")
'''

SERVE = """\
import http.server, sys
import prices, texts

class Site(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        pages = {"/health": "well", "/": f"{texts.WELCOME} {prices.total()}"}
        self.send_response(200 if self.path in pages else 404)
        self.end_headers()
        self.wfile.write(pages.get(self.path, "").encode())
    def log_message(self, *words): pass

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Site).serve_forever()
"""

RESTART = """\
# Ends the server that runs, and starts the one that was promoted, on the same port. (A service manager would do this.)
kill "$(cat "$1/server.pid")" 2>/dev/null
while kill -0 "$(cat "$1/server.pid")" 2>/dev/null; do sleep 0.05; done
"$2" dist/site.pyz "$(cat "$1/port")" >/dev/null 2>&1 &
echo $! > "$1/server.pid"
"""


def say(text: str) -> None:
    """A heading."""
    print(f"\n# {text}", flush=True)


class Demo:
    """Production and the two agents, in one directory."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.production = base / "production"
        self.environment = os.environ | {"HOLDFAST_HOME": str(base / "home")}
        self.server: subprocess.Popen[bytes] | None = None

    def holdfast(self, *words: str, code: int = 0) -> None:
        """Run a command, shown as it would be typed."""
        print("$ holdfast", *words, flush=True)
        done = subprocess.run([sys.executable, "-m", "holdfast", *words], env=self.environment, check=False)
        if done.returncode != code:
            raise SystemExit(f"holdfast {words[0]} ended with {done.returncode}, not with {code}")

    def lay_out(self) -> None:
        """The application, and what promotes it."""
        root = self.production
        (root / "src").mkdir(parents=True)
        (root / "build.py").write_text(BUILD)
        (root / "src/__main__.py").write_text(SERVE)
        (root / "src/texts.py").write_text('WELCOME = "Hello."\n')
        (root / "src/prices.py").write_text("def total():\n    return 1\n")
        (root / ".gitignore").write_text("dist/\n__pycache__/\n")
        (root / "holdfast.toml").write_text(
            f"""[promote]
build = [{sys.executable!r}, "build.py"]
start = [{sys.executable!r}, "dist/site.pyz", "{{port}}"]
health = ["http://127.0.0.1:{{port}}/health"]
"""
        )
        (self.base / "restart.sh").write_text(RESTART)
        (self.base / "home").mkdir(mode=0o700)
        isolation = "namespace" if shutil.which("bwrap") else "none"
        words = ["sh", str(self.base / "restart.sh"), str(self.base), sys.executable]
        (self.base / "home/config.toml").write_text(f'[promote]\nrestart = {words}\nisolation = "{isolation}"\n')

    def serve(self) -> None:
        """Build and start production for the first time."""
        import socket

        with socket.socket() as any_socket:
            any_socket.bind(("127.0.0.1", 0))
            port = any_socket.getsockname()[1]
        (self.base / "port").write_text(str(port))
        (self.base / "server.pid").write_text("")
        subprocess.run([sys.executable, "build.py"], cwd=self.production, check=True)
        script = ["sh", str(self.base / "restart.sh"), str(self.base), sys.executable]
        subprocess.run(script, cwd=self.production, check=True)

    def page(self, expected: str) -> None:
        """What production serves now."""
        url = f"http://127.0.0.1:{(self.base / 'port').read_text()}/"
        for _ in range(200):
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    found = answer.read().decode()
                break
            except OSError:
                time.sleep(0.05)
        else:
            raise SystemExit("production does not answer")
        print(f"production serves: {found}")
        if found != expected:
            raise SystemExit(f"it should be: {expected}")

    def run(self) -> None:
        """All of it."""
        one, two = self.base / "agent-1", self.base / "agent-2"
        production = str(self.production)
        say("Production, as it is")
        self.lay_out()
        self.holdfast("init", production)
        self.holdfast("-w", production, "checkpoint", "-m", "first")
        self.serve()
        self.page("Hello. 1")
        say("Two agents work in forks of it, at the same time")
        for fork in (one, two):
            self.holdfast("-w", production, "fork", str(fork))
        (one / "src/texts.py").write_text('WELCOME = "Welcome!"\n')
        (two / "src/prices.py").write_text("def total():\n    return 6 * 7\n")
        say("The first one is promoted: built, started and asked in a copy, then exchanged at once")
        self.holdfast("promote", str(one))
        self.page("Welcome! 1")
        say("The second one is merged with that")
        self.holdfast("promote", str(two), "--dry-run")
        self.holdfast("promote", str(two))
        self.page("Welcome! 42")
        say("The first agent breaks its build: production does not change")
        (one / "src/texts.py").write_text('WELCOME = "Never seen\n')
        self.holdfast("promote", str(one), code=1)
        self.page("Welcome! 42")
        say("What was promoted, and one of them taken back")
        self.holdfast("promote", "--list")
        self.holdfast("-w", production, "log")
        self.holdfast("-w", production, "undo")
        if "return 1" not in (self.production / "src/prices.py").read_text():
            raise SystemExit("it was not taken back")

    def end(self) -> None:
        """End the server."""
        import signal

        try:
            os.kill(int((self.base / "server.pid").read_text()), signal.SIGTERM)
        except (OSError, ValueError):
            return


def main() -> None:
    """Run it in the directory that was given, or in a temporary one."""
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as temporary:
        demo = Demo(Path(sys.argv[1] if len(sys.argv) > 1 else temporary).resolve())
        try:
            demo.run()
        finally:
            demo.end()


if __name__ == "__main__":
    main()
