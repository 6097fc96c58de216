"""When the kernel may use the listing that it keeps of a directory."""

from __future__ import annotations

from holdfast.bridge.fuse._listing_cache import CachedListing, Stamp, drops_when_opened, is_settled

ONE, OTHER = Stamp(1, 1), Stamp(1, 2)


def listed(known: CachedListing, stamp: Stamp = ONE, until: float = 10.0, *, is_settled: bool = True) -> bool:
    """Open, read and close it; whether what was kept was used."""
    is_kept = known.note_opened(stamp, 0.0)
    known.note_reading(stamp, until, is_settled=is_settled)
    known.note_closed()
    return is_kept


def test_what_is_as_it_was_is_used_again() -> None:
    known = CachedListing()
    assert [listed(known) for _ in range(3)] == [False, True, True]
    assert [listed(known, OTHER) for _ in range(2)] == [False, True]


def test_the_time_of_modification_alone_says_nothing() -> None:
    known = CachedListing()
    assert [listed(known), listed(known, Stamp(ONE.mtime_ns, 99))] == [False, False]


def test_what_may_still_change_unseen_is_not_used() -> None:
    known = CachedListing()
    assert [listed(known, is_settled=False) for _ in range(3)] == [False, False, False]
    assert [listed(known), listed(known)] == [False, True]


def test_what_two_were_told_of_different_states_is_not_used() -> None:
    known = CachedListing()
    assert not known.note_opened(ONE, 0.0)
    known.note_reading(ONE, 10.0, is_settled=True)
    assert not listed(known, OTHER), "the first is still told of the state before"
    assert not listed(known, OTHER)
    known.note_closed()
    assert [listed(known, OTHER), listed(known, OTHER)] == [False, True]


def test_who_begins_again_after_a_change_spoils_it_too() -> None:
    known = CachedListing()
    assert not known.note_opened(ONE, 0.0)
    known.note_reading(ONE, 10.0, is_settled=True)
    known.note_reading(OTHER, 10.0, is_settled=True)
    assert not known.note_opened(ONE, 0.0)
    known.note_closed()
    known.note_closed()
    assert [listed(known), listed(known)] == [False, True]


def test_those_who_read_one_state_at_once_do_not_spoil_it() -> None:
    known = CachedListing()
    assert [known.note_opened(ONE, 0.0), known.note_opened(ONE, 0.0)] == [False, False]
    for _ in range(2):
        known.note_reading(ONE, 10.0, is_settled=True)
    assert known.note_opened(ONE, 0.0)


def test_it_is_asked_for_anew_when_what_came_with_it_is_old_or_was_read() -> None:
    known = CachedListing()
    assert [listed(known, until=-1.0), listed(known), listed(known)] == [False, False, True]
    known.told, known.read = 10, 4
    assert listed(known)
    known.told, known.read = 10, 5
    assert not listed(known)


def test_what_has_just_changed_may_change_again_and_look_the_same() -> None:
    second = 1_000_000_000
    assert is_settled(Stamp(0, 10 * second + 1), 10 * second + second // 5)
    assert not is_settled(Stamp(0, 10 * second + 1), 10 * second + second // 20)
    assert not is_settled(Stamp(0, 10 * second), 13 * second), "times may be whole seconds"
    assert is_settled(Stamp(0, 10 * second), 15 * second)
    assert not is_settled(Stamp(0, 20 * second + 1), 10 * second), "the clock was set back"


def test_kernels_that_would_keep_it_whatever_they_are_told() -> None:
    assert [
        drops_when_opened(f"{release}-generic") for release in ("5.4.0", "6.8.12", "6.9.0", "6.13.0", "6.14.0")
    ] == [
        True,
        True,
        False,
        False,
        True,
    ]
    assert drops_when_opened("6.18.44-fc")
    assert not drops_when_opened("unknown")
