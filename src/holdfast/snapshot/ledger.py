"""The results of a provider, recorded durably before they exist: docs/formats/snapshot-ledger.md."""

from __future__ import annotations

import os
import re
import secrets
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from holdfast.files.linux.process_lock import exclusive
from holdfast.files.note_file import NoteFile
from holdfast.model.clock import SystemClock
from holdfast.model.decoders import converted, json_decoder
from holdfast.model.errors import FormatError, HoldfastError, StorageError, UsageError
from holdfast.model.paths import display, parse_display
from holdfast.snapshot.port import Allocation, Kind, Mode, Token
from holdfast.snapshot.private_directories import make_private

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from contextlib import AbstractContextManager

    from holdfast.model.clock import Clock

MAX_LABEL = 1000
"""Characters of a label."""
MAX_FACTS = 16

_MAX_BYTES = 1 << 16
_TOKEN_BYTES = 8
_TOKEN = re.compile(rb"[0-9a-f]{16}\Z")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*\Z")
_MAX_NAME = 64


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A result, existing or planned."""

    token: str
    kind: Kind
    created_at: int
    complete: bool = False
    mode: Mode | None = None
    label: str = ""
    path: str = ""
    of: str = ""
    parent: str = ""
    facts: dict[str, str] = msgspec.field(default_factory=dict[str, str])

    @property
    def place(self) -> bytes | None:
        """The directory that was made for it; None without one."""
        return parse_display(self.path) if self.path else None

    def allocation(self) -> Allocation:
        """The same, as the port shows it."""
        return Allocation(Token(self.token), self.kind, self.place, self.created_at, self.complete)


def check_name(name: str, what: str) -> str:
    """Return ``name`` if a session or a branch can be called so: it is part of paths, and of names in Git. Raises
    `UsageError`, which says ``what`` it was to name.
    """
    if len(name) > _MAX_NAME or not _NAME.match(name) or name.endswith(".lock"):
        raise UsageError(
            f"{name[: _MAX_NAME + 1]!r} is no name for a {what}",
            hint=f"letters, digits, '_', '-', and '.' between others, {_MAX_NAME} at most",
        )
    return name


def check_label(label: str) -> str:
    """Return ``label`` if a snapshot can have it. Raises `UsageError`."""
    if len(label) > MAX_LABEL or not label.isprintable():
        raise UsageError(f"a label is one line of at most {MAX_LABEL} characters that can be printed")
    return label


class Ledger:
    """The entries of one session of one provider. An entry is written before its result is made."""

    def __init__(
        self, state: bytes, session: str, *, clock: Clock, random: Callable[[int], bytes], timeout: float
    ) -> None:
        """``state`` is the provider's own directory. Raises `UsageError` if no session can be called ``session``."""
        self.state = state
        self._all = os.path.join(state, b"ledger")
        self._folder = os.path.join(self._all, check_name(session, "session").encode())
        self._session = session
        self._clock = clock
        self._random = random
        self._timeout = timeout

    @contextmanager
    def lock(self) -> Generator[None]:
        """Hold the session: no other process changes anything in it. A session without an entry has no folder and no
        lock afterwards. Raises `LockedError`, `StorageError`.
        """
        self._make(self._all)
        with self._exclusive(self._folder, f"the session {self._session}"):
            self._make(self._folder)
            try:
                yield
            finally:
                with suppress(OSError):
                    os.rmdir(self._folder)
                    os.unlink(self._folder + b".lock")

    def remove_empty(self) -> None:
        """Remove the folder of a session that was killed before it wrote an entry; nothing where it is in use."""
        try:
            if os.listdir(self._folder):
                return
            with self._exclusive(self._folder, f"the session {self._session}", timeout=0), suppress(OSError):
                os.rmdir(self._folder)
                os.unlink(self._folder + b".lock")
        except (OSError, HoldfastError):
            return

    @staticmethod
    def _make(folder: bytes) -> None:
        try:
            make_private(folder)
        except OSError as error:
            raise StorageError(f"cannot make {display(folder)}: {error.strerror}") from error

    def lock_shared(self) -> AbstractContextManager[None]:
        """Hold the shared parts of the provider's sessions. Taken within `lock`, never the other way round; results
        that are made under it for a written entry stay until the entry is removed. Raises `LockedError`,
        `StorageError`.
        """
        return self._exclusive(self._all, "what sessions share")

    def _exclusive(self, path: bytes, what: str, timeout: float | None = None) -> AbstractContextManager[None]:
        seconds = self._timeout if timeout is None else timeout
        return exclusive(path + b".lock", timeout=seconds, clock=self._clock, what=what)

    def new(self, kind: Kind, **fields: object) -> LedgerEntry:
        """An entry for a planned result, not written yet. ``fields`` are those of `LedgerEntry`."""
        latest = max((entry.created_at for entry in self.entries()), default=0)
        return converted(
            {
                "token": self._random(_TOKEN_BYTES).hex(),
                "kind": kind,
                "created_at": max(self._clock.now(), latest + 1),
                **fields,
            },
            LedgerEntry,
        )

    def write(self, entry: LedgerEntry) -> None:
        """Put the entry in place, atomic and durable; it replaces the one of its token. Raises `StorageError`."""
        _file(entry.token).write(self._folder, msgspec.json.encode(entry) + b"\n")

    def remove(self, entry: LedgerEntry) -> None:
        """Take the entry away, durably. Raises `StorageError`."""
        _file(entry.token).remove(self._folder)

    def get(self, token: str) -> LedgerEntry | None:
        """The entry of a token; None without one. Raises `FormatError` for a damaged one, `StorageError`."""
        if not _TOKEN.match(token.encode("utf-8", "replace")):
            return None
        file = _file(token)
        body = file.read(self._folder)
        if body is None:
            return None
        try:
            entry = json_decoder(LedgerEntry).decode(body)
            if entry.token != token or len(entry.facts) > MAX_FACTS:
                raise file.damaged_error(self._folder, "says something else than it should")
            _ = entry.place
        except (msgspec.MsgspecError, UsageError) as error:
            raise file.damaged_error(self._folder, f"says something else than it should: {error}") from error
        return entry

    def entries(self, kind: Kind | None = None) -> Sequence[LedgerEntry]:
        """All entries of the session, or those of a kind, oldest first. Raises `StorageError`.

        Unreadable ones are left out, and stay: see `damaged`.
        """
        found, _ = self._read()
        chosen = [entry for entry in found if kind in (None, entry.kind)]
        return sorted(chosen, key=lambda entry: entry.created_at)

    def damaged(self) -> Sequence[FormatError]:
        """The fault of each unreadable entry of the session, with its file. Raises `StorageError`."""
        return self._read()[1]

    def _read(self) -> tuple[list[LedgerEntry], list[FormatError]]:
        found: list[LedgerEntry] = []
        damaged: list[FormatError] = []
        for name in sorted(_listed(self._folder)):
            if _TOKEN.match(name):
                try:
                    entry = self.get(name.decode())
                except FormatError as error:
                    damaged.append(error)
                else:
                    found += () if entry is None else (entry,)
        return found, damaged

    def is_last(self, entry: LedgerEntry) -> bool:
        """True if no session of the provider has any other entry, damaged ones counted."""
        folders = (os.path.join(self._all, name) for name in _listed(self._all) if not name.endswith(b".lock"))
        return not any(
            _TOKEN.match(name) and os.path.join(folder, name) != os.path.join(self._folder, entry.token.encode())
            for folder in folders
            for name in _listed(folder)
        )


def damaged_in(state: bytes) -> Sequence[FormatError]:
    """`Ledger.damaged` of all sessions of the provider whose own directory is ``state``. Raises `StorageError`."""
    ledgers = os.path.join(state, b"ledger")
    found: list[FormatError] = []
    for session in sorted(os.fsdecode(name) for name in _listed(ledgers)):
        if session.endswith(".lock") or not _NAME.match(session):
            continue
        ledger = Ledger(state, session, clock=SystemClock(), random=secrets.token_bytes, timeout=0)
        found += ledger.damaged()
    return found


def _file(token: str) -> NoteFile:
    return NoteFile(
        name=token.encode(),
        magic=b"HFSL 1 ",
        what="an entry of a snapshot ledger",
        max_bytes=_MAX_BYTES,
        advice="docs/formats/snapshot-ledger.md says what it may have stood for: remove that by hand",
    )


def _listed(folder: bytes) -> Sequence[bytes]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise StorageError(f"cannot list {display(folder)}: {error.strerror}") from error
