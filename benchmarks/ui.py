"""What the page takes: its first rows and those that follow of a long history, and the difference of many files.

    python benchmarks/ui.py [--rows 100000] [--checkpoints 500] [--files 1000] [--rounds 30] [--keep DIRECTORY]

`holdfast ui` of this checkout, in a process of its own over loopback. Times are of the answer's first byte, which the
server gives when the page is made, of its last, and of the processor that the server has used for it (which other
processes of a busy machine do not change). With ``--keep`` the workspace is made in
that directory, or used if it is there.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

_HERE = Path(__file__).resolve().parents[1]


class _Times(NamedTuple):
    """Seconds of one request."""

    first: float
    last: float
    processor: float


class _Browser:
    """One connection with the cookie."""

    def __init__(self, entry: str, pid: int) -> None:
        self._pid = pid
        where = urlsplit(entry)
        self._connection = http.client.HTTPConnection(where.netloc, timeout=600)
        self._headers: dict[str, str] = {}
        self.base = where.path.removesuffix("/enter")
        answer = self._ask(f"{where.path}?{where.query}")[0]
        self._headers["cookie"] = (answer.getheader("set-cookie") or "").partition(";")[0]

    def _ask(self, path: str) -> tuple[http.client.HTTPResponse, str, _Times]:
        used, begun = self._processor(), time.perf_counter()
        self._connection.request("GET", path, headers=self._headers)
        answer = self._connection.getresponse()
        first = time.perf_counter()
        text = answer.read().decode()
        last = time.perf_counter()
        return answer, text, _Times(first - begun, last - begun, self._processor() - used)

    def _processor(self) -> float:
        """The seconds that the server has run."""
        total = 0
        for thread in os.listdir(f"/proc/{self._pid}/task"):
            total += int(Path(f"/proc/{self._pid}/task/{thread}/schedstat").read_text().split()[0])
        return total / 1e9

    def get(self, path: str, *, is_part: bool = False) -> tuple[str, _Times]:
        """The text of a page, and what it took."""
        if is_part:
            self._headers["hx-request"] = "true"
        answer, text, times = self._ask(path)
        self._headers.pop("hx-request", None)
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status}\n{text}")
        return text, times


@contextmanager
def _served(tree: Path, environment: dict[str, str]) -> Iterator[_Browser]:
    command = [sys.executable, "-P", "-m", "holdfast", "ui", "--json"]
    process = subprocess.Popen(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        begun = time.perf_counter()
        entry = json.loads(process.stdout.readline())["address"]
        print(f"start                        {(time.perf_counter() - begun) * 1000:7.0f} ms")
        yield _Browser(entry, process.pid)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def _make(base: Path, rows: int, checkpoints: int, files: int) -> None:
    """A workspace with so many rows, of which so many are checkpoints; the last two differ in so many files."""
    sys.path.insert(0, str(_HERE))
    from tests.long_history import lengthen_history

    import holdfast

    tree = base / "tree"
    (tree / "src").mkdir(parents=True)
    source = "".join(f"def f{line}(items):\n    return [one * {line} for one in items]\n\n" for line in range(40))
    for number in range(files):
        (tree / "src" / f"part{number}.py").write_text(source)
    with holdfast.init(tree, home=base / "home") as workspace:
        for number in range(checkpoints - 2):
            (tree / "n").write_text(str(number))
            workspace.checkpoint(author="claude", message=f"state {number}")
        lengthen_history(workspace, rows - checkpoints)
        workspace.checkpoint("before")
        for number in range(files):
            (tree / "src" / f"part{number}.py").write_text(
                source.replace("one * 7 ", "one * 70 ").replace("f30", "g30")
            )
        workspace.checkpoint("after")


def _row(name: str, found: list[_Times]) -> None:
    columns: list[str] = []
    for what in _Times._fields:
        ordered = sorted(getattr(one, what) * 1000 for one in found)
        columns.append(f"{ordered[0]:8.1f} {statistics.median(ordered):8.1f} {ordered[int(len(ordered) * 0.95)]:8.1f}")
    print(f"{name:24} {'  '.join(columns)}")


def _measure(browser: _Browser, rounds: int) -> None:
    print(f"{'ms: least, median, 95 %':24} {'first byte':>26} {'last byte':>27} {'processor':>27}")
    _row("first page", [browser.get(f"{browser.base}/")[1] for _ in range(rounds)])
    text = browser.get(f"{browser.base}/")[0]
    further: list[_Times] = []
    while len(further) < rounds and (found := re.search(r'class="further" hx-get="([^"]*)"', text)) is not None:
        text, times = browser.get(found[1].replace("&amp;", "&"), is_part=True)
        further.append(times)
    _row("next pages", further)
    _row("filter by words", [browser.get(f"{browser.base}/?text=items%20{n}")[1] for n in range(rounds)])
    _row("filter by a path", [browser.get(f"{browser.base}/?path=src/part{n}.py")[1] for n in range(min(rounds, 10))])
    for name, query in (("diff", "from=before&to=after"), ("diff, unified", "from=before&to=after&view=unified")):
        times = [browser.get(f"{browser.base}/diff?{query}")[1] for _ in range(rounds)]
        _row(f"{name}, the very first", times[:1])
        _row(name, times[1:])


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--checkpoints", type=int, default=500)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-ui-") as top:
        base = arguments.keep or Path(top)
        if not (base / "tree").exists():
            _make(base, arguments.rows, arguments.checkpoints, arguments.files)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
            "HOLDFAST_HOME": str(base / "home"),
        }
        print(f"load {os.getloadavg()[0]:.1f}")
        with _served(base / "tree", environment) as browser:
            _measure(browser, arguments.rounds)
        print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
