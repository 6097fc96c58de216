"""The ledger: what is in it is whole or said to be damaged, whoever was killed while writing it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from holdfast.model.errors import FormatError, LockedError, UsageError
from holdfast.snapshot.ledger import damaged_in
from holdfast.snapshot.provider_context import ProviderContext


@pytest.fixture
def place(tmp_path: Path) -> ProviderContext:
    return ProviderContext(os.fsencode(tmp_path / "root"), os.fsencode(tmp_path / "state"), "s", timeout=0)


def test_entries_come_back_as_they_were_in_the_order_of_their_times(place: ProviderContext, tmp_path: Path) -> None:
    ledger = place.ledger()
    assert ledger.entries() == []
    with ledger.lock():
        first = ledger.new("workspace", mode="worktree", label="b", path="/a\\xff\\\\", facts={"x": "é\n"})
        ledger.write(first)
        second = ledger.new("snapshot", of=first.token)
        ledger.write(second)
    assert first.place == b"/a\xff\\"
    assert second.created_at > first.created_at
    assert place.ledger().entries() == [first, second]
    assert place.ledger().entries("snapshot") == [second]
    for path in (tmp_path / "state").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    ledger.remove(first)
    ledger.remove(first)
    assert ledger.get(first.token) is None
    assert not ledger.is_last(first)
    assert ledger.is_last(second)


def test_the_order_holds_on_a_clock_that_stands_still(place: ProviderContext) -> None:
    class Still:
        def now(self) -> int:
            return 5

        def monotonic(self) -> float:
            return 0.0

    ledger = place._replace(clock=Still()).ledger()
    with ledger.lock():
        for _ in range(3):
            ledger.write(ledger.new("view"))
    assert [entry.created_at for entry in ledger.entries()] == [5, 6, 7]


def test_sessions_have_ledgers_of_their_own_and_are_held_by_one(place: ProviderContext) -> None:
    one, two = place.ledger(), place._replace(session="two").ledger()
    with one.lock(), two.lock():
        two.write(two.new("view"))
        assert one.entries() == []
        assert not one.is_last(one.new("view"))
        with pytest.raises(LockedError), place.ledger().lock():
            pass
    with place.ledger().lock():
        pass


def test_what_is_no_entry_is_none(place: ProviderContext) -> None:
    # As docs/formats/snapshot-ledger.md has it: *.new was never put in place.
    ledger = place.ledger()
    folder = Path(os.fsdecode(place.state)) / "ledger/s"
    with ledger.lock():
        entry = ledger.new("view")
        (folder / f"{entry.token}.new").write_bytes(b"torn")
    assert ledger.entries() == []
    assert ledger.is_last(entry)


@pytest.mark.parametrize("at", [0, 5, 10, 39, 50, -3])
def test_a_damaged_entry_is_named(place: ProviderContext, at: int) -> None:
    ledger = place.ledger()
    with ledger.lock():
        entry, other = ledger.new("view"), ledger.new("view")
        ledger.write(entry)
        ledger.write(other)
    path = Path(os.fsdecode(place.state)) / "ledger/s" / entry.token
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(FormatError, match=entry.token):
        ledger.get(entry.token)
    (damage,) = ledger.damaged()
    assert entry.token in damage.message
    assert [found.message for found in damaged_in(place.state)] == [damage.message]
    assert ledger.entries() == [other]
    ledger.remove(other)
    assert not place._replace(session="two").ledger().is_last(other), "something may be there"


def test_an_entry_under_another_name_is_refused(place: ProviderContext) -> None:
    ledger = place.ledger()
    with ledger.lock():
        entry = ledger.new("view")
        ledger.write(entry)
    path = Path(os.fsdecode(place.state)) / "ledger/s" / entry.token
    path.rename(path.with_name("0" * 16))
    assert ledger.entries() == []
    (damage,) = ledger.damaged()
    assert "0" * 16 in damage.message


@pytest.mark.parametrize("session", ["", "..", "a/b", "-o", "x" * 65, "a.lock"])
def test_sessions_have_names(place: ProviderContext, session: str) -> None:
    with pytest.raises(UsageError):
        place._replace(session=session).ledger()


def test_what_is_left_of_a_session_that_was_killed_before_it_wrote_anything_goes(
    place: ProviderContext, tmp_path: Path
) -> None:
    ledger, other = place.ledger(), place._replace(session="other").ledger()
    child = os.fork()
    if not child:
        with ledger.lock():
            os._exit(0)
    os.waitpid(child, 0)
    ledgers = tmp_path / "state/ledger"
    assert sorted(os.listdir(ledgers)) == ["s", "s.lock"]
    with ledger.lock():
        place.ledger().remove_empty()
        assert sorted(os.listdir(ledgers)) == ["s", "s.lock"], "it is in use"
        ledger.write(ledger.new("view"))
    place.ledger().remove_empty()
    assert sorted(os.listdir(ledgers)) == ["s", "s.lock"], "there is something in it"
    other.remove_empty()
    ledger.remove(ledger.entries()[0])
    place.ledger().remove_empty()
    assert os.listdir(ledgers) == []
