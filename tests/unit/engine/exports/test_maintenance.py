"""The upkeep of all exports in one place: each saved by itself, and none held up by another."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from holdfast.engine.exports.maintenance import Maintenance, MaintenanceLimits
from holdfast.engine.exports.named_workspaces import Exports
from holdfast.engine.opening.opener import Opener
from holdfast.engine.sessions.registry import Sessions
from holdfast.model.checkpoint import Checkpoint
from holdfast.model.clock import SystemClock
from holdfast.model.session_types import CommandResult
from holdfast.store.verification.verifier import Verified

from ....waiting import wait_until

QUICK = {"watch.debounce": 0.1, "watch.max_interval": 5, "serve.poll_interval": 0.5}


class Ears:
    """Hears what is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, str]] = []
        self.paths: list[Any] = []
        """What has changed, as often as that was told."""
        self.listening = True
        self._lock = threading.Lock()

    def changed(self, tenant: str, export: str, paths: Any) -> None:
        with self._lock:
            self.heard.append((tenant, export, "changed"))
            self.paths.append(paths if paths is None else sorted(paths))

    def listens(self, tenant: str, export: str) -> bool:
        return self.listening

    def saved(self, tenant: str, export: str, result: Any) -> None:
        with self._lock:
            self.heard.append((tenant, export, "saved"))

    def saves(self) -> int:
        """How many checkpoints were told of."""
        with self._lock:
            return sum(what == "saved" for _, _, what in self.heard)


class World:
    """A home with exports, and who sees to them."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.ears = Ears()
        self.flags: dict[str, object] = dict(QUICK)
        self._openers: dict[str, Opener] = {}

    def open_tenant(self, tenant: str) -> Opener:
        """See `Maintenance`."""
        more = {"store.tenant": tenant} if tenant else {}
        return Opener(home=os.fsencode(self.base / "home"), flags={**self.flags, **more})

    def opener(self, tenant: str) -> Opener:
        """Of a tenant, for the test itself."""
        if tenant not in self._openers:
            self._openers[tenant] = self.open_tenant(tenant)
        return self._openers[tenant]

    def exports(self, tenant: str = "local") -> Exports:
        """Of a tenant."""
        return Exports(self.opener(tenant))

    def make(self, name: str, tenant: str = "local", **options: Any) -> Path:
        """An export with one file."""
        path = self.base / tenant / name
        path.mkdir(parents=True)
        (path / "a").write_text(name)
        self.exports(tenant).create(name, os.fsencode(path), **options)
        return path

    def checkpoints(self, name: str, tenant: str = "local") -> list[Checkpoint]:
        """Of an export."""
        exports = self.exports(tenant)
        return self._openers[tenant].store().catalog.checkpoints(exports.get(name).workspace)

    def verify(self) -> Verified:
        """Prove the store, and close everything."""
        opener = self.open_tenant("")
        found = opener.store().verifier().verify(read_data=True)
        opener.close()
        for one in self._openers.values():
            one.close()
        return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    found = world.verify()
    assert found.ok, found.problems


@pytest.fixture
def begin(world: World) -> Iterator[Callable[..., Maintenance]]:
    """Begins to see to them; what is begun is ended."""
    begun: list[Maintenance] = []

    def begin_it(**setup: Any) -> Maintenance:
        quick: dict[str, Any] = {"look_interval": 0.1, "workers": 2, "first_retry": 0.1}
        caretaker = Maintenance(world.open_tenant, world.ears, SystemClock(), MaintenanceLimits(**{**quick, **setup}))
        caretaker.start()
        begun.append(caretaker)
        return caretaker

    yield begin_it
    for caretaker in begun:
        assert caretaker.stop() == []


def test_sixty_exports_are_each_saved_by_two_threads(world: World, begin: Callable[..., Maintenance]) -> None:
    paths = [world.make(f"e{number}") for number in range(60)]
    caretaker = begin()
    wait_until(lambda: caretaker.counts()["watching"] == 60, "all exports")
    wait_until(lambda: world.ears.saves() == 60, "a checkpoint of each")
    for path in paths:
        (path / "b").write_text("2")
    wait_until(lambda: world.ears.saves() == 120, "another one of each")
    names = {thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast-care")}
    assert len(names) <= 2


def test_one_that_is_broken_or_gone_holds_up_no_other(world: World, begin: Callable[..., Maintenance]) -> None:
    gone, broken, fine = world.make("gone"), world.make("broken"), world.make("fine")
    shutil.rmtree(gone)
    (broken / "holdfast.toml").write_text("nonsense = [")
    caretaker = begin()
    wait_until(lambda: caretaker.condition("local", "broken").state == "broken", "the one that is broken")
    (broken / "holdfast.toml").unlink()  # (it is left alone for longer after each try)
    wait_until(lambda: len(world.checkpoints("fine")) == 1, "the one that is fine")
    wait_until(lambda: caretaker.condition("local", "gone").state == "broken", "the one that is gone")
    assert "gone" in (caretaker.condition("local", "gone").problem or "")
    (fine / "b").write_text("2")
    wait_until(lambda: len(world.checkpoints("fine")) == 2, "the one that is fine, again")
    wait_until(lambda: len(world.checkpoints("broken")) == 1, "the one that was broken")
    shutil.rmtree(fine)
    (broken / "b").write_text("2")
    wait_until(lambda: len(world.checkpoints("broken")) == 2, "the one that was broken, again")
    assert [one.partition(":")[0] for one in caretaker.stop()] in ([], ["local/fine"])


def test_idle_sessions_in_what_saves_itself_are_saved(world: World, begin: Callable[..., Maintenance]) -> None:
    world.flags |= {"session.idle": 0, "session.min_interval": 0}
    still, shop, other = world.make("still", auto=False), world.make("shop"), world.make("other", "other")
    caretaker = begin()
    wait_until(lambda: caretaker.counts()["watching"] == 3, "all exports")

    def use(name: str, path: Path, tenant: str = "local") -> None:
        with Sessions(agent="me", opener=world.opener(tenant)).start(path, name) as session:
            entry = session.begin("true", level="changes")
            done = CommandResult(exit_code=0, stdout="", stderr="")
            session.end(entry, done, cwd=".", env=session.environment(), duration_ms=0)

    def unsaved(name: str, tenant: str = "local") -> int:
        return Sessions(agent="me", opener=world.opener(tenant)).info(name).journal

    use("still", still)
    use("first", shop)
    use("theirs", other, "other")
    wait_until(lambda: not unsaved("first") and not unsaved("theirs", "other"), "those of both tenants to be saved")
    use("second", shop)
    wait_until(lambda: not unsaved("second"), "one that was begun later")
    assert unsaved("still")


def test_one_that_was_moved_is_followed_by_whoever_opens_it_and_then_watched_there(
    world: World, begin: Callable[..., Maintenance]
) -> None:
    path = world.make("shop")
    caretaker = begin()
    wait_until(lambda: len(world.checkpoints("shop")) == 1, "the first checkpoint")
    moved = path.rename(path.with_name("moved"))
    exports = world.exports()
    assert exports.context(exports.get("shop")).workspace.path == os.fsencode(moved)
    (moved / "b").write_text("2")
    wait_until(lambda: len(world.checkpoints("shop")) == 2, "a checkpoint by itself, where it is now")
    assert exports.open(exports.get("shop")).status().watching
    shutil.rmtree(moved)
    wait_until(lambda: "gone" in (caretaker.condition("local", "shop").problem or ""), "what is wrong")
    assert [one.partition(":")[0] for one in caretaker.stop()] == ["local/shop"]


def test_those_that_somebody_holds_hold_up_no_other(world: World, begin: Callable[..., Maintenance]) -> None:
    """More of them than there are threads."""
    world.flags["lock.timeout"] = 0.3
    held = [world.make(f"held{number}") for number in range(4)]
    fine = world.make("fine")
    exports = world.exports()
    with ExitStack() as stack:
        for path in held:
            stack.enter_context(exports.context(exports.get(path.name)).lock())
        begin()
        wait_until(lambda: len(world.checkpoints("fine")) == 1, "the one that is free")
        (fine / "b").write_text("2")
        wait_until(lambda: len(world.checkpoints("fine")) == 2, "the one that is free, again")
        assert all(not world.checkpoints(path.name) for path in held)


@pytest.mark.parametrize("backend", ["inotify", "polling"])
def test_what_is_configured_counts_while_it_is_watched(
    world: World, begin: Callable[..., Maintenance], backend: str
) -> None:
    world.flags["watch.backend"] = backend
    path, other = world.make("live", mode="production"), world.make("other", auto=False)
    mark = world.make("mark")
    caretaker = begin()
    wait_until(lambda: caretaker.counts()["watching"] == 3, "all exports")
    for tree in (path, other, mark):
        (tree / "b").write_text("2")
    wait_until(lambda: len(world.checkpoints("mark")) >= 1, "the one that saves itself")
    wait_until(lambda: ("local", "live", "changed") in world.ears.heard, "what has changed")
    assert (world.checkpoints("live"), world.checkpoints("other")) == ([], [])
    world.exports().configure("live", mode="development")
    world.exports().configure("other", auto=True)
    wait_until(lambda: world.checkpoints("live") and world.checkpoints("other"), "both")
    world.exports().remove("mark")
    wait_until(lambda: caretaker.counts()["watching"] == 2, "the end of one")


def test_who_listens_is_told_what_only_a_look_at_the_tree_finds(
    world: World, begin: Callable[..., Maintenance]
) -> None:
    """As where others have used up what the kernel has to watch with. Nothing is told twice, or of nothing."""
    world.flags["watch.backend"] = "polling"
    path = world.make("shop", auto=False)
    begin()
    wait_until(lambda: world.ears.paths == [[b"a"]], "what no checkpoint holds")
    (path / "b").write_text("2")
    wait_until(lambda: world.ears.paths[1:] == [[b"b"]], "a new file")
    (path / "b").write_text("2, and more")
    wait_until(lambda: world.ears.paths[2:] == [[b"b"]], "the file once more")
    (path / "a").unlink()
    wait_until(lambda: world.ears.paths[3:] == [[b"a"]], "the end of a file")
    world.exports().configure("shop", auto=True)
    wait_until(lambda: world.ears.saves() == 1, "a checkpoint")
    assert len(world.ears.paths) == 4, "it holds what was told"
    (path / "c").write_text("3")
    wait_until(lambda: world.ears.saves() == 2, "the next")
    assert world.ears.paths[4:] == [[b"c"]]
    assert world.ears.heard[-2:] == [("local", "shop", "changed"), ("local", "shop", "saved")]


def test_what_is_saved_unheard_is_told_as_well_and_nothing_is_walked_for_nobody(
    world: World, begin: Callable[..., Maintenance]
) -> None:
    """Of events some are kept, for who comes back."""
    world.ears.listening = False
    world.flags["watch.backend"] = "polling"
    path, still = world.make("shop"), world.make("still", auto=False)
    begin()
    wait_until(lambda: world.ears.saves() == 1, "a checkpoint")
    (path / "b").write_text("2")
    (still / "b").write_text("2")
    wait_until(lambda: world.ears.saves() == 2, "the next")
    assert world.ears.paths == [[b"a"], [b"b"]]
    world.ears.listening = True
    wait_until(lambda: world.ears.paths[2:] == [[b"a", b"b"]], "what the other has that no checkpoint holds")


def test_a_restore_of_somebody_else_pauses_it(world: World, begin: Callable[..., Maintenance]) -> None:
    path = world.make("shop")
    caretaker = begin()
    wait_until(lambda: world.checkpoints("shop"), "the first checkpoint")
    exports = world.exports()
    context = exports.context(exports.get("shop"))
    from holdfast.engine.opening.watch_client import connect

    watcher = connect(context.folder)
    assert watcher is not None
    with watcher, watcher.pause():
        (path / "half").write_text("way")
        mark = world.make("mark")
        caretaker.reread_exports()
        wait_until(lambda: world.checkpoints("mark"), "another one")
        (mark / "b").write_text("2")
        wait_until(lambda: len(world.checkpoints("mark")) == 2, "another one, again")
        assert len(world.checkpoints("shop")) == 1
    wait_until(lambda: len(world.checkpoints("shop")) == 2, "what was held back")


def test_several_tenants_are_seen_to_by_one_process_at_a_time(world: World, begin: Callable[..., Maintenance]) -> None:
    world.make("one", "a")
    world.make("one", "b")
    first = begin()
    wait_until(lambda: first.counts()["watching"] == 2, "both tenants")
    second = begin()
    world.make("two", "a")
    wait_until(lambda: first.condition("a", "two").state == "watching", "the new one")
    wait_until(lambda: second.condition("a", "two").state == "elsewhere", "who sees to it")
    first.stop()
    wait_until(lambda: second.counts()["watching"] == 3, "all of them elsewhere")


def test_a_new_export_is_at_its_beginning_until_the_list_is_read(
    world: World, begin: Callable[..., Maintenance]
) -> None:
    caretaker = begin()
    world.make("shop")
    assert caretaker.condition("local", "shop").state in ("beginning", "watching")
    wait_until(lambda: caretaker.condition("local", "shop").state == "watching", "it")


def test_it_thins_out_and_collects(world: World, begin: Callable[..., Maintenance]) -> None:
    world.flags.update({"retention.keep_all": 0, "retention.per_ten_minutes": "1d", "gc.grace": 0})
    path = world.make("shop")
    exports = world.exports()
    workspace = exports.open(exports.get("shop"))
    for number in range(5):
        (path / "a").write_text(str(number) * 1000)
        workspace.checkpoint(kind="auto")
    world.flags["retention.interval"] = 60
    from holdfast.engine.watching import service

    assert service._FIRST_RETENTION == 60
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "_FIRST_RETENTION", 0.2)
        begin(collect_interval=0.3, first_collect=0.3)
        wait_until(lambda: len(world.checkpoints("shop")) <= 2, "retention")
        catalog = world.open_tenant("").store().catalog
        wait_until(lambda: catalog.stats().blobs <= 8, "collection")
        catalog.close()


def test_who_stops_saves_what_is_unsaved(world: World, begin: Callable[..., Maintenance]) -> None:
    world.flags.update({"watch.debounce": "1h", "watch.max_interval": "1h"})
    path = world.make("shop")
    other = world.make("other", mode="production")
    caretaker = begin()
    wait_until(lambda: caretaker.counts()["watching"] == 2, "both")
    (path / "b").write_text("2")
    (other / "b").write_text("2")
    assert caretaker.stop() == []
    assert world.checkpoints("shop")[0].total_files == 2
    assert world.checkpoints("other") == []


def test_what_could_not_be_saved_of_one_that_is_served_no_more_is_told(
    world: World, begin: Callable[..., Maintenance], caplog: pytest.LogCaptureFixture
) -> None:
    world.flags.update({"watch.debounce": "1h", "watch.max_interval": "1h", "lock.timeout": 0.3})
    path = world.make("shop")
    caretaker = begin()
    wait_until(lambda: caretaker.counts()["watching"] == 1, "the export")
    (path / "b").write_text("2")
    exports = world.exports()
    with exports.context(exports.get("shop")).lock():
        exports.remove("shop")
        wait_until(lambda: not any(caretaker.counts().values()), "the end of its upkeep")
    assert "the export shop has unsaved changes: " in caplog.text
    assert (path / "b").read_text() == "2"
