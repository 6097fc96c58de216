"""Which checkpoints stay: the rule that applies by itself, and restic's flags."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.history.retention import Policy, Thinning, decide, is_user_label
from holdfast.model.checkpoint import KINDS, Checkpoint, Kind
from holdfast.model.entries import Counts
from holdfast.model.errors import UsageError
from holdfast.model.ids import CheckpointId, Hash, WorkspaceId

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
NOW = 20_000 * DAY + 13 * HOUR + 7 * MINUTE


def checkpoint(number: int, at: int, kind: Kind = "auto", *labels: str) -> Checkpoint:
    return Checkpoint(
        id=CheckpointId(f"{number:024x}"),
        workspace=WorkspaceId("w" * 16),
        parent=None,
        root=Hash(bytes(16)),
        kind=kind,
        labels=labels,
        created_at=at,
        changes=Counts(),
        total_files=0,
        total_bytes=0,
        new_blobs=0,
        stored_bytes=0,
        not_captured=0,
    )


def line(*ages: int, kind: Kind = "auto") -> list[Checkpoint]:
    return [checkpoint(number, NOW - age, kind) for number, age in enumerate(ages)]


def kept_ages(
    checkpoints: list[Checkpoint], policy: Policy | Thinning, protected: dict[CheckpointId, str] | None = None
) -> list[int]:
    return [NOW - d.checkpoint.created_at for d in decide(checkpoints, policy, NOW, protected or {}) if d.keep]


def test_a_week_of_minutes_becomes_what_the_table_says() -> None:
    ages = [minute * MINUTE for minute in range(9 * 24 * 60)]
    kept = kept_ages(line(*ages), Thinning())
    assert [age for age in kept if age < HOUR] == [minute * MINUTE for minute in range(60)]
    middle = [age for age in kept if HOUR <= age < DAY]
    assert max(Counter((NOW - age) // (10 * MINUTE) for age in middle).values()) == 1
    assert len(middle) in (23 * 6, 23 * 6 + 1)
    hourly = [age for age in kept if DAY <= age < 7 * DAY]
    assert len(hourly) in (6 * 24, 6 * 24 + 1)
    daily = [age for age in kept if age >= 7 * DAY]
    assert len({(NOW - age) // DAY for age in daily}) == len(daily) == 3


def test_the_newest_of_a_bucket_stays() -> None:
    start = NOW // HOUR * HOUR - 30 * HOUR
    old = [checkpoint(n, start + n * MINUTE) for n in reversed(range(60))]
    decisions = decide(old, Thinning(), NOW, {})
    assert [d.checkpoint.id for d in decisions if d.keep] == [old[0].id]
    assert decisions[0].reasons == ("newest of its hour",)
    assert decisions[1].reasons == ("a newer one covers the same period, or it is beyond the last",)


def test_rescue_checkpoints_stay_a_day_and_then_thin_out() -> None:
    day = [NOW - 23 * HOUR + n * MINUTE for n in range(5)]
    later = [NOW // HOUR * HOUR - 26 * HOUR + n * MINUTE for n in range(5)]
    rescues = [checkpoint(n, at, "rescue") for n, at in enumerate([*reversed(later + day)])]
    kept = [d.checkpoint.created_at for d in decide(rescues, Thinning(), NOW, {}) if d.keep]
    assert sorted(kept) == [later[4], *day]


@pytest.mark.parametrize("kind", ["manual", "fork", "import"])
def test_what_was_asked_for_stays_for_ever(kind: Kind) -> None:
    ages = [400 * DAY + n for n in range(5)]
    assert kept_ages(line(*ages, kind=kind), Thinning(daily=30 * 24 * 3600)) == ages


def test_a_label_that_somebody_gave_keeps_any_kind() -> None:
    at = NOW - 400 * DAY
    given_label = checkpoint(1, at, "auto", "before the merge")
    by_watcher = [checkpoint(n, at - n, "auto", f"auto-2026-01-01T00:00:0{n}Z") for n in (2, 3)]
    rule = Thinning(daily=30 * 24 * 3600)
    assert [d.checkpoint for d in decide([given_label, *by_watcher], rule, NOW, {}) if d.keep] == [given_label]


@pytest.mark.parametrize(
    ("label", "by_user"),
    [("", False), ("auto-20260211T150405Z", False), ("auto-", False), ("auto-pilot", True), ("x", True)],
)
def test_what_counts_as_a_label(label: str, by_user: bool) -> None:
    assert is_user_label(label) is by_user


def test_daily_ends_where_it_is_told_to() -> None:
    ages = [n * DAY for n in range(8, 40)]
    assert kept_ages(line(*ages), Thinning(daily=30 * 24 * 3600)) == [n * DAY for n in range(8, 30)]
    assert kept_ages(line(*ages), Thinning()) == ages


def test_protection_wins_and_says_why() -> None:
    old = line(*(400 * DAY + n for n in range(3)))
    rule = Thinning(daily=30 * 24 * 3600)
    decisions = decide(old, rule, NOW, {old[1].id: "a live fork stands on it"})
    assert [(d.checkpoint, d.reasons) for d in decisions if d.keep] == [(old[1], ("a live fork stands on it",))]
    assert kept_ages(old, Policy(keep_last=1), {old[2].id: "head"}) == [400 * DAY, 400 * DAY + 2]


def test_restic_flags() -> None:
    times = line(*(n * 6 * HOUR for n in range(4 * 70)))
    assert kept_ages(times, Policy(keep_last=3)) == [0, 6 * HOUR, 12 * HOUR]
    assert kept_ages(times, Policy(keep_hourly=2)) == [0, 6 * HOUR]
    # NOW is 13:07 UTC: the newest of the days before are at 19:07.
    assert kept_ages(times, Policy(keep_daily=3)) == [0, 18 * HOUR, 42 * HOUR]
    assert kept_ages(times, Policy(keep_within=12 * 3600)) == [0, 6 * HOUR, 12 * HOUR]
    assert len(kept_ages(times, Policy(keep_weekly=5))) == 5
    months = kept_ages(times, Policy(keep_monthly=2))
    assert len(months) == 2
    decisions = decide(times, Policy(keep_last=1, keep_daily=1), NOW, {})
    assert decisions[0].reasons == ("last", "daily")
    assert decisions[1].reasons == ("no rule keeps it",)


def test_weeks_begin_on_monday_and_months_on_the_first() -> None:
    # 2026-02-01 is a Sunday.
    sunday = 20485 * DAY
    days = [checkpoint(n, sunday + n * DAY) for n in (1, 0, -1)]
    weekly = [d.checkpoint for d in decide(days, Policy(keep_weekly=2), NOW, {}) if d.keep]
    assert weekly == [days[0], days[1]]
    monthly = [d.checkpoint for d in decide(days, Policy(keep_monthly=2), NOW, {}) if d.keep]
    assert monthly == [days[0], days[2]]


def test_labels_are_kept_by_pattern() -> None:
    labelled = [
        checkpoint(n, NOW - n * DAY, "manual", *labels)
        for n, labels in enumerate([(), ("v1",), ("x", "v2"), ("V3",), ("other", "x")])
    ]
    kept = [d.checkpoint.label for d in decide(labelled, Policy(keep_label=("v*", "oth?r")), NOW, {}) if d.keep]
    assert kept == ["v1", "x", "other"]


@pytest.mark.parametrize("policy", [Policy(), Policy(keep_last=-1), Policy(keep_within=-0.5)])
def test_a_policy_that_means_nothing_is_refused(policy: Policy) -> None:
    with pytest.raises(UsageError):
        decide(line(0, HOUR), policy, NOW, {})


AGES = st.one_of(
    st.integers(-2 * HOUR, 2 * HOUR), st.integers(0, 2 * DAY), st.integers(0, 9 * DAY), st.integers(0, 400 * DAY)
)
CHECKPOINTS = st.lists(
    st.tuples(AGES, st.sampled_from(KINDS), st.sampled_from(["", "", "", "mine", "auto-20260101T000000Z"])), max_size=60
).map(lambda rows: [checkpoint(n, NOW - age, kind, label) for n, (age, kind, label) in enumerate(rows)])
THINNINGS = st.builds(Thinning, daily=st.sampled_from([0, 30 * 24 * 3600]))
POLICIES = st.builds(
    Policy,
    keep_last=st.integers(1, 4),
    keep_hourly=st.integers(0, 4),
    keep_daily=st.integers(0, 4),
    keep_weekly=st.integers(0, 4),
    keep_monthly=st.integers(0, 4),
    keep_within=st.sampled_from([0.0, 3600.0, 86400.0]),
    keep_label=st.sampled_from([(), ("m*",)]),
)


@settings(max_examples=150, deadline=None)
@given(CHECKPOINTS, st.one_of(THINNINGS, POLICIES), st.sets(st.integers(0, 59)))
def test_deciding_again_keeps_all_that_was_kept(
    checkpoints: list[Checkpoint], policy: Thinning | Policy, protect: set[int]
) -> None:
    protected = {CheckpointId(f"{n:024x}"): "head" for n in protect}
    decisions = decide(checkpoints, policy, NOW, protected)
    assert {d.checkpoint.id for d in decisions} == {c.id for c in checkpoints}
    assert all(d.reasons for d in decisions)
    assert all(d.keep for d in decisions if d.checkpoint.id in protected)
    kept = [d.checkpoint for d in decisions if d.keep]
    assert all(d.keep for d in decide(kept, policy, NOW, protected))


@settings(max_examples=150, deadline=None)
@given(CHECKPOINTS, st.integers(0, 30 * DAY))
def test_under_the_rule_of_its_own_nothing_asked_for_goes_and_the_rest_is_sparse(
    checkpoints: list[Checkpoint], later: int
) -> None:
    now = NOW + later
    decisions = decide(checkpoints, Thinning(), now, {})
    gone = [d.checkpoint for d in decisions if not d.keep]
    assert all(c.kind in ("auto", "rescue", "run", "merge") and not is_user_label(c.label) for c in gone)
    assert all(now - c.created_at >= HOUR for c in gone)
    assert all(now - c.created_at >= DAY for c in gone if c.kind == "rescue")
    dense: Counter[tuple[int, int]] = Counter()
    for decision in decisions:
        age = now - decision.checkpoint.created_at
        if decision.reasons[0].startswith("newest of its"):
            width = 10 * MINUTE if age < DAY else HOUR if age < 7 * DAY else DAY
            dense[width, decision.checkpoint.created_at // width] += 1
    assert not dense or max(dense.values()) == 1


@settings(max_examples=80, deadline=None)
@given(CHECKPOINTS, st.integers(0, 400 * DAY))
def test_a_clock_that_went_back_removes_nothing_that_is_younger_than_now(
    checkpoints: list[Checkpoint], back: int
) -> None:
    decisions = decide(checkpoints, Thinning(), NOW - back, {})
    assert all(d.keep for d in decisions if d.checkpoint.created_at >= NOW - back)


@settings(max_examples=80, deadline=None)
@given(CHECKPOINTS, st.lists(st.integers(0, 40 * DAY), max_size=5))
def test_thinning_step_by_step_leaves_something_in_every_stretch(
    checkpoints: list[Checkpoint], steps: list[int]
) -> None:
    """However often and whenever the rule is applied, each day that had a checkpoint keeps one."""
    present, now = checkpoints, NOW
    for step in sorted(steps):
        now = NOW + step
        present = [d.checkpoint for d in decide(present, Thinning(), now, {}) if d.keep]
    assert {c.created_at // DAY for c in present} == {c.created_at // DAY for c in checkpoints}
