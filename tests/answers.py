"""What each command answers with ``--json``, and whether an object is what its description says."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator

from holdfast.model import json_schema
from holdfast.model.answers import commands, experiments, merges, sessions, steps, upkeep, workspace

SECTIONS: dict[str, list[type]] = {
    "Failures": [workspace.Failed, workspace.Failure, workspace.Process],
    "integrate": [commands.Integrated, commands.ConfigFile],
    "--version": [commands.Version],
    "init": [commands.Initialised],
    "checkpoint": [workspace.MadeCheckpoint],
    "status": [workspace.Status, workspace.StatusWithIgnored],
    "log": [workspace.Log, workspace.RecordedCheckpoint, workspace.Checkpoint, workspace.Event, workspace.LogRow],
    "show": [workspace.CheckpointDetails, workspace.LogRowDetails, steps.StepWithChanges],
    "cat": [commands.FileContent],
    "diff": [
        workspace.Diff,
        workspace.AddedFile,
        workspace.DeletedFile,
        workspace.Difference,
        workspace.ModifiedFile,
        workspace.ModeChange,
        workspace.RenamedFile,
        workspace.DiffStats,
    ],
    "restore, undo, redo": [workspace.ChangedTree, workspace.Restored, workspace.RestoredByCommand],
    "run": [steps.Ran, steps.UnansweredTicket],
    "vm status": [commands.VmStatus, commands.RunningMachine],
    "vm reset": [commands.VmReset],
    "steps": [steps.Steps, steps.Step, steps.StepWithChanges, steps.PathChange, steps.DiscardedSteps],
    "step": [steps.BegunStep, steps.RolledBack, steps.Conflict],
    "barriers": [steps.Barriers, steps.Barrier],
    "safeguard": [steps.Tickets, steps.Ticket, steps.AnsweredTicket],
    "session start": [sessions.Started, sessions.SessionConfiguration],
    "session stop": [sessions.StoppedSession],
    "session list": [sessions.Sessions],
    "session info": [sessions.SessionInfo, sessions.BackgroundProcess, commands.RunningMachine],
    "session exec": [sessions.Executed],
    "session history": [sessions.History, sessions.Command],
    "session checkpoint": [sessions.SessionCheckpoint],
    "session branch": [sessions.Branch, sessions.Reference],
    "session branches": [sessions.Branches],
    "session checkout": [sessions.CheckedOut],
    "session fork": [sessions.SessionFork],
    "session delete": [sessions.DeletedSession],
    "session share": [sessions.Shared],
    "session classify": [sessions.Classified],
    "session merge, session pick": [experiments.SessionMerge, experiments.MergeConflict],
    "session bisect": [experiments.Bisected, experiments.TriedState, experiments.BadCommand],
    "session replay": [experiments.Replayed, experiments.RepeatedCommand],
    "experiment": [
        experiments.Experiment,
        experiments.Attempt,
        experiments.AttemptDifference,
        experiments.Statistics,
        experiments.ChangedFiles,
        experiments.RenamedPath,
        experiments.Adopted,
    ],
    "fork": [workspace.Forked, commands.Unmounted],
    "merge": [
        merges.Merged,
        merges.MergePlan,
        merges.MergeCounts,
        merges.Overlap,
        merges.OpenOverlap,
        merges.Foreseen,
        merges.ForeseenRung,
        merges.FileRecord,
        merges.RungAttempt,
    ],
    "mount": [commands.MountEvent, commands.MountedCommand],
    "snapshot take, snapshot show": [commands.TakenSnapshot, commands.Snapshot],
    "snapshot list": [commands.Snapshots],
    "snapshot mount": [commands.SnapshotView],
    "snapshot unmount": [commands.UnmountedSnapshot],
    "snapshot run": [commands.SnapshotCommand],
    "snapshot discard": [commands.DiscardedSnapshot],
    "unmount": [commands.UnmountEvent],
    "image build, image import": [commands.Image],
    "image list": [commands.Images],
    "image remove": [commands.RemovedImage],
    "export, import": [upkeep.Bundle],
    "forget": [upkeep.Forgotten, upkeep.ForgottenCheckpoint, upkeep.KeptCheckpoint],
    "gc": [upkeep.Collected, upkeep.CountDrift],
    "verify": [upkeep.Verified, upkeep.Problem],
    "stats": [upkeep.Stats, upkeep.LargePath],
    "store info, store claim": [upkeep.StoreInfo],
    "store probe": [upkeep.StoreProbe, upkeep.ProbeStep],
    "store copy": [upkeep.StoreCopy],
    "doctor": [upkeep.Diagnosis, upkeep.Finding, upkeep.RepairedCatalog],
    "watch": [commands.WatchEvent, commands.WatchEnd, commands.DetachedWatch, commands.StoppedWatch],
    "completion": [commands.Completion],
    "serve": [commands.Listening, commands.Token, commands.NewToken, commands.Tokens, commands.RevokedToken],
    "mcp": [commands.SocketListening],
    "ui": [commands.UiListening],
    "promote": [
        merges.Promoted,
        merges.Promotions,
        merges.PromotionPlan,
        merges.PromotionOverlap,
        merges.ForeseenOverlap,
        merges.InUse,
        merges.Restarted,
        merges.PromotionStep,
        merges.PromotionSweep,
    ],
}
"""By the sections of docs/reference/json.md, which docs/generate.py writes: what commands print, and what it holds."""


def closed(schema: Any) -> Any:
    """``schema`` without a place for fields that it does not name."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(each) for name, each in schema.items()}
    return found | {"additionalProperties": False} if isinstance(schema.get("properties"), dict) else found


def validator(schema: Any, definitions: Any = None) -> Draft202012Validator:
    """Tells what is wrong with an object, with fields that the schema does not name as well."""
    whole = closed({**schema, "$defs": definitions or {}})
    Draft202012Validator.check_schema(whole)
    return Draft202012Validator(whole)


def wrong(value: Any, kind: Any) -> list[str]:
    """What is wrong with ``value`` as an object of ``kind``."""
    (reference,), parts = json_schema.components([kind], "#/$defs/{name}")
    return [f"{error.json_path}: {error.message}" for error in validator(reference, parts).iter_errors(value)]


def check_command(command: str, value: object) -> None:
    """``value`` is one of the objects of a command, or of a family of commands."""
    titles = [title for title in SECTIONS if any(f"{name} ".startswith(f"{command} ") for name in title.split(", "))]
    found = {kind.__name__: wrong(value, kind) for title in titles for kind in SECTIONS[title]}
    assert [] in found.values(), found
