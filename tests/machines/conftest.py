"""The image that tests of machines start with: built once, and kept between runs of the tests."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import shutil
import time
from collections.abc import Generator
from pathlib import Path

import pytest

import holdfast.sandbox.images
from holdfast.model.errors import HoldfastError, NotFoundError, UnsupportedError
from holdfast.sandbox.images.debian_builder import DebianBuilder, Recipe
from holdfast.sandbox.images.host_tools import architecture
from holdfast.sandbox.images.manifest import Image
from holdfast.sandbox.images.store import ImageStore

COMMANDS = ("echo built >/etc/holdfast-test",)
_UNUSED_SECONDS = 7 * 86400
_CACHE = os.environ.get("XDG_CACHE_HOME")
"""(Each test has another home of its own.)"""


def cache_directory() -> Path:
    """Where images of tests are kept: in the user's cache, else in ``/var/tmp``."""
    tops = [Path(_CACHE)] if _CACHE else [Path(pwd.getpwuid(os.geteuid()).pw_dir, ".cache")]
    for top in (*tops, Path(f"/var/tmp/holdfast-{os.geteuid()}")):
        folder = top / "holdfast-tests"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    pytest.skip("there is no directory to keep an image in")


def key(recipe: Recipe) -> str:
    """What the image is made of: the recipe, the host's release, and all of the code that makes it."""
    made_of = hashlib.sha256(repr(recipe).encode())
    release = Path("/etc/os-release")
    made_of.update(release.read_bytes() if release.exists() else b"")
    for path in sorted(Path(next(iter(holdfast.sandbox.images.__path__))).iterdir()):
        if path.is_file():
            made_of.update(path.name.encode() + b"\0" + path.read_bytes())
    return made_of.hexdigest()[:32]


@pytest.fixture(autouse=True)
def _one_at_a_time(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Emulated machines of several workers at once are slower than one after the other."""
    shared = tmp_path_factory.getbasetemp().parent  # (of all workers)
    with open(shared / "machines.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def built_image() -> Image:
    """An image that `holdfast image build` would build, with a kernel that has 9P too (Debian's for machines has none),
    in a home that is nobody's: it is only to be read.

    The first test that asks for it builds it, which takes a minute or two; the others, in any process and in later
    runs, find it. Skipped, with the reason, where a program is missing or packages cannot be fetched.
    """
    try:
        return _built(Recipe(commands=COMMANDS, kernel=f"linux-image-{architecture()}"))
    except UnsupportedError as error:
        pytest.skip(f"no image can be built: {error.message}; {error.hint}")


def _built(recipe: Recipe) -> Image:
    cache = cache_directory()
    home = cache / key(recipe)
    with open(cache / f"{home.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        store = ImageStore(os.fsencode(home))
        try:
            image = store.find()
        except HoldfastError as error:
            if not isinstance(error, NotFoundError):
                shutil.rmtree(home)  # (it was damaged)
            _skip_unless_possible(cache, recipe)
            image = store.build("default", recipe, lambda line: print(f"image: {line}"))
        os.utime(home)
        _tidy(cache, home)
        return image


def _skip_unless_possible(cache: Path, recipe: Recipe) -> None:
    work = cache / f"try-{os.getpid()}"
    work.mkdir(0o700)
    try:
        DebianBuilder.on_this_host(os.fsencode(work), recipe, lambda _: None).find_kernel()
    except UnsupportedError as error:
        pytest.skip(f"no image can be built: {error.message}; {error.hint}")
    except HoldfastError as error:
        pytest.skip(f"no packages can be fetched: {error.message}")
    finally:
        shutil.rmtree(work)


def _tidy(cache: Path, home: Path) -> None:
    """Remove images that no test has used for long, such as those of an older code."""
    for other in cache.iterdir():
        if other != home and other.is_dir() and time.time() - other.stat().st_mtime > _UNUSED_SECONDS:
            shutil.rmtree(other, ignore_errors=True)
