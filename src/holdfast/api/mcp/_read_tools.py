"""The tools that change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast import __version__
from holdfast.api._request_arguments import path_in
from holdfast.api.mcp import _tool_results as tool_results
from holdfast.api.mcp._pagination import decode_cursor, encode_cursor, page
from holdfast.api.mcp._text_content import encode_bytes, whole_characters
from holdfast.api.mcp._tool_results import step_object
from holdfast.model.answers import workspace as answers
from holdfast.model.answers.steps import Barrier, Ticket
from holdfast.model.entries import count_changes
from holdfast.model.json_encoder import encode, encode_all
from holdfast.model.message_text import plural
from holdfast.model.paths import display, parse_display

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.api.mcp._shared_host import SharedHost
    from holdfast.api.mcp._tool_arguments import (
        Compare,
        GetSessionStatus,
        GetUndoHistory,
        ListCheckpoints,
        ListDirectory,
        ReadFile,
    )
    from holdfast.engine.hosting.working_directory import HostedDirectory
    from holdfast.engine.workspace.workspace import Workspace
    from holdfast.model.command_results import Diff
    from holdfast.undo.service import ConflictInfo, StepInfo

MOST_PATCH = 128 << 10
"""Bytes of patches in one page."""
_BARRIERS = 20


class ToolAnswer(NamedTuple):
    """The answer of a tool."""

    value: Mapping[str, Any]
    text: str | None = None
    """For reading; the value itself without."""


def read_file(_host: SharedHost, hosted: HostedDirectory, request: ReadFile) -> ToolAnswer:
    """A page of a file: whole characters, and whole lines where there are any."""
    path = path_in(hosted.path, request.path)
    offset = decode_cursor("bytes", request.cursor, int) or 0
    read = hosted.read_file(path, offset=offset, limit=request.max_bytes)
    content, more = read.content, read.offset + len(read.content) < read.size
    if more and content:
        content = content[: content.rfind(b"\n") + 1] or whole_characters(content)
    text, how = encode_bytes(content)
    value = encode(
        tool_results.FileRead,
        read,
        path=path,
        content=text,
        encoding=how,
        offset=offset,
        bytes=len(content),
        next_cursor=encode_cursor("bytes", offset + len(content)) if more and content else None,
    )
    if how == "utf-8" and not more and not offset:
        return ToolAnswer(value, text)
    said = f"bytes {offset} to {offset + len(content)} of {read.size}" + ("" if how == "utf-8" else ", in Base64")
    rest = f"; cursor of what follows: {value['next_cursor']}" if value["next_cursor"] else ""
    return ToolAnswer(value, f"{text}\n[{said}{rest}]")


def list_directory(_host: SharedHost, hosted: HostedDirectory, request: ListDirectory) -> ToolAnswer:
    """The entries of a directory, sorted by name."""
    path = path_in(hosted.path, request.path)
    behind = parse_display(decode_cursor("entries", request.cursor, str) or "")
    found = hosted.list_directory(path, after=behind, limit=request.limit)
    following = None if found.following is None else encode_cursor("entries", display(found.following))
    return ToolAnswer(encode(tool_results.Listing, found, path=path, entries=found.items, next_cursor=following))


def get_undo_history(_host: SharedHost, hosted: HostedDirectory, request: GetUndoHistory) -> ToolAnswer:
    """The steps, newest first; or one step with its changes."""
    with hosted.workspace() as workspace:
        if request.step is not None:
            step, changes = workspace.step(request.step)
            shown, following = page(
                changes, lambda change: display(change.path), "changes", request.cursor, str, request.limit
            )
            value = step_object(step, shown, _left(workspace, step))
            value["totals"] = {"changes": len(changes)}
            return ToolAnswer(encode(tool_results.History, steps=[value], total=1, next_cursor=following))
        steps = workspace.steps()[::-1]
        shown, following = page(steps, lambda each: each.id, "steps", request.cursor, int, request.limit)
        listed = [step_object(each, left=_left(workspace, each)) for each in shown]
    return ToolAnswer(encode(tool_results.History, steps=listed, total=len(steps), next_cursor=following))


def _left(workspace: Workspace, step: StepInfo) -> Sequence[ConflictInfo]:
    return workspace.conflicts(step.id) if step.state == "partly" else ()


def get_session_status(host: SharedHost, hosted: HostedDirectory, request: GetSessionStatus) -> ToolAnswer:
    """The running commands, the held operations, and the tree's last checkpoint and step."""
    if hosted.access == "read_write":
        hosted.recover()
    value: tool_results.SessionStatus = {
        "version": __version__,
        "directories": encode_all(tool_results.WorkingDirectory, host.host.directories),
        "directory": hosted.index,
        "guarded": False,
        "held": [],
        "barriers": [],
        "recovered": [],
        "last_checkpoint": None,
        "steps": 0,
        "differs": None,
        "unfinished_restore": False,
    }
    if hosted.access == "read_write":
        with hosted.undo_log() as log:
            value["guarded"] = hosted.rules(log).thresholds.asks
        with hosted.workspace() as workspace:
            value["held"] = encode_all(Ticket, workspace.held())
            value["barriers"] = encode_all(Barrier, workspace.barriers()[-_BARRIERS:])
            value["last_checkpoint"] = workspace.log(0).head
            value["steps"] = len(workspace.steps())
            value["unfinished_restore"] = workspace.unfinished() is not None
            if request.compare:
                value["differs"] = encode(answers.Counts, count_changes(workspace.status().changes))
    # Last, because opening the workspace above may itself finish a recovery.
    value["recovered"] = encode_all(tool_results.Recovered, host.recovered)
    return ToolAnswer(value)


def list_checkpoints(_host: SharedHost, hosted: HostedDirectory, request: ListCheckpoints) -> ToolAnswer:
    """The checkpoints, newest first."""
    with hosted.workspace() as workspace:
        found = workspace.log()
    shown, following = page(
        found.checkpoints, lambda each: str(each.id), "checkpoints", request.cursor, str, request.limit
    )
    total = len(found.checkpoints)
    return ToolAnswer(encode(tool_results.Checkpoints, found, checkpoints=shown, total=total, next_cursor=following))


def compare(_host: SharedHost, hosted: HostedDirectory, request: Compare) -> ToolAnswer:
    """How two states differ, a page of files at a time."""
    with hosted.workspace() as workspace:
        paths = [path_in(hosted.path, path) for path in request.paths]
        whole = workspace.diff(request.base, request.target, paths=paths)
        items = _differences(whole)
        shown, following = page(items, lambda item: display(item.path), "files", request.cursor, str, request.limit)
        value: tool_results.Difference = {
            "base": whole.base,
            "target": whole.target,
            "files": [],
            "patch": "",
            "patch_omitted": 0,
            "total": len(items),
            "next_cursor": following,
        }
        if request.format == "patch":
            text, omitted, number = _patch(workspace, shown)
            if number < len(shown):
                shown = shown[:number]
                value["next_cursor"] = encode_cursor("files", display(shown[-1].path))
            value["patch"], value["patch_omitted"] = text, omitted
        value["files"] = [item.row() for item in shown]
        if request.format == "stat":
            for row, stat in zip(value["files"], workspace.diff_stat(_joined(whole, shown)), strict=True):
                row["added"], row["removed"], row["binary"] = stat.added, stat.removed, stat.binary
    return ToolAnswer(value, _reading(value))


class _Difference(NamedTuple):
    """One file of a diff."""

    path: bytes
    before_path: bytes
    status: tool_results.FileStatus
    alone: Diff
    """Of this file."""

    def row(self) -> tool_results.FileDifference:
        return encode(tool_results.FileDifference, self, added=None, removed=None, binary=False)


def _differences(whole: Diff) -> list[_Difference]:
    rest = whole._replace(changes=(), renamed=(), unchanged=0)
    found = [
        _Difference(each.path, each.path, each.status, rest._replace(changes=(each,))) for each in whole.changes
    ] + [_Difference(each.path, each.before_path, "R", rest._replace(renamed=(each,))) for each in whole.renamed]
    return sorted(found, key=lambda item: item.path)


def _joined(whole: Diff, items: Sequence[_Difference]) -> Diff:
    return whole._replace(
        changes=[change for item in items for change in item.alone.changes],
        renamed=[renamed for item in items for renamed in item.alone.renamed],
    )


def _patch(workspace: Workspace, items: Sequence[_Difference]) -> tuple[str, int, int]:
    """The patches of the first of ``items``: the text, how many bytes of the only one were left out, how many files."""
    text = b""
    for number, item in enumerate(items):
        one = b"".join(workspace.patch(item.alone))
        if number and len(text) + len(one) > MOST_PATCH:
            return text.decode(errors="replace"), 0, number
        text += one
        if len(text) > MOST_PATCH:
            kept = text[: text.rfind(b"\n", 0, MOST_PATCH) + 1] or whole_characters(text[:MOST_PATCH])
            return kept.decode(errors="replace"), len(text) - len(kept), number + 1
    return text.decode(errors="replace"), 0, len(items)


def _reading(value: tool_results.Difference) -> str:
    lines: list[str] = []
    if value["patch"]:
        lines.append(value["patch"].rstrip("\n"))
    else:
        for row in value["files"]:
            counts = "" if row["added"] is None else f"  +{row['added']} -{row['removed']}"
            names = row["path"] if row["path"] == row["before_path"] else f"{row['before_path']} -> {row['path']}"
            lines.append(f"{row['status']}  {names}{counts}")
    if value["patch_omitted"]:
        lines.append(f"… {value['patch_omitted']} bytes of this patch left out …")
    notes = [plural(value["total"], "file differs", "files differ")]
    if value["next_cursor"]:
        notes.append(f"cursor of what follows: {value['next_cursor']}")
    return "\n".join([*lines, f"[{'; '.join(notes)}]"])
