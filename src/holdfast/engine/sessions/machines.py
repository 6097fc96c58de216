"""The descent of a workspace's virtual machines: sessions that run in one, and their forks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.engine.sessions.registry import Sessions
from holdfast.engine.sessions.state.journal import SessionLine
from holdfast.engine.upkeep.session_checkpoint_tiers import SessionCheckpointTiers
from holdfast.engine.workspace.home import context_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.workspace.workspace import Workspace
    from holdfast.model.machine import RunningMachine
    from holdfast.model.session_results import SessionInfo
    from holdfast.store.catalog.session_records import StoredCheckpoint

_MOST_LOOKED_AT: Final = 50
"""Sessions, where it is only asked whether one runs in a machine."""


class MachineSession(NamedTuple):
    """A session whose commands run in a virtual machine of its own."""

    info: SessionInfo
    states: Sequence[StoredCheckpoint]
    """The states that it was saved in, oldest first. The parent of a fork's first one is another session's."""


class Machines(NamedTuple):
    """The virtual machines of a workspace."""

    sessions: Sequence[MachineSession]
    """The sessions in the workspace and all their forks, oldest first."""
    runs: Sequence[RunningMachine]
    """The machines that run for a single run."""
    disk_bytes: int | None
    """The size of the disk of the workspace's machines; None without one."""


def has_machines(workspace: Workspace) -> bool:
    """Whether there is any: one that runs, a disk of one, or a session that runs in one."""
    context = context_of(workspace)
    status = workspace.vm_status()
    if status.running or status.disk_bytes is not None:
        return True
    if not context.catalog.has_sessions(context.workspace.id):
        return False
    tiers = SessionCheckpointTiers(context)
    records = [one for one in tiers.rows.list(context.workspace.id) if one.status == "live"]
    return any(
        SessionLine(tiers, one, context.clock).load().state.config.isolation == "vm"
        for one in records[-_MOST_LOOKED_AT:]
    )


def machines(workspace: Workspace) -> Machines:
    """The machines that there are now. Takes no lock."""
    rows = SessionCheckpointTiers(context_of(workspace)).rows
    with Sessions(home=workspace.home) as sessions:
        family = sessions.family(workspace.path)
    found = [
        MachineSession(one, rows.checkpoints(one.id))
        for one in family
        if one.state is not None and one.state.config.isolation == "vm"
    ]
    own = {one.info.machine.run for one in found if one.info.machine is not None}
    status = workspace.vm_status()
    return Machines(found, [one for one in status.running if one.run not in own], status.disk_bytes)
