"""Where settings are read from, in which order, and what a hostile file in a workspace cannot do."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.engine.opening.opener import MAX_HOME_FILE_BYTES, MAX_WORKSPACE_FILE_BYTES, load_settings
from holdfast.model.config.settings import Settings
from holdfast.model.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


class Places:
    """A workspace and a home, and the settings that come of them."""

    def __init__(self, base: Path) -> None:
        self.root = base / "work"
        self.home = base / "home"
        self.root.mkdir()
        self.home.mkdir()
        self.file = self.root / "holdfast.toml"
        self.config = self.home / "config.toml"

    def load(self, environ: dict[str, str] | None = None, *, flags: dict[str, object] | None = None) -> Settings:
        root, home = os.fsencode(self.root), os.fsencode(self.home)
        return load_settings(flags=flags or {}, environ=environ or {}, root=root, home=home)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def test_without_any_file_there_are_defaults(places: Places, tmp_path: Path) -> None:
    assert places.load() == Settings()
    nowhere = os.fsencode(tmp_path / "absent")
    assert load_settings(flags={}, environ={}, root=nowhere, home=nowhere) == Settings()


def test_flags_before_environment_before_workspace_before_home(places: Places) -> None:
    places.config.write_text('[watch]\ndebounce = "4s"\nmax_interval = "4m"\npoll_interval = 4\n[lock]\ntimeout = 4\n')
    places.file.write_text('[watch]\ndebounce = "3s"\nmax_interval = "3m"\npoll_interval = 3\n')
    found = places.load(
        {"HOLDFAST_WATCH_DEBOUNCE": "2s", "HOLDFAST_WATCH_MAX_INTERVAL": "2m", "PATH": "/bin"},
        flags={"watch.debounce": 1},
    )
    assert found.watch[:2] == (1.0, 120.0)
    assert found.watch.poll_interval == 3.0
    assert found.lock.timeout == 4.0
    alone = load_settings(flags={}, environ={}, root=None, home=os.fsencode(places.home))
    assert alone.watch.debounce == 4.0


def test_the_environment_says_every_kind_of_value(places: Places) -> None:
    found = places.load(
        {
            "HOLDFAST_CAPTURE_EXCLUDE": "*.pem\n/a b/\n",
            "HOLDFAST_CAPTURE_MAX_FILE_BYTES": "5MiB",
            "HOLDFAST_FILES_UID": "1000",
            "HOLDFAST_GC_REWRITE_RATIO": "0.25",
            "HOLDFAST_IDENTITY_AUTHOR": "someone",
            "HOLDFAST_HOME": "/elsewhere",
            "HOLDFAST_MESSAGE": "no setting",
        }
    )
    assert found.capture.exclude == ("*.pem", "/a b/")
    assert found.capture.max_file_bytes == 5 << 20
    assert (found.files.uid, found.gc.rewrite_ratio, found.identity.author) == (1000, 0.25, "someone")


@pytest.mark.parametrize(
    ("variable", "text", "reason"),
    [
        ("HOLDFAST_FILES_UID", "root", "the environment: files.uid: 'root' is not a whole number"),
        ("HOLDFAST_GC_REWRITE_RATIO", "nan", "not between"),
        ("HOLDFAST_WATCH_BOUNCE", "1", "the environment: watch.bounce: there is no such key"),
        ("HOLDFAST_WACH_DEBOUNCE", "1", "HOLDFAST_WACH_DEBOUNCE names no section and key"),
        ("HOLDFAST_WATCH", "1", "HOLDFAST_WATCH names no section and key"),
        ("HOLDFAST_STORE_MAX_BYTES", "lots", "store.max_bytes: 'lots' is not a number of bytes"),
    ],
)
def test_a_bad_variable_is_named(places: Places, variable: str, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        places.load({variable: text})


def test_an_unknown_flag_is_named(places: Places) -> None:
    with pytest.raises(ConfigError, match=r"the command line: watch\.bounce: there is no such key"):
        places.load(flags={"watch.bounce": 1})


def test_a_bad_file_is_named(places: Places) -> None:
    places.config.write_text("[watch]\ndebounce = 'soon'\n")
    with pytest.raises(ConfigError, match=r"home/config\.toml: watch\.debounce: 'soon' is not a number of seconds"):
        places.load()
    places.config.write_text("[watch\n")
    with pytest.raises(ConfigError, match=r"home/config\.toml: it is not TOML: .*line 1"):
        places.load()


def test_a_workspaces_file_cannot_reach_the_store(places: Places) -> None:
    places.file.write_text('[store]\nurl = "s3://theirs"\n')
    with pytest.raises(ConfigError, match=r"work/holdfast\.toml: store\.url: a workspace's own file may not set it"):
        places.load()


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe",
        b"x" * (MAX_WORKSPACE_FILE_BYTES + 1),
        b"[watch]\ndebounce = " + b"[" * 8000,
        b"[watch]\ndebounce = " + b"{a=" * 2500,
        b"[watch]\ndebounce = " + b"9" * 8000,
        b"a." * 4000 + b"b = 1",
        b"[watch]\ndebounce = 2024-01-01\n",
        b"\0",
        b"watch = 1\n",
        b"[[watch]]\n",
    ],
)
def test_a_hostile_file_is_an_error_and_nothing_else(places: Places, content: bytes) -> None:
    """I12."""
    places.file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"work/holdfast\.toml: ") as caught:
        places.load()
    assert len(caught.value.message) < 1000


def test_no_link_is_followed_to_a_workspaces_file(places: Places) -> None:
    """I7."""
    secret = places.home / "secret.toml"
    secret.write_text("[watch]\ndebounce = 9\n")
    places.file.symlink_to(secret)
    with pytest.raises(ConfigError, match=r"holdfast\.toml: it cannot be read"):
        places.load()
    places.file.unlink()
    places.config.symlink_to(secret)
    assert places.load().watch.debounce == 9.0


def test_what_is_no_file_neither_blocks_nor_counts(places: Places) -> None:
    os.mkfifo(places.file)
    with pytest.raises(ConfigError, match="not a file"):
        places.load()
    places.file.unlink()
    places.file.mkdir()
    with pytest.raises(ConfigError, match="not a file"):
        places.load()


def test_a_file_of_the_greatest_length_is_read(places: Places) -> None:
    content = b"[watch]\ndebounce = 9\n"
    places.file.write_bytes(content + b"#" * (MAX_WORKSPACE_FILE_BYTES - len(content)))
    assert places.load().watch.debounce == 9.0
    places.config.write_bytes(b"#" * (MAX_HOME_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match=r"config\.toml: it is longer than 65536 bytes"):
        places.load()


def test_nothing_heavy_is_imported_where_there_is_no_file(tmp_path: Path) -> None:
    program = (
        "import sys; from holdfast.engine.opening.opener import load_settings; "
        f"load_settings(flags={{}}, environ={{}}, root={os.fsencode(tmp_path)!r}, home={os.fsencode(tmp_path)!r}); "
        "sys.exit(bool({'tomllib', 'msgspec', 'dataclasses', 'asyncio'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
