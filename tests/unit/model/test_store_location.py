"""What names a place for objects."""

from __future__ import annotations

import pytest

from holdfast.model.store_location import fault_of, local_directory


@pytest.mark.parametrize(
    "location",
    [
        *("/place", b"/\xff", "file:///place", "s3://bucket", "s3://bucket/a/b", "s3a://b", "gs://b/p", "az://a/c"),
        "abfs://container@account.dfs.core.windows.net/p",
    ],
)
def test_a_directory_or_a_bucket_is_a_place(location: str | bytes) -> None:
    assert fault_of(location) is None


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("", "names no absolute path"),
        ("place", "'place' names no absolute path"),
        ("C:/place", "names no absolute path"),
        ("file://host/place", "'file://host/place' names no absolute path"),
        ("file://", "'file://' names no absolute path"),
        ("/a\0b", "names no absolute path"),
        ("s4://bucket", "'s4' is not the scheme of an object store; those are abfs, "),
        ("://bucket", "'' is not the scheme"),
        (b"\xff://bucket", "is not the scheme"),
        ("s3://", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("s3://[bucket", "not a URL"),
        ("s3://bucket/p#part", "may have only bucket and prefix"),
    ],
)
def test_of_anything_else_it_is_said_why_not(location: str | bytes, said: str) -> None:
    assert said in (fault_of(location) or "")


@pytest.mark.parametrize("location", ["s3://key:secretword@b", "gs://secretword@b/p", "s3://b/p?secret=secretword"])
def test_credentials_are_refused_and_not_repeated(location: str) -> None:
    fault = fault_of(location)
    assert fault is not None
    assert "credentials come from the environment" in fault
    assert "secretword" not in fault


def test_the_directory_of_a_url_is_unquoted() -> None:
    assert local_directory("file:///a%20b") == b"/a b"
    assert local_directory("s3://bucket") is None
