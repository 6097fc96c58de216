"""The tiers of session checkpoints: hot in the catalog, warm in the object store, cold in another one.

A content is written to its new tier before the catalog's row changes, and removed from the old one after: it is never
missing. Names are never reused, so an object that the catalog places elsewhere can be removed at any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.errors import ConfigError, IntegrityError, NotFoundError
from holdfast.model.log import Log
from holdfast.model.session_types import CommandEvent
from holdfast.store.catalog.session_records import ref_name
from holdfast.store.catalog.session_rows import SessionRows
from holdfast.store.codecs.session_format import decode_checkpoint, decode_journal
from holdfast.store.verification.session_check import session_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.engine.opening.context import StoreContext
    from holdfast.model.session_types import CommandEntry, SessionCheckpoint, SessionHash, SessionId
    from holdfast.store.catalog.session_records import StoredCheckpoint, Tier
    from holdfast.store.objects.object_store import ObjectStore

_LOG = Log(__name__)
_SECOND = 1_000_000
_PER_STEP = 200
_ORDER: dict[Tier, int] = {"hot": 0, "warm": 1, "cold": 2}
_TRIES = 3


class SessionCheckpointTiers:
    """The session checkpoints of one tenant, in all tiers."""

    def __init__(self, shared: StoreContext) -> None:
        self.rows = SessionRows(shared.store.catalog)
        self._store = shared.store
        self._settings = shared.settings.session
        self._clock = shared.store.catalog.clock

    def load(self, name: SessionHash, data: bytes | None = None) -> SessionCheckpoint:
        """One session checkpoint; ``data`` is its content, if the caller has it. Raises `NotFoundError`, and
        `IntegrityError` if its content is damaged or lost.
        """
        if data is not None:
            return decode_checkpoint(data, name)
        for left in reversed(range(_TRIES)):
            stored, data = self.rows.content(name)
            if data is None and stored.tier == "hot":
                raise IntegrityError(f"the session checkpoint {name} is damaged: its content is missing")
            try:
                return decode_checkpoint(self._get(stored) if data is None else data, name)
            except NotFoundError:
                # It may have just moved to another tier.
                if not left:
                    raise IntegrityError(
                        f"the session checkpoint {name} is missing where it should be ({stored.tier})",
                        hint="`holdfast verify` lists all damage; session.cold_url must name the cold store",
                    ) from None
        raise AssertionError("unreachable")

    def past(self, point: SessionCheckpoint) -> Iterator[SessionCheckpoint]:
        """A session checkpoint, its parent, and so on, as far as they are kept."""
        while True:
            yield point
            if point.parent is None:
                return
            try:
                point = self.load(point.parent)
            except NotFoundError:
                return

    def commands(self, session: SessionId) -> Iterator[CommandEntry]:
        """The commands of a session that any process may have open, newest first, as far back as its states are kept;
        none before the first state.
        """
        with self.rows.reading():
            ref = self.rows.ref(ref_name("head", session))
            if ref is None:
                return
            journal, (stored, data) = self.rows.journal(session), self.rows.content(ref.checkpoint)
        yield from (one.entry for one in reversed(decode_journal(journal.data)) if isinstance(one, CommandEvent))
        for point in self.past(self.load(stored.hash, data)):
            if point.session != session:
                return  # its origin belonged to another session
            yield from reversed(point.history)

    def sweep(self) -> tuple[int, int]:
        """Move old enough contents to the next tier; the numbers of new warm and cold ones."""
        now = self._clock.now()
        warmed = self._move("hot", "warm", now - int(self._settings.hot * _SECOND))
        if not self._settings.cold_url:
            return warmed, 0
        return warmed, self._move("warm", "cold", now - int(max(self._settings.warm, self._settings.hot) * _SECOND))

    def is_due(self) -> bool:
        """Whether `sweep` would find anything."""
        now = self._clock.now()
        return bool(
            self.rows.older("hot", now - int(self._settings.hot * _SECOND), 1)
            or (self._settings.cold_url and self.rows.older("warm", now - int(self._settings.warm * _SECOND), 1))
        )

    def discard(self, gone: Iterable[StoredCheckpoint]) -> None:
        """Remove the objects of checkpoints that the catalog does not know any more."""
        for stored in gone:
            if stored.tier != "hot":
                self._objects(stored.tier).delete(self.key(stored.hash))

    def remove_orphans(self, grace: float) -> int:
        """Remove warm and cold objects that the catalog places elsewhere, or does not know; their number."""
        return sum(
            self._orphans(tier, self._clock.now() - int(grace * _SECOND))
            for tier in (("warm", "cold") if self._settings.cold_url else ("warm",))
        )

    def key(self, name: str) -> str:
        """The key of a session checkpoint in either object store."""
        return session_key(self._store.tenant, name)

    @property
    def _prefix(self) -> str:
        return session_key(self._store.tenant, "")

    def _move(self, before: Tier, after: Tier, than: int) -> int:
        moved = 0
        while True:
            found = self.rows.older(before, than, _PER_STEP)
            done = sum(self._move_one(stored, before, after) for stored in found)
            moved += done
            if len(found) < _PER_STEP or not done:
                return moved

    def _move_one(self, stored: StoredCheckpoint, before: Tier, after: Tier) -> bool:
        name = stored.hash
        try:
            data = self.rows.content(name)[1] if before == "hot" else self._get(stored)
            if data is None:
                return False  # another process was first
            decode_checkpoint(data, name)
        except IntegrityError as error:
            _LOG.warning("a state of a session stays where it is, as it is damaged: %s", error.message)
            return False
        except NotFoundError:
            return False  # it was deleted, or moved on
        self._objects(after).put(self.key(name), (data,))
        if not self.rows.move(name, before, after):
            return False
        if before != "hot":
            self._objects(before).delete(self.key(name))
        return True

    def _orphans(self, tier: Tier, older_than: int) -> int:
        objects, prefix = self._objects(tier), self._prefix
        old = [info.key[len(prefix) :] for info in objects.list(prefix) if info.modified_at <= older_than]
        removed = 0
        for at in range(0, len(old), _PER_STEP):
            part = old[at : at + _PER_STEP]
            places = self.rows.tiers(part)
            for name in part:
                # An object in a later tier than the catalog's may be on its way there.
                if name not in places or _ORDER[places[name]] > _ORDER[tier]:
                    objects.delete(self.key(name))
                    removed += 1
        if removed:
            _LOG.info("%d objects of session checkpoints that nothing named were removed", removed)
        return removed

    def _get(self, stored: StoredCheckpoint) -> bytes:
        return self._objects(stored.tier).get(self.key(stored.hash))

    def _objects(self, tier: Tier) -> ObjectStore:
        objects = self._store.tier_objects(tier)
        if objects is None:
            raise ConfigError(
                "old states of sessions are in a cold store, but session.cold_url is not set",
                hint="set it to the place of the cold store, in config.toml",
            )
        return objects
