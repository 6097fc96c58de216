"""The virtual machines of a workspace: the states of their sessions as a tree, and what runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.api.web.graph import Lanes
from holdfast.api.web.words import lines_text, moment, path_text, short
from holdfast.engine.sessions.machines import machines
from holdfast.model.message_text import described_machine, size, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.api.web.addresses import Addresses
    from holdfast.api.web.graph import GraphRow
    from holdfast.api.web.words import Moment
    from holdfast.engine.sessions.machines import MachineSession
    from holdfast.engine.workspace.workspace import Workspace
    from holdfast.model.machine import RunningMachine
    from holdfast.store.catalog.session_records import StoredCheckpoint

_MOST_STATES: Final = 300

_KINDS: Final = {"auto": "saved", "manual": "checkpoint", "fork": "forked", "branch": "branch"}


class MachineState(NamedTuple):
    """A state that the session of a machine was saved in."""

    name: str
    at: Moment
    session: str
    kind: str
    message: str
    spawned_from: str
    """Of the first state of a fork: the session that it was forked from."""
    files: str
    """The address of its files."""
    short: str
    is_newest: bool
    """The session is at this state."""
    machine: str
    """The running machine, if the session is at this state; else empty."""
    place: str
    graph: GraphRow


class MachineRun(NamedTuple):
    """A machine that runs for one run."""

    run: str
    address: str
    machine: str
    since: Moment


class MachinesPage(NamedTuple):
    """The page."""

    states: Sequence[MachineState]
    """The newest first."""
    more: int
    """Older states that are left out."""
    lane_count: int
    runs: Sequence[MachineRun]
    disk: str
    """The size of the disk; empty without one."""
    sessions: int
    refresh: str


def machines_page(workspace: Workspace, addresses: Addresses) -> MachinesPage:
    """The machines that there are now."""
    found = machines(workspace)
    every = [(one, state) for one in found.sessions for state in one.states]
    every.sort(key=lambda each: each[1].created_at)  # stable: states saved at the same time keep their order
    names = {state.hash: one.info.id for one, state in every}
    lanes = Lanes()
    rows = [
        _state(addresses, lanes, one, state, names.get(state.parent) if state.parent else None)
        for one, state in reversed(every[-_MOST_STATES:])
    ]
    return MachinesPage(
        states=rows,
        more=max(0, len(every) - _MOST_STATES),
        lane_count=max((row.graph.width for row in rows), default=2),
        runs=[_run(addresses, one) for one in found.runs],
        disk="" if found.disk_bytes is None else size(found.disk_bytes),
        sessions=len(found.sessions),
        refresh=addresses.page("machines"),
    )


def _state(
    addresses: Addresses, lanes: Lanes, session: MachineSession, state: StoredCheckpoint, parent: str | None
) -> MachineState:
    info = session.info
    is_newest = state.hash == info.newest
    return MachineState(
        name=state.hash,
        at=moment(state.created_at),
        session=visible(info.id),
        kind=_KINDS[state.kind],
        message=lines_text(state.message),
        spawned_from=visible(parent) if parent not in (None, info.id) else "",
        files=addresses.page(f"state/{state.tree}"),
        short=short(state.tree),
        is_newest=is_newest,
        machine="" if not is_newest or info.machine is None else _described(info.machine),
        place="" if info.root is None else path_text(info.root),
        graph=lanes.state(state.hash, state.parent if parent is not None else None),
    )


def _run(addresses: Addresses, one: RunningMachine) -> MachineRun:
    run = visible(one.run)
    return MachineRun(run, addresses.page(f"run/{run}"), _described(one), moment(int(one.started_at * 1_000_000)))


def _described(one: RunningMachine) -> str:
    return visible(f"{described_machine(one)}, {'its disk stays' if one.persistent else 'its disk goes with it'}")
