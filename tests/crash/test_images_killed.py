"""A process is killed at any moment while it puts an image in place: there is that image, or the one before (I3)."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.model.errors import NotFoundError
from holdfast.sandbox.images.store import ImageStore
from holdfast.testing.crash_points import run_killed

from ..images import files_of, put_image


def roots(store: ImageStore) -> dict[str, bytes]:
    """What the images hold, each read whole."""
    return {one.name: Path(os.fsdecode(one.root)).read_bytes() for one in store.list()}


def test_an_image_is_put_in_place_whole_or_not_at_all(tmp_path: Path) -> None:
    fatal, killed = 0, True
    while killed:
        fatal += 1
        home = os.fsencode(tmp_path / str(fatal))
        put_image(ImageStore(home), "kept", root=b"kept")
        put_image(ImageStore(home), "one", root=b"before")
        killed = run_killed(lambda home=home: put_image(ImageStore(home), "one", root=b"after"), fatal).killed
        found = roots(ImageStore(home))
        assert found.pop("kept") == b"kept"
        assert found in ({"one": b"before"}, {"one": b"after"})
        put_image(ImageStore(home), "one", root=b"later")
        assert roots(ImageStore(home)) == {"kept": b"kept", "one": b"later"}
        assert len(files_of(home)) == 5 + 4, files_of(home)
    assert fatal > 10


def test_an_image_is_removed_whole_or_not_at_all(tmp_path: Path) -> None:
    fatal, killed = 0, True
    while killed:
        fatal += 1
        home = os.fsencode(tmp_path / str(fatal))
        put_image(ImageStore(home), "one", root=b"before")
        killed = run_killed(lambda home=home: ImageStore(home).remove("one"), fatal).killed
        assert roots(ImageStore(home)) in ({}, {"one": b"before"})
        try:
            ImageStore(home).remove("one")
        except NotFoundError:
            put_image(ImageStore(home), "one", root=b"again")
            ImageStore(home).remove("one")
        assert files_of(home) == [".files"]
    assert fatal > 2
