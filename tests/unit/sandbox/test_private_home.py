"""The directory that a box sees in place of the user's."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.sandbox.private_home import MOST_ENTRIES, make_private_home


def test_all_but_caches_is_shown_and_what_holds_one_is_opened(tmp_path: Path) -> None:
    user = tmp_path / "user"
    for name in ("project", ".cache", ".npm", ".cargo/bin", ".cargo/registry", ".local/share/pnpm/store", ".local/bin"):
        (user / name).mkdir(parents=True)
    (user / ".gradle").write_text("a file")
    (user / "link").symlink_to("/elsewhere")
    (user / "go").symlink_to("project")
    found = make_private_home(bytes(user), bytes(tmp_path / "own"))
    assert found is not None

    def names(paths: tuple[bytes, ...]) -> set[str]:
        return {os.path.relpath(os.fsdecode(path), user) for path in paths}

    assert names(found.own) == {".", ".cargo", ".local", ".local/share", ".local/share/pnpm"}
    assert names(found.shown) == {"project", ".cargo/bin", ".local/bin", ".gradle"}
    assert {name: os.readlink(tmp_path / "own" / name) for name in ("link", "go")} == {
        "link": "/elsewhere",
        "go": "project",
    }
    (tmp_path / "own" / ".cargo" / "new").write_text("kept")
    assert make_private_home(bytes(user), bytes(tmp_path / "own")) == found
    assert (tmp_path / "own" / ".cargo" / "new").read_text() == "kept"


def test_what_is_not_to_be_seen_leaves_not_even_a_name(tmp_path: Path) -> None:
    (tmp_path / "user" / ".cargo").mkdir(parents=True)
    (tmp_path / "user" / "link").symlink_to("/elsewhere")
    found = make_private_home(bytes(tmp_path / "user"), bytes(tmp_path / "own"), is_visible=False)
    assert found is not None
    assert (found.own, found.shown) == ((bytes(tmp_path / "user"),), ())
    assert os.listdir(tmp_path / "own") == []


def test_what_is_no_home_or_holds_too_much_stays_as_it_is(tmp_path: Path) -> None:
    assert make_private_home(b"/", bytes(tmp_path / "own")) is None
    assert make_private_home(bytes(tmp_path / "missing"), bytes(tmp_path / "own")) is None
    for number in range(MOST_ENTRIES):
        (tmp_path / str(number)).touch()
    assert make_private_home(bytes(tmp_path), bytes(tmp_path / "own")) is None
