"""A repository of a user, and the provider beside it; after each test the repository is as it was (I15)."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.snapshot.git.provider import GitOptions, git_provider
from holdfast.snapshot.port import Prepared, Provider, Snapshot
from holdfast.snapshot.provider_context import ProviderContext
from holdfast.testing.provider_contract import content

IDENTITY = ("-c", "user.name=U", "-c", "user.email=u@example.org", "-c", "protocol.file.allow=always")


class User:
    """A repository, and what its user does in it."""

    def __init__(self, root: Path, git_dir: Path | None = None) -> None:
        self.root = root
        self.git_dir = git_dir or root / ".git"

    def git(self, *words: str | Path, ok: bool = True) -> str:
        """Run a command of Git as the user does."""
        done = subprocess.run(["git", *IDENTITY, *words], cwd=self.root, capture_output=True, check=False)
        assert done.returncode == 0 or not ok, done.stderr.decode()
        return done.stdout.decode("utf-8", "surrogateescape").strip()

    def write(self, name: str, text: str) -> Path:
        """Write a file."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def commit(self, *words: str) -> str:
        """Commit everything; return the commit's name."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", "m", *words)
        return self.git("rev-parse", "HEAD")


def hashed(*directories: Path) -> dict[str, str]:
    """Every file of a repository, but for the pin: what it holds, its mode, and of an index its time as well."""
    found: dict[str, str] = {}
    for directory in directories:
        for at, inner, names in os.walk(directory):
            if Path(at).name == "refs" and "holdfast" in inner:
                inner.remove("holdfast")
            for name in names + [name for name in inner if os.path.islink(os.path.join(at, name))]:
                path = os.path.join(at, name)
                about = os.lstat(path)
                data = os.readlink(path).encode() if os.path.islink(path) else b""
                if os.path.isfile(path) and not os.path.islink(path):
                    data = Path(path).read_bytes()
                if name == "packed-refs":
                    data = b"".join(line for line in data.splitlines(keepends=True) if b" refs/holdfast/" not in line)
                time = about.st_mtime_ns if name == "index" or f"{os.sep}.git{os.sep}" not in path else 0
                found[path] = f"{about.st_mode:o} {time} {hashlib.sha256(data).hexdigest()}"
    return found


@pytest.fixture
def user(tmp_path: Path) -> User:
    """A repository with a few files, all of them committed."""
    (tmp_path / "tree").mkdir()
    found = User(tmp_path / "tree")
    found.git("init", "--quiet", "--initial-branch=main")
    for name in ("a", "b", "d/x", "d/y"):
        found.write(name, f"{name}\n")
    found.commit()
    return found


class Beside:
    """The provider for a repository; whatever it is asked, it leaves the repository as it is."""

    def __init__(self, root: Path, state: Path, watched: tuple[Path, ...] = (), **options: Any) -> None:
        self.root = root
        self.state = state
        self.watched = watched or (root,)
        self.provider: Provider = git_provider(ProviderContext(bytes(root), bytes(state), "s"), GitOptions(**options))
        self.line: Prepared | None = None

    def take(self, label: str = "") -> Snapshot:
        """Capture the workspace."""
        before = hashed(*self.watched)
        self.line = self.line or self.provider.prepare("in-place")
        taken = self.provider.snapshot(self.line, label)
        assert hashed(*self.watched) == before, "I15"
        return taken

    def holds(self, snapshot: Snapshot) -> dict[bytes, tuple[bool, bytes]]:
        """What a snapshot holds."""
        before = hashed(*self.watched)
        view = self.provider.mount(snapshot)
        found = content(view.path)
        self.provider.cleanup(view.token)
        assert hashed(*self.watched) == before, "I15"
        return found

    def texts(self, snapshot: Snapshot | None = None) -> dict[str, str]:
        """The same, of now by default, as texts."""
        found = self.holds(snapshot or self.take())
        return {os.fsdecode(path): data.decode("utf-8", "replace") for path, (_, data) in found.items()}

    def shadow(self, *words: str) -> str:
        """What a command of Git says in the shadow."""
        (path,) = self.state.glob("shadow-*.git")
        done = subprocess.run(["git", "--git-dir", path, *words], check=True, capture_output=True)
        return done.stdout.decode().strip()

    def clean(self) -> None:
        """Clean everything up."""
        for allocation in self.provider.tokens():
            self.provider.cleanup(allocation.token)


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Callable[..., Beside]]:
    """Makes a `Beside` for a user's repository; in the end nothing of it is left anywhere."""
    made: list[Beside] = []

    def make(user: User, **options: Any) -> Beside:
        made.append(Beside(user.root, tmp_path / f"state{len(made)}", (user.root, user.git_dir), **options))
        return made[-1]

    yield make
    for one in made:
        before = hashed(*one.watched)
        one.clean()
        assert hashed(*one.watched) == before, "I15"
        left = [path for path in one.state.rglob("*") if path.is_file() and path.suffix != ".lock"]
        assert left == []
        for directory in one.watched:
            assert not (directory / "refs/holdfast").exists()
            assert not (directory / ".git/refs/holdfast").exists()
