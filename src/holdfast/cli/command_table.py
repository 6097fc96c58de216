"""The list of commands: where each is written, and its few words in the overview."""

from __future__ import annotations

from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.cli.command import Command

COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "save": {
        "init": ("init_checkpoint", "start to remember a directory"),
        "checkpoint": ("init_checkpoint", "save the present state (alias: save)"),
        "watch": ("watch", "save automatically after changes"),
    },
    "look": {
        "status": ("status_cat", "show the changes since the last checkpoint"),
        "log": ("log_show", "list the past, newest first: checkpoints, prompts, runs, undos, …"),
        "show": ("log_show", "show one checkpoint, or another row of the log"),
        "ui": ("ui", "look at the timeline in a browser"),
        "cat": ("status_cat", "print a file as a checkpoint holds it"),
        "diff": ("diff", "show the differences between two states"),
        "rewind": ("rewind", "look at all that happened, full screen, and go back from there"),
    },
    "go back": {
        "restore": ("restore_undo_redo", "bring the tree, or some paths, back to a checkpoint"),
        "undo": ("restore_undo_redo", "take back the newest change to the tree"),
        "redo": ("restore_undo_redo", "bring back the last change that undo took back"),
    },
    "run": {
        "run": ("run", "run a command and record its changes, so that undo can reverse them"),
        "vm": ("vm", "the virtual machines that such commands run in: status, reset"),
        "steps": ("steps_barriers_safeguard", "list the steps of such commands"),
        "step": ("steps_barriers_safeguard", "group what follows into one step: begin, commit, rollback"),
        "barriers": ("steps_barriers_safeguard", "list edits by other processes between the steps"),
        "safeguard": ("steps_barriers_safeguard", "answer operations that wait for a person: list, allow, deny"),
    },
    "sessions": {
        "session": ("session.family", "keep a shell between commands: start, exec, history, branch, fork, …"),
        "experiment": ("experiment", "try commands side by side in forks, and keep the best"),
    },
    "agents": {
        "integrate": ("integrate_hook", "configure a coding agent to use Holdfast, or undo that"),
        "hook": ("integrate_hook", "the command that the hooks of an agent call"),
    },
    "serve": {
        "mcp": ("mcp", "give the workspace to a model as tools (Model Context Protocol)"),
        "serve": ("serve", "serve the REST API, and maintain the workspaces that it serves"),
        "stdio": ("stdio", "serve a frontend, by lines of JSON on standard input and output"),
    },
    "copy": {
        "fork": ("fork_export_import", "write a checkpoint out as a workspace of its own"),
        "merge": ("merge", "merge the changes of a fork into this workspace"),
        "promote": ("promote", "build and check a fork's work, then bring it to production"),
        "mount": ("mount", "look at a checkpoint as a directory, without writing it out"),
        "snapshot": ("snapshot", "snapshots by file systems or Git: take, list, show, mount, run, …"),
        "unmount": ("mount", "unmount a directory that `mount` or `fork --mount` mounted"),
        "export": ("fork_export_import", "write checkpoints and their ancestors to a file"),
        "import": ("fork_export_import", "read such a file"),
    },
    "keep": {
        "forget": ("forget_gc_verify_stats", "drop checkpoints, one by one or by a policy"),
        "gc": ("forget_gc_verify_stats", "delete content that no checkpoint needs"),
        "verify": ("forget_gc_verify_stats", "check the store for damaged or missing data"),
        "stats": ("forget_gc_verify_stats", "show how much space the store takes"),
        "image": ("image", "images of virtual machines: build, list, remove, import"),
        "store": ("store", "show, test, copy or claim the place where data is kept"),
        "doctor": ("doctor", "check this machine, the home and the workspace"),
        "completion": ("completion", "print a completion script for your shell"),
    },
}
"""By group: name → (module of this package, summary)."""

ALIASES = {"save": "checkpoint"}

GLOBAL_OPTIONS = {
    "--home DIR": "where everything is kept (default: $HOLDFAST_HOME, else the XDG data directory)",
    "-w, --workspace DIR": "the workspace is the nearest at or above DIR (default: the current directory)",
    "--json": "print one JSON object on standard output, and nothing else there",
    "-q, --quiet": "print only results and errors; of a new session, snapshot or image only the name",
    "-v, --verbose": "say more, such as all changed paths, not ten; show tracebacks of unexpected errors",
    "--log-level LEVEL": "the log: error, warn (default), info (with -v), debug or trace",
    "--version": "print the version",
}
"""The options of every command, and what each does."""
_WIDTH = max(map(len, GLOBAL_OPTIONS))

EXIT_CODES = {
    0: "done",
    1: "failed",
    2: "wrong usage",
    3: "no such workspace, checkpoint or path",
    4: "refused: a lock, a conflict, an unusual directory; the message says what would force it",
    5: "stored data is damaged or missing",
    130: "interrupted from the keyboard",
    141: "the reader of the output has closed it",
}
"""Meanings of exit codes, unless a command has its own."""


def names() -> list[str]:
    """Every command's name, in the overview's order."""
    return [name for group in COMMANDS.values() for name in group]


def load(name: str) -> Command:
    """The command called ``name`` (not an alias); imports only its module. KeyError if there is none."""
    module = next(group[name][0] for group in COMMANDS.values() if name in group)
    return __import__(f"holdfast.cli.{module}", fromlist=("COMMANDS",)).COMMANDS[name]


def load_verb(name: str, family: Command, verb: str) -> Command:
    """One of a family's commands; imports only its module. KeyError if there is none."""
    assert family.verbs is not None
    module = family.verbs[verb][0]
    return __import__(f"holdfast.cli.{module}", fromlist=("COMMANDS",)).COMMANDS[f"{name} {verb}"]


def every() -> dict[str, Command]:
    """All commands by name, those of families by both words (``session start``); imports all of their modules."""
    found: dict[str, Command] = {}
    for name in names():
        command = found[name] = load(name)
        found |= {f"{name} {verb}": load_verb(name, command, verb) for verb in command.verbs or ()}
    return found


def overview() -> str:
    """The output of ``holdfast --help``."""
    lines = [
        "usage: holdfast [--home DIR] [-w DIR] [--json] [-q] [-v] COMMAND …",
        "",
        "Gives a directory a memory: checkpoints, a diff between any two of them, undo of anything, forks.",
    ]
    width = max(map(len, names()))
    for title, group in COMMANDS.items():
        lines += ["", f"{title}:", *(f"  {name:<{width}}  {summary}" for name, (_, summary) in group.items())]
    lines += [
        "",
        "options, before or after the command:",
        *(f"  {names:<{_WIDTH}}  {meaning}" for names, meaning in GLOBAL_OPTIONS.items()),
        "",
        "A checkpoint is named by its id or the beginning of it, by its label, or from the one that the tree stands on",
        "back: @, @-, @-3. After an undo `holdfast redo` returns to the states ahead of @.",
        "",
        "  holdfast init && holdfast checkpoint -m 'before the agent'",
        "  holdfast diff @",
        "  holdfast undo",
        "",
        "`holdfast COMMAND --help` tells all about one command.",
        "",
        "exit codes:",
        *(f"  {code:<3}  {meaning}" for code, meaning in EXIT_CODES.items()),
    ]
    return "\n".join(lines) + "\n"
