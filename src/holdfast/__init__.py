"""Holdfast: a memory for the directory that AI agents work in.

    import holdfast

    with holdfast.init("project") as workspace:
        saved = workspace.checkpoint("before the refactoring")
        ...
        workspace.restore(saved.checkpoint.id)

`init` and `open` give a `Workspace`; everything is a method of it. `open_home` gives the `Home`, for what concerns all
workspaces, and `Sessions` has the shells that remember. The rest of ``__all__`` are the arguments, results and errors
of those methods. Names are loaded when they are first used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in `holdfast.model.fast_typing`, which need not be loaded for this

if TYPE_CHECKING:
    from holdfast.engine.diffs.patch_text import FileStat
    from holdfast.engine.experiments.attempts import Attempt, Comparison, Order, Outcome
    from holdfast.engine.experiments.experiment import experiment
    from holdfast.engine.forks.checkpoint_mount import Mounted
    from holdfast.engine.history.retention import Policy
    from holdfast.engine.promotion.manager import Promotions
    from holdfast.engine.running.run import RunResult
    from holdfast.engine.sessions.registry import Sessions
    from holdfast.engine.sessions.session import Session
    from holdfast.engine.upkeep.doctor import Finding, diagnose, repair_catalog
    from holdfast.engine.workspace.home import Home, open_home
    from holdfast.engine.workspace.workspace import Workspace, init, open  # noqa: A004 - `holdfast.open` reads as what it does
    from holdfast.model.checkpoint import Checkpoint, HistoryEvent, Provenance
    from holdfast.model.command_results import (
        CheckpointResult,
        Details,
        Diff,
        Forgotten,
        ForkResult,
        Log,
        Renamed,
        RestoreResult,
        Status,
    )
    from holdfast.model.config.settings import Isolation
    from holdfast.model.entries import Change, Counts, Entry, NotCaptured
    from holdfast.model.errors import (
        ChannelError,
        ConfigError,
        ConnectionLostError,
        EscapeError,
        FormatError,
        HeldError,
        HoldfastError,
        IntegrityError,
        LockedError,
        MachineError,
        NotFoundError,
        QuotaError,
        RefusedError,
        StorageError,
        UnsupportedError,
        UsageError,
    )
    from holdfast.model.session_results import CheckedOut, Deleted, SessionInfo, Swept
    from holdfast.model.session_types import (
        CommandEntry,
        CommandResult,
        Metrics,
        SessionCheckpoint,
        SessionConfig,
        SessionRef,
        State,
        Triggers,
    )
    from holdfast.model.timeline import TimelineItem, TimelinePage
    from holdfast.store.catalog.usage_statistics import Stats
    from holdfast.store.catalog_repair import RepairedCatalog
    from holdfast.store.collection.collector import Collected
    from holdfast.store.collection.count_correction import CountDrift
    from holdfast.store.verification.verifier import Problem, Verified
    from holdfast.undo.service import BarrierInfo, ConflictInfo, PathChange, StepInfo, TicketInfo, UndoReport

__version__ = "0.1.0"

__all__ = [
    "Attempt",
    "BarrierInfo",
    "Change",
    "ChannelError",
    "CheckedOut",
    "Checkpoint",
    "CheckpointResult",
    "Collected",
    "CommandEntry",
    "CommandResult",
    "Comparison",
    "ConfigError",
    "ConflictInfo",
    "ConnectionLostError",
    "CountDrift",
    "Counts",
    "Deleted",
    "Details",
    "Diff",
    "Entry",
    "EscapeError",
    "FileStat",
    "Finding",
    "Forgotten",
    "ForkResult",
    "FormatError",
    "HeldError",
    "HistoryEvent",
    "HoldfastError",
    "Home",
    "IntegrityError",
    "Isolation",
    "LockedError",
    "Log",
    "MachineError",
    "Metrics",
    "Mounted",
    "NotCaptured",
    "NotFoundError",
    "Order",
    "Outcome",
    "PathChange",
    "Policy",
    "Problem",
    "Promotions",
    "Provenance",
    "QuotaError",
    "RefusedError",
    "Renamed",
    "RepairedCatalog",
    "RestoreResult",
    "RunResult",
    "Session",
    "SessionCheckpoint",
    "SessionConfig",
    "SessionInfo",
    "SessionRef",
    "Sessions",
    "State",
    "Stats",
    "Status",
    "StepInfo",
    "StorageError",
    "Swept",
    "TicketInfo",
    "TimelineItem",
    "TimelinePage",
    "Triggers",
    "UndoReport",
    "UnsupportedError",
    "UsageError",
    "Verified",
    "Workspace",
    "__version__",
    "diagnose",
    "experiment",
    "init",
    "open",
    "open_home",
    "repair_catalog",
]

_ELSEWHERE = {
    "CheckedOut": "model.session_results",
    "Deleted": "model.session_results",
    "CommandEntry": "model.session_types",
    "CommandResult": "model.session_types",
    "Metrics": "model.session_types",
    "Session": "engine.sessions.session",
    "SessionCheckpoint": "model.session_types",
    "SessionConfig": "model.session_types",
    "SessionInfo": "model.session_results",
    "SessionRef": "model.session_types",
    "Sessions": "engine.sessions.registry",
    "State": "model.session_types",
    "Swept": "model.session_results",
    "Triggers": "model.session_types",
    "BarrierInfo": "undo.service",
    "ConflictInfo": "undo.service",
    "PathChange": "undo.service",
    "RunResult": "engine.running.run",
    "StepInfo": "undo.service",
    "TicketInfo": "undo.service",
    "TimelineItem": "model.timeline",
    "TimelinePage": "model.timeline",
    "UndoReport": "undo.service",
    "Attempt": "engine.experiments.attempts",
    "Change": "model.entries",
    "Checkpoint": "model.checkpoint",
    "CheckpointResult": "model.command_results",
    "Collected": "store.collection.collector",
    "Comparison": "engine.experiments.attempts",
    "CountDrift": "store.collection.count_correction",
    "Counts": "model.entries",
    "Entry": "model.entries",
    "FileStat": "engine.diffs.patch_text",
    "Finding": "engine.upkeep.doctor",
    "HistoryEvent": "model.checkpoint",
    "Home": "engine.workspace.home",
    "Isolation": "model.config.settings",
    "Mounted": "engine.forks.checkpoint_mount",
    "NotCaptured": "model.entries",
    "Order": "engine.experiments.attempts",
    "Outcome": "engine.experiments.attempts",
    "Policy": "engine.history.retention",
    "Problem": "store.verification.verifier",
    "Promotions": "engine.promotion.manager",
    "Provenance": "model.checkpoint",
    "Stats": "store.catalog.usage_statistics",
    "Verified": "store.verification.verifier",
    "Workspace": "engine.workspace.workspace",
    "diagnose": "engine.upkeep.doctor",
    "repair_catalog": "engine.upkeep.doctor",
    "RepairedCatalog": "store.catalog_repair",
    "experiment": "engine.experiments.experiment",
    "init": "engine.workspace.workspace",
    "open": "engine.workspace.workspace",
    "open_home": "engine.workspace.home",
}
"""The module below ``holdfast`` that defines a name, for names that are neither errors nor command results."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    room = _ELSEWHERE.get(name) or ("model.errors" if name.endswith("Error") else "model.command_results")
    value = globals()[name] = getattr(__import__(f"holdfast.{room}", fromlist=(name,)), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
