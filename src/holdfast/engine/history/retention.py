"""Retention: a policy over checkpoints' records, and its execution.

Two kinds of rule. `Thinning` is a workspace's automatic rule: automatic checkpoints become fewer as they age, all
others stay. `Policy` is a user's request, with the flags and the meaning of ``restic forget``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING

from holdfast.engine.history.mount_pins import release_dead_pins
from holdfast.engine.opening.context import retry_with_reserve
from holdfast.model.errors import UsageError
from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.engine.opening.context import Context, StoreContext
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.config.settings import Settings
    from holdfast.model.ids import CheckpointId

_SECOND = 1_000_000
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_WEEK = 7 * _DAY
# 1970-01-01 was a Thursday; ISO weeks begin on Mondays.
_WEEK_OFFSET = 3 * _DAY

_AUTOMATIC_LABEL = re.compile(r"auto-[0-9TZ:.-]*\Z")
_THINNED = frozenset(("auto", "rescue", "run", "merge"))


class Thinning(NamedTuple):
    """The rule that applies by itself. Every field is an age in seconds; the brackets follow each other.

    Younger than ``keep_all``: everything stays. Up to ``per_ten_minutes`` one of every ten minutes stays, up to
    ``hourly`` one of every hour, then one of every day, up to the age of ``daily`` (0: for ever). Rescue
    checkpoints all stay until they are as old as ``rescue``.
    """

    keep_all: float = 3600
    per_ten_minutes: float = 24 * 3600
    hourly: float = 7 * 24 * 3600
    daily: float = 0
    rescue: float = 24 * 3600


class Policy(NamedTuple):
    """The checkpoints to keep, by the flags of ``restic forget``. All others go.

    Of each of the last ``keep_hourly`` hours that have a checkpoint the newest stays, and so on. ``keep_within`` is
    seconds before the newest checkpoint of all. ``keep_label`` holds shell patterns (``release-*``); case matters.
    """

    keep_last: int = 0
    keep_hourly: int = 0
    keep_daily: int = 0
    keep_weekly: int = 0
    keep_monthly: int = 0
    keep_within: float = 0
    keep_label: tuple[str, ...] = ()


class Decision(NamedTuple):
    """Whether one checkpoint stays, and why."""

    checkpoint: Checkpoint
    keep: bool
    reasons: tuple[str, ...]
    """Why it stays; for one that goes, the one reason why."""


def is_user_label(label: str) -> bool:
    """True for a user's label; ``auto-`` with a time is the watcher's."""
    return bool(label) and not _AUTOMATIC_LABEL.match(label)


def decide(
    checkpoints: Sequence[Checkpoint],
    policy: Policy | Thinning,
    now: int,
    protected: Mapping[CheckpointId, str],
) -> list[Decision]:
    """A decision for each of one workspace's ``checkpoints``, both in the order of the catalog, newest first.

    ``now`` is in microseconds since 1970-01-01 UTC, and buckets are UTC. ``protected`` maps ids that must always stay
    to the reason (the head, a live fork's origin, …). Idempotent: a second decision keeps all that the first kept. A
    checkpoint with a future time, as after a clock went back, counts as just made.

    Raises `UsageError` for a `Policy` that keeps nothing at all or has a negative number.
    """
    if isinstance(policy, Policy):
        kept = _by_policy(checkpoints, _checked(policy))
        gone = "no rule keeps it"
    else:
        kept = _by_age(checkpoints, policy, now)
        gone = "a newer one covers the same period, or it is beyond the last"
    decisions: list[Decision] = []
    for checkpoint in checkpoints:
        reasons = list(kept.get(checkpoint.id, ()))
        if checkpoint.id in protected:
            reasons.append(protected[checkpoint.id])
        decisions.append(Decision(checkpoint, bool(reasons), tuple(reasons) or (gone,)))
    return decisions


def _checked(policy: Policy) -> Policy:
    for field, value in policy._asdict().items():
        if not isinstance(value, tuple) and value < 0:
            raise UsageError(f"bad --{field.replace('_', '-')}: {value} is negative")
    if policy == Policy():
        raise UsageError("this policy would keep nothing", hint="give at least one --keep-… option")
    return policy


def _by_age(ordered: Sequence[Checkpoint], rule: Thinning, now: int) -> dict[CheckpointId, list[str]]:
    kept: dict[CheckpointId, list[str]] = {}
    taken: set[tuple[int, int]] = set()
    for checkpoint in ordered:
        age = (now - checkpoint.created_at) / _SECOND
        if labels := [label for label in checkpoint.labels if is_user_label(label)]:
            kept[checkpoint.id] = [f"labelled {label}" for label in labels]
        elif checkpoint.kind not in _THINNED:
            kept[checkpoint.id] = [checkpoint.kind]
        elif age < rule.keep_all:
            kept[checkpoint.id] = ["recent"]
        elif checkpoint.kind == "rescue" and age < rule.rescue:
            kept[checkpoint.id] = ["rescue, recent"]
        elif not rule.daily or age < max(rule.daily, rule.hourly):
            width, name = (
                (10 * _MINUTE, "ten minutes")
                if age < rule.per_ten_minutes
                else (_HOUR, "hour")
                if age < rule.hourly
                else (_DAY, "day")
            )
            bucket = (width, checkpoint.created_at // width)
            if bucket not in taken:
                taken.add(bucket)
                kept[checkpoint.id] = [f"newest of its {name}"]
    return kept


def _month(at: int) -> int:
    import time

    when = time.gmtime(at // _SECOND)
    return when.tm_year * 12 + when.tm_mon


def _by_policy(ordered: Sequence[Checkpoint], policy: Policy) -> dict[CheckpointId, list[str]]:
    kept: dict[CheckpointId, list[str]] = defaultdict(list)
    for checkpoint in ordered[: policy.keep_last]:
        kept[checkpoint.id].append("last")
    rules: tuple[tuple[str, int, Callable[[int], int]], ...] = (
        ("hourly", policy.keep_hourly, lambda at: at // _HOUR),
        ("daily", policy.keep_daily, lambda at: at // _DAY),
        ("weekly", policy.keep_weekly, lambda at: (at + _WEEK_OFFSET) // _WEEK),
        ("monthly", policy.keep_monthly, _month),
    )
    for name, count, bucket_of in rules:
        buckets: set[int] = set()
        for checkpoint in ordered:
            bucket = bucket_of(checkpoint.created_at)
            if bucket in buckets:
                continue
            if len(buckets) == count:
                break
            buckets.add(bucket)
            kept[checkpoint.id].append(name)
    for checkpoint in ordered:
        if policy.keep_within and ordered[0].created_at - checkpoint.created_at <= policy.keep_within * _SECOND:
            kept[checkpoint.id].append("within")
        for pattern in policy.keep_label:
            if any(fnmatchcase(label, pattern) for label in checkpoint.labels):
                kept[checkpoint.id].append(f"label {pattern}")
    return kept


# Removing the checkpoints that a policy does not keep.


def thin_out(context: Context) -> None:
    """Remove checkpoints by the rule of the settings; none while the workspace's own settings file is ignored."""
    if context.misconfigured is None:
        release_dead_pins(context)
        remove_checkpoints(context, select_checkpoints(context, thinning_rule(context.settings))[0])


def thinning_rule(settings: Settings) -> Thinning:
    """The rule that applies by itself, as the settings have it."""
    rule = settings.retention
    return Thinning(rule.keep_all, rule.per_ten_minutes, rule.hourly, rule.daily, rule.rescue)


def select_checkpoints(
    context: Context, policy: Policy | Thinning
) -> tuple[list[Checkpoint], list[tuple[Checkpoint, Sequence[str]]]]:
    """The checkpoints of the workspace that ``policy`` removes, and the others with their reasons. Removes none."""
    protections = context.catalog.protections()
    protected = {checkpoint: str(reasons[0]) for checkpoint, reasons in protections.items() if reasons}
    checkpoints = context.catalog.checkpoints(context.workspace.id)
    removed: list[Checkpoint] = []
    kept: list[tuple[Checkpoint, Sequence[str]]] = []
    for decision in decide(checkpoints, policy, context.clock.now(), protected):
        if decision.keep:
            kept.append((decision.checkpoint, decision.reasons))
        else:
            removed.append(decision.checkpoint)
    return removed, kept


def remove_checkpoints(context: StoreContext, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Remove ``checkpoints``, each in a transaction of its own; returns those that still existed."""
    removed: list[Checkpoint] = []
    for checkpoint in checkpoints:
        removed += retry_with_reserve(context, partial(context.store.catalog.forget, (checkpoint.id,)))
    return removed
