"""What an object store is made of by its location and the settings."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.model.errors import ConfigError
from holdfast.store.objects._local_store import LocalObjects
from holdfast.store.objects.configured_store import open_objects

if TYPE_CHECKING:
    from pathlib import Path


def test_paths_are_local(tmp_path: Path) -> None:
    for location in (str(tmp_path), str(tmp_path).encode(), f"file://{tmp_path}", f"file://{tmp_path}/%6fbjects"):
        objects = open_objects(location)
        assert isinstance(objects, LocalObjects)
        assert objects.root in (str(tmp_path), f"{tmp_path}/objects")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["s3://bucket/prefix", "gs://bucket/prefix", "az://account/container"])
def test_buckets_are_reached_through_their_service(url: str) -> None:
    """Opening does not connect."""
    from holdfast.store.objects.remote_store import RemoteObjects

    options = {"s3": {"region": "eu-west-1"}, "gs": {}, "az": {"account_name": "a"}}[url[:2]]
    assert isinstance(open_objects(url, options=options), RemoteObjects)


@pytest.mark.parametrize(
    "location",
    [
        "",
        "relative/path",
        "file://host/path",
        "ftp://host/path",
        "nope://",
        "file://relative",
        b"\xff://x",
        "/a\0b",
        "s3://",
    ],
)
def test_anything_else_is_refused(location: str | bytes) -> None:
    with pytest.raises(ConfigError):
        open_objects(location)


def test_an_option_that_the_service_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError):
        open_objects("s3://bucket", options={"no_such_option": "x"})


def test_a_local_store_loads_nothing_heavy() -> None:
    """Start-up time: libraries are loaded by those who use them."""
    code = (
        "import sys; import holdfast.store.objects.configured_store, holdfast.store.blobs; "
        "heavy = {'obstore', 'zstandard', 'lz4', 'msgspec', 'concurrent.futures', 'tempfile'}; "
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
