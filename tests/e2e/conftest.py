"""A workspace and the command line over it; whatever a test did to the store, `verify` must find nothing afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from holdfast.cli.global_options import split_options
from holdfast.cli.main import main
from holdfast.files.linux.native import SWITCH

from ..answers import check_command
from ..waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .frontend import Start

_COMMAND = Path(sys.executable).with_name("holdfast")
INSTALLED = [str(_COMMAND)] if _COMMAND.exists() else [sys.executable, "-m", "holdfast"]
"""The command as it is installed beside the interpreter; else the module that it would run."""
WITHOUT_NAMESPACES = (
    *("unshare", "--user", "--map-root-user", "sh", "-c"),
    *('echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"', "sh"),
)
"""Makes the kernel refuse user namespaces to what it runs."""


class Ran(NamedTuple):
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object on standard output."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The error object, the last line on standard error."""
        return json.loads(self.err.splitlines()[-1])["error"]


def documented(command: str) -> str:
    """What docs/reference/json.md says of the fields of a command."""
    sections = re.split(
        r"^### ", (Path(__file__).parents[2] / "docs" / "reference/json.md").read_text(), flags=re.MULTILINE
    )
    return next(text for text in sections if command in text.partition("\n")[0].split(", "))


class Cli:
    """Runs commands in one workspace."""

    def __init__(self, root: Path, home: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self.home = home
        self._capture = capture

    def __call__(self, *words: str, code: int = 0) -> Ran:
        """Run a command in this process and check its exit code."""
        self._capture.readouterr()
        got = main(list(words))
        out, err = self._capture.readouterr()
        ran = Ran(got, out, err)
        assert ran.code == code, ran
        assert "Traceback" not in err, ran
        return ran

    def json(self, *words: str, code: int = 0) -> dict[str, Any]:
        """Run a command with ``--json`` and return its object, which must be as it is described."""
        value = self(*words, "--json", code=code).json
        command = split_options(list(words)).command
        assert command is not None
        check_command(command, value)
        return value

    def process(self, *words: str, code: int | None = 0, **options: Any) -> subprocess.CompletedProcess[bytes]:
        """Run the installed command in a process of its own."""
        done = subprocess.run([*INSTALLED, *words], capture_output=True, check=False, timeout=60, **options)
        assert code is None or done.returncode == code, done
        return done

    def start(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        """Begin the installed command in a process of its own, without input."""
        command: list[str] = [*INSTALLED, *words]
        started: subprocess.Popen[Any] = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, **options
        )
        return started

    def is_documented(self, command: str, value: dict[str, Any]) -> bool:
        """Whether docs/reference/json.md names every field of an object of a command."""
        return all(re.search(rf"\b{key}\b", documented(command)) for key in value)

    def write(self, path: str | bytes, content: str | bytes = "") -> Path:
        """Write a file of the workspace."""
        file = self.root / os.fsdecode(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    def tree(self) -> dict[str, bytes]:
        """All files of the workspace with their content."""
        return {
            str(file.relative_to(self.root)): file.read_bytes()
            for file in sorted(self.root.rglob("*"))
            if file.is_file() and not file.is_symlink()
        }


@pytest.fixture(name="place")
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for everything, and an environment that knows nothing of the user's own."""
    for name in [name for name in os.environ if name.startswith("HOLDFAST_") and name != SWITCH]:
        monkeypatch.delenv(name)
    (tmp_path / "user").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture(name="bare")
def _bare(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """The command line in a directory that is no workspace yet."""
    root = place / "work"
    root.mkdir()
    monkeypatch.chdir(root)
    cli = Cli(root, place / "home", capsys)
    yield cli
    monkeypatch.chdir(root if root.exists() else place)
    if cli.home.exists() and main(["status", "-q"]) == 0:
        problems = cli("verify", "--read-data", "--json").json["problems"]
        assert problems == []


@pytest.fixture(name="cli")
def _cli(bare: Cli) -> Cli:
    """The command line in a workspace without a checkpoint."""
    bare("init")
    return bare


@pytest.fixture(name="tree")
def _tree(tmp_path: Path) -> Path:
    """A directory to work in."""
    path = tmp_path / "tree"
    path.mkdir()
    return path


@pytest.fixture(name="start")
def _start(tmp_path: Path, tree: Path) -> Iterator[Start]:
    """Starts frontends in ``tree``; afterwards each has ended in order, or was killed by the test; nothing runs any
    more, their logs have no mistakes, and the store is sound.
    """
    import holdfast
    from holdfast.processes.process_tree import descendants

    from .frontend import HOLDFAST, Frontend

    frontends: list[Frontend] = []
    before = set(descendants(os.getpid()))

    def start(*options: str, program: Sequence[str] = HOLDFAST, **variables: str) -> Frontend:
        frontends.append(Frontend(tree, tmp_path / "home", *options, program=program, **variables))
        return frontends[-1]

    yield start
    for frontend in frontends:
        assert frontend.end() in (0, -signal.SIGKILL)
        for record in frontend.logged:
            assert list(record)[:4] == ["timestamp", "level", "component", "message"]
            assert "exception" not in record, record
    wait_until(lambda: set(descendants(os.getpid())) <= before)
    if (tmp_path / "home").exists():
        with holdfast.open_home(tmp_path / "home") as home:
            assert home.verify().ok
