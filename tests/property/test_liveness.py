"""I11 as a state machine: saves, forgets, pins and collections that fail at any step, against a plain model."""

from __future__ import annotations

import itertools
import os
import random as randoms
import shutil
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.model.errors import RefusedError
from holdfast.model.ids import WorkspaceId
from holdfast.store.catalog import _checkpoint_commit as checkpoint_commit
from holdfast.store.catalog import work_lease
from holdfast.store.catalog.catalog import Catalog
from holdfast.store.catalog.schema import APPLICATION_ID, MIGRATIONS
from holdfast.store.collection import deferred_counts
from holdfast.store.database.sql_database import SqliteDatabase
from holdfast.store.manifests.page_codec import children, decode_page
from holdfast.store.objects.remote_store import open_bucket
from holdfast.store.store import Store
from holdfast.testing.clocks import ManualClock
from holdfast.testing.dict_saver import Saver, load

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.store.database.sql_database import Database
    from holdfast.store.objects.object_store import ObjectStore

CONTENTS = [b"line %d\n" % number * 40 for number in range(12)] + [b"", b"L" * ((1 << 20) + 1)]
BASE = {b"d%d/f%03d" % (number % 5, number): b"file %d\n" % number * 20 for number in range(150)}
SLOTS = sorted(BASE)[::7][:20]


class Died(BaseException):
    """The process is gone: nothing it would still have done happens."""


class Fuse:
    """Lets a number of steps happen, then none: what is killed stays dead."""

    def __init__(self):
        self.left: int | None = None
        self.action: Callable[[], object] | None = None

    def step(self, inside=False):
        if self.left is not None:
            if self.left > 0:
                self.left -= 1
            elif self.action is None:
                raise Died
            elif not inside:
                # Instead of dying, this process is slow, and another one is quick.
                action, self.left, self.action = self.action, None, None
                action()


class FusedDatabase:
    def __init__(self, inner, fuse):
        self._inner, self._fuse = inner, fuse

    def reading(self, *, once=False):
        return self._inner.reading(once=once)

    @contextmanager
    def writing(self):
        self._fuse.step()
        with self._inner.writing() as session:
            yield session
            self._fuse.step(inside=True)
        self._fuse.step()

    def __getattr__(self, name):
        return getattr(self._inner, name)


class FusedUpload:
    def __init__(self, inner, fuse):
        self._inner, self._fuse = inner, fuse

    def commit(self, key):
        self._fuse.step()
        self._inner.commit(key)
        self._fuse.step()

    def __getattr__(self, name):
        return getattr(self._inner, name)


class FusedObjects:
    def __init__(self, inner, fuse):
        self._inner, self._fuse = inner, fuse

    def upload(self):
        return FusedUpload(self._inner.upload(), self._fuse)

    def delete(self, key):
        self._fuse.step()
        self._inner.delete(key)
        self._fuse.step()

    def __getattr__(self, name):
        return getattr(self._inner, name)


class Liveness(RuleBasedStateMachine):
    """Every checkpoint that was not forgotten reads back byte for byte; what nothing needs is gone after collection."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.mkdtemp()
        self.clock = ManualClock()
        self.random = randoms.Random(0).randbytes
        self.fuse = Fuse()
        self.objects = FusedObjects(open_bucket("memory://"), self.fuse)
        database = SqliteDatabase(os.fsencode(self.folder) + b"/catalog.db", MIGRATIONS, application_id=APPLICATION_ID)
        self.catalog = Catalog(cast("Database", FusedDatabase(database, self.fuse)), "local", self.clock)
        self.numbers = itertools.count()
        self.savers = []
        self.kept = {}
        self.seen = []
        self.pins = {}

    def store(self):
        """As after a restart: nothing remembered in memory."""
        return Store(cast("ObjectStore", self.objects), self.catalog, random=self.random, rewrite_ratio=0.6)

    @initialize()
    def begin(self):
        self.new_workspace()

    def new_workspace(self, source=None):
        number = next(self.numbers)
        name = WorkspaceId(f"{number:016x}")
        saver = Saver(self.store(), name, self.clock, self.random)
        saver.create(b"/w%d" % number, source)
        self.savers.append(saver)
        return saver

    def save(self, saver, files, **more):
        saver.store = self.store()
        name = saver.save(files, **more)
        self.kept[name] = dict(files)
        self.seen.append(dict(files))
        return name

    def pick_files(self, which):
        return self.seen[which % len(self.seen)] if self.seen else BASE

    @rule(which=st.integers(0, 99), edits=st.dictionaries(st.sampled_from(SLOTS), st.integers(-1, 99), max_size=6))
    def save_edited(self, which, edits):
        saver = self.savers[which % len(self.savers)]
        head = saver.cursor().head
        files = dict(self.kept[head]) if head else dict(BASE)
        for path, content in edits.items():
            if content < 0:
                files.pop(path, None)
            elif content < 90:
                files[path] = CONTENTS[content % len(CONTENTS)]
            else:
                files[path] = files.get(path, b"") + b"a small edit %d\n" % content
        self.save(saver, files)

    @rule(which=st.integers(0, 99), state=st.integers(0, 99))
    def save_as_it_was(self, which, state):
        """Pages that have died meanwhile are named again."""
        self.save(self.savers[which % len(self.savers)], self.pick_files(state))

    @rule(which=st.integers(0, 99), state=st.integers(0, 99))
    def save_while_all_is_collected(self, which, state):
        """Whatever collection takes between storing and committing, the commit notices."""
        saver = self.savers[which % len(self.savers)]
        once = iter([True])

        def collect():
            if next(once, False):
                self.store().collector().collect(0)

        self.save(saver, self.pick_files(state), before_commit=collect)

    @rule(which=st.integers(0, 99), other=st.integers(0, 99))
    def save_a_page_as_content(self, which, other):
        """A user's file may hold the bytes of a page, of one that is alive or not."""
        names = sorted(self.kept)
        if names:
            root = self.catalog.checkpoint(names[other % len(names)]).root
            self.save(self.savers[which % len(self.savers)], {**BASE, b"page": self.store().reader.read(root)})

    @rule(which=st.integers(0, 99), count=st.integers(1, 20))
    def save_and_die(self, which, count):
        """Killed anywhere in a save: the checkpoint is there whole or not at all."""
        saver = self.savers[which % len(self.savers)]
        saver.store = self.store()
        head = saver.cursor().head
        files = {**(self.kept[head] if head else BASE), SLOTS[count % 20]: b"dying %d" % count * 60}
        self.fuse.left = count
        try:
            self.kept[saver.save(files)] = files
        except Died:
            self.fuse.left = None
            after = saver.cursor().head
            if after != head:
                self.kept[after] = files
        finally:
            self.fuse.left = None

    @precondition(lambda self: len(self.savers) < 4)
    @rule(which=st.integers(0, 99))
    def fork(self, which):
        names = sorted(self.kept)
        if names:
            source = names[which % len(names)]
            self.save(self.new_workspace(source), self.kept[source], kind="fork", parent=source)

    @rule(which=st.integers(0, 99))
    def let_go(self, which):
        if len(self.savers) > 1:
            self.catalog.let_go(self.savers.pop(which % len(self.savers)).workspace)

    @rule(which=st.integers(0, 99))
    def forget(self, which):
        names = sorted(self.kept)
        if not names:
            return
        name = names[which % len(names)]
        hard = any(reason.hard for reason in self.catalog.protected_by(name))
        try:
            assert [gone.id for gone in self.catalog.forget([name])] == [name]
            assert not hard
            del self.kept[name]
        except RefusedError:
            assert hard

    @rule(which=st.integers(0, 99))
    def pin(self, which):
        names = sorted(self.kept)
        if names:
            root = self.catalog.checkpoint(names[which % len(names)]).root
            self.pins[self.catalog.pin(root, "a test")] = root

    @rule(which=st.integers(0, 99))
    def unpin(self, which):
        if self.pins:
            number = sorted(self.pins)[which % len(self.pins)]
            del self.pins[number]
            self.catalog.unpin(number)

    @rule(pages=st.integers(1, 5))
    def settle_some(self, pages):
        deferred_counts.settle_step(self.catalog.database, self.catalog.tenant, self.store().children, pages)

    @rule(grace=st.sampled_from([0, 0, 10, 3600]))
    def collect(self, grace):
        self.store().collector().collect(grace)

    @rule(count=st.integers(0, 40))
    def collect_and_die(self, count):
        self.fuse.left = count
        try:
            self.store().collector().collect(0)
        except Died:
            pass
        finally:
            self.fuse.left = None

    @rule(count=st.integers(0, 30), which=st.integers(0, 99), state=st.integers(0, 99))
    def collect_while_another_saves(self, count, which, state):
        """At any step of a collection, another process may name again what is just dying."""
        saver = self.savers[which % len(self.savers)]
        self.fuse.left, self.fuse.action = count, lambda: self.save(saver, self.pick_files(state))
        try:
            self.store().collector().collect(0)
        finally:
            self.fuse.left = self.fuse.action = None

    @rule(count=st.integers(0, 12), which=st.integers(0, 99), number=st.integers(0, 9), settled=st.booleans())
    def bring_back_what_dies(self, count, which, number, settled):
        """Content that is forgotten and saved again while it is collected, at any step of the save."""
        saver = self.savers[which % len(self.savers)]
        files = {**BASE, b"phoenix": b"phoenix %d" % number * 50}
        name = self.save(saver, files)
        self.save(saver, BASE)
        if settled:
            self.store().collector().settle()
        if not any(reason.hard for reason in self.catalog.protected_by(name)):
            self.catalog.forget([name])
            del self.kept[name]
        self.fuse.left, self.fuse.action = count, lambda: self.store().collector().collect(0)
        try:
            # Sometimes with a root page that was never there, so that only the content is relied on.
            self.save(saver, {**files, b"nest": b"%d" % number} if number % 2 else files)
        finally:
            self.fuse.left = self.fuse.action = None

    @rule(seconds=st.sampled_from([1, 20, 4000, 90_000, 700_000, -5, -100_000]))
    def time_passes(self, seconds):
        self.clock.advance(seconds)

    @invariant()
    def counts_agree_with_a_full_mark(self):
        assert self.store().verifier().verify().problems == []

    def teardown(self):
        try:
            store = self.store()
            for name, files in self.kept.items():
                assert load(store, name) == files
            self.clock.advance(10 * 86_400)  # what was laid in ahead by a save that died is given up by then
            store.collector().collect(0)
            for name, files in self.kept.items():
                assert load(store, name) == files
            found = store.verifier().verify(read_data=True)
            assert found.problems == []
            self.nothing_else_is_left(store)
        finally:
            self.catalog.close()
            shutil.rmtree(self.folder)

    def nothing_else_is_left(self, store):
        """What is stored is what the kept checkpoints and the pins need: pages, contents, and the bases of deltas."""
        roots = [self.catalog.checkpoint(name).root for name in self.kept] + list(self.pins.values())
        with self.catalog.database.reading() as session:
            rows = {row[0]: row[1:] for row in session.all("SELECT hash, kind, base FROM blobs")}
        needed = set()
        todo = roots
        while todo:
            name = todo.pop()
            if name not in needed:
                needed.add(name)
                # Also a page that is alive as a file's content keeps its children.
                todo += children(decode_page(store.reader.read(name))) if rows[name][0] == 1 else []
        needed.update([rows[name][1] for name in needed if rows[name][1] is not None])
        assert set(rows) == needed
        with self.catalog.database.reading() as session:
            keys = {row[0] for row in session.all("SELECT key FROM packs")}
        listed = {info.key for prefix in ("packs/", "checkpoints/") for info in store.objects.list(prefix)}
        assert keys <= listed


@pytest.fixture(autouse=True)
def _every_process_is_another(monkeypatch):
    """A killed process holds no lease up: here it is this one, which must not take itself for the killed one."""
    numbers = itertools.count()
    monkeypatch.setattr(
        work_lease, "this_process", lambda: f"{work_lease._boot()} {os.getpid()} killed-{next(numbers)}"
    )
    monkeypatch.setattr(checkpoint_commit, "AHEAD", 40)
    monkeypatch.setattr(deferred_counts, "PAGES_PER_STEP", 2)


class TestLiveness(Liveness.TestCase):
    settings = settings(
        max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
