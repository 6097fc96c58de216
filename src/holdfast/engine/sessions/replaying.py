"""What a journal's entries make of a state. Pure."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from holdfast.model.named import NamedTuple
from holdfast.model.session import Counted, Found, Merging, Ran

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from holdfast.model.ids import CheckpointId
    from holdfast.model.session import CommandEntry, JournalEntry, State

_SECOND = 1_000_000

NOT_CARRIED = frozenset(
    (
        "_",
        "SHLVL",
        "PWD",
        "HOLDFAST_SESSION",
        "HOLDFAST_AGENT",
        "HOLDFAST_RUN",
        "HOLDFAST_HOOK",
        "BASH_EXECUTION_STRING",
        "BASHOPTS",
        "SHELLOPTS",
    )
)
"""Variables that a shell, or whoever starts it, sets anew each time."""


class Exported(NamedTuple):
    """How what a shell exports now differs from a state: fields of `Ran`."""

    changed: dict[str, str]
    dropped: tuple[str, ...]
    unset: tuple[str, ...] | None


def replay(state: State, entries: Iterable[JournalEntry]) -> State:
    """The state after ``entries``."""
    for entry in entries:
        state = _after(state, entry)
    return state


def _after(state: State, entry: JournalEntry) -> State:
    if isinstance(entry, Ran):
        return _after_command(state, entry)
    if isinstance(entry, Found):
        return msgspec.structs.replace(state, tree=entry.tree, updated_at=entry.at)
    if isinstance(entry, Counted):
        counted = {entry.what: getattr(state.metrics, entry.what) + 1}
        return msgspec.structs.replace(state, metrics=msgspec.structs.replace(state.metrics, **counted))
    return state


def _after_command(state: State, ran: Ran) -> State:
    command = ran.entry
    tree = command.before or state.tree
    if not ran.ended:
        return msgspec.structs.replace(state, seq=command.seq, tree=tree, updated_at=command.started_at)
    env = {name: value for name, value in state.env.items() if name not in ran.dropped} | dict(ran.exported)
    metrics = msgspec.structs.replace(
        state.metrics,
        commands=state.metrics.commands + 1,
        total_ms=state.metrics.total_ms + command.duration_ms,
    )
    return msgspec.structs.replace(
        state,
        seq=command.seq,
        tree=command.after or tree,
        updated_at=command.started_at + command.duration_ms * 1000,
        cwd=ran.cwd or state.cwd,
        env=env,
        unset=state.unset if ran.unset is None else ran.unset,
        metrics=metrics,
    )


def commands(entries: Iterable[JournalEntry]) -> list[CommandEntry]:
    """The commands among ``entries``."""
    return [entry.entry for entry in entries if isinstance(entry, Ran)]


def output_length(entries: Iterable[JournalEntry]) -> int:
    """How many characters of output are in ``entries``."""
    results = (entry.result for entry in commands(entries))
    return sum(len(result.stdout) + len(result.stderr) for result in results if result is not None)


def trees(entries: Iterable[JournalEntry]) -> tuple[CheckpointId, ...]:
    """Every tree that ``entries`` name."""
    found: dict[CheckpointId, None] = {}
    for entry in entries:
        if isinstance(entry, Ran):
            named = (entry.entry.before, entry.entry.after)
        elif isinstance(entry, Found):
            named = (entry.tree,)
        else:
            named = (entry.target,) if isinstance(entry, Merging) else ()
        found.update((tree, None) for tree in named if tree is not None)
    return tuple(found)


def has_something(entries: Iterable[JournalEntry]) -> bool:
    """Whether anything has happened that is worth saving a state for."""
    return any(not isinstance(entry, Counted) for entry in entries)


def running(entries: Sequence[JournalEntry]) -> CommandEntry | None:
    """The command that has begun and not ended."""
    last = entries[-1] if entries else None
    return last.entry if isinstance(last, Ran) and not last.ended else None


def due(state: State, entries: Sequence[JournalEntry], now: int) -> float | None:
    """Seconds until the idle trigger wants ``state`` saved, which ``entries`` have led to (0: now); None if there is
    nothing to save.
    """
    if not has_something(entries) or running(entries) is not None:
        return None
    idle = max(0.0, (now - state.updated_at) / _SECOND)
    return max(0.0, state.config.triggers.idle_seconds - idle, too_soon(state, now))


def too_soon(state: State, now: int) -> float:
    """Seconds until the state may be saved by itself."""
    since = (now - state.metrics.last_checkpoint_at) / _SECOND
    return 0.0 if since < 0 else max(0.0, state.config.triggers.min_seconds - since)


def exported(state: State, base: Mapping[str, str], now: Mapping[str, str]) -> Exported:
    """How ``now``, all that a shell exports, differs from ``state``; it was started with ``base`` and the state.

    What a session has set once stays its own, even if it is what ``base`` has, too: the next base may be another.
    """
    env = {
        name: value
        for name, value in now.items()
        if name not in NOT_CARRIED and (base.get(name) != value or name in state.env)
    }
    unset = tuple(sorted({*(name for name in base if name not in NOT_CARRIED), *state.unset} - now.keys()))
    return Exported(
        {name: value for name, value in env.items() if state.env.get(name) != value},
        tuple(sorted(state.env.keys() - env.keys())),
        None if unset == state.unset else unset,
    )


def environment(state: State, base: Mapping[str, str]) -> dict[str, str]:
    """What a shell of the session is started with."""
    return {name: value for name, value in base.items() if name not in state.unset} | dict(state.env)


def relative(root: bytes, directory: str) -> str:
    """``directory`` (absolute, or relative to the root) as `State.cwd` says it."""
    path = os.path.normpath(os.path.join(root, os.fsencode(directory)))
    if path == root:
        return "."
    inside = root.rstrip(b"/") + b"/"
    return os.fsdecode(path.removeprefix(inside))


def absolute(root: bytes, cwd: str) -> bytes:
    """The directory that `State.cwd` says."""
    return os.path.normpath(os.path.join(root, os.fsencode(cwd)))
