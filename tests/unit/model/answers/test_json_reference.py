"""Every field of an answer is documented: docs/reference/json.md has it where it has the command."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.model.answers import commands, experiments, merges, sessions, steps, upkeep, workspace
from holdfast.model.json_encoder import fields, is_described

REFERENCE = Path(__file__).parents[4] / "docs" / "reference"
MODULES = (commands, experiments, merges, sessions, steps, upkeep, workspace)
EVERYWHERE = {workspace.Counts, workspace.NotCaptured, workspace.Paths}
"""The table at the beginning of the page has them."""
SECTIONS: dict[str, list[type]] = {
    "Failures": [workspace.Failed, workspace.Failure, workspace.Process],
    "integrate": [commands.Integrated, commands.ConfigFile],
    "--version": [commands.Version],
    "init": [commands.Initialised],
    "checkpoint": [workspace.MadeCheckpoint],
    "status": [workspace.Status, workspace.StatusWithIgnored],
    "log": [workspace.Log, workspace.RecordedCheckpoint, workspace.Checkpoint, workspace.Event],
    "show": [workspace.CheckpointDetails],
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
    "restore, undo, redo": [workspace.Restored, workspace.RestoredByCommand],
    "run": [steps.Ran, steps.UnansweredTicket],
    "steps": [steps.Steps, steps.Step, steps.StepWithChanges, steps.PathChange, steps.DiscardedSteps],
    "step": [steps.BegunStep, steps.RolledBack, steps.Conflict],
    "barriers": [steps.Barriers, steps.Barrier],
    "safeguard": [steps.Tickets, steps.Ticket, steps.AnsweredTicket],
    "session start": [sessions.Started, sessions.Configuration],
    "session list": [sessions.Sessions],
    "session info": [sessions.SessionInfo],
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
    ],
    "mount": [commands.MountEvent, commands.MountedCommand],
    "export, import": [upkeep.Bundle],
    "forget": [upkeep.Forgotten, upkeep.ForgottenCheckpoint, upkeep.KeptCheckpoint],
    "gc": [upkeep.Collected],
    "verify": [upkeep.Verified, upkeep.Problem],
    "stats": [upkeep.Stats, upkeep.LargePath],
    "store info, store claim": [upkeep.StoreInfo],
    "store probe": [upkeep.StoreProbe, upkeep.ProbeStep],
    "store copy": [upkeep.StoreCopy],
    "doctor": [upkeep.Diagnosis, upkeep.Finding],
    "watch": [commands.WatchEvent, commands.WatchEnd, commands.DetachedWatch, commands.StoppedWatch],
    "completion": [commands.Completion],
    "serve": [commands.Listening, commands.Token, commands.NewToken, commands.Tokens, commands.RevokedToken],
    "mcp": [commands.SocketListening],
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
ELSEWHERE: dict[str, list[type]] = {
    "stdio.md": [workspace.Entry, workspace.Part],
    "../guide/merge.md": [merges.FileRecord, merges.RungAttempt],
}
"""On other pages: the objects that no command prints, and what is recorded of a merge."""


def words(text: str) -> set[str]:
    """What stands in the code of a page."""
    codes = re.findall(r"```.*?```|`[^`]+`", text, flags=re.DOTALL)
    return {word for code in codes for word in re.findall(r"\w+", code)}


def sections() -> dict[str, set[str]]:
    """The words of each section of the page, by its title."""
    parts = re.split(r"^#{2,3} ", (REFERENCE / "json.md").read_text(), flags=re.MULTILINE)
    return {title: words(text) for title, _, text in (part.partition("\n") for part in parts)}


def public(module: ModuleType) -> set[type]:
    """The descriptions of a module."""
    found = {each for each in vars(module).values() if is_described(each) and each.__module__ == module.__name__}
    return {each for each in found if not each.__name__.startswith("_")}


def undocumented(kind: type, known: set[str]) -> list[str]:
    """The fields of ``kind`` that are not among the words; not those that it has from another description."""
    bases = [each for each in kind.__mro__[1:] if is_described(each) and not each.__name__.startswith("_")]
    inherited = {one.key for base in bases for one in fields(base)}
    return [one.key for one in fields(kind) if one.key not in known | inherited]


PAGES = [
    *((title, kind, sections().get(title, set())) for title, kinds in SECTIONS.items() for kind in kinds),
    *((page, kind, words((REFERENCE / page).read_text())) for page, kinds in ELSEWHERE.items() for kind in kinds),
]


@pytest.mark.parametrize(("title", "kind", "known"), PAGES)
def test_every_field_is_documented(title: str, kind: type, known: set[str]) -> None:
    assert not undocumented(kind, known), f"{title} does not say what they are"


def test_every_answer_has_its_place_on_the_page() -> None:
    placed = {kind for _, kind, _ in PAGES} | EVERYWHERE
    assert {kind.__name__ for module in MODULES for kind in public(module) - placed} == set()


def test_a_new_field_of_the_status_is_missed() -> None:
    class Status(workspace.Status):
        stale: bool

    assert undocumented(Status, sections()["status"]) == ["stale"]
