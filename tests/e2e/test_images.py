"""``holdfast image``: images are listed, imported and removed; what they are made with is said where it is missing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from holdfast.sandbox.images.store import ImageStore

from ..containers import PYTHON, docker, member, tar
from ..images import put_image
from .conftest import Cli


def home(cli: Cli) -> bytes:
    return os.fsencode(cli.home)


def test_images_are_listed_and_removed(cli: Cli) -> None:
    assert cli.json("image", "list") == {"images": []}
    assert "holdfast image build" in cli("image", "list").out
    put = put_image(ImageStore(home(cli)), "default")
    (found,) = cli.json("image", "list")["images"]
    assert (found["name"], found["id"], found["bytes"]) == ("default", put.id, len(b"rootkernelinitrd"))
    assert cli("image", "list").out.split()[0] == "default"
    assert cli("completion", "--list", "images").out == "default\n"
    assert cli.json("image", "remove", "default") == {"removed": "default"}
    assert cli("image", "remove", "default", "--json", code=3).error["code"] == "no_such_image"


def test_an_archive_is_imported(cli: Cli, tmp_path: Path) -> None:
    if shutil.which("mksquashfs") is None:
        pytest.skip("mksquashfs (squashfs-tools) is not installed")
    put_image(ImageStore(home(cli)), "default")
    archive = tmp_path / "app.tar"
    archive.write_bytes(docker(PYTHON))
    assert cli.json("image", "import", "app", str(archive))["source"] == "archive"
    said = cli("image", "import", "app", str(archive))
    assert said.out.startswith("Imported the image app (")
    assert f"Reading {archive}" in said.err
    assert cli("image", "import", "app", str(archive), "-q").out.strip() == ImageStore(home(cli)).find("app").id


def test_archives_that_are_refused(cli: Cli, tmp_path: Path) -> None:
    if shutil.which("mksquashfs") is None:
        pytest.skip("mksquashfs (squashfs-tools) is not installed")
    archive = tmp_path / "app.tar"
    for content, code in (
        (docker(PYTHON, tar(member("../out"))), 4),
        (docker(tar(member("bin/sh"))), 1),
        (b"text", 5),
    ):
        archive.write_bytes(content)
        cli("image", "import", "app", str(archive), code=code)
    cli("image", "import", "app", str(tmp_path / "none"), code=3)
    assert cli.json("image", "list") == {"images": []}


def test_missing_programs_are_named(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.sandbox.images.host_tools._BEYOND_PATH", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    error = cli("image", "build", "--json", code=1).error
    assert error["code"] == "tools_missing"
    assert "mmdebstrap" in error["hint"]
    assert cli("image", "build", "a/b", code=2).err
    assert cli("image", "build", "--package", "--x", code=2).err
