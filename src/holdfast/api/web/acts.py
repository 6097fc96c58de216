"""The acts of the page: undo, redo, restore, fork, label, forget, and adopting an attempt.

Each act is planned first, by the engine's dry run, and its page shows the plan. The form carries it out once, and only
if the plan is still the same. The outcome is a page of its own, so that a reload repeats nothing.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shlex
import threading
import time
from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.api.web.diff_page import FileViews, items_of
from holdfast.api.web.words import lines_text, path_text, short
from holdfast.engine.diffs.git_patch import split_lines
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError, UsageError
from holdfast.model.message_text import listed, named_steps, plural, size, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from holdfast.api.web.addresses import Addresses, Query
    from holdfast.api.web.diff_page import FileView
    from holdfast.engine.diffs.tree_diff import PlannedDiff
    from holdfast.engine.merging.partial_restore import RestoreFile, RestorePart
    from holdfast.engine.workspace.workspace import Workspace
    from holdfast.model.command_results import RestoreResult
    from holdfast.model.entries import NotCaptured

_MOST_PATHS: Final = 500
_MOST_PATCHES: Final = 60
_MOST_PATCH_LINES: Final = 3000
"""Of all files on a page together."""
_PATCH_SECONDS: Final = 10.0
"""For so long files are made ready to be shown: each of them may be made to take as long as can be."""
_MOST_FILES_CHOSEN: Final = 300
"""Files of which parts can be chosen on one page."""
_MOST_OUTCOMES: Final = 200
_MOST_NONCE: Final = 64


class StalePlanError(Exception):
    """The plan has changed since it was shown, and must be shown again. Nothing was done."""


class ChangedPath(NamedTuple):
    """A path that would be changed, or was."""

    letter: str
    path: str
    note: str = ""


class PatchLine(NamedTuple):
    """A line of a patch."""

    kind: str
    """``added``, ``removed``, ``head`` or ``same``"""
    text: str


class ChoicePart(NamedTuple):
    """A part of a file that can be chosen."""

    name: str
    """The value in the form that shows that it was chosen."""
    text: str
    """The effect of choosing it."""
    lines: Sequence[PatchLine]
    more: int


class ChoiceFile(NamedTuple):
    """A file of which parts can be chosen."""

    name: str
    path: str
    parts: Sequence[ChoicePart]


class Field(NamedTuple):
    """A value that the plan still needs."""

    name: str
    label: str
    value: str
    hint: str


class Link(NamedTuple):
    """Where to go from here."""

    text: str
    address: str


class Outcome(NamedTuple):
    """The outcome of an act."""

    title: str
    lines: Sequence[str] = ()
    paths: Sequence[ChangedPath] = ()
    more: int = 0
    left: Sequence[ChangedPath] = ()
    """Paths that were not changed, each with its reason."""
    hint: str = ""
    links: Sequence[Link] = ()
    way_back: Link | None = None
    command: str = ""
    """The command that takes it back."""
    is_refusal: bool = False


class Act(NamedTuple):
    """An act, as its page shows it."""

    name: str
    title: str
    address: str
    """Of this page; also where the form is sent to."""
    button: str
    """Empty: there is nothing to carry out."""
    carry_out: Callable[[Query], Outcome]
    """Carry out the plan that was shown, with the form. Raises `StalePlanError`, and as the engine does."""
    fingerprint: str = ""
    lines: Sequence[str] = ()
    paths: Sequence[ChangedPath] = ()
    more: int = 0
    patches: Sequence[FileView] = ()
    unpatched: int = 0
    """Files whose patch is left out."""
    unknown: Sequence[str] = ()
    """More paths that would change, of which no checkpoint has the new content."""
    unknown_more: int = 0
    warning: str = ""
    fields: Sequence[Field] = ()
    hidden: Sequence[tuple[str, str]] = ()
    """Hidden values of the form."""
    files: Sequence[ChoiceFile] = ()
    files_more: int = 0
    links: Sequence[Link] = ()


class Outcomes:
    """Outcomes of the last acts, by the number of their form; each form is carried out once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Outcome | None] = OrderedDict()

    def new_number(self) -> str:
        """A number for a form."""
        return secrets.token_urlsafe(12)

    def begin(self, number: str) -> bool:
        """True if the act of this form must be carried out; False if it was, or is in progress. Raises `UsageError`."""
        if not 0 < len(number) <= _MOST_NONCE:
            raise UsageError("this form has no number")
        with self._lock:
            if number in self._kept:
                return False
            self._kept[number] = None
            while len(self._kept) > _MOST_OUTCOMES:
                self._kept.popitem(last=False)
            return True

    def abandon(self, number: str) -> None:
        """Nothing was done: the same form may be sent again."""
        with self._lock:
            self._kept.pop(number, None)

    def end(self, number: str, outcome: Outcome) -> None:
        """Keep the outcome."""
        with self._lock:
            self._kept[number] = outcome

    def get(self, number: str) -> Outcome | None:
        """The outcome; None while the act is in progress. Raises `NotFoundError`."""
        with self._lock:
            if number not in self._kept:
                raise NotFoundError("this server does not know any more what came of it", hint="the timeline tells")
            return self._kept[number]


def plan(workspace: Workspace, addresses: Addresses, name: str, query: Query) -> Act:
    """The plan of the act at an address; nothing is carried out. Raises the engine's refusals unchanged."""
    match name:
        case "restore":
            return _restore(workspace, addresses, query)
        case "parts":
            return _parts(workspace, addresses, query)
        case "undo" | "redo":
            return _reversal(workspace, addresses, name, query)
        case "fork":
            return _fork(workspace, addresses, query)
        case "label":
            return _label(workspace, addresses, query)
        case "forget":
            return _forget(workspace, addresses, query)
        case "adopt":
            return _adopt(workspace, addresses, query)
        case _:
            raise NotFoundError("there is no such page")


def refusal(addresses: Addresses, name: str, query: Query, error: HoldfastError) -> Outcome:
    """The page's text for an act that the engine refuses, with a way to force it where the engine has one."""
    links: list[Link] = []
    if name in ("undo", "redo") and "--force" in (error.hint or "") and not _is_forced(query):
        links.append(Link("Show what --force would do", _address(addresses, name, query, force="yes")))
    message = visible(error.message)
    return Outcome(
        message if isinstance(error, RefusedError) else f"This could not be done: {message}",
        hint=visible(error.hint or ""),
        links=links,
        is_refusal=True,
    )


def _is_forced(query: Query) -> bool:
    return query.choice("force", ("", "yes")) == "yes"


def _address(addresses: Addresses, name: str, query: Query, *, force: str = "") -> str:
    """The address of an undo or redo."""
    return addresses.page(
        f"act/{name}",
        count=query.text("count"),
        run=query.text("run"),
        step=query.text("step"),
        to=query.text("to"),
        force=force or query.text("force"),
    )


# -- what a plan shows ------------------------------------------------------------------------------------------------


def _planned(workspace: Workspace, addresses: Addresses, act: Act, planned: RestoreResult) -> Act:
    """``act`` with the result of a dry run, and the patch as far as checkpoints hold it."""
    diff = workspace.planned_diff(planned)
    patches, unpatched = _patches(addresses, diff)
    rows = _changed(planned)
    lines = [_counted(planned, "would be "), *act.lines]
    lines += [f"Steps {listed(group)} depend on each other, and would be taken together." for group in planned.together]
    return act._replace(
        fingerprint=_fingerprint(planned, diff),
        button=act.button if rows or planned.steps else "",
        lines=lines if rows or planned.steps else ["There is nothing to change: the tree is like this already."],
        paths=rows[:_MOST_PATHS],
        more=max(0, len(rows) - _MOST_PATHS),
        patches=patches,
        unpatched=unpatched,
        unknown=[path_text(path) for path in diff.unknown[:_MOST_PATHS]],
        unknown_more=max(0, len(diff.unknown) - _MOST_PATHS),
    )


def _counted(result: RestoreResult, verb: str) -> str:
    written = f"{plural(len(result.written), 'file')} {verb}written"
    return f"{written}, {len(result.deleted):,} {verb}deleted."


def _changed(result: RestoreResult) -> list[ChangedPath]:
    rows = [(path, result.letters.get(path, "M")) for path in result.written]
    rows = sorted([*rows, *((path, "D") for path in result.deleted)])
    return [ChangedPath(letter, path_text(path)) for path, letter in rows]


def _fingerprint(planned: RestoreResult, diff: PlannedDiff) -> str:
    """A text that differs when the act would do something else, or to another tree."""
    changes = [
        (path, before and (before.hash, before.mode), after and (after.hash, after.mode))
        for path, before, after in diff.diff.changes
    ]
    renamed = [(one.before_path, one.path, one.before.hash, one.after.hash) for one in diff.diff.renamed]
    said = repr((planned.checkpoint, planned.steps, planned.written, planned.deleted, changes, renamed))
    return _digest(said.encode())


def _digest(*parts: bytes) -> str:
    # With its length, since two lists could join to the same text.
    return hashlib.blake2b(b"".join(b"%d:%s" % (len(one), one) for one in parts), digest_size=12).hexdigest()


def _patches(addresses: Addresses, planned: PlannedDiff) -> tuple[list[FileView], int]:
    """The patches of the files, as far as there is room, and the number of files left out."""
    items, views = items_of(planned.diff), FileViews(planned.contents, addresses)
    patches: list[FileView] = []
    left, until = _MOST_PATCH_LINES, time.monotonic() + _PATCH_SECONDS
    for item in items[:_MOST_PATCHES]:
        if left <= 0 or time.monotonic() > until:
            break
        patches.append(views.view(item))
        left -= sum(len(hunk.rows) for hunk in patches[-1].hunks)
    return patches, len(items) - len(patches)


def _patch_lines(text: bytes, most: int) -> tuple[list[PatchLine], int]:
    lines = split_lines(text)
    return [_patch_line(line) for line in lines[:most]], max(0, len(lines) - most)


_KINDS: Final = {"+": "added", "-": "removed", " ": "same"}


def _patch_line(line: bytes) -> PatchLine:
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    kind = "head" if text.startswith(("+++ ", "--- ")) else _KINDS.get(text[:1], "head")
    return PatchLine(kind, lines_text(text))


# -- outcomes ---------------------------------------------------------------------------------------------------------


def _outcome(addresses: Addresses, result: RestoreResult | None, verb: str) -> Outcome:
    """The outcome of a restore, an undo or a redo."""
    if result is None:
        return Outcome("Nothing was changed: the tree has all of it.")
    rows = _changed(result)
    by = f" by {named_steps(result.steps)}" if result.steps else ""
    to = f" to {short(result.checkpoint)}" if result.rescue != result.checkpoint or not by else ""
    lines = [_counted(result, "")] if rows else []
    lines += [f"Steps {listed(group)} depend on each other, and were taken together." for group in result.together]
    if result.rescue and result.rescue != result.checkpoint:
        lines.append(f"Checkpoint {short(result.rescue)} holds the state before.")
    is_done = rows or (result.steps and not result.skipped)
    command = result.undo_command or ""
    return Outcome(
        f"{verb}{by}{to}" if is_done else "Nothing was changed",
        lines,
        rows[:_MOST_PATHS],
        max(0, len(rows) - _MOST_PATHS),
        left=_left(result.skipped),
        way_back=_way_back(addresses, command),
        command=command,
        is_refusal=bool(result.skipped),
    )


def _left(items: Iterable[NotCaptured]) -> list[ChangedPath]:
    return [ChangedPath("", path_text(one.path), visible(one.reason)) for one in islice(items, _MOST_PATHS)]


def _way_back(addresses: Addresses, command: str) -> Link | None:
    """The page of the act that a command names; None if there is no page for it."""
    match shlex.split(command):
        case ["holdfast", "undo" | "redo" as verb]:
            return Link(f"{verb.capitalize()} it", addresses.page(f"act/{verb}"))
        case ["holdfast", "undo" | "redo" as verb, number] if number.isdigit():
            return Link(f"{verb.capitalize()} these changes", addresses.page(f"act/{verb}", count=number))
        case ["holdfast", "undo" as verb, "--run", run]:
            return Link("Undo the run", addresses.page(f"act/{verb}", run=run))
        case ["holdfast", "undo" | "redo" as verb, *options] if set(options[::2]) == {"--step"}:
            return Link(f"{verb.capitalize()} it", addresses.page(f"act/{verb}", step=",".join(options[1::2])))
        case ["holdfast", "restore", state, path]:
            return Link("Restore it as it was", addresses.page("act/restore", to=state, path=os.fsencode(path)))
        case _:
            return None


# -- restoring --------------------------------------------------------------------------------------------------------


def _restore(workspace: Workspace, addresses: Addresses, query: Query) -> Act:
    to, path = workspace.resolve(query.text("to") or "@"), query.path("path")
    paths = [path] if path else []
    what = f"{path_text(path)} as {short(to)} has it" if path else f"the state {short(to)}"

    def carry_out(_: Query) -> Outcome:
        return _outcome(addresses, workspace.restore(to, paths), "Restored")

    act = Act(
        name="restore",
        title=f"Restore {what}",
        address=addresses.page("act/restore", to=to, path=path),
        button="Restore",
        carry_out=carry_out,
        lines=["Unsaved changes are saved in a checkpoint first, and this can be undone."],
        links=[Link("Choose files and lines", addresses.page("act/parts", to=to, path=path))],
    )
    return _planned(workspace, addresses, act, workspace.restore(to, paths, dry_run=True))


_PARTS: Final = {
    "add": "Bring this file back",
    "delete": "Delete this file",
    "whole": "Restore this file",
    "mode": "Restore the permissions",
    "hunk": "Restore these lines",
}


def _parts(workspace: Workspace, addresses: Addresses, query: Query) -> Act:
    to, path = workspace.resolve(query.text("to") or "@"), query.path("path")
    found = workspace.restore_differences(to, [path] if path else [])
    every = iter(found.files())
    files = list(islice(every, _MOST_FILES_CHOSEN))
    more = sum(1 for _ in every)
    named = [(_file_name(file), file) for file in files]

    def carry_out(form: Query) -> Outcome:
        wanted = {*form.texts("part"), *form.texts("file")}
        chosen: list[tuple[RestoreFile, list[RestorePart]]] = []
        known: set[str] = set()
        for name, file in named:
            parts = [(_part_name(name, at), part) for at, part in enumerate(file.parts)]
            taken = [part for each, part in parts if name in wanted or each in wanted]
            known |= {name, *(each for each, _ in parts)}
            if taken:
                chosen.append((file, taken))
        if wanted - known:
            raise StalePlanError("Files have changed since you looked. These are the differences now.")
        if not chosen:
            raise StalePlanError("Nothing is chosen: tick the files and lines to restore.")
        return _outcome(addresses, workspace.restore_parts(found.target, chosen), "Restored in part")

    return Act(
        name="parts",
        title=f"Choose what to restore from {short(to)}",
        address=addresses.page("act/parts", to=to, path=path),
        button="Restore the ticked parts" if files else "",
        carry_out=carry_out,
        lines=["Ticked changes are made to the tree; all else stays. It is saved first, and this can be undone."]
        if files
        else ["There is nothing to restore: the tree is like this already."],
        files=list(_choices(named)),
        files_more=more,
        links=[Link("Restore all of it", addresses.page("act/restore", to=to, path=path))] if files else [],
    )


def _choices(named: Sequence[tuple[str, RestoreFile]]) -> Iterator[ChoiceFile]:
    left = _MOST_PATCH_LINES
    for name, file in named:
        parts: list[ChoicePart] = []
        for at, part in enumerate(file.parts):
            lines, more = _patch_lines(part.text, max(left, 0))
            left -= len(lines)
            parts.append(ChoicePart(_part_name(name, at), _PARTS[part.kind], lines, more))
        yield ChoiceFile(name, " and ".join(path_text(one.path) for one in (file.change, *file.logs)), parts)


def _file_name(file: RestoreFile) -> str:
    """An identifier of a file with its content before and after: another content gives another identifier."""
    sides = [b"" if one is None else b"%s %o" % (one.hash, one.mode) for one in file.change[1:]]
    return _digest(file.change.path, *sides)


def _part_name(file: str, at: int) -> str:
    return f"{file}.{at}"


# -- back and forth ---------------------------------------------------------------------------------------------------


def _reversal(workspace: Workspace, addresses: Addresses, name: str, query: Query) -> Act:
    is_undo = name == "undo"
    count, force = query.number("count", 1, 1_000_000), _is_forced(query)
    run = query.text("run") or None
    to = query.number("to", 0, 999_999_999) or None
    steps = _numbers(query.text("step"))
    if not is_undo and (run or to):
        raise UsageError("redo takes a number of changes, or steps")

    def go(*, dry_run: bool) -> RestoreResult:
        if is_undo:
            return workspace.undo(count, to=to, step=steps, run=run, force=force, dry_run=dry_run)
        return workspace.redo(count, step=steps, force=force, dry_run=dry_run)

    def carry_out(_: Query) -> Outcome:
        return _outcome(addresses, go(dry_run=False), "Went back" if is_undo else "Went forward")

    verb = "Undo" if is_undo else "Redo"
    if run:
        title = f"{verb} the run {short(visible(run))}"
    elif to:
        title = f"{verb} all since before prompt:{to}"
    elif steps:
        title = f"{verb} {named_steps(steps)}"
    else:
        title = f"{verb} the newest {'change' if count == 1 else f'{count:,} changes'}"
    planned = go(dry_run=True)
    by = f"By {named_steps(planned.steps)}, " if planned.steps else "To "
    what = "ignored files included" if planned.steps else f"the state {short(planned.checkpoint)}"
    back = f"`holdfast {'redo' if is_undo else 'undo'}` takes this back"
    lines = [f"{by}{what}. Unsaved changes are saved first; {back}."]
    if not force:
        lines.append("It is refused if other processes have changed the same files since: nothing is lost then.")
    act = Act(
        name=name,
        title=title,
        address=_address(addresses, name, query),
        button=verb if not force else f"{verb}, and overwrite the changes of others",
        carry_out=carry_out,
        lines=lines,
        warning="With --force, files that other processes have changed since are overwritten, and ignored files among "
        "them are in no checkpoint."
        if force
        else "",
    )
    return _planned(workspace, addresses, act, planned)


def _numbers(text: str) -> list[int] | None:
    """Steps: ``3,4-7``; None for an empty text. Raises `UsageError`."""
    if not text:
        return None
    found: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part[1:].partition("-")
            begin = int(part[:1] + first)
            end = int(last) if dash else begin
            if not 0 <= end - begin <= _MOST_STEPS:
                raise ValueError
            found += range(begin, end + 1)
    except ValueError:
        raise UsageError(f"{text!r} are no steps") from None
    return found


_MOST_STEPS: Final = 100_000


# -- fork, label, forget ----------------------------------------------------------------------------------------------


def _fork(workspace: Workspace, addresses: Addresses, query: Query) -> Act:
    of, directory = workspace.resolve(query.text("of") or "@"), query.text("directory")
    checkpoint = workspace.show(of).checkpoint

    def carry_out(_: Query) -> Outcome:
        done = workspace.fork(of, directory)
        return Outcome(
            f"Forked {short(done.source)} into {path_text(done.path)}",
            [f"{plural(done.written, 'file')} written.", "The fork is a workspace of its own: delete it to undo this."],
        )

    act = Act(
        name="fork",
        title=f"Fork {short(of)}",
        address=addresses.page("act/fork", of=of, directory=directory),
        button="",
        carry_out=carry_out,
        lines=["A fork is this state in a directory of its own, a workspace with its own history."],
        fields=[Field("directory", "Directory", directory, "a full path; it must be empty, or not exist")],
        hidden=[("of", of)],
    )
    if not directory:
        return act
    path = os.fsencode(directory)
    if not os.path.isabs(path):
        raise UsageError(f"{path_text(path)} is no full path", hint="begin it with a slash")
    if os.path.lexists(path) and (not os.path.isdir(path) or os.listdir(path)):
        raise RefusedError(
            f"{path_text(path)} is not empty",
            hint="fork into a directory that does not exist or is empty",
        )
    said = f"{plural(checkpoint.total_files, 'file')} ({size(checkpoint.total_bytes)}) would be written into"
    return act._replace(
        button="Fork",
        fingerprint=_digest(of.encode(), path),
        lines=[f"{said} {path_text(path)}.", *act.lines],
    )


def _label(workspace: Workspace, addresses: Addresses, query: Query) -> Act:
    of, label = workspace.resolve(query.text("of") or "@"), query.text("label")
    labels = workspace.show(of).checkpoint.labels

    def carry_out(_: Query) -> Outcome:
        done = workspace.label(of, label)
        state = Link("The state", addresses.page(f"state/{done.id}"))
        return Outcome(f"{short(done.id)} has the label {visible(label)}", links=[state])

    has = f"It has {plural(len(labels), 'label')}: {', '.join(map(visible, labels))}. " if labels else ""
    act = Act(
        name="label",
        title=f"Label {short(of)}",
        address=addresses.page("act/label", of=of, label=label),
        button="",
        carry_out=carry_out,
        lines=[f"{has}A state with a label is kept by the rules that thin out the history."],
        fields=[Field("label", "Label", label, "by which every command finds the state")],
        hidden=[("of", of)],
    )
    if not label:
        return act
    from holdfast.engine.history.revisions import check_label

    check_label(label)
    if label in labels:
        return act._replace(lines=[f"{short(of)} has the label {visible(label)} already."])
    try:
        other = workspace.resolve(label)
    except NotFoundError:
        other = None
    shared = [] if other is None else [f"{short(other)} has this label as well: the name means the newer state."]
    return act._replace(
        button="Label",
        fingerprint=_digest(of.encode(), label.encode(), repr((labels, other)).encode()),
        lines=[f"{short(of)} would have the label {visible(label)}.", *shared, *act.lines],
    )


def _forget(workspace: Workspace, addresses: Addresses, query: Query) -> Act:
    of = workspace.resolve(query.text("of"))
    planned = workspace.forget([of], dry_run=True)
    heirs = sorted(short(heir) for each in planned.composed_into.values() for heir in each)

    def carry_out(_: Query) -> Outcome:
        done = workspace.forget([of])
        return Outcome(
            f"Forgot {plural(len(done.removed), 'checkpoint')}",
            ["`holdfast gc` frees what nothing needs any more, after the grace time. This cannot be undone."],
        )

    removed = [one.id for one in planned.removed]
    lines = [f"{plural(len(removed), 'checkpoint')} would be forgotten."]
    if heirs:
        lines.append(f"Its changes would be part of {', '.join(heirs)}.")
    return Act(
        name="forget",
        title=f"Forget {short(of)}",
        address=addresses.page("act/forget", of=of),
        button="Forget" if removed else "",
        carry_out=carry_out,
        fingerprint=_digest(*(one.encode() for one in [*removed, *heirs])),
        lines=lines,
        warning="This cannot be undone: no command restores a state that was forgotten. The files of the tree stay.",
    )


# -- adopting an attempt ----------------------------------------------------------------------------------------------


def _adopt(workspace: Workspace, addresses: Addresses, query: Query) -> Act:
    from holdfast.engine.experiments import records
    from holdfast.engine.sessions.registry import Sessions

    found = records.recorded_experiment(workspace, query.text("experiment"))
    outcome = found.attempt(query.number("attempt", 0, 999_999)).outcome
    name = visible(outcome.attempt.name)
    experiment = Link("The experiment", addresses.page("experiments", of=found.id))
    planned = records.plan_adoption(workspace, found, outcome)
    with Sessions(home=workspace.home) as sessions:
        records.check_session(sessions, found)
        missed = () if outcome.fork is None else sessions.only_in(outcome.fork, workspace.path)

    def carry_out(_: Query) -> Outcome:
        with Sessions(home=workspace.home) as sessions:
            done = records.adopt_recorded(sessions, found, outcome)
        result = _outcome(addresses, done.restored, "Adopted")
        fork = f"Its fork stays: `holdfast session delete {outcome.fork}` deletes it."
        return result._replace(title=f"Adopted {name}", lines=[*result.lines, fork], links=[experiment])

    act = Act(
        name="adopt",
        title=f"Adopt {name}",
        address=addresses.page("act/adopt", experiment=found.id, attempt=outcome.attempt.number),
        button="Adopt",
        carry_out=carry_out,
        lines=[
            f"The tree becomes what attempt {outcome.attempt.number} of the experiment {found.id} has left.",
            "It is saved first, and this can be undone.",
            *_only_in_fork(missed),
        ],
        links=[experiment],
    )
    return _planned(workspace, addresses, act, planned)


def _only_in_fork(missed: Sequence[NotCaptured]) -> Iterator[str]:
    if missed:
        named = listed([path_text(one.path) for one in missed[:_MOST_NAMED]])
        yield f"{plural(len(missed), 'path')} of it are in no checkpoint, and stay in the fork alone: {named}."


_MOST_NAMED: Final = 10
